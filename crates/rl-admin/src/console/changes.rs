//! The page with the history of changes.

use std::sync::Arc;

use axum::Extension;
use axum::extract::{Request, State};
use maud::{Markup, html};
use rl_records::{
    AuditEntry, AuditEvent, AuditQuery, Limits, RecordContent, Refusal, SubscriptionContent,
};

use super::edit_page::label_of;
use super::failure::Failure;
use super::fields::Fields;
use super::page::{Tab, page};
use super::site::Site;
use super::visitor::Visitor;
use super::{resources, rules, text, tiers};

/// The number of entries on a page.
const PAGE: u32 = 50;

/// Shows the whole history, or the history of one consumer.
pub(super) async fn list(
    State(site): State<Arc<Site>>,
    Extension(visitor): Extension<Visitor>,
    request: Request,
) -> Result<Markup, Failure> {
    let query = Fields::of_query(request.uri());
    let consumer = query.non_empty("consumer");
    let filter = AuditQuery {
        consumer: consumer.map(ToOwned::to_owned),
        consumers: visitor.actor.applications().map(ToOwned::to_owned),
        before: query.get("before").parse().ok(),
        limit: PAGE,
    };
    let history = site.context.records.audit_log().entries(&filter).await?;
    let path = format!("{}/changes", site.path());
    let main = html! {
        h1 { "Changes" }
        p {
            "Changes of limits, tiers and resources, resets of counters, reasons, and requests that were refused \
             because of a missing role, the newest first."
        }
        form.search method="get" action=(path) {
            label for="consumer" { "The complete id of a consumer" }
            div.inline {
                input #consumer type="search" name="consumer" value=(consumer.unwrap_or_default())
                    maxlength="250" autocapitalize="off" spellcheck="false";
                button.main type="submit" { "Show" }
                @if consumer.is_some() { a href=(path) { "All" } }
            }
        }
        (table(&site, &history, false))
        @if history.len() == PAGE as usize && let Some(last) = history.last() {
            nav.pages aria-label="Pages" {
                a rel="next" href=(site.link("/changes", &[("consumer", consumer.unwrap_or_default()), ("before", &last.number.to_string())])) { "Older changes" }
            }
        }
    };
    Ok(page(&site, Some(&visitor), "Changes", Tab::Changes, main))
}

/// Renders entries of the history. If `of_one` is set, all entries are about one consumer, and the
/// column for their objects is omitted.
pub(super) fn table(site: &Site, history: &[AuditEntry], of_one: bool) -> Markup {
    html! {
        @if history.is_empty() {
            p.empty { "Nothing was changed." }
        } @else {
            table.list.changes {
                thead { tr {
                    th scope="col" { "When (UTC)" }
                    th scope="col" { "Who" }
                    @if !of_one { th scope="col" { "About" } }
                    th scope="col" { "What" }
                } }
                tbody { @for entry in history {
                    tr {
                        td data-label="When" { time { (text::time(entry.at)) } }
                        td data-label="Who" { (entry.by) }
                        @if !of_one { td data-label="About" { (about(site, &entry.event)) } }
                        td data-label="What" { (what(&entry.event)) }
                    }
                } }
            }
        }
    }
}

/// Renders the object of an entry. A consumer is a link to its page.
fn about(site: &Site, event: &AuditEvent) -> Markup {
    let consumer = |id: &str| {
        let href = site.consumer_link(id);
        html! { a.id href=(href) { (id) } }
    };
    let subject = |realm: &str, id: &str| match realm {
        "consumer" => consumer(id),
        _ => html! { (realm) " " span.id { (id) } },
    };
    match event {
        AuditEvent::Record { before, after, .. } => {
            let Some(content) = after.as_ref().or(before.as_ref()) else { return html! { "–" } };
            subject(content.realm.as_str(), &content.subject_id)
        }
        AuditEvent::Subscription { consumer: id, .. }
        | AuditEvent::Refusal(Refusal { consumer: Some(id), .. }) => consumer(id),
        AuditEvent::Member { realm, id, .. }
        | AuditEvent::Reset { realm, id, .. }
        | AuditEvent::Reason { realm, id, .. } => subject(realm, id),
        AuditEvent::Tier { name, .. } => html! { "tier " span.id { (name) } },
        AuditEvent::Resource { name, .. } => html! { "resource " span.id { (name) } },
        AuditEvent::Rule { name, .. } => html! { "rule " span.id { (name) } },
        // A refused request that names no consumer, or a kind of event that is newer than this
        // page.
        _ => html! { "–" },
    }
}

/// Describes an event.
fn what(event: &AuditEvent) -> Markup {
    match event {
        AuditEvent::Record { before, after, .. } => record(before.as_ref(), after.as_ref()),
        AuditEvent::Tier { before, after, .. } => {
            tiers::describe_change(before.as_ref(), after.as_ref())
        }
        AuditEvent::Resource { before, after, .. } => {
            resources::describe_change(before.as_ref(), after.as_ref())
        }
        AuditEvent::Rule { before, after, .. } => {
            rules::describe_change(before.as_ref(), after.as_ref())
        }
        AuditEvent::Subscription { before, after, .. } => {
            subscription(before.as_ref(), after.as_ref())
        }
        AuditEvent::Member { before, after, .. } => member(before.as_deref(), after.as_deref()),
        AuditEvent::Reset { rule, limit: Some(limit), .. } => html! {
            strong { "Counter reset" } ": " @if let Some(rule) = rule { (rule) "/" } (limit)
        },
        AuditEvent::Reset { rule, limit: None, .. } => html! {
            strong { "All counters reset" } @if let Some(rule) = rule { " under the rule " (rule) }
        },
        AuditEvent::Reason { reason, .. } => html! { strong { "Reason" } ": " (reason) },
        AuditEvent::Refusal(refusal) => refused(refusal),
        _ => html! { "An event that this console does not know" },
    }
}

fn subscription(
    before: Option<&SubscriptionContent>,
    after: Option<&SubscriptionContent>,
) -> Markup {
    let before = before.map(|content| content.status.as_str());
    html! {
        @if let Some(after) = after {
            strong { "Subscription" } " to the tier " span.id { (after.tier) } ": "
            @if let Some(before) = before { (before) " → " } (after.status.as_str())
        }
    }
}

fn member(before: Option<&str>, after: Option<&str>) -> Markup {
    html! {
        @match (before, after) {
            (None, Some(after)) => { strong { "Put into the tier" } " " b.id { (after) } }
            (Some(before), None) => { strong { "Removed from the tier" } " " b.id { (before) } }
            (Some(before), Some(after)) => {
                strong { "Moved" } " from the tier " b.id { (before) } " to " b.id { (after) }
            }
            (None, None) => {}
        }
    }
}

fn refused(refusal: &Refusal) -> Markup {
    let Refusal { role, method, path, count, .. } = refusal;
    html! {
        strong { "Refused" } ": the role " (role) " is missing"
        ul.steps {
            li { (method) " " span.id { (path) } }
            @if *count > 1 {
                li { "One of " (text::number(*count)) " such requests; the others are not listed" }
            }
        }
    }
}

fn record(before: Option<&RecordContent>, after: Option<&RecordContent>) -> Markup {
    let nothing = |content: &RecordContent| {
        let (from, to) = (content.from_date, content.to_date);
        RecordContent::new(&content.subject_id, from, to, Limits::UNLIMITED)
    };
    let dates = |content: &RecordContent| {
        format!("{} to {}", text::time(content.from_date), text::time(content.to_date))
    };
    html! {
        @match (before, after) {
            (None, Some(after)) => {
                strong { "Limits created" } ", " (dates(after))
                (steps(&differences(&nothing(after), after), false))
            }
            (Some(before), None) => {
                strong { "Limits deleted" } ", " (dates(before))
                (steps(&differences(&nothing(before), before), false))
            }
            (Some(before), Some(after)) => {
                strong { "Limits changed" }
                (steps(&differences(before, after), true))
            }
            (None, None) => {}
        }
    }
}

fn steps(differences: &[(String, String, String)], has_before: bool) -> Markup {
    html! {
        @if differences.is_empty() && has_before { " nothing" }
        ul.steps { @for (field, before, after) in differences {
            li {
                (field) ": "
                @if has_before { del { (before) } span aria-hidden="true" { " → " } }
                ins { (after) }
            }
        } }
    }
}

/// Returns the fields in which two records differ, with both values as text.
pub(super) fn differences(
    before: &RecordContent,
    after: &RecordContent,
) -> Vec<(String, String, String)> {
    let (before, after) = (shown(before), shown(after));
    let both = before.into_iter().zip(after);
    let differing = both.filter(|((_, before), (_, after))| before != after);
    differing.map(|((field, before), (_, after))| (field, before, after)).collect()
}

fn shown(content: &RecordContent) -> Vec<(String, String)> {
    let text = |value: &Option<String>| value.clone().unwrap_or_else(|| "–".to_owned());
    let mut shown =
        vec![("from_date", precise(content.from_date)), ("to_date", precise(content.to_date))];
    shown.extend([
        ("rule", text(&content.rule)),
        ("limits", text::limits(&content.limits)),
        ("api_name", text(&content.api_name)),
        ("api_version", text(&content.api_version)),
        ("bank_id", text(&content.bank_id)),
        ("blocks", if content.blocks { "yes" } else { "no" }.to_owned()),
        ("grants", if content.grants { "yes" } else { "no" }.to_owned()),
    ]);
    shown.into_iter().map(|(field, value)| (label_of(field), value)).collect()
}

/// Formats a time. The microseconds are omitted if they are 0 or 999 999.
fn precise(time: rl_core::time::Timestamp) -> String {
    let text = text::time(time);
    match time.as_micros() % 1_000_000 {
        0 | 999_999 => text,
        micros => format!("{text}.{micros:06}"),
    }
}
