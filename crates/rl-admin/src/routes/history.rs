use axum::Json;
use axum::extract::State;
use rl_records::HistoryQuery;

use crate::error::Refusals;
use crate::read::{
    Allowed, ConsumerId, FewChanges, History, In, Parameters, RateLimitingId, ResourceName, ToGet,
};
use crate::wire::{Changes, RecordChange, ResourceChange};
use crate::{Admin, ApiError};

fn query(history: &History, of: Option<&str>, item: Option<String>) -> HistoryQuery {
    let of = of.map(ToOwned::to_owned);
    HistoryQuery { of, item, before: history.before, limit: history.limit.0 }
}

async fn page(admin: &Admin, query: HistoryQuery) -> Result<Json<Changes<RecordChange>>, ApiError> {
    let changes = admin.records().history(&query).await?;
    let next = next(&query, &changes);
    let changes = changes.iter().map(RecordChange::of).collect();
    Ok(Json(Changes { changes, next }))
}

/// A page that is not full is the last.
fn next<T>(query: &HistoryQuery, changes: &[rl_records::Change<T>]) -> Option<i64> {
    let is_full = changes.len() == query.limit as usize;
    changes.last().filter(|_| is_full).map(|change| change.number)
}

/// Changes of the records of all consumers, the newest first
#[utoipa::path(get, path = "/management/history", tag = "history", params(History),
    responses((status = OK, body = Changes<RecordChange>), Refusals))]
pub(super) async fn of_all(
    State(admin): State<Admin>,
    _: Allowed<ToGet>,
    Parameters(history): Parameters<History>,
) -> Result<Json<Changes<RecordChange>>, ApiError> {
    page(&admin, query(&history, None, None)).await
}

/// Changes of the records of a consumer, the newest first
#[utoipa::path(get, path = "/management/consumers/{CONSUMER_ID}/history", tag = "history",
    params(In<ConsumerId>, History),
    responses((status = OK, body = Changes<RecordChange>), Refusals))]
pub(super) async fn of_consumer(
    State(admin): State<Admin>,
    _: Allowed<ToGet>,
    In(ConsumerId(consumer)): In<ConsumerId>,
    Parameters(history): Parameters<History>,
) -> Result<Json<Changes<RecordChange>>, ApiError> {
    page(&admin, query(&history, Some(consumer.as_str()), None)).await
}

/// Changes of a record, the newest first; also of one that is deleted
#[utoipa::path(get,
    path = "/management/consumers/{CONSUMER_ID}/consumer/rate-limits/{RATE_LIMITING_ID}/history",
    tag = "history", params(In<ConsumerId>, In<RateLimitingId>, History),
    responses((status = OK, body = Changes<RecordChange>), Refusals))]
pub(super) async fn of_record(
    State(admin): State<Admin>,
    _: Allowed<ToGet>,
    In(ConsumerId(consumer)): In<ConsumerId>,
    In(RateLimitingId(id)): In<RateLimitingId>,
    Parameters(history): Parameters<History>,
) -> Result<Json<Changes<RecordChange>>, ApiError> {
    page(&admin, query(&history, Some(consumer.as_str()), Some(id.to_string()))).await
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
    let of = Some(name.as_str().to_owned());
    let query = HistoryQuery { of, item: None, before, limit: limit.0 };
    let changes = admin.records().resource_history(&query).await?;
    let next = next(&query, &changes);
    let changes = changes.iter().map(ResourceChange::of).collect();
    Ok(Json(Changes { changes, next }))
}
