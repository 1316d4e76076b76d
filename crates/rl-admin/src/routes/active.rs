use std::sync::Arc;

use axum::Json;
use axum::extract::State;

use super::responses;
use crate::context::Context;
use crate::error::ApiError;
use crate::error::ErrorResponses;
use crate::read::{Allowed, CanGetRateLimits, ConsumerId, HourOfDay, PathParam};
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
    Ok(Json(ActiveRateLimits::of(&active, now, applied_by(&context, &consumer))))
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
    Ok(Json(ActiveRateLimits::of(&active, start, applied_by(&context, &consumer))))
}

/// Returns the names of the rules that look the limits of a consumer up. Returns `None` if the
/// limiter has no rules.
pub(super) fn applied_by(context: &Context, consumer: &Name) -> Option<Vec<String>> {
    context.limiter.rule_names()?;
    let rules = context.limiter.rules_of(&[responses::consumer(consumer)], None).into_iter();
    Some(rules.filter(|rule| rule.has_source).map(|rule| rule.name).collect())
}
