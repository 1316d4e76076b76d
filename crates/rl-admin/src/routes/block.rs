use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use rl_records::{Record, RecordContent, RecordQuery};
use serde::Deserialize;
use utoipa::ToSchema;

use super::answer::{may_change, not_made, record};
use crate::error::{ChangeRefusals, Refusals};
use crate::read::{Allowed, Body, ConsumerId, In, Input, ToCreate, ToDelete, ToRead};
use crate::wire::{Date, Name, RateLimit};
use crate::{Admin, ApiError, audit};

/// How long a consumer is blocked.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Until {
    /// The last instant.
    until: Date,
}

impl Input for Until {}

/// The blocks of a consumer that hold now.
async fn blocks(admin: &Admin, consumer: &Name) -> Result<Vec<Record>, ApiError> {
    let mut query = RecordQuery {
        consumer: Some(consumer.as_str().to_owned()),
        active_at: Some(admin.now()),
        limit: 1_000,
        ..RecordQuery::default()
    };
    let mut blocks = Vec::new();
    loop {
        let page = admin.records().list(&query).await?;
        blocks.extend(page.records.into_iter().filter(|record| record.content.blocks));
        match page.next {
            Some(next) => query.after = Some(next),
            None => break,
        }
    }
    blocks.sort_by_key(|record| record.content.to_date);
    Ok(blocks)
}

fn not_blocked(consumer: &Name) -> ApiError {
    ApiError::not_found(format_args!("a block of consumer {}", consumer.as_str()))
}

/// The block of a consumer: 404 if it is not blocked
#[utoipa::path(get, path = "/management/consumers/{CONSUMER_ID}/block", tag = "blocks",
    params(In<ConsumerId>), responses((status = OK, body = RateLimit), Refusals))]
pub(super) async fn read(
    State(admin): State<Admin>,
    _: Allowed<ToRead>,
    In(ConsumerId(consumer)): In<ConsumerId>,
) -> Result<Response, ApiError> {
    let last = blocks(&admin, &consumer).await?.pop().ok_or_else(|| not_blocked(&consumer))?;
    Ok(record(StatusCode::OK, &last))
}

/// Blocks a consumer from now until a time, whatever its other records say
///
/// If it is blocked already, the block ends at the new time; to end it sooner needs the role to
/// unblock, too.
#[utoipa::path(put, path = "/management/consumers/{CONSUMER_ID}/block", tag = "blocks",
    params(In<ConsumerId>), request_body = Until,
    responses((status = OK, body = RateLimit), ChangeRefusals))]
pub(super) async fn put(
    State(admin): State<Admin>,
    Allowed { actor, .. }: Allowed<ToCreate>,
    In(ConsumerId(consumer)): In<ConsumerId>,
    Body(Until { until: Date(until) }): Body<Until>,
) -> Result<Response, ApiError> {
    let now = admin.now();
    if until <= now {
        return Err(ApiError::invalid("until", "a time in the future"));
    }
    let mut there = blocks(&admin, &consumer).await?;
    let (records, name) = (admin.records(), actor.name());
    let block = match there.pop() {
        Some(last) => {
            let content = RecordContent { to_date: until, ..last.content.clone() };
            may_change(&actor, &last.content, &content)?;
            let block = records.update(last.id, content, last.revision, name).await;
            let block = block.map_err(not_made)?;
            // Those that end later than asked for would go on.
            for other in there.iter().filter(|other| other.content.to_date > until) {
                let gone = records.delete(other.id, other.revision, name).await;
                gone.map_err(not_made)?;
                let id = other.id.to_string();
                audit::changed(&actor, "unblocked", consumer.as_str(), &id, other.revision);
            }
            block
        }
        None => {
            let content = RecordContent::block(consumer.as_str(), now, until);
            records.create(content, name).await?
        }
    };
    audit::changed(&actor, "blocked", consumer.as_str(), &block.id.to_string(), block.revision);
    Ok(record(StatusCode::OK, &block))
}

/// Unblocks a consumer
#[utoipa::path(delete, path = "/management/consumers/{CONSUMER_ID}/block", tag = "blocks",
    params(In<ConsumerId>), responses((status = NO_CONTENT), ChangeRefusals))]
pub(super) async fn delete(
    State(admin): State<Admin>,
    Allowed { actor, .. }: Allowed<ToDelete>,
    In(ConsumerId(consumer)): In<ConsumerId>,
) -> Result<StatusCode, ApiError> {
    let there = blocks(&admin, &consumer).await?;
    if there.is_empty() {
        return Err(not_blocked(&consumer));
    }
    for block in there {
        let gone = admin.records().delete(block.id, block.revision, actor.name()).await;
        gone.map_err(not_made)?;
        let id = block.id.to_string();
        audit::changed(&actor, "unblocked", consumer.as_str(), &id, block.revision);
    }
    Ok(StatusCode::NO_CONTENT)
}
