use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use rl_core::time::Timestamp;
use rl_records::ActiveLimits;

use super::responses;
use crate::context::Context;
use crate::error::ApiError;
use crate::error::ErrorResponses;
use crate::read::{Allowed, CanGetRateLimits, ConsumerId, HourOfDay, PathParam};
use crate::subject_rules::rules_with_source;
use crate::wire::{ActiveRateLimits, Name};

/// Reports the active limits of a consumer, as they are enforced now
#[utoipa::path(get, path = "/management/consumers/{CONSUMER_ID}/active-rate-limits",
    tag = "active limits", params(PathParam<ConsumerId>),
    responses((status = OK, body = ActiveRateLimits), ErrorResponses))]
pub(super) async fn now(
    State(context): State<Arc<Context>>,
    _: Allowed<CanGetRateLimits>,
    PathParam(ConsumerId(consumer)): PathParam<ConsumerId>,
) -> Result<Json<ActiveRateLimits>, ApiError> {
    let now = context.now();
    let active = context.records.active_limits(consumer.as_str(), now).await?;
    Ok(Json(active_rate_limits(&context, &consumer, &active, now)))
}

/// Reports the sum of all records that are active at some time of an hour
///
/// The records need not be active at the same time, so the enforced limits may be lower.
#[utoipa::path(get,
    path = "/management/consumers/{CONSUMER_ID}/active-rate-limits/{DATE_WITH_HOUR}",
    tag = "active limits", params(PathParam<ConsumerId>, PathParam<HourOfDay>),
    responses((status = OK, body = ActiveRateLimits), ErrorResponses))]
pub(super) async fn hour(
    State(context): State<Arc<Context>>,
    _: Allowed<CanGetRateLimits>,
    PathParam(ConsumerId(consumer)): PathParam<ConsumerId>,
    PathParam(HourOfDay(hour)): PathParam<HourOfDay>,
) -> Result<Json<ActiveRateLimits>, ApiError> {
    let (start, end) = (hour.start, hour.end());
    let active = context.records.active_limits_during(consumer.as_str(), start, end).await?;
    Ok(Json(active_rate_limits(&context, &consumer, &active, start)))
}

/// Returns the limits of a consumer at a time, and the rules that apply them.
pub(super) fn active_rate_limits(
    context: &Context,
    consumer: &Name,
    active: &ActiveLimits,
    at: Timestamp,
) -> ActiveRateLimits {
    let rules = rules_with_source(context, &responses::consumer(consumer));
    let names = rules.map(|rules| rules.into_iter().map(|rule| rule.name).collect());
    ActiveRateLimits::of(active, at, names, context.note_on_services())
}
