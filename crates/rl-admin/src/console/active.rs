//! What holds at a time, and which record contributed what.

use maud::{Markup, html};
use rl_core::time::Timestamp;
use rl_records::{ActiveLimits, CallLimit, CallPeriod, Contribution};

use super::fields::link;
use super::session::Visitor;
use super::{Console, text};
use crate::Role;

/// The form that asks for a time, and the answer.
pub(super) fn section(
    console: &Console,
    visitor: &Visitor,
    consumer: &str,
    at: Asked,
    limits: &ActiveLimits,
) -> Markup {
    html! {
        section aria-labelledby="holds" {
            div.head {
                h2 #holds { "What holds, and why" }
                form.inline method="get" action={ (console.path()) "/consumer#holds" } {
                    input type="hidden" name="id" value=(consumer);
                    label for="at" { "At (UTC)" }
                    input #at type="datetime-local" step="1" name="at" value=(text::field(at.time))
                        aria-invalid=[at.is_wrong.then_some("true")]
                        aria-describedby=[at.is_wrong.then_some("at-problem")];
                    button type="submit" { "Show" }
                    @if !at.is_now {
                        a href={ (link(&format!("{}/consumer", console.path()), &[("id", consumer)])) "#holds" } { "Now" }
                    }
                }
            }
            @if at.is_wrong {
                p.problem #at-problem {
                    "That is no time. Expected one such as 2026-11-21T14:00; this is what holds now."
                }
            }
            p { (reason(limits, at)) }
            div.scroll tabindex="0" role="region" aria-label="Limits and where they come from" {
                table.sums {
                    thead { tr {
                        th scope="col" { "From" }
                        @for period in CallPeriod::ALL { th.number scope="col" { (text::period(period)) } }
                    } }
                    @if !limits.contributions().is_empty() {
                        tbody { @for record in limits.contributions() { (row(console, visitor, record)) } }
                    }
                    tfoot { tr {
                        th scope="row" { "Limit" }
                        @for period in CallPeriod::ALL {
                            td.number data-label=(text::period(period)) { (text::limit(limits.limits().get(period))) }
                        }
                    } }
                }
            }
        }
    }
}

/// The time that a page is about.
#[derive(Clone, Copy, Debug)]
pub(super) struct Asked {
    pub(super) time: Timestamp,
    pub(super) is_now: bool,
    /// Something was asked for that is no time.
    pub(super) is_wrong: bool,
}

impl Asked {
    /// What a field says, or now if it says nothing.
    pub(super) fn read(field: &str, now: Timestamp) -> Self {
        let time = text::read_time(field);
        let is_wrong = time.is_none() && !field.is_empty();
        Self { time: time.unwrap_or(now), is_now: time.is_none(), is_wrong }
    }
}

fn reason(limits: &ActiveLimits, at: Asked) -> Markup {
    let count = limits.contributions().len();
    let be = |now: &'static str, then: &'static str| if at.is_now { now } else { then };
    html! {
        @if limits.is_blocked() {
            strong { "Blocked." } " One of the records blocks this consumer: no call passes, whatever \
            the others say."
        } @else if let Some(tier) = limits.tier() {
            "No record is active " (be("now", "then")) ": the limits of the tier " strong { (tier) } " hold."
        } @else if limits.is_default() {
            "No record is active " (be("now", "then")) ", and there is no tier: the configured defaults hold."
        } @else if count == 1 {
            "One record is active " (be("now", "then")) "; it decides alone."
        } @else {
            (count) " records are active " (be("now", "then")) "; what they allow adds up, and a record \
            without a limit adds nothing."
        }
    }
}

fn row(console: &Console, visitor: &Visitor, record: &Contribution) -> Markup {
    let to = if visitor.actor.has(Role::CanUpdateRateLimits) {
        format!("{}/record/edit?record={}", console.path(), record.id)
    } else {
        format!("#record-{}", record.id)
    };
    html! {
        tr {
            th scope="row" {
                a href=(to) {
                    (text::minute(record.from_date)) " to " (text::minute(record.to_date))
                }
                @if record.blocks { " " span.state { "blocks" } }
            }
            @for period in CallPeriod::ALL {
                td.number data-label=(text::period(period)) {
                    @match record.limits.get(period) {
                        CallLimit::AtMost(max) => { "+" (text::number(max)) }
                        CallLimit::Unlimited => { span.faint title="no limit: adds nothing" { "–" } }
                    }
                }
            }
        }
    }
}
