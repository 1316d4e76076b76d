use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use rl_records::{AuditQuery, HistoryQuery, RecordId};

use super::subscriptions;
use crate::context::Context;
use crate::error::ApiError;
use crate::error::ErrorResponses;
use crate::read::{
    Allowed, CanGetRateLimits, ConsumerId, FewChanges, History, PathParam, QueryParams,
    RateLimitingId, ResourceName, SubscriptionIdParam,
};
use crate::wire::{Changes, HistoryEntry, ResourceChange};

async fn page(
    context: &Context,
    consumer: Option<String>,
    history: History,
) -> Result<Json<Changes<HistoryEntry>>, ApiError> {
    let limit = history.limit.0;
    let query = AuditQuery { consumer, consumers: history.own, before: history.before, limit };
    let entries = context.records.audit_log().entries(&query).await?;
    let next = next(limit, entries.iter().map(|entry| entry.number));
    let changes = entries.into_iter().map(HistoryEntry::of).collect();
    Ok(Json(Changes { changes, next }))
}

/// Returns the cursor of the next page. Only a full page has a next page.
fn next(limit: u32, numbers: impl ExactSizeIterator<Item = i64>) -> Option<i64> {
    let is_full = numbers.len() == limit as usize;
    numbers.last().filter(|_| is_full)
}

/// Lists all changes, the newest first
///
/// The list contains changes of records, blocks, subscriptions, tiers and their members, resets of
/// counters, and requests that were refused because of a missing role. Changes of limits of resources have a
/// separate history.
#[utoipa::path(get, path = "/management/history", tag = "history", params(History),
    responses((status = OK, body = Changes<HistoryEntry>), ErrorResponses))]
pub(super) async fn of_all(
    State(context): State<Arc<Context>>,
    _: Allowed<CanGetRateLimits>,
    QueryParams(history): QueryParams<History>,
) -> Result<Json<Changes<HistoryEntry>>, ApiError> {
    page(&context, None, history).await
}

/// Lists the changes of a consumer, the newest first
///
/// The list contains changes of the consumer's records, blocks, subscriptions and tier, and resets
/// of its counters. It also contains requests about the consumer that were refused because of a missing
/// role.
#[utoipa::path(get, path = "/management/consumers/{CONSUMER_ID}/history", tag = "history",
    params(PathParam<ConsumerId>, History),
    responses((status = OK, body = Changes<HistoryEntry>), ErrorResponses))]
pub(super) async fn of_consumer(
    State(context): State<Arc<Context>>,
    _: Allowed<CanGetRateLimits>,
    PathParam(ConsumerId(consumer)): PathParam<ConsumerId>,
    QueryParams(history): QueryParams<History>,
) -> Result<Json<Changes<HistoryEntry>>, ApiError> {
    page(&context, Some(consumer.as_str().to_owned()), history).await
}

/// Lists the changes of a record, the newest first, even after it was deleted
#[utoipa::path(get,
    path = "/management/consumers/{CONSUMER_ID}/consumer/rate-limits/{RATE_LIMITING_ID}/history",
    tag = "history", params(PathParam<ConsumerId>, PathParam<RateLimitingId>, History),
    responses((status = OK, body = Changes<HistoryEntry>), ErrorResponses))]
pub(super) async fn of_record(
    State(context): State<Arc<Context>>,
    _: Allowed<CanGetRateLimits>,
    PathParam(ConsumerId(consumer)): PathParam<ConsumerId>,
    PathParam(RateLimitingId(id)): PathParam<RateLimitingId>,
    QueryParams(history): QueryParams<History>,
) -> Result<Json<Changes<HistoryEntry>>, ApiError> {
    record_page(&context, Some(consumer.as_str().to_owned()), id, &history).await
}

/// Lists the changes of a record of any subject, the newest first, even after it was deleted
#[utoipa::path(get, path = "/management/limits/{RATE_LIMITING_ID}/history", tag = "history",
    params(PathParam<RateLimitingId>, History),
    responses((status = OK, body = Changes<HistoryEntry>), ErrorResponses))]
pub(super) async fn of_limits(
    State(context): State<Arc<Context>>,
    _: Allowed<CanGetRateLimits>,
    PathParam(RateLimitingId(id)): PathParam<RateLimitingId>,
    QueryParams(history): QueryParams<History>,
) -> Result<Json<Changes<HistoryEntry>>, ApiError> {
    record_page(&context, None, id, &history).await
}

async fn record_page(
    context: &Context,
    owner: Option<String>,
    id: RecordId,
    history: &History,
) -> Result<Json<Changes<HistoryEntry>>, ApiError> {
    let (item, limit) = (Some(id.to_string()), history.limit.0);
    let query = HistoryQuery { owner, item, before: history.before, limit };
    let changes = context.records.history(&query).await?;
    let next = next(limit, changes.iter().map(|change| change.number));
    let changes = changes.into_iter().map(HistoryEntry::of_record).collect();
    Ok(Json(Changes { changes, next }))
}

/// Lists the changes of a subscription, the newest first
#[utoipa::path(get, path = "/management/subscriptions/{SUBSCRIPTION_ID}/history", tag = "history",
    params(PathParam<SubscriptionIdParam>, History),
    responses((status = OK, body = Changes<HistoryEntry>), ErrorResponses))]
pub(super) async fn of_subscription(
    State(context): State<Arc<Context>>,
    _: Allowed<CanGetRateLimits>,
    PathParam(SubscriptionIdParam(id)): PathParam<SubscriptionIdParam>,
    QueryParams(history): QueryParams<History>,
) -> Result<Json<Changes<HistoryEntry>>, ApiError> {
    let owner = subscriptions::find(&context, id).await?.content.consumer_id;
    let (item, limit) = (Some(id.to_string()), history.limit.0);
    let query = HistoryQuery { owner: Some(owner), item, before: history.before, limit };
    let changes = context.records.subscriptions().history(&query).await?;
    let next = next(limit, changes.iter().map(|change| change.number));
    let changes = changes.into_iter().map(HistoryEntry::of_subscription).collect();
    Ok(Json(Changes { changes, next }))
}

/// Lists the changes of the limit of a resource, the newest first
#[utoipa::path(get, path = "/management/resources/{RESOURCE}/history", tag = "history",
    params(PathParam<ResourceName>, FewChanges),
    responses((status = OK, body = Changes<ResourceChange>), ErrorResponses))]
pub(super) async fn of_resource(
    State(context): State<Arc<Context>>,
    Allowed { actor, .. }: Allowed<CanGetRateLimits>,
    PathParam(ResourceName(name)): PathParam<ResourceName>,
    QueryParams(FewChanges { limit, before, own: _ }): QueryParams<FewChanges>,
) -> Result<Json<Changes<ResourceChange>>, ApiError> {
    let (owner, limit) = (Some(name.as_str().to_owned()), limit.0);
    let mut query = HistoryQuery { owner, item: None, before, limit };
    let mut seen = Vec::new();
    loop {
        let changes = context.records.resources().history(&query).await?;
        query.before = next(limit, changes.iter().map(|change| change.number));
        // The actor may not see all of them, so a full page may need several.
        for change in &changes {
            let visible = ResourceChange::of(change, &actor);
            seen.extend(visible.map(|visible| (change.number, visible)));
        }
        if query.before.is_none() || seen.len() >= limit as usize {
            break;
        }
    }
    seen.truncate(limit as usize);
    let next = next(limit, seen.iter().map(|(number, _)| *number));
    let changes = seen.into_iter().map(|(_, change)| change).collect();
    Ok(Json(Changes { changes, next }))
}
