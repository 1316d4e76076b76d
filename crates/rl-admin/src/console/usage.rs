//! The usage of a consumer, drawn as bars.
//!
//! The script of the page refreshes the bars in place, so every part that changes has an id.

use std::sync::Arc;
use std::time::Duration;

use axum::Extension;
use axum::extract::{Request, State};
use axum::response::{IntoResponse, Redirect, Response};
use maud::{Markup, html};
use rl_core::rules::CountingRule;
use rl_core::{Decision, LimitStatus, MAX_UNITS, StoreError, Subject};
use rl_records::{CallLimit, CallLimits, CallPeriod, HistoryQuery, Limits};
use sha2::{Digest, Sha256};

use super::consumer_id::check_consumer_id;
use super::failure::Failure;
use super::fields::Fields;
use super::page::form_token;
use super::site::Site;
use super::text;
use super::visitor::Visitor;
use crate::access::Role;
use crate::error::ApiError;
use crate::subject_rules::{RuleFailure, SubjectRules};

/// The usage of a consumer under one limit.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Bar {
    /// The id of the row, without the prefix of its table.
    id: String,
    label: String,
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

impl Counted {
    fn of(limit: LimitStatus<'_>) -> Self {
        Self {
            max: Some(limit.max()).filter(|max| *max < MAX_UNITS || !limit.limit().is_shadow()),
            used: limit.used(),
            remaining: limit.remaining(),
            reset: Some(limit.reset_after()).filter(|_| limit.is_active()),
        }
    }
}

impl Bar {
    /// Returns a bar for each of the six periods, and for each other limit.
    fn of_records(usage: &Decision) -> Vec<Self> {
        let of_period = |period: CallPeriod| {
            // Other limits of the same period have bars of their own.
            let plain = Limits::from(CallLimits::UNLIMITED.with(period, CallLimit::AtMost(1)));
            let plain = plain.as_slice().first().copied();
            usage
                .limits()
                .position(|limit| plain.is_some_and(|plain| plain.shares_state_with(limit.limit())))
        };
        let shown = CallPeriod::ALL.map(of_period);
        let periods = CallPeriod::ALL.into_iter().zip(shown).map(|(period, position)| Self {
            id: period.period().to_string(),
            label: text::period(period).to_owned(),
            counted: position.and_then(|position| usage.limits().nth(position)).map(Counted::of),
        });
        let others = Self::of_limits(usage).into_iter().enumerate();
        let others = others.filter(|(position, _)| !shown.contains(&Some(*position)));
        periods.chain(others.map(|(_, bar)| bar)).collect()
    }

    /// Returns a bar for each limit.
    fn of_limits(usage: &Decision) -> Vec<Self> {
        let bar = |(position, limit): (usize, LimitStatus<'_>)| Self {
            id: format!("limit-{position}"),
            label: format!("{} ({})", limit.name(), limit.limit()),
            counted: Some(Counted::of(limit)),
        };
        usage.limits().enumerate().map(bar).collect()
    }

    /// Returns the state as a word for the style sheet, and as a text for display.
    const fn state(&self) -> (&'static str, &'static str) {
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
    fn length(&self) -> u64 {
        let Some(Counted { max: Some(max), used, .. }) = self.counted else { return 0 };
        let thousandths = u128::from(used.min(max)) * 1_000 / u128::from(max.max(1));
        // A bar must be visible even after one call of a million.
        u64::try_from(thousandths).unwrap_or(1_000).max(u64::from(used > 0) * 4)
    }

    /// Renders the row of a table whose ids begin with `prefix`.
    fn row(&self, prefix: &str) -> Markup {
        let name = format!("{prefix}{}", self.id);
        let (state, word) = self.state();
        let length = self.length();
        html! {
            tr #{ (name) } data-live="state" data-state=(state) {
                th scope="row" { (self.label) }
                td.bar {
                    svg aria-hidden="true" focusable="false" width="100%" height="14" {
                        rect.track width="100%" height="14" rx="7" {}
                        rect.fill #{ (name) "-bar" } data-live="width" height="14" rx="7"
                            width=(format!("{}.{}%", length / 10, length % 10)) {}
                    }
                }
                td.number data-label="Calls made" {
                    span #{ (name) "-used" } data-live="text" {
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
                    span #{ (name) "-left" } data-live="text" {
                        (self.counted.filter(|counted| counted.max.is_some())
                            .map_or("–".to_owned(), |counted| text::number(counted.remaining)))
                    }
                }
                td.number data-label="Reset in" {
                    span #{ (name) "-reset" } data-live="text" {
                        (self.counted.and_then(|counted| counted.reset).map_or("–".to_owned(), text::span))
                    }
                }
                td data-label="State" {
                    span.state #{ (name) "-state" } data-live="text" { (word) }
                }
            }
        }
    }
}

/// Renders the bars of a consumer under each rule that counts it, or the reason why its usage is
/// unknown.
pub(super) async fn bars(site: &Site, consumer: &str) -> Result<Markup, ApiError> {
    let found = SubjectRules::find(&site.context, Subject::consumer(consumer), None)?;
    let source = site.link("/usage", &[("id", consumer)]);
    let version = version(site, consumer).await;
    let mut problem = None;
    let mut tables = Vec::with_capacity(found.rules.len());
    for (index, rule) in found.rules.iter().enumerate() {
        match found.usage(rule.as_ref().map(|rule| &*rule.name)).await {
            Ok(usage) => tables.push(table(index, rule.as_ref(), &usage)),
            Err(failure) => {
                if failure.is_outage() {
                    // The same store has the counters of all rules.
                    problem = Some(unavailable(site, &failure.error));
                    tables.clear();
                    break;
                }
                tables.push(unread(index, failure));
            }
        }
    }
    Ok(html! {
        div #usage data-source=(source) data-version=(version) {
            p.problem #u-problem data-live="text" hidden[problem.is_none()] { (problem.unwrap_or_default()) }
            @for table in &tables { (table) }
            @if let Some(note) = found.note() { p.note #u-note data-live="text" { (note) } }
        }
    })
}

/// Describes an outage of the store, and what happens to calls.
fn unavailable(site: &Site, error: &StoreError) -> String {
    let consequence = text::consequence(&site.context, error.kind());
    format!("The counters are unavailable: {error}. {consequence}")
}

/// Renders the reason why the usage under one rule is unknown.
fn unread(index: usize, failure: RuleFailure) -> Markup {
    let message = failure.into_api_error().message().to_owned();
    html! { p.problem #{ "u" (index) "-problem" } data-live="text" { (message) "." } }
}

/// Renders the bars of a consumer under one rule.
fn table(index: usize, rule: Option<&CountingRule>, usage: &Decision) -> Markup {
    let (prefix, bars) = match rule {
        None => ("u-".to_owned(), Bar::of_records(usage)),
        Some(rule) if rule.has_source => (format!("u{index}-"), Bar::of_records(usage)),
        Some(_) => (format!("u{index}-"), Bar::of_limits(usage)),
    };
    html! {
        table.bars {
            @match rule {
                None => caption.unseen { "Calls in each period" },
                Some(rule) => caption {
                    "Rule " (rule.name)
                    @if rule.is_shadow { " (in shadow, denies nothing)" }
                    @else if rule.has_match { " (only requests that match it)" }
                    @if let Some(tier) = &rule.tier { " (tier " (tier) ")" }
                    @else if !rule.tiers.is_empty() { " (requests without a tier)" }
                },
            }
            thead { tr {
                th scope="col" { @if rule.is_some_and(|rule| !rule.has_source) { "Limit" } @else { "Period" } }
                th scope="col" { span.unseen { "Share" } }
                th.number scope="col" { "Calls made" }
                th.number scope="col" { "Remaining" }
                th.number scope="col" { "Reset in" }
                th scope="col" { "State" }
            } }
            tbody { @for bar in &bars { (bar.row(&prefix)) } }
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
    let seen = (change, records, active.limits().to_string(), tier.map(|member| member.revision));
    let digest = Sha256::digest(format!("{seen:?}"));
    digest[..8].iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Responds with the bars only.
pub(super) async fn fragment(
    State(site): State<Arc<Site>>,
    request: Request,
) -> Result<Markup, Failure> {
    let query = Fields::of_query(request.uri());
    Ok(bars(&site, query.raw("id")).await?)
}

/// Renders the form that resets the counters. The first click only opens it.
pub(super) fn reset_form(
    site: &Site,
    visitor: &Visitor,
    consumer: &str,
) -> Result<Markup, Failure> {
    let found = SubjectRules::find(&site.context, Subject::consumer(consumer), None)?;
    let rules: Vec<_> = found.rules.iter().flatten().map(|rule| &*rule.name).collect();
    Ok(html! {
        @if visitor.actor.has(Role::CanResetCallCounters) && !found.rules.is_empty() {
            details {
                summary { "Reset the counters" }
                form.inline method="post" action={ (site.path()) "/consumer/reset" } {
                    (form_token(visitor))
                    input type="hidden" name="id" value=(consumer);
                    @match &rules[..] {
                        [] => span { "This sets the calls of all six periods to 0. It lifts no block." },
                        _ => span { "This sets the use of all limits under a rule to 0. It lifts no block." },
                    }
                    @if rules.len() > 1 {
                        @for rule in &rules {
                            button.danger type="submit" name="rule" value=(rule) { "Reset " (rule) }
                        }
                    }
                    button.danger type="submit" name="rule" value="" {
                        @if rules.len() > 1 { "Reset all" } @else { "Reset now" }
                    }
                }
            }
        }
    })
}

/// Resets the counters of a consumer, under one rule or under all that count it.
pub(super) async fn reset(
    State(site): State<Arc<Site>>,
    Extension(visitor): Extension<Visitor>,
    Extension(form): Extension<Fields>,
) -> Result<Response, Failure> {
    visitor.require(Role::CanResetCallCounters)?;
    let id = check_consumer_id(form.raw("id"))?;
    let (context, rule) = (&site.context, form.non_empty("rule"));
    let found = SubjectRules::find(context, Subject::consumer(id), rule)?;
    found.reset(context, &visitor.actor, None).await?;
    let done = if found.pairs.is_empty() { "reset" } else { "reset-partly" };
    let to = site.link("/consumer", &[("id", id), ("done", done)]);
    Ok(Redirect::to(&to).into_response())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bar(max: u64, used: u64) -> Bar {
        let remaining = max.saturating_sub(used);
        let counted = Some(Counted { max: Some(max), used, remaining, reset: None });
        Bar { id: "minute".to_owned(), label: "per minute".to_owned(), counted }
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
            let none = Bar { counted, ..bar(1, 0) };
            assert_eq!((none.state().1, none.length()), ("no limit", 0));
        }
    }
}
