//! The objects that an actor of some applications may see and change.
//!
//! An application is the consumer of the same name, and a user of each resource that lists it. Each
//! type that reads a part of a request is checked here or restricts itself: parameters of the path
//! by [`PathSegment::check`](super::path::PathSegment::check), queries by
//! [`Query::restrict`](super::query::Query::restrict), and bodies by
//! [`Input::is_within`](super::body::Input::is_within). None of these has a default.
//!
//! An object of other applications is answered like one that does not exist.

use std::sync::Arc;

use axum::http::Method;
use axum::http::request::Parts;
use rl_core::Subject;
use rl_records::{DatabaseError, HistoryQuery, RecordId, SubscriptionId};

use crate::access::Actor;
use crate::audit;
use crate::context::Context;
use crate::error::ApiError;
use crate::subject_rules::name_of;
use crate::wire::Name;

/// A request of an actor that is restricted to some applications.
pub(crate) struct ScopedRequest<'a> {
    context: &'a Context,
    actor: &'a Actor,
    applications: &'a [String],
    is_read: bool,
}

impl<'a> ScopedRequest<'a> {
    /// Returns the request if its actor is restricted.
    pub(super) fn of(
        parts: &'a Parts,
        context: &'a Arc<Context>,
    ) -> Result<Option<Self>, ApiError> {
        let actor = actor_of(parts)?;
        let is_read = matches!(parts.method, Method::GET | Method::HEAD);
        let request = |applications| Self { context, actor, applications, is_read };
        Ok(actor.applications().map(request))
    }

    /// Checks a parameter that names no object.
    pub(super) async fn no_object(&self, _: &Name) -> Result<(), ApiError> {
        Ok(())
    }

    /// Refuses rules, which all applications share.
    pub(super) async fn rule(&self, name: &Name) -> Result<(), ApiError> {
        Err(ApiError::not_found(format_args!("a rule {} in the database", name.as_str())))
    }

    /// Refuses the id of a subject without its realm. Only
    /// [`SubjectParams`](super::subject::SubjectParams) reads both.
    pub(super) async fn bare_subject(&self, id: &Name) -> Result<(), ApiError> {
        Err(ApiError::not_found(id.as_str()))
    }

    pub(super) fn subject(&self, subject: &Subject) -> Result<(), ApiError> {
        found(self.actor.sees(subject), || name_of(subject))
    }

    pub(super) async fn consumer(&self, id: &Name) -> Result<(), ApiError> {
        found(self.actor.sees_consumer(id.as_str()), || format!("consumer {}", id.as_str()))
    }

    pub(super) async fn application(&self, name: &Name) -> Result<(), ApiError> {
        found(self.actor.owns([name.as_str()]), || format!("application {}", name.as_str()))
    }

    /// Checks the name of a resource. A deleted one is judged by its last limit.
    pub(super) async fn resource(&self, name: &Name) -> Result<(), ApiError> {
        let resources = self.context.records.resources();
        let apps = match resources.read(name.as_str()).await? {
            Some(limit) => Some(limit.content.apps),
            None => {
                let owner = Some(name.as_str().to_owned());
                let query = HistoryQuery { owner, limit: 1, ..HistoryQuery::default() };
                let last = resources.history(&query).await?.pop();
                last.and_then(|change| change.before).map(|content| content.apps)
            }
        };
        let is_own = apps.is_some_and(|apps| self.actor.sees_resource_of(&apps));
        found(is_own, || format!("a limit of resource {}", name.as_str()))
    }

    /// Checks the name of a tier. Other consumers may have its limits too, so it is only shown.
    pub(super) async fn tier(&self, name: &Name) -> Result<(), ApiError> {
        if !self.is_read {
            audit::not_owned(self.actor);
            return Err(ApiError::not_owned("one of all applications, which share the tiers"));
        }
        let tiers = self.context.records.tiers();
        let name = name.as_str();
        let own = tiers.list_for_consumers(self.applications, Some(name), None, 1).await?;
        found(!own.is_empty(), || format!("tier {name}"))
    }

    /// Checks the id of a record, whose subject never changes.
    pub(super) async fn record(&self, id: RecordId) -> Result<(), ApiError> {
        let is_own = sees_record(self.context, self.actor, id).await?;
        found(is_own, || format!("Rate limiting ID {id}"))
    }

    /// Checks the id of a subscription, whose consumer never changes.
    pub(super) async fn subscription(&self, id: SubscriptionId) -> Result<(), ApiError> {
        let stored = self.context.records.subscriptions().read(id).await?;
        let is_own =
            stored.is_some_and(|stored| self.actor.sees_consumer(&stored.content.consumer_id));
        found(is_own, || format!("subscription {id}"))
    }
}

/// Returns whether there is a record with this id that the actor may see. A deleted record is
/// judged by its history.
pub(crate) async fn sees_record(
    context: &Context,
    actor: &Actor,
    id: RecordId,
) -> Result<bool, DatabaseError> {
    let content = match context.records.read(id).await? {
        Some(record) => Some(record.content),
        None => {
            let item = Some(id.to_string());
            let query = HistoryQuery { item, limit: 1, ..HistoryQuery::default() };
            context.records.history(&query).await?.pop().and_then(|change| change.before)
        }
    };
    Ok(content.is_some_and(|content| actor.sees(&content.subject())))
}

/// Returns the authenticated actor of a request.
pub(super) fn actor_of(parts: &Parts) -> Result<&Actor, ApiError> {
    parts.extensions.get::<Actor>().ok_or_else(ApiError::unauthenticated)
}

fn found(is_own: bool, object: impl FnOnce() -> String) -> Result<(), ApiError> {
    if is_own { Ok(()) } else { Err(ApiError::not_found(object())) }
}
