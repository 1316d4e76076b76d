//! The pages for creating, changing and deleting a record.

use std::sync::Arc;

use axum::Extension;
use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Redirect, Response};
use maud::html;
use rl_core::Subject;
use rl_core::time::Timestamp;
use rl_records::{ActiveLimits, ChangeError, Record, RecordContent, RecordId};

use super::HOUR;
use super::changes::differences;
use super::edit_page::{EditPage, Rejection};
use super::failure::Failure;
use super::fields::Fields;
use super::page::{Tab, form_token, page};
use super::record_form;
use super::site::Site;
use super::text;
use super::visitor::Visitor;
use crate::access::Role;
use crate::audit;

/// Shows an empty form. The suggested dates span a year from the current hour.
pub(super) async fn new(
    State(site): State<Arc<Site>>,
    Extension(visitor): Extension<Visitor>,
    request: Request,
) -> Result<Response, Failure> {
    visitor.require(Role::CanCreateRateLimits)?;
    let hour = site.context.now().as_micros() / HOUR * HOUR;
    let from = Timestamp::from_micros(hour);
    let fields = Fields::default()
        .with("consumer_id", Fields::of_query(request.uri()).get("consumer"))
        .with("from_date", text::field(from))
        .with("to_date", text::field(from.plus_micros(365 * 24 * HOUR - 1_000_000)));
    Ok(form_page(&site, &visitor, true, &fields, None))
}

/// Creates a record from a form.
pub(super) async fn create(
    State(site): State<Arc<Site>>,
    Extension(visitor): Extension<Visitor>,
    Extension(form): Extension<Fields>,
) -> Result<Response, Failure> {
    visitor.require(Role::CanCreateRateLimits)?;
    let rejected =
        |form: &Fields, rejection| Ok(form_page(&site, &visitor, true, form, Some(rejection)));
    let content = match record_form::read(&form, None) {
        Ok(content) => content,
        Err(problems) => return rejected(&form, Rejection::invalid(problems)),
    };
    if form.non_empty("preview").is_some() {
        return rejected(&form, preview(&site, &content, None).await?);
    }
    if let Some(rejection) = unconfirmed_unlimited(&site, &form, &content, None).await? {
        return rejected(&form.with("asks_unlimited", "on"), rejection);
    }
    match site.context.records.create(content, visitor.actor.author()).await {
        Ok(record) => Ok(saved(&site, &visitor, "created", &record)),
        Err(ChangeError::Invalid(field)) => rejected(&form, Rejection::invalid_field(&field)),
        Err(error) => Err(visitor.change_failure(error)),
    }
}

/// Shows the form of a record.
pub(super) async fn edit(
    State(site): State<Arc<Site>>,
    Extension(visitor): Extension<Visitor>,
    request: Request,
) -> Result<Response, Failure> {
    visitor.require(Role::CanUpdateRateLimits)?;
    let record = find(&site, &Fields::of_query(request.uri())).await?;
    Ok(form_page(&site, &visitor, false, &record_form::fields(&record), None))
}

/// Saves the form of a record.
pub(super) async fn update(
    State(site): State<Arc<Site>>,
    Extension(visitor): Extension<Visitor>,
    Extension(form): Extension<Fields>,
) -> Result<Response, Failure> {
    visitor.require(Role::CanUpdateRateLimits)?;
    let id = record_id(&form)?;
    let Some(before) = site.context.records.read(id).await? else {
        return Ok(deleted_meanwhile(&site, &visitor, &form));
    };
    let rejected =
        |form: &Fields, rejection| Ok(form_page(&site, &visitor, false, form, Some(rejection)));
    let content = match record_form::read(&form, Some(&before.content)) {
        Ok(content) => content,
        Err(problems) => return rejected(&form, Rejection::invalid(problems)),
    };
    if form.non_empty("preview").is_some() {
        return rejected(&form, preview(&site, &content, Some(id)).await?);
    }
    if let Some(rejection) = unconfirmed_unlimited(&site, &form, &content, Some(&before)).await? {
        return rejected(&form.with("asks_unlimited", "on"), rejection);
    }
    let by = visitor.actor.author();
    match site.context.records.update(id, content.clone(), revision(&form), by).await {
        Ok(record) => Ok(saved(&site, &visitor, "updated", &record)),
        Err(ChangeError::Invalid(field)) => rejected(&form, Rejection::invalid_field(&field)),
        Err(ChangeError::Conflict { current }) => {
            let Record { updated_by, updated_at, .. } = &*current;
            let differences = differences(&current.content, &content);
            let rejection = Rejection::conflict("entry", updated_by, *updated_at, &differences);
            // The form gets the current revision, so saving it once more replaces that revision.
            rejected(&form.with("revision", current.revision.to_string()), rejection)
        }
        Err(ChangeError::NotFound) => Ok(deleted_meanwhile(&site, &visitor, &form)),
        Err(error) => Err(visitor.change_failure(error)),
    }
}

/// Shows a record, and asks whether it should be deleted.
pub(super) async fn confirm_delete(
    State(site): State<Arc<Site>>,
    Extension(visitor): Extension<Visitor>,
    request: Request,
) -> Result<Response, Failure> {
    visitor.require(Role::CanDeleteRateLimits)?;
    let record = find(&site, &Fields::of_query(request.uri())).await?;
    Ok(delete_page(&site, &visitor, &record, None))
}

/// Deletes a record.
pub(super) async fn delete(
    State(site): State<Arc<Site>>,
    Extension(visitor): Extension<Visitor>,
    Extension(form): Extension<Fields>,
) -> Result<Response, Failure> {
    visitor.require(Role::CanDeleteRateLimits)?;
    let id = record_id(&form)?;
    match site.context.records.delete(id, revision(&form), visitor.actor.author()).await {
        Ok(record) => Ok(saved(&site, &visitor, "deleted", &record)),
        Err(ChangeError::Conflict { current }) => {
            Ok(delete_page(&site, &visitor, &current, Some(&current.updated_by)))
        }
        Err(ChangeError::NotFound) => Err(Failure::no_record()),
        Err(error) => Err(visitor.change_failure(error)),
    }
}

/// Renders the form of a record.
fn form_page(
    site: &Site,
    visitor: &Visitor,
    is_new: bool,
    fields: &Fields,
    rejection: Option<Rejection>,
) -> Response {
    let consumer = fields.non_empty("consumer_id");
    let back = consumer.map_or_else(|| site.link("/consumers", &[]), |id| site.consumer_link(id));
    let (title, save, action) = match is_new {
        true => ("Add limits", "Add", "/record/new"),
        false => ("Change limits", "Save", "/record/edit"),
    };
    let crumbs = html! {
        a href=(site.link("/consumers", &[])) { "Consumers" }
        @if let Some(id) = consumer { " / " a.id href=(back) { (id) } }
    };
    let tab = Tab::Consumers;
    let page =
        EditPage { site, visitor, tab, title, crumbs, action, save, back, fields, rejection };
    let content = record_form::draw(&page, is_new);
    page.respond(&content, &html! {})
}

/// Renders the form of a record that was deleted in the meantime. The form can be saved as a new
/// record.
fn deleted_meanwhile(site: &Site, visitor: &Visitor, form: &Fields) -> Response {
    let notice = html! {
        div.conflict role="alert" tabindex="-1" {
            h2 { "Nothing was saved: the limits were deleted" }
            p { "Your text is below. You can add it as new limits." }
        }
    };
    let rejection = Rejection::with_notice(StatusCode::CONFLICT, notice);
    form_page(site, visitor, true, form, Some(rejection))
}

/// Returns the effect of a record with this content on the limits of its subject, from its beginning
/// or from now on. `replaced` is the record that the content replaces.
pub(super) async fn preview(
    site: &Site,
    content: &RecordContent,
    replaced: Option<RecordId>,
) -> Result<Rejection, Failure> {
    let records = &site.context.records;
    let at = content.from_date.max(site.context.now());
    let (before, after) = records.preview(content, replaced, at).await?;
    let shown = |active: &ActiveLimits| match active.is_blocked() {
        true => "no call allowed".to_owned(),
        false => text::limits(active.limits()),
    };
    Ok(Rejection::preview(&html! {
        @if at > content.to_date { "The end of these limits is in the past, so they would have no effect." }
        @else {
            "At " (text::time(at)) " UTC, the limits of " b.id { (content.subject_id) }
            @if let Some(rule) = &content.rule { " under the rule " b.id { (rule) } }
            " change from " strong { (shown(&before)) } " to "
            strong { (shown(&after)) } "."
        }
    }))
}

/// Returns whether a record lifts every limit, as an empty form does.
fn lifts_limits(content: &RecordContent) -> bool {
    content.limits.is_empty() && !content.blocks && !content.grants
}

/// Returns a rejection if a record lifts every limit without a confirmation.
///
/// A form that was left empty by mistake would otherwise lift all limits.
async fn unconfirmed_unlimited(
    site: &Site,
    form: &Fields,
    content: &RecordContent,
    before: Option<&Record>,
) -> Result<Option<Rejection>, Failure> {
    let was_unlimited = before.is_some_and(|before| lifts_limits(&before.content));
    if !lifts_limits(content) || was_unlimited || form.non_empty("unlimited").is_some() {
        return Ok(None);
    }
    let records = &site.context.records;
    let consumer = &content.subject_id;
    let from = content.from_date.max(site.context.now());
    let active = records.active_limits(consumer, from).await?;
    let own = before.map(|before| before.id);
    let has_others = active.contributions().iter().any(|record| Some(record.id) != own);
    let tier = records.tiers().member(&Subject::consumer(consumer)).await?;
    let notice = html! {
        div.conflict role="alert" tabindex="-1" {
            h2 { "Nothing was saved: there is no limit in the form" }
            p {
                @if has_others {
                    "It adds nothing to the other own limits that apply then. As soon as they have \
                     ended, calls of " b.id { (consumer) } " are allowed without a limit."
                } @else if let Some(tier) = &tier {
                    "While it is active, calls of " b.id { (consumer) } " are allowed without a limit: it \
                     replaces the tier " strong { (tier.tier) } "."
                } @else {
                    "While it is active, calls of " b.id { (consumer) } " are allowed without a limit: it \
                     replaces the configured defaults."
                }
            }
            p { "Type a limit, or confirm that the consumer may call without one." }
        }
    };
    Ok(Some(Rejection::with_notice(StatusCode::UNPROCESSABLE_ENTITY, notice)))
}

/// Logs a change, and redirects to the page of the consumer.
fn saved(site: &Site, visitor: &Visitor, action: &str, record: &Record) -> Response {
    let consumer = &record.content.subject_id;
    audit::record_changed(&visitor.actor, action, record);
    let to = site.link("/consumer", &[("id", consumer), ("done", action)]);
    Redirect::to(&to).into_response()
}

fn record_id(fields: &Fields) -> Result<RecordId, Failure> {
    fields.get("record").parse().map_err(|_| Failure::no_record())
}

fn revision(form: &Fields) -> i64 {
    form.get("revision").parse().unwrap_or_default()
}

async fn find(site: &Site, fields: &Fields) -> Result<Record, Failure> {
    let found = site.context.records.read(record_id(fields)?).await?;
    found.ok_or_else(Failure::no_record)
}

/// Renders the question whether to delete a record. `changed_by` is set if another actor has
/// changed the record since it was shown.
fn delete_page(
    site: &Site,
    visitor: &Visitor,
    record: &Record,
    changed_by: Option<&str>,
) -> Response {
    let content = &record.content;
    let back = site.consumer_link(&content.subject_id);
    let main = html! {
        p.crumb { a href=(site.link("/consumers", &[])) { "Consumers" } " / " a.id href=(back) { (content.subject_id) } }
        h1 { "Delete these limits?" }
        @if let Some(by) = changed_by {
            div.conflict role="alert" {
                p { strong { (by) } " changed them meanwhile. These are the current ones; nothing was deleted." }
            }
        }
        dl {
            dt { "Consumer" } dd.id { (content.subject_id) }
            dt { "From" } dd { (text::time(content.from_date)) " UTC" }
            dt { "To" } dd { (text::time(content.to_date)) " UTC" }
            dt { "Limits" } dd { (text::limits(&content.limits)) }
            @if content.grants { dt { "Grants" } dd { "these limits in addition to those that apply" } }
            @if content.blocks { dt { "Blocks" } dd { "the consumer, during this time" } }
        }
        p { "The limits stay in the history. Other own limits and the tier of the consumer stay." }
        form method="post" action=(site.link("/record/delete", &[])) {
            (form_token(visitor))
            input type="hidden" name="record" value=(record.id);
            input type="hidden" name="revision" value=(record.revision);
            div.buttons {
                button.danger type="submit" { "Delete" }
                a.button href=(back) { "Cancel" }
            }
        }
    };
    let status = if changed_by.is_some() { StatusCode::CONFLICT } else { StatusCode::OK };
    (status, page(site, Some(visitor), "Delete limits", Tab::Consumers, main)).into_response()
}
