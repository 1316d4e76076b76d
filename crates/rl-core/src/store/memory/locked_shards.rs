//! Locks the shards of several subjects, always in the same order.
//!
//! There is no deadlock: when a thread waits for a shard, it has locked only shards before that
//! one. Operations on one subject lock a single shard.

use std::sync::{Mutex, MutexGuard, PoisonError};

use arrayvec::ArrayVec;

use super::shard::Shard;
use crate::store::fingerprint::Fingerprint;

/// The number of shards, a power of two. It is large, so that threads seldom wait for the same
/// lock.
pub(super) const SHARDS: usize = 64;

/// The locked shards of the subjects of a request, in ascending order.
pub(super) struct LockedShards<'a>(ArrayVec<(usize, MutexGuard<'a, Shard>), SHARDS>);

impl<'a> LockedShards<'a> {
    /// Creates a value without shards.
    pub(super) fn none() -> Self {
        Self(ArrayVec::new())
    }

    /// Locks these shards. It may be called only once, because a second call would not continue the
    /// order.
    ///
    /// A value that is filled in place is not moved.
    pub(super) fn lock(&mut self, shards: &'a [Mutex<Shard>; SHARDS], order: LockOrder) {
        debug_assert!(self.0.is_empty(), "the shards of a request are locked together");
        for place in order {
            self.0.push((place, lock(&shards[place])));
        }
    }

    /// Returns the shard of a subject.
    pub(super) fn of(&mut self, subject: Fingerprint) -> &mut Shard {
        let place = subject.spread(SHARDS);
        let shard = self.0.iter_mut().find(|(locked, _)| *locked == place);
        let (_, shard) = shard.expect("the shards of all subjects are locked");
        shard
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut (usize, MutexGuard<'a, Shard>)> {
        self.0.iter_mut()
    }
}

/// Locks a shard. A poisoned lock is ignored, because a panic under the lock leaves no entry
/// half-changed.
#[inline(always)]
pub(super) fn lock(shard: &Mutex<Shard>) -> MutexGuard<'_, Shard> {
    shard.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The order in which shards are locked: each once, and always in ascending order.
///
/// It is a set of shards, one bit for each.
#[derive(Clone, Copy, Default)]
pub(super) struct LockOrder(u64);

const _: () = assert!(SHARDS <= u64::BITS as usize);

impl LockOrder {
    /// Adds the shard of a subject.
    pub(super) const fn add(&mut self, subject: Fingerprint) {
        self.add_place(subject.spread(SHARDS));
    }

    const fn add_place(&mut self, place: usize) {
        self.0 |= 1 << place;
    }
}

impl Iterator for LockOrder {
    type Item = usize;

    fn next(&mut self) -> Option<usize> {
        let place = self.0.trailing_zeros() as usize;
        self.0 &= self.0.wrapping_sub(1);
        (place < SHARDS).then_some(place)
    }
}

/// Checks concurrent requests in every order of their steps. Loom aborts a test in which threads
/// wait for each other.
#[cfg(test)]
mod every_order {
    use loom::sync::{Arc, Mutex};
    use loom::thread;

    use super::*;

    /// The shards of each request, as its parts name them.
    const REQUESTS: [&[usize]; 2] = [&[0, 1, 2], &[2, 1, 0, 1]];

    /// Two requests charge one unit to each of their shards, and a third one reads two of the
    /// shards meanwhile.
    #[test]
    fn requests_that_lock_in_ascending_order_never_wait_for_each_other() {
        let order = |places: &[usize]| {
            let mut order = LockOrder::default();
            places.iter().for_each(|place| order.add_place(*place));
            order
        };
        loom::model(move || {
            let shards = Arc::new([0, 0, 0].map(Mutex::new));
            let charging = REQUESTS.map(|places| {
                let shards = Arc::clone(&shards);
                thread::spawn(move || {
                    let mut locked: Vec<_> =
                        order(places).map(|place| shards[place].lock().unwrap()).collect();
                    locked.iter_mut().for_each(|shard| **shard += 1);
                })
            });
            let locked: Vec<_> =
                order(&[1, 0]).map(|place| shards[place].lock().unwrap()).collect();
            assert_eq!(*locked[0], *locked[1], "one part of a request is visible alone");
            drop(locked);
            charging.into_iter().for_each(|thread| thread.join().unwrap());
            assert!(shards.iter().all(|shard| *shard.lock().unwrap() == 2));
        });
    }
}
