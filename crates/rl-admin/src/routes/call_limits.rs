use axum::Json;
use axum::extract::State;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use utoipa::ToSchema;

use super::answer::{self, Edit};
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
    let usage =
        admin.limiter().usage_with_policy(all_periods(), &answer::consumer(&consumer)).await;
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
/// `bank_id`, or creates it. If there are several, the answer is 409 and names them.
/// With `If-Match`, only if nobody changed the record since: 412 otherwise. Limits that block or unblock
/// the consumer need the role for that, too.
#[utoipa::path(put, path = "/management/consumers/{CONSUMER_ID}/consumer/call-limits",
    tag = "call limits", params(In<ConsumerId>, IfMatch), request_body = RateLimitInput,
    responses((status = OK, body = CallLimitsSet), ChangeRefusals))]
pub(super) async fn put(
    State(admin): State<Admin>,
    Allowed { actor, asked, .. }: Allowed<ToSet>,
    In(ConsumerId(consumer)): In<ConsumerId>,
    if_match: IfMatch,
    Body(input): Body<RateLimitInput>,
) -> Result<Response, ApiError> {
    let edit = Edit { admin: &admin, actor: &actor, asked: &asked, if_match: &if_match };
    let content = input.into_content(&consumer);
    let put = admin.records().upsert(content, edit.expected(), edit.author()).await;
    let record =
        put.map_err(|error| edit.not_made(error, || ApiError::not_found("a record to set")))?;
    let id = record.id.to_string();
    audit::record_changed(&actor, "set", consumer.as_str(), &id, record.revision);
    let tag = [(header::ETAG, etag(record.revision))];
    let warning = answer::warning(&admin, &record).await;
    let record = RateLimit::of(&record).with_warning(warning);
    Ok((tag, Json(CallLimitsSet { record, current_state: None })).into_response())
}
