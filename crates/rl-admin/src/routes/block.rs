use std::sync::Arc;

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;

use super::responses::{ChangeRequest, consumer as subject, record, written_record};
use crate::audit;
use crate::context::Context;
use crate::error::ApiError;
use crate::error::{ChangeErrorResponses, ErrorResponses};
use crate::read::{
    Allowed, Body, CanCreateRateLimits, CanDeleteRateLimits, CanReadCallLimits, ConsumerId,
    IfMatch, PathParam,
};
use crate::wire::{Date, Name, RateLimit, UntilInput};

fn not_blocked(consumer: &Name) -> ApiError {
    ApiError::not_found(format_args!("a block of consumer {}", consumer.as_str()))
}

/// Returns the block of a consumer, or 404 if it is not blocked
#[utoipa::path(get, path = "/management/consumers/{CONSUMER_ID}/block", tag = "blocks",
    params(PathParam<ConsumerId>),
    responses((status = OK, body = RateLimit, headers(("ETag" = String))), ErrorResponses))]
pub(super) async fn read(
    State(context): State<Arc<Context>>,
    _: Allowed<CanReadCallLimits>,
    PathParam(ConsumerId(consumer)): PathParam<ConsumerId>,
) -> Result<Response, ApiError> {
    let blocks = context.records.blocks_of(&subject(&consumer)).await?;
    let last = blocks.iter().rfind(|block| block.content.rule.is_none());
    Ok(record(StatusCode::OK, last.ok_or_else(|| not_blocked(&consumer))?))
}

/// Blocks a consumer from now until a time, whatever its other records contain
///
/// If the consumer is already blocked, the block ends at the new time. An earlier end also requires
/// the role for unblocking. If several requests are concurrent, the last one decides. With
/// `If-Match`, the response is 412 unless the block has the given revision.
#[utoipa::path(put, path = "/management/consumers/{CONSUMER_ID}/block", tag = "blocks",
    params(PathParam<ConsumerId>, IfMatch), request_body = UntilInput,
    responses((status = OK, body = RateLimit, headers(("ETag" = String))), ChangeErrorResponses))]
pub(super) async fn put(
    State(context): State<Arc<Context>>,
    Allowed { actor, request, .. }: Allowed<CanCreateRateLimits>,
    PathParam(ConsumerId(consumer)): PathParam<ConsumerId>,
    if_match: IfMatch,
    Body(UntilInput { until: Date(until) }): Body<UntilInput>,
) -> Result<Response, ApiError> {
    if until <= context.now() {
        return Err(ApiError::invalid("until", "a time in the future"));
    }
    let change =
        ChangeRequest { context: &context, actor: &actor, request: &request, if_match: &if_match };
    let (subject, author) = (subject(&consumer), change.author());
    let block = context.records.block(&subject, None, until, change.expected(), author).await;
    let block = block.map_err(|error| change.error(error, || not_blocked(&consumer)))?;
    audit::record_changed(&actor, "blocked", &block);
    Ok(written_record(&context, StatusCode::OK, &block).await)
}

/// Unblocks a consumer
///
/// With `If-Match`, the response is 412 unless the block has the given revision.
#[utoipa::path(delete, path = "/management/consumers/{CONSUMER_ID}/block", tag = "blocks",
    params(PathParam<ConsumerId>, IfMatch), responses((status = NO_CONTENT), ChangeErrorResponses))]
pub(super) async fn delete(
    State(context): State<Arc<Context>>,
    Allowed { actor, request, .. }: Allowed<CanDeleteRateLimits>,
    PathParam(ConsumerId(consumer)): PathParam<ConsumerId>,
    if_match: IfMatch,
) -> Result<StatusCode, ApiError> {
    let change =
        ChangeRequest { context: &context, actor: &actor, request: &request, if_match: &if_match };
    let (subject, author) = (subject(&consumer), change.author());
    let gone = context.records.unblock(&subject, None, change.expected(), author).await;
    let gone = gone.map_err(|error| change.error(error, || not_blocked(&consumer)))?;
    audit::record_changed(&actor, "unblocked", &gone);
    Ok(StatusCode::NO_CONTENT)
}
