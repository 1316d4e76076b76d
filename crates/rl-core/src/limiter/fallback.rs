#[cfg(test)]
mod tests;

use std::fmt;
use std::sync::Arc;

use super::decide::Question;
use super::{OnFailure, RateLimiter};
use crate::decision::{Decision, LimitStatus, Origin, RetryAfter};
use crate::maybe_ready::MaybeReady;
use crate::model::Mode;
use crate::model::{Cost, FailureKind, Subject};
use crate::policy::Policy;
use crate::store::Store;

/// How much of each limit one instance admits by itself, while the store that all instances share
/// cannot answer.
///
/// The units of every limit, and its burst or capacity, are divided by the number of instances and
/// rounded down: all instances together admit the limit at most, and less where it does not divide
/// evenly. Where the share of a limit is zero, or less than a request costs, the fallback cannot decide:
/// the client is not over its limit. Such a request is rejected as by [`OnFailure::Reject`], unless
/// [`on_fallback_failure`](crate::RateLimiterBuilder::on_fallback_failure) says otherwise.
///
/// # Examples
///
/// ```
/// use rl_core::limiter::Share;
/// use rl_core::{Limit, MemoryStore, RateLimiter};
///
/// let limiter = RateLimiter::builder()
///     .limit(Limit::per_second(10)) // 2 on each of four instances
///     .limit(Limit::per_day(5_000)) // 1250
///     .fallback(MemoryStore::new(), Share::of_instances(4))
///     .build()?;
/// # Ok::<(), rl_core::limiter::BuildError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Share {
    instances: u32,
}

impl Share {
    /// An equal share for each of so many instances: as many as there may ever be at the same time.
    #[must_use]
    pub const fn of_instances(instances: u32) -> Self {
        Self { instances }
    }

    /// The number of instances.
    #[must_use]
    pub const fn instances(self) -> u32 {
        self.instances
    }

    fn of(self, policy: &Policy) -> Policy {
        policy.divided_by(self.instances.into())
    }
}

/// The store that decides while the other one cannot.
pub(super) struct Fallback {
    pub(super) store: Arc<dyn Store>,
    pub(super) share: Share,
}

impl RateLimiter {
    /// The store that has counted `decision`: what is given back goes where it was taken.
    pub(super) fn store_of(&self, decision: &Decision) -> &Arc<dyn Store> {
        match (decision.origin(), &self.inner.fallback) {
            (Origin::Fallback(_), Some(fallback)) => &fallback.store,
            _ => &self.inner.store,
        }
    }

    /// What becomes of a request that the store cannot decide, by the failure policy.
    ///
    /// Without a policy there is nothing that a fallback could decide.
    pub(super) fn stand_in(
        &self,
        policy: Option<&Policy>,
        subject: &Subject,
        question: Question,
        failure: FailureKind,
    ) -> MaybeReady<Decision> {
        let origin = match (self.on_failure(failure), policy, &self.inner.fallback) {
            _ if self.inner.is_shadow => Origin::FailedOpen(failure),
            (OnFailure::Fallback, Some(policy), Some(fallback)) => {
                return self.fall_back(fallback, policy, subject, question, failure);
            }
            (OnFailure::Allow, ..) => Origin::FailedOpen(failure),
            (OnFailure::Reject | OnFailure::Fallback, ..) => Origin::FailedClosed(failure),
        };
        self.undecided(subject, question, origin)
    }

    fn fall_back(
        &self,
        fallback: &Fallback,
        whole: &Policy,
        subject: &Subject,
        question: Question,
        failure: FailureKind,
    ) -> MaybeReady<Decision> {
        let share = fallback.share.of(whole);
        let (this, whole, asked) = (self.clone(), whole.clone(), subject.clone());
        let Question { mode, cost, .. } = question;
        let question = Question { deadline: self.inner.deadline, ..question };
        let answer = self.ask(&fallback.store, &share, subject, question);
        self.bounded(answer).map(move |answer| {
            let decision = match answer {
                Ok(decision) => {
                    this.fallback_answered();
                    if exceeds_share(&decision, &whole, mode, cost) {
                        this.not_even_by_fallback(cost, failure)
                    } else {
                        decision.as_fallback(failure)
                    }
                }
                Err(error) => {
                    this.fallback_failed(&error);
                    this.not_even_by_fallback(cost, error.kind())
                }
            };
            this.report(&asked, question, decision)
        })
    }

    /// Returns the decision on a request that the fallback cannot decide either.
    fn not_even_by_fallback(&self, cost: Cost, failure: FailureKind) -> Decision {
        Decision::undecided(
            cost,
            match self.inner.on_fallback_failure {
                OnFailure::Allow => Origin::FailedOpen(failure),
                OnFailure::Reject | OnFailure::Fallback => Origin::FailedClosed(failure),
            },
        )
    }
}

/// Whether the share never grants what the whole limits would: then it is not the client who asks
/// for too much.
fn exceeds_share(decision: &Decision, whole: &Policy, mode: Mode, cost: Cost) -> bool {
    let needed = mode.required(cost);
    let is_granted = |limit: LimitStatus<'_>| {
        let whole = whole.position(limit.name()).map(|place| whole.limits()[place].limit());
        whole.is_some_and(|whole| whole.capacity() >= needed.max(1))
    };
    !decision.is_allowed()
        && decision.retry_after() == RetryAfter::Never
        && decision.enforced().all(is_granted)
}

impl fmt::Debug for Fallback {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Fallback")
            .field("store", &self.store)
            .field("share", &self.share)
            .finish_non_exhaustive()
    }
}
