#[cfg(test)]
mod tests;

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio::task::AbortHandle;
use tokio::time::{Instant, MissedTickBehavior, interval_at, timeout};

use super::RateLimiter;
use super::breaker::Ticket;
use super::decide::{Question, timed_out};
use crate::store::{Mode, Refund, RefundOf, Renewal, StoreError, StoreFuture};
use crate::time::Timestamp;
use crate::{Cost, Decision, Eventual, FailureKind, Limit, Origin, Policy, Subject};

/// How often a lease is renewed before it would end: one renewal may fail.
const RENEWALS: u32 = 3;

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

struct Held {
    limiter: RateLimiter,
    subject: Subject,
    decision: Decision,
    account: Mutex<Account>,
    // Renews the leases of concurrency limits.
    keeper: Option<AbortHandle>,
}

struct Account {
    // What the request costs in the end.
    cost: Cost,
    // When the leases began that are held now.
    leased: Timestamp,
    is_settled: bool,
}

impl RateLimiter {
    /// [`check`](Self::check), with a permit that holds places under concurrency limits, and by which
    /// the cost can still be changed.
    ///
    /// Whether the request may pass says [`Permit::decision`]; the permit of a denied request holds
    /// nothing.
    pub fn acquire(&self, subject: &Subject, cost: impl Into<Cost>) -> Eventual<Permit> {
        let (this, held_by) = (self.clone(), subject.clone());
        self.check(subject, cost).map(move |decision| this.permit_of(held_by, decision))
    }

    /// The permit of a request on which `decision` was made, such as one that had to
    /// [wait](Self::check_waiting). One for each decision: each is settled.
    pub fn permit(&self, subject: &Subject, decision: Decision) -> Permit {
        self.permit_of(subject.clone(), decision)
    }

    pub(crate) fn permit_of(&self, subject: Subject, decision: Decision) -> Permit {
        let (cost, leased) = (Cost::new(decision.taken()), decision.at());
        // There is nothing to correct where no store decided, or a limit refused.
        let was_decided = decision.origin().is_counted();
        let is_refused = !decision.is_allowed() || decision.is_refused_in_shadow();
        let is_settled = !was_decided || is_refused;
        let account = Mutex::new(Account { cost, leased, is_settled });
        let lease = match decision.policy() {
            Some(policy) if decision.taken() > 0 => shortest_lease(policy),
            _ => None,
        };
        let limiter = self.clone();
        let held = Arc::new_cyclic(|held| {
            let keeper = lease.and_then(|lease| keep(Weak::clone(held), lease));
            Held { limiter, subject, decision, account, keeper }
        });
        Permit { held, is_metered: true, outer: None }
    }

    /// Tells that the store which counted a decision of this origin could not hold, settle or free it;
    /// `ticket` is of the time when it was asked.
    fn settlement_failed(&self, origin: Origin, ticket: Ticket, error: &StoreError) {
        if let Origin::Fallback(_) = origin {
            self.fallback_failed(error);
        } else {
            self.store_failed(ticket, error);
        }
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
            Eventual::Boxed(answer) => answer,
            ready => return ready,
        };
        let (this, subject) = (self.clone(), subject.clone());
        let patience = shortest_lease(policy).unwrap_or_default();
        Eventual::later(async move {
            let (tell, told) = oneshot::channel();
            tokio::spawn(async move {
                if let Ok(answer) = timeout(patience, answer).await {
                    // Whoever drops the permit frees the place, be it here.
                    let _ = tell.send(answer.map(|decision| this.permit_of(subject, decision)));
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

/// The shortest lease of a policy's concurrency limits, if it has any.
fn shortest_lease(policy: &Policy) -> Option<Duration> {
    let limits = policy.limits().iter().map(|limit| limit.limit());
    let leases = limits.filter(|limit| limit.holds_permits());
    leases.map(|limit| Duration::from_micros(limit.period().as_micros())).min()
}

/// Renews the leases in time, for as long as the permit is held. Outside a tokio runtime nobody does.
fn keep(held: Weak<Held>, lease: Duration) -> Option<AbortHandle> {
    let runtime = Handle::try_current().ok()?;
    let keeper = runtime.spawn(async move {
        let every = lease / RENEWALS;
        let mut in_time = interval_at(Instant::now() + every, every);
        in_time.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            in_time.tick().await;
            let Some(held) = held.upgrade() else { return };
            if !held.renew().await {
                return;
            }
        }
    });
    Some(keeper.abort_handle())
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
        both(self.held.settle(), outer.map_or(Eventual::ready(Ok(())), Self::settle))
    }

    /// The decision alone: nothing is settled.
    fn into_decision(self) -> Decision {
        self.held.account().is_settled = true;
        self.held.decision.clone()
    }
}

impl Held {
    fn account(&self) -> MutexGuard<'_, Account> {
        self.account.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn settle(&self) -> StoreFuture<()> {
        let (due, leased) = {
            let mut account = self.account();
            if account.is_settled {
                return Eventual::ready(Ok(()));
            }
            account.is_settled = true;
            (account.cost.units(), account.leased)
        };
        if let Some(keeper) = &self.keeper {
            keeper.abort();
        }
        both(self.free(leased), self.correct(due))
    }

    /// Frees the places under concurrency limits that have been held since `leased`.
    fn free(&self, leased: Timestamp) -> StoreFuture<()> {
        let freed = self.give_back(RefundOf::Permits, leased, self.decision.taken());
        let (lines, subject) = (Arc::clone(&self.limiter.inner.lines), self.subject.clone());
        freed.map(move |freed| {
            lines.move_up(&subject);
            freed
        })
    }

    /// Takes or gives back what the cost in the end differs from what was granted.
    fn correct(&self, due: u64) -> StoreFuture<()> {
        let taken = self.decision.taken();
        // A change of the cost is nothing to places, to limits that count requests, and to those that
        // were not charged.
        let uncharged = self.decision.uncharged();
        let changes = |place, limit: Limit| {
            !limit.holds_permits() && !limit.counts_requests() && !uncharged.contains(place)
        };
        match self.decision.policy().and_then(|policy| policy.only(changes)) {
            Some(rates) if due > taken => {
                let more = Cost::new(due - taken);
                let store = self.limiter.store_of(&self.decision);
                let question = self.limiter.question(Mode::Charge, more);
                let charged = self.limiter.ask(store, &rates, &self.subject, question);
                charged.map(|charged| charged.map(drop))
            }
            _ => self.give_back(RefundOf::Rates, self.decision.at(), taken.saturating_sub(due)),
        }
    }

    fn give_back(&self, of: RefundOf, charged: Timestamp, units: u64) -> StoreFuture<()> {
        let Some(policy) = self.decision.policy() else { return Eventual::ready(Ok(())) };
        let (namespace, subject) = (&self.limiter.inner.namespace, &self.subject);
        let uncharged = self.decision.kept(units);
        let refund = Refund { namespace, subject, policy, charged, units, of, uncharged };
        if refund.is_empty() {
            return Eventual::ready(Ok(()));
        }
        let store = self.limiter.store_of(&self.decision);
        self.limiter.within_deadline(store.refund(refund))
    }

    /// Begins the leases anew; whether they are to be renewed again.
    async fn renew(&self) -> bool {
        let Some(policy) = self.decision.policy() else { return false };
        let (namespace, subject) = (&self.limiter.inner.namespace, &self.subject);
        let (charged, units) = (self.account().leased, self.decision.taken());
        let uncharged = self.decision.uncharged();
        let renewal = Renewal { namespace, subject, policy, charged, units, uncharged };
        // Nobody waits for it: it may take until it is time for the next.
        let ticket = self.limiter.inner.breaker.look();
        let renewal = self.limiter.store_of(&self.decision).renew(renewal);
        let patience = shortest_lease(policy).unwrap_or_default() / RENEWALS;
        let renewed = timeout(patience, renewal).await.unwrap_or_else(|_| Err(timed_out()));
        let leased = match renewed {
            Ok(Some(leased)) => leased,
            // Lost in the meantime: others may hold the place.
            Ok(None) => return false,
            Err(error) => {
                self.limiter.settlement_failed(self.decision.origin(), ticket, &error);
                return true;
            }
        };
        let is_settled = {
            let mut account = self.account();
            account.leased = leased;
            account.is_settled
        };
        // Settled while it was renewed: then the place was free for a moment, and taken again.
        if is_settled && let Err(error) = self.free(leased).await {
            let ticket = self.limiter.inner.breaker.look();
            self.limiter.settlement_failed(self.decision.origin(), ticket, &error);
        }
        !is_settled
    }
}

/// Does both, even if the first fails.
fn both(first: StoreFuture<()>, second: StoreFuture<()>) -> StoreFuture<()> {
    match (first, second) {
        (Eventual::Ready(Some(Ok(()))), second) => second,
        (first, second) => Eventual::later(async move {
            let (first, second) = (first.await, second.await);
            first.and(second)
        }),
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let (limiter, origin) = (self.limiter.clone(), self.decision.origin());
        let ticket = limiter.inner.breaker.look();
        let settlement = self.settle().map(move |settled| {
            if let Err(error) = settled {
                limiter.settlement_failed(origin, ticket, &error);
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
