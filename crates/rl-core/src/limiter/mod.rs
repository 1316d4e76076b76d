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
//!     .on_store_failure(OnFailure::Reject)
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
//!
//! # When the store fails
//!
//! 1. **No decision takes longer than the [deadline](RateLimiterBuilder::deadline)**, and as long again
//!    where a [fallback](RateLimiterBuilder::fallback) is a server.
//! 2. Then [`OnFailure`] says what becomes of the request: it passes, is turned away, or is decided by a
//!    [fallback](RateLimiterBuilder::fallback) on a [`Share`] of the limits. [`Decision::origin`] tells.
//! 3. **A breaker** keeps requests from a store that is down or slow: after three failures in a row they
//!    are answered at once, and one of them at a time, every 50 to 200 ms, finds out whether the store
//!    is back. A store that *refuses* to work for us is asked on: its refusals deny.
//! 4. **What needs no counter needs no store.** A [block](Policy::blocked_until), a limit of 0 and a cost
//!    that the limits never grant are denied by the policy alone ([`Origin::Policy`]), and hold while
//!    the store is down, slow or full.
//! 5. **No more decisions wait** than [`max_in_flight`](RateLimiterBuilder::max_in_flight), and fewer if
//!    the store would answer them late.
//! 6. **An overload is no outage.** It may be the flood of one client, so by default it opens nothing: a
//!    request beyond what the store or the source of policies bears is answered by a denial that still holds,
//!    else rejected with 503 and `Retry-After: 1`. [`RateLimiterBuilder::on_overload`] changes that.
//! 7. Units go back to the store that took them. Operations that ask for facts, such as
//!    [`usage`](RateLimiter::usage), are errors then: nothing stands in for them.

mod ask;
mod breaker;
mod build_error;
mod builder;
mod close;
mod damaged;
mod decide;
mod failure;
mod fallback;
mod health;
mod in_flight;
mod overload;
mod permit;
mod policy_denial;
mod progress;
mod shadow;
#[cfg(test)]
mod tests;
mod waiting;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use breaker::Breaker;
pub use build_error::BuildError;
pub use builder::RateLimiterBuilder;
use close::Settlements;
use damaged::Damaged;
pub use failure::OnFailure;
use failure::{SourceHealth, StoreHealth};
use fallback::Fallback;
pub use fallback::Share;
use in_flight::InFlight;
pub use permit::Permit;
use shadow::ShadowLog;
use waiting::Lines;
pub(crate) use waiting::Wait;

use crate::decision::{Decision, Origin};
use crate::maybe_ready::MaybeReady;
use crate::model::{Cost, FailureKind, Subject};
use crate::model::{Mode, StoreError};
use crate::observe::Observer;
use crate::policy::Policy;
use crate::source::{PolicyFuture, PolicySource};
use crate::store::{Namespace, Refund, RefundOf, Store, StoreFuture};
use crate::time::Clock;

/// Decides who may pass. A cheap handle: clones share counters and settings.
///
/// The [module](self) shows how it is used.
#[derive(Clone)]
pub struct RateLimiter {
    inner: Arc<Inner>,
}

struct Inner {
    policies: Policies,
    store: Arc<dyn Store>,
    // Whether decisions of the store are returned as they are: no observer, no shadow mode.
    has_fast_path: bool,
    namespace: Namespace,
    // The clock on which blocks end.
    clock: Arc<dyn Clock>,
    // Keeps this limiter in the store's list of limiters until it is dropped.
    _registered: Option<Arc<()>>,
    enabled: bool,
    is_shadow: bool,
    deadline: Duration,
    on_store_failure: OnFailure,
    on_configuration_failure: OnFailure,
    on_fallback_failure: OnFailure,
    on_overload: OnFailure,
    policy_when_overloaded: Option<Policy>,
    fallback: Option<Fallback>,
    observer: Option<Arc<dyn Observer>>,
    breaker: Arc<Breaker>,
    in_flight: Arc<InFlight>,
    store_health: StoreHealth,
    source_health: SourceHealth,
    damaged: Damaged,
    // Who waits for units; see `waiting`.
    lines: Arc<Lines>,
    shadow_log: ShadowLog,
    settlements: Arc<Settlements>,
    // The lifetime of reservations, if permits make any.
    reservation: Option<Duration>,
}

/// The policies of the subjects.
enum Policies {
    /// One policy for all subjects.
    One(Policy),
    /// Policies that are looked up.
    Source(Arc<dyn PolicySource>),
}

impl Policies {
    /// Returns the policy of `subject` if it is available without waiting.
    #[inline]
    fn cached(&self, subject: &Subject) -> Option<&Policy> {
        match self {
            Self::One(policy) => Some(policy),
            Self::Source(source) => source.cached(subject),
        }
    }

    /// Looks up the policy of `subject`.
    fn policy(&self, subject: &Subject) -> PolicyFuture {
        match self {
            Self::One(policy) => policy.policy(subject),
            Self::Source(source) => source.policy(subject),
        }
    }
}

impl Inner {
    /// Who is told what happens.
    fn observer(&self) -> &dyn Observer {
        self.observer.as_deref().unwrap_or(&())
    }
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
    /// Under a concurrency limit use [`acquire`](Self::acquire): nobody would give back what this takes.
    ///
    /// The future is ready at once if the store is in memory.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped before it is ready, the units may or may not have been taken.
    pub fn check(&self, subject: &Subject, cost: impl Into<Cost>) -> MaybeReady<Decision> {
        self.decide(subject, Mode::Check, cost.into())
    }

    /// Takes as many of `cost` units as every limit grants; denied if that is none.
    pub fn check_up_to(&self, subject: &Subject, cost: impl Into<Cost>) -> MaybeReady<Decision> {
        self.decide(subject, Mode::CheckUpTo, cost.into())
    }

    /// Would `cost` units be granted now? Takes nothing.
    pub fn peek(&self, subject: &Subject, cost: impl Into<Cost>) -> MaybeReady<Decision> {
        self.decide(subject, Mode::Peek, cost.into())
    }

    /// Takes `cost` units that were used already, even beyond the limits. Never denied by them; a
    /// failure of the store is stood in for as ever. Of concurrency limits it takes nothing: what is done
    /// holds no place.
    pub fn charge(&self, subject: &Subject, cost: impl Into<Cost>) -> MaybeReady<Decision> {
        self.decide(subject, Mode::Charge, cost.into())
    }

    /// [`check`](Self::check) under a policy given for this call, instead of the subject's own.
    pub fn check_with_policy(
        &self,
        policy: &Policy,
        subject: &Subject,
        cost: impl Into<Cost>,
    ) -> MaybeReady<Decision> {
        let question = self.question(Mode::Check, cost.into());
        if !self.inner.enabled {
            return self.undecided(subject, question, Origin::Disabled);
        }
        self.decide_under(policy, subject, question)
    }

    /// Gives `units` of what `decision` took back: at most what it was granted, and only what still
    /// counts: in windows that are still open, and of tokens what has not come back by itself.
    ///
    /// Once for each decision: whoever asks twice gives back what others have used. What a fallback has
    /// counted goes back to the fallback.
    ///
    /// # Errors
    ///
    /// Resolves to an error if the store could not answer; the units may be back nevertheless.
    pub fn refund(&self, subject: &Subject, decision: &Decision, units: u64) -> StoreFuture<()> {
        let units = units.min(decision.charged());
        match decision.policy() {
            Some(policy) if units > 0 => {
                self.within_deadline(self.store_of(decision).refund(Refund {
                    namespace: &self.inner.namespace,
                    subject,
                    policy,
                    charged: decision.at(),
                    units,
                    of: RefundOf::All,
                    uncharged: decision.non_refundable(units),
                }))
            }
            _ => MaybeReady::ready(Ok(())),
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
            Some(policy) => limiter.usage_with_policy(policy, subject),
            None => MaybeReady::ready(Ok(Decision::undecided(Cost::ZERO, Origin::Unlimited))),
        };
        self.with_policy(subject, usage)
    }

    /// [`usage`](Self::usage) of limits given for this call, instead of the subject's own: of periods
    /// that it was under before, for instance.
    ///
    /// # Errors
    ///
    /// Resolves to an error if the store could not answer.
    pub fn usage_with_policy(&self, policy: &Policy, subject: &Subject) -> StoreFuture<Decision> {
        let question = self.question(Mode::Peek, Cost::ZERO);
        self.ask(&self.inner.store, policy, subject, question)
    }

    /// Looks up what `subject` has used of each limit of `policy`, asking for one limit at a time.
    ///
    /// Returns one result for each limit, in the order of the policy. [`usage_with_policy`](Self::usage_with_policy)
    /// asks for all in one step, and fails as a whole if one counter is damaged
    /// ([`FailureKind::Corrupt`]). This method then still reports the others in the readable layout of
    /// Redis, where each limit has a counter of its own. In the packed layout all limits of a
    /// subject share one value, and fail together. [`reset_with_policy`](Self::reset_with_policy) without a name
    /// removes damaged counters in both.
    pub async fn usage_of_each(
        &self,
        policy: &Policy,
        subject: &Subject,
    ) -> Vec<Result<Decision, StoreError>> {
        let mut results = Vec::with_capacity(policy.limits().len());
        for limit in 0..policy.limits().len() {
            if let Some(alone) = policy.only(|place, _| place == limit) {
                results.push(self.usage_with_policy(&alone, subject).await);
            }
        }
        results
    }

    /// Forgets what `subject` has used of the limit called `name` in `policy`, or of all of them.
    ///
    /// # Errors
    ///
    /// Resolves to an error if the policy has no limit of this name, or if the store could not answer.
    pub fn reset_with_policy(
        &self,
        policy: &Policy,
        subject: &Subject,
        name: Option<&str>,
    ) -> StoreFuture<()> {
        match name.map(|name| policy.position(name).ok_or(name)).transpose() {
            Ok(position) => self.reset_store(subject, policy, position),
            Err(name) => no_limit_called(name),
        }
    }

    /// Forgets all that `subject` has used.
    ///
    /// # Errors
    ///
    /// Resolves to an error if the store could not answer.
    pub fn reset(&self, subject: &Subject) -> StoreFuture<()> {
        self.with_policy(subject, |limiter, subject, policy| match policy {
            Some(policy) => limiter.reset_store(subject, policy, None),
            None => MaybeReady::ready(Ok(())),
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
                None => no_limit_called(&name),
            }
        })
    }

    /// How many decisions wait for the store now: a gauge for metrics. At most
    /// [`max_in_flight`](RateLimiterBuilder::max_in_flight); always 0 on a store in memory.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.inner.in_flight.waiting()
    }

    /// Whether the limiter is switched on.
    #[must_use]
    pub fn is_enabled(&self) -> bool {
        self.inner.enabled
    }

    /// Returns the setting for requests that the store does not decide for this reason.
    #[must_use]
    pub fn on_failure(&self, kind: FailureKind) -> OnFailure {
        match kind {
            FailureKind::Overloaded => self.inner.on_overload,
            kind if kind.is_configuration() => self.inner.on_configuration_failure,
            _ => self.inner.on_store_failure,
        }
    }

    /// Whether the limiter is in shadow: it decides and reports, and denies nothing.
    #[must_use]
    pub fn is_shadow(&self) -> bool {
        self.inner.is_shadow
    }

    /// A number that this limiter shares with its clones and with no other that is alive.
    pub(crate) fn id(&self) -> usize {
        Arc::as_ptr(&self.inner).addr()
    }
}

fn no_limit_called<T>(name: &str) -> StoreFuture<T> {
    let detail = format!("the subject is under no limit called {name:?}");
    MaybeReady::ready(Err(StoreError::new(FailureKind::Unsupported).with_detail(detail)))
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
