//! The pipeline of a decision, from the request to the events.
//!
//! ```text
//! request -> 1 policy -> 2 circuit breaker -> 3 in flight -> store -> decision -> 5 events
//!              |           |                    |              |
//!              | failed    | open               | full         | failed, or late at the deadline
//!              +-----------+--------------------+--------------+-> 4 failure policy -> 5 events
//! ```
//!
//! The functions follow the numbered steps. Each continues directly if its step is ready, so a
//! decision of a store in memory allocates nothing. A step that has to wait continues in a boxed
//! future.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use tokio::time::Instant;

use super::circuit_breaker::{CallToken, CircuitBreaker};
use super::events::Events;
use super::failure_policy::FailurePolicy;
use super::in_flight::{InFlight, WaitingDecision};
use super::operation::Operation;
use super::parts::{Counters, OwnedParts};
use super::places::without_permits;
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
use crate::store::{DecideRequest, Part, StoreFuture};
use crate::time::Clock;

/// The components that take part in a decision.
pub(super) struct Pipeline {
    pub(super) enabled: bool,
    /// Whether decisions of the store are returned unchanged and are not reported. This requires
    /// that no observer receives decisions and that the limiter is not in shadow.
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

    /// Decides a request, by the fast path if it applies.
    #[inline]
    pub(super) fn decide(
        self: &Arc<Self>,
        subject: &Subject,
        mode: Mode,
        cost: Cost,
        reserves: bool,
    ) -> MaybeReady<Decision> {
        let Some(policy) = self.policies.of_all() else {
            return self.decide_under_source(subject, mode, cost, reserves);
        };
        if self.is_fast(policy, mode, cost) {
            self.decide_plain(&Part::new(subject, policy, cost), mode)
        } else {
            self.decide_slow(subject, mode, cost, reserves)
        }
    }

    /// Decides a request whose policy depends on its subject, by the fast path if it applies.
    #[inline(never)]
    fn decide_under_source(
        self: &Arc<Self>,
        subject: &Subject,
        mode: Mode,
        cost: Cost,
        reserves: bool,
    ) -> MaybeReady<Decision> {
        match self.policies.cached(subject) {
            Some(policy) if self.is_fast(policy, mode, cost) => {
                self.decide_plain(&Part::new(subject, policy, cost), mode)
            }
            _ => self.decide_slow(subject, mode, cost, reserves),
        }
    }

    #[inline(never)]
    fn decide_slow(
        self: &Arc<Self>,
        subject: &Subject,
        mode: Mode,
        cost: Cost,
        reserves: bool,
    ) -> MaybeReady<Decision> {
        self.decide_by_steps(subject, cost, Operation { reserves, ..self.operation(mode) })
    }

    /// Decides a request of one subject in the namespace of the limiter.
    #[inline(always)]
    fn decide_plain(self: &Arc<Self>, part: &Part<'_>, mode: Mode) -> MaybeReady<Decision> {
        let parts = std::slice::from_ref(part);
        let request = DecideRequest::new(&self.stores.namespace, parts, mode);
        self.decide_fast(&request, self.tally.plain_counts(mode))
    }

    /// Decides a request of several parts, by the fast path if it applies.
    pub(super) fn decide_parts(
        self: &Arc<Self>,
        parts: &[Part<'_>],
        mode: Mode,
        reserves: bool,
    ) -> MaybeReady<Decision> {
        if !self.are_fast(parts, mode) {
            let operation = Operation { reserves, ..self.operation(mode) };
            return self.decide_parts_by_steps(parts, operation);
        }
        let counts = match parts {
            [part] => self.tally.counts_of_part(part, mode),
            _ => None,
        };
        let request = DecideRequest::new(&self.stores.namespace, parts, mode);
        self.decide_fast(&request, counts)
    }

    /// Decides a request of several parts step by step. The policies are known already.
    pub(super) fn decide_parts_by_steps(
        self: &Arc<Self>,
        parts: &[Part<'_>],
        operation: Operation,
    ) -> MaybeReady<Decision> {
        let Some(first) = parts.first() else {
            return MaybeReady::ready(Decision::undecided(Cost::ZERO, Origin::Unlimited));
        };
        if !self.enabled {
            let decision = Decision::undecided(first.cost, Origin::Disabled);
            return MaybeReady::ready(self.finish(parts, operation, decision));
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
    #[inline(never)]
    pub(super) fn decide_by_steps(
        self: &Arc<Self>,
        subject: &Subject,
        cost: Cost,
        operation: Operation,
    ) -> MaybeReady<Decision> {
        if !self.enabled {
            return self.decide_without_store(subject, cost, operation, Origin::Disabled);
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
            Err(error) => {
                // Without a policy, a fallback cannot decide.
                let action = self.failure_policy.action_without_policy(error.kind());
                let origin = action.origin(error.kind());
                return self.decide_without_store(subject, cost, operation, origin);
            }
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
            None => self.decide_without_store(subject, cost, operation, Origin::Unlimited),
        }
    }

    /// Calls the store, unless a policy alone denies the request, the circuit breaker is open, or
    /// too many decisions are in flight (steps 2 and 3).
    pub(super) fn decide_with_policies(
        self: &Arc<Self>,
        parts: &[Part<'_>],
        operation: Operation,
    ) -> MaybeReady<Decision> {
        if let Some(denial) = self.deny_by_policy(parts, operation) {
            return MaybeReady::ready(self.finish(parts, operation, denial));
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
            return self.decide_refused(parts, operation, refusal);
        }
        match self.call_store(parts, operation) {
            MaybeReady::Ready(Some(result)) => {
                self.conclude(parts, operation, Called { token: call, is_partial: false }, result)
            }
            MaybeReady::Ready(None) => unreachable!("a result that was not polled yet"),
            MaybeReady::Boxed(pending) => match self.in_flight.enter(&loads) {
                Ok(waiting) => self.wait_for_store(parts, operation, (call, waiting), pending),
                Err(refusal) => self.decide_refused(parts, operation, refusal),
            },
        }
    }

    /// Returns the denial of a request that a policy alone denies. This check precedes the breaker,
    /// the store and the failure policy, so the request is denied even during an outage.
    #[inline]
    fn deny_by_policy(&self, parts: &[Part<'_>], operation: Operation) -> Option<Decision> {
        // A limiter in shadow denies nothing. Work that is already done cannot be denied either.
        let is_enforced = !self.failure_policy.is_shadow && operation.mode != Mode::Charge;
        policy_denial::deny(&self.stores, parts, operation, &*self.clock).filter(|_| is_enforced)
    }

    /// Denies a request if the policy of a part alone denies it.
    pub(super) fn try_deny_by_policy(
        &self,
        parts: &[Part<'_>],
        operation: Operation,
    ) -> Option<Decision> {
        let denial = self.deny_by_policy(parts, operation).filter(|_| self.enabled)?;
        Some(self.finish(parts, operation, denial))
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
    #[inline(never)]
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
                        let overloaded = this.decide_overloaded(&parts, operation, figures);
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
            let concluded = this.conclude(&owned.as_parts(), operation, called, result);
            concluded.await
        })
    }

    /// Records the result with the breaker, and applies the failure policy to an error (step 4).
    fn conclude(
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
                MaybeReady::ready(self.finish(parts, operation, decision))
            }
            Err(error) => self.decide_failed(parts, operation, (token, is_partial), &error),
        }
    }

    /// Completes the decision, and reports it to the observer and the log (step 5).
    #[inline]
    pub(super) fn finish(
        &self,
        parts: &[Part<'_>],
        operation: Operation,
        decision: Decision,
    ) -> Decision {
        self.report(|index| Counters::from(&parts[index]), operation, decision)
    }

    /// Completes, counts and reports the decision about a request. `counters_of` returns the
    /// counters of the part at a position.
    #[inline(always)]
    pub(super) fn report<'a>(
        &self,
        counters_of: impl Fn(usize) -> Counters<'a>,
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
            self.events.decided(&counters_of, &decision, operation.begun);
        }
        decision
    }
}
