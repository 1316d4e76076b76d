//! From a question to a decision: the policy, the store, the deadline, and what stands in.

use super::failure::Ticket;
use super::{OnFailure, RateLimiter};
use crate::store::{Charge, Mode, Reset, StoreError, StoreFuture};
use crate::{Cost, Decision, Eventual, FailureKind, Origin, Policy, Subject, observe};

impl RateLimiter {
    pub(super) fn decide(&self, subject: &Subject, mode: Mode, cost: Cost) -> Eventual<Decision> {
        if !self.inner.enabled {
            return self.undecided(subject, cost, Origin::Disabled);
        }
        match self.inner.policies.policy(subject) {
            Eventual::Ready(Some(policy)) => self.decide_or_pass(policy, subject, mode, cost),
            found => {
                let (this, subject) = (self.clone(), subject.clone());
                Eventual::later(async move {
                    let decided = async {
                        let policy = found.await;
                        this.decide_or_pass(policy, &subject, mode, cost).await
                    };
                    // The look-up is part of the decision, and of its time.
                    let decided = tokio::time::timeout(this.inner.deadline, decided).await;
                    decided.unwrap_or_else(|_| this.stand_in(&subject, cost, &timed_out()))
                })
            }
        }
    }

    pub(super) fn decide_or_pass(
        &self,
        policy: Result<Option<Policy>, StoreError>,
        subject: &Subject,
        mode: Mode,
        cost: Cost,
    ) -> Eventual<Decision> {
        match policy {
            Ok(Some(policy)) => self.decide_under(&policy, subject, mode, cost),
            Ok(None) => self.undecided(subject, cost, Origin::Unlimited),
            Err(error) => Eventual::ready(self.stand_in(subject, cost, &error)),
        }
    }

    pub(super) fn decide_under(
        &self,
        policy: &Policy,
        subject: &Subject,
        mode: Mode,
        cost: Cost,
    ) -> Eventual<Decision> {
        let ticket = self.inner.health.set_out();
        match self.ask_store(policy, subject, mode, cost) {
            Eventual::Ready(Some(answer)) => {
                Eventual::ready(self.conclude(subject, cost, ticket, answer))
            }
            answer => {
                let (this, asked) = (self.clone(), subject.clone());
                let decision = async move {
                    let answer = answer.await;
                    this.conclude(&asked, cost, ticket, answer)
                };
                if policy.has_permits() && mode != Mode::Peek {
                    self.see_through(subject.clone(), decision)
                } else {
                    Eventual::later(decision)
                }
            }
        }
    }

    pub(super) fn ask_store(
        &self,
        policy: &Policy,
        subject: &Subject,
        mode: Mode,
        cost: Cost,
    ) -> StoreFuture<Decision> {
        let namespace = &self.inner.namespace;
        self.within_deadline(self.inner.store.decide(Charge {
            namespace,
            subject,
            policy,
            mode,
            cost,
        }))
    }

    pub(super) fn reset_store(
        &self,
        subject: &Subject,
        policy: &Policy,
        limit: Option<usize>,
    ) -> StoreFuture<()> {
        let namespace = &self.inner.namespace;
        self.within_deadline(self.inner.store.reset(Reset { namespace, subject, policy, limit }))
    }

    /// Looks the subject's policy up, then does `then` with it.
    pub(super) fn with_policy<T: Send + 'static>(
        &self,
        subject: &Subject,
        then: impl FnOnce(&Self, &Subject, Option<&Policy>) -> StoreFuture<T> + Send + 'static,
    ) -> StoreFuture<T> {
        match self.inner.policies.policy(subject) {
            Eventual::Ready(Some(Ok(policy))) => then(self, subject, policy.as_ref()),
            found => {
                let (this, subject) = (self.clone(), subject.clone());
                self.within_deadline(Eventual::later(async move {
                    let policy = found.await?;
                    then(&this, &subject, policy.as_ref()).await
                }))
            }
        }
    }

    /// What is not there at once gets so much time and no more.
    pub(super) fn within_deadline<T: Send + 'static>(
        &self,
        answer: StoreFuture<T>,
    ) -> StoreFuture<T> {
        let deadline = self.inner.deadline;
        match answer {
            Eventual::Ready(_) => answer,
            Eventual::Boxed(answer) => Eventual::later(async move {
                let answer = tokio::time::timeout(deadline, answer).await;
                answer.unwrap_or_else(|_| Err(timed_out()))
            }),
        }
    }

    /// From the store's answer to the decision; a failure is stood in for.
    pub(super) fn conclude(
        &self,
        subject: &Subject,
        cost: Cost,
        ticket: Ticket,
        answer: Result<Decision, StoreError>,
    ) -> Decision {
        match answer {
            Ok(decision) => {
                if self.inner.health.answered(ticket) {
                    observe::store_recovered();
                    self.inner.observer.store_recovered();
                }
                let is_shadow = self.inner.is_shadow;
                self.report(subject, if is_shadow { decision.in_shadow() } else { decision })
            }
            Err(error) => self.stand_in(subject, cost, &error),
        }
    }

    pub(super) fn stand_in(&self, subject: &Subject, cost: Cost, error: &StoreError) -> Decision {
        let origin = match self.store_failed(error) {
            _ if self.inner.is_shadow => Origin::FailedOpen(error.kind()),
            OnFailure::Allow => Origin::FailedOpen(error.kind()),
            OnFailure::Deny => Origin::FailedClosed(error.kind()),
        };
        self.report(subject, Decision::undecided(cost, origin))
    }

    /// Tells that the store could not answer; returns what that means for requests.
    pub(super) fn store_failed(&self, error: &StoreError) -> OnFailure {
        let kind = error.kind();
        let on_failure = if kind.is_configuration() {
            self.inner.on_configuration_failure
        } else {
            self.inner.on_store_failure
        };
        if self.inner.health.failed(kind) {
            observe::store_failed(error, on_failure.consequence());
        }
        self.inner.observer.store_failed(error);
        on_failure
    }

    pub(super) fn undecided(
        &self,
        subject: &Subject,
        cost: Cost,
        origin: Origin,
    ) -> Eventual<Decision> {
        Eventual::ready(self.report(subject, Decision::undecided(cost, origin)))
    }

    pub(super) fn report(&self, subject: &Subject, decision: Decision) -> Decision {
        let decision = decision.by(self.id());
        observe::decided(subject, &decision);
        self.report_shadow(subject, &decision);
        self.inner.observer.decided(subject, &decision);
        decision
    }
}

pub(super) const fn timed_out() -> StoreError {
    StoreError::new(FailureKind::TimedOut)
}
