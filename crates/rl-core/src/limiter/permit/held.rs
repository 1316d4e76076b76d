use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::task::AbortHandle;
use tokio::time::{Instant, MissedTickBehavior, interval_at, timeout};

use crate::limiter::RateLimiter;
use crate::limiter::ask::timed_out;
use crate::limiter::breaker::Ticket;
use crate::limiter::close::Running;
use crate::store::{Mode, Refund, RefundOf, Renewal, StoreError, StoreFuture};
use crate::time::Timestamp;
use crate::{Cost, Decision, Eventual, Limit, Origin, Policy, Subject};

/// How often a lease is renewed before it would end: one renewal may fail.
const RENEWALS: u32 = 3;

/// What the clones of a permit share: units and places, until they are settled.
pub(super) struct Held {
    limiter: RateLimiter,
    pub(super) subject: Subject,
    pub(super) decision: Decision,
    account: Mutex<Account>,
    // Renews the leases of concurrency limits.
    keeper: Option<AbortHandle>,
}

/// What is still to be settled.
pub(super) struct Account {
    // What the request costs in the end.
    pub(super) cost: Cost,
    // When the leases began that are held now.
    leased: Timestamp,
    // A renewal failed, and may have been carried out: then the leases are of a time that is not known.
    is_lease_doubtful: bool,
    pub(super) is_settled: bool,
}

impl Held {
    /// What is held since `decision`; its leases, if they are to be renewed, last so long.
    pub(super) fn new(
        limiter: RateLimiter,
        subject: Subject,
        decision: Decision,
        lease: Option<Duration>,
    ) -> Arc<Self> {
        let (cost, leased) = (Cost::new(decision.taken()), decision.at());
        // There is nothing to correct where no store decided, or a limit refused.
        let was_decided = decision.origin().is_counted();
        let is_refused = !decision.is_allowed() || decision.is_refused_in_shadow();
        let is_settled = !was_decided || is_refused;
        let account = Account { cost, leased, is_lease_doubtful: false, is_settled };
        let lease = lease.filter(|_| !is_settled);
        Arc::new_cyclic(|held| {
            let keeper = lease.and_then(|lease| keep(Weak::clone(held), lease));
            Self { limiter, subject, decision, account: Mutex::new(account), keeper }
        })
    }

    pub(super) fn account(&self) -> MutexGuard<'_, Account> {
        self.account.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes a settlement that runs in a task of its own, until the result is dropped.
    pub(super) fn begin_settlement(&self) -> Running {
        self.limiter.inner.settlements.begin()
    }

    pub(super) fn settle(&self) -> StoreFuture<()> {
        let (due, leased) = {
            let mut account = self.account();
            if account.is_settled {
                return Eventual::ready(Ok(()));
            }
            account.is_settled = true;
            (account.cost.units(), account.leased)
        };
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
        let charged = {
            let account = self.account();
            if account.is_settled {
                return false;
            }
            account.leased
        };
        let units = self.decision.taken();
        let uncharged = self.decision.uncharged();
        let renewal = Renewal { namespace, subject, policy, charged, units, uncharged };
        // Nobody waits for it: it may take until it is time for the next.
        let ticket = self.limiter.inner.breaker.look();
        let renewal = self.limiter.store_of(&self.decision).renew(renewal);
        let patience = shortest_lease(policy).unwrap_or_default() / RENEWALS;
        let renewed = timeout(patience, renewal).await.unwrap_or_else(|_| Err(timed_out()));
        let renewed = match renewed {
            Ok(None) if self.account().is_lease_doubtful => self.take_anew(policy).await.map(Some),
            renewed => renewed,
        };
        let leased = match renewed {
            Ok(Some(leased)) => leased,
            // Lost in the meantime: others may hold the place.
            Ok(None) => return false,
            Err(error) => {
                self.account().is_lease_doubtful = true;
                self.limiter.settlement_failed(
                    &self.subject,
                    self.decision.origin(),
                    ticket,
                    &error,
                );
                return true;
            }
        };
        let is_settled = {
            let mut account = self.account();
            (account.leased, account.is_lease_doubtful) = (leased, false);
            account.is_settled
        };
        // Settled while it was renewed: then the place was free for a moment, and taken again.
        if is_settled && let Err(error) = self.free(leased).await {
            let ticket = self.limiter.inner.breaker.look();
            self.limiter.settlement_failed(&self.subject, self.decision.origin(), ticket, &error);
        }
        !is_settled
    }

    /// Takes the places once more, after a renewal of which only the reply was lost. What that had
    /// renewed is counted besides until it ends: for one lease too much is held, and never too little.
    async fn take_anew(&self, policy: &Policy) -> Result<Timestamp, StoreError> {
        let uncharged = self.decision.uncharged();
        let is_held = |place, limit: Limit| limit.holds_permits() && !uncharged.contains(place);
        let Some(places) = policy.only(is_held) else { return Ok(self.decision.at()) };
        let store = self.limiter.store_of(&self.decision);
        let question = self.limiter.question(Mode::Charge, Cost::new(self.decision.taken()));
        self.limiter.ask(store, &places, &self.subject, question).await.map(|taken| taken.at())
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        // It sleeps: while it renews it holds the permit.
        if let Some(keeper) = &self.keeper {
            keeper.abort();
        }
        let ticket = self.limiter.inner.breaker.look();
        let settlement = match self.settle() {
            Eventual::Ready(Some(Ok(()))) => return,
            settlement => settlement,
        };
        let (limiter, subject, origin) =
            (self.limiter.clone(), self.subject.clone(), self.decision.origin());
        let settlement = settlement.map(move |settled| {
            if let Err(error) = settled {
                limiter.settlement_failed(&subject, origin, ticket, &error);
            }
        });
        // An answer that is there has been dealt with; another needs somebody to wait for it.
        if let (Eventual::Boxed(settlement), Ok(runtime)) = (settlement, Handle::try_current()) {
            let running = self.begin_settlement();
            runtime.spawn(async move {
                let _running = running;
                settlement.await;
            });
        }
    }
}

impl RateLimiter {
    /// Tells that the store which counted a decision of this origin could not hold, settle or free it;
    /// `ticket` is of the time when it was asked.
    fn settlement_failed(
        &self,
        subject: &Subject,
        origin: Origin,
        ticket: Ticket,
        error: &StoreError,
    ) {
        if let Origin::Fallback(_) = origin {
            self.fallback_failed(error);
        } else {
            self.store_failed(subject, ticket, error);
        }
    }
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

/// The shortest lease of a policy's concurrency limits, if it has any.
pub(super) fn shortest_lease(policy: &Policy) -> Option<Duration> {
    let limits = policy.limits().iter().map(|limit| limit.limit());
    let leases = limits.filter(|limit| limit.holds_permits());
    leases.map(|limit| Duration::from_micros(limit.period().as_micros())).min()
}

/// Does both, even if the first fails.
pub(in crate::limiter) fn both(first: StoreFuture<()>, second: StoreFuture<()>) -> StoreFuture<()> {
    match (first, second) {
        (Eventual::Ready(Some(Ok(()))), second) => second,
        (first, second) => Eventual::later(async move {
            let (first, second) = (first.await, second.await);
            first.and(second)
        }),
    }
}
