use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use rl_records::RecordQuery;

use super::answer::{may_change, not_made, record, record_of, seen};
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
#[utoipa::path(post, path = "/management/consumers/{CONSUMER_ID}/consumer/rate-limits",
    tag = "records", params(In<ConsumerId>), request_body = RateLimitInput,
    responses((status = CREATED, body = RateLimit, headers(("ETag" = String))), ChangeRefusals))]
pub(super) async fn create(
    State(admin): State<Admin>,
    Allowed { actor, .. }: Allowed<ToCreate>,
    In(ConsumerId(consumer)): In<ConsumerId>,
    Body(input): Body<RateLimitInput>,
) -> Result<Response, ApiError> {
    let created = admin.records().create(input.into_content(&consumer), actor.name()).await?;
    audit::changed(&actor, "created", consumer.as_str(), &created.id.to_string(), 1);
    Ok(record(StatusCode::CREATED, &created))
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
    Ok(record(StatusCode::OK, &record_of(&admin, &consumer, id).await?))
}

/// Writes over a record
///
/// With `If-Match`, only if nobody changed it since: 412 otherwise. A block stays a block; to let it
/// begin or end at another time needs the roles to block and to unblock, too.
#[utoipa::path(put,
    path = "/management/consumers/{CONSUMER_ID}/consumer/rate-limits/{RATE_LIMITING_ID}",
    tag = "records", params(In<ConsumerId>, In<RateLimitingId>), request_body = RateLimitInput,
    responses((status = OK, body = RateLimit, headers(("ETag" = String))), ChangeRefusals))]
pub(super) async fn update(
    State(admin): State<Admin>,
    Allowed { actor, .. }: Allowed<ToUpdate>,
    In(ConsumerId(consumer)): In<ConsumerId>,
    In(RateLimitingId(id)): In<RateLimitingId>,
    if_match: IfMatch,
    Body(input): Body<RateLimitInput>,
) -> Result<Response, ApiError> {
    let there = record_of(&admin, &consumer, id).await?;
    let revision = seen(&admin, &there, &if_match)?;
    let mut content = input.into_content(&consumer);
    content.blocks = there.content.blocks;
    may_change(&actor, &there.content, &content)?;
    let updated = admin.records().update(id, content, revision, actor.name()).await;
    let updated = updated.map_err(not_made)?;
    audit::changed(&actor, "updated", consumer.as_str(), &id.to_string(), updated.revision);
    Ok(record(StatusCode::OK, &updated))
}

/// Deletes a record
///
/// With `If-Match`, only if nobody changed it since: 412 otherwise.
#[utoipa::path(delete,
    path = "/management/consumers/{CONSUMER_ID}/consumer/rate-limits/{RATE_LIMITING_ID}",
    tag = "records", params(In<ConsumerId>, In<RateLimitingId>),
    responses((status = NO_CONTENT), ChangeRefusals))]
pub(super) async fn delete(
    State(admin): State<Admin>,
    Allowed { actor, .. }: Allowed<ToDelete>,
    In(ConsumerId(consumer)): In<ConsumerId>,
    In(RateLimitingId(id)): In<RateLimitingId>,
    if_match: IfMatch,
) -> Result<StatusCode, ApiError> {
    let there = record_of(&admin, &consumer, id).await?;
    let revision = seen(&admin, &there, &if_match)?;
    admin.records().delete(id, revision, actor.name()).await.map_err(not_made)?;
    audit::changed(&actor, "deleted", consumer.as_str(), &id.to_string(), revision);
    Ok(StatusCode::NO_CONTENT)
}
