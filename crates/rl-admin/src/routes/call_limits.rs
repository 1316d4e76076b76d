use axum::Json;
use axum::extract::State;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use utoipa::ToSchema;

use super::answer;
use crate::error::{ChangeRefusals, Refusals, etag};
use crate::read::{Allowed, Body, ConsumerId, IfMatch, In, ToRead, ToSet};
use crate::wire::{CallLimitsAndState, CallState, Limits, RateLimit, RateLimitInput, all_periods};
use crate::{Admin, ApiError, audit};

/// The limits that hold for a consumer, and what it has used
#[utoipa::path(get, path = "/management/consumers/{CONSUMER_ID}/consumer/call-limits",
    tag = "call limits", params(In<ConsumerId>),
    responses((status = OK, body = CallLimitsAndState), Refusals))]
pub(super) async fn read(
    State(admin): State<Admin>,
    _: Allowed<ToRead>,
    In(ConsumerId(consumer)): In<ConsumerId>,
) -> Result<Json<CallLimitsAndState>, ApiError> {
    let active = admin.records().active_limits(consumer.as_str(), admin.now()).await?;
    let usage = admin.limiter().usage_under(all_periods(), &answer::consumer(&consumer)).await;
    let state = usage.ok().map(|usage| CallState::of_each(&usage));
    Ok(Json(CallLimitsAndState {
        limits: Limits::of(&active.limits()),
        current_state: state.clone(),
        redis_call_limit: state,
    }))
}

/// The record that was set.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct CallLimitsSet {
    #[serde(flatten)]
    record: RateLimit,
    /// Always `null`: a change says nothing about what is used.
    current_state: Option<CallState>,
}

/// Sets the limits of a consumer in one step
///
/// Writes over the one record that the consumer has for the same `api_name`, `api_version` and
/// `bank_id`, or creates it. If there are several it is not clear which is meant: 409.
#[utoipa::path(put, path = "/management/consumers/{CONSUMER_ID}/consumer/call-limits",
    tag = "call limits", params(In<ConsumerId>), request_body = RateLimitInput,
    responses((status = OK, body = CallLimitsSet), ChangeRefusals))]
pub(super) async fn put(
    State(admin): State<Admin>,
    Allowed { actor, .. }: Allowed<ToSet>,
    In(ConsumerId(consumer)): In<ConsumerId>,
    seen: IfMatch,
    Body(input): Body<RateLimitInput>,
) -> Result<Response, ApiError> {
    let revisions = match seen {
        IfMatch::Absent if admin.requires_if_match() => return Err(ApiError::without_if_match()),
        IfMatch::OneOf(revisions) => Some(revisions),
        IfMatch::Absent | IfMatch::Any => None,
    };
    let content = input.into_content(&consumer);
    let put = admin.records().put(content, revisions.as_deref(), actor.name()).await;
    let record = put.map_err(answer::not_made)?;
    audit::changed(&actor, "set", consumer.as_str(), &record.id.to_string(), record.revision);
    let tag = [(header::ETAG, etag(record.revision))];
    let set = CallLimitsSet { record: RateLimit::of(&record), current_state: None };
    Ok((tag, Json(set)).into_response())
}
