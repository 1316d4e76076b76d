//! What several endpoints have in common.

use axum::Json;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use rl_core::Subject;
use rl_records::{ChangeError, Record, RecordContent, RecordId, ResourceLimit, Tier, TierMember};

use crate::access::{Actor, roles_to_change};
use crate::error::etag;
use crate::read::IfMatch;
use crate::wire::{Name, RateLimit, Resource};
use crate::{Admin, ApiError, audit};

/// A record, with its tag.
pub(super) fn record(status: StatusCode, record: &Record) -> Response {
    let tag = [(header::ETAG, etag(record.revision))];
    (status, tag, Json(RateLimit::of(record))).into_response()
}

/// The limit of a resource, with its tag.
pub(super) fn resource(status: StatusCode, limit: &ResourceLimit) -> Response {
    let tag = [(header::ETAG, etag(limit.revision))];
    (status, tag, Json(Resource::of(limit))).into_response()
}

/// The record of this consumer. That of another one is not there.
pub(super) async fn record_of(
    admin: &Admin,
    consumer: &Name,
    id: RecordId,
) -> Result<Record, ApiError> {
    let found = admin.records().read(id).await?;
    let own = found.filter(|record| record.content.consumer_id == consumer.as_str());
    own.ok_or_else(|| not_found(id))
}

pub(super) fn not_found(id: RecordId) -> ApiError {
    ApiError::not_found(format_args!("Rate limiting ID {id}"))
}

pub(super) fn consumer(name: &Name) -> Subject {
    Subject::consumer(name.as_str())
}

/// What can be changed by those who have seen it.
pub(super) trait Revised {
    fn revision(&self) -> i64;

    fn updated_by(&self) -> &str;
}

macro_rules! revised {
    ($($what:ty),*) => {
        $(
            impl Revised for $what {
                fn revision(&self) -> i64 {
                    self.revision
                }

                fn updated_by(&self) -> &str {
                    &self.updated_by
                }
            }
        )*
    };
}

revised!(Record, ResourceLimit, Tier, TierMember);

/// The revision that a change is about: what is there, if the client has seen that.
pub(super) fn seen(admin: &Admin, there: &impl Revised, seen: &IfMatch) -> Result<i64, ApiError> {
    let revision = there.revision();
    match seen {
        IfMatch::Absent if admin.requires_if_match() => Err(ApiError::without_if_match()),
        seen if seen.has_seen(revision) => Ok(revision),
        _ => Err(ApiError::changed_by(there.updated_by(), revision)),
    }
}

/// Refuses whoever would block a consumer, or unblock it, without the role for that.
pub(super) fn may_change(
    actor: &Actor,
    before: &RecordContent,
    after: &RecordContent,
) -> Result<(), ApiError> {
    roles_to_change(before, after)
        .iter()
        .try_for_each(|role| actor.require(role).inspect_err(|_| audit::refused(actor, role)))
}

/// A change that was not made.
pub(super) fn not_made<T: Revised>(error: ChangeError<T>) -> ApiError {
    match error {
        ChangeError::Conflict { current } => {
            ApiError::changed_by(current.updated_by(), current.revision())
        }
        error => error.into(),
    }
}
