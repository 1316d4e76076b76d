use std::cmp::Ordering;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use crate::decision::{Decision, Origin};
use crate::limiter::counters::Counters;
use crate::limiter::pipeline::Pipeline;
use crate::maybe_ready::{MaybeReady, both, done};
use crate::model::{Cost, Subject};
use crate::policy::Policy;
use crate::store::{
    Namespace, RefundOf, ReservationChange, ReservationStatus, Settlement, StoreFuture,
};
use crate::time::Timestamp;

/// The charge of a request until it is settled. All clones of a permit share it.
pub(super) struct PermitInner {
    pub(super) pipeline: Arc<Pipeline>,
    /// The namespace of the counters, if it is not the limiter's own. It is boxed to keep permits
    /// small, because most limiters count in one namespace.
    pub(super) namespace: Option<Box<Namespace>>,
    pub(super) subject: Subject,
    pub(super) decision: Decision,
    account: Mutex<Account>,
    /// The time at which the permit began, if it is timed.
    begun: Option<Instant>,
    /// The position of the permit in the list of renewals, or [`NOT_RENEWED`].
    renewal: AtomicUsize,
}

/// The value of `renewal` if the permit is not renewed.
const NOT_RENEWED: usize = usize::MAX;

/// The part of a charge that changes until it is settled.
#[derive(Clone, Copy)]
pub(super) struct Account {
    /// The final cost of the request, as far as it is known.
    pub(super) cost: Cost,
    /// The time at which the current leases began.
    pub(super) leased: Timestamp,
    /// Whether a renewal has failed, but may have been carried out. Then `leased` may be out of
    /// date.
    pub(super) is_lease_doubtful: bool,
    /// Whether the leases have ended, and the units have not been charged again yet.
    pub(super) is_lapsed: bool,
    pub(super) reservation: ReservationState,
    pub(super) is_settled: bool,
    pub(super) is_renewing: bool,
}

/// Whether the units are refunded if this process dies.
#[derive(Clone, Copy, Debug)]
pub(super) enum ReservationState {
    /// The charge is not a reservation.
    None,
    /// The reservation expires at this time on the store's clock.
    Until(Timestamp),
    /// The reservation has expired, and its units have been refunded.
    Expired,
    /// The subject was reset, or the store has lost its counts.
    Forgotten,
}

impl From<ReservationStatus> for ReservationState {
    fn from(status: ReservationStatus) -> Self {
        match status {
            ReservationStatus::Held { expires } => Self::Until(expires),
            ReservationStatus::Expired => Self::Expired,
            ReservationStatus::Forgotten => Self::Forgotten,
        }
    }
}

impl PermitInner {
    /// Creates the shared state of a permit for the charge of `decision`.
    #[inline(always)]
    pub(super) fn new(
        pipeline: Arc<Pipeline>,
        namespace: Option<Box<Namespace>>,
        subject: Subject,
        decision: Decision,
    ) -> Self {
        // Nothing is charged if no store has decided, or if a limit has denied the request.
        let was_decided = decision.origin().is_counted();
        let is_shadow = decision.origin() == Origin::Shadow;
        let is_refused = !decision.is_allowed() || is_shadow && decision.is_denied_in_shadow();
        let reservation = match pipeline.stores.reservation.filter(|_| decision.is_reserved()) {
            Some(lifetime) => {
                let micros = u64::try_from(lifetime.as_micros()).unwrap_or(u64::MAX);
                ReservationState::Until(decision.at().plus_micros(micros))
            }
            None => ReservationState::None,
        };
        let account = Account {
            cost: Cost::new(decision.charged()),
            leased: decision.at(),
            is_lease_doubtful: false,
            is_lapsed: false,
            reservation,
            is_settled: !was_decided || is_refused,
            is_renewing: false,
        };
        let is_held = !account.is_settled;
        let begun = is_held.then(|| pipeline.tally.permit_begun(&decision)).flatten();
        let (account, renewal) = (Mutex::new(account), AtomicUsize::new(NOT_RENEWED));
        Self { pipeline, namespace, subject, decision, account, begun, renewal }
    }

    /// Returns the counters that were charged.
    pub(super) fn counters(&self) -> Counters<'_> {
        Counters { namespace: self.namespace.as_deref(), subject: &self.subject }
    }

    /// Starts to renew what this permit holds, until it is settled.
    pub(super) fn start_renewal(self: &Arc<Self>) {
        if let Some(lease) = self.renewed_lease()
            && let Some(position) = self.pipeline.renewals.start(self, lease)
        {
            self.renewal.store(position, Relaxed);
        }
    }

    /// Ends the renewal of what this permit holds.
    pub(super) fn end_renewal(&self) {
        let position = self.renewal.swap(NOT_RENEWED, Relaxed);
        if position != NOT_RENEWED
            && let Some(lease) = self.renewed_lease()
        {
            self.pipeline.renewals.end(lease, position);
        }
    }

    /// Returns the shortest lease of the places that this permit holds, or the lifetime of its
    /// reservation if that is shorter. Returns `None` if there is nothing to renew.
    fn renewed_lease(&self) -> Option<Duration> {
        let holds = self.decision.charged() > 0 && self.decision.is_allowed();
        let policy = self.decision.policy().filter(|_| holds);
        let lease = policy.and_then(Policy::shortest_lease);
        match self.reservation_lifetime() {
            None => lease,
            Some(lifetime) => Some(lease.map_or(lifetime, |lease| lease.min(lifetime))),
        }
    }

    /// Locks the account.
    pub(super) fn account(&self) -> MutexGuard<'_, Account> {
        self.account.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the lifetime of reservations, if the charge is a reservation.
    pub(super) fn reservation_lifetime(&self) -> Option<Duration> {
        self.pipeline.stores.reservation.filter(|_| self.decision.is_reserved())
    }

    /// Settles the charge: releases concurrency limits, and charges or refunds the difference to
    /// the final cost.
    pub(super) fn settle(&self) -> StoreFuture<()> {
        self.finish().map_or(done(), |account| self.settle_once(account))
    }

    /// Marks the charge as settled. Returns its account unless it was settled before.
    pub(super) fn finish(&self) -> Option<Account> {
        let mut account = self.account();
        let is_settled = std::mem::replace(&mut account.is_settled, true);
        let account = (!is_settled).then_some(*account)?;
        self.count_end(&account);
        Some(account)
    }

    /// Counts the end of the permit, and the difference between the final cost and the charge.
    fn count_end(&self, account: &Account) {
        let (tally, cost) = (&self.pipeline.tally, account.cost.units());
        tally.permit_ended(self.begun);
        match cost.cmp(&self.decision.charged()) {
            Ordering::Equal => {}
            Ordering::Greater => tally.charged_after(cost - self.decision.charged()),
            Ordering::Less => tally.refunded(self.decision.charged() - cost),
        }
    }

    /// Returns the settlement of a charge that is not a reservation.
    pub(super) fn settlement(&self, account: Account) -> Option<Settlement<'_>> {
        // If the leases have lapsed, other requests may hold the units, so nothing is released.
        let leased = (!account.is_lapsed).then_some(account.leased);
        let stores = &self.pipeline.stores;
        stores.settlement(&self.decision, self.counters(), leased, account.cost.units())
    }

    pub(super) fn settle_once(&self, account: Account) -> StoreFuture<()> {
        let is_plain = matches!(account.reservation, ReservationState::None);
        if is_plain && account.cost.units() == self.decision.charged() {
            return self.free(account.leased, account.is_lapsed);
        }
        let corrected = match account.reservation {
            ReservationState::None => self.correct(account.cost.units()),
            reservation => self.settle_reservation(account.cost.units(), reservation),
        };
        both(self.free(account.leased, account.is_lapsed), corrected)
    }

    /// Releases the units of concurrency limits that have been held since `leased`. If `is_lapsed`,
    /// other requests may hold these units by now, so nothing is released.
    pub(super) fn free(&self, leased: Timestamp, is_lapsed: bool) -> StoreFuture<()> {
        let (Self { pipeline, decision, .. }, counters) = (self, self.counters());
        if is_lapsed {
            pipeline.wait_queues.notify_released(counters);
            return MaybeReady::ready(Ok(()));
        }
        pipeline.settlements.free_places(&pipeline.stores, counters, decision, leased)
    }

    /// Charges or refunds the difference between the final cost and the charge.
    fn correct(&self, cost: u64) -> StoreFuture<()> {
        let (stores, decision, counters) = (&self.pipeline.stores, &self.decision, self.counters());
        let charged = decision.charged();
        match cost.cmp(&charged) {
            Ordering::Equal => MaybeReady::ready(Ok(())),
            Ordering::Greater => stores.charge_rates(decision, counters, cost - charged, false),
            Ordering::Less => {
                stores.refund(decision, counters, RefundOf::Rates, decision.at(), charged - cost)
            }
        }
    }

    /// Ends the reservation, and charges or refunds the difference to `cost`. An expired
    /// reservation was refunded as a whole, so the whole cost is charged.
    fn settle_reservation(&self, cost: u64, reservation: ReservationState) -> StoreFuture<()> {
        let charged = self.decision.charged();
        let returned = charged.saturating_sub(cost);
        let settled = match reservation {
            ReservationState::Until(expires) => {
                let kept = self.decision.non_refundable(returned);
                let change = ReservationChange::Settle { returned, kept };
                let stores = &self.pipeline.stores;
                stores
                    .change_reservation(&self.decision, self.counters(), expires, change)
                    .map(|settled| stores.within_deadline(settled, &*stores.primary, "settle"))
            }
            _ => None,
        };
        let (pipeline, subject) = (Arc::clone(&self.pipeline), self.subject.clone());
        let (namespace, decision) = (self.namespace.clone(), self.decision.clone());
        MaybeReady::later(async move {
            let reservation = match settled {
                Some(settled) => settled.await?.into(),
                None => reservation,
            };
            let anew = matches!(reservation, ReservationState::Expired);
            let units = if anew { cost } else { cost.saturating_sub(charged) };
            let counters = Counters { namespace: namespace.as_deref(), subject: &subject };
            pipeline.stores.charge_rates(&decision, counters, units, anew).await
        })
    }
}

impl Drop for PermitInner {
    fn drop(&mut self) {
        let account = *self.account.get_mut().unwrap_or_else(PoisonError::into_inner);
        if *self.renewal.get_mut() != NOT_RENEWED {
            self.end_renewal();
        }
        if account.is_settled {
            return;
        }
        self.count_end(&account);
        let call = self.pipeline.breaker.observe();
        let (settlement, origin) = (self.settle_once(account), self.decision.origin());
        self.pipeline.settlements.complete(&self.subject, origin, call, settlement);
    }
}
