use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use utoipa::ToSchema;

use crate::access::Actor;
use crate::context::Context;
use crate::error::ApiError;
use crate::error::ErrorResponses;
use crate::read::{
    Allowed, CanGetRateLimits, CanResetCallCounters, LimitName, PathParam, QueryParams, RuleQuery,
    SubjectParams, UsageQuery, period_of,
};
use crate::subject_rules::{LimitNames, RuleFailure, SubjectRules, name_of};
use crate::wire::{LimitUsage, PoliciesOf, policy_text};

/// The usage of a subject.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct Usage {
    /// The subject in the form in which the limiter counts it; for an IPv6 address, this is its
    /// network.
    #[schema(example = "ip/2001:db8::/64")]
    subject: String,
    /// The program whose policies these are.
    policies_of: PoliciesOf,
    /// A restriction that applies to this answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    note: Option<String>,
    /// The usage under each rule that may count the subject. A limiter without rules has one entry.
    rules: Vec<RuleUsage>,
    /// The rules that count the subject only together with another one, such as each consumer on
    /// each route. Their counters are neither included nor reset.
    pairs: Vec<String>,
}

/// The usage of a subject under one rule.
#[derive(Debug, Serialize, ToSchema)]
struct RuleUsage {
    /// The name of the rule; `null` if the limiter has no rules.
    #[schema(example = "consumers")]
    rule: Option<String>,
    /// Whether the rule is in shadow, so that it denies nothing.
    is_shadow: bool,
    /// The tier of the rule whose limits these are; `null` for the limits of requests without a
    /// tier.
    #[schema(required = true, example = "pro")]
    tier: Option<String>,
    /// The policy as text, or `unlimited`; `null` if it is unknown.
    #[schema(example = "second=10/second, minute=100/minute")]
    policy: Option<String>,
    /// The usage of each limit.
    limits: Vec<LimitUsage>,
}

/// Reports the usage of each limit of a subject, under each rule that counts it
///
/// Charges nothing.
#[utoipa::path(get, path = "/management/subjects/{REALM}/{SUBJECT_ID}/usage", tag = "subjects",
    params(SubjectParams, UsageQuery), responses((status = OK, body = Usage), ErrorResponses))]
pub(super) async fn read(
    State(context): State<Arc<Context>>,
    _: Allowed<CanGetRateLimits>,
    SubjectParams(subject): SubjectParams,
    QueryParams(UsageQuery { rule, tier }): QueryParams<UsageQuery>,
) -> Result<Json<Usage>, ApiError> {
    let found = SubjectRules::find(&context, subject, rule.as_deref())?;
    let found = found.in_tier(tier.as_deref())?;
    let mut rules = Vec::with_capacity(found.rules.len());
    for rule in &found.rules {
        let name = rule.as_ref().map(|rule| &*rule.name);
        let usage = found.usage(name).await.map_err(RuleFailure::into_api_error)?;
        let is_shadow = rule.as_ref().is_some_and(|rule| rule.is_shadow);
        rules.push(RuleUsage {
            rule: name.map(ToOwned::to_owned),
            is_shadow,
            tier: rule.as_ref().and_then(|rule| found.tier_of(rule)),
            policy: policy_text(&usage).filter(|_| context.knows_limits(&found.subject, &usage)),
            limits: usage.limits().map(|limit| LimitUsage::of(limit, is_shadow)).collect(),
        });
    }
    Ok(Json(Usage {
        subject: name_of(&found.subject),
        policies_of: PoliciesOf::of(context.is_stand_alone),
        note: found.note(),
        rules,
        pairs: found.pairs,
    }))
}

/// A reset after which other counters of the subject remain, or may remain.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct ResetReport {
    /// The rules under which limits were reset.
    reset: Vec<String>,
    /// The rules that count the subject only together with another one, such as each consumer on
    /// each route. Their counters cannot be found by the subject alone.
    not_reset: Vec<String>,
    /// A restriction that applies to this answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    note: Option<String>,
}

/// Resets all counters of a subject, under each rule that counts it
///
/// If no rule counts the subject, the response is 404. If a rule was not reset, the response is 503
/// and names it.
#[utoipa::path(delete, path = "/management/subjects/{REALM}/{SUBJECT_ID}/usage", tag = "subjects",
    params(SubjectParams, RuleQuery),
    responses((status = NO_CONTENT),
        (status = OK, body = ResetReport, description = "Other counters were not reset, or may exist"),
        ErrorResponses))]
pub(super) async fn reset(
    State(context): State<Arc<Context>>,
    Allowed { actor, .. }: Allowed<CanResetCallCounters>,
    SubjectParams(subject): SubjectParams,
    QueryParams(RuleQuery { rule }): QueryParams<RuleQuery>,
) -> Result<Response, ApiError> {
    let found = SubjectRules::find(&context, subject, rule.as_deref())?;
    respond_to_reset(&context, &actor, &found, None).await
}

/// Resets one limit of a subject, under each rule that has a limit of this name
///
/// If there is none, the response is 404.
#[utoipa::path(delete, path = "/management/subjects/{REALM}/{SUBJECT_ID}/usage/{LIMIT}",
    tag = "subjects", params(SubjectParams, PathParam<LimitName>, RuleQuery),
    responses((status = NO_CONTENT),
        (status = OK, body = ResetReport, description = "Other counters were not reset, or may exist"),
        ErrorResponses))]
pub(super) async fn reset_limit(
    State(context): State<Arc<Context>>,
    Allowed { actor, .. }: Allowed<CanResetCallCounters>,
    SubjectParams(subject): SubjectParams,
    PathParam(LimitName(limit)): PathParam<LimitName>,
    QueryParams(RuleQuery { rule }): QueryParams<RuleQuery>,
) -> Result<Response, ApiError> {
    // The path may contain `minute` or `per_minute` for the limit of a minute, like the paths of
    // call counters.
    let short = period_of(limit.as_str()).map(|period| period.period().to_string());
    let short = short.filter(|short| short != limit.as_str());
    let names = std::iter::once(limit.as_str().to_owned()).chain(short).collect();
    let found = SubjectRules::find(&context, subject, rule.as_deref())?;
    respond_to_reset(&context, &actor, &found, Some(&LimitNames(names))).await
}

/// Resets limits, and responds with 204, or with what was left out or is unknown.
pub(super) async fn respond_to_reset(
    context: &Context,
    actor: &Actor,
    found: &SubjectRules<'_>,
    limit: Option<&LimitNames>,
) -> Result<Response, ApiError> {
    let reset = found.reset(context, actor, limit).await?;
    let note = context.note_on_services();
    if found.pairs.is_empty() && note.is_none() {
        return Ok(StatusCode::NO_CONTENT.into_response());
    }
    let reset = reset.into_iter().map(ToOwned::to_owned).collect();
    Ok(Json(ResetReport { reset, not_reset: found.pairs.clone(), note }).into_response())
}
