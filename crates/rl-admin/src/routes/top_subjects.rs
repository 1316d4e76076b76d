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
/// shown only as a keyed hash. An actor of some applications gets those of them that are among the
/// 32 first of all subjects.
#[utoipa::path(get, path = "/management/top-subjects", tag = "subjects", params(TopQuery),
    responses((status = OK, body = TopSubjects), ErrorResponses))]
pub(super) async fn list(
    State(context): State<Arc<Context>>,
    Allowed { actor, .. }: Allowed<CanGetRateLimits>,
    QueryParams(TopQuery { by, limit, own: _ }): QueryParams<TopQuery>,
) -> Result<Json<TopSubjects>, ApiError> {
    let entries = context.last_hour.top(by).into_iter();
    let entries = entries.filter(|entry| actor.sees(&entry.subject)).take(limit.0 as usize);
    let has_ids = actor.has(Role::CanSeeSubjectIds);
    Ok(Json(TopSubjects::of(by, entries, has_ids, context.is_stand_alone)))
}
