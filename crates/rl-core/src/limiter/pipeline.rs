//! The pipeline of a decision, from the request to the events.
//!
//! ```text
//! request -> 1 policy -> 2 circuit breaker -> 3 in flight -> store -> decision -> 5 events
//!              |           |                    |              |
//!              | failed    | open               | full         | failed, or late at the deadline
//!              +-----------+--------------------+--------------+-> 4 failure policy -> 5 events
//! ```
//!
//! If nothing but the store takes part, a store that decides at once skips steps 2 to 5
//! (`decide_fast`).
//!
//! The functions follow the numbered steps. Each continues directly if its step is ready, so a
//! decision of a store in memory allocates nothing. A step that has to wait continues in a boxed
//! future.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::{Instant, timeout};

use super::circuit_breaker::{CallToken, CircuitBreaker};
use super::events::Events;
use super::failure_policy::FailurePolicy;
use super::in_flight::{InFlight, WaitingDecision};
use super::operation::Operation;
use super::parts::{CounterKey, OwnedParts, summed_costs};
use super::pauses::Pauses;
use super::policies::Policies;
use super::policy_denial;
use super::renewals::Renewals;
use super::settlements::Settlements;
use super::stores::{Pending, Stores, timed_out};
use super::tally::Tally;
use super::wait_queue::WaitQueues;
use crate::decision::{Decision, Origin};
use crate::maybe_ready::MaybeReady;
use crate::model::{Cost, FailureKind, Mode, OnFailure, StoreError, Subject};
use crate::observe;
use crate::policy::Policy;
use crate::store::{DecideRequest, Part, ServerLoads, StoreFuture};
use crate::time::Clock;

/// The components that take part in a decision.
pub(super) struct Pipeline {
    pub(super) enabled: bool,
    /// Whether the store decides at once, and its decisions are returned unchanged and are not
    /// reported. This requires that the limiter is switched on, makes no reservations and is not in
    /// shadow, and that no observer receives decisions.
    pub(super) has_fast_path: bool,
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
    pub(super) pauses: Pauses,
    pub(super) settlements: Settlements,
    pub(super) renewals: Renewals,
    pub(super) tally: Tally,
    /// Whether a cost was set for a rule that does not exist. It is logged once.
    pub(super) has_logged_unknown_rule: AtomicBool,
    /// Keeps the limiter in the registry of its store for as long as the limiter lives.
    pub(super) _registration: Option<Arc<()>>,
}

/// A call to the store.
struct Called {
    token: CallToken,
    /// Whether other servers of the store answer, so that a failure concerns only a part of it.
    is_partial: bool,
}

impl Pipeline {
    /// Returns an operation with the deadline of the limiter.
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

    /// Decides a request, by the fast path if it applies.
    pub(super) fn decide(
        self: &Arc<Self>,
        subject: &Subject,
        mode: Mode,
        cost: Cost,
        reserves: bool,
    ) -> MaybeReady<Decision> {
        match self.policies.cached(subject) {
            Some(policy) if self.may_be_fast() && store_decides_alone(policy, mode, cost) => {
                self.decide_fast(&[Part::new(subject, policy, cost)], mode)
            }
            _ => {
                let operation = Operation { reserves, ..self.operation(mode) };
                self.decide_by_steps(subject, cost, operation)
            }
        }
    }

    /// Returns whether an operation has the whole deadline, and its decision is counted and
    /// reported at once.
    fn allows_fast_path(&self, operation: Operation) -> bool {
        let Operation { deadline, reports_denial, is_counted, .. } = operation;
        deadline == self.stores.deadline && reports_denial && is_counted
    }

    /// Returns whether the store can decide a request of these parts without the other steps.
    fn are_fast(&self, parts: &[Part<'_>], mode: Mode) -> bool {
        let is_fast = |part: &Part<'_>| {
            !part.is_shadow() && store_decides_alone(part.policy, mode, part.cost)
        };
        self.may_be_fast() && !parts.is_empty() && parts.iter().all(is_fast)
    }

    /// Returns whether the store can decide without the other steps, if it [decides
    /// alone](store_decides_alone).
    fn may_be_fast(&self) -> bool {
        self.has_fast_path && !self.pauses.may_hold() && !observe::may_decisions_be_logged()
    }

    /// Lets the store decide without the other steps, and counts its decision.
    #[inline(always)]
    pub(super) fn decide_fast(
        self: &Arc<Self>,
        parts: &[Part<'_>],
        mode: Mode,
    ) -> MaybeReady<Decision> {
        let begun = self.tally.begin_decision(mode);
        let request = DecideRequest::new(&self.stores.namespace, parts, mode);
        match self.stores.primary.decide(request) {
            MaybeReady::Ready(Some(Ok(decision))) => {
                self.tally.count(mode, &decision, &|index| CounterKey::from(&parts[index]));
                if let Some(begun) = begun {
                    self.tally.decided_in_memory(begun.elapsed());
                }
                MaybeReady::ready(decision)
            }
            failed => self.leave_fast_path(parts, self.operation(mode), failed),
        }
    }

    /// Continues with the other steps, after a store that should have decided at once has failed or
    /// has to wait.
    #[cold]
    fn leave_fast_path(
        self: &Arc<Self>,
        parts: &[Part<'_>],
        operation: Operation,
        called: StoreFuture<Decision>,
    ) -> MaybeReady<Decision> {
        let request = DecideRequest::new(&self.stores.namespace, parts, operation.mode);
        let loads = self.in_flight.loads(&*self.stores.primary, &request);
        self.await_store(parts, operation, (self.breaker.observe(), &loads), called)
    }

    /// Decides a request of several parts, by the fast path if it applies. The policies are known
    /// already.
    pub(super) fn decide_parts(
        self: &Arc<Self>,
        parts: &[Part<'_>],
        operation: Operation,
    ) -> MaybeReady<Decision> {
        if self.allows_fast_path(operation) && self.are_fast(parts, operation.mode) {
            return self.decide_fast(parts, operation.mode);
        }
        let Some(first) = parts.first() else {
            return MaybeReady::ready(Decision::undecided(Cost::ZERO, Origin::Unlimited));
        };
        if !self.enabled {
            let decision = Decision::undecided(first.cost, Origin::Disabled);
            return MaybeReady::ready(self.report_parts(parts, operation, decision));
        }
        if operation.mode != Mode::Charge || !parts.iter().any(|part| part.policy.has_permits()) {
            return self.decide_with_policies(parts, operation);
        }
        // A charge is for finished work, which needs no unit of a concurrency limit. A part without
        // other limits is charged nothing.
        let rates: Vec<_> = parts.iter().map(|part| without_permits(part.policy)).collect();
        let charged = parts.iter().zip(&rates).map(|(part, rates)| match rates {
            Some(policy) => Part { policy, ..*part },
            None => Part { cost: Cost::ZERO, ..*part },
        });
        self.decide_with_policies(&charged.collect::<Vec<_>>(), operation)
    }

    /// Decides a request step by step, beginning with its policy (step 1).
    pub(super) fn decide_by_steps(
        self: &Arc<Self>,
        subject: &Subject,
        cost: Cost,
        operation: Operation,
    ) -> MaybeReady<Decision> {
        if !self.enabled {
            return self.report_undecided(subject, cost, operation, Origin::Disabled);
        }
        if operation.mode != Mode::Charge
            && let Some(policy) = self.policies.cached(subject)
        {
            return self.decide_with_policies(&[Part::new(subject, policy, cost)], operation);
        }
        match self.policies.find(subject) {
            MaybeReady::Ready(Some(found)) => {
                self.events.source_answered_at_once();
                self.decide_with_lookup(found, subject, cost, operation)
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
                    let operation = Operation { deadline, begun: Some(sent), ..operation };
                    this.decide_with_lookup(found, &subject, cost, operation).await
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
        operation: Operation,
    ) -> MaybeReady<Decision> {
        let policy = match self.policy_found(found, subject, operation.begun) {
            Ok(policy) => policy,
            Err(error) => return self.report_failed_lookup((subject, cost), operation, &error),
        };
        // A charge is for finished work, which needs no unit of a concurrency limit, so concurrency
        // limits are left out.
        let policy = match operation.mode {
            Mode::Charge => policy.as_ref().and_then(without_permits),
            _ => policy,
        };
        match policy {
            Some(policy) => {
                self.decide_with_policies(&[Part::new(subject, &policy, cost)], operation)
            }
            None => self.report_undecided(subject, cost, operation, Origin::Unlimited),
        }
    }

    /// Calls the store, unless a policy alone denies the request, the circuit breaker is open, or
    /// too many decisions are in flight (steps 2 and 3).
    pub(super) fn decide_with_policies(
        self: &Arc<Self>,
        parts: &[Part<'_>],
        operation: Operation,
    ) -> MaybeReady<Decision> {
        if let Some(denial) = self.deny_by_policy(parts, operation, Some(&self.pauses)) {
            return MaybeReady::ready(self.report_parts(parts, operation, denial));
        }
        let call = match self.breaker.try_acquire() {
            Ok(call) => call,
            Err(failure) => {
                self.events.undecided_during_outage();
                return self.apply_failure_policy(parts, operation, failure);
            }
        };
        let request = DecideRequest::new(&self.stores.namespace, parts, operation.mode);
        let loads = self.in_flight.loads(&*self.stores.primary, &request);
        // This check precedes the call, so that a request beyond the bound costs almost nothing.
        if let Some(refusal) = self.in_flight.refusal(&loads) {
            return self.handle_overload(parts, operation, refusal.figures());
        }
        let called = self.call_store(parts, operation);
        self.await_store(parts, operation, (call, &loads), called)
    }

    /// Continues after the store was called: at once if its result is ready, otherwise later.
    fn await_store(
        self: &Arc<Self>,
        parts: &[Part<'_>],
        operation: Operation,
        (call, loads): (CallToken, &ServerLoads<'_>),
        called: StoreFuture<Decision>,
    ) -> MaybeReady<Decision> {
        match called {
            MaybeReady::Ready(Some(result)) => self.handle_result(
                parts,
                operation,
                Called { token: call, is_partial: false },
                result,
            ),
            MaybeReady::Ready(None) => unreachable!("a result that was not polled yet"),
            MaybeReady::Boxed(pending) => match self.in_flight.enter(loads) {
                Ok(waiting) => self.wait_for_store(parts, operation, (call, waiting), pending),
                Err(refusal) => self.handle_overload(parts, operation, refusal.figures()),
            },
        }
    }

    /// Returns the denial of a request that a policy alone denies, or one of `pauses`. This check
    /// precedes the breaker, the store and the failure policy, so the request is denied even during
    /// an outage.
    fn deny_by_policy(
        &self,
        parts: &[Part<'_>],
        operation: Operation,
        pauses: Option<&Pauses>,
    ) -> Option<Decision> {
        // A limiter in shadow denies nothing. Work that is already done cannot be denied either.
        let is_enforced = !self.failure_policy.is_shadow && operation.mode != Mode::Charge;
        let pauses = pauses.filter(|pauses| pauses.may_hold());
        policy_denial::deny(&self.stores, parts, operation, &*self.clock, pauses)
            .filter(|_| is_enforced)
    }

    /// Denies a request if the policy of a part alone denies it. A pause does not count.
    pub(super) fn try_deny_by_policy(
        &self,
        parts: &[Part<'_>],
        operation: Operation,
    ) -> Option<Decision> {
        let denial = self.deny_by_policy(parts, operation, None).filter(|_| self.enabled)?;
        Some(self.report_parts(parts, operation, denial))
    }

    /// Calls the store without a deadline.
    fn call_store(
        self: &Arc<Self>,
        parts: &[Part<'_>],
        Operation { mode, reserves, .. }: Operation,
    ) -> StoreFuture<Decision> {
        let result = self.stores.decide(&*self.stores.primary, parts, mode, reserves);
        self.free_late_places(result, parts, mode)
    }

    /// Waits for the store until the deadline.
    fn wait_for_store(
        self: &Arc<Self>,
        parts: &[Part<'_>],
        operation: Operation,
        (token, waiting): (CallToken, WaitingDecision),
        pending: Pending<Result<Decision, StoreError>>,
    ) -> MaybeReady<Decision> {
        let (this, owned) = (Arc::clone(self), OwnedParts::new(parts));
        let sent = waiting.sent_at();
        let operation = Operation { begun: operation.begun.or(Some(sent)), ..operation };
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
                        let overloaded = this.handle_overload(&parts, operation, figures);
                        drop(parts);
                        return overloaded.await;
                    }
                    is_partial = waiting.release();
                    // If the look-up of the policy took most of the time, a late decision is not
                    // the store's failure.
                    if operation.deadline < this.stores.deadline / 2 {
                        let (parts, failure) = (owned.as_parts(), error.kind());
                        let undecided = this.apply_failure_policy(&parts, operation, failure);
                        drop(parts);
                        return undecided.await;
                    }
                }
                Err(_) => is_partial = waiting.release(),
            }
            let called = Called { token, is_partial };
            let decision = this.handle_result(&owned.as_parts(), operation, called, result);
            decision.await
        })
    }

    /// Records the result with the breaker, and applies the failure policy to an error (step 4).
    fn handle_result(
        self: &Arc<Self>,
        parts: &[Part<'_>],
        operation: Operation,
        Called { token, is_partial }: Called,
        result: Result<Decision, StoreError>,
    ) -> MaybeReady<Decision> {
        if let Err(error) = &result {
            self.tally.store_failed(error.kind());
        }
        match result {
            Ok(decision) => {
                // Denials from the cache and grants from leased units say nothing about the health
                // of the store.
                if !matches!(decision.origin(), Origin::LocalDeny | Origin::Leased) {
                    let ends_outage = self.breaker.succeeded(token);
                    self.events.store_decided(parts, &self.breaker, ends_outage);
                    if decision.is_allowed() && operation.mode != Mode::Peek {
                        self.events.store_charged();
                    }
                }
                MaybeReady::ready(self.report_parts(parts, operation, decision))
            }
            Err(error) => self.handle_failure(parts, operation, (token, is_partial), &error),
        }
    }

    /// Completes the decision, and reports it to the observer and the log (step 5).
    pub(super) fn report_parts(
        &self,
        parts: &[Part<'_>],
        operation: Operation,
        decision: Decision,
    ) -> Decision {
        let counters_of = |index: usize| CounterKey::from(&parts[index]);
        self.report((parts.len(), counters_of), operation, decision)
    }

    /// Completes, counts and reports the decision about a request of `count` parts. `counters_of`
    /// returns the counters of the part at a position.
    pub(super) fn report<'a>(
        &self,
        (count, counters_of): (usize, impl Fn(usize) -> CounterKey<'a>),
        operation: Operation,
        mut decision: Decision,
    ) -> Decision {
        if self.failure_policy.is_shadow {
            decision.apply_shadow();
        }
        if operation.is_counted {
            self.tally.count(operation.mode, &decision, &counters_of);
        }
        if operation.reports_denial || decision.is_allowed() {
            self.events.decided((count, &counters_of), &decision, operation);
        }
        decision
    }

    /// Decides a request that the store has failed to decide. Records the failure with the breaker:
    /// `call` is the token of the call, and whether other servers of the store answer.
    fn handle_failure(
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
    fn handle_overload(
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
    fn decide_without_charge(
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
    fn apply_failure_policy(
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

    /// Frees the places that a store grants after the request has ended or timed out. A *place* is a
    /// unit of a concurrency limit that a request holds.
    fn free_late_places(
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
                claim(pending, lease, move |decision| {
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
        MaybeReady::ready(self.report((1, |_| subject.into()), operation, decision))
    }
}

/// Returns whether the policy alone denies nothing, and the store needs no other policy in its
/// place.
fn store_decides_alone(policy: &Policy, mode: Mode, cost: Cost) -> bool {
    // `Mode::Charge` is for finished work, which occupies no place. If the policy has a
    // concurrency limit, the store must not get the whole policy.
    let is_whole = mode != Mode::Charge || !policy.has_permits();
    is_whole && policy.needs_only_store(mode.required(cost))
}

/// Waits for the store in a separate task, for up to `lease`.
///
/// If the store grants places after the request has ended or timed out, `free` gets the decision,
/// and releases them. Otherwise they would stay occupied until their lease ends.
fn claim(
    pending: Pending<Result<Decision, StoreError>>,
    lease: Duration,
    free: impl FnOnce(&Decision) + Send + 'static,
) -> StoreFuture<Decision> {
    MaybeReady::later(async move {
        let (reply, received) = oneshot::channel();
        tokio::spawn(async move {
            if let Ok(result) = timeout(lease, pending).await {
                // If the receiver is gone, the reply is dropped, and dropping it frees its places.
                let _ = reply.send(result.map(|decision| Granted(Some((decision, free)))));
            }
        });
        match received.await {
            Ok(granted) => granted.map(Granted::claim),
            // The runtime is shutting down, or the store has not replied for as long as a lease.
            Err(_) => Err(StoreError::new(FailureKind::Unavailable)),
        }
    })
}

/// Places that the store has granted. They are freed when this value is dropped.
struct Granted<F: FnOnce(&Decision)>(Option<(Decision, F)>);

impl<F: FnOnce(&Decision)> Granted<F> {
    /// Returns the decision, and leaves the places to the request.
    fn claim(mut self) -> Decision {
        let (decision, _) = self.0.take().expect("places are claimed once");
        decision
    }
}

impl<F: FnOnce(&Decision)> Drop for Granted<F> {
    fn drop(&mut self) {
        if let Some((decision, free)) = self.0.take()
            && decision.is_allowed()
        {
            free(&decision);
        }
    }
}

/// Returns a policy with the limits that are charged for finished work: all except concurrency
/// limits. Returns `None` if `policy` has no others.
fn without_permits(policy: &Policy) -> Option<Policy> {
    policy.only(|_, limit| !limit.holds_permits())
}
