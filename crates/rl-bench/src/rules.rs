//! Measures requests through axum under rules, of which one matches.

use std::pin::pin;
use std::task::{Context, Poll, Waker};

use axum::Router;
use axum::body::Body;
use axum::http::{Request, StatusCode};
use axum::routing::any;
use rl_core::rules::{Match, Rule, Rules};
use rl_core::{Limit, RateLimiter};
use rl_tower::RateLimitLayer;
use tower::Service;

use crate::Result;
use crate::algorithms::ENDLESS;
use crate::measure::{Race, time_on_processor};
use crate::report::{Report, Table};

/// The numbers of rules. The ratios are to the first.
const RULES: [usize; 3] = [10, 1_000, 10_000];
/// The requests that a service gets in one turn.
const REQUESTS: u32 = 100;

/// Measures the processor time of requests.
pub(crate) fn run(report: &mut Report) -> Result {
    let by_path = |number| Match::new().path(format!("/t{number}/items/{{id}}"));
    let by_host = |number| Match::new().host(format!("t{number}.example.org"));
    let mut table = Table::new(
        "requests through axum, under rules of which one matches: µs of a request",
        ["rules"].into_iter().map(str::to_owned).chain(RULES.map(|count| count.to_string())),
    );
    for (name, matching, path) in [
        ("paths of their own", by_path as fn(usize) -> Match, "/t7/items/1"),
        ("own paths, /%74%37//items/%61/", by_path, "/%74%37//items/%61/"),
        ("hosts of their own", by_host, "/items/1"),
    ] {
        let services = RULES.map(|count| service(count, matching));
        let mut services = services.into_iter().collect::<Result<Vec<_>>>()?;
        let race = Race::run(RULES.len(), report.rounds(41), |turn| {
            let (taken, ()) = time_on_processor(|| ask(&mut services[turn.contender], path));
            [taken.as_secs_f64() * 1e6 / f64::from(REQUESTS)]
        });
        table.row(name, [0, 1, 2].map(|place| race.median(place, 0)));
        let what = format!("10 000 rules with {name}: time beside 10");
        report.at_most(what, 1.5, race.multiple(2, 0, 0));
    }
    report.table(table);
    Ok(())
}

/// Creates a service with this number of rules.
fn service(count: usize, matching: impl Fn(usize) -> Match) -> Result<Router> {
    let rule = |number| {
        let rule = Rule::named(format!("rule-{number}")).limit(Limit::per_hour(ENDLESS));
        rule.matching(matching(number))
    };
    let rules = (0..count).map(rule).fold(Rules::new(), Rules::rule);
    let limiter = RateLimiter::builder().rules(rules).build()?;
    Ok(Router::new().fallback(any(async || "")).layer(RateLimitLayer::new(limiter)))
}

/// Sends requests to a service.
fn ask(service: &mut Router, path: &str) {
    let mut context = Context::from_waker(Waker::noop());
    for _ in 0..REQUESTS {
        let request = Request::get(path).header("host", "t7.example.org").body(Body::empty());
        let answer = pin!(service.call(request.expect("a request"))).poll(&mut context);
        let Poll::Ready(Ok(response)) = answer else { panic!("nothing here waits") };
        assert_eq!(response.status(), StatusCode::OK, "{path}");
    }
}
