use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use smallvec::SmallVec;
use tokio::time::Instant;

use crate::decision::{Decision, Origin};
use crate::limiter::parts::CounterKey;
use crate::limiter::pipeline::Pipeline;
use crate::maybe_ready::{MaybeReady, both, done};
use crate::model::{Cost, Subject};
use crate::policy::Policy;
use crate::store::{LeaseStatus, Namespace, Reservation, Settlement, StoreFuture};
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
    /// The units of the cost that were charged after the decision, and before the permit is
    /// settled.
    pub(super) charged_since: u64,
    /// Whether a cost that grows is charged before the permit is settled.
    pub(super) charges_growth: bool,
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

impl From<LeaseStatus<Timestamp>> for ReservationState {
    fn from(status: LeaseStatus<Timestamp>) -> Self {
        match status {
            LeaseStatus::Held(expires) => Self::Until(expires),
            LeaseStatus::Expired => Self::Expired,
            LeaseStatus::Forgotten => Self::Forgotten,
        }
    }
}

impl PermitInner {
    /// Creates the shared state of a permit for the charge of `decision`.
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
            charged_since: 0,
            charges_growth: false,
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
    pub(super) fn counters(&self) -> CounterKey<'_> {
        CounterKey { namespace: self.namespace.as_deref(), subject: &self.subject }
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

    /// Returns the cost to settle: without the units that were charged after the decision. Unless
    /// the final cost is 0, one unit of the decision stays charged, because a refund of all its
    /// units also refunds the request under limits that count requests.
    fn unsettled(&self, account: &Account) -> u64 {
        let (cost, charged) = (account.cost.units(), self.decision.charged());
        cost.saturating_sub(account.charged_since).max(cost.min(charged).min(1))
    }

    /// Counts the end of the permit, and the units that were charged or refunded after the
    /// decision.
    fn count_end(&self, account: &Account) {
        let (tally, charged) = (&self.pipeline.tally, self.decision.charged());
        let unsettled = self.unsettled(account);
        tally.permit_ended(self.begun);
        let added = account.charged_since + unsettled.saturating_sub(charged);
        let refunded = charged.saturating_sub(unsettled);
        if added > 0 {
            tally.charged_after(added);
        }
        if refunded > 0 {
            tally.refunded(refunded);
        }
        self.pipeline.events.settled(self.counters(), added, refunded);
    }

    /// Returns the settlement of a charge that is not a reservation.
    pub(super) fn settlement(&self, account: Account) -> Option<Settlement<'_>> {
        // If the leases have lapsed, other requests may hold the units, so nothing is released.
        let leased = (!account.is_lapsed).then_some(account.leased);
        let stores = &self.pipeline.stores;
        stores.settlement(&self.decision, self.counters(), leased, self.unsettled(&account))
    }

    /// Returns the units by which the cost exceeds what is charged, and takes them as charged. A
    /// cost that grows from now on is charged before the permit is settled.
    fn take_excess(&self) -> u64 {
        let mut account = self.account();
        account.charges_growth = true;
        let charged = self.decision.charged() + account.charged_since;
        let excess = account.cost.units().saturating_sub(charged);
        let excess = if account.is_settled { 0 } else { excess };
        account.charged_since += excess;
        excess
    }

    /// Returns whether the cost grows, and is at least twice what is charged.
    pub(super) fn has_doubled(&self) -> bool {
        let account = self.account();
        let charged = self.decision.charged() + account.charged_since;
        account.charges_growth && account.cost.units() >= charged.saturating_mul(2).max(1)
    }

    /// Settles the charge in one step. The end of a reservation is a step of its own, because its
    /// reply says whether the reservation has expired.
    pub(super) fn settle_once(&self, account: Account) -> StoreFuture<()> {
        let (pipeline, decision, cost) = (&self.pipeline, &self.decision, self.unsettled(&account));
        let free = || self.free(account.leased, account.is_lapsed);
        match account.reservation {
            ReservationState::None if cost == decision.charged() => free(),
            ReservationState::None => {
                let settlement = self.settlement(account);
                let settled = pipeline.stores.settle(decision, settlement.as_slice());
                pipeline.settlements.notify_released(settled, self.counters())
            }
            reservation => both(free(), self.settle_reservation(cost, reservation)),
        }
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

    /// Ends the reservation, and charges or refunds the difference to `cost`. An expired
    /// reservation was refunded as a whole, so the whole cost is charged.
    fn settle_reservation(&self, cost: u64, reservation: ReservationState) -> StoreFuture<()> {
        let charged = self.decision.charged();
        let ended = match reservation {
            ReservationState::Until(expires) => {
                let reservation = Some(Reservation { units: charged, expires });
                let stores = &self.pipeline.stores;
                let refund =
                    stores.settlement(&self.decision, self.counters(), None, cost.min(charged));
                let settlement = refund.map(|refund| Settlement { reservation, ..refund });
                settlement.map(|settlement| stores.settle_leases(&self.decision, &[settlement]))
            }
            _ => None,
        };
        let (pipeline, subject) = (Arc::clone(&self.pipeline), self.subject.clone());
        let (namespace, decision) = (self.namespace.clone(), self.decision.clone());
        MaybeReady::later(async move {
            let anew = match ended {
                Some(ended) => ended.await? == LeaseStatus::Expired,
                None => matches!(reservation, ReservationState::Expired),
            };
            let units = if anew { cost } else { cost.saturating_sub(charged) };
            let counters = CounterKey { namespace: namespace.as_deref(), subject: &subject };
            pipeline.stores.charge_rates(&decision, counters, units, anew).await
        })
    }
}

/// Settles the charges of one request, except those that are settled already.
pub(super) fn settle_all(permits: &[Arc<PermitInner>]) -> StoreFuture<()> {
    let open = permits.iter().filter_map(|permit| Some((permit, permit.finish()?)));
    let open: SmallVec<[(&Arc<PermitInner>, Account); 2]> = open.collect();
    let is_reserved =
        |(_, account): &(_, Account)| !matches!(account.reservation, ReservationState::None);
    // If a charge is a reservation, the charges are settled one by one: each reply says whether the
    // reservation has expired.
    if open.iter().any(is_reserved) {
        let settled = open.into_iter().map(|(permit, account)| permit.settle_once(account));
        return settled.fold(done(), both);
    }
    let Some((first, _)) = open.first() else { return done() };
    let pipeline = Arc::clone(&first.pipeline);
    let settlements = open.iter().filter_map(|(permit, account)| permit.settlement(*account));
    let settlements: SmallVec<[_; 2]> = settlements.collect();
    let settled = pipeline.stores.settle(&first.decision, &settlements);
    let released: Vec<_> = open.iter().map(|(permit, _)| Arc::clone(permit)).collect();
    pipeline.settlements.notifying(settled, move |wait_queues| {
        released.iter().for_each(|permit| wait_queues.notify_released(permit.counters()));
    })
}

/// Charges the units by which the final costs exceed what is charged, in one step.
pub(super) fn charge_excess(permits: &[Arc<PermitInner>]) {
    let charges = permits.iter().filter_map(|permit| {
        let (stores, decision) = (&permit.pipeline.stores, &permit.decision);
        let units = Some(permit.take_excess()).filter(|excess| *excess > 0)?;
        stores.settlement(decision, permit.counters(), None, decision.charged() + units)
    });
    let charges: SmallVec<[_; 2]> = charges.collect();
    let (Some(first), false) = (permits.first(), charges.is_empty()) else { return };
    let PermitInner { pipeline, subject, decision, .. } = &**first;
    let call = pipeline.breaker.observe();
    let charged = pipeline.stores.settle(decision, &charges);
    pipeline.settlements.complete(subject, decision.origin(), call, charged);
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
