//! What stores and sources are asked, and for how long they are waited for.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use super::RateLimiter;
use super::decide::Question;
use crate::decision::Decision;
use crate::maybe_ready::MaybeReady;
use crate::model::StoreError;
use crate::model::{FailureKind, Subject};
use crate::policy::Policy;
use crate::store::{DecideRequest, Part, Reservations, Reset, Store, StoreFuture};

impl RateLimiter {
    /// Asks a store, for no longer than the deadline.
    pub(super) fn ask(
        &self,
        store: &Arc<dyn Store>,
        policy: &Policy,
        subject: &Subject,
        question: Question,
    ) -> StoreFuture<Decision> {
        within(question.deadline, self.ask_at_leisure(store, policy, subject, question))
    }

    /// Asks a store that may take its time.
    pub(super) fn ask_at_leisure(
        &self,
        store: &Arc<dyn Store>,
        policy: &Policy,
        subject: &Subject,
        Question { mode, cost, reserves, .. }: Question,
    ) -> StoreFuture<Decision> {
        let parts = [Part::new(subject, policy, cost)];
        let request = DecideRequest::new(&self.inner.namespace, &parts, mode);
        store.decide(request.with_reservations(match self.inner.reservation {
            None => Reservations::Ignore,
            Some(lifetime) if reserves => Reservations::Reserve(lifetime),
            Some(_) => Reservations::ReturnExpired,
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
            MaybeReady::Ready(Some(Ok(policy))) => then(self, subject, policy.as_ref()),
            found => {
                let (this, subject) = (self.clone(), subject.clone());
                self.within_deadline(MaybeReady::later(async move {
                    let policy = found.await?;
                    then(&this, &subject, policy.as_ref()).await
                }))
            }
        }
    }

    pub(super) fn within_deadline<T: Send + 'static>(
        &self,
        answer: StoreFuture<T>,
    ) -> StoreFuture<T> {
        within(self.inner.deadline, answer)
    }

    /// An answer that is waited for, if no more than so many wait already.
    pub(super) fn bounded(&self, answer: StoreFuture<Decision>) -> StoreFuture<Decision> {
        if let MaybeReady::Ready(_) = answer {
            return answer;
        }
        let Some(slot) = self.inner.in_flight.enter() else {
            return MaybeReady::ready(Err(StoreError::new(FailureKind::Overloaded)));
        };
        MaybeReady::later(async move {
            let answer = answer.await;
            drop(slot);
            answer
        })
    }
}

/// What is not there at once gets so much time and no more.
fn within<T: Send + 'static>(deadline: Duration, answer: StoreFuture<T>) -> StoreFuture<T> {
    match answer {
        MaybeReady::Ready(_) => answer,
        MaybeReady::Boxed(answer) => MaybeReady::later(in_time(deadline, answer)),
    }
}

/// What an answer is that is waited for.
pub(super) type Waiting<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// An answer that is waited for so long and no longer.
pub(super) async fn in_time<T>(
    deadline: Duration,
    answer: Waiting<Result<T, StoreError>>,
) -> Result<T, StoreError> {
    let answer = tokio::time::timeout(deadline, answer).await;
    answer.unwrap_or_else(|_| Err(timed_out()))
}

pub(super) const fn timed_out() -> StoreError {
    StoreError::new(FailureKind::TimedOut)
}
