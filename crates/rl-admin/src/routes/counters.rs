use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use rl_core::StoreError;
use rl_core::{FailureKind, Subject};
use rl_records::CallPeriod;
use serde::Serialize;
use utoipa::ToSchema;

use super::answer;
use crate::error::Refusals;
use crate::read::{Allowed, ConsumerId, In, PeriodName, ToGet, ToReset};
use crate::wire::{ActiveRateLimits, CallCounter, CallCounters, Periods, all_periods, one_period};
use crate::{Admin, ApiError, audit};

/// The counters of a consumer in all six periods
///
/// Includes periods that have no limit at present. The status of each counter says whether it cannot be
/// reached, or is damaged.
#[utoipa::path(get, path = "/management/consumers/{CONSUMER_ID}/call-counters",
    tag = "counters", params(In<ConsumerId>),
    responses((status = OK, body = Periods<CallCounter>), Refusals))]
pub(super) async fn read(
    State(admin): State<Admin>,
    _: Allowed<ToGet>,
    In(ConsumerId(consumer)): In<ConsumerId>,
) -> Json<CallCounters> {
    Json(counters(&admin, &answer::consumer(&consumer)).await)
}

async fn counters(admin: &Admin, subject: &Subject) -> CallCounters {
    let limiter = admin.limiter();
    let kind = match limiter.usage_with_policy(all_periods(), subject).await {
        Ok(usage) => return CallCounter::of_each(|_| Ok(&usage)),
        Err(error) => error.kind(),
    };
    let (hash, cause) = (subject.redacted(), kind.as_str());
    tracing::warn!(target: "rl_admin", kind = cause, subject = %hash, "counters cannot be read");
    if kind != FailureKind::Corrupt {
        return CallCounter::of_each(|_| Err(kind));
    }
    // Where each period has a counter of its own, the undamaged ones can still be read.
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
    tag = "counters", params(In<ConsumerId>),
    responses((status = NO_CONTENT), Refusals))]
pub(super) async fn reset(
    State(admin): State<Admin>,
    Allowed { actor, .. }: Allowed<ToReset>,
    In(ConsumerId(consumer)): In<ConsumerId>,
) -> Result<StatusCode, ApiError> {
    let subject = answer::consumer(&consumer);
    admin.limiter().reset_with_policy(all_periods(), &subject, None).await?;
    audit::reset(&admin, &actor, &subject, None).await;
    Ok(StatusCode::NO_CONTENT)
}

/// Resets the counter of one period
#[utoipa::path(delete, path = "/management/consumers/{CONSUMER_ID}/call-counters/{PERIOD}",
    tag = "counters", params(In<ConsumerId>, In<PeriodName>),
    responses((status = NO_CONTENT), Refusals))]
pub(super) async fn reset_period(
    State(admin): State<Admin>,
    Allowed { actor, .. }: Allowed<ToReset>,
    In(ConsumerId(consumer)): In<ConsumerId>,
    In(PeriodName(period)): In<PeriodName>,
) -> Result<StatusCode, ApiError> {
    let subject = answer::consumer(&consumer);
    let period = period.period().to_string();
    let reset = admin.limiter().reset_with_policy(all_periods(), &subject, Some(&period)).await;
    reset.map_err(|error: StoreError| ApiError::from(error))?;
    audit::reset(&admin, &actor, &subject, Some(&period)).await;
    Ok(StatusCode::NO_CONTENT)
}

/// A consumer at a glance.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct Overview {
    consumer_id: String,
    active_rate_limits: ActiveRateLimits,
    call_counters: Periods<CallCounter>,
}

/// What holds for a consumer now, and what it has used
#[utoipa::path(get, path = "/management/consumers/{CONSUMER_ID}", tag = "active limits",
    params(In<ConsumerId>), responses((status = OK, body = Overview), Refusals))]
pub(super) async fn overview(
    State(admin): State<Admin>,
    _: Allowed<ToGet>,
    In(ConsumerId(consumer)): In<ConsumerId>,
) -> Result<Json<Overview>, ApiError> {
    let now = admin.now();
    let active = admin.records().active_limits(consumer.as_str(), now).await?;
    Ok(Json(Overview {
        consumer_id: consumer.as_str().to_owned(),
        active_rate_limits: ActiveRateLimits::of(&active, now),
        call_counters: counters(&admin, &answer::consumer(&consumer)).await,
    }))
}
