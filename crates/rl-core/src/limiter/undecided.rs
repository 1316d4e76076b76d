//! Decides requests that the store does not decide, and frees places that it grants too late.

use std::sync::Arc;

use super::circuit_breaker::CallToken;
use super::operation::Operation;
use super::parts::{OwnedParts, summed_costs};
use super::pipeline::Pipeline;
use super::places;
use crate::decision::{Decision, Origin};
use crate::maybe_ready::MaybeReady;
use crate::model::{Cost, FailureKind, OnFailure, StoreError, Subject};
use crate::store::{DecideRequest, Mode, Part, StoreFuture};

impl Pipeline {
    /// Decides a request that the store has failed to decide. Records the failure with the breaker:
    /// `call` is the token of the call, and whether other servers of the store answer.
    pub(super) fn handle_failure(
        self: &Arc<Self>,
        parts: &[Part<'_>],
        operation: Operation,
        (call, is_partial): (CallToken, bool),
        error: &StoreError,
    ) -> MaybeReady<Decision> {
        match error.kind() {
            FailureKind::Overloaded => {
                self.events.observe_store_failure(error, operation.begun);
                self.handle_overload(parts, operation, self.in_flight.figures())
            }
            // One client can fill the store by inventing subjects. The server works: it still
            // decides the requests that it denies, so it is called as before.
            FailureKind::OutOfMemory => {
                let ends_outage = self.breaker.succeeded(call);
                self.events.observe_store_failure(error, operation.begun);
                self.events.store_decided(parts, &self.breaker, ends_outage);
                self.events.store_out_of_memory(error);
                self.decide_without_charge(parts, operation, FailureKind::OutOfMemory)
            }
            kind => {
                let begins_outage = match is_partial {
                    true => self.breaker.failed_in_part(call, kind),
                    false => self.breaker.failed(call, kind),
                };
                let breaker = (&*self.breaker, begins_outage);
                self.events.store_failed(parts[0].subject, error, breaker, operation.begun);
                self.apply_failure_policy(parts, operation, kind)
            }
        }
    }

    /// Decides a request while the store is overloaded. A denial that this process has cached, or
    /// units that it has leased, still decide the request; otherwise the failure policy does. One
    /// client can cause an overload, so an overload must not lift the limits.
    ///
    /// `figures` are the number of decisions in flight and its bound, for the log.
    ///
    /// A server without a free slot is overloaded even if it is silent, because a flood may be the
    /// reason. Only a request that waits for the server until the deadline can find an outage.
    pub(super) fn handle_overload(
        self: &Arc<Self>,
        parts: &[Part<'_>],
        operation: Operation,
        figures: (usize, usize),
    ) -> MaybeReady<Decision> {
        self.events.store_overloaded(figures);
        self.decide_without_charge(parts, operation, FailureKind::Overloaded)
    }

    /// Decides a request that the store cannot charge: by a cached denial or leased units, or else
    /// by the failure policy.
    pub(super) fn decide_without_charge(
        self: &Arc<Self>,
        parts: &[Part<'_>],
        operation: Operation,
        failure: FailureKind,
    ) -> MaybeReady<Decision> {
        let request = DecideRequest::new(&self.stores.namespace, parts, operation.mode);
        match self.stores.primary.decide_locally(&request) {
            Some(decision) => MaybeReady::ready(self.report_parts(parts, operation, decision)),
            None => self.apply_failure_policy(parts, operation, failure),
        }
    }

    /// Decides a request that the store has not decided.
    pub(super) fn apply_failure_policy(
        self: &Arc<Self>,
        parts: &[Part<'_>],
        operation: Operation,
        failure: FailureKind,
    ) -> MaybeReady<Decision> {
        let action = self.failure_policy.action(failure);
        let (OnFailure::Fallback, Some(fallback)) = (action, &self.stores.fallback) else {
            let decision =
                Decision::undecided(parts[0].cost, Origin::without_store(action, failure));
            return MaybeReady::ready(self.report_parts(parts, operation, decision));
        };
        // Parts with the same counters are charged together, so their share has to grant the sum of
        // their costs.
        let costs = summed_costs(&self.stores.namespace, parts);
        let share = |(part, cost): (&Part<'_>, Cost)| {
            fallback.share.of(part.policy, operation.needed(cost))
        };
        let shares: Vec<_> = parts.iter().zip(costs).map(share).collect();
        let shared = parts.iter().zip(&shares).map(|(part, policy)| Part { policy, ..*part });
        let shared: Vec<_> = shared.collect();
        let result =
            self.stores.decide(&*fallback.store, &shared, operation.mode, operation.reserves);
        let result = result.map(move |decided| decided.map(|d| d.into_fallback(failure)));
        let result = self.free_late_places(result, &shared, operation.mode);
        let result = self.stores.within_deadline(result, &*fallback.store, "decide");
        let result = self.stores.fallback_slots.limit(result);
        let (this, owned, policy) = (Arc::clone(self), OwnedParts::new(parts), self.failure_policy);
        result.map(move |result| {
            let parts = owned.as_parts();
            if let Err(error) = &result {
                this.tally.store_failed(error.kind());
            }
            this.events.fallback_returned(result.as_ref().err(), operation.begun);
            let decision = match result {
                Ok(mut decision) => {
                    let configured = parts.iter().map(|part| part.policy.clone());
                    decision.labels_mut().configured = configured.collect();
                    decision
                }
                Err(error) => Decision::undecided(
                    parts[0].cost,
                    Origin::without_store(policy.on_fallback_failure, error.kind()),
                ),
            };
            this.report_parts(&parts, operation, decision)
        })
    }

    /// Frees the places that a store grants after the request has ended or timed out.
    pub(super) fn free_late_places(
        self: &Arc<Self>,
        result: StoreFuture<Decision>,
        parts: &[Part<'_>],
        mode: Mode,
    ) -> StoreFuture<Decision> {
        let has_permits = mode != Mode::Peek && parts.iter().any(|part| part.policy.has_permits());
        match result {
            MaybeReady::Boxed(pending) if has_permits => {
                let (this, owned) = (Arc::clone(self), OwnedParts::new(parts));
                let leases = parts.iter().filter_map(|part| part.policy.shortest_lease());
                let lease = leases.min().unwrap_or_default();
                places::claim(pending, lease, move |decision| {
                    this.settlements.free_places_of_all(&this.stores, &owned.as_parts(), decision);
                })
            }
            result => result,
        }
    }

    /// Returns the number of decisions that wait for the store or the fallback.
    pub(super) fn waiting_for_stores(&self) -> usize {
        self.in_flight.waiting() + self.stores.fallback_slots.waiting()
    }

    /// Reports that no store decides a request of one subject.
    pub(super) fn report_undecided(
        &self,
        subject: &Subject,
        cost: Cost,
        operation: Operation,
        origin: Origin,
    ) -> MaybeReady<Decision> {
        let decision = Decision::undecided(cost, origin);
        MaybeReady::ready(self.report(|_| subject.into(), operation, decision))
    }
}
