//! The rate limiter, and its behaviour when no decision can be made.

mod administration;
mod build_error;
mod builder;
mod charges;
mod circuit_breaker;
mod counters;
mod damaged_subjects;
mod events;
mod failure_policy;
mod in_flight;
mod once_per_window;
mod operation;
mod owned_parts;
mod parts;
mod permit;
mod pipeline;
mod places;
mod policies;
mod policy_denial;
mod properties;
mod registration;
mod renewals;
mod rule_policies;
mod rules;
mod settlements;
mod stores;
mod tally;
#[cfg(test)]
mod tests;
mod wait_queue;
mod waiting;
mod weak;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

pub use administration::ResetError;
use administration::{reset_named, with_policy};
pub use build_error::BuildError;
pub use builder::RateLimiterBuilder;
pub use failure_policy::{OnFailure, Share};
use operation::Operation;
pub use permit::Permit;
use pipeline::Pipeline;
pub(crate) use tally::UncountedKind;
pub(crate) use waiting::Wait;
pub use weak::WeakRateLimiter;

use crate::decision::{Decision, Origin};
use crate::maybe_ready::MaybeReady;
use crate::model::{Cost, Mode, StoreError, Subject};
use crate::policy::Policy;
use crate::store::{Part, RefundOf, StoreFuture};

/// Decides whether requests are allowed. Clones are cheap, and share counters and settings.
///
/// # Example
///
/// ```
/// use rl_core::{Limit, OnFailure, RateLimiter, Subject};
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let limiter = RateLimiter::builder()
///     .limit(Limit::per_second(10))
///     .limit(Limit::per_day(5_000))
///     .on_store_failure(OnFailure::Reject)
///     .build()?;
///
/// let caller = Subject::consumer("abc123");
/// let decision = limiter.check(&caller, 3).await;
/// assert!(decision.is_allowed());
///
/// // The work was not done after all: refund two units.
/// limiter.refund(&caller, &decision, 2).await?;
/// let usage = limiter.usage(&caller).await?;
/// assert!(usage.limits().all(|limit| limit.used() == 1));
///
/// limiter.reset(&caller).await?;
/// # Ok(()) }
/// ```
///
/// # When the store fails
///
/// 1. **No decision takes longer than the [deadline](RateLimiterBuilder::deadline)**, or twice the
///    deadline if a [fallback](RateLimiterBuilder::fallback) on a server decides.
/// 2. After the deadline the failure policy ([`OnFailure`]) applies. The request is allowed,
///    rejected, or decided by a [fallback](RateLimiterBuilder::fallback) on a [`Share`] of the
///    limits. [`Decision::origin`] says which.
/// 3. **A circuit breaker** stops calls to a store that is down or slow. After three failures in a
///    row the failure policy decides without waiting. A probe every 50 to 200 ms finds out whether
///    the store has recovered. A store that *refuses* calls is still called, because refused
///    requests are rejected by default.
/// 4. **Some denials need no store.** A [block](Policy::blocked_until), a limit of 0 and a cost
///    above every capacity are denied by the policy alone ([`Origin::Policy`]). These denials hold
///    while the store is down, slow or full.
/// 5. **At most [`max_in_flight`](RateLimiterBuilder::max_in_flight) decisions wait for each
///    server**, and fewer if the server would answer them late.
/// 6. **An overload is not an outage.** One client may cause it, so by default it lifts no limit.
///    If the store or the source of policies is overloaded, a request is denied if a cached denial
///    still holds. Otherwise it is rejected with 503 and `Retry-After: 1`.
///    [`RateLimiterBuilder::on_overload`] changes that.
/// 7. Units are refunded to the store that has counted them. Operations that read, such as
///    [`usage`](RateLimiter::usage), return an error if the store fails: the failure policy does
///    not apply to them.
#[derive(Clone)]
pub struct RateLimiter {
    pipeline: Arc<Pipeline>,
}

impl RateLimiter {
    /// Returns a builder.
    pub fn builder() -> RateLimiterBuilder {
        RateLimiterBuilder::default()
    }

    /// Charges `cost` units to every limit of `subject`, or to none of them.
    ///
    /// Under a concurrency limit use [`acquire`](Self::acquire): units that this method charges
    /// come back only when their lease ends.
    ///
    /// The future is ready at once if the store is in memory.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped before it is ready, the units may or may not have been charged.
    pub fn check(&self, subject: &Subject, cost: impl Into<Cost>) -> MaybeReady<Decision> {
        self.decide(subject, Mode::Check, cost.into(), false)
    }

    /// Charges as many of `cost` units as every limit grants. Denies the request if they grant
    /// none.
    pub fn check_up_to(&self, subject: &Subject, cost: impl Into<Cost>) -> MaybeReady<Decision> {
        self.decide(subject, Mode::CheckUpTo, cost.into(), false)
    }

    /// Decides whether `cost` units would be granted now. Charges nothing.
    pub fn peek(&self, subject: &Subject, cost: impl Into<Cost>) -> MaybeReady<Decision> {
        self.decide(subject, Mode::Peek, cost.into(), false)
    }

    /// Charges `cost` units that were already used, even beyond the limits.
    ///
    /// The limits never deny such a charge, but the failure policy may. Concurrency limits are not
    /// charged, because the work has already finished.
    pub fn charge(&self, subject: &Subject, cost: impl Into<Cost>) -> MaybeReady<Decision> {
        self.decide(subject, Mode::Charge, cost.into(), false)
    }

    /// Decides in the given mode. With `reserves`, the charge is a reservation, provided that the
    /// limiter is set to make reservations.
    #[inline]
    pub(crate) fn decide(
        &self,
        subject: &Subject,
        mode: Mode,
        cost: Cost,
        reserves: bool,
    ) -> MaybeReady<Decision> {
        let operation = Operation { reserves, ..self.pipeline.operation(mode) };
        self.pipeline.decide(subject, cost, &operation)
    }

    /// Decides like [`check`](Self::check), under a policy for this call instead of the subject's
    /// own.
    pub fn check_with_policy(
        &self,
        policy: &Policy,
        subject: &Subject,
        cost: impl Into<Cost>,
    ) -> MaybeReady<Decision> {
        let operation = self.pipeline.operation(Mode::Check);
        self.pipeline.decide_parts(&[Part::new(subject, policy, cost.into())], &operation)
    }

    /// Decides like [`check`](Self::check). If the limits deny the request, it waits until they
    /// allow it.
    ///
    /// Each subject has a queue, which is served first come, first served. A request is denied
    /// without waiting if `queue` requests of the subject wait already, or if waiting cannot help.
    /// At the head of the queue, a request is denied if it would have to wait longer than
    /// `at_most`. Requests that the failure policy rejects do not wait.
    ///
    /// The queue orders the requests of this limiter and its clones. Other instances on the same
    /// store have queues of their own.
    ///
    /// To hold the units of a concurrency limit until the request ends, pass the decision to
    /// [`permit`](Self::permit).
    ///
    /// If a request has to wait, the observer gets the first denial. It gets the final decision
    /// only if that allows the request.
    ///
    /// Requests wait on tokio's timers, whatever the clock of the store is. Tests that must not
    /// wait in real time give the store a [`TokioClock`](crate::time::TokioClock).
    ///
    /// # Cancel safety
    ///
    /// A future that is dropped leaves the queue. If a check is in flight at that time, it may
    /// charge its units.
    ///
    /// # Panics
    ///
    /// The future panics if it has to wait outside a tokio runtime with a timer.
    pub fn check_waiting(
        &self,
        subject: &Subject,
        cost: impl Into<Cost>,
        at_most: Duration,
        queue: usize,
    ) -> MaybeReady<Decision> {
        let wait = Wait { at_most, queue, reserves: false };
        self.decide_or_wait(subject, cost.into(), wait)
    }

    /// Decides, and waits in the queue of the subject while the limits deny the request.
    pub(crate) fn decide_or_wait(
        &self,
        subject: &Subject,
        cost: Cost,
        wait: Wait,
    ) -> MaybeReady<Decision> {
        waiting::WaitingRequest::of_subject(&self.pipeline, subject, cost, wait).check()
    }

    /// Decides like [`check`](Self::check), and returns a permit. The permit holds the units of
    /// concurrency limits, and can still change the cost.
    ///
    /// [`Permit::decision`] says whether the request is allowed. The permit of a denied request
    /// holds nothing. With
    /// [`reservation_expires_after`](RateLimiterBuilder::reservation_expires_after), the charge is
    /// refunded if this process dies.
    pub fn acquire(&self, subject: &Subject, cost: impl Into<Cost>) -> MaybeReady<Permit> {
        let decision = self.decide(subject, Mode::Check, cost.into(), true);
        Permit::of_decision(&self.pipeline, subject, decision)
    }

    /// Returns the permit for a request that was decided before, such as one that had to
    /// [wait](Self::check_waiting). Call it once for each decision, because two permits would
    /// settle the same charge twice.
    pub fn permit(&self, subject: &Subject, decision: Decision) -> Permit {
        Permit::new(&self.pipeline, None, subject.clone(), decision)
    }

    /// Refunds `units` of the charge of `decision`. At most the granted units are refunded, and
    /// only those that still count. Windows that have ended and tokens that have been refilled
    /// refund nothing.
    ///
    /// Call it once for each decision. A second call would refund units that other requests have
    /// used.
    ///
    /// # Errors
    ///
    /// Resolves to an error if the store fails. The units may have been refunded even so.
    pub fn refund(&self, subject: &Subject, decision: &Decision, units: u64) -> StoreFuture<()> {
        let units = units.min(decision.charged());
        self.pipeline.tally.refunded(units);
        self.pipeline.stores.refund(decision, subject, RefundOf::All, decision.at(), units)
    }

    /// Returns the status of each limit of `subject`. Charges nothing, and the failure policy does
    /// not apply.
    ///
    /// # Errors
    ///
    /// Resolves to an error if the store fails.
    pub fn usage(&self, subject: &Subject) -> StoreFuture<Decision> {
        with_policy(&self.pipeline, subject, |pipeline, subject, policy| match policy {
            Some(policy) => pipeline.stores.usage(policy, subject),
            None => MaybeReady::ready(Ok(Decision::undecided(Cost::ZERO, Origin::Unlimited))),
        })
    }

    /// Returns the status of each limit of `policy`. It may be another policy than the subject's
    /// own, such as one with limits that applied before.
    ///
    /// # Errors
    ///
    /// Resolves to an error if the store fails.
    pub fn usage_with_policy(&self, policy: &Policy, subject: &Subject) -> StoreFuture<Decision> {
        self.pipeline.stores.usage(policy, subject)
    }

    /// Returns the status of each limit of `policy`, in its order, with one call to the store for
    /// each limit.
    ///
    /// If one counter is damaged ([`FailureKind::Corrupt`](crate::FailureKind::Corrupt)),
    /// [`usage_with_policy`](Self::usage_with_policy) fails as a whole. In the readable layout of
    /// Redis, this method still returns the other limits. In the packed layout all limits of a
    /// subject share one value, and fail together.
    pub async fn usage_of_each(
        &self,
        policy: &Policy,
        subject: &Subject,
    ) -> Vec<Result<Decision, StoreError>> {
        let mut results = Vec::with_capacity(policy.limits().len());
        for position in 0..policy.limits().len() {
            if let Some(alone) = policy.only(|other, _| other == position) {
                results.push(self.usage_with_policy(&alone, subject).await);
            }
        }
        results
    }

    /// Resets all limits of `subject` to unused.
    ///
    /// # Errors
    ///
    /// Resolves to an error if the store fails.
    pub fn reset(&self, subject: &Subject) -> StoreFuture<()> {
        with_policy(&self.pipeline, subject, |pipeline, subject, policy| match policy {
            Some(policy) => pipeline.stores.reset(subject, policy, None),
            None => MaybeReady::ready(Ok(())),
        })
    }

    /// Resets the limit called `name` of `subject`.
    ///
    /// # Errors
    ///
    /// Resolves to an error if no limit of the subject has this name, or if the store fails.
    pub fn reset_limit(&self, subject: &Subject, name: &str) -> MaybeReady<Result<(), ResetError>> {
        let name = name.to_owned();
        with_policy(&self.pipeline, subject, move |pipeline, subject, policy| match policy {
            Some(policy) => reset_named(pipeline, policy, subject, Some(&name)),
            None => MaybeReady::ready(Err(ResetError::UnknownLimit(name))),
        })
    }

    /// Resets the limit that `policy` calls `name` for `subject`, or all limits of `policy` if
    /// `name` is `None`.
    ///
    /// # Errors
    ///
    /// Resolves to an error if the policy has no limit of this name, or if the store fails.
    pub fn reset_with_policy(
        &self,
        policy: &Policy,
        subject: &Subject,
        name: Option<&str>,
    ) -> MaybeReady<Result<(), ResetError>> {
        reset_named(&self.pipeline, policy, subject, name)
    }

    /// Returns the units that this process has reserved ahead to the store. Call it when a service
    /// shuts down, after its last request.
    ///
    /// The call waits for the settlements of [permits](Permit) that were dropped, and
    /// [closes](crate::store::Store::close) the store and its fallback. On Redis, the leased units
    /// become available to the other instances. Afterwards the limiter continues to decide, but
    /// without leases; so do all limiters on the same store.
    ///
    /// The call takes a few round trips, or up to 5 seconds if a store does not answer.
    ///
    /// # Examples
    ///
    /// ```
    /// # use rl_core::{Limit, RateLimiter};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let limiter = RateLimiter::builder().limit(Limit::per_hour(1_000)).build()?;
    /// // serve(limiter.clone()).with_graceful_shutdown(..).await?;
    /// limiter.close().await?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// Resolves to an error if some units could not be returned. They stay charged until their
    /// windows end, so a service may log the error and exit.
    pub fn close(&self) -> StoreFuture<()> {
        let pipeline = Arc::clone(&self.pipeline);
        MaybeReady::later(async move {
            pipeline.settlements.finish().await;
            pipeline.stores.close().await
        })
    }
}

impl fmt::Debug for RateLimiter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RateLimiter")
            .field("stores", &self.pipeline.stores)
            .field("enabled", &self.pipeline.enabled)
            .finish_non_exhaustive()
    }
}
