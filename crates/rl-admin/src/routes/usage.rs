use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use rl_core::FailureKind;
use serde::Serialize;
use utoipa::ToSchema;

use crate::error::Refusals;
use crate::read::{Allowed, In, LimitName, RealmName, SubjectText, ToGet, ToReset, subject};
use crate::wire::Standing;
use crate::{Admin, ApiError, audit};

/// Where a subject stands.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct Usage {
    /// The policy it is under, as text; `null` if no limit applies.
    #[schema(example = "second=10/second, minute=100/minute")]
    policy: Option<String>,
    /// Each limit of it.
    limits: Vec<Standing>,
}

/// Where a subject stands under each of its limits
///
/// Nothing is charged.
#[utoipa::path(get, path = "/management/subjects/{REALM}/{SUBJECT_ID}/usage", tag = "subjects",
    params(In<RealmName>, In<SubjectText>), responses((status = OK, body = Usage), Refusals))]
pub(super) async fn read(
    State(admin): State<Admin>,
    _: Allowed<ToGet>,
    In(RealmName(realm)): In<RealmName>,
    In(SubjectText(id)): In<SubjectText>,
) -> Result<Json<Usage>, ApiError> {
    let usage = admin.limiter().usage(&subject(realm, &id)).await?;
    let policy = usage.policy().map(ToString::to_string);
    Ok(Json(Usage { policy, limits: usage.limits().map(Standing::of).collect() }))
}

/// Forgets all that a subject has used
#[utoipa::path(delete, path = "/management/subjects/{REALM}/{SUBJECT_ID}/usage", tag = "subjects",
    params(In<RealmName>, In<SubjectText>), responses((status = NO_CONTENT), Refusals))]
pub(super) async fn reset(
    State(admin): State<Admin>,
    Allowed { actor, .. }: Allowed<ToReset>,
    In(RealmName(realm)): In<RealmName>,
    In(SubjectText(id)): In<SubjectText>,
) -> Result<StatusCode, ApiError> {
    let subject = subject(realm, &id);
    admin.limiter().reset(&subject).await?;
    audit::reset(&actor, &subject, None);
    Ok(StatusCode::NO_CONTENT)
}

/// Forgets what a subject has used of one limit
#[utoipa::path(delete, path = "/management/subjects/{REALM}/{SUBJECT_ID}/usage/{LIMIT}",
    tag = "subjects", params(In<RealmName>, In<SubjectText>, In<LimitName>),
    responses((status = NO_CONTENT), Refusals))]
pub(super) async fn reset_limit(
    State(admin): State<Admin>,
    Allowed { actor, .. }: Allowed<ToReset>,
    In(RealmName(realm)): In<RealmName>,
    In(SubjectText(id)): In<SubjectText>,
    In(LimitName(limit)): In<LimitName>,
) -> Result<StatusCode, ApiError> {
    let subject = subject(realm, &id);
    match admin.limiter().reset_limit(&subject, limit.as_str()).await {
        Ok(()) => {}
        Err(error) if error.kind() == FailureKind::Unsupported => {
            let what = format!("a limit called {} of this subject", limit.as_str());
            return Err(ApiError::not_found(what));
        }
        Err(error) => return Err(error.into()),
    }
    audit::reset(&actor, &subject, Some(limit.as_str()));
    Ok(StatusCode::NO_CONTENT)
}
