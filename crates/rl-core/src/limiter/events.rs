//! Reports decisions and failures to the log and to the observer: one event when a condition
//! begins, and one when it ends. The observer also gets each decision and each failure.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use super::circuit_breaker::CircuitBreaker;
use super::damaged_subjects::{DamagedSubjects, LONG_RECOVERY_PERIOD};
use super::decision_events::{DecisionEvents, EventNames};
use super::failure_policy::FailurePolicy;
use super::in_flight::InFlight;
use super::operation::Operation;
use super::parts::CounterKey;
use super::stores::Stores;
use crate::decision::{Decision, LimitStatus};
use crate::model::{FailureKind, OnFailure, StoreError, Subject};
use crate::observe::{
    self, CountedParts, DecisionEvent, Ended, Event, EventKind, EventLocation, Observer, StoreSpan,
    Transition,
};
use crate::rules::ActiveRules;
use crate::store::{Namespace, Part};
use crate::time::Timestamp;

/// A condition is considered over when it has not occurred for this time. If it comes and goes at
/// shorter intervals, it is logged once.
const RECOVERY_PERIOD: Duration = Duration::from_secs(1);

/// Reports the events of a limiter to its observer and the log.
pub(super) struct Events {
    observer: Option<Arc<dyn Observer>>,
    /// Reports decisions to the observer, if there is one.
    of_decisions: Option<DecisionEvents>,
    failure_policy: FailurePolicy,
    in_flight: Arc<InFlight>,
    names: EventNames,
    shadow_log: ShadowLog,
    /// The outage of the store, whose beginning and end the circuit breaker determines. Counts the
    /// requests that stayed undecided during the outage.
    outage: Transition,
    /// The condition that the circuit breaker is open.
    open_breaker: Transition,
    overload: Transition,
    /// The condition that the store has no memory for charges.
    memory: Transition,
    /// The condition that the store does not support the policies of some requests.
    unsupported: Transition,
    fallback_outage: Transition,
    /// The condition that leases of places under concurrency limits end while their requests are in
    /// flight.
    lapses: Transition,
    /// Subjects whose stored value is damaged.
    damaged: DamagedSubjects,
    source_outage: Transition,
    source_overload: Transition,
    /// Subjects whose policy cannot be read.
    unreadable: DamagedSubjects,
}

impl Events {
    /// Creates the events of a limiter on these stores.
    pub(super) fn new(
        observer: Option<Arc<dyn Observer>>,
        failure_policy: FailurePolicy,
        in_flight: &Arc<InFlight>,
        stores: &Stores,
    ) -> Self {
        let of_observer = |observer| DecisionEvents::new(observer, RECOVERY_PERIOD);
        Self {
            of_decisions: observer.as_ref().map(of_observer),
            observer,
            failure_policy,
            in_flight: Arc::clone(in_flight),
            names: EventNames::new(stores),
            shadow_log: ShadowLog::default(),
            outage: Transition::new(Duration::ZERO),
            open_breaker: Transition::new(Duration::ZERO),
            overload: Transition::new(RECOVERY_PERIOD),
            memory: Transition::new(RECOVERY_PERIOD),
            unsupported: Transition::new(LONG_RECOVERY_PERIOD),
            fallback_outage: Transition::new(RECOVERY_PERIOD),
            lapses: Transition::new(LONG_RECOVERY_PERIOD),
            damaged: DamagedSubjects::default(),
            source_outage: Transition::new(RECOVERY_PERIOD),
            source_overload: Transition::new(RECOVERY_PERIOD),
            unreadable: DamagedSubjects::default(),
        }
    }

    fn place(&self) -> EventLocation<'_> {
        self.names.on_store()
    }

    fn fallback(&self) -> EventLocation<'_> {
        self.names.on_fallback()
    }

    /// Reports an event of the limiter.
    pub(super) fn emit(&self, kind: EventKind<'_>) {
        self.emit_at(self.place(), kind);
    }

    /// Reports the readings of a rule file to the observer, as long as the limiter lives.
    pub(super) fn observe_readings(self: &Arc<Self>, rules: Option<&ActiveRules>) {
        if let (Some(rules), Some(observer)) = (rules, &self.observer) {
            let (events, observer) = (Arc::downgrade(self), Arc::clone(observer));
            // The file itself writes the log line, because several limiters may have its rules.
            rules.on_reading(move |reading| {
                if let Some(events) = events.upgrade() {
                    observer.observe(&Event::new(events.place(), reading));
                }
            });
        }
    }

    fn emit_at(&self, location: EventLocation<'_>, kind: EventKind<'_>) {
        observe::emit(self.observer.as_deref(), &Event::new(location, kind));
    }

    /// Returns the span of a store call that decides a request of `parts`.
    pub(super) fn store_span(&self, parts: &[Part<'_>]) -> StoreSpan {
        let rule = if let [part] = parts { self.names.rule(part.namespace) } else { None };
        StoreSpan::new(self.place().with_rule(rule), "decide")
    }

    /// Returns what happens to requests that stay undecided after `failure`.
    fn on_failure(&self, failure: FailureKind) -> OnFailure {
        self.failure_policy.action(failure)
    }

    /// Reports a decision, the limits in shadow that would have denied the request, and the limits
    /// that it nearly used up. The request has `count` parts, and `counters_of` returns the counters
    /// of the part at a position.
    pub(super) fn decided<'a>(
        &self,
        (count, counters_of): (usize, impl Fn(usize) -> CounterKey<'a>),
        decision: &Decision,
        Operation { mode, begun, .. }: Operation,
    ) {
        let is_read = self.of_decisions.is_some() || observe::may_decisions_be_logged();
        if !is_read && !decision.has_shadow() {
            return;
        }
        // The event must name the subject of the part whose limits it reports.
        let (counters, reported) = (counters_of(decision.reported_part()), decision.reported());
        let store = self.names.of_origin(decision.origin());
        let location = store.with_rule(self.names.rule(counters.namespace));
        let duration = begun.map(|begun| begun.elapsed());
        let event =
            DecisionEvent::new(location, counters.subject, &reported).with_duration(duration);
        observe::log_decision(&event);
        if decision.has_shadow() {
            for (index, part) in decision.parts().enumerate() {
                let CounterKey { subject, namespace } = counters_of(index);
                let location = store.with_rule(self.names.rule(namespace));
                for limit in part.over_in_shadow() {
                    let is_first = self.shadow_log.should_log(namespace, &limit, decision.at());
                    self.emit_at(location, EventKind::WouldDeny { subject, limit, is_first });
                }
            }
        }
        if let Some(of_decisions) = &self.of_decisions {
            let find = |index| {
                let CounterKey { subject, namespace } = counters_of(index);
                (self.names.rule(namespace), subject)
            };
            let counted = CountedParts { count, find: Some(&find) };
            let event = event.with_mode(mode).with_parts(counted);
            of_decisions.decided(&self.names, &counters_of, decision, &event);
        }
    }

    /// Reports units that were charged or refunded after a decision, if the observer receives
    /// decisions.
    pub(super) fn settled(&self, counters: CounterKey<'_>, charged: u64, refunded: u64) {
        let is_changed = charged > 0 || refunded > 0;
        if is_changed && self.of_decisions.as_ref().is_some_and(DecisionEvents::observes_decisions)
        {
            let CounterKey { subject, namespace } = counters;
            let location = self.place().with_rule(self.names.rule(namespace));
            self.emit_at(location, EventKind::Settled { subject, charged, refunded });
        }
    }

    /// Reports that the circuit breaker has opened, or that it is no longer open.
    fn breaker_changed(&self, breaker: &CircuitBreaker, failure: FailureKind) {
        if !breaker.is_closed() {
            if self.open_breaker.occurred() {
                self.emit(EventKind::BreakerOpened { failure });
            }
        } else if self.open_breaker.is_on() {
            let lasted = self.open_breaker.held_for();
            if self.open_breaker.end().is_some() {
                self.emit(EventKind::BreakerClosed { lasted });
            }
        }
    }

    /// Reports that the store has decided a request of `parts`. Also reports which failures are
    /// over, as this decision proves: an outage, an overload, an unsupported policy, lapsed leases
    /// or a damaged value.
    pub(super) fn store_decided(
        &self,
        parts: &[Part<'_>],
        breaker: &CircuitBreaker,
        ends_outage: bool,
    ) {
        if ends_outage {
            let lasted = self.outage.held_for();
            let undecided = self.outage.end().map_or(0, |ended| ended.count);
            self.emit(EventKind::StoreRecovered { lasted, undecided });
            self.breaker_changed(breaker, FailureKind::Unavailable);
        }
        if let Some(of_decisions) = &self.of_decisions {
            of_decisions.failure_policy_ended(&self.names);
        }
        if let Some(Ended { lasted, count: refused }) = self.overload.ended() {
            self.emit(EventKind::StoreOverloadEnded { lasted, refused });
        }
        if let Some(Ended { lasted, count: requests }) = self.unsupported.ended() {
            self.emit(EventKind::PolicyUnsupportedEnded { lasted, requests });
        }
        if let Some(Ended { lasted, count: leases }) = self.lapses.ended() {
            self.emit(EventKind::LapsesEnded { lasted, leases });
        }
        for part in parts {
            for (subject, ended) in self.damaged.recover(part.subject) {
                let Ended { lasted, count: requests } = ended;
                self.emit(EventKind::ValueRecovered { subject, lasted, requests });
            }
        }
    }

    /// Reports that the store could not decide a request of `subject`, which has waited since
    /// `begun`.
    pub(super) fn store_failed(
        &self,
        subject: &Subject,
        error: &StoreError,
        (breaker, begins_outage): (&CircuitBreaker, bool),
        begun: Option<Instant>,
    ) {
        self.observe_store_failure(error, begun);
        let on_failure = self.on_failure(error.kind());
        match error.kind() {
            FailureKind::Overloaded => self.store_overloaded(self.in_flight.figures()),
            FailureKind::OutOfMemory => self.store_out_of_memory(error),
            FailureKind::Corrupt => {
                if let Some(subject) = self.damaged.add(subject) {
                    self.emit(EventKind::ValueDamaged { subject, error, on_failure });
                }
            }
            FailureKind::Unsupported => {
                if self.unsupported.occurred() {
                    self.emit(EventKind::PolicyUnsupported { error, on_failure });
                }
            }
            _ if begins_outage => {
                self.outage.occurred();
                self.emit(EventKind::StoreFailing { error, on_failure });
            }
            _ => self.outage.count_if_on(),
        }
        self.breaker_changed(breaker, error.kind());
    }

    /// Reports that the store is overloaded: the number of decisions in flight, and its bound.
    pub(super) fn store_overloaded(&self, (in_flight, bound): (usize, usize)) {
        if self.overload.occurred() {
            let on_failure = self.on_failure(FailureKind::Overloaded);
            self.emit(EventKind::StoreOverloaded { in_flight, bound, on_failure });
        }
    }

    /// Reports that the store has no memory for a charge.
    pub(super) fn store_out_of_memory(&self, error: &StoreError) {
        if self.memory.occurred() {
            let on_failure = self.on_failure(FailureKind::OutOfMemory);
            self.emit(EventKind::StoreOutOfMemory { error, on_failure });
        }
    }

    /// Ends a reported lack of memory, because the store has charged a request.
    pub(super) fn store_charged(&self) {
        if let Some(Ended { lasted, count: undecided }) = self.memory.ended() {
            self.emit(EventKind::StoreOutOfMemoryEnded { lasted, undecided });
        }
    }

    /// Reports a failed call to the store.
    pub(super) fn observe_store_failure(&self, error: &StoreError, begun: Option<Instant>) {
        let duration = begun.map(|begun| begun.elapsed());
        self.emit(EventKind::StoreCallFailed { error, duration });
    }

    /// Counts a request that was not sent to the store because the circuit breaker is open.
    pub(super) fn undecided_during_outage(&self) {
        self.outage.count_if_on();
    }

    /// Reports that a lease under a concurrency limit has ended while its request is in flight.
    /// `is_retaken` says whether the request was charged its units again.
    pub(super) fn lease_lapsed(&self, counters: CounterKey<'_>, is_retaken: bool) {
        let CounterKey { subject, namespace } = counters;
        let location = self.place().with_rule(self.names.rule(namespace));
        let is_first = self.lapses.occurred();
        self.emit_at(location, EventKind::LeaseLapsed { subject, is_retaken, is_first });
    }

    /// Reports a failure of the fallback. If `error` is `None`, the fallback has decided a request:
    /// reports the end of its outage, if there was one.
    pub(super) fn fallback_returned(&self, error: Option<&StoreError>, begun: Option<Instant>) {
        if let Some(error) = error {
            self.fallback_failed(error, begun);
        } else if let Some(Ended { lasted, count: undecided }) = self.fallback_outage.ended() {
            self.emit_at(self.fallback(), EventKind::FallbackRecovered { lasted, undecided });
        }
    }

    /// Reports that the fallback could not decide a request, which has waited since `begun`.
    pub(super) fn fallback_failed(&self, error: &StoreError, begun: Option<Instant>) {
        let location = self.fallback();
        let duration = begun.map(|begun| begun.elapsed());
        self.emit_at(location, EventKind::StoreCallFailed { error, duration });
        if self.fallback_outage.occurred() {
            let on_failure = self.failure_policy.on_fallback_failure;
            self.emit_at(location, EventKind::FallbackFailing { error, on_failure });
        }
    }

    /// Records that the source has found the policy of `subject` after a wait. Reports the failures
    /// that this ends: an outage of the source, an unreadable policy, and an overload.
    pub(super) fn source_answered(&self, subject: &Subject) {
        if let Some(Ended { lasted, count: undecided }) = self.source_outage.ended() {
            self.emit(EventKind::LookupsRecovered { lasted, undecided });
        }
        for (subject, ended) in self.unreadable.recover(subject) {
            let Ended { lasted, count: requests } = ended;
            self.emit(EventKind::PolicyReadable { subject, lasted, requests });
        }
        self.source_answered_at_once();
    }

    /// Reports the end of an overload of the source, if no look-up has been refused for a while.
    pub(super) fn source_answered_at_once(&self) {
        if let Some(Ended { lasted, count: refused }) = self.source_overload.ended() {
            self.emit(EventKind::LookupsOverloadEnded { lasted, refused });
        }
    }

    /// Reports that the source could not find the policy of `subject`, whose request has waited
    /// since `begun`. This is not a failure of the store.
    pub(super) fn source_failed(
        &self,
        subject: &Subject,
        error: &StoreError,
        begun: Option<Instant>,
    ) {
        self.lookup_failed(error, begun);
        let on_failure = self.failure_policy.action_without_policy(error.kind());
        match error.kind() {
            FailureKind::Overloaded => self.source_overloaded(Some(on_failure)),
            FailureKind::Corrupt | FailureKind::Unsupported => {
                if let Some(subject) = self.unreadable.add(subject) {
                    self.emit(EventKind::PolicyUnreadable { subject, error, on_failure });
                }
            }
            _ => {
                if self.source_outage.occurred() {
                    self.emit(EventKind::LookupsFailing { error, on_failure });
                }
            }
        }
    }

    fn lookup_failed(&self, error: &StoreError, begun: Option<Instant>) {
        let duration = begun.map(|begun| begun.elapsed());
        self.emit(EventKind::LookupFailed { error, duration });
    }

    /// Reports that the source refused a look-up, and that the request is therefore decided under
    /// `policy_when_overloaded`.
    pub(super) fn policy_when_overloaded_applies(
        &self,
        error: &StoreError,
        begun: Option<Instant>,
    ) {
        self.lookup_failed(error, begun);
        self.source_overloaded(None);
    }

    fn source_overloaded(&self, on_failure: Option<OnFailure>) {
        if self.source_overload.occurred() {
            self.emit(EventKind::LookupsOverloaded { on_failure });
        }
    }
}

/// The maximum number of limits to remember. With more limits, some are logged more than once per
/// window.
const MAX_SHADOW_LIMITS: usize = 1_000;

/// Samples the log lines of limits in shadow. For each window of a limit, one line is logged,
/// whichever subject exceeds it.
///
/// Under rules, limits of many rules have the same name, so a limit is identified by the namespace
/// of its rule and its name.
#[derive(Debug, Default)]
struct ShadowLog {
    /// The key is a hash of a namespace and the name of a limit; the value is the end of the window
    /// that has been logged.
    logged_until: Mutex<HashMap<u64, Timestamp>>,
    hasher: RandomState,
}

impl ShadowLog {
    /// Returns true for the first call in a window of the limit, which is counted in `namespace`.
    fn should_log(
        &self,
        namespace: Option<&Namespace>,
        limit: &LimitStatus<'_>,
        now: Timestamp,
    ) -> bool {
        let key = self.hasher.hash_one((namespace.map(Namespace::as_str), limit.name()));
        let mut logged = self.logged_until.lock().unwrap_or_else(PoisonError::into_inner);
        if logged.get(&key).is_some_and(|until| now < *until) {
            return false;
        }
        if logged.len() >= MAX_SHADOW_LIMITS {
            logged.clear();
        }
        let window = match u64::try_from(limit.reset_after_decision().as_micros()) {
            Ok(0) | Err(_) => limit.limit().period().as_micros(),
            Ok(until_reset) => until_reset,
        };
        logged.insert(key, now.plus_micros(window));
        true
    }
}
