//! Gives leased units back to the server if their lease has expired, is idle or is replaced. If the
//! store is closed, the units of all leases are given back.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use smallvec::smallvec;
use tokio::runtime::Handle;
use tokio::task::JoinSet;

use super::slot::{ActiveLease, ReturnedUnits};
use super::table::{FreedSlot, LeaseTable, RefillGuard};
use crate::model::StoreError;
use crate::policy::LimitSet;
use crate::store::redis::give_back::GiveBack;
use crate::store::redis::layer::{Amendment, Layer, runtime_has_ended};
use crate::store::redis::shortcuts::MonotonicClock;
use crate::store::redis::subject_key::KeyedSubject;
use crate::store::{Refund, RefundOf};
use crate::time::{Clock, SystemClock};

/// The number of slots by which the table may exceed its bound while the units of replaced slots
/// are returned.
const REPLACED_AT_ONCE: usize = 1_024;

/// The maximum number of subjects whose units are returned at the same time.
const RETURNED_AT_ONCE: usize = 64;

/// The maximum number of subjects whose units one sweep returns, so that the server has time for
/// decisions.
const RETURNED_PER_SWEEP: usize = 2_048;

/// The shortest and the longest pause between two sweeps.
const MIN_PAUSE: Duration = Duration::from_millis(5);
const MAX_PAUSE: Duration = Duration::from_secs(1);

/// Returns leased units to the server.
#[derive(Clone)]
pub(super) struct UnitReturner<S> {
    shared: Arc<ReturnerShared<S>>,
}

struct ReturnerShared<S> {
    inner: S,
    table: Arc<LeaseTable>,
    idle_micros: u64,
    give_back: GiveBack,
    clock: Arc<MonotonicClock>,
    runtime: Handle,
    is_closed: AtomicBool,
}

impl<S: Layer> UnitReturner<S> {
    pub(super) fn new(
        inner: S,
        table: Arc<LeaseTable>,
        idle: Duration,
        give_back: GiveBack,
        clock: Arc<MonotonicClock>,
    ) -> Self {
        let idle_micros = u64::try_from(idle.as_micros()).unwrap_or(u64::MAX);
        let (runtime, is_closed) = (Handle::current(), AtomicBool::new(false));
        Self {
            shared: Arc::new(ReturnerShared {
                inner,
                table,
                idle_micros,
                give_back,
                clock,
                runtime,
                is_closed,
            }),
        }
    }

    /// Returns whether leasing has ended.
    ///
    /// A task that leases units checks this while it has a slot. Either it then leases nothing, or
    /// [`close`](Self::close) finds its slot in the table.
    pub(super) fn is_closed(&self) -> bool {
        self.shared.is_closed.load(Ordering::SeqCst)
    }

    /// Returns all unspent units to the server.
    pub(super) async fn close(&self) -> Result<(), StoreError> {
        self.shared.is_closed.store(true, Ordering::SeqCst);
        // The table already lists the slot of every task that is still leasing units, so
        // `empty_all` waits for the refill lock of that slot.
        self.empty_all(self.shared.table.subjects(), |_| true).await
    }

    /// Starts the task that sweeps regularly. It ends when the store is closed or dropped.
    pub(super) fn start_sweeping(&self) {
        let pause = Duration::from_micros(self.shared.idle_micros / 4);
        let sweeping = sweep_until_closed(Arc::downgrade(&self.shared), pause);
        self.shared.runtime.spawn(sweeping);
    }

    /// Gives the units of expired or idle leases back to the server.
    pub(super) async fn sweep(&self) {
        let (now, idle) = (self.shared.clock.now(), self.shared.idle_micros);
        let due = self.shared.table.sweep(now, idle, RETURNED_PER_SWEEP);
        let is_due = move |guard: &RefillGuard| {
            // `LeaseSlot::is_unused` would return false here, because this task holds a guard of
            // the slot.
            let is_over = |lease: &ActiveLease| lease.is_over(now, idle);
            guard.slot.with(|slot| slot.lease.as_ref().is_none_or(is_over))
        };
        // `give_back` repeats a failed call or counts it as failed for good, so the error is
        // ignored.
        let _ = self.empty_all(due, is_due).await;
    }

    /// Gives the units of these subjects back to the server. Waits for the refill lock of each
    /// subject, and then skips the subject if its units are no longer due.
    async fn empty_all(
        &self,
        subjects: Vec<KeyedSubject>,
        is_due: impl Fn(&RefillGuard) -> bool + Copy + Send + 'static,
    ) -> Result<(), StoreError> {
        let mut subjects = subjects.into_iter();
        let mut tasks = JoinSet::new();
        let mut result = Ok(());
        loop {
            for subject in subjects.by_ref().take(RETURNED_AT_ONCE - tasks.len()) {
                let Some(slot) = self.shared.table.find(subject) else { continue };
                let this = self.clone();
                let empty = async move {
                    let guard = slot.lock_refill().await;
                    if is_due(&guard) { this.empty(&guard).await } else { Ok(()) }
                };
                tasks.spawn_on(empty, &self.shared.runtime);
            }
            match tasks.join_next().await {
                Some(emptied) => {
                    result = result.and(emptied.unwrap_or_else(|_| Err(runtime_has_ended())));
                }
                None if subjects.len() == 0 => return result,
                None => {}
            }
        }
    }

    /// Makes room for a slot in a table that has reached `max` slots. Returns the number of slots
    /// that the table may have after that, or 0 if no slot could be freed.
    pub(super) fn make_room(&self, max: usize) -> usize {
        match self.shared.table.make_room(self.shared.clock.now()) {
            FreedSlot::Made => max,
            FreedSlot::Replaced(guard) => {
                let this = self.clone();
                self.shared.runtime.spawn(async move {
                    // `give_back` repeats a failed call or counts it as failed for good, so the
                    // error is ignored.
                    let _ = this.empty(&guard).await;
                });
                max + REPLACED_AT_ONCE
            }
            FreedSlot::None => 0,
        }
    }

    /// Returns all unspent units of a slot to the server.
    pub(super) async fn empty(&self, guard: &RefillGuard) -> Result<(), StoreError> {
        match guard.slot.with(|slot| slot.lease.take()) {
            Some(lease) => self.give_back(&guard.slot.subject, lease.into()).await,
            None => Ok(()),
        }
    }

    /// Returns units to the server in a task of its own. If they cannot be returned, they stay
    /// charged.
    pub(super) fn give_back_later(&self, subject: KeyedSubject, returned: ReturnedUnits) {
        let this = self.clone();
        self.shared.runtime.spawn(async move {
            // `give_back` repeats a failed call or counts it as failed for good, so the error is
            // ignored.
            let _ = this.give_back(&subject, returned).await;
        });
    }

    /// Returns units to the server.
    pub(super) async fn give_back(
        &self,
        subject: &KeyedSubject,
        ReturnedUnits { policy, charged, units }: ReturnedUnits,
    ) -> Result<(), StoreError> {
        if units == 0 {
            return Ok(());
        }
        let refund = Refund {
            namespace: &subject.namespace,
            subject: &subject.subject,
            policy: &policy,
            charged,
            units,
            of: RefundOf::All,
            uncharged: LimitSet::EMPTY,
        };
        let refund = Amendment::refund(subject.clone(), &refund);
        let inner = self.shared.inner.clone();
        let refunded = self.shared.give_back.run(move || inner.amend(smallvec![refund.clone()]));
        refunded.await.map(drop)
    }
}

/// Sweeps until the store is closed or dropped.
async fn sweep_until_closed<S: Layer>(shared: Weak<ReturnerShared<S>>, pause: Duration) {
    let mut clocks = ClockComparison::default();
    loop {
        sleep(pause.clamp(MIN_PAUSE, MAX_PAUSE)).await;
        let Some(shared) = shared.upgrade() else { return };
        let returner = UnitReturner { shared };
        if returner.is_closed() {
            return;
        }
        let ReturnerShared { table, clock, .. } = &*returner.shared;
        if clocks.wall_clock_jumped(SystemClock.now().as_micros(), clock.now()) {
            let _ = returner.empty_all(table.subjects(), |_| true).await;
        }
        returner.sweep().await;
    }
}

/// Compares the wall clock with the monotonic clock, which stands still while a machine is
/// suspended.
#[derive(Debug, Default)]
struct ClockComparison(Option<(u64, u64)>);

impl ClockComparison {
    /// The smallest step of the wall clock that counts as a jump, in µs. A smaller step is a
    /// correction.
    const CORRECTION: u64 = 1_000_000;

    /// Returns whether the wall clock has advanced further than the monotonic clock since the last
    /// call. In that case windows may have ended on the server, while the leases on this machine
    /// did not age.
    fn wall_clock_jumped(&mut self, wall: u64, monotonic: u64) -> bool {
        let before = self.0.replace((wall, monotonic));
        before.is_some_and(|(wall_before, monotonic_before)| {
            let wall_advance = wall.saturating_sub(wall_before);
            let monotonic_advance = monotonic - monotonic_before;
            wall_advance > monotonic_advance.saturating_add(Self::CORRECTION)
        })
    }
}

/// Waits for `time` between two sweeps. Leases end by time alone.
#[expect(clippy::disallowed_methods, reason = "no event marks the end of a lease")]
async fn sleep(time: Duration) {
    tokio::time::sleep(time).await;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_wall_clock_jumped_if_it_ran_ahead_of_the_monotonic_clock() {
        const SECOND: u64 = 1_000_000;
        let mut clocks = ClockComparison::default();
        assert!(!clocks.wall_clock_jumped(100 * SECOND, 5 * SECOND), "nothing to compare with");
        assert!(!clocks.wall_clock_jumped(101 * SECOND, 6 * SECOND), "both advanced alike");
        assert!(!clocks.wall_clock_jumped(102 * SECOND + SECOND / 2, 7 * SECOND), "a correction");
        assert!(clocks.wall_clock_jumped(3_702 * SECOND, 8 * SECOND), "suspended for an hour");
        assert!(!clocks.wall_clock_jumped(3_703 * SECOND, 9 * SECOND), "reported once");
        assert!(
            !clocks.wall_clock_jumped(100 * SECOND, 10 * SECOND),
            "the wall clock was set back"
        );
    }
}
