//! The usage of a subject, drawn as bars.
//!
//! The script of the page refreshes the bars in place, so every part that changes has an id.

use std::sync::Arc;
use std::time::Duration;

use axum::Extension;
use axum::extract::{Request, State};
use axum::response::{IntoResponse, Redirect, Response};
use maud::{Markup, html};
use rl_core::rules::CountingRule;
use rl_core::{Decision, LimitStatus, MAX_UNITS, Realm, StoreError, Subject};
use rl_records::{CallLimit, CallLimits, CallPeriod, HistoryQuery, Limits};
use sha2::{Digest, Sha256};

use super::failure::Failure;
use super::fields::Fields;
use super::page::{Tab, confirmation, form_token, page};
use super::site::Site;
use super::visitor::Visitor;
use super::{blocks, subject, text};
use crate::access::Role;
use crate::error::ApiError;
use crate::subject_rules::{RuleFailure, SubjectRules};

/// The usage of a subject under one limit.
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
    fn state(&self) -> (&'static str, String) {
        let (state, word) = match self.counted {
            None | Some(Counted { max: None, .. }) => ("none", "no limit"),
            Some(Counted { max: Some(0), .. }) => ("full", "blocked"),
            Some(Counted { remaining: 0, .. }) => ("full", "used up"),
            Some(Counted { max: Some(max), used, remaining, .. }) if remaining <= max / 5 => {
                return ("near", format!("{} %", thousandths(used, max) / 10));
            }
            Some(_) => ("open", "OK"),
        };
        (state, word.to_owned())
    }

    /// Returns the length of the bar, in thousandths.
    fn length(&self) -> u64 {
        match self.counted {
            Some(Counted { max: Some(max), used, .. }) => thousandths(used, max),
            _ => 0,
        }
    }

    /// Renders the row of a table whose ids begin with `prefix`.
    fn row(&self, prefix: &str) -> Markup {
        let name = format!("{prefix}{}", self.id);
        let (state, word) = self.state();
        let length = self.length();
        html! {
            tr #{ (name) } data-live="state" data-state=(state) {
                th scope="row" { (self.label) }
                td.bar { (meter(Some(&format!("{name}-bar")), length)) }
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

/// Returns the used part of a limit, in thousandths.
pub(super) fn thousandths(used: u64, max: u64) -> u64 {
    // A limit of 0 is used up without any call.
    let thousandths = u128::from(used.min(max)) * 1_000 / u128::from(max.max(1));
    let thousandths = if max == 0 { 1_000 } else { thousandths };
    // A bar must be visible even after one call of a million.
    u64::try_from(thousandths).unwrap_or(1_000).max(u64::from(used > 0) * 4)
}

/// Draws a bar of this length in thousandths. With an id, the script updates its width.
pub(super) fn meter(id: Option<&str>, length: u64) -> Markup {
    html! {
        svg aria-hidden="true" focusable="false" width="100%" height="14" {
            rect.track width="100%" height="14" rx="4" {}
            rect.fill id=[id] data-live=[id.map(|_| "width")] height="14" rx="4"
                width=(format!("{}.{}%", length / 10, length % 10)) {}
        }
    }
}

/// Shows the usage of a subject. A consumer has a page of its own.
pub(super) async fn show(
    State(site): State<Arc<Site>>,
    Extension(visitor): Extension<Visitor>,
    request: Request,
) -> Result<Response, Failure> {
    let query = Fields::of_query(request.uri());
    let subject = subject::read(&query)?;
    if *subject.realm() == Realm::Consumer && subject.id().as_text().is_some() {
        return Ok(Redirect::to(&subject::link(&site, "/subject", &subject, &[])).into_response());
    }
    visitor.require(Role::CanSeeSubjectIds)?;
    let title = subject::title(&subject);
    let may_limit =
        visitor.actor.has(Role::CanCreateRateLimits) && subject::can_have_records(&subject);
    let main = html! {
        p.crumb { a href=(site.path()) { "Now" } }
        div.head {
            h1.id { (title) }
            @if may_limit {
                div.inline {
                    a.button href=(subject::link(&site, "/raise", &subject, &[])) { "Raise the limits" }
                    a.button.danger href=(subject::link(&site, "/block", &subject, &[])) { "Block" }
                }
            }
        }
        (confirmation(query.get("done")))
        (blocks::banners(&site, &visitor, &subject).await?)
        (section(&site, &visitor, &subject).await?)
    };
    Ok(page(&site, Some(&visitor), &title, Tab::Now, main).into_response())
}

/// Renders the section with the present use of a subject, and what can be done about it.
pub(super) async fn section(
    site: &Site,
    visitor: &Visitor,
    subject: &Subject,
) -> Result<Markup, Failure> {
    let here = subject::link(site, "/subject", subject, &[]);
    Ok(html! {
        section aria-labelledby="calls" {
            div.head {
                h2 #calls { "Use now" }
                p.pulse {
                    span #pulse { "As of the loading of this page." }
                    " " a #refresh href=(here) { "Refresh" }
                    button.quiet #pause type="button" hidden { "Pause" }
                }
            }
            @if !site.context.limiter.is_enabled() {
                p.problem { "The limiter is switched off: every call is allowed, and none is counted." }
            }
            (bars(site, subject).await?)
            p.unseen #news role="status" {}
            p.problem #stale role="status" hidden {
                "The limits of this consumer have changed. The page below is out of date. "
                a href=(here) { "Reload" }
            }
            (reset_form(site, visitor, subject)?)
        }
    })
}

/// Renders the bars of a subject under each rule that counts it, or the reason why its usage is
/// unknown.
async fn bars(site: &Site, subject: &Subject) -> Result<Markup, ApiError> {
    let found = SubjectRules::find(&site.context, subject.clone(), None)?;
    let source = subject::link(site, "/usage", subject, &[]);
    let version = match (subject.realm(), subject.id().as_text()) {
        (Realm::Consumer, Some(consumer)) => version(site, consumer).await,
        _ => String::new(),
    };
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

/// Renders the bars of a subject under one rule.
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
    Extension(visitor): Extension<Visitor>,
    request: Request,
) -> Result<Markup, Failure> {
    let subject = subject::read(&Fields::of_query(request.uri()))?;
    if *subject.realm() != Realm::Consumer {
        visitor.require(Role::CanSeeSubjectIds)?;
    }
    Ok(bars(&site, &subject).await?)
}

/// Renders the buttons that reset the counters, and the link to the explanation.
fn reset_form(site: &Site, visitor: &Visitor, subject: &Subject) -> Result<Markup, Failure> {
    let found = SubjectRules::find(&site.context, subject.clone(), None)?;
    let rules: Vec<_> = found.rules.iter().flatten().map(|rule| &*rule.name).collect();
    let may_reset = visitor.actor.has(Role::CanResetCallCounters) && !found.rules.is_empty();
    Ok(html! {
        div.buttons {
            @if may_reset {
                form.inline method="post" action={ (site.path()) "/reset" } {
                    (form_token(visitor))
                    (subject::fields(subject))
                    @if rules.len() > 1 {
                        @for rule in &rules {
                            button type="submit" name="rule" value=(rule) { "Reset " (rule) }
                        }
                    }
                    button type="submit" name="rule" value="" {
                        @if rules.len() > 1 { "Reset all" } @else { "Reset" }
                    }
                }
            }
            a.button href=(subject::link(site, "/explain", subject, &[])) { "Explain" }
        }
        @if may_reset { p.hint { "A reset sets the use of all limits to 0. It lifts no block." } }
    })
}

/// Resets the counters of a subject, under one rule or under all that count it.
pub(super) async fn reset(
    State(site): State<Arc<Site>>,
    Extension(visitor): Extension<Visitor>,
    Extension(form): Extension<Fields>,
) -> Result<Response, Failure> {
    visitor.require(Role::CanResetCallCounters)?;
    let subject = subject::read(&form)?;
    let (context, rule) = (&site.context, form.non_empty("rule"));
    let found = SubjectRules::find(context, subject.clone(), rule)?;
    found.reset(context, &visitor.actor, None).await?;
    let done = if found.pairs.is_empty() { "reset" } else { "reset-partly" };
    Ok(subject::done(&site, &form, &subject, done))
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
            (bar(100, 0),         "OK",      0),
            (bar(100, 42),        "OK",      420),
            (bar(100, 79),        "OK",      790),
            (bar(100, 86),        "86 %",    860),
            (bar(100, 100),       "used up", 1_000),
            (bar(100, 120),       "used up", 1_000),
            (bar(0, 0),           "blocked", 1_000),
            (bar(0, 7),           "blocked", 1_000),
            (bar(1_000_000, 1),   "OK",      4),
            (bar(u64::MAX, 1 << 60), "OK",   62),
        ];
        for (bar, word, length) in table {
            assert_eq!((&*bar.state().1, bar.length()), (word, length), "{bar:?}");
        }
        let counted = Counted { max: None, used: 3, remaining: 9, reset: None };
        for counted in [None, Some(counted)] {
            let none = Bar { counted, ..bar(1, 0) };
            assert_eq!((&*none.state().1, none.length()), ("no limit", 0));
        }
    }
}
