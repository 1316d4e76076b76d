mod held;
mod keeper;
#[cfg(test)]
mod tests;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use held::Held;
pub(super) use held::both;
use keeper::shortest_lease;
use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio::time::timeout;

use super::RateLimiter;
use super::ask::timed_out;
use super::decide::Question;
use crate::decision::Decision;
use crate::maybe_ready::MaybeReady;
use crate::model::StoreError;
use crate::model::{Cost, FailureKind, Subject};
use crate::policy::Policy;
use crate::store::StoreFuture;

/// What an admitted request holds until it has ended, and by which its cost can still be changed.
///
/// A request often tells only in the end what it was worth: an estimate is *reserved* with
/// [`RateLimiter::acquire`], and *settled* when the permit goes: units that were not used are given
/// back, those beyond the estimate are charged, even beyond the limits. Places under concurrency limits
/// are held for as long, their leases renewed by a task of the tokio runtime that the permit was made
/// in.
///
/// Clones are one permit, which goes with the last of them: on success, on an error, on a panic and on
/// cancellation alike.
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
    // Whether its cost can be changed.
    is_metered: bool,
    // That of the limiter around the one that it is of.
    outer: Option<Arc<Permit>>,
}

impl RateLimiter {
    /// [`check`](Self::check), with a permit that holds places under concurrency limits, and by which
    /// the cost can still be changed.
    ///
    /// [`Permit::decision`] says whether the request may pass. The permit of a denied request holds
    /// nothing. With
    /// [`reservation_expires_after`](crate::RateLimiterBuilder::reservation_expires_after), the charge comes
    /// back if this process dies.
    pub fn acquire(&self, subject: &Subject, cost: impl Into<Cost>) -> MaybeReady<Permit> {
        let (this, held_by) = (self.clone(), subject.clone());
        let decision = self.check_as(subject, cost.into(), true);
        decision.map(move |decision| this.permit_of(held_by, decision))
    }

    /// The permit of a request on which `decision` was made, such as one that had to
    /// [wait](Self::check_waiting). One for each decision: each is settled.
    pub fn permit(&self, subject: &Subject, decision: Decision) -> Permit {
        self.permit_of(subject.clone(), decision)
    }

    pub(crate) fn permit_of(&self, subject: Subject, decision: Decision) -> Permit {
        let lease = match decision.policy() {
            Some(policy) if decision.charged() > 0 => shortest_lease(policy),
            _ => None,
        };
        let reservation = self.inner.reservation.filter(|_| decision.is_reserved());
        self.hold(subject, decision, lease.into_iter().chain(reservation).min())
    }

    /// Makes a permit whose leases last `lease`, if there are any to renew.
    fn hold(&self, subject: Subject, decision: Decision, lease: Option<Duration>) -> Permit {
        let held = Held::new(self.clone(), subject, decision, lease);
        Permit { held, is_metered: true, outer: None }
    }

    /// Asks the store for places, and sees to it that none is lost: a place that nobody waits for any
    /// more when it is granted, because the request has ended or its deadline has passed, would stay
    /// taken until its lease ends.
    pub(super) fn ask_for_permits(
        &self,
        policy: &Policy,
        subject: &Subject,
        question: Question,
    ) -> StoreFuture<Decision> {
        let answer = match self.ask_at_leisure(&self.inner.store, policy, subject, question) {
            MaybeReady::Boxed(answer) => answer,
            ready => return ready,
        };
        let (this, subject) = (self.clone(), subject.clone());
        let patience = shortest_lease(policy).unwrap_or_default();
        MaybeReady::later(async move {
            let (tell, told) = oneshot::channel();
            tokio::spawn(async move {
                if let Ok(answer) = timeout(patience, answer).await {
                    // Whoever drops the permit frees the place, be it here. Nobody keeps it for long.
                    let _ = tell.send(answer.map(|decision| this.hold(subject, decision, None)));
                }
            });
            match timeout(question.deadline, told).await {
                Ok(Ok(answer)) => answer.map(Permit::into_decision),
                // The task has ended with the runtime, or the store has not answered for a lease.
                Ok(Err(_)) => Err(StoreError::new(FailureKind::Unavailable)),
                Err(_) => Err(timed_out()),
            }
        })
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
        self.held.account().cost
    }

    /// Says what the request costs in the end, under this limiter and every metered one around it.
    pub fn set_cost(&self, cost: impl Into<Cost>) {
        let cost = cost.into();
        self.change_cost(&|_| cost);
    }

    /// Says that the request costs so many units more, under this limiter and every metered one around
    /// it.
    pub fn add_cost(&self, units: u64) {
        self.change_cost(&|cost| Cost::new(cost.units().saturating_add(units)));
    }

    fn change_cost(&self, change: &dyn Fn(Cost) -> Cost) {
        if self.is_metered {
            let mut account = self.held.account();
            account.cost = change(account.cost);
        }
        if let Some(outer) = &self.outer {
            outer.change_cost(change);
        }
    }

    /// Says what the request costs under this limiter alone, metered or not.
    pub(crate) fn set_own_cost(&self, cost: Cost) {
        self.held.account().cost = cost;
    }

    /// Whether its cost can be changed by whoever finds it.
    pub(crate) fn metered(self, is_metered: bool) -> Self {
        Self { is_metered, ..self }
    }

    /// Holds the permit of the limiter around this one, too.
    pub(crate) fn inside(self, outer: Option<Self>) -> Self {
        Self { outer: outer.map(Arc::new), ..self }
    }

    /// Settles now, for all clones, and with the permits of the limiters around. Without this it happens when the last of them is dropped:
    /// at once in memory, else in a task of the tokio runtime that the drop happens in.
    ///
    /// # Errors
    ///
    /// Resolves to an error if the store could not answer. What was to be settled may be so or not.
    pub fn settle(self) -> StoreFuture<()> {
        let outer = self.outer.as_deref().cloned();
        let own = match (self.held.settle(), Handle::try_current()) {
            // In a task of its own: whoever waits for it may go away.
            (MaybeReady::Boxed(settlement), Ok(runtime)) => {
                let running = self.held.begin_settlement();
                let settled = runtime.spawn(async move {
                    let _running = running;
                    settlement.await
                });
                let ended = || Err(StoreError::new(FailureKind::Unavailable));
                MaybeReady::later(async move { settled.await.unwrap_or_else(|_| ended()) })
            }
            (settlement, _) => settlement,
        };
        both(own, outer.map_or(MaybeReady::ready(Ok(())), Self::settle))
    }

    /// The decision alone: nothing is settled.
    fn into_decision(self) -> Decision {
        self.held.account().is_settled = true;
        self.held.decision.clone()
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
