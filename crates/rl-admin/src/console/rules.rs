//! The page of the rules: their limits, and what they have denied in the last hour.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::Extension;
use axum::extract::State;
use maud::{Markup, html};
use rl_core::stats::LimitStats;

use super::page::{Tab, page};
use super::site::Site;
use super::text;
use super::visitor::Visitor;
use crate::last_hour::{HourReport, LimitSums};

/// Shows the rules in their order, or the limits of a limiter without rules.
pub(super) async fn list(
    State(site): State<Arc<Site>>,
    Extension(visitor): Extension<Visitor>,
) -> Markup {
    let context = &site.context;
    let report = context.last_hour.report();
    let denials = report.denials();
    let rules = context.limiter.rule_names();
    let has_rules = rules.is_some();
    let names = rules.unwrap_or_else(|| vec![String::new()]);
    let main = html! {
        div.head {
            h1 { "Rules" }
            p.pulse { "As of " (text::time(report.now)) " UTC. " a href=(site.link("/rules", &[])) { "Refresh" } }
        }
        p.note {
            @if context.is_stand_alone {
                "These are the rules that this server knows. It decides no requests, so it has denied none: the \
                 programs of the services have their own rules and counts."
            } @else if has_rules {
                "The rules of this service, in their order. A request has to pass every rule that matches it. They \
                 are set in the program or in its file, and cannot be changed here. Counts are those of this process."
            } @else {
                "This service has no rules: the same limits apply to every request that it counts. Counts are those \
                 of this process."
            }
        }
        table.list.rules {
            thead { tr {
                th scope="col" { "Rule" } th scope="col" { "Limits" } th scope="col" { "State" }
                th.number scope="col" { "Denied in the last hour" }
                th.number scope="col" { "Allowed since the start" }
            } }
            tbody { @for name in &names { (row(&site, &report, &denials, name)) } }
        }
    };
    page(&site, Some(&visitor), "Rules", Tab::Rules, main)
}

fn row(site: &Site, report: &HourReport, denials: &[LimitSums], name: &str) -> Markup {
    let limiter = &site.context.limiter;
    let is_shadow = limiter.is_shadow() || !name.is_empty() && limiter.rule(name).is_shadow();
    let of_rule = denials.iter().filter(|sums| sums.path.rule == name);
    let [over, shadow_over] =
        of_rule.fold([0, 0], |[over, shadow], sums| [over + sums.over, shadow + sums.shadow_over]);
    let allowed = match name {
        "" => Some(report.stats.allowed()),
        _ => report.stats.rules.iter().find(|rule| rule.rule == name).map(|rule| rule.within),
    };
    let (state, word) = match (limiter.is_enabled(), is_shadow) {
        (false, _) => ("full", "off"),
        (true, true) => ("near", "in shadow, denies nothing"),
        (true, false) => ("active", "on"),
    };
    let limits = limits(report.stats.limits.iter().filter(|limit| limit.rule == name));
    html! {
        tr data-state=(state) {
            th scope="row" { @if name.is_empty() { "All requests" } @else { (name) } }
            td data-label="Limits" {
                @if limits.is_empty() { "of each subject, from the console" }
                @for (tier, limits) in &limits {
                    p.tier { @if !tier.is_empty() { span.faint { (tier) ": " } } (limits.join(", ")) }
                }
            }
            td data-label="State" { span.state { (word) } }
            td.number data-label="Denied in the last hour" {
                a href=(site.link("", &[("rule", name)])) { (text::number(over)) }
                @if shadow_over > 0 { " (in shadow " (text::number(shadow_over)) ")" }
            }
            td.number data-label="Allowed since the start" {
                (allowed.map_or("–".to_owned(), text::number))
            }
        }
    }
}

/// Returns the limits of a rule by the tier of the request; empty if a source finds them.
fn limits<'a>(all: impl Iterator<Item = &'a LimitStats>) -> BTreeMap<&'a str, Vec<String>> {
    let mut limits = BTreeMap::<_, Vec<String>>::new();
    for (tier, limit) in all.flat_map(|limit| &limit.by_tier) {
        limits.entry(&**tier).or_default().push(limit.to_string());
    }
    limits
}
