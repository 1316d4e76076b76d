//! The stores of a limiter, and the calls to them.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use smallvec::SmallVec;
use tokio::time::timeout;

use super::failure_policy::Fallback;
use super::in_flight::InFlight;
use super::parts::CounterKey;
use crate::decision::{Decision, Origin};
use crate::maybe_ready::{MaybeReady, both, done};
use crate::model::{Cost, FailureKind, Limit, Mode, StoreError};
use crate::observe::{EventLocation, StoreSpan};
use crate::policy::Policy;
use crate::store::{
    DecideRequest, Lease, LeaseStatus, Namespace, Part, Refund, RefundOf, Renewal, Reservations,
    Reset, Settlement, Store, StoreFuture,
};
use crate::time::Timestamp;

/// A result that is not ready yet.
pub(super) type Pending<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// The store of a limiter, its fallback, and the settings of every call.
#[derive(Debug)]
pub(super) struct Stores {
    pub(super) primary: Arc<dyn Store>,
    pub(super) fallback: Option<Fallback>,
    /// Bounds the decisions that wait for the fallback. They have slots of their own, because the
    /// fallback also decides while those of the store are taken.
    pub(super) fallback_slots: Arc<InFlight>,
    pub(super) namespace: Namespace,
    pub(super) deadline: Duration,
    /// The lifetime of reservations, if the limiter makes reservations.
    pub(super) reservation: Option<Duration>,
}

impl Stores {
    /// Returns the store that has counted `decision`, to which its units are refunded.
    fn store_of(&self, decision: &Decision) -> &dyn Store {
        match (decision.origin(), &self.fallback) {
            (Origin::Fallback(_), Some(fallback)) => &*fallback.store,
            _ => &*self.primary,
        }
    }

    /// Calls a store for a decision, without a deadline.
    pub(super) fn decide(
        &self,
        store: &dyn Store,
        parts: &[Part<'_>],
        mode: Mode,
        reserves: bool,
    ) -> StoreFuture<Decision> {
        let request = DecideRequest::new(&self.namespace, parts, mode);
        store.decide(request.with_reservations(match self.reservation {
            None => Reservations::Ignore,
            Some(lifetime) if reserves => Reservations::Reserve(lifetime),
            Some(_) => Reservations::ReturnExpired,
        }))
    }

    /// Returns the namespace of the counters.
    fn namespace_of<'a>(&'a self, counters: CounterKey<'a>) -> &'a Namespace {
        counters.namespace.unwrap_or(&self.namespace)
    }

    /// Returns the status of each limit of `parts`, as the primary store has counted it. Ignores
    /// their costs.
    pub(super) fn usage<'a>(&self, parts: &[Part<'a>]) -> StoreFuture<Decision> {
        // The limits of the only part are those of the request, also if responses must not show
        // them.
        let is_sole = parts.len() == 1;
        let peeked = |part: &Part<'a>| {
            let flags = if is_sole { 0 } else { part.flags };
            Part { cost: Cost::ZERO, flags, ..*part }
        };
        let parts: SmallVec<[_; 1]> = parts.iter().map(peeked).collect();
        let usage = self.decide(&*self.primary, &parts, Mode::Peek, false);
        self.within_deadline(usage, &*self.primary, "usage")
    }

    /// Charges units under `policy`, which may differ from the policy of `decision`, in the store
    /// that has counted `decision`.
    pub(super) fn charge<'a>(
        &self,
        decision: &Decision,
        policy: &Policy,
        counters: impl Into<CounterKey<'a>>,
        mode: Mode,
        units: u64,
    ) -> StoreFuture<Decision> {
        let parts = [counters.into().part(policy, Cost::new(units))];
        let store = self.store_of(decision);
        self.within_deadline(self.decide(store, &parts, mode, false), store, "charge")
    }

    /// Charges more units to the rate limits that `decision` has charged, even beyond these limits.
    ///
    /// Concurrency limits are left out, because they do not depend on the cost. A limit that counts
    /// requests has already counted this request, so it is charged only if the request is charged
    /// `anew`.
    pub(super) fn charge_rates<'a>(
        &self,
        decision: &Decision,
        counters: impl Into<CounterKey<'a>>,
        units: u64,
        anew: bool,
    ) -> StoreFuture<()> {
        let uncharged = decision.uncharged();
        let changes = |position, limit: Limit| {
            let depends_on_cost = anew || !limit.counts_requests();
            !limit.holds_permits() && depends_on_cost && !uncharged.contains(position)
        };
        match decision.policy().and_then(|policy| policy.only(changes)) {
            Some(rates) if units > 0 => {
                let charged = self.charge(decision, &rates, counters, Mode::Charge, units);
                charged.map(|charged| charged.map(drop))
            }
            _ => MaybeReady::ready(Ok(())),
        }
    }

    /// Refunds `units` of `decision` under the limits that `of` selects. `charged` is the time at
    /// which the units were charged, or at which their lease began.
    pub(super) fn refund<'a>(
        &self,
        decision: &Decision,
        counters: impl Into<CounterKey<'a>>,
        of: RefundOf,
        charged: Timestamp,
        units: u64,
    ) -> StoreFuture<()> {
        let Some(policy) = decision.policy() else { return done() };
        let counters = counters.into();
        let (namespace, subject) = (self.namespace_of(counters), counters.subject);
        let uncharged = decision.non_refundable(units);
        let refund = Refund { namespace, subject, policy, charged, units, of, uncharged };
        self.settle(decision, &[refund.into()])
    }

    /// Settles charges in one step, in the store that has counted `decision`.
    pub(super) fn settle(
        &self,
        decision: &Decision,
        settlements: &[Settlement<'_>],
    ) -> StoreFuture<()> {
        if settlements.iter().all(Settlement::is_empty) {
            return done();
        }
        self.settle_leases(decision, settlements).map(|settled| settled.map(drop))
    }

    /// Settles charges in one step. Resolves to the status of the reservation that they end.
    pub(super) fn settle_leases(
        &self,
        decision: &Decision,
        settlements: &[Settlement<'_>],
    ) -> StoreFuture<LeaseStatus> {
        let store = self.store_of(decision);
        self.within_deadline(store.settle(settlements), store, "settle")
    }

    /// Returns the settlement of `decision` that changes the charge from the charged units to
    /// `cost`. If `leased` is given, it also releases the permits whose leases began at that time.
    ///
    /// Returns `None` if no store has made the decision.
    pub(super) fn settlement<'a>(
        &'a self,
        decision: &'a Decision,
        counters: CounterKey<'a>,
        leased: Option<Timestamp>,
        cost: u64,
    ) -> Option<Settlement<'a>> {
        let units = decision.charged();
        let refunded = units.saturating_sub(cost);
        Some(Settlement {
            namespace: self.namespace_of(counters),
            subject: counters.subject,
            policy: decision.policy()?,
            charged: decision.at(),
            leased: leased.unwrap_or(decision.at()),
            released: if leased.is_some() { units } else { 0 },
            refunded,
            added: cost.saturating_sub(units),
            uncharged: decision.uncharged(),
            kept: decision.non_refundable(refunded),
            reservation: None,
        })
    }

    /// Renews a lease of `decision`, without a deadline. The leases of permits began at `charged`.
    /// Resolves to the time that the next renewal needs.
    pub(super) fn renew<'a>(
        &self,
        decision: &Decision,
        counters: impl Into<CounterKey<'a>>,
        charged: Timestamp,
        lease: Lease,
    ) -> StoreFuture<LeaseStatus<Timestamp>> {
        let Some(policy) = decision.policy() else {
            return MaybeReady::ready(Ok(LeaseStatus::Held(charged)));
        };
        let (units, uncharged) = (decision.charged(), decision.uncharged());
        let counters = counters.into();
        let (namespace, subject) = (self.namespace_of(counters), counters.subject);
        let renewal = Renewal { namespace, subject, policy, charged, units, uncharged, lease };
        self.store_of(decision).renew(renewal)
    }

    /// Resets limits of parts in the primary store: the limit at a position in the policy of the
    /// part, or all its limits.
    pub(super) fn reset<'a>(
        &self,
        limits: impl Iterator<Item = (&'a Part<'a>, Option<usize>)>,
    ) -> StoreFuture<()> {
        let resets = limits.map(|(part, limit)| Reset {
            namespace: part.namespace.unwrap_or(&self.namespace),
            subject: part.subject,
            policy: part.policy,
            limit,
        });
        let resets: SmallVec<[_; 1]> = resets.collect();
        if resets.is_empty() {
            return done();
        }
        self.within_deadline(self.primary.reset(&resets), &*self.primary, "reset")
    }

    /// Closes the store and the fallback.
    pub(super) fn close(&self) -> StoreFuture<()> {
        let fallback = self.fallback.as_ref().map(|fallback| fallback.store.close());
        both(self.primary.close(), fallback.unwrap_or(done()))
    }

    /// Waits for the result of an operation of `store` until the deadline, and fails if it is not
    /// ready by then.
    pub(super) fn within_deadline<T: Send + 'static>(
        &self,
        result: StoreFuture<T>,
        store: &dyn Store,
        operation: &'static str,
    ) -> StoreFuture<T> {
        match result {
            MaybeReady::Ready(_) => result,
            MaybeReady::Boxed(pending) => {
                let deadline = self.deadline;
                let location = EventLocation::new(self.namespace.as_str(), store.report().label);
                let span = StoreSpan::new(location, operation);
                MaybeReady::later(async move {
                    let result = timeout(deadline, span.instrument(pending)).await;
                    let result = result.unwrap_or_else(|_| Err(timed_out()));
                    if let Err(error) = &result {
                        span.failed(error);
                    }
                    result
                })
            }
        }
    }
}

/// Returns the time, or a year if it is longer. A longer time could not be added to every
/// `Instant`.
pub(super) fn bounded(time: Duration) -> Duration {
    time.min(Duration::from_secs(365 * 86_400))
}

/// Returns the error of a call that was not answered before its deadline.
pub(super) const fn timed_out() -> StoreError {
    StoreError::new(FailureKind::TimedOut)
}
