use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use rl_core::ResetError;
use serde::Serialize;
use utoipa::ToSchema;

use crate::audit;
use crate::context::Context;
use crate::error::ApiError;
use crate::error::ErrorResponses;
use crate::read::{
    Allowed, CanGetRateLimits, CanResetCallCounters, LimitName, PathParam, SubjectParams, period_of,
};
use crate::wire::{LimitUsage, OTHER_PROGRAM, PoliciesOf, policy_text};

/// The usage of a subject.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct Usage {
    /// The subject in the form in which the limiter counts it; for an IPv6 address, this is its
    /// network.
    #[schema(example = "ip/2001:db8::/64")]
    subject: String,
    /// The policy as text, or `unlimited`.
    #[schema(example = "second=10/second, minute=100/minute")]
    policy: Option<String>,
    /// The program whose policy this is.
    policies_of: PoliciesOf,
    /// A restriction that applies to this answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    note: Option<&'static str>,
    /// The usage of each limit.
    limits: Vec<LimitUsage>,
}

/// Reports the usage of each limit of a subject
///
/// Charges nothing.
#[utoipa::path(get, path = "/management/subjects/{REALM}/{SUBJECT_ID}/usage", tag = "subjects",
    params(SubjectParams), responses((status = OK, body = Usage), ErrorResponses))]
pub(super) async fn read(
    State(context): State<Arc<Context>>,
    _: Allowed<CanGetRateLimits>,
    SubjectParams(subject): SubjectParams,
) -> Result<Json<Usage>, ApiError> {
    let usage = context.limiter.usage(&subject).await?;
    let is_alone = context.is_stand_alone;
    Ok(Json(Usage {
        subject: format!("{}/{}", subject.realm().as_str(), subject.id()),
        policy: policy_text(&usage),
        policies_of: if is_alone { PoliciesOf::ThisServer } else { PoliciesOf::Service },
        note: is_alone.then_some(OTHER_PROGRAM),
        limits: usage.limits().map(LimitUsage::of).collect(),
    }))
}

/// Resets all counters of a subject
#[utoipa::path(delete, path = "/management/subjects/{REALM}/{SUBJECT_ID}/usage", tag = "subjects",
    params(SubjectParams), responses((status = NO_CONTENT), ErrorResponses))]
pub(super) async fn reset(
    State(context): State<Arc<Context>>,
    Allowed { actor, .. }: Allowed<CanResetCallCounters>,
    SubjectParams(subject): SubjectParams,
) -> Result<StatusCode, ApiError> {
    context.limiter.reset(&subject).await?;
    audit::reset(&context, &actor, &subject, None).await;
    Ok(StatusCode::NO_CONTENT)
}

/// Resets the counter of one limit of a subject
#[utoipa::path(delete, path = "/management/subjects/{REALM}/{SUBJECT_ID}/usage/{LIMIT}",
    tag = "subjects", params(SubjectParams, PathParam<LimitName>),
    responses((status = NO_CONTENT), ErrorResponses))]
pub(super) async fn reset_limit(
    State(context): State<Arc<Context>>,
    Allowed { actor, .. }: Allowed<CanResetCallCounters>,
    SubjectParams(subject): SubjectParams,
    PathParam(LimitName(limit)): PathParam<LimitName>,
) -> Result<StatusCode, ApiError> {
    // The path may contain `minute` or `per_minute` for the limit of a minute, like the paths of
    // call counters.
    let short = period_of(limit.as_str()).map(|period| period.period().to_string());
    let names = std::iter::once(limit.as_str()).chain(short.as_deref());
    for name in names {
        match context.limiter.reset_limit(&subject, name).await {
            Ok(()) => {
                audit::reset(&context, &actor, &subject, Some(name)).await;
                return Ok(StatusCode::NO_CONTENT);
            }
            Err(ResetError::UnknownLimit(_)) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Err(ApiError::not_found(format!("a limit called {} of this subject", limit.as_str())))
}
