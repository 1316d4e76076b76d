use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::task::AbortHandle;

use super::keeper::keep;
use crate::decision::{Decision, Origin};
use crate::limiter::RateLimiter;
use crate::limiter::breaker::Ticket;
use crate::limiter::close::Running;
use crate::maybe_ready::MaybeReady;
use crate::model::{Cost, Limit, Subject};
use crate::model::{Mode, StoreError};
use crate::store::{
    Refund, RefundOf, Reservation, ReservationChange, ReservationStatus, StoreFuture,
};
use crate::time::Timestamp;

/// What the clones of a permit share: units and places, until they are settled.
pub(super) struct Held {
    pub(super) limiter: RateLimiter,
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
    pub(super) leased: Timestamp,
    // A renewal failed, and may have been carried out: then the leases are of a time that is not known.
    pub(super) is_lease_doubtful: bool,
    // The leases have ended, and the places have not been taken again yet.
    pub(super) is_lapsed: bool,
    pub(super) reserved: Reserved,
    pub(super) is_settled: bool,
}

/// Whether the units come back if this process dies.
#[derive(Clone, Copy, Debug)]
pub(super) enum Reserved {
    /// They do not.
    No,
    /// They do, at this time of the store's clock.
    Until(Timestamp),
    /// They have come back: the request was not renewed in time.
    Expired,
    /// The subject was reset, or the store has lost its counts.
    Forgotten,
}

impl From<ReservationStatus> for Reserved {
    fn from(status: ReservationStatus) -> Self {
        match status {
            ReservationStatus::Held { expires } => Self::Until(expires),
            ReservationStatus::Expired => Self::Expired,
            ReservationStatus::Forgotten => Self::Forgotten,
        }
    }
}

impl Held {
    /// What is held since `decision`; its leases, if they are to be renewed, last so long.
    pub(super) fn new(
        limiter: RateLimiter,
        subject: Subject,
        decision: Decision,
        lease: Option<Duration>,
    ) -> Arc<Self> {
        let (cost, leased) = (Cost::new(decision.charged()), decision.at());
        // There is nothing to correct where no store decided, or a limit refused.
        let was_decided = decision.origin().is_counted();
        let is_refused = !decision.is_allowed() || decision.is_denied_in_shadow();
        let is_settled = !was_decided || is_refused;
        let reserved = match limiter.inner.reservation.filter(|_| decision.is_reserved()) {
            Some(lifetime) => {
                let micros = u64::try_from(lifetime.as_micros()).unwrap_or(u64::MAX);
                Reserved::Until(decision.at().plus_micros(micros))
            }
            None => Reserved::No,
        };
        let account = Account {
            cost,
            leased,
            is_lease_doubtful: false,
            is_lapsed: false,
            reserved,
            is_settled,
        };
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
        let (due, leased, is_lapsed, reserved) = {
            let mut account = self.account();
            if account.is_settled {
                return MaybeReady::ready(Ok(()));
            }
            account.is_settled = true;
            let Account { cost, leased, is_lapsed, reserved, .. } = *account;
            (cost.units(), leased, is_lapsed, reserved)
        };
        let corrected = match reserved {
            Reserved::No => self.correct(due),
            reserved => self.settle_reservation(due, reserved),
        };
        both(self.free(leased, is_lapsed), corrected)
    }

    /// Frees the places under concurrency limits that have been held since `leased`. If their leases have
    /// lapsed, other requests may hold the places, so none is freed.
    pub(super) fn free(&self, leased: Timestamp, is_lapsed: bool) -> StoreFuture<()> {
        let units = if is_lapsed { 0 } else { self.decision.charged() };
        let freed = self.give_back(RefundOf::Permits, leased, units);
        let (lines, subject) = (Arc::clone(&self.limiter.inner.lines), self.subject.clone());
        freed.map(move |freed| {
            lines.move_up(&subject);
            freed
        })
    }

    /// Charges or gives back the difference between the cost and what was charged.
    fn correct(&self, due: u64) -> StoreFuture<()> {
        let taken = self.decision.charged();
        if due > taken {
            charge(&self.limiter, &self.subject, &self.decision, due - taken, Anew::No)
        } else {
            self.give_back(RefundOf::Rates, self.decision.at(), taken - due)
        }
    }

    /// Ends the reservation, and charges or gives back the difference. An expired reservation has come back
    /// as a whole, so the whole cost is charged.
    fn settle_reservation(&self, due: u64, reserved: Reserved) -> StoreFuture<()> {
        let taken = self.decision.charged();
        let returned = taken.saturating_sub(due);
        let kept = self.decision.non_refundable(returned);
        let change = ReservationChange::Settle { returned, kept };
        let settled = match reserved {
            Reserved::Until(expires) => self.reservation(expires).map(|reservation| {
                let store = self.limiter.store_of(&self.decision);
                self.limiter.within_deadline(store.change_reservation(reservation, change))
            }),
            _ => None,
        };
        let (limiter, subject) = (self.limiter.clone(), self.subject.clone());
        let decision = self.decision.clone();
        MaybeReady::later(async move {
            let reserved = match settled {
                Some(settled) => settled.await?.into(),
                None => reserved,
            };
            let (more, anew) = match reserved {
                Reserved::Expired => (due, Anew::Yes),
                Reserved::No | Reserved::Until(_) | Reserved::Forgotten => {
                    (due.saturating_sub(taken), Anew::No)
                }
            };
            charge(&limiter, &subject, &decision, more, anew).await
        })
    }

    /// Returns the reservation of the charge, if a store has decided.
    pub(super) fn reservation(&self, expires: Timestamp) -> Option<Reservation<'_>> {
        Some(Reservation {
            namespace: &self.limiter.inner.namespace,
            subject: &self.subject,
            policy: self.decision.policy()?,
            charged: self.decision.at(),
            units: self.decision.charged(),
            uncharged: self.decision.uncharged(),
            expires,
        })
    }

    pub(super) fn give_back(
        &self,
        of: RefundOf,
        charged: Timestamp,
        units: u64,
    ) -> StoreFuture<()> {
        let Some(policy) = self.decision.policy() else { return MaybeReady::ready(Ok(())) };
        let (namespace, subject) = (&self.limiter.inner.namespace, &self.subject);
        let uncharged = self.decision.non_refundable(units);
        let refund = Refund { namespace, subject, policy, charged, units, of, uncharged };
        if refund.is_empty() {
            return MaybeReady::ready(Ok(()));
        }
        let store = self.limiter.store_of(&self.decision);
        self.limiter.within_deadline(store.refund(refund))
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
            MaybeReady::Ready(Some(Ok(()))) => return,
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
        if let (MaybeReady::Boxed(settlement), Ok(runtime)) = (settlement, Handle::try_current()) {
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
    pub(super) fn settlement_failed(
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

/// Whether a request is charged once more as a whole, because all that it had charged has come back.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Anew {
    No,
    Yes,
}

/// Charges more units to the limits that `decision` has charged, even beyond them. Concurrency limits and
/// limits that were not charged do not depend on the cost. A limit that counts requests has counted this
/// one, unless it is charged anew.
fn charge(
    limiter: &RateLimiter,
    subject: &Subject,
    decision: &Decision,
    units: u64,
    anew: Anew,
) -> StoreFuture<()> {
    let uncharged = decision.uncharged();
    let changes = |place, limit: Limit| {
        let depends_on_cost = anew == Anew::Yes || !limit.counts_requests();
        !limit.holds_permits() && depends_on_cost && !uncharged.contains(place)
    };
    match decision.policy().and_then(|policy| policy.only(changes)) {
        Some(rates) if units > 0 => {
            let store = limiter.store_of(decision);
            let question = limiter.question(Mode::Charge, Cost::new(units));
            let charged = limiter.ask(store, &rates, subject, question);
            charged.map(|charged| charged.map(drop))
        }
        _ => MaybeReady::ready(Ok(())),
    }
}

/// Does both, even if the first fails.
pub(in crate::limiter) fn both(first: StoreFuture<()>, second: StoreFuture<()>) -> StoreFuture<()> {
    match (first, second) {
        (MaybeReady::Ready(Some(Ok(()))), second) => second,
        (first, second) => MaybeReady::later(async move {
            let (first, second) = (first.await, second.await);
            first.and(second)
        }),
    }
}
