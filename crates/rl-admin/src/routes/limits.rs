//! The records of any subject: any limits, under one rule or under every rule.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use rl_records::RecordQuery;

use super::rate_limits::page;
use super::responses::{ChangeRequest, change_error, record, record_not_found, written_record};
use crate::audit;
use crate::context::Context;
use crate::error::ApiError;
use crate::error::{ChangeErrorResponses, ErrorResponses};
use crate::read::{
    Allowed, Body, CanCreateRateLimits, CanDeleteRateLimits, CanGetRateLimits, CanUpdateRateLimits,
    IfMatch, PathParam, QueryParams, RateLimitingId, SearchLimits, subject_of_body,
};
use crate::wire::{LimitsInput, LimitsUpdate, RateLimit, RateLimits};

/// Lists records of any subject
#[utoipa::path(get, path = "/management/limits", tag = "limits", params(SearchLimits),
    responses((status = OK, body = RateLimits), ErrorResponses))]
pub(super) async fn list(
    State(context): State<Arc<Context>>,
    _: Allowed<CanGetRateLimits>,
    QueryParams(search): QueryParams<SearchLimits>,
) -> Result<Json<RateLimits>, ApiError> {
    let SearchLimits { realm, subject, rule, search, active_at, limit, after, own } = search;
    let realm = realm.map(|realm| realm.0);
    let subject = match (&realm, subject) {
        // The list has addresses in the form in which they are counted.
        (Some(realm), Some(subject)) => {
            Some(subject_of_body(&context, realm.clone(), subject.as_str())?.1)
        }
        (_, subject) => subject.map(String::from),
    };
    let query = RecordQuery {
        realm,
        subject,
        rule,
        search: search.map(String::from),
        consumers: own,
        active_at: active_at.map(|date| date.0),
        after,
        limit: limit.0,
    };
    page(&context, query).await
}

/// Creates a record of any subject
///
/// A record that unblocks the subject also requires the role for that.
#[utoipa::path(post, path = "/management/limits", tag = "limits", request_body = LimitsInput,
    responses((status = CREATED, body = RateLimit, headers(("ETag" = String))), ChangeErrorResponses))]
pub(super) async fn create(
    State(context): State<Arc<Context>>,
    Allowed { actor, request, .. }: Allowed<CanCreateRateLimits>,
    Body(input): Body<LimitsInput>,
) -> Result<Response, ApiError> {
    let content = input.into_content(|realm, id| subject_of_body(&context, realm, id))?;
    let created = context.records.create(content, actor.author()).await;
    let created = created.map_err(|error| change_error(&context, &actor, &request, error))?;
    audit::record_changed(&actor, "created", &created);
    Ok(written_record(&context, StatusCode::CREATED, &created).await)
}

/// Returns a record
#[utoipa::path(get, path = "/management/limits/{RATE_LIMITING_ID}", tag = "limits",
    params(PathParam<RateLimitingId>),
    responses((status = OK, body = RateLimit, headers(("ETag" = String))), ErrorResponses))]
pub(super) async fn read(
    State(context): State<Arc<Context>>,
    _: Allowed<CanGetRateLimits>,
    PathParam(RateLimitingId(id)): PathParam<RateLimitingId>,
) -> Result<Response, ApiError> {
    let found = context.records.read(id).await?;
    Ok(record(StatusCode::OK, &found.ok_or_else(|| record_not_found(id))?))
}

/// Replaces the limits and the dates of a record
///
/// Its subject and its rule stay. With `If-Match`, the response is 412 unless the record has the
/// given revision. A change that blocks or unblocks the subject at any time also requires the role
/// for that.
#[utoipa::path(put, path = "/management/limits/{RATE_LIMITING_ID}", tag = "limits",
    params(PathParam<RateLimitingId>, IfMatch), request_body = LimitsUpdate,
    responses((status = OK, body = RateLimit, headers(("ETag" = String))), ChangeErrorResponses))]
pub(super) async fn update(
    State(context): State<Arc<Context>>,
    Allowed { actor, request, .. }: Allowed<CanUpdateRateLimits>,
    PathParam(RateLimitingId(id)): PathParam<RateLimitingId>,
    if_match: IfMatch,
    Body(input): Body<LimitsUpdate>,
) -> Result<Response, ApiError> {
    let change =
        ChangeRequest { context: &context, actor: &actor, request: &request, if_match: &if_match };
    let Some(before) = context.records.read(id).await? else {
        return Err(change.not_found(record_not_found(id)));
    };
    let (expected, author) = (change.expected(), change.author());
    let (content, blocks) = input.into_content(before.content)?;
    let updated = match blocks {
        Some(_) => context.records.update(id, content, expected, author).await,
        None => context.records.update_limits(id, content, expected, author).await,
    };
    let updated = updated.map_err(|error| change.error(error, || record_not_found(id)))?;
    audit::record_changed(&actor, "updated", &updated);
    Ok(written_record(&context, StatusCode::OK, &updated).await)
}

/// Deletes a record
///
/// With `If-Match`, the response is 412 unless the record has the given revision. A deletion that
/// blocks or unblocks the subject also requires the role for that.
#[utoipa::path(delete, path = "/management/limits/{RATE_LIMITING_ID}", tag = "limits",
    params(PathParam<RateLimitingId>, IfMatch),
    responses((status = NO_CONTENT), ChangeErrorResponses))]
pub(super) async fn delete(
    State(context): State<Arc<Context>>,
    Allowed { actor, request, .. }: Allowed<CanDeleteRateLimits>,
    PathParam(RateLimitingId(id)): PathParam<RateLimitingId>,
    if_match: IfMatch,
) -> Result<StatusCode, ApiError> {
    let change =
        ChangeRequest { context: &context, actor: &actor, request: &request, if_match: &if_match };
    let gone = context.records.delete(id, change.expected(), change.author()).await;
    let gone = gone.map_err(|error| change.error(error, || record_not_found(id)))?;
    audit::record_changed(&actor, "deleted", &gone);
    Ok(StatusCode::NO_CONTENT)
}
