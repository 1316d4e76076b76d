//! Reports decisions and failures to the observer and to the log. The log gets one line when a
//! condition begins, and one when it ends.

use std::sync::Arc;
use std::time::Duration;

use super::damaged_subjects::{DamageReport, DamagedSubjects, LONG_RECOVERY_PERIOD};
use super::failure_policy::{FailurePolicy, OnFailure};
use super::in_flight::InFlight;
use super::shadow::ShadowLog;
use crate::decision::Decision;
use crate::model::{FailureKind, StoreError, Subject};
use crate::observe::{self, EventLocation, Observer, Transition};
use crate::store::Part;

/// A condition is considered over when it has not occurred for this time. A condition that comes
/// and goes within this time is logged once.
const RECOVERY_PERIOD: Duration = Duration::from_secs(1);

/// Reports the events of a limiter to its observer and the log.
pub(super) struct Events {
    observer: Option<Arc<dyn Observer>>,
    failure_policy: FailurePolicy,
    in_flight: Arc<InFlight>,
    /// The namespace of the limiter.
    limiter: String,
    /// The kind of store and its server.
    store: String,
    shadow_log: ShadowLog,
    /// The outage of the store. It begins and ends with the circuit breaker, and counts the
    /// requests that stayed undecided.
    outage: Transition,
    overload: Transition,
    /// The condition that the store does not support the policies of some requests.
    unsupported: Transition,
    fallback_outage: Transition,
    /// The condition that leases under concurrency limits end while their requests are in flight.
    lapses: Transition,
    /// Subjects whose stored value is damaged.
    damaged: DamagedSubjects,
    source_outage: Transition,
    source_overload: Transition,
    /// Subjects whose policy cannot be read.
    unreadable: DamagedSubjects,
}

impl Events {
    /// Creates the events of a limiter of this namespace, on this store.
    pub(super) fn new(
        observer: Option<Arc<dyn Observer>>,
        failure_policy: FailurePolicy,
        in_flight: &Arc<InFlight>,
        limiter: &str,
        store: &str,
    ) -> Self {
        Self {
            observer,
            failure_policy,
            in_flight: Arc::clone(in_flight),
            limiter: limiter.to_owned(),
            store: store.to_owned(),
            shadow_log: ShadowLog::default(),
            outage: Transition::new(Duration::ZERO),
            overload: Transition::new(RECOVERY_PERIOD),
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
        EventLocation { limiter: &self.limiter, store: &self.store }
    }

    fn observer(&self) -> &dyn Observer {
        self.observer.as_deref().unwrap_or(&())
    }

    /// Returns what happens to undecided requests, as a text for the log.
    fn consequence(&self, failure: FailureKind) -> &'static str {
        self.failure_policy.action(failure).consequence()
    }

    /// Reports a decision, and the limits in shadow that would have denied the request.
    /// `subject_of` returns the subject of the part at a position.
    pub(super) fn decided<'a>(
        &self,
        subject_of: impl Fn(usize) -> &'a Subject,
        decision: &Decision,
    ) {
        // The subject and the limits are those of the same part.
        let (subject, reported) = (subject_of(decision.reported_part()), decision.reported());
        observe::decided(subject, &reported);
        if decision.has_shadow() {
            for (index, part) in decision.parts().enumerate() {
                let subject = subject_of(index);
                for limit in part.over_in_shadow() {
                    let is_first = self.shadow_log.should_log(&limit, decision.at());
                    observe::would_deny(subject, &limit, is_first);
                    self.observer().would_deny(subject, &limit);
                }
            }
        }
        if let Some(observer) = &self.observer {
            observer.decided(subject, &reported);
        }
    }

    /// Reports that the store has decided a request of these parts. Also reports the end of the
    /// conditions that the decision proves to be over.
    pub(super) fn store_decided(&self, parts: &[Part<'_>], ends_outage: bool) {
        if ends_outage {
            let held_for = self.outage.held_for();
            let undecided = self.outage.end().map_or(0, |ended| ended.count);
            observe::store_recovered(self.place(), held_for, undecided);
            self.observer().store_recovered();
        }
        if let Some(ended) = self.overload.ended() {
            observe::overload_ended(self.place(), ended);
        }
        if let Some(ended) = self.unsupported.ended() {
            observe::unsupported_ended(self.place(), ended);
        }
        if let Some(ended) = self.lapses.ended() {
            observe::lapses_ended(self.place(), ended);
        }
        for part in parts {
            for (subject, ended) in self.damaged.recover(part.subject) {
                observe::damage_ended(self.place(), subject, ended);
            }
        }
    }

    /// Reports that the store could not decide a request of `subject`.
    pub(super) fn store_failed(&self, subject: &Subject, error: &StoreError, begins_outage: bool) {
        match error.kind() {
            FailureKind::Overloaded => self.store_overloaded(),
            FailureKind::Corrupt => self.stored_value_damaged(subject, error),
            FailureKind::Unsupported => {
                if self.unsupported.occurred() {
                    observe::unsupported(self.place(), error, self.consequence(error.kind()));
                }
            }
            kind if begins_outage => {
                self.outage.occurred();
                observe::store_failed(self.place(), error, self.consequence(kind));
            }
            _ => self.outage.count_if_on(),
        }
        self.observe_store_failure(error);
    }

    fn stored_value_damaged(&self, subject: &Subject, error: &StoreError) {
        let consequence = match self.failure_policy.action(FailureKind::Corrupt) {
            OnFailure::Allow => "requests of this subject are allowed without limits",
            OnFailure::Reject => {
                "requests of this subject are rejected with 503, others are decided"
            }
            OnFailure::Fallback => "the fallback decides requests of this subject",
        };
        let tag = subject.redacted();
        match self.damaged.add(tag) {
            DamageReport::Subject => {
                observe::damaged(self.place(), subject.realm().as_str(), tag, error, consequence);
            }
            DamageReport::TooMany => observe::more_damaged(self.place(), consequence),
            DamageReport::None => {}
        }
    }

    /// Reports a failure of the store to the observer only, without a log line.
    pub(super) fn observe_store_failure(&self, error: &StoreError) {
        self.observer().store_failed(error);
    }

    /// Counts a request that was not sent to the store because the circuit breaker is open.
    pub(super) fn undecided_during_outage(&self) {
        self.outage.count_if_on();
    }

    /// Reports that the store is overloaded.
    pub(super) fn store_overloaded(&self) {
        if self.overload.occurred() {
            let (waiting, bound) = (self.in_flight.waiting(), self.in_flight.bound());
            let consequence = self.consequence(FailureKind::Overloaded);
            observe::overloaded(self.place(), waiting, bound, consequence);
        }
    }

    /// Reports that a lease under a concurrency limit has ended while its request is in flight.
    pub(super) fn lease_lapsed(&self, subject: &Subject, is_retaken: bool) {
        if self.lapses.occurred() {
            observe::lease_lapsed(self.place(), subject.redacted(), is_retaken);
        }
        self.observer().lease_lapsed(subject, is_retaken);
    }

    /// Reports the result of the fallback: a decision, or the error.
    pub(super) fn fallback_concluded(&self, error: Option<&StoreError>) {
        if let Some(error) = error {
            self.fallback_failed(error);
        } else if let Some(ended) = self.fallback_outage.ended() {
            observe::fallback_recovered(self.place(), ended);
        }
    }

    /// Reports that the fallback could not decide.
    pub(super) fn fallback_failed(&self, error: &StoreError) {
        if self.fallback_outage.occurred() {
            let consequence = self.failure_policy.on_fallback_failure.consequence();
            observe::fallback_failed(self.place(), error, consequence);
        }
        self.observe_store_failure(error);
    }

    /// Reports that the source has found the policy of `subject`, after the request had to wait.
    pub(super) fn source_answered(&self, subject: &Subject) {
        if let Some(ended) = self.source_outage.ended() {
            observe::source_recovered(self.place(), ended);
        }
        for (subject, ended) in self.unreadable.recover(subject) {
            observe::unknown_policy_ended(self.place(), subject, ended);
        }
        self.source_answered_at_once();
    }

    /// Reports the end of an overload of the source, if no look-up has been refused for a while.
    pub(super) fn source_answered_at_once(&self) {
        if let Some(ended) = self.source_overload.ended() {
            observe::source_overload_ended(self.place(), ended);
        }
    }

    /// Reports that the source could not find the policy of `subject`. This is not a failure of the
    /// store.
    pub(super) fn source_failed(&self, subject: &Subject, error: &StoreError) {
        let consequence = self.failure_policy.action_without_policy(error.kind()).consequence();
        match error.kind() {
            FailureKind::Overloaded => self.source_overloaded(consequence),
            FailureKind::Corrupt | FailureKind::Unsupported => {
                let (tag, realm) = (subject.redacted(), subject.realm().as_str());
                if self.unreadable.add(tag) != DamageReport::None {
                    observe::unknown_policy(self.place(), realm, tag, error, consequence);
                }
            }
            _ => {
                if self.source_outage.occurred() {
                    observe::source_failed(self.place(), error, consequence);
                }
            }
        }
        self.observer().source_failed(error);
    }

    /// Reports that the policy for overload applies, because the source refused a look-up.
    pub(super) fn policy_when_overloaded_applies(&self, error: &StoreError) {
        self.source_overloaded("the policy for overload applies");
        self.observer().source_failed(error);
    }

    fn source_overloaded(&self, consequence: &str) {
        if self.source_overload.occurred() {
            observe::source_overloaded(self.place(), consequence);
        }
    }
}
