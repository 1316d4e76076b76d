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

/// The number of renewals in the time of one lease, so that one of them may fail.
const RENEWALS: u32 = 3;

/// The number of ticks between two renewals. A permit is renewed for the first time after one to
/// two ticks.
const TICKS: u32 = 2;

/// A permit that can be renewed.
pub(super) trait Renewable: Send + Sync {
    /// Renews what the permit holds, or ends its renewal if nothing is left. The next renewal is due after
    /// `interval`.
    fn renew(self: Arc<Self>, interval: Duration) -> Pending<()>;
}

/// The permits of a limiter that are renewed: a round for each renewal interval. Most limiters have
/// one interval.
#[derive(Clone, Default)]
pub(super) struct Renewals(Arc<Mutex<Vec<Round>>>);

/// The permits that are renewed at one interval.
struct Round {
    /// The time between two ticks.
    tick: Duration,
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

/// The position of a permit among those that are renewed.
#[derive(Clone, Copy, Debug)]
pub(super) struct RenewalKey {
    tick: Duration,
    position: usize,
}

impl Renewals {
    /// Renews a permit while it is held. Outside a tokio runtime nothing is renewed.
    ///
    /// Returns the key that ends it.
    pub(super) fn start(&self, permit: Weak<dyn Renewable>, lease: Duration) -> Option<RenewalKey> {
        let tick = lease / RENEWALS / TICKS;
        let mut rounds = self.lock();
        let index = rounds.iter().position(|round| round.tick == tick).unwrap_or_else(|| {
            rounds.push(Round { tick, permits: Vec::new(), free: Vec::new(), is_ticking: false });
            rounds.len() - 1
        });
        let round = &mut rounds[index];
        if !round.is_ticking {
            let runtime = Handle::try_current().ok()?;
            round.is_ticking = true;
            let ticking = Ticking { renewals: self.clone(), tick, is_over: false };
            runtime.spawn(ticking.keep());
        }
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
        Some(RenewalKey { tick, position })
    }

    /// Ends the renewal of a permit.
    pub(super) fn end(&self, RenewalKey { tick, position }: RenewalKey) {
        let mut rounds = self.lock();
        if let Some(round) = rounds.iter_mut().find(|round| round.tick == tick) {
            round.permits[position] = None;
            round.free.push(position);
        }
    }

    /// Returns the permits to renew at this tick; `None` if no permit is held.
    fn due(&self, tick: Duration) -> Option<Vec<Arc<dyn Renewable>>> {
        let mut rounds = self.lock();
        let index = rounds.iter().position(|round| round.tick == tick)?;
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
    tick: Duration,
    is_over: bool,
}

impl Ticking {
    /// Renews permits until none is held.
    async fn keep(mut self) {
        let mut ticks = interval_at(Instant::now() + self.tick, self.tick);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            let Some(due) = self.renewals.due(self.tick) else { break };
            for permit in due {
                // In a task of its own, because a store that does not reply must not delay the others.
                tokio::spawn(permit.renew(TICKS * self.tick));
            }
        }
        self.is_over = true;
    }
}

impl Drop for Ticking {
    fn drop(&mut self) {
        if !self.is_over {
            let mut rounds = self.renewals.lock();
            let round = rounds.iter_mut().find(|round| round.tick == self.tick);
            round.into_iter().for_each(|round| round.is_ticking = false);
        }
    }
}
