use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use rl_core::{FailureKind, Subject};
use rl_records::CallPeriod;
use serde::Serialize;
use utoipa::ToSchema;

use super::responses;
use crate::audit;
use crate::context::Context;
use crate::error::ApiError;
use crate::error::ErrorResponses;
use crate::read::{
    Allowed, CanGetRateLimits, CanResetCallCounters, ConsumerId, PathParam, PeriodName,
};
use crate::wire::{ActiveRateLimits, CallCounter, CallCounters, Periods, all_periods, one_period};

/// Reports the counters of a consumer in all six periods
///
/// Periods without a limit are included. The status of each counter says whether it is unavailable
/// or damaged.
#[utoipa::path(get, path = "/management/consumers/{CONSUMER_ID}/call-counters",
    tag = "counters", params(PathParam<ConsumerId>),
    responses((status = OK, body = Periods<CallCounter>), ErrorResponses))]
pub(super) async fn read(
    State(context): State<Arc<Context>>,
    _: Allowed<CanGetRateLimits>,
    PathParam(ConsumerId(consumer)): PathParam<ConsumerId>,
) -> Json<CallCounters> {
    Json(counters(&context, &responses::consumer(&consumer)).await)
}

async fn counters(context: &Context, subject: &Subject) -> CallCounters {
    let limiter = &context.limiter;
    let kind = match limiter.usage_with_policy(all_periods(), subject).await {
        Ok(usage) => return CallCounter::of_each(|_| Ok(&usage)),
        Err(error) => error.kind(),
    };
    let (hash, cause) = (subject.redacted(), kind.as_str());
    tracing::warn!(target: "rl_admin", kind = cause, subject = %hash, "counters cannot be read");
    if kind != FailureKind::Corrupt {
        return CallCounter::of_each(|_| Err(kind));
    }
    // If each period has a counter of its own, the undamaged counters can still be read.
    let each = CallPeriod::ALL.map(|period| async move {
        let usage = limiter.usage_with_policy(&one_period(period), subject).await;
        usage.map_err(|error| error.kind())
    });
    let mut known = Vec::with_capacity(each.len());
    for usage in each {
        known.push(usage.await);
    }
    CallCounter::of_each(|period| known[period as usize].as_ref().map_err(|kind| *kind))
}

/// Resets all counters of a consumer
#[utoipa::path(delete, path = "/management/consumers/{CONSUMER_ID}/call-counters",
    tag = "counters", params(PathParam<ConsumerId>),
    responses((status = NO_CONTENT), ErrorResponses))]
pub(super) async fn reset(
    State(context): State<Arc<Context>>,
    Allowed { actor, .. }: Allowed<CanResetCallCounters>,
    PathParam(ConsumerId(consumer)): PathParam<ConsumerId>,
) -> Result<StatusCode, ApiError> {
    let subject = responses::consumer(&consumer);
    context.limiter.reset_with_policy(all_periods(), &subject, None).await?;
    audit::reset(&context, &actor, &subject, None).await;
    Ok(StatusCode::NO_CONTENT)
}

/// Resets the counter of one period
#[utoipa::path(delete, path = "/management/consumers/{CONSUMER_ID}/call-counters/{PERIOD}",
    tag = "counters", params(PathParam<ConsumerId>, PathParam<PeriodName>),
    responses((status = NO_CONTENT), ErrorResponses))]
pub(super) async fn reset_period(
    State(context): State<Arc<Context>>,
    Allowed { actor, .. }: Allowed<CanResetCallCounters>,
    PathParam(ConsumerId(consumer)): PathParam<ConsumerId>,
    PathParam(PeriodName(period)): PathParam<PeriodName>,
) -> Result<StatusCode, ApiError> {
    let subject = responses::consumer(&consumer);
    let period = period.period().to_string();
    context.limiter.reset_with_policy(all_periods(), &subject, Some(&period)).await?;
    audit::reset(&context, &actor, &subject, Some(&period)).await;
    Ok(StatusCode::NO_CONTENT)
}

/// The summary of a consumer.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct Overview {
    consumer_id: String,
    active_rate_limits: ActiveRateLimits,
    call_counters: Periods<CallCounter>,
}

/// Reports the active limits and the counters of a consumer
#[utoipa::path(get, path = "/management/consumers/{CONSUMER_ID}", tag = "active limits",
    params(PathParam<ConsumerId>), responses((status = OK, body = Overview), ErrorResponses))]
pub(super) async fn overview(
    State(context): State<Arc<Context>>,
    _: Allowed<CanGetRateLimits>,
    PathParam(ConsumerId(consumer)): PathParam<ConsumerId>,
) -> Result<Json<Overview>, ApiError> {
    let now = context.now();
    let active = context.records.active_limits(consumer.as_str(), now).await?;
    Ok(Json(Overview {
        consumer_id: consumer.as_str().to_owned(),
        active_rate_limits: ActiveRateLimits::of(&active, now),
        call_counters: counters(&context, &responses::consumer(&consumer)).await,
    }))
}
