use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use rl_core::FailureKind;
use serde::Serialize;
use utoipa::ToSchema;

use crate::error::Refusals;
use crate::read::{Allowed, In, LimitName, OfSubject, ToGet, ToReset, period_of};
use crate::wire::{OTHER_PROGRAM, PoliciesOf, Standing, policy_text};
use crate::{Admin, ApiError, audit};

/// Where a subject stands.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct Usage {
    /// The subject as the limiter counts it: an IPv6 address by its network.
    #[schema(example = "ip/2001:db8::/64")]
    subject: String,
    /// Its policy as text, or `unlimited`.
    #[schema(example = "second=10/second, minute=100/minute")]
    policy: Option<String>,
    /// Whose policy this is.
    policies_of: PoliciesOf,
    /// A restriction of this answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    note: Option<&'static str>,
    /// Each limit of it.
    limits: Vec<Standing>,
}

/// Where a subject stands under each of its limits
///
/// Nothing is charged.
#[utoipa::path(get, path = "/management/subjects/{REALM}/{SUBJECT_ID}/usage", tag = "subjects",
    params(OfSubject), responses((status = OK, body = Usage), Refusals))]
pub(super) async fn read(
    State(admin): State<Admin>,
    _: Allowed<ToGet>,
    OfSubject(subject): OfSubject,
) -> Result<Json<Usage>, ApiError> {
    let usage = admin.limiter().usage(&subject).await?;
    let is_alone = admin.is_stand_alone();
    Ok(Json(Usage {
        subject: format!("{}/{}", subject.realm().as_str(), subject.id()),
        policy: policy_text(&usage),
        policies_of: if is_alone { PoliciesOf::ThisServer } else { PoliciesOf::Service },
        note: is_alone.then_some(OTHER_PROGRAM),
        limits: usage.limits().map(Standing::of).collect(),
    }))
}

/// Forgets all that a subject has used
#[utoipa::path(delete, path = "/management/subjects/{REALM}/{SUBJECT_ID}/usage", tag = "subjects",
    params(OfSubject), responses((status = NO_CONTENT), Refusals))]
pub(super) async fn reset(
    State(admin): State<Admin>,
    Allowed { actor, .. }: Allowed<ToReset>,
    OfSubject(subject): OfSubject,
) -> Result<StatusCode, ApiError> {
    admin.limiter().reset(&subject).await?;
    audit::reset(&admin, &actor, &subject, None).await;
    Ok(StatusCode::NO_CONTENT)
}

/// Forgets what a subject has used of one limit
#[utoipa::path(delete, path = "/management/subjects/{REALM}/{SUBJECT_ID}/usage/{LIMIT}",
    tag = "subjects", params(OfSubject, In<LimitName>),
    responses((status = NO_CONTENT), Refusals))]
pub(super) async fn reset_limit(
    State(admin): State<Admin>,
    Allowed { actor, .. }: Allowed<ToReset>,
    OfSubject(subject): OfSubject,
    In(LimitName(limit)): In<LimitName>,
) -> Result<StatusCode, ApiError> {
    // A period may be called `minute` or `per_minute`, as in call-counters.
    let short = period_of(limit.as_str()).map(|period| period.period().to_string());
    let names = std::iter::once(limit.as_str()).chain(short.as_deref());
    for name in names {
        match admin.limiter().reset_limit(&subject, name).await {
            Ok(()) => {
                audit::reset(&admin, &actor, &subject, Some(name)).await;
                return Ok(StatusCode::NO_CONTENT);
            }
            Err(error) if error.kind() == FailureKind::Unsupported => {}
            Err(error) => return Err(error.into()),
        }
    }
    Err(ApiError::not_found(format!("a limit called {} of this subject", limit.as_str())))
}
