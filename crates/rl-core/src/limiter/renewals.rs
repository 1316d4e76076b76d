//! The permits that are renewed while they are held.
//!
//! One task serves all permits of a limiter that have the same renewal interval. It starts another
//! task for each permit whose renewal is due. A request that ends before its first renewal costs no
//! task.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::time::{Instant, MissedTickBehavior, interval_at};

use super::stores::Pending;

/// The number of renewals in the time of one lease. There are several, so that the lease survives
/// if one of them fails.
const RENEWALS: u32 = 3;

/// The number of ticks between two renewals. A permit is renewed for the first time after one to
/// two ticks.
const TICKS: u32 = 2;

/// The shortest time between two ticks. Timers are not more precise than that.
const SHORTEST_TICK: Duration = Duration::from_millis(1);

/// A permit that can be renewed.
pub(super) trait Renewable: Send + Sync {
    /// Renews what the permit holds, or ends its renewal if it holds nothing any more. The next
    /// renewal is due after `interval`.
    fn renew(self: Arc<Self>, interval: Duration) -> Pending<()>;
}

/// The permits of a limiter that are renewed, in one [`Round`] for each renewal interval. Most
/// limiters have one interval.
#[derive(Clone, Default)]
pub(super) struct Renewals(Arc<Mutex<Vec<Round>>>);

/// The permits that are renewed at one interval.
struct Round {
    /// The length of the leases, which determines the renewal interval.
    lease: Duration,
    permits: Vec<Option<HeldPermit>>,
    /// The positions without a permit.
    free: Vec<usize>,
    is_ticking: bool,
}

struct HeldPermit {
    permit: Weak<dyn Renewable>,
    /// The ticks since the permit was granted or last renewed.
    age: u32,
}

impl Renewals {
    /// Renews a permit while it is held.
    ///
    /// Returns the position with which [`end`](Self::end) ends the renewal. Returns `None` if
    /// nothing is renewed, because the call is not in a tokio runtime.
    pub(super) fn start<P: Renewable + 'static>(
        &self,
        permit: &Arc<P>,
        lease: Duration,
    ) -> Option<usize> {
        let permit: Weak<P> = Arc::downgrade(permit);
        let mut rounds = self.lock();
        let index = rounds.iter().position(|round| round.lease == lease).unwrap_or_else(|| {
            rounds.push(Round { lease, permits: Vec::new(), free: Vec::new(), is_ticking: false });
            rounds.len() - 1
        });
        let round = &mut rounds[index];
        let is_first = !round.is_ticking;
        let runtime = if is_first { Some(Handle::try_current().ok()?) } else { None };
        round.is_ticking = true;
        let held = Some(HeldPermit { permit, age: 0 });
        let position = match round.free.pop() {
            Some(position) => {
                round.permits[position] = held;
                position
            }
            None => {
                round.permits.push(held);
                round.permits.len() - 1
            }
        };
        drop(rounds);
        if let Some(runtime) = runtime {
            // Spawned after the lock is released: a runtime that is shutting down drops the task at
            // once, and the drop takes the lock.
            let ticking = Ticking { renewals: self.clone(), lease, is_over: false };
            runtime.spawn(ticking.keep());
        }
        Some(position)
    }

    /// Ends the renewal of the permit at `position`, whose lease has the length `lease`.
    pub(super) fn end(&self, lease: Duration, position: usize) {
        let mut rounds = self.lock();
        if let Some(round) = rounds.iter_mut().find(|round| round.lease == lease) {
            round.permits[position] = None;
            round.free.push(position);
        }
    }

    /// Returns the permits to renew at this tick; `None` if no permit is held.
    fn due(&self, lease: Duration) -> Option<Vec<Arc<dyn Renewable>>> {
        let mut rounds = self.lock();
        let index = rounds.iter().position(|round| round.lease == lease)?;
        let round = &mut rounds[index];
        if round.permits.len() == round.free.len() {
            rounds.swap_remove(index);
            return None;
        }
        let mut due = Vec::new();
        for held in round.permits.iter_mut().flatten() {
            held.age += 1;
            if held.age == TICKS {
                held.age = 0;
                // The clone is dropped after the lock is released: dropping the last clone ends the
                // renewal, which takes the lock.
                due.extend(held.permit.upgrade());
            }
        }
        Some(due)
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Round>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The task of a round. If its runtime ends, the next permit starts another one.
struct Ticking {
    renewals: Renewals,
    lease: Duration,
    is_over: bool,
}

impl Ticking {
    /// Renews permits until none is held.
    async fn keep(mut self) {
        let tick = (self.lease / RENEWALS / TICKS).max(SHORTEST_TICK);
        let mut ticks = interval_at(Instant::now() + tick, tick);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            let Some(due) = self.renewals.due(self.lease) else { break };
            for permit in due {
                // Each permit is renewed in a task of its own, because a store that does not reply
                // must not delay the other renewals.
                tokio::spawn(permit.renew(TICKS * tick));
            }
        }
        self.is_over = true;
    }
}

impl Drop for Ticking {
    fn drop(&mut self) {
        if !self.is_over {
            let mut rounds = self.renewals.lock();
            let round = rounds.iter_mut().find(|round| round.lease == self.lease);
            round.into_iter().for_each(|round| round.is_ticking = false);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::sync::mpsc;
    use std::thread;

    use tokio::runtime::{Builder, Runtime};
    use tokio::task::yield_now;
    use tokio::time::advance;

    const LEASE: Duration = Duration::from_secs(6);

    /// A permit that counts its renewals.
    #[derive(Default)]
    struct Counting(AtomicU32);

    impl Counting {
        fn renewed(&self) -> u32 {
            self.0.load(Ordering::Relaxed)
        }
    }

    impl Renewable for Counting {
        fn renew(self: Arc<Self>, _: Duration) -> Pending<()> {
            self.0.fetch_add(1, Ordering::Relaxed);
            Box::pin(std::future::ready(()))
        }
    }

    async fn let_a_lease_pass() {
        for _ in 0..=RENEWALS * TICKS {
            advance(LEASE / RENEWALS / TICKS).await;
            yield_now().await;
        }
    }

    fn runtime() -> Runtime {
        Builder::new_current_thread().enable_time().start_paused(true).build().unwrap()
    }

    /// Fault: the task panicked, because its interval was zero.
    #[tokio::test(start_paused = true)]
    async fn a_lease_of_a_nanosecond_is_renewed() {
        let (renewals, permit) = (Renewals::default(), Arc::new(Counting::default()));
        renewals.start(&permit, Duration::from_nanos(1)).unwrap();
        for _ in 0..=2 * TICKS {
            advance(SHORTEST_TICK).await;
            yield_now().await;
        }
        assert!(permit.renewed() > 0);
    }

    #[test]
    fn the_next_permit_continues_renewals_whose_runtime_has_ended() {
        let (renewals, permits) =
            (Renewals::default(), [(); 2].map(|()| Arc::new(Counting::default())));
        let start = |index: usize| renewals.start(&permits[index], LEASE).unwrap();
        let first = runtime();
        first.block_on(async {
            start(0);
            let_a_lease_pass().await;
        });
        drop(first);
        let renewed = permits[0].renewed();
        assert!(renewed > 0, "in its own runtime");
        runtime().block_on(async {
            let_a_lease_pass().await;
            assert_eq!(permits[0].renewed(), renewed, "no task is left");
            let position = start(1);
            let_a_lease_pass().await;
            assert!(permits[0].renewed() > renewed && permits[1].renewed() > 0);
            renewals.end(LEASE, position);
        });
    }

    #[test]
    fn a_permit_is_granted_while_its_runtime_shuts_down() {
        let (done, granted) = mpsc::channel();
        thread::spawn(move || {
            let first = runtime();
            let ended = first.handle().clone();
            drop(first);
            let (renewals, permit) = (Renewals::default(), Arc::new(Counting::default()));
            let in_ended = ended.enter();
            assert!(renewals.start(&permit, LEASE).is_some());
            drop(in_ended);
            runtime().block_on(async {
                renewals.start(&permit, LEASE);
                let_a_lease_pass().await;
            });
            done.send(permit.renewed()).unwrap();
        });
        // The renewals are started in a thread of their own, so that a deadlock fails the test
        // instead of blocking it.
        let renewed = granted.recv_timeout(Duration::from_secs(30)).expect("no thread waits");
        assert!(renewed > 0, "the runtime of the next permit renews it");
    }
}
