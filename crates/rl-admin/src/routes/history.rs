use axum::Json;
use axum::extract::State;
use rl_records::{AuditQuery, HistoryQuery};

use crate::error::Refusals;
use crate::read::{
    Allowed, ConsumerId, FewChanges, History, In, Parameters, RateLimitingId, ResourceName, ToGet,
};
use crate::wire::{Changes, HistoryEntry, ResourceChange};
use crate::{Admin, ApiError};

async fn page(
    admin: &Admin,
    consumer: Option<String>,
    history: &History,
) -> Result<Json<Changes<HistoryEntry>>, ApiError> {
    let limit = history.limit.0;
    let query = AuditQuery { consumer, before: history.before, limit };
    let entries = admin.records().audit_log().entries(&query).await?;
    let next = next(limit, entries.iter().map(|entry| entry.number));
    let changes = entries.into_iter().map(HistoryEntry::of).collect();
    Ok(Json(Changes { changes, next }))
}

/// A page that is not full is the last.
fn next(limit: u32, numbers: impl ExactSizeIterator<Item = i64>) -> Option<i64> {
    let is_full = numbers.len() == limit as usize;
    numbers.last().filter(|_| is_full)
}

/// All changes, the newest first
///
/// Changes of records, blocks and tiers, assignments to tiers, resets of counters, and requests that were
/// refused because of a missing role. Limits of resources have a history of their own.
#[utoipa::path(get, path = "/management/history", tag = "history", params(History),
    responses((status = OK, body = Changes<HistoryEntry>), Refusals))]
pub(super) async fn of_all(
    State(admin): State<Admin>,
    _: Allowed<ToGet>,
    Parameters(history): Parameters<History>,
) -> Result<Json<Changes<HistoryEntry>>, ApiError> {
    page(&admin, None, &history).await
}

/// The changes of a consumer, the newest first
///
/// Its records and blocks, its tier, resets of its counters, and requests about it that were refused
/// because of a missing role.
#[utoipa::path(get, path = "/management/consumers/{CONSUMER_ID}/history", tag = "history",
    params(In<ConsumerId>, History),
    responses((status = OK, body = Changes<HistoryEntry>), Refusals))]
pub(super) async fn of_consumer(
    State(admin): State<Admin>,
    _: Allowed<ToGet>,
    In(ConsumerId(consumer)): In<ConsumerId>,
    Parameters(history): Parameters<History>,
) -> Result<Json<Changes<HistoryEntry>>, ApiError> {
    page(&admin, Some(consumer.as_str().to_owned()), &history).await
}

/// Changes of a record, the newest first; also of one that is deleted
#[utoipa::path(get,
    path = "/management/consumers/{CONSUMER_ID}/consumer/rate-limits/{RATE_LIMITING_ID}/history",
    tag = "history", params(In<ConsumerId>, In<RateLimitingId>, History),
    responses((status = OK, body = Changes<HistoryEntry>), Refusals))]
pub(super) async fn of_record(
    State(admin): State<Admin>,
    _: Allowed<ToGet>,
    In(ConsumerId(consumer)): In<ConsumerId>,
    In(RateLimitingId(id)): In<RateLimitingId>,
    Parameters(history): Parameters<History>,
) -> Result<Json<Changes<HistoryEntry>>, ApiError> {
    let owner = Some(consumer.as_str().to_owned());
    let item = Some(id.to_string());
    let limit = history.limit.0;
    let query = HistoryQuery { owner, item, before: history.before, limit };
    let changes = admin.records().history(&query).await?;
    let next = next(limit, changes.iter().map(|change| change.number));
    let changes = changes.into_iter().map(HistoryEntry::of_record).collect();
    Ok(Json(Changes { changes, next }))
}

/// Changes of the limit of a resource, the newest first
#[utoipa::path(get, path = "/management/resources/{RESOURCE}/history", tag = "history",
    params(In<ResourceName>, FewChanges),
    responses((status = OK, body = Changes<ResourceChange>), Refusals))]
pub(super) async fn of_resource(
    State(admin): State<Admin>,
    _: Allowed<ToGet>,
    In(ResourceName(name)): In<ResourceName>,
    Parameters(FewChanges { limit, before }): Parameters<FewChanges>,
) -> Result<Json<Changes<ResourceChange>>, ApiError> {
    let owner = Some(name.as_str().to_owned());
    let query = HistoryQuery { owner, item: None, before, limit: limit.0 };
    let changes = admin.records().resources().history(&query).await?;
    let next = next(query.limit, changes.iter().map(|change| change.number));
    let changes = changes.iter().map(ResourceChange::of).collect();
    Ok(Json(Changes { changes, next }))
}
