//! Measures a page of `/metrics`.

use std::error::Error;

use rl_core::rules::{Match, Rule, Rules};
use rl_core::{Limit, RateLimiter, Subject};
use rl_metrics::Metrics;

use crate::machine;
use crate::measure::{median, p99, time};
use crate::table::Table;

/// The number of pages that are rendered.
const PAGES: usize = 300;

pub(crate) fn run() -> Result<(), Box<dyn Error>> {
    println!("rl-metrics: a page of series\n");
    println!("machine   {}", machine::cores());
    println!("versions  {}, {}\n", machine::program("rustc"), machine::profile());
    page()
}

/// Creates a limiter of 100 rules with five limits each. Each rule has allowed 20 requests.
fn limiter() -> Result<RateLimiter, Box<dyn Error>> {
    let smooth: Limit = "99/hour:gcra".parse()?;
    let rules = (0..100).map(|number| {
        let rule = Rule::named(format!("rule-{number}"));
        let rule = rule.matching(Match::new().path(format!("/rule-{number}")));
        rule.limit(Limit::per_second(9))
            .limit(Limit::per_minute(99))
            .limit(Limit::per_hour(999))
            .limit(Limit::per_day(9_999))
            .named_limit("smooth", smooth)
    });
    let limiter = RateLimiter::builder().rules(rules.fold(Rules::new(), Rules::rule)).build()?;
    for number in 0..100 {
        for request in 0..20 {
            let subject = Subject::consumer(&format!("consumer-{request}"));
            drop(limiter.rule(&format!("rule-{number}")).of(&subject).check());
        }
    }
    Ok(limiter)
}

/// Measures a page of 500 limits.
fn page() -> Result<(), Box<dyn Error>> {
    let metrics = Metrics::new().limiter(&limiter()?);
    let (mut millis, mut bytes) = (Vec::new(), 0);
    for _ in 0..PAGES {
        let (taken, page) = time(|| metrics.render());
        millis.push(taken.as_secs_f64() * 1e3);
        bytes = page.len();
    }
    let mut table = Table::new("milliseconds", ["page", "median", "p99", "bound"]);
    let text = |millis: f64| format!("{millis:.2}");
    let name = format!("/metrics of 500 limits, {} kB", bytes / 1_000);
    table.row([name, text(median(&millis)), text(p99(&millis)), "5".to_owned()]);
    println!("{table}");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_measured_page_shows_500_limits_and_the_requests_of_their_rules() {
        let page = Metrics::new().limiter(&limiter().unwrap()).render();
        assert_eq!(page.matches("\nrl_limit_max{").count(), 500);
        let allowed = page.lines().filter(|line| {
            line.starts_with("rl_rule_evaluations_total{") && line.ends_with("\"} 20")
        });
        assert_eq!(allowed.count(), 100);
    }
}
