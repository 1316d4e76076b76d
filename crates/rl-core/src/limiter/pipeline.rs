//! The pipeline of a decision, from the request to the events.
//!
//! ```text
//! request -> 1 policy -> 2 circuit breaker -> 3 in flight -> store -> decision -> 5 report
//!              |           |                    |              |
//!              | failed    | open               | full         | failed, or late at the deadline
//!              +-----------+--------------------+--------------+-> 4 failure policy -> 5 report
//! ```
//!
//! The functions follow the numbered steps. Each continues directly if its step is ready, so a
//! decision of a store in memory allocates nothing. A step that has to wait continues in a boxed
//! future.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use tokio::time::Instant;

use super::charges::summed_costs;
use super::circuit_breaker::{CallToken, CircuitBreaker};
use super::counters::PartCounters;
use super::events::Events;
use super::failure_policy::{FailurePolicy, OnFailure};
use super::in_flight::InFlight;
use super::operation::Operation;
use super::owned_parts::OwnedParts;
use super::places::{self, without_permits};
use super::policies::Policies;
use super::policy_denial;
use super::renewals::Renewals;
use super::settlements::Settlements;
use super::stores::{Pending, Stores, timed_out};
use super::tally::Tally;
use super::wait_queue::WaitQueues;
use crate::decision::{Decision, Origin};
use crate::maybe_ready::MaybeReady;
use crate::model::{Cost, FailureKind, Mode, StoreError, Subject};
use crate::policy::Policy;
use crate::store::{DecideRequest, FullServer, Part};
use crate::time::Clock;

/// The components that take part in a decision.
pub(super) struct Pipeline {
    pub(super) enabled: bool,
    pub(super) policies: Policies,
    pub(super) rules: Option<Box<crate::rules::ActiveRules>>,
    pub(super) stores: Stores,
    /// The clock on which blocks end.
    pub(super) clock: Arc<dyn Clock>,
    /// The policy of subjects whose look-up is refused because the source of policies is
    /// overloaded.
    pub(super) policy_when_overloaded: Option<Policy>,
    pub(super) breaker: Arc<CircuitBreaker>,
    pub(super) in_flight: Arc<InFlight>,
    pub(super) failure_policy: FailurePolicy,
    pub(super) events: Arc<Events>,
    pub(super) wait_queues: Arc<WaitQueues>,
    pub(super) settlements: Settlements,
    pub(super) renewals: Renewals,
    pub(super) tally: Tally,
    /// Whether a cost was set for a rule that does not exist. It is logged once.
    pub(super) has_logged_unknown_rule: AtomicBool,
    /// Keeps the limiter in the registry of its store for as long as the limiter lives.
    pub(super) _registration: Option<Arc<()>>,
}

impl Pipeline {
    /// Returns an operation with the deadline of the limiter.
    #[inline]
    pub(super) fn operation(&self, mode: Mode) -> Operation {
        let deadline = self.stores.deadline;
        Operation {
            mode,
            deadline,
            reports_denial: true,
            is_counted: true,
            reserves: false,
            begun: None,
        }
    }

    /// Decides a request of one subject under the subject's own policy (step 1).
    pub(super) fn decide(
        self: &Arc<Self>,
        subject: &Subject,
        cost: Cost,
        operation: &Operation,
    ) -> MaybeReady<Decision> {
        if !self.enabled {
            return self.decide_without_store(subject, cost, operation, Origin::Disabled);
        }
        match self.policies.cached(subject) {
            Some(policy) => self.decide_parts(&[Part::new(subject, policy, cost)], operation),
            None => self.find_policy_and_decide(subject, cost, operation),
        }
    }

    fn find_policy_and_decide(
        self: &Arc<Self>,
        subject: &Subject,
        cost: Cost,
        operation: &Operation,
    ) -> MaybeReady<Decision> {
        match self.policies.find(subject) {
            MaybeReady::Ready(Some(found)) => {
                self.events.source_answered_at_once();
                self.decide_with_lookup(found, subject, cost, operation)
            }
            lookup => {
                let (this, subject, operation) = (Arc::clone(self), subject.clone(), *operation);
                MaybeReady::later(async move {
                    let sent = Instant::now();
                    let found = this.policies.wait_for(lookup, operation.deadline).await;
                    if found.is_ok() {
                        this.events.source_answered(&subject);
                    }
                    // The look-up counts towards the deadline of the decision.
                    let deadline = operation.deadline.saturating_sub(sent.elapsed());
                    let operation = Operation { deadline, begun: Some(sent), ..operation };
                    this.decide_with_lookup(found, &subject, cost, &operation).await
                })
            }
        }
    }

    /// Continues after the look-up with a policy, with `None` if no limits apply, or with an error.
    fn decide_with_lookup(
        self: &Arc<Self>,
        found: Result<Option<Policy>, StoreError>,
        subject: &Subject,
        cost: Cost,
        operation: &Operation,
    ) -> MaybeReady<Decision> {
        match self.policy_found(found, subject, operation.begun) {
            Ok(Some(policy)) => self.decide_parts(&[Part::new(subject, &policy, cost)], operation),
            Ok(None) => self.decide_without_store(subject, cost, operation, Origin::Unlimited),
            Err(error) => self.decide_without_policy(subject, cost, operation, &error),
        }
    }

    /// Decides a request whose policies are known. It has no limits if it has no parts.
    pub(super) fn decide_parts(
        self: &Arc<Self>,
        parts: &[Part<'_>],
        operation: &Operation,
    ) -> MaybeReady<Decision> {
        let Some(first) = parts.first() else {
            return MaybeReady::ready(Decision::undecided(Cost::ZERO, Origin::Unlimited));
        };
        if !self.enabled {
            let decision = Decision::undecided(first.cost, Origin::Disabled);
            return MaybeReady::ready(self.report_parts(parts, operation, decision));
        }
        if operation.mode == Mode::Charge && parts.iter().any(|part| part.policy.has_permits()) {
            return self.charge_rates(parts, operation);
        }
        match self.deny_by_policy(parts, operation) {
            Some(denial) => MaybeReady::ready(self.report_parts(parts, operation, denial)),
            None => self.decide_in_store(parts, operation),
        }
    }

    /// Charges finished work, which needs no unit of a concurrency limit. A part without other limits
    /// is charged nothing.
    #[cold]
    fn charge_rates(
        self: &Arc<Self>,
        parts: &[Part<'_>],
        operation: &Operation,
    ) -> MaybeReady<Decision> {
        let rates: Vec<_> = parts.iter().map(|part| without_permits(part.policy)).collect();
        if rates.iter().all(Option::is_none) {
            let decision = Decision::undecided(parts[0].cost, Origin::Unlimited);
            return MaybeReady::ready(self.report_parts(parts, operation, decision));
        }
        let charged = parts.iter().zip(&rates).map(|(part, rates)| match rates {
            Some(policy) => Part { policy, ..*part },
            None => Part { cost: Cost::ZERO, ..*part },
        });
        self.decide_in_store(&charged.collect::<Vec<_>>(), operation)
    }

    /// Returns the denial of a request that a policy alone denies. This check precedes the breaker,
    /// the store and the failure policy, so the request is denied even during an outage.
    #[inline]
    fn deny_by_policy(&self, parts: &[Part<'_>], operation: &Operation) -> Option<Decision> {
        // A limiter in shadow denies nothing. Work that is already done cannot be denied either.
        let is_enforced = !self.failure_policy.is_shadow && operation.mode != Mode::Charge;
        if is_enforced && policy_denial::may_deny(parts, operation) {
            policy_denial::deny(&self.stores, parts, operation, &*self.clock)
        } else {
            None
        }
    }

    /// Denies a request if the policy of a part alone denies it.
    pub(super) fn try_deny_by_policy(
        &self,
        parts: &[Part<'_>],
        operation: &Operation,
    ) -> Option<Decision> {
        let denial = self.deny_by_policy(parts, operation).filter(|_| self.enabled)?;
        Some(self.report_parts(parts, operation, denial))
    }

    /// Calls the store, unless the circuit breaker is open, or too many decisions are in flight
    /// (steps 2 and 3).
    #[inline(always)]
    fn decide_in_store(
        self: &Arc<Self>,
        parts: &[Part<'_>],
        operation: &Operation,
    ) -> MaybeReady<Decision> {
        let token = match self.breaker.try_acquire() {
            Ok(token) => token,
            Err(failure) => {
                self.events.undecided_during_outage();
                return self.apply_failure_policy(parts, operation, failure);
            }
        };
        let request = self.stores.request(parts, operation.mode, operation.reserves);
        // This check precedes the call, so that a request beyond the bound costs almost nothing.
        if let Some(refusal) = self.in_flight.refusal(&*self.stores.primary, &request) {
            return self.decide_refused(parts, operation, refusal);
        }
        let begun = self.tally.decision_begins(operation.mode);
        let mut answer = self.stores.primary.decide(request);
        if let MaybeReady::Ready(Some(Ok(decision))) = &mut answer {
            if let Some(begun) = begun {
                self.tally.decided_in_memory(begun.elapsed());
            }
            // Reported before it is moved, because the processor has to wait for a value that is
            // moved as soon as it is written.
            self.conclude(parts, operation, token, decision);
            return match answer {
                MaybeReady::Ready(Some(Ok(decision))) => MaybeReady::ready(decision),
                _ => unreachable!("the store has decided"),
            };
        }
        match answer {
            MaybeReady::Boxed(pending) => self.wait_for_store(parts, operation, token, pending),
            MaybeReady::Ready(Some(Err(error))) => {
                self.decide_failed(parts, operation, (token, false), &error)
            }
            MaybeReady::Ready(_) => unreachable!("a result that was not polled yet"),
        }
    }

    /// Waits for the store until the deadline, unless too many decisions are in flight.
    #[inline(never)]
    fn wait_for_store(
        self: &Arc<Self>,
        parts: &[Part<'_>],
        operation: &Operation,
        token: CallToken,
        pending: Pending<Result<Decision, StoreError>>,
    ) -> MaybeReady<Decision> {
        let request = self.stores.request(parts, operation.mode, operation.reserves);
        let waiting = match self.in_flight.enter(&*self.stores.primary, &request) {
            Ok(waiting) => waiting,
            Err(refusal) => return self.decide_refused(parts, operation, refusal),
        };
        let pending = self.free_late_places(pending, parts, operation.mode);
        let (this, owned) = (Arc::clone(self), OwnedParts::new(parts));
        let sent = waiting.sent_at();
        let operation = Operation { begun: operation.begun.or(Some(sent)), ..*operation };
        let span = self.events.store_span(parts);
        MaybeReady::later(async move {
            let deadline = sent + operation.deadline;
            let result = waiting.wait_until(deadline, span.instrument(pending)).await;
            let result = result.unwrap_or_else(|| Err(timed_out()));
            span.decided(&result);
            let before = this.stores.deadline.saturating_sub(operation.deadline);
            this.tally.store_called(sent, this.in_flight.micros(sent), before);
            let mut is_partial = false;
            match &result {
                Ok(_) => waiting.finish(),
                // The server has answered in time.
                Err(error) if error.kind() == FailureKind::OutOfMemory => waiting.finish(),
                Err(error) if error.kind() == FailureKind::TimedOut => {
                    if waiting.record_timeout(operation.deadline) == FailureKind::Overloaded {
                        let figures = waiting.figures();
                        drop(waiting);
                        let parts = owned.as_parts();
                        let overloaded = this.decide_overloaded(&parts, &operation, figures);
                        drop(parts);
                        return overloaded.await;
                    }
                    is_partial = waiting.release();
                    // If the look-up of the policy took most of the time, a late decision is not
                    // the store's failure.
                    if operation.deadline < this.stores.deadline / 2 {
                        let (parts, failure) = (owned.as_parts(), error.kind());
                        let undecided = this.apply_failure_policy(&parts, &operation, failure);
                        drop(parts);
                        return undecided.await;
                    }
                }
                Err(_) => is_partial = waiting.release(),
            }
            let parts = owned.as_parts();
            let decided = match result {
                Ok(mut decision) => {
                    this.conclude(&parts, &operation, token, &mut decision);
                    MaybeReady::ready(decision)
                }
                Err(error) => this.decide_failed(&parts, &operation, (token, is_partial), &error),
            };
            drop(parts);
            decided.await
        })
    }

    /// Records a decision of the store with the breaker, and reports it (step 5).
    #[inline(always)]
    fn conclude(
        &self,
        parts: &[Part<'_>],
        operation: &Operation,
        token: CallToken,
        decision: &mut Decision,
    ) {
        // Denials from the cache and grants from leased units say nothing about the health of the
        // store.
        if !matches!(decision.origin(), Origin::LocalDeny | Origin::Leased) {
            let ends_outage = self.breaker.succeeded(token);
            let charges = decision.is_allowed() && operation.mode != Mode::Peek;
            self.events.store_decided(parts, &self.breaker, ends_outage, charges);
        }
        self.report(PartCounters::Parts(parts), operation, decision);
    }

    /// Decides a request that the store has failed to decide. Records the failure with the breaker:
    /// `call` is the token of the call, and whether other servers of the store answer.
    #[cold]
    fn decide_failed(
        self: &Arc<Self>,
        parts: &[Part<'_>],
        operation: &Operation,
        (call, is_partial): (CallToken, bool),
        error: &StoreError,
    ) -> MaybeReady<Decision> {
        self.tally.store_failed(error.kind());
        match error.kind() {
            FailureKind::Overloaded => {
                self.events.store_call_failed(error, operation.begun);
                self.decide_overloaded(parts, operation, self.in_flight.figures())
            }
            // One client can fill the store by inventing subjects. The server works: it still decides
            // the requests that it denies, so it is called as before.
            FailureKind::OutOfMemory => {
                let ends_outage = self.breaker.succeeded(call);
                self.events.store_call_failed(error, operation.begun);
                self.events.store_decided(parts, &self.breaker, ends_outage, false);
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
    fn decide_overloaded(
        self: &Arc<Self>,
        parts: &[Part<'_>],
        operation: &Operation,
        figures: (usize, usize),
    ) -> MaybeReady<Decision> {
        self.events.store_overloaded(figures);
        self.decide_without_charge(parts, operation, FailureKind::Overloaded)
    }

    /// Decides a request that the store cannot charge: by a cached denial or leased units, or else
    /// by the failure policy.
    fn decide_without_charge(
        self: &Arc<Self>,
        parts: &[Part<'_>],
        operation: &Operation,
        failure: FailureKind,
    ) -> MaybeReady<Decision> {
        let request = DecideRequest::new(&self.stores.namespace, parts, operation.mode);
        match self.stores.primary.decide_locally(&request) {
            Some(decision) => MaybeReady::ready(self.report_parts(parts, operation, decision)),
            None => self.apply_failure_policy(parts, operation, failure),
        }
    }

    /// Decides a request for which a server has no free slot.
    ///
    /// This is an overload even if the server is silent, because a flood may be the reason. Only a
    /// request that waits for the server until the deadline can find an outage.
    fn decide_refused(
        self: &Arc<Self>,
        parts: &[Part<'_>],
        operation: &Operation,
        FullServer { in_flight, bound }: FullServer,
    ) -> MaybeReady<Decision> {
        self.decide_overloaded(parts, operation, (in_flight, bound))
    }

    /// Decides a request that the store has not decided.
    fn apply_failure_policy(
        self: &Arc<Self>,
        parts: &[Part<'_>],
        operation: &Operation,
        failure: FailureKind,
    ) -> MaybeReady<Decision> {
        let action = self.failure_policy.action(failure);
        let (OnFailure::Fallback, Some(fallback)) = (action, &self.stores.fallback) else {
            let decision = Decision::undecided(parts[0].cost, action.origin(failure));
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
        let request = self.stores.request(&shared, operation.mode, operation.reserves);
        let result = fallback.store.decide(request);
        let result = result.map(move |decided| decided.map(|d| d.into_fallback(failure)));
        let result = match result {
            MaybeReady::Boxed(pending) => {
                MaybeReady::Boxed(self.free_late_places(pending, &shared, operation.mode))
            }
            ready => ready,
        };
        let result = self.stores.within_deadline(result, &*fallback.store, "decide");
        let result = self.stores.fallback_slots.limit(result);
        let (this, owned, policy) = (Arc::clone(self), OwnedParts::new(parts), self.failure_policy);
        let operation = *operation;
        result.map(move |result| {
            let parts = owned.as_parts();
            if let Err(error) = &result {
                this.tally.store_failed(error.kind());
            }
            this.events.fallback_concluded(result.as_ref().err(), operation.begun);
            let decision = match result {
                Ok(mut decision) => {
                    let configured = parts.iter().map(|part| part.policy.clone());
                    decision.labels_mut().configured = configured.collect();
                    decision
                }
                Err(error) => Decision::undecided(
                    parts[0].cost,
                    policy.on_fallback_failure.origin(error.kind()),
                ),
            };
            this.report_parts(&parts, &operation, decision)
        })
    }

    /// Frees the places that a store grants after the request has ended or timed out.
    fn free_late_places(
        self: &Arc<Self>,
        pending: Pending<Result<Decision, StoreError>>,
        parts: &[Part<'_>],
        mode: Mode,
    ) -> Pending<Result<Decision, StoreError>> {
        let leases = parts.iter().filter_map(|part| part.policy.shortest_lease());
        let Some(lease) = leases.min().filter(|_| mode != Mode::Peek) else { return pending };
        let (this, owned) = (Arc::clone(self), OwnedParts::new(parts));
        places::claim(pending, lease, move |decision| {
            this.settlements.free_places_of_all(&this.stores, &owned.as_parts(), decision);
        })
    }

    /// Returns the number of decisions that wait for the store or the fallback.
    pub(super) fn waiting_for_stores(&self) -> usize {
        self.in_flight.waiting() + self.stores.fallback_slots.waiting()
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

    /// Decides a request whose policy was not found. Without it, a fallback cannot decide.
    pub(super) fn decide_without_policy(
        &self,
        subject: &Subject,
        cost: Cost,
        operation: &Operation,
        error: &StoreError,
    ) -> MaybeReady<Decision> {
        let action = self.failure_policy.action_without_policy(error.kind());
        self.decide_without_store(subject, cost, operation, action.origin(error.kind()))
    }

    /// Decides a request of one subject without calling any store.
    pub(super) fn decide_without_store(
        &self,
        subject: &Subject,
        cost: Cost,
        operation: &Operation,
        origin: Origin,
    ) -> MaybeReady<Decision> {
        let mut decision = Decision::undecided(cost, origin);
        self.report(PartCounters::Subject(subject), operation, &mut decision);
        MaybeReady::ready(decision)
    }

    /// Completes, counts and reports the decision on a request of parts (step 5).
    #[inline]
    fn report_parts(
        &self,
        parts: &[Part<'_>],
        operation: &Operation,
        mut decision: Decision,
    ) -> Decision {
        self.report(PartCounters::Parts(parts), operation, &mut decision);
        decision
    }

    /// Completes, counts and reports the decision on a request. `parts` are the counters of its
    /// parts.
    #[inline]
    fn report(
        &self,
        parts: PartCounters<'_>,
        operation: &Operation,
        decision: &mut Decision,
    ) {
        if self.failure_policy.is_shadow {
            decision.apply_shadow();
        }
        if operation.is_counted {
            self.tally.count(operation.mode, decision, parts);
        }
        if operation.reports_denial || decision.is_allowed() {
            self.events.decided(parts, decision, operation.begun);
        }
    }
}
