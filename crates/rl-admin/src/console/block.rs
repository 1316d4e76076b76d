//! The page of all blocks, the page that blocks a consumer, and the button that lifts a block.

use std::sync::Arc;

use axum::Extension;
use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use futures::future::join_all;
use maud::{Markup, html};
use rl_core::Realm;
use rl_core::time::Timestamp;
use rl_records::{AuditEvent, AuditQuery, Expected, Record};

use super::consumer_id::check_consumer_id;
use super::failure::Failure;
use super::fields::Fields;
use super::page::{Tab, form_token, page};
use super::site::Site;
use super::visitor::Visitor;
use super::{subject, text};
use crate::access::Role;
use crate::audit;

/// An hour in microseconds.
const HOUR: u64 = 3_600_000_000;

/// The end of a block without an end: the last second of the year 9999. A block that ends within
/// this year counts as having no end.
const NEVER: Timestamp = Timestamp::from_secs(253_402_300_799);
const YEAR_9999: Timestamp = Timestamp::from_secs(253_370_764_800);

/// The number of blocks on the page of all blocks.
const SHOWN: u32 = 200;

/// The ends that a form offers. `until` is the time in the field beside it.
const ENDS: [(&str, &str); 4] = [
    ("hour", "For an hour"),
    ("day", "For a day"),
    ("until", "Until the time below"),
    ("never", "For ever"),
];

/// Shows the form.
pub(super) async fn form(
    State(site): State<Arc<Site>>,
    Extension(visitor): Extension<Visitor>,
    request: Request,
) -> Result<Response, Failure> {
    visitor.require(Role::CanCreateRateLimits)?;
    let fields = Fields::of_query(request.uri()).with("end", "hour");
    check_consumer_id(fields.raw("id"))?;
    Ok(form_page(&site, &visitor, &fields, &[]))
}

/// Blocks a consumer, and writes the reason to the history.
pub(super) async fn block(
    State(site): State<Arc<Site>>,
    Extension(visitor): Extension<Visitor>,
    Extension(form): Extension<Fields>,
) -> Result<Response, Failure> {
    visitor.require(Role::CanCreateRateLimits)?;
    let id = check_consumer_id(form.raw("id"))?;
    let records = &site.context.records;
    let mut problems = Vec::new();
    if form.non_empty("reason").is_none() {
        problems.push(("reason", "Expected the reason for the block."));
    }
    let now = site.context.now();
    let until = match form.get("end") {
        "hour" => Some(now.plus_micros(HOUR)),
        "day" => Some(now.plus_micros(24 * HOUR)),
        "never" => Some(NEVER),
        _ => text::parse_time(form.get("until")).filter(|until| *until > now),
    };
    if until.is_none() {
        problems.push(("until", "Expected a time in the future, such as 2026-11-21 14:00."));
    }
    let (Some(until), []) = (until, &problems[..]) else {
        return Ok(form_page(&site, &visitor, &form, &problems));
    };
    let author = visitor.actor.author();
    let block = records.block(id, until, Expected::Any, author).await;
    let block = block.map_err(|error| visitor.change_failure(error))?;
    records.audit_log().note_reason(id, form.get("reason"), visitor.actor.name()).await?;
    audit::record_changed(&visitor.actor, "blocked", &block);
    Ok(subject::done(&site, &form, &rl_core::Subject::consumer(id), "blocked"))
}

/// Lifts all blocks of a consumer.
pub(super) async fn unblock(
    State(site): State<Arc<Site>>,
    Extension(visitor): Extension<Visitor>,
    Extension(form): Extension<Fields>,
) -> Result<Response, Failure> {
    visitor.require(Role::CanDeleteRateLimits)?;
    let id = check_consumer_id(form.raw("id"))?;
    let gone = site.context.records.unblock(id, Expected::Any, visitor.actor.author()).await;
    let gone = gone.map_err(|error| visitor.change_failure(error))?;
    audit::record_changed(&visitor.actor, "unblocked", &gone);
    Ok(subject::done(&site, &form, &rl_core::Subject::consumer(id), "unblocked"))
}

fn form_page(
    site: &Site,
    visitor: &Visitor,
    fields: &Fields,
    problems: &[(&str, &str)],
) -> Response {
    let subject = rl_core::Subject::consumer(fields.raw("id"));
    let problem = |name: &str| problems.iter().find(|(field, _)| *field == name);
    let described = |name: &str| problem(name).map(|_| format!("{name}-problem"));
    let main = html! {
        p.crumb { a href=(site.path()) { "Now" } " / " a.id href=(site.consumer_link(fields.raw("id"))) { (fields.raw("id")) } }
        h1 { "Block this consumer" }
        @if !problems.is_empty() {
            div.problems role="alert" tabindex="-1" {
                h2 { "Nothing was changed" }
                ul { @for (field, problem) in problems { li { a href={ "#" (field) } { (problem) } } } }
            }
        }
        form.sheet method="post" action=(site.link("/block", &[])) {
            (form_token(visitor))
            input type="hidden" name="id" value=(fields.raw("id"));
            input type="hidden" name="back" value=(fields.get("back"));
            p { "Until the end of the block, every call is denied, whatever the limits of the consumer are." }
            div.field {
                label for="reason" { "Reason" }
                input #reason name="reason" value=(fields.raw("reason")) maxlength="500" required
                    autocomplete="off" aria-invalid=[problem("reason").map(|_| "true")]
                    aria-describedby=[described("reason")];
                @if let Some((_, problem)) = problem("reason") { p.problem #reason-problem { (problem) } }
            }
            fieldset {
                legend { "How long" }
                @for (value, label) in ENDS {
                    div.check {
                        input #{ "end-" (value) } type="radio" name="end" value=(value) checked[fields.get("end") == value];
                        label for={ "end-" (value) } { (label) }
                    }
                }
                div.field {
                    label for="until" { "Until (UTC)" }
                    input #until name="until" value=(fields.raw("until")) placeholder="2026-11-21 14:00"
                        autocomplete="off" aria-invalid=[problem("until").map(|_| "true")]
                        aria-describedby=[described("until")];
                    @if let Some((_, problem)) = problem("until") { p.problem #until-problem { (problem) } }
                }
            }
            div.buttons {
                button.danger type="submit" { "Block" }
                a.button href=(subject::back(site, fields, &subject)) { "Cancel" }
            }
        }
    };
    let status =
        if problems.is_empty() { StatusCode::OK } else { StatusCode::UNPROCESSABLE_ENTITY };
    (status, page(site, Some(visitor), "Block a consumer", Tab::Consumers, main)).into_response()
}

/// Shows the active blocks, those that end first at the top.
pub(super) async fn list(
    State(site): State<Arc<Site>>,
    Extension(visitor): Extension<Visitor>,
) -> Result<Markup, Failure> {
    let blocks = site.context.records.active_blocks(SHOWN).await?;
    let reasons = join_all(blocks.iter().map(|block| reason(&site, block))).await;
    let reasons = reasons.into_iter().collect::<Result<Vec<_>, _>>()?;
    let main = html! {
        h1 { "Blocks" }
        @if blocks.is_empty() {
            p.empty.quiet-now { "Nothing is blocked." }
        } @else {
            table.list {
                thead { tr {
                    th scope="col" { "Subject" } th scope="col" { "End" } th scope="col" { "Reason" }
                    th scope="col" { "By" } th scope="col" { span.unseen { "Actions" } }
                } }
                tbody { @for (block, reason) in blocks.iter().zip(&reasons) {
                    @let (id, subject) = (&block.content.subject_id, block.content.subject());
                    @let is_of_consumer = *subject.realm() == Realm::Consumer;
                    tr {
                        th scope="row" {
                            @if !is_of_consumer { (subject.realm().as_str()) " " }
                            @if let Some(rule) = &block.content.rule { "under " (rule) " " }
                            a.id.whole href=(subject::link(&site, "/subject", &subject, &[])) title=(id) { (id) }
                        }
                        td data-label="End" { (end(block)) }
                        td data-label="Reason" { (reason.as_deref().unwrap_or("–")) }
                        td data-label="By" { (block.updated_by) ", " time { (text::time(block.updated_at)) } }
                        td.number {
                            // The button lifts the blocks of a consumer under every rule.
                            @if is_of_consumer
                                && block.content.rule.is_none()
                                && visitor.actor.has(Role::CanDeleteRateLimits)
                            {
                                (unblock_form(&site, &visitor, id))
                            }
                        }
                    }
                } }
            }
            @if blocks.len() == SHOWN as usize {
                p.hint { "The " (SHOWN) " blocks that end first." }
            }
        }
    };
    Ok(page(&site, Some(&visitor), "Blocks", Tab::Blocks, main))
}

/// Renders the banner of a blocked consumer, or nothing.
pub(super) async fn banner(
    site: &Site,
    visitor: &Visitor,
    consumer: &str,
) -> Result<Markup, Failure> {
    let records = &site.context.records;
    let Some(block) = records.block_of(consumer).await? else { return Ok(html! {}) };
    let reason = reason(site, &block).await?;
    Ok(html! {
        div.banner {
            div {
                p { strong { "Blocked " (end(&block)) "." } " Every call is denied." }
                @if let Some(reason) = reason { p { "Reason: " (reason) } }
                p.hint { "By " (block.updated_by) " at " (text::time(block.updated_at)) " UTC." }
            }
            @if visitor.actor.has(Role::CanDeleteRateLimits) { (unblock_form(site, visitor, consumer)) }
        }
    })
}

/// Renders the button that lifts the block of a consumer.
fn unblock_form(site: &Site, visitor: &Visitor, consumer: &str) -> Markup {
    html! {
        form method="post" action=(site.link("/unblock", &[])) {
            (form_token(visitor))
            input type="hidden" name="id" value=(consumer);
            button type="submit" { "Unblock" }
        }
    }
}

/// Formats the end of a block.
fn end(block: &Record) -> String {
    let end = block.content.to_date;
    if end >= YEAR_9999 { "for ever".to_owned() } else { format!("until {} UTC", text::time(end)) }
}

/// Returns the last reason that was given since the block was created.
async fn reason(site: &Site, block: &Record) -> Result<Option<String>, Failure> {
    // Reasons are given for blocks of consumers only.
    if block.content.realm != Realm::Consumer {
        return Ok(None);
    }
    let consumer = Some(block.content.subject_id.clone());
    let query = AuditQuery { consumer, limit: 50, ..AuditQuery::default() };
    let entries = site.context.records.audit_log().entries(&query).await?.into_iter();
    let since = entries.take_while(|entry| entry.at >= block.created_at);
    Ok(since.into_iter().find_map(|entry| match entry.event {
        AuditEvent::Reason { reason, .. } => Some(reason),
        _ => None,
    }))
}
