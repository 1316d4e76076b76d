//! Decides requests while the store, or the source of policies, is overloaded.
//!
//! An overload is no outage: one client can cause it, so it must not lift the limits. A request is decided
//! by the first of these that applies:
//!
//! 1. a known denial that still holds, or units that were leased ahead;
//! 2. if the look-up of the policy was refused, the policy that is set for that;
//! 3. [`on_overload`](crate::RateLimiterBuilder::on_overload), which rejects by default.

use super::RateLimiter;
use super::breaker::Ticket;
use super::decide::Question;
use crate::decision::Decision;
use crate::maybe_ready::MaybeReady;
use crate::model::StoreError;
use crate::model::{FailureKind, Subject};
use crate::policy::Policy;
use crate::store::{DecideRequest, Part};

impl RateLimiter {
    /// Returns the policy that is set for look-ups that are refused, in their place.
    pub(super) fn or_when_overloaded(
        &self,
        policy: Result<Option<Policy>, StoreError>,
    ) -> Result<Option<Policy>, StoreError> {
        match (policy, &self.inner.policy_when_overloaded) {
            (Err(error), Some(policy)) if error.kind() == FailureKind::Overloaded => {
                self.source_overloaded("the policy for overload applies");
                self.inner.observer().source_failed(&error);
                Ok(Some(policy.clone()))
            }
            (policy, _) => policy,
        }
    }

    /// Decides by a known denial, by leased units, or by the setting for overload.
    #[inline(never)]
    pub(super) fn decide_overloaded(
        &self,
        policy: &Policy,
        subject: &Subject,
        question: Question,
    ) -> MaybeReady<Decision> {
        self.overloaded();
        self.inner.in_flight.refused();
        let Question { mode, cost, .. } = question;
        let parts = [Part::new(subject, policy, cost)];
        let request = DecideRequest::new(&self.inner.namespace, &parts, mode);
        match self.inner.store.decide_locally(&request) {
            Some(decision) => MaybeReady::ready(self.report(subject, question, decision)),
            None => self.stand_in(Some(policy), subject, question, FailureKind::Overloaded),
        }
    }

    /// Decides a request that the store has failed to decide.
    pub(super) fn decide_failed(
        &self,
        policy: &Policy,
        subject: &Subject,
        question: Question,
        ticket: Ticket,
        error: &StoreError,
    ) -> MaybeReady<Decision> {
        if error.kind() == FailureKind::Overloaded {
            self.inner.observer().store_failed(error);
            return self.decide_overloaded(policy, subject, question);
        }
        self.store_failed(subject, ticket, error);
        self.stand_in(Some(policy), subject, question, error.kind())
    }
}
