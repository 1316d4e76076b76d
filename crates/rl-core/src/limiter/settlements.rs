//! Settlements: refunds and charges after a request has ended.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use smallvec::SmallVec;
use tokio::runtime::Handle;
use tokio::sync::Notify;

use super::circuit_breaker::{CallToken, CircuitBreaker};
use super::events::Events;
use super::parts::{Charge, ChargedPart, CounterKey, OwnedParts};
use super::stores::Stores;
use super::tally::Tally;
use super::wait_queue::WaitQueues;
use crate::decision::{Decision, Origin};
use crate::maybe_ready::MaybeReady;
use crate::model::{FailureKind, StoreError, Subject};
use crate::store::{Part, RefundOf, Settlement, StoreFuture};
use crate::time::Timestamp;

/// Completes settlements, and reports those that fail. Clones share the number of running tasks.
#[derive(Clone)]
pub(super) struct Settlements {
    running: Arc<RunningTasks>,
    breaker: Arc<CircuitBreaker>,
    events: Arc<Events>,
    wait_queues: Arc<WaitQueues>,
}

/// Returns the settlement that releases the permits of a charge; `None` if no store has made the
/// charge.
fn release_of<'a>(charge: &'a Charge<'a>, stores: &'a Stores) -> Option<Settlement<'a>> {
    let Charge { counters, decision, .. } = charge;
    stores.settlement(decision, *counters, Some(decision.at()), decision.charged())
}

/// Refunds units of the charge of `decision` to each part, in one step. `units` has one number for
/// each part.
pub(super) fn refund_parts(
    stores: &Stores,
    (tally, events): (&Tally, &Events),
    parts: &[Part<'_>],
    decision: &Decision,
    units: &[u64],
) -> StoreFuture<()> {
    let charges = Charge::of_parts(&stores.namespace, parts, decision);
    for (charge, part) in charges.iter().flat_map(|one| one.parts.iter().map(move |p| (one, p))) {
        let refunded = units.get(part.index).map_or(0, |units| part.units.min(*units));
        tally.refunded(refunded);
        events.settled(charge.counters, 0, refunded);
    }
    let refunds = charges.iter().filter_map(|charge| refund_of(charge, stores, units));
    stores.settle(decision, &refunds.collect::<SmallVec<[_; 2]>>())
}

/// Returns the settlement that refunds parts under all limits. `units` has one number for each part
/// of the request: the most that is refunded to this part.
fn refund_of<'a>(
    charge: &'a Charge<'a>,
    stores: &'a Stores,
    units: &[u64],
) -> Option<Settlement<'a>> {
    let Charge { counters, decision, parts } = charge;
    let of_part = |part: &ChargedPart| units.get(part.index).map_or(0, |u| part.units.min(*u));
    let units = parts.iter().map(of_part).fold(0, u64::saturating_add);
    let cost = decision.charged().saturating_sub(units);
    let settlement = stores.settlement(decision, *counters, None, cost)?;
    let (released, uncharged) = (settlement.refunded, settlement.kept);
    Some(Settlement { released, uncharged, ..settlement })
}

/// Counts the settlements that run in tasks of their own.
#[derive(Default)]
struct RunningTasks {
    count: AtomicUsize,
    idle: Notify,
}

/// A settlement that runs in a task. It counts as running until this value is dropped.
struct RunningTask(Arc<RunningTasks>);

impl Settlements {
    /// Creates the settlements of a limiter.
    pub(super) fn new(
        breaker: &Arc<CircuitBreaker>,
        events: &Arc<Events>,
        wait_queues: &Arc<WaitQueues>,
    ) -> Self {
        Self {
            running: Arc::default(),
            breaker: Arc::clone(breaker),
            events: Arc::clone(events),
            wait_queues: Arc::clone(wait_queues),
        }
    }

    /// Frees the places under concurrency limits that `decision` has held since `leased`. Wakes the
    /// request at the head of the subject's wait queue.
    pub(super) fn free_places(
        &self,
        stores: &Stores,
        counters: CounterKey<'_>,
        decision: &Decision,
        leased: Timestamp,
    ) -> StoreFuture<()> {
        let units = decision.charged();
        let freed = stores.refund(decision, counters, RefundOf::Permits, leased, units);
        self.notify_released(freed, counters)
    }

    /// Wakes the request at the head of the subject's wait queue once a settlement has freed
    /// places.
    pub(super) fn notify_released(
        &self,
        freed: StoreFuture<()>,
        counters: CounterKey<'_>,
    ) -> StoreFuture<()> {
        if let MaybeReady::Ready(_) = freed {
            self.wait_queues.notify_released(counters);
            return freed;
        }
        let (namespace, subject) = (counters.namespace.cloned(), counters.subject.clone());
        self.notifying(freed, move |wait_queues| {
            let (namespace, subject) = (namespace.as_ref(), &subject);
            wait_queues.notify_released(CounterKey { namespace, subject });
        })
    }

    /// Frees all places that `decision` holds under `parts`. Called if the request has ended or
    /// timed out before the store decided.
    pub(super) fn free_places_of_all(
        &self,
        stores: &Stores,
        parts: &[Part<'_>],
        decision: &Decision,
    ) {
        let charges = Charge::of_parts(&stores.namespace, parts, decision);
        let Some(first) = charges.first() else { return };
        let releases: Vec<_> =
            charges.iter().filter_map(|charge| release_of(charge, stores)).collect();
        let call = self.breaker.observe();
        let owned = OwnedParts::new(parts);
        let freed = stores.settle(decision, &releases);
        let freed = self.notifying(freed, move |wait_queues| {
            owned.as_parts().iter().for_each(|part| wait_queues.notify_released(part.into()));
        });
        self.complete(first.counters.subject, decision.origin(), call, freed);
    }

    /// Calls `notify` once places have been freed.
    pub(super) fn notifying(
        &self,
        freed: StoreFuture<()>,
        notify: impl FnOnce(&WaitQueues) + Send + 'static,
    ) -> StoreFuture<()> {
        if let MaybeReady::Ready(_) = freed {
            notify(&self.wait_queues);
            return freed;
        }
        let wait_queues = Arc::clone(&self.wait_queues);
        freed.map(move |freed| {
            notify(&wait_queues);
            freed
        })
    }

    /// Records and reports that the settlement of a decision with this origin failed. `call` is the
    /// token that was taken before the store was called.
    pub(super) fn failed(
        &self,
        subject: &Subject,
        origin: Origin,
        call: CallToken,
        error: &StoreError,
    ) {
        match origin {
            Origin::Fallback(_) => self.events.fallback_failed(error, None),
            _ => {
                // A settlement takes no slot on a server, so its time-out may mean an overload or
                // an outage. Only decisions open the breaker because of time-outs.
                let begins_outage = match error.kind() {
                    FailureKind::TimedOut => self.breaker.failed_in_part(call, error.kind()),
                    kind => self.breaker.failed(call, kind),
                };
                self.events.store_failed(subject, error, (&self.breaker, begins_outage), None);
            }
        }
    }

    /// Runs a settlement in a task of its own, so that it completes even if the result is dropped.
    ///
    /// A settlement that is already complete, or one outside a tokio runtime, is returned
    /// unchanged.
    pub(super) fn spawn(&self, settlement: StoreFuture<()>) -> StoreFuture<()> {
        match (settlement, Handle::try_current()) {
            (MaybeReady::Boxed(settlement), Ok(runtime)) => {
                let running = self.begin();
                let settled = runtime.spawn(async move {
                    let _running = running;
                    settlement.await
                });
                let ended = || Err(StoreError::new(FailureKind::Unavailable));
                MaybeReady::later(async move { settled.await.unwrap_or_else(|_| ended()) })
            }
            (settlement, _) => settlement,
        }
    }

    /// Completes a settlement that no caller waits for, and reports a failure. A settlement that is
    /// not ready continues in a task. `call` is the token that was taken before the store was
    /// called.
    pub(super) fn complete(
        &self,
        subject: &Subject,
        origin: Origin,
        call: CallToken,
        settlement: StoreFuture<()>,
    ) {
        match settlement {
            MaybeReady::Ready(Some(Err(error))) => self.failed(subject, origin, call, &error),
            MaybeReady::Ready(_) => {}
            MaybeReady::Boxed(settlement) => {
                let Ok(runtime) = Handle::try_current() else { return };
                let (this, subject, running) = (self.clone(), subject.clone(), self.begin());
                runtime.spawn(async move {
                    let _running = running;
                    if let Err(error) = settlement.await {
                        this.failed(&subject, origin, call, &error);
                    }
                });
            }
        }
    }

    /// Waits until no settlement is running.
    pub(super) async fn finish(&self) {
        let RunningTasks { count, idle } = &*self.running;
        let mut notified = std::pin::pin!(idle.notified());
        loop {
            // The notification is enabled before the check, so that a settlement that ends in
            // between is not missed.
            notified.as_mut().enable();
            if count.load(Ordering::Acquire) == 0 {
                return;
            }
            notified.as_mut().await;
            notified.set(idle.notified());
        }
    }

    fn begin(&self) -> RunningTask {
        self.running.count.fetch_add(1, Ordering::AcqRel);
        RunningTask(Arc::clone(&self.running))
    }
}

impl Drop for RunningTask {
    fn drop(&mut self) {
        if self.0.count.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.0.idle.notify_waiters();
        }
    }
}
