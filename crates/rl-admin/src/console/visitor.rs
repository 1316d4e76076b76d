use std::sync::Arc;

use axum::http::StatusCode;
use rl_records::ChangeError;
use subtle::ConstantTimeEq;

use super::failure::Failure;
use crate::access::{Actor, Role};
use crate::audit::{self, RequestSummary};
use crate::context::Context;

/// The actor of a session, together with the request that is being handled.
#[derive(Clone)]
pub(super) struct Visitor {
    pub(super) actor: Actor,
    /// A secret of the session. Every form contains it, so that other sites cannot forge a form.
    pub(super) form_token: String,
    pub(super) context: Arc<Context>,
    pub(super) request: RequestSummary,
}

/// The roles that every page requires.
const READING: [Role; 2] = [Role::CanReadCallLimits, Role::CanGetRateLimits];

impl Visitor {
    /// Returns whether a form contains the token of this session.
    pub(super) fn has_form_token(&self, form_token: &str) -> bool {
        form_token.as_bytes().ct_eq(self.form_token.as_bytes()).into()
    }

    /// Returns whether the visitor has the roles that every page requires.
    pub(super) fn can_read(&self) -> bool {
        READING.iter().all(|role| self.actor.has(*role))
    }

    /// Returns whether the visitor has this role and may change tiers, which all applications share.
    pub(super) fn may_change_tiers(&self, role: Role) -> bool {
        self.actor.applications().is_none() && self.actor.has(role)
    }

    /// Checks that the visitor has the roles that every page requires.
    pub(super) fn require_reading(&self) -> Result<(), Failure> {
        let Some(role) = READING.into_iter().find(|role| !self.actor.has(*role)) else {
            return Ok(());
        };
        audit::refuse(&self.context, &self.actor, role, &self.request);
        let message = format!(
            "{} does not have the role {role}, which every page needs. Log out, and log in \
             with another token or account, or ask your administrator to add the role.",
            self.actor.name()
        );
        Err(Failure::new(StatusCode::FORBIDDEN, "Not allowed", message))
    }

    /// Checks that the visitor has a role. Writes an entry to the history if not.
    pub(super) fn require(&self, role: Role) -> Result<(), Failure> {
        if self.actor.has(role) {
            return Ok(());
        }
        audit::refuse(&self.context, &self.actor, role, &self.request);
        let message = format!(
            "{} does not have the role {role}. Nothing was changed. Ask your administrator to add the \
             role.",
            self.actor.name()
        );
        Err(Failure::new(StatusCode::FORBIDDEN, "Not allowed", message))
    }

    /// Converts an error of a change into a failure page, if no form can show the error.
    pub(super) fn change_failure<T>(&self, error: ChangeError<T>) -> Failure {
        let role = match error {
            ChangeError::MayNotBlock => Role::CanCreateRateLimits,
            ChangeError::MayNotUnblock => Role::CanDeleteRateLimits,
            error => return error.into(),
        };
        self.require(role).err().unwrap_or_else(|| error.into())
    }
}
