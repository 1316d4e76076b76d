//! Reports decisions and conditions to the observer and to the log, which is an observer too.
//!
//! A condition that affects many requests, such as an outage, is reported when it begins and when it
//! ends. Its end is noticed by the next request that the store decides. While no condition holds, a
//! decision reads one number to find that out.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use super::circuit_breaker::CircuitBreaker;
use super::counters::{Counters, PartCounters};
use super::damaged_subjects::{DamageReport, DamagedSubjects, LONG_RECOVERY_PERIOD};
use super::failure_policy::FailurePolicy;
use super::in_flight::InFlight;
use super::once_per_window::{OncePerWindow, crossed_threshold};
use super::stores::Stores;
use crate::decision::{Decision, Origin};
use crate::model::{FailureKind, StoreError, Subject};
use crate::observe::{
    self, DecisionEvent, Ended, Event, EventKind, EventLocation, EventLog, Observer, StoreSpan,
    Transition,
};
use crate::rules::ActiveRules;
use crate::store::{Namespace, Part};

/// A condition is considered over when it has not occurred for this time. If it comes and goes at
/// shorter intervals, it is reported once.
const RECOVERY_PERIOD: Duration = Duration::from_secs(1);

/// The largest number of `near_limit` events that a limiter emits in a second.
const MAX_NEAR_LIMITS: u64 = 100;

/// Reports the events of a limiter to its observer and the log.
pub(super) struct Events {
    observer: Option<Arc<dyn Observer>>,
    observes_decisions: bool,
    failure_policy: FailurePolicy,
    in_flight: Arc<InFlight>,
    names: EventNames,
    near_limits: OncePerWindow,
    over_in_shadow: OncePerWindow,
    /// The number of conditions that hold, and that a decision of the store may end.
    holding: AtomicUsize,
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
    /// The actions of the failure policy: it allows requests, rejects them, or lets the fallback
    /// decide.
    actions: [FailureAction; 3],
}

/// The names of a limiter and its stores in events and log lines.
struct EventNames {
    /// The namespace of the limiter.
    limiter: String,
    /// The kind of store and its server.
    store: String,
    /// The kind of the fallback and its server; empty without a fallback.
    fallback: String,
}

impl EventNames {
    fn on_store(&self) -> EventLocation<'_> {
        EventLocation::new(&self.limiter, &self.store)
    }

    fn on_fallback(&self) -> EventLocation<'_> {
        EventLocation::new(&self.limiter, &self.fallback)
    }

    /// Returns the location of a decision with this origin.
    fn of_origin(&self, origin: Origin) -> EventLocation<'_> {
        match origin {
            Origin::Fallback(_) => self.on_fallback(),
            _ => self.on_store(),
        }
    }

    /// Returns the name of the rule that counts in `namespace`. Returns `None` in the limiter's own
    /// namespace, and the whole name of a namespace that belongs to no rule of the limiter.
    fn rule<'a>(&self, namespace: Option<&'a Namespace>) -> Option<&'a str> {
        let namespace = namespace?;
        let name = namespace.rule_below(&self.limiter).unwrap_or(namespace.as_str());
        Some(name).filter(|name| **name != *self.limiter)
    }
}

/// An action of the failure policy.
struct FailureAction {
    /// The index of the origin of its decisions.
    origin_index: usize,
    /// The origin of the first decision since the action began, with its kind of failure.
    first_origin: Mutex<Origin>,
    /// The condition that begins and ends with the action.
    condition: Transition,
}

impl FailureAction {
    /// Returns the action that makes the decisions of this origin.
    fn new(origin: Origin) -> Self {
        Self {
            origin_index: origin.index(),
            first_origin: Mutex::new(origin),
            condition: Transition::new(RECOVERY_PERIOD),
        }
    }
}

impl Events {
    /// Creates the events of a limiter on these stores.
    pub(super) fn new(
        observer: Option<Arc<dyn Observer>>,
        failure_policy: FailurePolicy,
        in_flight: &Arc<InFlight>,
        stores: &Stores,
    ) -> Self {
        let fallback = stores.fallback.as_ref();
        let kind = FailureKind::Unavailable;
        let actions =
            [Origin::FailedOpen(kind), Origin::FailedClosed(kind), Origin::Fallback(kind)];
        Self {
            observes_decisions: observer.as_ref().is_some_and(|one| one.observes_decisions()),
            observer,
            failure_policy,
            in_flight: Arc::clone(in_flight),
            names: EventNames {
                limiter: stores.namespace.to_string(),
                store: stores.primary.label().to_owned(),
                fallback: fallback.map_or(String::new(), |one| one.store.label().to_owned()),
            },
            near_limits: OncePerWindow::at_most(MAX_NEAR_LIMITS),
            over_in_shadow: OncePerWindow::at_most(u64::MAX),
            holding: AtomicUsize::new(0),
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
            actions: actions.map(FailureAction::new),
        }
    }

    /// Emits an event that concerns the store.
    fn emit(&self, kind: EventKind<'_>) {
        self.emit_at(self.names.on_store(), kind);
    }

    fn emit_at(&self, location: EventLocation<'_>, kind: EventKind<'_>) {
        let event = Event::new(location, kind);
        EventLog.observe(&event);
        if let Some(observer) = &self.observer {
            observer.observe(&event);
        }
    }

    /// Reports the readings of a rule file to the observer, as long as the limiter lives. The file
    /// itself writes them to the log, because several limiters may have its rules.
    pub(super) fn observe_readings(self: &Arc<Self>, rules: Option<&ActiveRules>) {
        if let Some(rules) = rules.filter(|_| self.observer.is_some()) {
            let events = Arc::downgrade(self);
            rules.on_reading(move |reading| {
                if let Some(events) = events.upgrade()
                    && let Some(observer) = &events.observer
                {
                    observer.observe(&Event::new(events.names.on_store(), reading));
                }
            });
        }
    }

    /// Returns the span of a store call that decides a request of `parts`.
    pub(super) fn store_span(&self, parts: &[Part<'_>]) -> StoreSpan {
        let rule = if let [part] = parts { self.names.rule(part.namespace) } else { None };
        StoreSpan::new(self.names.on_store().with_rule(rule), "decide")
    }

    /// Returns the handling of undecided requests, as a word.
    fn on_failure(&self, failure: FailureKind) -> &'static str {
        self.failure_policy.action(failure).as_str()
    }

    /// Records an occurrence of a condition that a decision of the store may end. Returns true if
    /// the condition begins.
    fn begins(&self, condition: &Transition) -> bool {
        let begins = condition.occurred();
        if begins {
            self.holding.fetch_add(1, Ordering::Relaxed);
        }
        begins
    }

    /// Ends a condition that [`begins`](Self::begins) has begun, if it has not occurred for its
    /// recovery period.
    fn ended(&self, condition: &Transition) -> Option<Ended> {
        let ended = condition.ended()?;
        self.holding.fetch_sub(1, Ordering::Relaxed);
        Some(ended)
    }

    /// Reports a decision, the limits in shadow that would have denied the request, and the limits
    /// that it nearly used up. `parts` are the counters of its parts.
    /// `begun` is the time since which the request has waited; `None` if it has not.
    #[inline]
    pub(super) fn decided(
        &self,
        parts: PartCounters<'_>,
        decision: &Decision,
        begun: Option<Instant>,
    ) {
        let is_read = self.observes_decisions || observe::may_decisions_be_logged();
        let origin = decision.origin();
        let is_of_failure_policy = origin.is_failure() || matches!(origin, Origin::Fallback(_));
        if is_read || is_of_failure_policy || decision.has_shadow() {
            self.report_decision(parts, decision, begun);
        }
    }

    #[inline(never)]
    fn report_decision(
        &self,
        parts: PartCounters<'_>,
        decision: &Decision,
        begun: Option<Instant>,
    ) {
        let origin = decision.origin();
        // The event must name the subject of the part whose limits it reports.
        let (counters, reported) = (parts.at(decision.reported_part()), decision.reported());
        let store = self.names.of_origin(origin);
        let location = store.with_rule(self.names.rule(counters.namespace));
        let mut actions = self.actions.iter();
        if let Some(action) = actions.find(|action| action.origin_index == origin.index())
            && self.begins(&action.condition)
        {
            *action.first_origin.lock().unwrap_or_else(PoisonError::into_inner) = origin;
            self.emit_at(location, EventKind::FailurePolicyBegan { origin });
        }
        let duration = begun.map(|begun| begun.elapsed());
        let event =
            DecisionEvent::new(location, counters.subject, &reported).with_duration(duration);
        EventLog.decided(&event);
        if decision.has_shadow() {
            self.report_shadow(store, parts, decision);
        }
        if let Some(observer) = self.observer.as_ref().filter(|_| self.observes_decisions) {
            observer.decided(&event);
            self.report_near_limits(store, parts, decision);
        }
    }

    /// Reports the limits in shadow that would have denied a request.
    fn report_shadow(
        &self,
        store: EventLocation<'_>,
        parts: PartCounters<'_>,
        decision: &Decision,
    ) {
        for (index, part) in decision.parts().enumerate() {
            let Counters { subject, namespace } = parts.at(index);
            let location = store.with_rule(self.names.rule(namespace));
            for limit in part.over_in_shadow() {
                // The limits of many rules have the same name.
                let key = (namespace.map(Namespace::as_str), limit.name());
                let first = self.over_in_shadow.first(key, &limit, decision.at());
                let is_first = first.is_some();
                self.emit_at(location, EventKind::WouldDeny { subject, limit, is_first });
            }
        }
    }

    /// Reports the limits that a request has raised to 80, 90 or 100 % of their units.
    fn report_near_limits(
        &self,
        store: EventLocation<'_>,
        parts: PartCounters<'_>,
        decision: &Decision,
    ) {
        for (index, part) in decision.parts().enumerate().filter(|(_, part)| part.charged() > 0) {
            let Counters { subject, namespace } = parts.at(index);
            for limit in part.limits() {
                let crossed = crossed_threshold(&limit, part.charged(), decision.origin());
                let Some(percent) = crossed else { continue };
                let digest = namespace.map(|namespace| namespace.digest());
                let key = (subject, digest, limit.name(), percent);
                let first = self.near_limits.first(key, &limit, decision.at());
                let Some(suppressed) = first else { continue };
                let location = store.with_rule(self.names.rule(namespace));
                let kind = EventKind::NearLimit { subject, limit, percent, suppressed };
                self.emit_at(location, kind);
            }
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
    /// over, as this decision proves. `charges` says whether the store has charged the request.
    #[inline]
    pub(super) fn store_decided(
        &self,
        parts: &[Part<'_>],
        breaker: &CircuitBreaker,
        ends_outage: bool,
        charges: bool,
    ) {
        if ends_outage || self.holding.load(Ordering::Relaxed) != 0 {
            self.end_conditions(parts, breaker, ends_outage, charges);
        }
    }

    #[cold]
    fn end_conditions(
        &self,
        parts: &[Part<'_>],
        breaker: &CircuitBreaker,
        ends_outage: bool,
        charges: bool,
    ) {
        if ends_outage {
            let lasted = self.outage.held_for();
            let undecided = self.outage.end().map_or(0, |ended| ended.count);
            self.emit(EventKind::StoreRecovered { lasted, undecided });
            self.breaker_changed(breaker, FailureKind::Unavailable);
        }
        for action in &self.actions {
            if let Some(Ended { lasted, count: requests }) = self.ended(&action.condition) {
                let first = action.first_origin.lock();
                let origin = *first.unwrap_or_else(PoisonError::into_inner);
                let kind = EventKind::FailurePolicyEnded { origin, lasted, requests };
                self.emit_at(self.names.of_origin(origin), kind);
            }
        }
        if let Some(Ended { lasted, count: refused }) = self.ended(&self.overload) {
            self.emit(EventKind::StoreOverloadEnded { lasted, refused });
        }
        if let Some(Ended { lasted, count: requests }) = self.ended(&self.unsupported) {
            self.emit(EventKind::PolicyUnsupportedEnded { lasted, requests });
        }
        if let Some(Ended { lasted, count: leases }) = self.ended(&self.lapses) {
            self.emit(EventKind::LeaseLapsesEnded { lasted, leases });
        }
        for part in parts {
            for (subject, Ended { lasted, count: requests }) in self.damaged.recover(part.subject) {
                self.holding.fetch_sub(1, Ordering::Relaxed);
                self.emit(EventKind::StoredValueRecovered { subject, lasted, requests });
            }
        }
        if charges && let Some(Ended { lasted, count: undecided }) = self.ended(&self.memory) {
            self.emit(EventKind::StoreOutOfMemoryEnded { lasted, undecided });
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
        self.store_call_failed(error, begun);
        let on_failure = self.on_failure(error.kind());
        match error.kind() {
            FailureKind::Overloaded => self.store_overloaded(self.in_flight.figures()),
            FailureKind::OutOfMemory => self.store_out_of_memory(error),
            FailureKind::Corrupt => match self.damaged.add(subject.redacted()) {
                DamageReport::Subject => {
                    self.holding.fetch_add(1, Ordering::Relaxed);
                    self.emit(EventKind::StoredValueDamaged { subject, error, on_failure });
                }
                DamageReport::TooMany => {
                    self.emit(EventKind::StoredValuesDamaged { on_failure });
                }
                DamageReport::None => {}
            },
            FailureKind::Unsupported => {
                if self.begins(&self.unsupported) {
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
        if self.begins(&self.overload) {
            let on_failure = self.on_failure(FailureKind::Overloaded);
            self.emit(EventKind::StoreOverloaded { in_flight, bound, on_failure });
        }
    }

    /// Reports that the store has no memory for a charge.
    pub(super) fn store_out_of_memory(&self, error: &StoreError) {
        if self.begins(&self.memory) {
            let on_failure = self.on_failure(FailureKind::OutOfMemory);
            self.emit(EventKind::StoreOutOfMemory { error, on_failure });
        }
    }

    /// Reports a failed call to the store.
    pub(super) fn store_call_failed(&self, error: &StoreError, begun: Option<Instant>) {
        let duration = begun.map(|begun| begun.elapsed());
        self.emit(EventKind::StoreCallFailed { error, duration });
    }

    /// Counts a request that was not sent to the store because the circuit breaker is open.
    pub(super) fn undecided_during_outage(&self) {
        self.outage.count_if_on();
    }

    /// Reports that a lease under a concurrency limit has ended while its request is in flight.
    /// `is_retaken` says whether the request was charged its units again.
    pub(super) fn lease_lapsed(&self, counters: Counters<'_>, is_retaken: bool) {
        let Counters { subject, namespace } = counters;
        let location = self.names.on_store().with_rule(self.names.rule(namespace));
        let is_first = self.begins(&self.lapses);
        self.emit_at(location, EventKind::LeaseLapsed { subject, is_retaken, is_first });
    }

    /// Reports a failure of the fallback. If `error` is `None`, the fallback has decided a request:
    /// reports the end of its outage, if there was one.
    pub(super) fn fallback_concluded(&self, error: Option<&StoreError>, begun: Option<Instant>) {
        if let Some(error) = error {
            self.fallback_failed(error, begun);
        } else if let Some(ended) = self.fallback_outage.ended() {
            let Ended { lasted, count: undecided } = ended;
            let kind = EventKind::FallbackRecovered { lasted, undecided };
            self.emit_at(self.names.on_fallback(), kind);
        }
    }

    /// Reports that the fallback could not decide a request, which has waited since `begun`.
    pub(super) fn fallback_failed(&self, error: &StoreError, begun: Option<Instant>) {
        let location = self.names.on_fallback();
        let duration = begun.map(|begun| begun.elapsed());
        self.emit_at(location, EventKind::StoreCallFailed { error, duration });
        if self.fallback_outage.occurred() {
            let on_failure = self.failure_policy.on_fallback_failure.as_str();
            self.emit_at(location, EventKind::FallbackFailing { error, on_failure });
        }
    }

    /// Reports that the source has found the policy of `subject`, if this ends a failure of the
    /// source. The request had to wait for the policy.
    pub(super) fn source_answered(&self, subject: &Subject) {
        if let Some(Ended { lasted, count: undecided }) = self.source_outage.ended() {
            self.emit(EventKind::LookupsRecovered { lasted, undecided });
        }
        for (subject, Ended { lasted, count: requests }) in self.unreadable.recover(subject) {
            self.emit(EventKind::PolicyReadable { subject, lasted, requests });
        }
        self.source_answered_at_once();
    }

    /// Reports the end of an overload of the source, if no look-up has been refused for a while.
    pub(super) fn source_answered_at_once(&self) {
        if let Some(Ended { lasted, count: refused }) = self.source_overload.ended() {
            self.emit(EventKind::LookupOverloadEnded { lasted, refused });
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
        let on_failure = self.failure_policy.action_without_policy(error.kind()).as_str();
        match error.kind() {
            FailureKind::Overloaded => self.source_overloaded(on_failure),
            FailureKind::Corrupt | FailureKind::Unsupported => {
                if self.unreadable.add(subject.redacted()) != DamageReport::None {
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
        self.source_overloaded("policy");
    }

    fn source_overloaded(&self, on_failure: &'static str) {
        if self.source_overload.occurred() {
            self.emit(EventKind::LookupsOverloaded { on_failure });
        }
    }
}
