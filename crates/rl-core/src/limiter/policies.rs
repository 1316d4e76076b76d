//! Finds the policy of a subject.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::BuildError;
use super::in_flight::wait_until;
use super::stores::timed_out;
use crate::maybe_ready::MaybeReady;
use crate::model::{FailureKind, StoreError, Subject};
use crate::policy::{Policy, PolicyBuilder};
use crate::source::{PolicyFuture, PolicySource};
use crate::store::Replies;

/// The policies of a limiter.
pub(super) enum Policies {
    /// The same policy for all subjects.
    One(Policy),
    /// A source that looks policies up.
    Source {
        source: Arc<dyn PolicySource>,
        /// The times of the source's replies. They show whether a source that does not answer in
        /// time is down or overloaded.
        replies: Replies,
    },
}

impl Policies {
    /// Returns the policies that a builder has been given: limits, a source, or none because there
    /// are rules.
    ///
    /// # Errors
    ///
    /// Returns an error if more than one of them is given, or if the limits are not valid.
    pub(super) fn chosen(
        limits: PolicyBuilder,
        policies: Option<Self>,
        has_rules: bool,
    ) -> Result<Self, BuildError> {
        match (policies, limits.is_empty(), has_rules) {
            (None, true, true) => Ok(Self::from_source(RulesOnly)),
            (_, _, true) => Err(BuildError::LimitsAndRules),
            (Some(_), false, false) => Err(BuildError::LimitsAndPolicies),
            (Some(policies), true, false) => Ok(policies),
            (None, _, false) => Ok(Self::One(limits.build().map_err(BuildError::Policy)?)),
        }
    }

    /// Uses the policies that `source` returns.
    pub(super) fn from_source(source: impl PolicySource) -> Self {
        Self::Source { source: Arc::new(source), replies: Replies::default() }
    }

    /// Returns the policy of all subjects, if there is only one.
    pub(super) const fn of_all(&self) -> Option<&Policy> {
        match self {
            Self::One(policy) => Some(policy),
            Self::Source { .. } => None,
        }
    }

    /// Returns the policy of `subject` if it is available without waiting.
    pub(super) fn cached(&self, subject: &Subject) -> Option<&Policy> {
        match self {
            Self::One(policy) => Some(policy),
            Self::Source { source, .. } => source.cached(subject),
        }
    }

    /// Looks up the policy of `subject`.
    pub(super) fn find(&self, subject: &Subject) -> PolicyFuture {
        match self {
            Self::One(policy) => MaybeReady::ready(Ok(Some(policy.clone()))),
            Self::Source { source, .. } => source.policy(subject),
        }
    }

    /// Waits for a look-up, at most until the deadline.
    ///
    /// A look-up that is late fails as [`FailureKind::Overloaded`] if the source still answers
    /// other look-ups.
    pub(super) async fn wait_for(
        &self,
        lookup: PolicyFuture,
        deadline: Duration,
    ) -> Result<Option<Policy>, StoreError> {
        let Self::Source { replies, .. } = self else { return lookup.await };
        let (sent, call) = (Instant::now(), replies.begin());
        let found = wait_until(sent + deadline, lookup).await;
        match found.unwrap_or_else(|| Err(timed_out())) {
            Ok(found) => {
                call.finish();
                Ok(found)
            }
            Err(error) if error.kind() == FailureKind::TimedOut => {
                let now = Instant::now();
                let is_outage = replies.shows_outage(now - sent, deadline, now);
                Err(if is_outage { error } else { StoreError::new(FailureKind::Overloaded) })
            }
            Err(error) => Err(error),
        }
    }
}

/// The source of a limiter with rules, which has no policy for a subject alone.
struct RulesOnly;

impl PolicySource for RulesOnly {
    fn policy(&self, _: &Subject) -> PolicyFuture {
        let error = StoreError::new(FailureKind::Unsupported);
        let detail = "a subject alone, but this limiter has rules: expected a request or a rule";
        MaybeReady::ready(Err(error.with_detail(detail)))
    }
}
