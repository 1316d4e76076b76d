use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use utoipa::ToSchema;

use super::counters::counters;
use super::responses::{self, ChangeRequest};
use crate::audit;
use crate::context::Context;
use crate::error::ApiError;
use crate::error::{ChangeErrorResponses, ErrorResponses, etag};
use crate::read::{
    Allowed, Body, CanReadCallLimits, CanSetCallLimits, ConsumerId, IfMatch, PathParam,
};
use crate::subject_rules::SubjectRules;
use crate::wire::{CallLimitsAndState, CallState, LimitTexts, RateLimit, RateLimitInput};

/// Reports the active limits of a consumer, and its usage
#[utoipa::path(get, path = "/management/consumers/{CONSUMER_ID}/consumer/call-limits",
    tag = "call limits", params(PathParam<ConsumerId>),
    responses((status = OK, body = CallLimitsAndState), ErrorResponses))]
pub(super) async fn read(
    State(context): State<Arc<Context>>,
    _: Allowed<CanReadCallLimits>,
    PathParam(ConsumerId(consumer)): PathParam<ConsumerId>,
) -> Result<Json<CallLimitsAndState>, ApiError> {
    let active = context.records.active_limits(consumer.as_str(), context.now()).await?;
    let found = SubjectRules::find(&context, responses::consumer(&consumer), None)?;
    let main = found.main().map(|index| found.rules[index].as_ref().map(|rule| &*rule.name));
    let state = match main {
        Some(rule) => CallState::of_each(&counters(&found, rule).await),
        None => None,
    };
    Ok(Json(CallLimitsAndState {
        rule: main.flatten().map(ToOwned::to_owned),
        limits: LimitTexts::of(active.limits()),
        current_state: state.clone(),
        redis_call_limit: state,
        note: found.note(),
    }))
}

/// The record after the change.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct CallLimitsSet {
    #[serde(flatten)]
    record: RateLimit,
    /// Always `null`, because a change reports no usage.
    current_state: Option<CallState>,
}

/// Sets the limits of a consumer in one step
///
/// Replaces the record of the consumer with the same `api_name`, `api_version` and `bank_id`, or
/// creates one. If several records match, the response is 409 and names them. With `If-Match`, the
/// response is 412 unless the record has the given revision. Limits that block or unblock the
/// consumer also require the role for that.
#[utoipa::path(put, path = "/management/consumers/{CONSUMER_ID}/consumer/call-limits",
    tag = "call limits", params(PathParam<ConsumerId>, IfMatch), request_body = RateLimitInput,
    responses((status = OK, body = CallLimitsSet), ChangeErrorResponses))]
pub(super) async fn put(
    State(context): State<Arc<Context>>,
    Allowed { actor, request, .. }: Allowed<CanSetCallLimits>,
    PathParam(ConsumerId(consumer)): PathParam<ConsumerId>,
    if_match: IfMatch,
    Body(input): Body<RateLimitInput>,
) -> Result<Response, ApiError> {
    let change =
        ChangeRequest { context: &context, actor: &actor, request: &request, if_match: &if_match };
    let content = input.into_content(&consumer);
    let put = context.records.upsert(content, change.expected(), change.author()).await;
    let not_found = || ApiError::not_found("a record to set");
    let record = put.map_err(|error| {
        responses::wrong_number(&error).unwrap_or_else(|| change.error(error, not_found))
    })?;
    audit::record_changed(&actor, "set", &record);
    let tag = [(header::ETAG, etag(record.revision))];
    let warning = responses::warning(&context, &record).await;
    let record = RateLimit::of(&record).with_warning(warning);
    Ok((tag, Json(CallLimitsSet { record, current_state: None })).into_response())
}
