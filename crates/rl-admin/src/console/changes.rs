//! Who changed what, and when.

use axum::Extension;
use axum::extract::{Request, State};
use maud::{Markup, html};
use rl_records::{CallPeriod, Change, HistoryQuery, RecordContent};

use super::failure::Failure;
use super::fields::{Fields, link};
use super::page::{Tab, page};
use super::session::Visitor;
use super::{Console, record_form, text};

/// Changes on one page.
const PAGE: u32 = 50;

/// The changes of all records, or of those of one consumer.
pub(super) async fn list(
    State(console): State<Console>,
    Extension(visitor): Extension<Visitor>,
    request: Request,
) -> Result<Markup, Failure> {
    let query = Fields::read(request.uri().query().unwrap_or_default().as_bytes());
    let consumer = query.given("consumer");
    let asked = HistoryQuery {
        of: consumer.map(ToOwned::to_owned),
        item: None,
        before: query.get("before").parse().ok(),
        limit: PAGE,
    };
    let history = console.admin().records().history(&asked).await?;
    let path = format!("{}/changes", console.path());
    let main = html! {
        h1 { "Changes" }
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

/// The changes, the newest first; with whose they are, unless all are of one consumer.
pub(super) fn table(console: &Console, history: &[Change<RecordContent>], of_one: bool) -> Markup {
    html! {
        @if history.is_empty() {
            p.empty { "Nothing was changed." }
        } @else {
            table.list.changes {
                thead { tr {
                    th scope="col" { "When (UTC)" }
                    th scope="col" { "Who" }
                    @if !of_one { th scope="col" { "Consumer" } }
                    th scope="col" { "What" }
                } }
                tbody { @for change in history {
                    @let content = change.after.as_ref().or(change.before.as_ref());
                    @let id = content.map_or("", |content| &content.consumer_id);
                    tr {
                        td data-label="When" { time { (text::time(change.at)) } }
                        td data-label="Who" { (change.by) }
                        @if !of_one {
                            td data-label="Consumer" {
                                a.id href=(link(&format!("{}/consumer", console.path()), &[("id", id)])) { (id) }
                            }
                        }
                        td data-label="What" { (what(change)) }
                    }
                } }
            }
        }
    }
}

fn what(change: &Change<RecordContent>) -> Markup {
    let nothing = |content: &RecordContent| {
        let (from, to) = (content.from_date, content.to_date);
        RecordContent::new(&content.consumer_id, from, to, rl_records::CallLimits::UNLIMITED)
    };
    let dates = |content: &RecordContent| {
        format!("{} to {}", text::time(content.from_date), text::time(content.to_date))
    };
    html! {
        @match (&change.before, &change.after) {
            (None, Some(after)) => {
                strong { "Created" } ", " (dates(after))
                (steps(&differences(&nothing(after), after), false))
            }
            (Some(before), None) => {
                strong { "Deleted" } ", " (dates(before))
                (steps(&differences(&nothing(before), before), false))
            }
            (Some(before), Some(after)) => {
                strong { "Changed" }
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
