use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use rl_records::RecordQuery;

use super::answer::{Edit, not_found, record, record_of, refused, written};
use crate::error::{ChangeRefusals, Refusals};
use crate::read::{
    Allowed, Body, ConsumerId, IfMatch, In, Parameters, RateLimitingId, Search, ToCreate, ToDelete,
    ToGet, ToRead, ToUpdate,
};
use crate::wire::{RateLimit, RateLimitInput, RateLimits};
use crate::{Admin, ApiError, audit};

/// The records of a consumer
#[utoipa::path(get, path = "/management/consumers/{CONSUMER_ID}/consumer/rate-limits",
    tag = "records", params(In<ConsumerId>, Search),
    responses((status = OK, body = RateLimits), Refusals))]
pub(super) async fn list(
    State(admin): State<Admin>,
    _: Allowed<ToRead>,
    In(ConsumerId(consumer)): In<ConsumerId>,
    Parameters(search): Parameters<Search>,
) -> Result<Json<RateLimits>, ApiError> {
    let consumer = Some(consumer.as_str().to_owned());
    page(&admin, RecordQuery { consumer, ..query(search) }).await
}

/// The records of all consumers, or of those that are looked for
#[utoipa::path(get, path = "/management/rate-limits", tag = "records", params(Search),
    responses((status = OK, body = RateLimits), Refusals))]
pub(super) async fn search(
    State(admin): State<Admin>,
    _: Allowed<ToGet>,
    Parameters(search): Parameters<Search>,
) -> Result<Json<RateLimits>, ApiError> {
    page(&admin, query(search)).await
}

fn query(search: Search) -> RecordQuery {
    let Search { search, active_at, limit, after } = search;
    RecordQuery {
        consumer: None,
        search: search.map(String::from),
        active_at: active_at.map(|date| date.0),
        after,
        limit: limit.0,
    }
}

async fn page(admin: &Admin, query: RecordQuery) -> Result<Json<RateLimits>, ApiError> {
    let page = admin.records().list(&query).await?;
    let limits = page.records.iter().map(RateLimit::of).collect();
    Ok(Json(RateLimits { limits, next: page.next.map(|cursor| cursor.to_string()) }))
}

/// Creates a record
///
/// A record that unblocks the consumer needs the role for that, too.
#[utoipa::path(post, path = "/management/consumers/{CONSUMER_ID}/consumer/rate-limits",
    tag = "records", params(In<ConsumerId>), request_body = RateLimitInput,
    responses((status = CREATED, body = RateLimit, headers(("ETag" = String))), ChangeRefusals))]
pub(super) async fn create(
    State(admin): State<Admin>,
    Allowed { actor, asked, .. }: Allowed<ToCreate>,
    In(ConsumerId(consumer)): In<ConsumerId>,
    Body(input): Body<RateLimitInput>,
) -> Result<Response, ApiError> {
    let created = admin.records().create(input.into_content(&consumer), actor.author()).await;
    let created = created.map_err(|error| refused(&admin, &actor, &asked, error))?;
    audit::record_changed(&actor, "created", consumer.as_str(), &created.id.to_string(), 1);
    Ok(written(&admin, StatusCode::CREATED, &created).await)
}

/// A record
#[utoipa::path(get,
    path = "/management/consumers/{CONSUMER_ID}/consumer/rate-limits/{RATE_LIMITING_ID}",
    tag = "records", params(In<ConsumerId>, In<RateLimitingId>),
    responses((status = OK, body = RateLimit, headers(("ETag" = String))), Refusals))]
pub(super) async fn read(
    State(admin): State<Admin>,
    _: Allowed<ToRead>,
    In(ConsumerId(consumer)): In<ConsumerId>,
    In(RateLimitingId(id)): In<RateLimitingId>,
) -> Result<Response, ApiError> {
    let found = record_of(&admin, &consumer, id).await?;
    Ok(record(StatusCode::OK, &found.ok_or_else(|| not_found(id))?))
}

/// Writes over a record
///
/// With `If-Match`, only if nobody changed it since: 412 otherwise. A block stays a block; to let it
/// begin or end at another time needs the roles to block and to unblock, too. So do limits that block or
/// unblock the consumer.
#[utoipa::path(put,
    path = "/management/consumers/{CONSUMER_ID}/consumer/rate-limits/{RATE_LIMITING_ID}",
    tag = "records", params(In<ConsumerId>, In<RateLimitingId>, IfMatch), request_body = RateLimitInput,
    responses((status = OK, body = RateLimit, headers(("ETag" = String))), ChangeRefusals))]
pub(super) async fn update(
    State(admin): State<Admin>,
    Allowed { actor, asked, .. }: Allowed<ToUpdate>,
    In(ConsumerId(consumer)): In<ConsumerId>,
    In(RateLimitingId(id)): In<RateLimitingId>,
    if_match: IfMatch,
    Body(input): Body<RateLimitInput>,
) -> Result<Response, ApiError> {
    let edit = Edit { admin: &admin, actor: &actor, asked: &asked, if_match: &if_match };
    if record_of(&admin, &consumer, id).await?.is_none() {
        return Err(edit.missing(not_found(id)));
    }
    let content = input.into_content(&consumer);
    let (expected, author) = (edit.expected(), edit.author());
    let updated = admin.records().update_limits(id, content, expected, author).await;
    let updated = updated.map_err(|error| edit.not_made(error, || not_found(id)))?;
    let revision = updated.revision;
    audit::record_changed(&actor, "updated", consumer.as_str(), &id.to_string(), revision);
    Ok(written(&admin, StatusCode::OK, &updated).await)
}

/// Deletes a record
///
/// With `If-Match`, only if nobody changed it since: 412 otherwise. If that blocks the consumer, it
/// needs the role for that, too.
#[utoipa::path(delete,
    path = "/management/consumers/{CONSUMER_ID}/consumer/rate-limits/{RATE_LIMITING_ID}",
    tag = "records", params(In<ConsumerId>, In<RateLimitingId>, IfMatch),
    responses((status = NO_CONTENT), ChangeRefusals))]
pub(super) async fn delete(
    State(admin): State<Admin>,
    Allowed { actor, asked, .. }: Allowed<ToDelete>,
    In(ConsumerId(consumer)): In<ConsumerId>,
    In(RateLimitingId(id)): In<RateLimitingId>,
    if_match: IfMatch,
) -> Result<StatusCode, ApiError> {
    let edit = Edit { admin: &admin, actor: &actor, asked: &asked, if_match: &if_match };
    if record_of(&admin, &consumer, id).await?.is_none() {
        return Err(edit.missing(not_found(id)));
    }
    let gone = admin.records().delete(id, edit.expected(), edit.author()).await;
    let gone = gone.map_err(|error| edit.not_made(error, || not_found(id)))?;
    audit::record_changed(&actor, "deleted", consumer.as_str(), &id.to_string(), gone.revision);
    Ok(StatusCode::NO_CONTENT)
}
