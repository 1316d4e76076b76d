use std::sync::Arc;

use axum::Json;
use axum::extract::State;

use crate::access::Role;
use crate::context::Context;
use crate::error::ApiError;
use crate::error::ErrorResponses;
use crate::read::{Allowed, CanGetRateLimits, QueryParams, TopQuery};
use crate::wire::TopSubjects;

/// Lists the subjects with the most denials, or with the most granted units
///
/// The numbers are estimates of this process. Without the role `CanSeeSubjectIds`, subjects are
/// shown only as a keyed hash.
#[utoipa::path(get, path = "/management/top-subjects", tag = "subjects", params(TopQuery),
    responses((status = OK, body = TopSubjects), ErrorResponses))]
pub(super) async fn list(
    State(context): State<Arc<Context>>,
    Allowed { actor, .. }: Allowed<CanGetRateLimits>,
    QueryParams(TopQuery { by, limit }): QueryParams<TopQuery>,
) -> Result<Json<TopSubjects>, ApiError> {
    let entries = context.last_hour.top(by).into_iter().take(limit.0 as usize);
    let has_ids = actor.has(Role::CanSeeSubjectIds);
    Ok(Json(TopSubjects::of(by, entries, has_ids, context.is_stand_alone)))
}
