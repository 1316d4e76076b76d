use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use tokio::runtime::Handle;

use super::RateLimiter;
use crate::store::{Mode, StoreFuture};
use crate::{Cost, Decision, Eventual, Origin, Subject};

/// What an admitted request holds until it has ended, and by which its cost can still be changed.
///
/// A request often tells only in the end what it was worth: an estimate is *reserved* with
/// [`RateLimiter::acquire`], and *settled* when the permit goes: units that were not used are given
/// back, those beyond the estimate are charged, even beyond the limits. Clones are one permit, which
/// goes with the last of them: on success, on an error, on a panic and on cancellation alike.
///
/// # Examples
///
/// ```
/// use rl_core::{Limit, RateLimiter, Subject};
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let limiter = RateLimiter::builder().limit(Limit::per_minute(1_000)).build()?;
/// let caller = Subject::consumer("abc123");
///
/// let permit = limiter.acquire(&caller, 400).await; // tokens, at a guess
/// assert!(permit.decision().is_allowed());
/// permit.set_cost(150); // what the answer took
/// permit.settle().await?; // or just drop it
///
/// let usage = limiter.usage(&caller).await?;
/// assert_eq!(usage.limits().next().map(|limit| limit.used()), Some(150));
/// # Ok(()) }
/// ```
#[derive(Clone)]
#[must_use = "a permit that is dropped is settled"]
pub struct Permit {
    held: Arc<Held>,
}

struct Held {
    limiter: RateLimiter,
    subject: Subject,
    decision: Decision,
    // What the request costs in the end.
    cost: AtomicU64,
    settled: AtomicBool,
}

impl RateLimiter {
    /// [`check`](Self::check), with a permit by which the cost can still be changed.
    ///
    /// Whether the request may pass says [`Permit::decision`]; the permit of a denied request holds
    /// nothing.
    pub fn acquire(&self, subject: &Subject, cost: impl Into<Cost>) -> Eventual<Permit> {
        let (this, held_by) = (self.clone(), subject.clone());
        self.check(subject, cost).map(move |decision| this.permit(held_by, decision))
    }

    /// The permit of a request on which `decision` was made.
    pub(crate) fn permit(&self, subject: Subject, decision: Decision) -> Permit {
        let cost = AtomicU64::new(decision.granted());
        let (limiter, settled) = (self.clone(), AtomicBool::new(false));
        Permit { held: Arc::new(Held { limiter, subject, decision, cost, settled }) }
    }
}

impl Permit {
    /// What was decided on the request.
    #[must_use]
    pub fn decision(&self) -> &Decision {
        &self.held.decision
    }

    /// What the request is going to have cost: so far, what it was granted.
    #[must_use]
    pub fn cost(&self) -> Cost {
        Cost::new(self.held.cost.load(Ordering::Relaxed))
    }

    /// Says what the request costs in the end.
    pub fn set_cost(&self, cost: impl Into<Cost>) {
        self.held.cost.store(cost.into().units(), Ordering::Relaxed);
    }

    /// Says that the request costs so many units more.
    pub fn add_cost(&self, units: u64) {
        // Never fails, as the closure always answers.
        let add = |cost: u64| Some(cost.saturating_add(units));
        let _ = self.held.cost.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add);
    }

    /// Settles now, and for all clones. Without this it happens when the last of them is dropped:
    /// at once in memory, else in a task of the tokio runtime that the drop happens in.
    ///
    /// # Errors
    ///
    /// Resolves to an error if the store could not answer. What was to be settled may be so or not.
    pub fn settle(self) -> StoreFuture<()> {
        self.held.settle()
    }
}

impl Held {
    fn settle(&self) -> StoreFuture<()> {
        let Self { limiter, subject, decision, cost, settled } = self;
        // If no store decided, there is nothing to correct.
        if settled.swap(true, Ordering::AcqRel) || decision.origin() != Origin::Store {
            return Eventual::ready(Ok(()));
        }
        let (taken, due) = (decision.granted(), cost.load(Ordering::Relaxed));
        match decision.policy() {
            Some(policy) if due > taken => {
                let more = Cost::new(due - taken);
                limiter
                    .ask_store(policy, subject, Mode::Charge, more)
                    .map(|answer| answer.map(drop))
            }
            _ => limiter.refund(subject, decision, taken.saturating_sub(due)),
        }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let limiter = self.limiter.clone();
        let settlement = self.settle().map(move |settled| {
            if let Err(error) = settled {
                limiter.store_failed(&error);
            }
        });
        // An answer that is there has been dealt with; another needs somebody to wait for it.
        if let (Eventual::Boxed(settlement), Ok(runtime)) = (settlement, Handle::try_current()) {
            runtime.spawn(settlement);
        }
    }
}

impl fmt::Debug for Permit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Permit")
            .field("subject", &self.held.subject)
            .field("cost", &self.cost())
            .finish_non_exhaustive()
    }
}
