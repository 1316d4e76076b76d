//! The start page: the subjects that are denied now, at all instances.
//!
//! The script of the page exchanges the board every few seconds. Without it, the page has a link.

use std::sync::Arc;
use std::time::Duration;

use axum::Extension;
use axum::extract::{Request, State};
use futures::future::join_all;
use maud::{Markup, html};
use rl_core::key::CountedAs;
use rl_core::stats::StoreStats;
use rl_core::time::Timestamp;
use rl_core::{FailureKind, OnFailure, Origin, Realm, RetryAfter, Subject};
use rl_records::Record;

use super::chart::{Curve, Step, TimeAxis, round_up, spark};
use super::fields::Fields;
use super::page::{Tab, confirmation, form_token, page};
use super::site::Site;
use super::visitor::Visitor;
use super::{blocks, subject, text, usage};
use crate::access::Role;
use crate::context::Context;
use crate::instances::{InstancesReport, Shared};
use crate::last_hour::{DeniedSubject, STEP, STEPS};
use crate::subject_rules::{note_on_unenforced_records, request, rules_with_source};

/// The number of subjects in the table.
const SHOWN: usize = 50;

/// The filter and the order in the query of the page.
struct Filter {
    fields: Fields,
}

impl Filter {
    const NAMES: [&str; 4] = ["realm", "rule", "text", "sort"];

    fn get(&self, name: &str) -> &str {
        self.fields.get(name)
    }

    /// Returns the parts of the query that are set.
    fn query(&self) -> Vec<(&str, &str)> {
        let all = Self::NAMES.map(|name| (name, self.get(name)));
        all.into_iter().filter(|(_, value)| !value.is_empty()).collect()
    }

    /// Returns whether something hides subjects.
    fn is_set(&self) -> bool {
        self.query().iter().any(|(name, _)| *name != "sort")
    }

    fn fits(&self, denied: &DeniedSubject, name: &str) -> bool {
        let is_same = |field: &str, value: &str| [value, ""].contains(&self.get(field));
        let (rule, _) = by(denied);
        is_same("realm", denied.subject.realm().as_str())
            && is_same("rule", rule)
            && name.to_lowercase().contains(&self.get("text").to_lowercase())
    }

    /// Selects and orders the subjects that are shown.
    fn select(&self, visitor: &Visitor, subjects: Vec<DeniedSubject>) -> Vec<DeniedSubject> {
        let name = |denied: &DeniedSubject| name(visitor, &denied.subject);
        let mut found = subjects;
        found.retain(|denied| self.fits(denied, &name(denied)));
        match self.get("sort") {
            "since" => found.sort_by_key(|denied| denied.since),
            "subject" => found.sort_by_cached_key(name),
            _ => {}
        }
        found
    }
}

/// The present use of the limit that denies a subject.
#[derive(Default)]
struct Use {
    /// The used and the largest number of units.
    counted: Option<(u64, u64)>,
    free: Option<RetryAfter>,
    /// The block that denies the requests of the subject.
    block: Option<Record>,
}

/// Shows the page.
pub(super) async fn show(
    State(site): State<Arc<Site>>,
    Extension(visitor): Extension<Visitor>,
    request: Request,
) -> Markup {
    let filter = Filter { fields: Fields::of_query(request.uri()) };
    let overview = overview(&site, &visitor).await;
    let main = html! {
        div.head {
            h1 { "Now" }
            p.pulse {
                span #pulse { "As of " (text::time(site.context.now())) " UTC." }
                " " a #refresh href=(site.link("", &filter.query())) { "Refresh" }
                button.quiet #pause type="button" hidden { "Pause" }
            }
        }
        (confirmation(filter.get("done")))
        (filter_form(&site, &filter, &overview))
        (board(&site, &visitor, &filter, overview).await)
        @if !visitor.actor.has(Role::CanSeeSubjectIds) {
            p.note {
                "Subjects are shown as a keyed hash, as in the log, because your token does not have the role "
                (Role::CanSeeSubjectIds) "."
            }
        }
    };
    page(&site, Some(&visitor), "Now", Tab::Now, main)
}

/// Returns the state of all instances, with the subjects that the visitor may see.
async fn overview(site: &Site, visitor: &Visitor) -> InstancesReport {
    let mut overview = site.context.instances.overview().await;
    overview.subjects.retain(|denied| visitor.actor.sees(&denied.subject));
    overview
}

/// Responds with the board only.
pub(super) async fn fragment(
    State(site): State<Arc<Site>>,
    Extension(visitor): Extension<Visitor>,
    request: Request,
) -> Markup {
    let filter = Filter { fields: Fields::of_query(request.uri()) };
    let overview = overview(&site, &visitor).await;
    board(&site, &visitor, &filter, overview).await
}

fn filter_form(site: &Site, filter: &Filter, overview: &InstancesReport) -> Markup {
    let subjects = || overview.subjects.iter();
    let realms = subjects().map(|denied| denied.subject.realm().as_str().to_owned()).collect();
    let rules = subjects().map(|denied| by(denied).0.to_owned()).collect();
    html! {
        form.filter method="get" action=(site.path()) {
            (choice("realm", "Kind", "All", filter.get("realm"), realms))
            (choice("rule", "Rule", "All", filter.get("rule"), rules))
            div {
                label for="text" { "Name contains" }
                input #text type="search" name="text" value=(filter.get("text")) maxlength="250"
                    autocapitalize="off" spellcheck="false";
            }
            div {
                label for="sort" { "Order by" }
                select #sort name="sort" {
                    @for (value, label) in [("", "Denials"), ("since", "Longest denied"), ("subject", "Name")] {
                        option value=(value) selected[filter.get("sort") == value] { (label) }
                    }
                }
            }
            button type="submit" { "Show" }
            @if filter.is_set() { a href=(site.path()) { "All" } }
        }
    }
}

/// Renders a list from which one of these names can be picked, or none.
pub(super) fn choice(
    name: &str,
    label: &str,
    none: &str,
    picked: &str,
    mut names: Vec<String>,
) -> Markup {
    names.push(picked.to_owned());
    names.sort_unstable();
    names.dedup();
    names.retain(|name| !name.is_empty());
    html! {
        div {
            label for=(name) { (label) }
            select #(name) name=(name) {
                option value="" { (none) }
                @for one in &names { option value=(one) selected[one == picked] { (one) } }
            }
        }
    }
}

/// Renders the part of the page that the script exchanges.
async fn board(
    site: &Site,
    visitor: &Visitor,
    filter: &Filter,
    overview: InstancesReport,
) -> Markup {
    let context = &site.context;
    let now = context.now();
    let figures = figures(context, &overview);
    let sources = sources(site, &overview);
    let total = overview.subjects.len();
    let mut subjects = filter.select(visitor, overview.subjects);
    let found = subjects.len();
    subjects.truncate(SHOWN);
    let uses = match overview.shared {
        // Each call would wait until its deadline.
        Shared::Failed(..) => subjects.iter().map(|_| Use::default()).collect(),
        _ => join_all(subjects.iter().map(|denied| present(context, denied))).await,
    };
    let rows = subjects.iter().zip(&uses);
    html! {
        div #board data-source=(site.link("/now", &filter.query())) {
            @if visitor.actor.applications().is_none() {
                (figures)
                (sources)
            }
            @if subjects.is_empty() {
                p.empty.quiet-now {
                    @if total > 0 { "No subject that was denied in the last minute fits the filter." }
                    @else { "No subject was denied in the last minute." }
                }
            } @else {
                div.wide {
                    table.list.denied-now {
                        caption.unseen { "The subjects that were denied in the last minute" }
                        thead { tr {
                            th scope="col" { "Subject" } th scope="col" { "Denied by" } th scope="col" { "Use" }
                            th scope="col" { "Denials per minute" } th scope="col" { "Since (UTC)" }
                            th scope="col" { "Free again in" } th scope="col" { span.unseen { "Actions" } }
                        } }
                        tbody { @for (denied, usage) in rows { (row(site, visitor, now, denied, usage)) } }
                    }
                }
                @if found > subjects.len() {
                    p.hint { "The first " (SHOWN) " of " (text::number(found as u64)) ". Filter to see the others." }
                }
            }
        }
    }
}

/// Renders the four numbers above the table.
fn figures(context: &Context, overview: &InstancesReport) -> Markup {
    let share = overview.denied_per_second * 100.0 / overview.per_second.max(f64::MIN_POSITIVE);
    let (state, word, detail) = store(context, &overview.shared);
    html! {
        dl.figures {
            div {
                dt { "Requests per second" }
                dd { (text::rate(overview.per_second)) }
            }
            div {
                dt { "Denied" }
                dd { (text::rate(share.clamp(0.0, 100.0))) " %" }
                dd.hint { (text::rate(overview.denied_per_second)) " per second" }
            }
            div data-state=[(overview.limited > 0).then_some("near")] {
                dt { "Subjects limited now" }
                dd { (text::number(overview.limited as u64)) }
                dd.hint { "denied in the last minute" }
            }
            div data-state=(state) {
                dt { "Store" }
                dd { span.state { (word) } }
                dd.hint { (detail) }
            }
        }
    }
}

/// Returns the state of the store: a word for the style sheet, a word for display, and what follows
/// from it.
fn store(context: &Context, shared: &Shared) -> (&'static str, String, &'static str) {
    let stats = context.limiter.stats();
    if matches!(shared, Shared::Failed(..)) || !stats.is_breaker_closed {
        let kind = match shared {
            Shared::Failed(error, _) => error.kind(),
            _ => FailureKind::Unavailable,
        };
        let detail = match context.limiter.on_failure(kind) {
            _ if context.is_stand_alone => "services decide as their program sets",
            OnFailure::Allow => "requests are allowed without limits",
            OnFailure::Reject => "requests are rejected",
            _ => "limits decided in memory",
        };
        return ("full", "Down".to_owned(), detail);
    }
    match (shared, stats.store) {
        (Shared::Read(took), _) => {
            ("active", format!("Working, {}", text::latency(took.as_secs_f64())), "")
        }
        (_, StoreStats::None) if context.is_stand_alone => {
            ("none", "Not known".to_owned(), "without RL_REDIS_URL")
        }
        (_, StoreStats::Memory(_)) => {
            ("active", "Working".to_owned(), "in the memory of this process")
        }
        _ => ("active", "Working".to_owned(), ""),
    }
}

/// Describes the instances that the counts of the page include.
fn sources(site: &Site, overview: &InstancesReport) -> Markup {
    let is_stand_alone = site.context.is_stand_alone;
    let instances = overview.instances - usize::from(is_stand_alone);
    html! {
        @match &overview.shared {
            Shared::Failed(error, read_at) => p.problem role="status" {
                "The store is unavailable: " (error) ". "
                @match read_at {
                    Some(at) => { "Other instances are shown as of " (text::time(*at)) " UTC." }
                    None if is_stand_alone => "Nothing is known about the services.",
                    None => "This page shows only the instance that serves it.",
                }
            },
            _ if instances == 0 => p.conflict role="note" {
                "This server decides no requests, and no instance of a service has published its denials to the \
                 store. An instance publishes them if it contains rl-admin, as an Admin or a DenialPublisher."
            },
            Shared::Read(_) if instances == 1 => p.hint { "One instance." },
            Shared::Read(_) => p.hint { (instances) " instances together." },
            Shared::No => p.hint { "This process alone: its store is not shared with other instances." },
        }
    }
}

/// Reads the use of the limit that denies a subject, and the time until it allows a request.
async fn present(context: &Context, denied: &DeniedSubject) -> Use {
    let subject = &denied.subject;
    let (rule, limit) = by(denied);
    let name = if context.limiter.rule_names().is_none() {
        // A server outside the service may not know the rules of the service.
        if !rule.is_empty() {
            return Use::default();
        }
        None
    } else {
        let found = match &denied.denied_by {
            Some(_) => context.limiter.rules_of(std::slice::from_ref(subject), None),
            None => rules_with_source(context, subject).unwrap_or_default(),
        };
        // With a tier in the extensions of a request, the limit may have another size.
        let found = found.into_iter().find(|one| {
            let is_named = denied.denied_by.is_none() || one.name == rule;
            let has_known_tier = one.tiers.is_empty() || one.tier.is_some();
            is_named && has_known_tier && one.counted_as != CountedAs::Pair
        });
        let Some(found) = found else { return Use::default() };
        Some(found.name)
    };
    let decision = request(&context.limiter, subject, name.as_deref(), None).peek().await;
    if decision.origin().is_failure() || !context.knows_limits(subject, &decision) {
        return Use::default();
    }
    let limits = decision.parts().flat_map(|part| part.limits());
    let mut limits = limits.filter(|status| status.name() == limit && status.is_known());
    let counted = limits.next().map(|status| (status.used(), status.max()));
    let block = match decision.origin() {
        Origin::Policy => {
            let blocks = context.records.blocks_of(subject).await.unwrap_or_default();
            blocks.into_iter().rfind(|block| block.content.applies_under(name.as_deref()))
        }
        _ => None,
    };
    Use { counted, free: Some(decision.retry_after()), block }
}

fn row(
    site: &Site,
    visitor: &Visitor,
    now: Timestamp,
    denied: &DeniedSubject,
    usage: &Use,
) -> Markup {
    let (rule, limit) = by(denied);
    html! {
        tr data-state="full" {
            th scope="row" { (link(site, visitor, &denied.subject)) }
            td data-label="Denied by" {
                @if denied.denied_by.is_none() || usage.block.is_some() { span.state { "blocked" } }
                @else {
                    @if !rule.is_empty() { (rule) " " }
                    span.id { (limit) }
                }
            }
            td.use data-label="Use" {
                @if let Some((used, max)) = usage.counted {
                    (usage::meter(None, usage::thousandths(used, max)))
                    span { (text::number(used)) " of " (text::number(max)) }
                } @else { "–" }
            }
            td.trend data-label="Denials per minute" {
                (trend(now, denied))
                span { (text::number(denied.last_minute())) }
            }
            td.number data-label="Since" {
                time { (text::time(denied.since)) }
            }
            td.number data-label="Free again in" { (free(usage)) }
            td.actions { (actions(site, visitor, &denied.subject, usage.block.as_ref())) }
        }
    }
}

fn free(usage: &Use) -> String {
    match usage.free {
        None => "–".to_owned(),
        Some(RetryAfter::Now) => "now".to_owned(),
        Some(RetryAfter::In(wait)) => text::span(wait.max(Duration::from_secs(1))),
        Some(_) => "never".to_owned(),
    }
}

/// Draws the denials of the last ten minutes.
fn trend(now: Timestamp, denied: &DeniedSubject) -> Markup {
    let end = now.as_micros() / STEP * STEP + STEP;
    let start = Timestamp::from_micros(end.saturating_sub(STEPS as u64 * STEP));
    let axis = TimeAxis { start, end: Timestamp::from_micros(end), begun: start };
    let step = |(index, count): (usize, &u64)| {
        let start = start.plus_micros(index as u64 * STEP);
        Step { start, end: start.plus_micros(STEP), value: Some(*count as f64) }
    };
    let steps = denied.steps.iter().enumerate().map(step).collect();
    let largest = denied.steps.iter().max().copied().unwrap_or_default();
    let curve = Curve { style: "denied", steps, is_filled: true };
    spark(axis, &curve, round_up(largest as f64))
}

/// Renders what a visitor may do about a subject.
fn actions(site: &Site, visitor: &Visitor, subject: &Subject, block: Option<&Record>) -> Markup {
    if !visitor.actor.has(Role::CanSeeSubjectIds) {
        return html! {};
    }
    let hash = subject.redacted().to_string();
    let to = |page: &str| subject::link(site, page, subject, &[("back", "now")]);
    let has_records = subject::can_have_records(subject)
        && note_on_unenforced_records(&site.context, subject).is_none();
    html! {
        @if block.is_none() && visitor.actor.has(Role::CanResetCallCounters) {
            form method="post" action={ (site.path()) "/reset" } {
                (form_token(visitor))
                (subject::fields(subject))
                input type="hidden" name="back" value="now";
                button.quiet #{ "reset-" (hash) } type="submit" { "Reset" }
            }
        }
        @if let Some(block) = block {
            (blocks::unblock_form(site, visitor, block, "now"))
        } @else if has_records && visitor.actor.has(Role::CanCreateRateLimits) {
            a.button.quiet #{ "raise-" (hash) } href=(to("/raise")) { "Raise the limits" }
            a.button.quiet #{ "block-" (hash) } href=(to("/block")) { "Block" }
        }
        a.button.quiet #{ "explain-" (hash) } href=(to("/explain")) { "Explain" }
    }
}

/// Returns the names of the rule and of the limit that deny a subject.
fn by(denied: &DeniedSubject) -> (&str, &str) {
    denied.denied_by.as_ref().map_or(("", ""), |(rule, limit)| (rule, limit))
}

/// Returns the name of a subject that a visitor may see.
fn name(visitor: &Visitor, subject: &Subject) -> String {
    match visitor.actor.has(Role::CanSeeSubjectIds) {
        true => subject.id().to_string(),
        false => subject.redacted().to_string(),
    }
}

/// Renders a subject: a link to its page if the visitor may see its id, and otherwise its hash.
pub(super) fn link(site: &Site, visitor: &Visitor, subject: &Subject) -> Markup {
    let (realm, name) = (subject.realm().as_str(), name(visitor, subject));
    html! {
        span.realm { (realm) }
        @match (visitor.actor.has(Role::CanSeeSubjectIds), subject.realm()) {
            (false, _) => { " " span.id { (name) } },
            (true, Realm::Global | Realm::Unknown) => {
                " " a href=(subject::link(site, "/subject", subject, &[])) { "all requests" }
            },
            _ => {
                " " a.id.whole href=(subject::link(site, "/subject", subject, &[])) title=(name) { (name) }
            },
        }
    }
}
