use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use rl_core::Realm;
use rl_records::{RecordContent, RecordQuery};

use super::responses::{
    ChangeRequest, change_error, record, record_not_found, record_of, written_record, wrong_number,
};
use crate::audit;
use crate::context::Context;
use crate::error::ApiError;
use crate::error::{ChangeErrorResponses, ErrorResponses};
use crate::read::{
    Allowed, Body, CanCreateRateLimits, CanDeleteRateLimits, CanGetRateLimits, CanReadCallLimits,
    CanUpdateRateLimits, ConsumerId, IfMatch, PathParam, QueryParams, RateLimitingId, Search,
};
use crate::wire::{RateLimit, RateLimitInput, RateLimits};

/// Lists the records of a consumer
#[utoipa::path(get, path = "/management/consumers/{CONSUMER_ID}/consumer/rate-limits",
    tag = "records", params(PathParam<ConsumerId>, Search),
    responses((status = OK, body = RateLimits), ErrorResponses))]
pub(super) async fn list(
    State(context): State<Arc<Context>>,
    _: Allowed<CanReadCallLimits>,
    PathParam(ConsumerId(consumer)): PathParam<ConsumerId>,
    QueryParams(search): QueryParams<Search>,
) -> Result<Json<RateLimits>, ApiError> {
    let subject = Some(consumer.as_str().to_owned());
    page(&context, RecordQuery { subject, ..query(search) }).await
}

/// Lists the records of all consumers, or those that match a search
#[utoipa::path(get, path = "/management/rate-limits", tag = "records", params(Search),
    responses((status = OK, body = RateLimits), ErrorResponses))]
pub(super) async fn search(
    State(context): State<Arc<Context>>,
    _: Allowed<CanGetRateLimits>,
    QueryParams(search): QueryParams<Search>,
) -> Result<Json<RateLimits>, ApiError> {
    page(&context, query(search)).await
}

fn query(search: Search) -> RecordQuery {
    let Search { search, active_at, limit, after, own } = search;
    RecordQuery {
        realm: Some(Realm::Consumer),
        search: search.map(String::from),
        consumers: own,
        active_at: active_at.map(|date| date.0),
        after,
        limit: limit.0,
        ..RecordQuery::default()
    }
}

pub(super) async fn page(
    context: &Context,
    query: RecordQuery,
) -> Result<Json<RateLimits>, ApiError> {
    let page = context.records.list(&query).await?;
    let limits = page.records.iter().map(RateLimit::of).collect();
    Ok(Json(RateLimits { limits, next: page.next.map(|cursor| cursor.to_string()) }))
}

/// Creates a record
///
/// A record that unblocks the consumer also requires the role for that.
#[utoipa::path(post, path = "/management/consumers/{CONSUMER_ID}/consumer/rate-limits",
    tag = "records", params(PathParam<ConsumerId>), request_body = RateLimitInput,
    responses((status = CREATED, body = RateLimit, headers(("ETag" = String))), ChangeErrorResponses))]
pub(super) async fn create(
    State(context): State<Arc<Context>>,
    Allowed { actor, request, .. }: Allowed<CanCreateRateLimits>,
    PathParam(ConsumerId(consumer)): PathParam<ConsumerId>,
    Body(input): Body<RateLimitInput>,
) -> Result<Response, ApiError> {
    let created = context.records.create(input.into_content(&consumer), actor.author()).await;
    let created = created.map_err(|error| {
        wrong_number(&error).unwrap_or_else(|| change_error(&context, &actor, &request, error))
    })?;
    audit::record_changed(&actor, "created", &created);
    Ok(written_record(&context, StatusCode::CREATED, &created).await)
}

/// Returns a record
#[utoipa::path(get,
    path = "/management/consumers/{CONSUMER_ID}/consumer/rate-limits/{RATE_LIMITING_ID}",
    tag = "records", params(PathParam<ConsumerId>, PathParam<RateLimitingId>),
    responses((status = OK, body = RateLimit, headers(("ETag" = String))), ErrorResponses))]
pub(super) async fn read(
    State(context): State<Arc<Context>>,
    _: Allowed<CanReadCallLimits>,
    PathParam(ConsumerId(consumer)): PathParam<ConsumerId>,
    PathParam(RateLimitingId(id)): PathParam<RateLimitingId>,
) -> Result<Response, ApiError> {
    let found = record_of(&context, &consumer, id).await?;
    Ok(record(StatusCode::OK, &found.ok_or_else(|| record_not_found(id))?))
}

/// Replaces a record
///
/// With `If-Match`, the response is 412 unless the record has the given revision. A block stays a
/// block. A change that blocks or unblocks the consumer at any time also requires the role for
/// that. A record whose limits six numbers cannot express is 409.
#[utoipa::path(put,
    path = "/management/consumers/{CONSUMER_ID}/consumer/rate-limits/{RATE_LIMITING_ID}",
    tag = "records", params(PathParam<ConsumerId>, PathParam<RateLimitingId>, IfMatch), request_body = RateLimitInput,
    responses((status = OK, body = RateLimit, headers(("ETag" = String))), ChangeErrorResponses))]
pub(super) async fn update(
    State(context): State<Arc<Context>>,
    Allowed { actor, request, .. }: Allowed<CanUpdateRateLimits>,
    PathParam(ConsumerId(consumer)): PathParam<ConsumerId>,
    PathParam(RateLimitingId(id)): PathParam<RateLimitingId>,
    if_match: IfMatch,
    Body(input): Body<RateLimitInput>,
) -> Result<Response, ApiError> {
    let change =
        ChangeRequest { context: &context, actor: &actor, request: &request, if_match: &if_match };
    let Some(found) = record_of(&context, &consumer, id).await? else {
        return Err(change.not_found(record_not_found(id)));
    };
    if found.content.limits.call_limits().is_none() {
        let message = format!(
            "six numbers cannot express the limits of this record: change it at /management/limits/{id}"
        );
        return Err(ApiError::new(StatusCode::CONFLICT, message));
    }
    let content = RecordContent { rule: found.content.rule, ..input.into_content(&consumer) };
    let expected = change.expected();
    let author = change.author();
    let updated = context.records.update_limits(id, content, expected, author).await;
    let updated = updated.map_err(|error| {
        wrong_number(&error).unwrap_or_else(|| change.error(error, || record_not_found(id)))
    })?;
    audit::record_changed(&actor, "updated", &updated);
    Ok(written_record(&context, StatusCode::OK, &updated).await)
}

/// Deletes a record
///
/// With `If-Match`, the response is 412 unless the record has the given revision. A deletion that
/// blocks the consumer also requires the role for that.
#[utoipa::path(delete,
    path = "/management/consumers/{CONSUMER_ID}/consumer/rate-limits/{RATE_LIMITING_ID}",
    tag = "records", params(PathParam<ConsumerId>, PathParam<RateLimitingId>, IfMatch),
    responses((status = NO_CONTENT), ChangeErrorResponses))]
pub(super) async fn delete(
    State(context): State<Arc<Context>>,
    Allowed { actor, request, .. }: Allowed<CanDeleteRateLimits>,
    PathParam(ConsumerId(consumer)): PathParam<ConsumerId>,
    PathParam(RateLimitingId(id)): PathParam<RateLimitingId>,
    if_match: IfMatch,
) -> Result<StatusCode, ApiError> {
    let change =
        ChangeRequest { context: &context, actor: &actor, request: &request, if_match: &if_match };
    if record_of(&context, &consumer, id).await?.is_none() {
        return Err(change.not_found(record_not_found(id)));
    }
    let gone = context.records.delete(id, change.expected(), change.author()).await;
    let gone = gone.map_err(|error| change.error(error, || record_not_found(id)))?;
    audit::record_changed(&actor, "deleted", &gone);
    Ok(StatusCode::NO_CONTENT)
}
