//! What several endpoints have in common.

use axum::Json;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use rl_core::Subject;
use rl_records::{
    Author, CallLimits, ChangeError, DatabaseError, Expected, Record, RecordId, ResourceLimit,
    Tier, TierMember, lifts,
};

use crate::access::{Actor, Role};
use crate::error::etag;
use crate::read::{Asked, IfMatch};
use crate::wire::{Name, RateLimit, Resource};
use crate::{Admin, ApiError, audit};

/// A record, with its tag.
pub(super) fn record(status: StatusCode, record: &Record) -> Response {
    tagged(status, record.revision, RateLimit::of(record))
}

/// Returns a written record with its tag, and a warning if it lifts the limits of a tier.
pub(super) async fn written(admin: &Admin, status: StatusCode, record: &Record) -> Response {
    let warning = warning(admin, record).await;
    tagged(status, record.revision, RateLimit::of(record).with_warning(warning))
}

fn tagged(status: StatusCode, revision: i64, record: RateLimit) -> Response {
    (status, [(header::ETAG, etag(revision))], Json(record)).into_response()
}

/// Returns a warning if a record has no limit and thereby lifts those of a tier or the defaults.
pub(super) async fn warning(admin: &Admin, record: &Record) -> Option<String> {
    let warning = lifted(admin, record).await;
    warning.unwrap_or_else(|error| {
        // The record is stored already, so only the warning is lost.
        let kind = error.kind().as_str();
        tracing::warn!(target: "rl_admin", kind, "record not compared with its tier");
        None
    })
}

async fn lifted(admin: &Admin, record: &Record) -> Result<Option<String>, DatabaseError> {
    let (records, content) = (admin.records(), &record.content);
    let consumer = Subject::consumer(&content.consumer_id);
    let (limits, of) = match records.tiers().member(&consumer).await? {
        Some(member) => match records.tiers().read(&member.tier).await? {
            Some(tier) => (tier.content.limits, format!("of the tier {}", tier.content.name)),
            None => return Ok(None),
        },
        None => (records.aggregation().defaults, "that hold by default".to_owned()),
    };
    let at = content.from_date.max(admin.now());
    if !lifts(&limits, content) || at > content.to_date {
        return Ok(None);
    }
    let active = records.active_limits(&content.consumer_id, at).await?;
    let is_unlimited = active.limits() == CallLimits::UNLIMITED;
    Ok(is_unlimited.then(|| {
        format!(
            "the record has no limit in any period: while it is active, the limits {of} do not hold"
        )
    }))
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
) -> Result<Option<Record>, ApiError> {
    let found = admin.records().read(id).await?;
    Ok(found.filter(|record| record.content.consumer_id == consumer.as_str()))
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

/// The context of a requested change: its actor and its precondition.
pub(super) struct Edit<'a> {
    pub(super) admin: &'a Admin,
    pub(super) actor: &'a Actor,
    pub(super) asked: &'a Asked,
    pub(super) if_match: &'a IfMatch,
}

impl<'a> Edit<'a> {
    /// Returns the expectation of the change. Without a precondition it accepts every revision, so it never
    /// conflicts with another change.
    pub(super) fn expected(&self) -> Expected {
        self.if_match.expected(self.admin.requires_if_match())
    }

    pub(super) fn author(&self) -> Author<'a> {
        self.actor.author()
    }

    /// Returns the answer if there is nothing to change: 412 to a precondition, else 404.
    pub(super) fn missing(&self, not_found: ApiError) -> ApiError {
        match self.if_match {
            IfMatch::Absent => not_found,
            _ => ApiError::nothing_to_match(),
        }
    }

    /// Returns the answer to a change that failed.
    pub(super) fn not_made<T: Revised>(
        &self,
        error: ChangeError<T>,
        not_found: impl FnOnce() -> ApiError,
    ) -> ApiError {
        match error {
            ChangeError::Conflict { .. } if *self.if_match == IfMatch::Absent => {
                ApiError::without_if_match()
            }
            ChangeError::Conflict { current } => {
                ApiError::not_as_seen(current.updated_by(), current.revision())
            }
            ChangeError::NotFound => self.missing(not_found()),
            error => refused(self.admin, self.actor, self.asked, error),
        }
    }
}

/// Returns the answer to a change that failed, and records it if a role was missing.
pub(super) fn refused<T>(
    admin: &Admin,
    actor: &Actor,
    asked: &Asked,
    error: ChangeError<T>,
) -> ApiError {
    let role = match error {
        ChangeError::MayNotBlock => Some(Role::CanCreateRateLimits),
        ChangeError::MayNotUnblock => Some(Role::CanDeleteRateLimits),
        _ => None,
    };
    if let Some(role) = role {
        audit::refuse(admin, actor, role, asked);
    }
    error.into()
}
