//! The look-ups of rules whose limits a source has to find.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::pipeline::Pipeline;
use crate::decision::Decision;
use crate::maybe_ready::MaybeReady;
use crate::model::{Cost, FailureKind, Mode, StoreError, Subject};
use crate::policy::Policy;
use crate::rules::RequestParts;
use crate::store::StoreFuture;

impl Pipeline {
    /// Looks up the policies of `parts` that are not known yet, and sets them. Resolves to the time
    /// that is left until the deadline of the decision.
    ///
    /// # Errors
    ///
    /// Resolves to the error of the first look-up that fails. The error has been reported.
    #[inline]
    pub(super) fn find_policies(
        self: &Arc<Self>,
        parts: &Arc<RequestParts>,
    ) -> StoreFuture<Duration> {
        if parts.lookups().next().is_none() {
            return MaybeReady::ready(Ok(self.stores.deadline));
        }
        self.look_up(parts)
    }

    #[inline(never)]
    fn look_up(self: &Arc<Self>, parts: &Arc<RequestParts>) -> StoreFuture<Duration> {
        let (begin, deadline) = (Instant::now(), self.stores.deadline);
        let mut pending = Vec::new();
        for (index, source, subject) in parts.lookups() {
            if let Some(policy) = source.cached(subject) {
                parts.set_policy(index, Some(policy.clone()));
                continue;
            }
            match source.policy(subject) {
                MaybeReady::Ready(Some(found)) => match self.policy_found(found, subject, None) {
                    Ok(policy) => {
                        self.events.source_answered_at_once();
                        parts.set_policy(index, policy);
                    }
                    Err(error) => return MaybeReady::ready(Err(error)),
                },
                lookup => pending.push((index, lookup)),
            }
        }
        if pending.is_empty() {
            return MaybeReady::ready(Ok(deadline));
        }
        let (this, parts) = (Arc::clone(self), Arc::clone(parts));
        MaybeReady::later(async move {
            let left = || deadline.saturating_sub(begin.elapsed());
            for (index, lookup) in pending {
                let subject = parts.subject_of_lookup(index);
                let found = this.policies.wait_for(lookup, left()).await;
                if found.is_ok() {
                    this.events.source_answered(subject);
                }
                parts.set_policy(index, this.policy_found(found, subject, Some(begin))?);
            }
            Ok(left())
        })
    }

    /// Returns the policy that a look-up has found, or `policy_when_overloaded` if the source is
    /// overloaded. Reports a failed look-up of a request that has waited since `begun`.
    ///
    /// # Errors
    ///
    /// Returns the error of the look-up.
    pub(super) fn policy_found(
        &self,
        found: Result<Option<Policy>, StoreError>,
        subject: &Subject,
        begun: Option<Instant>,
    ) -> Result<Option<Policy>, StoreError> {
        match (found, &self.policy_when_overloaded) {
            (Err(error), Some(policy)) if error.kind() == FailureKind::Overloaded => {
                self.tally.source_failed(error.kind());
                self.events.policy_when_overloaded_applies(&error, begun);
                Ok(Some(policy.clone()))
            }
            (Err(error), _) => {
                self.tally.source_failed(error.kind());
                self.events.source_failed(subject, &error, begun);
                Err(error)
            }
            (found, _) => found,
        }
    }

    /// Decides a request under rules whose policies were not found. Without them, a fallback cannot
    /// decide.
    pub(super) fn decide_without_policies(
        &self,
        (subject, cost): (&Subject, Cost),
        error: &StoreError,
    ) -> MaybeReady<Decision> {
        let action = self.failure_policy.action_without_policy(error.kind());
        let origin = action.origin(error.kind());
        self.decide_without_store(subject, cost, self.operation(Mode::Check), origin)
    }
}
