use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use rl_core::Subject;
use rl_records::{
    Author, ChangeError, Subscription as Stored, SubscriptionId, SubscriptionQuery,
    SubscriptionStatus as StoredStatus,
};

use super::responses::{ChangeRequest, change_error};
use crate::audit;
use crate::context::Context;
use crate::error::ApiError;
use crate::error::{ChangeErrorResponses, ErrorResponses, etag};
use crate::read::{
    Allowed, Body, CanCreateRateLimits, CanGetRateLimits, CanSetSubscriptionStatus,
    CanUpdateRateLimits, IfMatch, PathParam, QueryParams, SearchSubscriptions, SubscriptionIdParam,
};
use crate::subject_rules::note_on_unenforced_records;
use crate::wire::{DatesInput, StatusInput, Subscription, SubscriptionInput, Subscriptions};

fn respond(status: StatusCode, stored: &Stored, warning: Option<String>) -> Response {
    let body = Subscription::of(stored).with_warning(warning);
    (status, [(header::ETAG, etag(stored.revision))], Json(body)).into_response()
}

/// Responds with a changed subscription, and with a warning if its consumer has no limit now.
async fn respond_changed(context: &Context, status: StatusCode, stored: &Stored) -> Response {
    respond(status, stored, warning(context, stored).await)
}

async fn warning(context: &Context, stored: &Stored) -> Option<String> {
    let consumer = &stored.content.consumer_id;
    if let Some(note) = note_on_unenforced_records(context, &Subject::consumer(consumer)) {
        return Some(note);
    }
    if !matches!(stored.content.status, StoredStatus::Suspended | StoredStatus::Cancelled) {
        return None;
    }
    match context.records.active_limits(consumer, context.now()).await {
        Ok(active) => active.limits().is_empty().then(|| {
            "the consumer has no limit now: no record, tier or default limits its calls".to_owned()
        }),
        Err(error) => {
            // The change has already been stored, so only the warning is lost.
            let kind = error.kind().as_str();
            tracing::warn!(target: "rl_admin", kind, "limits of a subscriber not read");
            None
        }
    }
}

fn no_subscription(id: SubscriptionId) -> ApiError {
    ApiError::not_found(format_args!("subscription {id}"))
}

pub(super) async fn find(context: &Context, id: SubscriptionId) -> Result<Stored, ApiError> {
    let found = context.records.subscriptions().read(id).await?;
    found.ok_or_else(|| no_subscription(id))
}

/// Converts the error of a change. A status that cannot follow the current one is a conflict.
fn refused(change: &ChangeRequest<'_>, id: SubscriptionId, error: ChangeError<Stored>) -> ApiError {
    match error {
        ChangeError::Invalid(why) if why.field() == "status" => {
            ApiError::new(StatusCode::CONFLICT, why.to_string())
        }
        error => change.error(error, || no_subscription(id)),
    }
}

/// Lists subscriptions
#[utoipa::path(get, path = "/management/subscriptions", tag = "subscriptions",
    params(SearchSubscriptions),
    responses((status = OK, body = Subscriptions), ErrorResponses))]
pub(super) async fn list(
    State(context): State<Arc<Context>>,
    _: Allowed<CanGetRateLimits>,
    QueryParams(search): QueryParams<SearchSubscriptions>,
) -> Result<Json<Subscriptions>, ApiError> {
    let SearchSubscriptions { consumer, tier, status, limit, after, own } = search;
    let query = SubscriptionQuery {
        consumer: consumer.map(String::from),
        consumers: own,
        tier: tier.map(String::from),
        status: status.map(StoredStatus::from),
        after,
        limit: limit.0,
        ..SubscriptionQuery::default()
    };
    let found = context.records.subscriptions().list(&query).await?;
    let next = found.next.map(|last| last.to_string());
    let subscriptions = found.subscriptions.iter().map(Subscription::of).collect();
    Ok(Json(Subscriptions { subscriptions, next }))
}

/// Creates a subscription, requested or active
///
/// An active subscription creates a record of the consumer. A record that blocks or unblocks the
/// consumer also requires the role for that.
#[utoipa::path(post, path = "/management/subscriptions", tag = "subscriptions",
    request_body = SubscriptionInput,
    responses((status = CREATED, body = Subscription, headers(("ETag" = String))), ChangeErrorResponses))]
pub(super) async fn create(
    State(context): State<Arc<Context>>,
    Allowed { actor, request, .. }: Allowed<CanCreateRateLimits>,
    Body(input): Body<SubscriptionInput>,
) -> Result<Response, ApiError> {
    let created =
        context.records.subscriptions().create(input.into_content(), actor.author()).await;
    let created = created.map_err(|error| change_error(&context, &actor, &request, error))?;
    audit::subscription_changed(&actor, "created", &created);
    Ok(respond_changed(&context, StatusCode::CREATED, &created).await)
}

/// Returns a subscription
#[utoipa::path(get, path = "/management/subscriptions/{SUBSCRIPTION_ID}", tag = "subscriptions",
    params(PathParam<SubscriptionIdParam>),
    responses((status = OK, body = Subscription, headers(("ETag" = String))), ErrorResponses))]
pub(super) async fn read(
    State(context): State<Arc<Context>>,
    _: Allowed<CanGetRateLimits>,
    PathParam(SubscriptionIdParam(id)): PathParam<SubscriptionIdParam>,
) -> Result<Response, ApiError> {
    Ok(respond(StatusCode::OK, &find(&context, id).await?, None))
}

/// Changes the status of a subscription, and its record
///
/// Requested becomes active; active becomes past due or suspended, and active again; each may
/// become cancelled, which is final. Another change is 409. The current status is accepted, and
/// changes nothing. With `If-Match`, the response is 412 unless the subscription has the given
/// revision. The role suffices, whatever the effect on the consumer.
#[utoipa::path(put, path = "/management/subscriptions/{SUBSCRIPTION_ID}/status",
    tag = "subscriptions", params(PathParam<SubscriptionIdParam>, IfMatch),
    request_body = StatusInput,
    responses((status = OK, body = Subscription, headers(("ETag" = String))), ChangeErrorResponses))]
pub(super) async fn set_status(
    State(context): State<Arc<Context>>,
    Allowed { actor, request, .. }: Allowed<CanSetSubscriptionStatus>,
    PathParam(SubscriptionIdParam(id)): PathParam<SubscriptionIdParam>,
    if_match: IfMatch,
    Body(StatusInput { status }): Body<StatusInput>,
) -> Result<Response, ApiError> {
    let change =
        ChangeRequest { context: &context, actor: &actor, request: &request, if_match: &if_match };
    // A billing system has no role to block. The authors of the subscription and of its tier have
    // chosen the effect of each status.
    let author = Author::new(actor.name());
    let subscriptions = context.records.subscriptions();
    let changed = subscriptions.set_status(id, status.into(), change.expected(), author).await;
    let changed = changed.map_err(|error| refused(&change, id, error))?;
    audit::subscription_changed(&actor, "updated", &changed);
    Ok(respond_changed(&context, StatusCode::OK, &changed).await)
}

/// Changes the dates and the billing day of a subscription, and its record
///
/// With `If-Match`, the response is 412 unless the subscription has the given revision. A change
/// that blocks or unblocks the consumer also requires the role for that. A cancelled subscription
/// is 409.
#[utoipa::path(put, path = "/management/subscriptions/{SUBSCRIPTION_ID}/dates",
    tag = "subscriptions", params(PathParam<SubscriptionIdParam>, IfMatch),
    request_body = DatesInput,
    responses((status = OK, body = Subscription, headers(("ETag" = String))), ChangeErrorResponses))]
pub(super) async fn set_dates(
    State(context): State<Arc<Context>>,
    Allowed { actor, request, .. }: Allowed<CanUpdateRateLimits>,
    PathParam(SubscriptionIdParam(id)): PathParam<SubscriptionIdParam>,
    if_match: IfMatch,
    Body(DatesInput { from_date, to_date, billing_day }): Body<DatesInput>,
) -> Result<Response, ApiError> {
    let change =
        ChangeRequest { context: &context, actor: &actor, request: &request, if_match: &if_match };
    let (from, to) = (from_date.0, to_date.map(|date| date.0));
    let subscriptions = context.records.subscriptions();
    let (expected, author) = (change.expected(), change.author());
    let changed = subscriptions.set_dates(id, from, to, billing_day, expected, author).await;
    let changed = changed.map_err(|error| refused(&change, id, error))?;
    audit::subscription_changed(&actor, "updated", &changed);
    Ok(respond_changed(&context, StatusCode::OK, &changed).await)
}
