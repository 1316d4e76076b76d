//! From a question to a decision: the policy, the store, the deadline, and what stands in.

use std::sync::Arc;

use super::failure::Ticket;
use super::{OnFailure, RateLimiter};
use crate::store::{Charge, Mode, Reset, Store, StoreError, StoreFuture};
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
                    match tokio::time::timeout(this.inner.deadline, decided).await {
                        Ok(decision) => decision,
                        Err(_) => {
                            this.store_failed(&timed_out());
                            let failure = FailureKind::TimedOut;
                            this.stand_in(None, &subject, mode, cost, failure).await
                        }
                    }
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
            Err(error) => {
                self.store_failed(&error);
                self.stand_in(None, subject, mode, cost, error.kind())
            }
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
        match self.ask(&self.inner.store, policy, subject, mode, cost) {
            Eventual::Ready(Some(answer)) => match self.conclude(subject, ticket, answer) {
                Ok(decision) => Eventual::ready(decision),
                Err(failure) => self.stand_in(Some(policy), subject, mode, cost, failure),
            },
            answer => {
                let (this, asked_under, asked) = (self.clone(), policy.clone(), subject.clone());
                let decision = async move {
                    match this.conclude(&asked, ticket, answer.await) {
                        Ok(decision) => decision,
                        Err(failure) => {
                            this.stand_in(Some(&asked_under), &asked, mode, cost, failure).await
                        }
                    }
                };
                if policy.has_permits() && mode != Mode::Peek {
                    self.see_through(subject.clone(), decision)
                } else {
                    Eventual::later(decision)
                }
            }
        }
    }

    pub(super) fn ask(
        &self,
        store: &Arc<dyn Store>,
        policy: &Policy,
        subject: &Subject,
        mode: Mode,
        cost: Cost,
    ) -> StoreFuture<Decision> {
        let namespace = &self.inner.namespace;
        self.within_deadline(store.decide(Charge { namespace, subject, policy, mode, cost }))
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

    /// From the store's answer to the decision; a failure is noted.
    fn conclude(
        &self,
        subject: &Subject,
        ticket: Ticket,
        answer: Result<Decision, StoreError>,
    ) -> Result<Decision, FailureKind> {
        match answer {
            Ok(decision) => {
                if self.inner.health.answered(ticket) {
                    observe::store_recovered();
                    self.inner.observer.store_recovered();
                }
                let is_shadow = self.inner.is_shadow;
                Ok(self.report(subject, if is_shadow { decision.in_shadow() } else { decision }))
            }
            Err(error) => {
                self.store_failed(&error);
                Err(error.kind())
            }
        }
    }

    /// What a failure means for requests.
    pub(super) fn on_failure(&self, kind: FailureKind) -> OnFailure {
        if kind.is_configuration() {
            self.inner.on_configuration_failure
        } else {
            self.inner.on_store_failure
        }
    }

    /// Tells that the store could not answer.
    pub(super) fn store_failed(&self, error: &StoreError) {
        let kind = error.kind();
        if self.inner.health.failed(kind) {
            observe::store_failed(error, self.on_failure(kind).consequence());
        }
        self.inner.observer.store_failed(error);
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

const fn timed_out() -> StoreError {
    StoreError::new(FailureKind::TimedOut)
}
