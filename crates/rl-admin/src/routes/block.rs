use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;

use super::answer::{Edit, record};
use crate::error::{ChangeRefusals, Refusals};
use crate::read::{Allowed, Body, ConsumerId, IfMatch, In, ToCreate, ToDelete, ToRead};
use crate::wire::{Date, Name, RateLimit, UntilInput};
use crate::{Admin, ApiError, audit};

fn not_blocked(consumer: &Name) -> ApiError {
    ApiError::not_found(format_args!("a block of consumer {}", consumer.as_str()))
}

/// The block of a consumer: 404 if it is not blocked
#[utoipa::path(get, path = "/management/consumers/{CONSUMER_ID}/block", tag = "blocks",
    params(In<ConsumerId>),
    responses((status = OK, body = RateLimit, headers(("ETag" = String))), Refusals))]
pub(super) async fn read(
    State(admin): State<Admin>,
    _: Allowed<ToRead>,
    In(ConsumerId(consumer)): In<ConsumerId>,
) -> Result<Response, ApiError> {
    let block = admin.records().block_of(consumer.as_str()).await?;
    Ok(record(StatusCode::OK, &block.ok_or_else(|| not_blocked(&consumer))?))
}

/// Blocks a consumer from now until a time, whatever its other records say
///
/// If it is blocked already, the block ends at the new time; to end it sooner needs the role to
/// unblock, too. The last of several concurrent requests decides. With `If-Match`, only if nobody changed the
/// block since: 412 otherwise.
#[utoipa::path(put, path = "/management/consumers/{CONSUMER_ID}/block", tag = "blocks",
    params(In<ConsumerId>, IfMatch), request_body = UntilInput,
    responses((status = OK, body = RateLimit, headers(("ETag" = String))), ChangeRefusals))]
pub(super) async fn put(
    State(admin): State<Admin>,
    Allowed { actor, asked, .. }: Allowed<ToCreate>,
    In(ConsumerId(consumer)): In<ConsumerId>,
    if_match: IfMatch,
    Body(UntilInput { until: Date(until) }): Body<UntilInput>,
) -> Result<Response, ApiError> {
    if until <= admin.now() {
        return Err(ApiError::invalid("until", "a time in the future"));
    }
    let edit = Edit { admin: &admin, actor: &actor, asked: &asked, if_match: &if_match };
    let block =
        admin.records().block(consumer.as_str(), until, edit.expected(), edit.author()).await;
    let block = block.map_err(|error| edit.not_made(error, || not_blocked(&consumer)))?;
    let id = block.id.to_string();
    audit::record_changed(&actor, "blocked", consumer.as_str(), &id, block.revision);
    Ok(record(StatusCode::OK, &block))
}

/// Unblocks a consumer
///
/// With `If-Match`, only if nobody changed the block since: 412 otherwise.
#[utoipa::path(delete, path = "/management/consumers/{CONSUMER_ID}/block", tag = "blocks",
    params(In<ConsumerId>, IfMatch), responses((status = NO_CONTENT), ChangeRefusals))]
pub(super) async fn delete(
    State(admin): State<Admin>,
    Allowed { actor, asked, .. }: Allowed<ToDelete>,
    In(ConsumerId(consumer)): In<ConsumerId>,
    if_match: IfMatch,
) -> Result<StatusCode, ApiError> {
    let edit = Edit { admin: &admin, actor: &actor, asked: &asked, if_match: &if_match };
    let gone = admin.records().unblock(consumer.as_str(), edit.expected(), edit.author()).await;
    let gone = gone.map_err(|error| edit.not_made(error, || not_blocked(&consumer)))?;
    let id = gone.id.to_string();
    audit::record_changed(&actor, "unblocked", consumer.as_str(), &id, gone.revision);
    Ok(StatusCode::NO_CONTENT)
}
