//! The pages that a visitor of some applications may open.
//!
//! The guard calls [`check`] before each page. A page that is not listed here does not exist for
//! such a visitor, and neither does an object of other applications.

use axum::http::StatusCode;
use rl_records::RecordId;

use super::failure::Failure;
use super::fields::Fields;
use super::site::Site;
use super::visitor::Visitor;
use crate::audit;
use crate::read::sees_record;

/// The fields in which forms and queries name a consumer.
pub(super) const CONSUMER_FIELDS: [&str; 3] = ["consumer_id", "consumer", "id"];

/// The objects that a page shows or changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Page {
    /// Rows of the visitor's own applications, or no consumer at all.
    OwnRows,
    /// A consumer, a record or a subscription that a field names.
    Named,
    /// Tiers, which all applications share.
    Shared,
}

fn page_at(path: &str) -> Option<Page> {
    match path {
        "" | "/" | "/now" | "/consumers" | "/months" | "/months/export" | "/changes" | "/tiers"
        | "/store" | "/last-hour" | "/subscriptions" => Some(Page::OwnRows),
        "/consumer"
        | "/consumer/export"
        | "/subject"
        | "/usage"
        | "/explain"
        | "/reset"
        | "/raise"
        | "/block"
        | "/unblock"
        | "/consumer/tier"
        | "/record/new"
        | "/record/edit"
        | "/record/delete"
        | "/subscription/new"
        | "/subscription/status" => Some(Page::Named),
        "/tier/new" | "/tier/edit" | "/tier/delete" => Some(Page::Shared),
        _ => None,
    }
}

/// Returns whether the visitor may open a page that names no object.
pub(super) fn is_open(visitor: &Visitor, path: &str) -> bool {
    visitor.actor.applications().is_none() || page_at(path).is_some()
}

/// Checks that the visitor may open the page at `path`, and that every consumer, record and
/// subscription in the fields of its query and its form is the visitor's own.
pub(super) async fn check(
    site: &Site,
    visitor: &Visitor,
    path: &str,
    fields: [&Fields; 2],
) -> Result<(), Failure> {
    if visitor.actor.applications().is_none() {
        return Ok(());
    }
    for id in check_names(visitor, path, fields)? {
        if !sees_record(&site.context, &visitor.actor, id).await? {
            return Err(Failure::no_record());
        }
    }
    let subscriptions = site.context.records.subscriptions();
    for text in fields.iter().flat_map(|fields| fields.all("subscription")) {
        let id = text.trim().parse().map_err(|_| Failure::no_subscription())?;
        let found = subscriptions.read(id).await?;
        if !found.is_some_and(|found| visitor.actor.sees_consumer(&found.content.consumer_id)) {
            return Err(Failure::no_subscription());
        }
    }
    Ok(())
}

/// Checks the page and the consumers. Returns the records in the fields.
fn check_names(
    visitor: &Visitor,
    path: &str,
    fields: [&Fields; 2],
) -> Result<Vec<RecordId>, Failure> {
    let actor = &visitor.actor;
    let page = page_at(path).ok_or_else(Failure::no_page)?;
    if page == Page::Shared {
        audit::not_owned(actor);
        let message = "Tiers also limit the applications of others. Nothing was changed.";
        return Err(Failure::new(StatusCode::FORBIDDEN, "Not allowed", message));
    }
    let values = |name: &str| fields.map(|fields| fields.all(name)).concat();
    // A page may read any of these fields, so each has to name an application of the visitor.
    let is_own = |id: &str| id.is_empty() || actor.sees_consumer(id);
    let is_own = CONSUMER_FIELDS.iter().flat_map(|name| values(name)).all(is_own);
    if !is_own && matches!(path, "/record/new" | "/subscription/new") {
        audit::not_owned(actor);
        let own = actor.applications().unwrap_or_default().join(", ");
        let message = format!("You may set limits of these applications only: {own}.");
        return Err(Failure::new(StatusCode::FORBIDDEN, "Not allowed", message));
    }
    if !is_own || values("realm").iter().any(|realm| !matches!(*realm, "" | "consumer")) {
        let message = "There is no such consumer among your applications.";
        return Err(Failure::new(StatusCode::NOT_FOUND, "No such consumer", message));
    }
    let records = values("record").into_iter().map(|id| id.trim().parse());
    records.collect::<Result<_, _>>().map_err(|_| Failure::no_record())
}
