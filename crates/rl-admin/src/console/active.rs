//! The limits of a consumer at a selected time, and where they come from.

use std::collections::BTreeMap;

use maud::{Markup, html};
use rl_core::time::Timestamp;
use rl_records::{ActiveLimits, Contribution};

use super::site::Site;
use super::text;
use super::visitor::Visitor;
use crate::access::Role;

/// Renders the form for a time, and the limits at that time: those under every rule, and those
/// under each rule that has limits of its own.
pub(super) fn section(
    site: &Site,
    visitor: &Visitor,
    consumer: &str,
    at: SelectedTime,
    limits: &BTreeMap<Option<String>, ActiveLimits>,
) -> Markup {
    html! {
        section aria-labelledby="holds" {
            div.head {
                h2 #holds { "Limits, and where they come from" }
                form.inline method="get" action={ (site.path()) "/consumer#holds" } {
                    input type="hidden" name="id" value=(consumer);
                    label for="at" { "At (UTC)" }
                    input #at type="datetime-local" step="1" name="at" value=(text::field(at.time))
                        aria-invalid=[at.is_wrong.then_some("true")]
                        aria-describedby=[at.is_wrong.then_some("at-problem")];
                    button type="submit" { "Show" }
                    @if !at.is_now {
                        a href={ (site.consumer_link(consumer)) "#holds" } { "Now" }
                    }
                }
            }
            @if at.is_wrong {
                p.problem #at-problem {
                    "This is no time. Expected one such as 2026-11-21T14:00. The current limits are shown."
                }
            }
            @for (rule, of_rule) in limits {
                @let label = match rule {
                    Some(rule) => format!("Under the rule {rule}"),
                    None if limits.len() > 1 => "Under the other rules".to_owned(),
                    None => "Under every rule".to_owned(),
                };
                @if limits.len() > 1 { h3 { (label) } }
                p { (reason(of_rule, at)) }
                (table(site, visitor, &label, of_rule))
            }
        }
    }
}

/// Renders what the limits under a rule consist of, and their sum.
fn table(site: &Site, visitor: &Visitor, label: &str, limits: &ActiveLimits) -> Markup {
    html! {
        div.scroll tabindex="0" role="region" aria-label={ "Limits and where they come from: " (label) } {
            table.sums {
                thead { tr {
                    th scope="col" { "From" }
                    th scope="col" { "Limits" }
                } }
                @if !limits.contributions().is_empty() {
                    tbody { @for record in limits.contributions() { (row(site, visitor, record)) } }
                }
                tfoot { tr {
                    th scope="row" { "Sum" }
                    td {
                        @if limits.is_blocked() { "no call is allowed" }
                        @else { (text::limits(limits.limits())) }
                    }
                } }
            }
        }
    }
}

/// The time for which a page shows limits.
#[derive(Clone, Copy, Debug)]
pub(super) struct SelectedTime {
    pub(super) time: Timestamp,
    pub(super) is_now: bool,
    /// Whether the request contained an invalid time.
    pub(super) is_wrong: bool,
}

impl SelectedTime {
    /// Reads a field. An empty field means now.
    pub(super) fn read(field: &str, now: Timestamp) -> Self {
        let time = text::parse_time(field);
        let is_wrong = time.is_none() && !field.is_empty();
        Self { time: time.unwrap_or(now), is_now: time.is_none(), is_wrong }
    }
}

/// Describes where the limits come from.
fn reason(limits: &ActiveLimits, at: SelectedTime) -> Markup {
    let granting = limits.contributions().iter().filter(|record| record.grants).count();
    let count = limits.contributions().len() - granting;
    let none = if granting > 0 { "Apart from grants, no own limits" } else { "No own limits" };
    let be = |now: &'static str, then: &'static str| if at.is_now { now } else { then };
    html! {
        @if limits.is_blocked() {
            strong { "Blocked." } " No call is allowed, whatever the other limits are."
        } @else if let Some(tier) = limits.tier() {
            (none) " apply " (be("now", "then")) ". The limits are those of the tier " strong { (tier) } "."
        } @else if limits.is_default() {
            (none) " apply " (be("now", "then")) ", and there is no tier. The limits are the configured defaults."
        } @else if count == 1 {
            "One entry of own limits applies " (be("now", "then")) "."
        } @else {
            (count) " entries of own limits apply " (be("now", "then")) ". They are added up. An entry without a limit adds nothing."
        }
        @if granting > 0 && !limits.is_blocked() { " Each limit of a grant is added to the limit with the same period and algorithm." }
    }
}

fn row(site: &Site, visitor: &Visitor, record: &Contribution) -> Markup {
    let to = if visitor.actor.has(Role::CanUpdateRateLimits) {
        format!("{}/record/edit?record={}", site.path(), record.id)
    } else {
        format!("#record-{}", record.id)
    };
    html! {
        tr {
            th scope="row" {
                a href=(to) {
                    (text::time(record.from_date)) " to " (text::time(record.to_date))
                }
                @if record.blocks { " " span.state { "blocks" } }
                @if record.grants { " " span.state { "grants more" } }
            }
            td {
                @if record.blocks { "no call is allowed" }
                @else if record.limits.is_empty() { span.faint title="no limit: adds nothing" { "–" } }
                @else { @if record.grants { "+ " } (text::limits(&record.limits)) }
            }
        }
    }
}
