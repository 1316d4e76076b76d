//! Who changed what, and when.

use axum::Extension;
use axum::extract::{Request, State};
use maud::{Markup, html};
use rl_records::{AuditEntry, AuditEvent, AuditQuery, CallPeriod, RecordContent, Refusal};

use super::failure::Failure;
use super::fields::{Fields, link};
use super::page::{Tab, page};
use super::session::Visitor;
use super::{Console, record_form, text, tiers};

/// Entries on one page.
const PAGE: u32 = 50;

/// Shows the history of everything, or of one consumer.
pub(super) async fn list(
    State(console): State<Console>,
    Extension(visitor): Extension<Visitor>,
    request: Request,
) -> Result<Markup, Failure> {
    let query = Fields::read(request.uri().query().unwrap_or_default().as_bytes());
    let consumer = query.given("consumer");
    let asked = AuditQuery {
        consumer: consumer.map(ToOwned::to_owned),
        before: query.get("before").parse().ok(),
        limit: PAGE,
    };
    let history = console.admin().records().audit_log().entries(&asked).await?;
    let path = format!("{}/changes", console.path());
    let main = html! {
        h1 { "Changes" }
        p {
            "Records, tiers, which tier a consumer or a key is in, resets of counters, and requests that were \
             refused because a role was missing. The newest come first."
        }
        form.search method="get" action=(path) {
            label for="consumer" { "Of one consumer: its whole id" }
            div.inline {
                input #consumer type="search" name="consumer" value=(consumer.unwrap_or_default())
                    maxlength="250" autocapitalize="off" spellcheck="false";
                button.main type="submit" { "Show" }
                @if consumer.is_some() { a href=(path) { "All" } }
            }
        }
        (table(&console, &history, false))
        @if history.len() == PAGE as usize && let Some(last) = history.last() {
            nav.pages aria-label="Pages" {
                a rel="next" href=(link(&path, &[("consumer", consumer.unwrap_or_default()), ("before", &last.number.to_string())])) { "Older changes" }
            }
        }
    };
    Ok(page(&console, Some(&visitor), "Changes", Tab::Changes, main))
}

/// Draws entries, the newest first; with what each is about, unless all are about one consumer.
pub(super) fn table(console: &Console, history: &[AuditEntry], of_one: bool) -> Markup {
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
                        @if !of_one { td data-label="About" { (about(console, &entry.event)) } }
                        td data-label="What" { (what(&entry.event)) }
                    }
                } }
            }
        }
    }
}

/// Names what an entry is about. A consumer is a link to its page.
fn about(console: &Console, event: &AuditEvent) -> Markup {
    let consumer = |id: &str| {
        let href = link(&format!("{}/consumer", console.path()), &[("id", id)]);
        html! { a.id href=(href) { (id) } }
    };
    match event {
        AuditEvent::Record { consumer: id, .. }
        | AuditEvent::Refusal(Refusal { consumer: Some(id), .. }) => consumer(id),
        AuditEvent::Member { realm, id, .. } | AuditEvent::Reset { realm, id, .. } => {
            if realm == "consumer" {
                return consumer(id);
            }
            html! { (realm) " " span.id { (id) } }
        }
        AuditEvent::Tier { name, .. } => html! { "tier " span.id { (name) } },
        // Of a request that is about no consumer, and of events that are newer than this page.
        _ => html! { "–" },
    }
}

fn what(event: &AuditEvent) -> Markup {
    match event {
        AuditEvent::Record { before, after, .. } => record(before.as_ref(), after.as_ref()),
        AuditEvent::Tier { before, after, .. } => tiers::what(before.as_ref(), after.as_ref()),
        AuditEvent::Member { before, after, .. } => member(before.as_deref(), after.as_deref()),
        AuditEvent::Reset { limit: Some(limit), .. } => {
            html! { strong { "Counter reset" } ": " (limit) }
        }
        AuditEvent::Reset { limit: None, .. } => html! { strong { "All counters reset" } },
        AuditEvent::Refusal(refusal) => refused(refusal),
        _ => html! { "An event that this console does not know" },
    }
}

fn member(before: Option<&str>, after: Option<&str>) -> Markup {
    html! {
        @match (before, after) {
            (None, Some(after)) => { strong { "Put into the tier" } " " b.id { (after) } }
            (Some(before), None) => { strong { "Taken out of the tier" } " " b.id { (before) } }
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
                li { "One of " (text::number(*count)) " such requests; the others have no line" }
            }
        }
    }
}

fn record(before: Option<&RecordContent>, after: Option<&RecordContent>) -> Markup {
    let nothing = |content: &RecordContent| {
        let (from, to) = (content.from_date, content.to_date);
        RecordContent::new(&content.consumer_id, from, to, rl_records::CallLimits::UNLIMITED)
    };
    let dates = |content: &RecordContent| {
        format!("{} to {}", text::time(content.from_date), text::time(content.to_date))
    };
    html! {
        @match (before, after) {
            (None, Some(after)) => {
                strong { "Record created" } ", " (dates(after))
                (steps(&differences(&nothing(after), after), false))
            }
            (Some(before), None) => {
                strong { "Record deleted" } ", " (dates(before))
                (steps(&differences(&nothing(before), before), false))
            }
            (Some(before), Some(after)) => {
                strong { "Record changed" }
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

/// Field by field, as people read them: where it differs, how it was, how it is.
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
    let limits = CallPeriod::ALL;
    let limits = limits.map(|period| (period.field(), text::limit(content.limits.get(period))));
    shown.extend(limits);
    shown.extend([
        ("api_name", text(&content.api_name)),
        ("api_version", text(&content.api_version)),
        ("bank_id", text(&content.bank_id)),
        ("blocks", if content.blocks { "yes" } else { "no" }.to_owned()),
    ]);
    shown.into_iter().map(|(field, value)| (record_form::name_of(field), value)).collect()
}

/// With the part of a second that is neither its beginning nor its end.
fn precise(time: rl_core::time::Timestamp) -> String {
    let text = text::time(time);
    match time.as_micros() % 1_000_000 {
        0 | 999_999 => text,
        micros => format!("{text}.{micros:06}"),
    }
}
