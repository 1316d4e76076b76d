//! The pipeline of a decision, from the request to the events.
//!
//! ```text
//! request -> policy -> circuit breaker -> in flight -> store, until the deadline -> decision -> events
//!              |             |                |                  |
//!              | failed      | open           | full             | failed or late
//!              +-------------+----------------+------------------+-> failure policy -> decision -> events
//! ```
//!
//! The functions follow this order. Each continues directly if its step is ready, so a decision of
//! a store in memory allocates nothing. A step that has to wait continues in a boxed future.

use std::sync::Arc;

use tokio::time::{Instant, timeout_at};

use super::circuit_breaker::{CallToken, CircuitBreaker};
use super::events::Events;
use super::failure_policy::{FailurePolicy, OnFailure};
use super::in_flight::InFlight;
use super::operation::Operation;
use super::places;
use super::policies::Policies;
use super::policy_denial;
use super::renewals::Renewals;
use super::settlements::Settlements;
use super::stores::{Pending, Stores, timed_out};
use super::wait_queue::WaitQueues;
use crate::decision::{Decision, Origin};
use crate::maybe_ready::MaybeReady;
use crate::model::{Cost, FailureKind, Mode, StoreError, Subject};
use crate::observe;
use crate::policy::Policy;
use crate::store::{DecideRequest, Part, StoreFuture};
use crate::time::Clock;

/// The components that take part in a decision.
pub(super) struct Pipeline {
    pub(super) enabled: bool,
    /// Whether decisions of the store are returned unchanged and are not reported. This requires
    /// that there is no observer and that the limiter is not in shadow.
    pub(super) has_fast_path: bool,
    pub(super) policies: Policies,
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
    /// Keeps the limiter in the registry of its store for as long as the limiter lives.
    pub(super) _registration: Option<Arc<()>>,
}

impl Pipeline {
    /// Returns an operation with the deadline of the limiter.
    #[inline]
    pub(super) fn operation(&self, mode: Mode, cost: Cost) -> Operation {
        let deadline = self.stores.deadline;
        Operation { mode, cost, deadline, reports_denial: true, reserves: false }
    }

    /// Returns a number that the limiter shares with its clones, and with no other limiter that is alive.
    #[inline]
    pub(super) fn id(&self) -> usize {
        std::ptr::from_ref(self).addr()
    }

    /// Decides a request, by the fast path if it applies.
    #[inline]
    pub(super) fn decide(
        self: &Arc<Self>,
        subject: &Subject,
        mode: Mode,
        cost: Cost,
        reserves: bool,
    ) -> MaybeReady<Decision> {
        let by_steps = move || {
            let operation = Operation { reserves, ..self.operation(mode, cost) };
            self.decide_by_steps(subject, operation)
        };
        let Some(policy) = self.policy_of_fast_path(subject, mode, cost) else { return by_steps() };
        let parts = [Part::new(subject, policy, cost)];
        let request = DecideRequest::new(&self.stores.namespace, &parts, mode);
        self.stores.primary.try_decide(&request, &by_steps)
    }

    /// Returns the policy of a request that the store can decide without the other steps.
    #[inline]
    fn policy_of_fast_path(&self, subject: &Subject, mode: Mode, cost: Cost) -> Option<&Policy> {
        if !self.has_fast_path || observe::may_decisions_be_logged() {
            return None;
        }
        let policy = self.policies.cached(subject)?;
        // `Mode::Charge` is for finished work, which occupies no place. If the policy has a
        // concurrency limit, the store must not get the whole policy.
        let is_whole = mode != Mode::Charge || !policy.has_permits();
        (is_whole && policy.needs_only_store(mode.required(cost))).then_some(policy)
    }

    /// Decides a request under `policy` instead of the subject's own.
    pub(super) fn decide_under(
        self: &Arc<Self>,
        policy: &Policy,
        subject: &Subject,
        operation: Operation,
    ) -> MaybeReady<Decision> {
        if self.enabled {
            self.decide_with_policy(policy, subject, operation)
        } else {
            self.decide_without_store(subject, operation, Origin::Disabled)
        }
    }

    /// Decides a request step by step, beginning with its policy (step 1).
    #[inline(never)]
    pub(super) fn decide_by_steps(
        self: &Arc<Self>,
        subject: &Subject,
        operation: Operation,
    ) -> MaybeReady<Decision> {
        if !self.enabled {
            return self.decide_without_store(subject, operation, Origin::Disabled);
        }
        if operation.mode != Mode::Charge
            && let Some(policy) = self.policies.cached(subject)
        {
            return self.decide_with_policy(policy, subject, operation);
        }
        match self.policies.find(subject) {
            MaybeReady::Ready(Some(found)) => {
                self.events.source_answered_at_once();
                self.decide_with_lookup(found, subject, operation)
            }
            lookup => {
                let (this, subject) = (Arc::clone(self), subject.clone());
                MaybeReady::later(async move {
                    let sent = Instant::now();
                    let found = this.policies.wait_for(lookup, operation.deadline).await;
                    if found.is_ok() {
                        this.events.source_answered(&subject);
                    }
                    // The look-up counts towards the deadline of the decision.
                    let deadline = operation.deadline.saturating_sub(sent.elapsed());
                    let operation = Operation { deadline, ..operation };
                    this.decide_with_lookup(found, &subject, operation).await
                })
            }
        }
    }

    /// Continues with the result of the look-up: a policy, or an error.
    fn decide_with_lookup(
        self: &Arc<Self>,
        found: Result<Option<Policy>, StoreError>,
        subject: &Subject,
        operation: Operation,
    ) -> MaybeReady<Decision> {
        let policy = match (found, &self.policy_when_overloaded) {
            (Ok(policy), _) => policy,
            (Err(error), Some(policy)) if error.kind() == FailureKind::Overloaded => {
                self.events.policy_when_overloaded_applies(&error);
                Some(policy.clone())
            }
            (Err(error), _) => {
                self.events.source_failed(subject, &error);
                return self.apply_failure_policy(None, subject, operation, error.kind());
            }
        };
        // A charge is for finished work, which needs no unit of a concurrency limit.
        let policy = match operation.mode {
            Mode::Charge => {
                policy.and_then(|policy| policy.only(|_, limit| !limit.holds_permits()))
            }
            _ => policy,
        };
        match policy {
            Some(policy) => self.decide_with_policy(&policy, subject, operation),
            None => self.decide_without_store(subject, operation, Origin::Unlimited),
        }
    }

    /// Calls the store, unless the policy alone denies the request, the circuit breaker is open, or too many
    /// decisions are in flight (steps 2 and 3).
    fn decide_with_policy(
        self: &Arc<Self>,
        policy: &Policy,
        subject: &Subject,
        operation: Operation,
    ) -> MaybeReady<Decision> {
        if let Some(denial) = self.deny_by_policy(policy, operation) {
            return MaybeReady::ready(self.finish(subject, operation, denial));
        }
        let call = match self.breaker.try_acquire() {
            Ok(call) => call,
            Err(failure) => {
                self.events.undecided_during_outage();
                return self.apply_failure_policy(Some(policy), subject, operation, failure);
            }
        };
        // This check precedes the call, so that a request beyond the bound costs almost nothing.
        if self.in_flight.is_full() {
            return self.decide_overloaded(policy, subject, operation);
        }
        match self.call_store(policy, subject, operation) {
            MaybeReady::Ready(Some(result)) => {
                self.conclude(policy, subject, operation, call, result)
            }
            MaybeReady::Ready(None) => unreachable!("a result that was not polled yet"),
            MaybeReady::Boxed(pending) => {
                self.wait_for_store(policy, subject, operation, call, pending)
            }
        }
    }

    /// Returns the denial of a request that its policy alone denies. It precedes the breaker, the
    /// store and the failure policy, so it holds even when none of them can decide.
    #[inline]
    fn deny_by_policy(&self, policy: &Policy, operation: Operation) -> Option<Decision> {
        // A limiter in shadow denies nothing, and a charge is for work that has been done.
        let is_enforced = !self.failure_policy.is_shadow && operation.mode != Mode::Charge;
        policy_denial::deny(policy, operation, &*self.clock).filter(|_| is_enforced)
    }

    /// Denies a request of `subject` if its policy is cached and alone denies the request.
    pub(super) fn try_deny_by_policy(
        &self,
        subject: &Subject,
        operation: Operation,
    ) -> Option<Decision> {
        let policy = self.policies.cached(subject).filter(|_| self.enabled)?;
        let denial = self.deny_by_policy(policy, operation)?;
        Some(self.finish(subject, operation, denial))
    }

    /// Calls the store without a deadline.
    fn call_store(
        self: &Arc<Self>,
        policy: &Policy,
        subject: &Subject,
        Operation { mode, cost, reserves, .. }: Operation,
    ) -> StoreFuture<Decision> {
        let part = Part::new(subject, policy, cost);
        let result = self.stores.decide(&*self.stores.primary, part, mode, reserves);
        match result {
            MaybeReady::Boxed(pending) if policy.has_permits() && mode != Mode::Peek => {
                let (this, subject) = (Arc::clone(self), subject.clone());
                let lease = places::shortest_lease(policy).unwrap_or_default();
                places::claim(pending, lease, move |decision| {
                    let call = this.breaker.observe();
                    let freed = this.settlements.free_places(
                        &this.stores,
                        &subject,
                        decision,
                        decision.at(),
                    );
                    this.settlements.complete(&subject, decision.origin(), call, freed);
                })
            }
            result => result,
        }
    }

    /// Waits for the store until the deadline.
    #[inline(never)]
    fn wait_for_store(
        self: &Arc<Self>,
        policy: &Policy,
        subject: &Subject,
        operation: Operation,
        call: CallToken,
        pending: Pending<Result<Decision, StoreError>>,
    ) -> MaybeReady<Decision> {
        let Some(slot) = self.in_flight.enter() else {
            return self.decide_overloaded(policy, subject, operation);
        };
        let (this, policy, subject) = (Arc::clone(self), policy.clone(), subject.clone());
        MaybeReady::later(async move {
            let result = timeout_at(slot.sent_at() + operation.deadline, pending).await;
            let result = result.unwrap_or_else(|_| Err(timed_out()));
            match &result {
                Ok(_) => slot.answered(),
                Err(error) if error.kind() == FailureKind::TimedOut => {
                    if slot.timed_out(operation.deadline) {
                        return this.decide_overloaded(&policy, &subject, operation).await;
                    }
                    // If the look-up of the policy took most of the time, a late decision is not
                    // the store's failure.
                    if operation.deadline < this.stores.deadline / 2 {
                        let failure = error.kind();
                        return this
                            .apply_failure_policy(Some(&policy), &subject, operation, failure)
                            .await;
                    }
                }
                Err(_) => drop(slot),
            }
            this.conclude(&policy, &subject, operation, call, result).await
        })
    }

    /// Records the result with the breaker, and applies the failure policy to an error (step 4).
    fn conclude(
        self: &Arc<Self>,
        policy: &Policy,
        subject: &Subject,
        operation: Operation,
        call: CallToken,
        result: Result<Decision, StoreError>,
    ) -> MaybeReady<Decision> {
        match result {
            Ok(decision) => {
                // Denials from the cache and grants from leased units say nothing about the health
                // of the store.
                if !matches!(decision.origin(), Origin::LocalDeny | Origin::Leased) {
                    self.events.store_decided(subject, self.breaker.succeeded(call));
                }
                MaybeReady::ready(self.finish(subject, operation, decision))
            }
            Err(error) if error.kind() == FailureKind::Overloaded => {
                self.events.observe_store_failure(&error);
                self.decide_overloaded(policy, subject, operation)
            }
            Err(error) => {
                self.events.store_failed(subject, &error, self.breaker.failed(call, error.kind()));
                self.apply_failure_policy(Some(policy), subject, operation, error.kind())
            }
        }
    }

    /// Decides a request while the store is overloaded: with local state if possible, else by the
    /// failure policy. One client can cause an overload, so an overload must not lift the limits.
    #[inline(never)]
    fn decide_overloaded(
        self: &Arc<Self>,
        policy: &Policy,
        subject: &Subject,
        operation: Operation,
    ) -> MaybeReady<Decision> {
        self.events.store_overloaded();
        self.in_flight.refused();
        let parts = [Part::new(subject, policy, operation.cost)];
        let request = DecideRequest::new(&self.stores.namespace, &parts, operation.mode);
        match self.stores.primary.decide_locally(&request) {
            Some(decision) => MaybeReady::ready(self.finish(subject, operation, decision)),
            None => {
                let failure = FailureKind::Overloaded;
                self.apply_failure_policy(Some(policy), subject, operation, failure)
            }
        }
    }

    /// Decides a request that the store has not decided. Without a policy, a fallback cannot decide.
    fn apply_failure_policy(
        self: &Arc<Self>,
        policy: Option<&Policy>,
        subject: &Subject,
        operation: Operation,
        failure: FailureKind,
    ) -> MaybeReady<Decision> {
        let action = self.failure_policy.action(failure);
        let (OnFailure::Fallback, Some(policy), Some(fallback)) =
            (action, policy, &self.stores.fallback)
        else {
            return self.decide_without_store(subject, operation, action.origin(failure));
        };
        let share = fallback.share.of(policy);
        let part = Part::new(subject, &share, operation.cost);
        let result = self.stores.decide(&*fallback.store, part, operation.mode, operation.reserves);
        let result = self.in_flight.limit(self.stores.within_deadline(result));
        let (this, policy, subject) = (Arc::clone(self), policy.clone(), subject.clone());
        result.map(move |result| {
            this.events.fallback_concluded(result.as_ref().err());
            let decision = this.failure_policy.after_fallback(result, &policy, operation, failure);
            this.finish(&subject, operation, decision)
        })
    }

    /// Decides a request without calling any store.
    fn decide_without_store(
        &self,
        subject: &Subject,
        operation: Operation,
        origin: Origin,
    ) -> MaybeReady<Decision> {
        let decision = Decision::undecided(operation.cost, origin);
        MaybeReady::ready(self.finish(subject, operation, decision))
    }

    /// Completes the decision, and reports it to the observer and the log (step 5).
    fn finish(&self, subject: &Subject, operation: Operation, mut decision: Decision) -> Decision {
        if self.failure_policy.is_shadow {
            decision.apply_shadow();
        }
        if operation.reports_denial || decision.is_allowed() {
            self.events.decided(subject, &decision);
        }
        decision
    }
}
