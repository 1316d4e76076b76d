//! Reports failures to the log, with one line when each begins and one when it ends, and to the observer.

use super::breaker::Ticket;
use super::damaged::Found;
use super::{OnFailure, RateLimiter};
use crate::model::StoreError;
use crate::model::{FailureKind, Subject};
use crate::observe::{self, Place};

impl RateLimiter {
    /// Returns the limiter and the store that a line in the log names.
    fn place(&self) -> Place<'_> {
        Place { limiter: self.inner.namespace.as_str(), store: self.inner.store.label() }
    }

    /// Returns what happens to undecided requests, in words for the log.
    fn consequence(&self, kind: FailureKind) -> &'static str {
        let on_failure =
            if self.inner.is_shadow { OnFailure::Allow } else { self.on_failure(kind) };
        on_failure.consequence()
    }

    /// Notes that the store has decided a request of the subject.
    pub(super) fn store_answered(&self, subject: &Subject, ticket: Ticket) {
        let health = &self.inner.store_health;
        if self.inner.breaker.answered(ticket) {
            let held_for = health.outage.held_for();
            let undecided = health.outage.end().map_or(0, |ended| ended.count);
            observe::store_recovered(self.place(), held_for, undecided);
            self.inner.observer().store_recovered();
        }
        if let Some(ended) = health.overload.ended() {
            observe::overload_ended(self.place(), ended);
        }
        if let Some(ended) = health.unsupported.ended() {
            observe::unsupported_ended(self.place(), ended);
        }
        if let Some(ended) = health.lapses.ended() {
            observe::lapses_ended(self.place(), ended);
        }
        for (subject, ended) in self.inner.damaged.decided(subject) {
            observe::damage_ended(self.place(), subject, ended);
        }
    }

    /// Notes that the lease of a place has ended while its request is in flight.
    pub(super) fn lease_lapsed(&self, subject: &Subject, is_retaken: bool) {
        if self.inner.store_health.lapses.occurred() {
            observe::lease_lapsed(self.place(), subject.redacted(), is_retaken);
        }
        self.inner.observer().lease_lapsed(subject, is_retaken);
    }

    /// Notes that the store could not decide a request of the subject.
    pub(super) fn store_failed(&self, subject: &Subject, ticket: Ticket, error: &StoreError) {
        let (kind, health) = (error.kind(), &self.inner.store_health);
        match kind {
            FailureKind::Overloaded => self.overloaded(),
            FailureKind::Corrupt => self.damaged(subject, error),
            FailureKind::Unsupported => {
                if health.unsupported.occurred() {
                    observe::unsupported(self.place(), error, self.consequence(kind));
                }
            }
            _ => {
                if self.inner.breaker.failed(ticket, kind) {
                    health.outage.occurred();
                    observe::store_failed(self.place(), error, self.consequence(kind));
                } else {
                    health.outage.count_if_on();
                }
            }
        }
        self.inner.observer().store_failed(error);
    }

    fn damaged(&self, subject: &Subject, error: &StoreError) {
        let tag = subject.redacted();
        match self.inner.damaged.found(tag) {
            Found::First => {
                let realm = subject.realm().as_str();
                observe::damaged(self.place(), realm, tag, error, self.damage_consequence());
            }
            Found::TooMany => observe::more_damaged(self.place(), self.damage_consequence()),
            Found::Again => {}
        }
    }

    fn damage_consequence(&self) -> &'static str {
        match self.on_failure(FailureKind::Corrupt) {
            _ if self.inner.is_shadow => "requests of this subject are allowed without limits",
            OnFailure::Allow => "requests of this subject are allowed without limits",
            OnFailure::Reject => {
                "requests of this subject are rejected with 503, others are decided"
            }
            OnFailure::Fallback => "the fallback decides requests of this subject",
        }
    }

    /// Notes that the store is overloaded.
    pub(super) fn overloaded(&self) {
        if self.inner.store_health.overload.occurred() {
            let in_flight = &self.inner.in_flight;
            let consequence = self.consequence(FailureKind::Overloaded);
            observe::overloaded(self.place(), in_flight.waiting(), in_flight.bound(), consequence);
        }
    }

    /// Notes that the policy of the subject was looked up.
    pub(super) fn source_answered(&self, subject: &Subject) {
        let health = &self.inner.source_health;
        if let Some(ended) = health.outage.ended() {
            observe::source_recovered(self.place(), ended);
        }
        for (subject, ended) in health.damaged.decided(subject) {
            observe::unknown_policy_ended(self.place(), subject, ended);
        }
        self.source_calm();
    }

    /// Logs the end of an overload of the source, if it has not occurred for a while.
    #[inline]
    pub(super) fn source_calm(&self) {
        if let Some(ended) = self.inner.source_health.overload.ended() {
            observe::source_overload_ended(self.place(), ended);
        }
    }

    /// Notes that the policy of the subject could not be looked up, which says nothing about the store.
    pub(super) fn source_failed(&self, subject: &Subject, error: &StoreError) {
        let health = &self.inner.source_health;
        // A fallback cannot decide without a policy.
        let consequence = match self.on_failure(error.kind()) {
            OnFailure::Fallback if !self.inner.is_shadow => OnFailure::Reject.consequence(),
            _ => self.consequence(error.kind()),
        };
        match error.kind() {
            FailureKind::Overloaded => self.source_overloaded(consequence),
            FailureKind::Corrupt | FailureKind::Unsupported => {
                let tag = subject.redacted();
                if health.damaged.found(tag) != Found::Again {
                    let realm = subject.realm().as_str();
                    observe::unknown_policy(self.place(), realm, tag, error, consequence);
                }
            }
            _ => {
                if health.outage.occurred() {
                    observe::source_failed(self.place(), error, consequence);
                }
            }
        }
        self.inner.observer().source_failed(error);
    }

    /// Notes that a look-up was refused because there are too many.
    pub(super) fn source_overloaded(&self, consequence: &str) {
        if self.inner.source_health.overload.occurred() {
            observe::source_overloaded(self.place(), consequence);
        }
    }

    /// Notes that the fallback has decided.
    pub(super) fn fallback_answered(&self) {
        if let Some(ended) = self.inner.store_health.fallback.ended() {
            observe::fallback_recovered(self.place(), ended);
        }
    }

    /// Notes that the fallback could not answer either.
    pub(super) fn fallback_failed(&self, error: &StoreError) {
        if self.inner.store_health.fallback.occurred() {
            let consequence = self.inner.on_fallback_failure.consequence();
            observe::fallback_failed(self.place(), error, consequence);
        }
        self.inner.observer().store_failed(error);
    }
}
