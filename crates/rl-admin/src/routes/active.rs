use axum::Json;
use axum::extract::State;

use crate::error::Refusals;
use crate::read::{Allowed, ConsumerId, HourOfDay, In, ToGet};
use crate::wire::ActiveRateLimits;
use crate::{Admin, ApiError};

/// What the records of a consumer add up to now: what is enforced
#[utoipa::path(get, path = "/management/consumers/{CONSUMER_ID}/active-rate-limits",
    tag = "active limits", params(In<ConsumerId>),
    responses((status = OK, body = ActiveRateLimits), Refusals))]
pub(super) async fn now(
    State(admin): State<Admin>,
    _: Allowed<ToGet>,
    In(ConsumerId(consumer)): In<ConsumerId>,
) -> Result<Json<ActiveRateLimits>, ApiError> {
    let now = admin.now();
    let active = admin.records().active_limits(consumer.as_str(), now).await?;
    Ok(Json(ActiveRateLimits::of(&active, now)))
}

/// What all records add up to that are active at some time of an hour
///
/// They need not be active together: what is enforced at an instant may be less.
#[utoipa::path(get,
    path = "/management/consumers/{CONSUMER_ID}/active-rate-limits/{DATE_WITH_HOUR}",
    tag = "active limits", params(In<ConsumerId>, In<HourOfDay>),
    responses((status = OK, body = ActiveRateLimits), Refusals))]
pub(super) async fn hour(
    State(admin): State<Admin>,
    _: Allowed<ToGet>,
    In(ConsumerId(consumer)): In<ConsumerId>,
    In(HourOfDay(hour)): In<HourOfDay>,
) -> Result<Json<ActiveRateLimits>, ApiError> {
    let (start, end) = (hour.start, hour.end());
    let active = admin.records().active_limits_during(consumer.as_str(), start, end).await?;
    Ok(Json(ActiveRateLimits::of(&active, start)))
}
