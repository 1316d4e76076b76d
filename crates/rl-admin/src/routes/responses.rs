//! Responses that several endpoints share.

use axum::Json;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use rl_core::{Limit, Realm, Subject};
use rl_records::{
    Author, CallPeriod, ChangeError, DatabaseError, Expected, Record, RecordContent, RecordId,
    ResourceLimit, Revised, lifts,
};

use crate::access::{Actor, Role};
use crate::audit::{self, RequestSummary};
use crate::context::Context;
use crate::error::{ApiError, etag};
use crate::read::IfMatch;
use crate::subject_rules::{limits_of_database, note_on_unenforced_records, rules_with_source};
use crate::wire::{Name, RateLimit, Resource};

/// Responds with a record and its `ETag`.
pub(super) fn record(status: StatusCode, record: &Record) -> Response {
    tagged(status, record.revision, RateLimit::of(record))
}

/// Responds with a stored record and its `ETag`. Adds a warning if no rule enforces the record, or
/// if it lifts the limits of the consumer's tier or the defaults.
pub(super) async fn written_record(
    context: &Context,
    status: StatusCode,
    record: &Record,
) -> Response {
    let warning = warning(context, record).await;
    tagged(status, record.revision, RateLimit::of(record).with_warning(warning))
}

fn tagged(status: StatusCode, revision: i64, record: RateLimit) -> Response {
    (status, [(header::ETAG, etag(revision))], Json(record)).into_response()
}

/// Returns a warning if no rule enforces a record, or if it has no limit and so lifts those of a
/// tier or the defaults.
pub(super) async fn warning(context: &Context, record: &Record) -> Option<String> {
    let subject = record.content.subject();
    if let Some(note) = note_on_unenforced_records(context, &subject) {
        return Some(note);
    }
    let rules = rules_with_source(context, &subject).unwrap_or_default();
    if let Some(name) = &record.content.rule
        && !context.is_stand_alone
        && !rules.iter().any(|rule| *rule.name == **name)
    {
        return Some(format!(
            "No rule of the name {name} takes the limits of this subject from records, so the record \
             limits nothing."
        ));
    }
    let warning = match record.content.grants {
        true => useless_grant(context, record).await,
        false => lifted_limits(context, record).await,
    };
    warning.unwrap_or_else(|error| {
        // The record has already been stored, so only the warning is lost.
        let kind = error.kind().as_str();
        tracing::warn!(target: "rl_admin", kind, "record not compared with its tier");
        None
    })
}

/// Returns a warning if a limit of the grant `record` is added to no limit that applies when the
/// grant begins.
async fn useless_grant(
    context: &Context,
    record: &Record,
) -> Result<Option<String>, DatabaseError> {
    let RecordContent { rule, limits, from_date, .. } = &record.content;
    let (subject, at) = (record.content.subject(), (*from_date).max(context.now()));
    let by_rule = context.records.active_limits_by_rule(&subject, at).await?;
    // Limits that the service sets are unknown here.
    let Some(active) = limits_of_database(&by_rule, &subject, rule.as_deref()) else {
        return Ok(None);
    };
    let applying = active.limits();
    Ok(limits.useless_grant(applying).map(|limit| {
        let applying = if applying.is_empty() { "none".to_owned() } else { applying.to_string() };
        format!("the grant of {limit} adds to no limit: those that apply are {applying}")
    }))
}

/// Returns the warning about the limits that `record` lifts, if it lifts any.
async fn lifted_limits(
    context: &Context,
    record: &Record,
) -> Result<Option<String>, DatabaseError> {
    let records = &context.records;
    let content = &record.content;
    // The limits that a record of another subject replaces are unknown here.
    if content.realm != Realm::Consumer || content.rule.is_some() {
        return Ok(None);
    }
    let consumer = content.subject();
    let (limits, of) = match records.tiers().member(&consumer).await? {
        Some(member) => match records.tiers().read(&member.tier).await? {
            Some(tier) => (tier.content.limits, format!("of the tier {}", tier.content.name)),
            None => return Ok(None),
        },
        None => (records.aggregation().defaults.clone(), "that hold by default".to_owned()),
    };
    let at = content.from_date.max(context.now());
    if !lifts(&limits, content) || at > content.to_date {
        return Ok(None);
    }
    let active = records.active_limits(&content.subject_id, at).await?;
    let is_unlimited = active.limits().is_empty();
    Ok(is_unlimited.then(|| {
        format!("the record has no limit: while it is active, the limits {of} do not hold")
    }))
}

/// Responds with the limit of a resource and its `ETag`.
pub(super) fn resource(status: StatusCode, limit: &ResourceLimit, actor: &Actor) -> Response {
    let tag = [(header::ETAG, etag(limit.revision))];
    (status, tag, Json(Resource::of(limit, actor))).into_response()
}

/// Returns a record, if it belongs to this consumer.
pub(super) async fn record_of(
    context: &Context,
    consumer: &Name,
    id: RecordId,
) -> Result<Option<Record>, ApiError> {
    let found = context.records.read(id).await?;
    Ok(found.filter(|record| {
        let content = &record.content;
        content.realm == Realm::Consumer && content.subject_id == consumer.as_str()
    }))
}

pub(super) fn record_not_found(id: RecordId) -> ApiError {
    ApiError::not_found(format_args!("Rate limiting ID {id}"))
}

pub(super) fn consumer(name: &Name) -> Subject {
    Subject::consumer(name.as_str())
}

/// The actor and the precondition of a requested change.
pub(super) struct ChangeRequest<'a> {
    pub(super) context: &'a Context,
    pub(super) actor: &'a Actor,
    pub(super) request: &'a RequestSummary,
    pub(super) if_match: &'a IfMatch,
}

impl<'a> ChangeRequest<'a> {
    /// Returns the state that the change expects. Without a precondition, the object may have any
    /// state. If changes require a precondition, the object must not exist.
    pub(super) fn expected(&self) -> Expected {
        self.if_match.expected(self.context.requires_if_match)
    }

    /// Returns the author of the change.
    pub(super) fn author(&self) -> Author<'a> {
        self.actor.author()
    }

    /// Returns the error for a missing object: 412 if the request has a precondition, otherwise
    /// 404.
    pub(super) fn not_found(&self, not_found: ApiError) -> ApiError {
        match self.if_match {
            IfMatch::Absent => not_found,
            _ => ApiError::nothing_to_match(),
        }
    }

    /// Converts the error of a change into a response.
    pub(super) fn error<T: Revised>(
        &self,
        error: ChangeError<T>,
        not_found: impl FnOnce() -> ApiError,
    ) -> ApiError {
        match error {
            ChangeError::Conflict { .. } if *self.if_match == IfMatch::Absent => {
                ApiError::missing_if_match()
            }
            ChangeError::Conflict { current } => {
                ApiError::revision_mismatch(current.updated_by(), current.revision())
            }
            ChangeError::NotFound => self.not_found(not_found()),
            error => change_error(self.context, self.actor, self.request, error),
        }
    }
}

/// Returns the error for one of six numbers, if a change was refused because of its limit.
pub(super) fn wrong_number<T>(error: &ChangeError<T>) -> Option<ApiError> {
    let ChangeError::Invalid(invalid) = error else { return None };
    let limit: Limit = invalid.value().parse().ok()?;
    let number = CallPeriod::ALL.into_iter().find(|one| one.period() == limit.period())?;
    Some(ApiError::invalid(number.field(), invalid.expected()))
}

/// Converts the error of a change into a response, and records the refusal if a role was missing.
pub(super) fn change_error<T>(
    context: &Context,
    actor: &Actor,
    request: &RequestSummary,
    error: ChangeError<T>,
) -> ApiError {
    let role = match error {
        ChangeError::MayNotBlock => Some(Role::CanCreateRateLimits),
        ChangeError::MayNotUnblock => Some(Role::CanDeleteRateLimits),
        _ => None,
    };
    if let Some(role) = role {
        audit::refuse(context, actor, role, request);
    }
    error.into()
}
