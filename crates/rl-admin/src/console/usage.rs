//! The usage of a consumer, drawn as bars.
//!
//! The script of the page refreshes the bars in place, so every part that changes has an id.

use std::sync::Arc;
use std::time::Duration;

use axum::Extension;
use axum::extract::{Request, State};
use axum::response::{IntoResponse, Redirect, Response};
use maud::{Markup, html};
use rl_core::{Decision, MAX_UNITS, Subject};
use rl_records::{CallPeriod, HistoryQuery};
use sha2::{Digest, Sha256};

use super::consumer_id::check_consumer_id;
use super::failure::Failure;
use super::fields::Fields;
use super::page::form_token;
use super::site::Site;
use super::text;
use super::visitor::Visitor;
use crate::access::Role;
use crate::audit;
use crate::wire::all_periods;

/// The usage of a consumer in one period.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Bar {
    period: CallPeriod,
    counted: Option<Counted>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Counted {
    // `None` if calls are counted, but not limited.
    max: Option<u64>,
    used: u64,
    remaining: u64,
    // The time until the open window ends.
    reset: Option<Duration>,
}

impl Bar {
    /// Returns the bars of all six periods.
    fn all(usage: &Decision) -> [Self; 6] {
        CallPeriod::ALL.map(|period| {
            let mut limits = usage.limits();
            let report = limits.find(|report| report.limit().period() == period.period());
            let counted = report.map(|report| Counted {
                max: Some(report.max())
                    .filter(|max| *max < MAX_UNITS || !report.limit().is_shadow()),
                used: report.used(),
                remaining: report.remaining(),
                reset: Some(report.reset_after()).filter(|_| report.is_active()),
            });
            Self { period, counted }
        })
    }

    /// Returns the state as a word for the style sheet, and as a text for display.
    const fn state(self) -> (&'static str, &'static str) {
        match self.counted {
            None | Some(Counted { max: None, .. }) => ("none", "no limit"),
            Some(Counted { max: Some(0), .. }) => ("full", "blocked"),
            Some(Counted { remaining: 0, .. }) => ("full", "used up"),
            Some(Counted { used: 0, .. }) => ("open", "unused"),
            Some(Counted { max: Some(max), remaining, .. }) if remaining <= max / 5 => {
                ("near", "nearly used up")
            }
            Some(_) => ("open", "open"),
        }
    }

    /// Returns the length of the bar, in thousandths.
    fn length(self) -> u64 {
        let Some(Counted { max: Some(max), used, .. }) = self.counted else { return 0 };
        let thousandths = u128::from(used.min(max)) * 1_000 / u128::from(max.max(1));
        // A bar must be visible even after one call of a million.
        u64::try_from(thousandths).unwrap_or(1_000).max(u64::from(used > 0) * 4)
    }

    fn row(self) -> Markup {
        let name = self.period.period().to_string();
        let (state, word) = self.state();
        let length = self.length();
        html! {
            tr #{ "u-" (name) } data-live="state" data-state=(state) {
                th scope="row" { (text::period(self.period)) }
                td.bar {
                    svg aria-hidden="true" focusable="false" width="100%" height="14" {
                        rect.track width="100%" height="14" rx="7" {}
                        rect.fill #{ "u-" (name) "-bar" } data-live="width" height="14" rx="7"
                            width=(format!("{}.{}%", length / 10, length % 10)) {}
                    }
                }
                td.number data-label="Calls made" {
                    span #{ "u-" (name) "-used" } data-live="text" {
                        @match self.counted {
                            Some(Counted { max: Some(max), used, .. }) => {
                                (text::number(used)) " of " (text::number(max))
                            }
                            Some(Counted { used, .. }) => (text::number(used)),
                            None => "not counted",
                        }
                    }
                }
                td.number data-label="Remaining" {
                    span #{ "u-" (name) "-left" } data-live="text" {
                        (self.counted.filter(|counted| counted.max.is_some())
                            .map_or("–".to_owned(), |counted| text::number(counted.remaining)))
                    }
                }
                td.number data-label="Reset in" {
                    span #{ "u-" (name) "-reset" } data-live="text" {
                        (self.counted.and_then(|counted| counted.reset).map_or("–".to_owned(), text::span))
                    }
                }
                td data-label="State" {
                    span.state #{ "u-" (name) "-state" } data-live="text" { (word) }
                }
            }
        }
    }
}

/// Renders the bars of a consumer, or the reason why its usage is unknown.
pub(super) async fn bars(site: &Site, consumer: &str) -> Markup {
    let usage = site.context.limiter.usage(&Subject::consumer(consumer)).await;
    let source = site.link("/usage", &[("id", consumer)]);
    html! {
        div #usage data-source=(source) data-version=(version(site, consumer).await) {
            p.problem #u-problem data-live="text" hidden[usage.is_ok()] {
                @if let Err(error) = &usage {
                    "The counters are unavailable: " (error) ". "
                    (text::consequence(&site.context.limiter, error.kind()))
                }
            }
            @if let Ok(usage) = &usage {
                table.bars {
                    caption.unseen { "Calls in each period" }
                    thead { tr {
                        th scope="col" { "Period" }
                        th scope="col" { span.unseen { "Share" } }
                        th.number scope="col" { "Calls made" }
                        th.number scope="col" { "Remaining" }
                        th.number scope="col" { "Reset in" }
                        th scope="col" { "State" }
                    } }
                    tbody { @for bar in Bar::all(usage) { (bar.row()) } }
                }
            }
        }
    }
}

/// Returns a hash of the limits that the page shows, by which the script detects a change.
///
/// The hash covers the last change, the active records, the limits and the tier. It is empty if
/// they cannot be read.
async fn version(site: &Site, consumer: &str) -> String {
    let records = &site.context.records;
    let now = site.context.now();
    let last = HistoryQuery { owner: Some(consumer.into()), limit: 1, ..HistoryQuery::default() };
    let Ok(changes) = records.history(&last).await else { return String::new() };
    let Ok(active) = records.active_limits(consumer, now).await else { return String::new() };
    let Ok(tier) = records.tiers().member(&Subject::consumer(consumer)).await else {
        return String::new();
    };
    let change = changes.first().map(|change| change.number);
    let records: Vec<_> = active.contributions().iter().map(|record| record.id).collect();
    let seen = (change, records, active.limits().numbers(), tier.map(|member| member.revision));
    let digest = Sha256::digest(format!("{seen:?}"));
    digest[..8].iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Responds with the bars only.
pub(super) async fn fragment(State(site): State<Arc<Site>>, request: Request) -> Markup {
    let query = Fields::of_query(request.uri());
    bars(&site, query.raw("id")).await
}

/// Renders the form that resets the counters. The first click only opens it.
pub(super) fn reset_form(site: &Site, visitor: &Visitor, consumer: &str) -> Markup {
    html! {
        @if visitor.actor.has(Role::CanResetCallCounters) {
            details {
                summary { "Reset the counters" }
                form.inline method="post" action={ (site.path()) "/consumer/reset" } {
                    (form_token(visitor))
                    input type="hidden" name="id" value=(consumer);
                    span { "This resets all six periods, so a consumer that was rejected may call again." }
                    button.danger type="submit" { "Reset now" }
                }
            }
        }
    }
}

/// Resets the counters of a consumer.
pub(super) async fn reset(
    State(site): State<Arc<Site>>,
    Extension(visitor): Extension<Visitor>,
    Extension(form): Extension<Fields>,
) -> Result<Response, Failure> {
    visitor.require(Role::CanResetCallCounters)?;
    let id = check_consumer_id(form.raw("id"))?;
    let subject = Subject::consumer(id);
    site.context.limiter.reset_with_policy(all_periods(), &subject, None).await?;
    audit::reset(&site.context, &visitor.actor, &subject, None).await;
    let to = site.link("/consumer", &[("id", id), ("done", "reset")]);
    Ok(Redirect::to(&to).into_response())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bar(max: u64, used: u64) -> Bar {
        let remaining = max.saturating_sub(used);
        let counted = Some(Counted { max: Some(max), used, remaining, reset: None });
        Bar { period: CallPeriod::Minute, counted }
    }

    #[test]
    fn bars_have_the_state_and_the_length_of_the_usage() {
        #[rustfmt::skip]
        let table = [
            (bar(100, 0),         "unused",         0),
            (bar(100, 42),        "open",           420),
            (bar(100, 79),        "open",           790),
            (bar(100, 80),        "nearly used up", 800),
            (bar(100, 100),       "used up",        1_000),
            (bar(100, 120),       "used up",        1_000),
            (bar(0, 0),           "blocked",        0),
            (bar(1_000_000, 1),   "open",           4),
            (bar(1, 0),           "unused",         0),
            (bar(u64::MAX, 1 << 60), "open",        62),
        ];
        for (bar, word, length) in table {
            assert_eq!((bar.state().1, bar.length()), (word, length), "{bar:?}");
        }
        let counted = Counted { max: None, used: 3, remaining: 9, reset: None };
        for counted in [None, Some(counted)] {
            let none = Bar { period: CallPeriod::Day, counted };
            assert_eq!((none.state().1, none.length()), ("no limit", 0));
        }
    }
}
