//! What applications hold: a limiter that decides, and stands in when no decision can be made.
//!
//! # Example
//!
//! ```
//! use rl_core::limiter::OnFailure;
//! use rl_core::{Limit, RateLimiter, Subject};
//!
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let limiter = RateLimiter::builder()
//!     .limit(Limit::per_second(10))
//!     .limit(Limit::per_day(5_000))
//!     .on_store_failure(OnFailure::Deny)
//!     .build()?;
//!
//! let caller = Subject::consumer("abc123");
//! let decision = limiter.check(&caller, 3).await;
//! assert!(decision.is_allowed());
//!
//! // The work was not done after all: give two units back.
//! limiter.refund(&caller, &decision, 2).await?;
//! let usage = limiter.usage(&caller).await?;
//! assert!(usage.limits().all(|limit| limit.used() == 1));
//!
//! limiter.reset(&caller).await?;
//! # Ok(()) }
//! ```

mod builder;
mod failure;
#[cfg(test)]
mod paused;
mod permit;
#[cfg(test)]
mod tests;
mod waiting;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

pub use builder::{BuildError, RateLimiterBuilder};
pub use failure::OnFailure;
use failure::{Health, Ticket};
pub use permit::Permit;
use waiting::Lines;

use crate::observe::{self, Observer};
use crate::source::PolicySource;
use crate::store::{
    Charge, Mode, Namespace, Refund, RefundOf, Reset, Store, StoreError, StoreFuture,
};
use crate::{Cost, Decision, Eventual, FailureKind, Origin, Policy, Subject};

/// Decides who may pass. A cheap handle: clones share counters and settings.
///
/// The [module](self) shows how it is used.
#[derive(Clone)]
pub struct RateLimiter {
    inner: Arc<Inner>,
}

struct Inner {
    policies: Arc<dyn PolicySource>,
    store: Arc<dyn Store>,
    namespace: Namespace,
    enabled: bool,
    deadline: Duration,
    on_store_failure: OnFailure,
    on_configuration_failure: OnFailure,
    observer: Arc<dyn Observer>,
    health: Health,
    // Who waits for units; see `waiting`.
    lines: Arc<Lines>,
}

impl RateLimiter {
    /// A limiter made step by step.
    pub fn builder() -> RateLimiterBuilder {
        RateLimiterBuilder::default()
    }

    fn from_inner(inner: Inner) -> Self {
        Self { inner: Arc::new(inner) }
    }

    /// Takes `cost` units from every limit of `subject`, or none from any.
    ///
    /// The future is ready at once if the store is in memory.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped before it is ready, the units may or may not have been taken.
    pub fn check(&self, subject: &Subject, cost: impl Into<Cost>) -> Eventual<Decision> {
        self.decide(subject, Mode::Check, cost.into())
    }

    /// Takes as many of `cost` units as every limit grants; denied if that is none.
    pub fn check_up_to(&self, subject: &Subject, cost: impl Into<Cost>) -> Eventual<Decision> {
        self.decide(subject, Mode::CheckUpTo, cost.into())
    }

    /// Would `cost` units be granted now? Takes nothing.
    pub fn peek(&self, subject: &Subject, cost: impl Into<Cost>) -> Eventual<Decision> {
        self.decide(subject, Mode::Peek, cost.into())
    }

    /// Takes `cost` units that were used already, even beyond the limits. Never denied by them; a
    /// failure of the store is stood in for as ever.
    pub fn charge(&self, subject: &Subject, cost: impl Into<Cost>) -> Eventual<Decision> {
        self.decide(subject, Mode::Charge, cost.into())
    }

    /// [`check`](Self::check) under a policy given for this call, instead of the subject's own.
    pub fn check_under(
        &self,
        policy: &Policy,
        subject: &Subject,
        cost: impl Into<Cost>,
    ) -> Eventual<Decision> {
        let cost = cost.into();
        if !self.inner.enabled {
            return self.undecided(subject, cost, Origin::Disabled);
        }
        self.decide_under(policy, subject, Mode::Check, cost)
    }

    /// Gives `units` of what `decision` took back: at most what it was granted, and only what still
    /// counts: in windows that are still open, and of tokens what has not come back by itself.
    ///
    /// Once for each decision: whoever asks twice gives back what others have used.
    ///
    /// # Errors
    ///
    /// Resolves to an error if the store could not answer; the units may be back nevertheless.
    pub fn refund(&self, subject: &Subject, decision: &Decision, units: u64) -> StoreFuture<()> {
        let units = units.min(decision.granted());
        match decision.policy() {
            Some(policy) if units > 0 => self.within_deadline(self.inner.store.refund(Refund {
                namespace: &self.inner.namespace,
                subject,
                policy,
                charged: decision.at(),
                units,
                of: RefundOf::All,
            })),
            _ => Eventual::ready(Ok(())),
        }
    }

    /// Where `subject` stands under each of its limits. Takes nothing, and the failure policy does
    /// not stand in.
    ///
    /// # Errors
    ///
    /// Resolves to an error if the store could not answer.
    pub fn usage(&self, subject: &Subject) -> StoreFuture<Decision> {
        let usage = |limiter: &Self, subject: &Subject, policy: Option<&Policy>| match policy {
            Some(policy) => limiter.ask_store(policy, subject, Mode::Peek, Cost::ZERO),
            None => Eventual::ready(Ok(Decision::undecided(Cost::ZERO, Origin::Unlimited))),
        };
        self.with_policy(subject, usage)
    }

    /// Forgets all that `subject` has used.
    ///
    /// # Errors
    ///
    /// Resolves to an error if the store could not answer.
    pub fn reset(&self, subject: &Subject) -> StoreFuture<()> {
        self.with_policy(subject, |limiter, subject, policy| match policy {
            Some(policy) => limiter.reset_store(subject, policy, None),
            None => Eventual::ready(Ok(())),
        })
    }

    /// Forgets what `subject` has used of the limit called `name`.
    ///
    /// # Errors
    ///
    /// Resolves to an error if the subject is under no limit of this name, or if the store could
    /// not answer.
    pub fn reset_limit(&self, subject: &Subject, name: &str) -> StoreFuture<()> {
        let name = name.to_owned();
        self.with_policy(subject, move |limiter, subject, policy| {
            let limit = policy.and_then(|policy| Some((policy, policy.position(&name)?)));
            match limit {
                Some((policy, position)) => limiter.reset_store(subject, policy, Some(position)),
                None => Eventual::ready(Err(StoreError::new(FailureKind::Unsupported)
                    .with_detail(format!("the subject is under no limit called {name:?}")))),
            }
        })
    }

    /// Whether the limiter is switched on.
    #[must_use]
    pub fn is_enabled(&self) -> bool {
        self.inner.enabled
    }

    /// A number that this limiter shares with its clones and with no other that is alive.
    pub(crate) fn id(&self) -> usize {
        Arc::as_ptr(&self.inner).addr()
    }

    fn decide(&self, subject: &Subject, mode: Mode, cost: Cost) -> Eventual<Decision> {
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

    fn decide_or_pass(
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

    fn decide_under(
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

    fn ask_store(
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

    fn reset_store(
        &self,
        subject: &Subject,
        policy: &Policy,
        limit: Option<usize>,
    ) -> StoreFuture<()> {
        let namespace = &self.inner.namespace;
        self.within_deadline(self.inner.store.reset(Reset { namespace, subject, policy, limit }))
    }

    /// Looks the subject's policy up, then does `then` with it.
    fn with_policy<T: Send + 'static>(
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
    fn within_deadline<T: Send + 'static>(&self, answer: StoreFuture<T>) -> StoreFuture<T> {
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
    fn conclude(
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
                self.report(subject, decision)
            }
            Err(error) => self.stand_in(subject, cost, &error),
        }
    }

    fn stand_in(&self, subject: &Subject, cost: Cost, error: &StoreError) -> Decision {
        let origin = match self.store_failed(error) {
            OnFailure::Allow => Origin::FailedOpen(error.kind()),
            OnFailure::Deny => Origin::FailedClosed(error.kind()),
        };
        self.report(subject, Decision::undecided(cost, origin))
    }

    /// Tells that the store could not answer; returns what that means for requests.
    fn store_failed(&self, error: &StoreError) -> OnFailure {
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

    fn undecided(&self, subject: &Subject, cost: Cost, origin: Origin) -> Eventual<Decision> {
        Eventual::ready(self.report(subject, Decision::undecided(cost, origin)))
    }

    fn report(&self, subject: &Subject, decision: Decision) -> Decision {
        let decision = decision.by(self.id());
        observe::decided(subject, &decision);
        self.inner.observer.decided(subject, &decision);
        decision
    }
}

const fn timed_out() -> StoreError {
    StoreError::new(FailureKind::TimedOut)
}

impl fmt::Debug for RateLimiter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RateLimiter")
            .field("store", &self.inner.store)
            .field("namespace", &self.inner.namespace)
            .field("enabled", &self.inner.enabled)
            .field("deadline", &self.inner.deadline)
            .finish_non_exhaustive()
    }
}

fn _assert_send_sync() -> impl Send + Sync + Clone {
    RateLimiter::builder().build().ok()
}
