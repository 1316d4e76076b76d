use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::response::Response;
use rl_core::FailureKind;
use rl_records::CallPeriod;
use serde::Serialize;
use utoipa::ToSchema;

use super::active::active_rate_limits;
use super::responses;
use super::usage::{ResetReport, respond_to_reset};
use crate::context::Context;
use crate::error::ApiError;
use crate::error::ErrorResponses;
use crate::read::{
    Allowed, CanGetRateLimits, CanResetCallCounters, ConsumerId, PathParam, PeriodName,
    QueryParams, RuleQuery, UsageQuery,
};
use crate::subject_rules::{LimitNames, SubjectRules};
use crate::wire::{
    ActiveRateLimits, CallCounter, CallCounters, ConsumerCounters, RuleCounters, all_periods,
    one_period,
};

/// Reports the counters of a consumer in all six periods
///
/// Periods without a limit are included. The status of each counter says whether it is unavailable
/// or damaged. If several rules count the consumer, the first is the one with its records, and
/// `other_rules` has the others.
#[utoipa::path(get, path = "/management/consumers/{CONSUMER_ID}/call-counters",
    tag = "counters", params(PathParam<ConsumerId>, UsageQuery),
    responses((status = OK, body = ConsumerCounters), ErrorResponses))]
pub(super) async fn read(
    State(context): State<Arc<Context>>,
    _: Allowed<CanGetRateLimits>,
    PathParam(ConsumerId(consumer)): PathParam<ConsumerId>,
    QueryParams(UsageQuery { rule, tier }): QueryParams<UsageQuery>,
) -> Result<Json<ConsumerCounters>, ApiError> {
    let subject = responses::consumer(&consumer);
    let found = SubjectRules::find(&context, subject, rule.as_deref())?;
    let found = found.in_tier(tier.as_deref())?;
    Ok(Json(counters_by_rule(&found).await))
}

/// Returns the counters under each rule, those of the main rule first.
async fn counters_by_rule(found: &SubjectRules<'_>) -> ConsumerCounters {
    let Some(main) = found.main() else { return ConsumerCounters::not_counted(found.note()) };
    let name = |index: usize| found.rules[index].as_ref().map(|rule| &*rule.name);
    let mut other_rules = Vec::new();
    for index in (0..found.rules.len()).filter(|index| *index != main) {
        let rule = name(index).unwrap_or_default().to_owned();
        other_rules.push(RuleCounters { rule, counters: counters(found, name(index)).await });
    }
    let counters = counters(found, name(main)).await;
    let rule = name(main).map(ToOwned::to_owned);
    ConsumerCounters { counters, rule, other_rules, note: found.note() }
}

/// Reads the counters under one rule. The status of each counter says why it could not be read.
pub(super) async fn counters(found: &SubjectRules<'_>, rule: Option<&str>) -> CallCounters {
    let kind = match found.usage_with(rule, all_periods()).await {
        Ok(usage) => {
            // The policy may have limits of other kinds than fixed windows.
            let own = found.usage(rule).await.ok();
            return CallCounter::of_each(|period| {
                let own = own.as_ref().filter(|own| CallCounter::has_limit(own, period));
                Ok(own.unwrap_or(&usage))
            });
        }
        Err(error) => error.kind(),
    };
    let (hash, cause) = (found.subject.redacted(), kind.as_str());
    tracing::warn!(target: "rl_admin", kind = cause, subject = %hash, "counters cannot be read");
    if kind != FailureKind::Corrupt {
        return CallCounter::of_each(|_| Err(kind));
    }
    // If each period has a counter of its own, the undamaged counters can still be read.
    let mut known = Vec::with_capacity(CallPeriod::ALL.len());
    for period in CallPeriod::ALL {
        let usage = found.usage_with(rule, &one_period(period)).await;
        known.push(usage.map_err(|error| error.kind()));
    }
    CallCounter::of_each(|period| known[period as usize].as_ref().map_err(|kind| *kind))
}

/// Resets all counters of a consumer, under each rule that counts it
#[utoipa::path(delete, path = "/management/consumers/{CONSUMER_ID}/call-counters",
    tag = "counters", params(PathParam<ConsumerId>, RuleQuery),
    responses((status = NO_CONTENT),
        (status = OK, body = ResetReport, description = "Other counters were not reset, or may exist"),
        ErrorResponses))]
pub(super) async fn reset(
    State(context): State<Arc<Context>>,
    Allowed { actor, .. }: Allowed<CanResetCallCounters>,
    PathParam(ConsumerId(consumer)): PathParam<ConsumerId>,
    QueryParams(RuleQuery { rule }): QueryParams<RuleQuery>,
) -> Result<Response, ApiError> {
    let subject = responses::consumer(&consumer);
    let found = SubjectRules::find(&context, subject, rule.as_deref())?;
    respond_to_reset(&context, &actor, &found, None).await
}

/// Resets the counter of one period, under each rule that counts the consumer in it
#[utoipa::path(delete, path = "/management/consumers/{CONSUMER_ID}/call-counters/{PERIOD}",
    tag = "counters", params(PathParam<ConsumerId>, PathParam<PeriodName>, RuleQuery),
    responses((status = NO_CONTENT),
        (status = OK, body = ResetReport, description = "Other counters were not reset, or may exist"),
        ErrorResponses))]
pub(super) async fn reset_period(
    State(context): State<Arc<Context>>,
    Allowed { actor, .. }: Allowed<CanResetCallCounters>,
    PathParam(ConsumerId(consumer)): PathParam<ConsumerId>,
    PathParam(PeriodName(period)): PathParam<PeriodName>,
    QueryParams(RuleQuery { rule }): QueryParams<RuleQuery>,
) -> Result<Response, ApiError> {
    let subject = responses::consumer(&consumer);
    let found = SubjectRules::find(&context, subject, rule.as_deref())?;
    let names = LimitNames(vec![period.period().to_string()]);
    respond_to_reset(&context, &actor, &found, Some(&names)).await
}

/// The summary of a consumer.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct Overview {
    consumer_id: String,
    active_rate_limits: ActiveRateLimits,
    call_counters: ConsumerCounters,
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
    let subject = responses::consumer(&consumer);
    let found = SubjectRules::find(&context, subject, None)?;
    Ok(Json(Overview {
        consumer_id: consumer.as_str().to_owned(),
        active_rate_limits: active_rate_limits(&context, &consumer, &active, now),
        call_counters: counters_by_rule(&found).await,
    }))
}
