//! Gives leased units back: those of leases that have ended, are idle or are replaced, and all of them
//! when the store is closed.

use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::timeout;

use super::slot::Returned;
use super::table::{Holder, Room};
use super::{Leases, MOST, gone};
use crate::model::FailureKind;
use crate::model::StoreError;
use crate::policy::LimitSet;
use crate::store::redis::subject_key::{Who, WhoRef};
use crate::store::redis::{Inner, RedisStore};
use crate::store::{Refund, RefundOf};
use crate::time::{Clock, SystemClock};

/// Entries beyond [`MOST`] while the units of replaced ones are being given back.
const REPLACED_AT_ONCE: usize = 1_024;

/// The most subjects whose units go back at the same time.
const RETURNED_AT_ONCE: usize = 64;

/// The most subjects whose units one sweep gives back, so that the commands do not keep the server from
/// deciding.
const RETURNED_BY_SWEEP: usize = 2_048;

/// The longest that closing may take.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(5);

/// The longest time between two sweeps.
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

impl RedisStore {
    /// Gives back all units that were [leased](super::super::RedisStoreBuilder::lease), and leases no more.
    ///
    /// A service calls it when it shuts down, after its last request. The store keeps deciding afterwards
    /// and asks the server each time. [`RateLimiter::close`](crate::RateLimiter::close) does the same
    /// through the limiter. Closing takes one round trip for each subject, 64 of them at once, and
    /// 5 seconds at most. Without leases it does nothing.
    ///
    /// # Errors
    ///
    /// Returns an error if some units could not be given back. They stay charged until their windows end.
    pub async fn close(&self) -> Result<(), StoreError> {
        let Some(leases) = &self.inner.leases else { return Ok(()) };
        leases.close();
        // A task that takes units now has a place already, so its turn is waited for.
        let emptied = self.empty_all(leases, leases.table.subjects(), |_| true);
        let in_time = timeout(CLOSE_TIMEOUT, emptied).await;
        in_time.unwrap_or_else(|_| Err(StoreError::new(FailureKind::TimedOut)))
    }

    /// Gives back the units of leases that have ended or are idle. A task of the store does this regularly,
    /// except with a manual clock, where tests decide when units go back.
    #[cfg(feature = "conformance")]
    #[cfg_attr(docsrs, doc(cfg(feature = "conformance")))]
    pub async fn return_idle_leases(&self) {
        if let Some(leases) = &self.inner.leases {
            self.sweep(leases).await;
        }
    }

    /// Starts the one task that gives back what has ended or is idle. It ends with the store.
    pub(crate) fn start_sweeping(&self) {
        let Some(leases) = self.inner.leases.as_ref().filter(|_| !self.inner.watch.is_manual())
        else {
            return;
        };
        let pause = Duration::from_micros(leases.idle / 4).max(Duration::from_millis(5));
        let sweeping = sweep_until_closed(Arc::downgrade(&self.inner), pause.min(LONGEST_PAUSE));
        leases.runtime.spawn(sweeping);
    }

    async fn sweep(&self, leases: &Leases) {
        let (now, idle) = (self.inner.watch.now(), leases.idle);
        let due = leases.table.sweep(now, idle, RETURNED_BY_SWEEP);
        let is_due = move |holder: &Holder| {
            // Not `is_due`: the holder of the turn has a place itself.
            let spent = |terms: &super::Terms| now < terms.until && terms.idle_since(now) < idle;
            !holder.place.with_lease(|lease| lease.terms.as_ref().is_some_and(spent))
        };
        // Units that could not be given back stay charged.
        let _ = self.empty_all(leases, due, is_due).await;
    }

    /// Gives back the units of these subjects, if they are still due when the task gets its turn.
    async fn empty_all(
        &self,
        leases: &Leases,
        subjects: Vec<Who>,
        is_due: impl Fn(&Holder) -> bool + Copy + Send + 'static,
    ) -> Result<(), StoreError> {
        let (mut subjects, mut emptying) = (subjects.into_iter(), JoinSet::new());
        let mut result = Ok(());
        loop {
            for who in subjects.by_ref().take(RETURNED_AT_ONCE - emptying.len()) {
                let Some(place) = leases.table.find(who) else { continue };
                let store = self.clone();
                let empty = async move {
                    let holder = place.turn().await;
                    if is_due(&holder) { store.empty(&holder).await } else { Ok(()) }
                };
                emptying.spawn_on(empty, &leases.runtime);
            }
            match emptying.join_next().await {
                Some(emptied) => result = result.and(emptied.unwrap_or_else(|_| Err(gone()))),
                None if subjects.len() == 0 => return result,
                None => {}
            }
        }
    }

    /// Makes room for a lease in a full table. Returns the number of entries that are allowed then.
    pub(crate) fn make_room(&self, leases: &Leases) -> usize {
        match leases.table.make_room(self.inner.watch.now()) {
            Room::Made => MOST,
            Room::Idle(holder) => {
                let store = self.clone();
                leases.runtime.spawn(async move {
                    // Units that could not be given back stay charged.
                    let _ = store.empty(&holder).await;
                });
                MOST + REPLACED_AT_ONCE
            }
            Room::None => 0,
        }
    }

    /// Gives back all units that are held.
    pub(crate) async fn empty(&self, holder: &Holder) -> Result<(), StoreError> {
        match holder.place.with_lease(|lease| lease.terms.take()) {
            Some(terms) => self.give_back(holder.place.who.as_ref(), terms.into()).await,
            None => Ok(()),
        }
    }

    /// Gives unspent units back. If that fails, they stay charged.
    pub(crate) async fn give_back(
        &self,
        who: WhoRef<'_>,
        Returned { policy, charged, units }: Returned,
    ) -> Result<(), StoreError> {
        let Some(leases) = self.inner.leases.as_ref().filter(|_| units > 0) else { return Ok(()) };
        let command = self.inner.commands.refund(&Refund {
            namespace: who.namespace,
            subject: who.subject,
            policy: &policy,
            charged,
            units,
            of: RefundOf::All,
            uncharged: LimitSet::EMPTY,
        })?;
        let sent = timeout(leases.patience, self.send(command)).await;
        if let Some(denials) = &self.inner.denials {
            denials.forget(who);
        }
        sent.unwrap_or_else(|_| Err(StoreError::new(FailureKind::TimedOut))).map(drop)
    }
}

/// Sweeps until the store is closed or dropped.
async fn sweep_until_closed(inner: Weak<Inner>, every: Duration) {
    let mut clocks = Clocks::default();
    loop {
        pause(every).await;
        let Some(inner) = inner.upgrade() else { return };
        let store = RedisStore { inner };
        let Some(leases) = store.inner.leases.as_ref().filter(|leases| !leases.is_closed()) else {
            return;
        };
        if clocks.have_parted(SystemClock.now().as_micros(), store.inner.watch.now()) {
            let _ = store.empty_all(leases, leases.table.subjects(), |_| true).await;
        }
        store.sweep(leases).await;
    }
}

/// Compares the wall clock with the monotonic clock, which stands still while a machine is suspended.
#[derive(Debug, Default)]
struct Clocks(Option<(u64, u64)>);

impl Clocks {
    /// A smaller step of the wall clock counts as a correction, in µs.
    const CORRECTION: u64 = 1_000_000;

    /// Returns whether the wall clock has advanced further than the monotonic clock since the last call. In
    /// that time windows may have ended on the server, while the leases of this machine stood still.
    fn have_parted(&mut self, wall: u64, monotonic: u64) -> bool {
        let before = self.0.replace((wall, monotonic));
        before.is_some_and(|(wall_before, monotonic_before)| {
            let (wall, monotonic) =
                (wall.saturating_sub(wall_before), monotonic - monotonic_before);
            wall > monotonic.saturating_add(Self::CORRECTION)
        })
    }
}

/// Waits for a time: no event marks the end of a lease.
#[expect(clippy::disallowed_methods, reason = "a lease ends at a time")]
async fn pause(time: Duration) {
    tokio::time::sleep(time).await;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clocks_have_parted_when_the_wall_clock_ran_ahead_of_the_monotonic_clock() {
        const SECOND: u64 = 1_000_000;
        let mut clocks = Clocks::default();
        assert!(!clocks.have_parted(100 * SECOND, 5 * SECOND), "nothing to compare with");
        assert!(!clocks.have_parted(101 * SECOND, 6 * SECOND), "both advanced alike");
        assert!(!clocks.have_parted(102 * SECOND + SECOND / 2, 7 * SECOND), "a correction");
        assert!(clocks.have_parted(3_702 * SECOND, 8 * SECOND), "suspended for an hour");
        assert!(!clocks.have_parted(3_703 * SECOND, 9 * SECOND), "reported once");
        assert!(!clocks.have_parted(100 * SECOND, 10 * SECOND), "the wall clock was set back");
    }
}
