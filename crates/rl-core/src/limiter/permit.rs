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

#[cfg(test)]
mod tests {
    use crate::limiter::OnFailure;
    use crate::store::{Charge, Refund, Reset, Store, StoreError, StoreFuture};
    use crate::{Decision, Eventual, FailureKind, Limit, RateLimiter, Subject};

    fn limiter() -> RateLimiter {
        RateLimiter::builder().limit(Limit::per_hour(10)).build().unwrap()
    }

    fn alice() -> Subject {
        Subject::user("alice")
    }

    async fn used(limiter: &RateLimiter) -> u64 {
        limiter.usage(&alice()).await.unwrap().limits().next().unwrap().used()
    }

    #[tokio::test]
    async fn the_difference_is_settled_once_with_the_last_clone() {
        let limiter = limiter();
        for (reserved, said, due) in
            [(4, None, 4), (4, Some(1), 1), (4, Some(0), 0), (2, Some(90), 90)]
        {
            let permit = limiter.acquire(&alice(), reserved).await;
            assert!(permit.decision().is_allowed());
            let clone = permit.clone();
            if let Some(said) = said {
                clone.set_cost(said);
            }
            drop(clone);
            assert_eq!(used(&limiter).await, reserved, "the other clone still holds it");
            drop(permit);
            assert_eq!(used(&limiter).await, due);
            limiter.reset(&alice()).await.unwrap();
        }
    }

    #[tokio::test]
    async fn what_is_settled_stays_so() {
        let limiter = limiter();
        let permit = limiter.acquire(&alice(), 5).await;
        let clone = permit.clone();
        permit.add_cost(2);
        permit.settle().await.unwrap();
        assert_eq!(used(&limiter).await, 7);
        clone.set_cost(0);
        drop(clone);
        assert_eq!(used(&limiter).await, 7);
    }

    #[tokio::test]
    async fn a_denied_request_holds_nothing() {
        let limiter = limiter();
        limiter.check(&alice(), 8).await;
        let permit = limiter.acquire(&alice(), 3).await;
        assert!(!permit.decision().is_allowed());
        assert_eq!(permit.cost().units(), 0);
        drop(permit);
        assert_eq!(used(&limiter).await, 8);
    }

    #[derive(Debug)]
    struct Down;

    impl Store for Down {
        fn decide(&self, _: Charge<'_>) -> StoreFuture<Decision> {
            Eventual::ready(Err(StoreError::new(FailureKind::Unavailable)))
        }

        fn refund(&self, _: Refund<'_>) -> StoreFuture<()> {
            panic!("nothing was charged")
        }

        fn reset(&self, _: Reset<'_>) -> StoreFuture<()> {
            panic!("nothing was charged")
        }
    }

    #[tokio::test]
    async fn what_no_store_decided_is_not_settled() {
        let builder = RateLimiter::builder().limit(Limit::per_hour(10)).store(Down);
        let limiter = builder.on_store_failure(OnFailure::Allow).build().unwrap();
        let permit = limiter.acquire(&alice(), 3).await;
        assert!(permit.decision().is_allowed());
        permit.set_cost(1);
        permit.settle().await.unwrap();
    }
}
