//! Locks the shards of several subjects, always in the same order.
//!
//! There is no deadlock: when a thread waits for a shard, it has locked only shards before that
//! one. Operations on one subject lock a single shard.

use std::sync::MutexGuard;

use smallvec::SmallVec;

use super::shard::Shard;
use super::{MemoryStore, SHARDS, lock};
use crate::store::fingerprint::Fingerprint;

/// The locked shards of the subjects of a request, in ascending order.
pub(super) struct LockedShards<'a>(SmallVec<[(usize, MutexGuard<'a, Shard>); 2]>);

impl<'a> LockedShards<'a> {
    /// Locks these shards.
    #[inline]
    pub(super) fn new<C>(store: &'a MemoryStore<C>, order: LockOrder) -> Self {
        Self(order.map(|place| (place, lock(&store.shards[place]))).collect())
    }

    /// Returns the index of a shard among the locked ones. `place` is its place in the store.
    #[inline]
    pub(super) fn index(&self, place: usize) -> usize {
        let index = self.0.iter().position(|(locked, _)| *locked == place);
        index.expect("the shards of all subjects are locked")
    }

    /// Returns the locked shard at `index`.
    #[inline]
    pub(super) fn at(&mut self, index: usize) -> &mut Shard {
        &mut self.0[index].1
    }

    /// Returns the shard of a subject.
    pub(super) fn of(&mut self, subject: Fingerprint) -> &mut Shard {
        let index = self.index(subject.spread(SHARDS));
        self.at(index)
    }
}

/// The order in which shards are locked: each once, and always in ascending order.
///
/// It is a set of shards, one bit for each.
#[derive(Clone, Copy, Default)]
pub(super) struct LockOrder(u64);

const _: () = assert!(SHARDS <= u64::BITS as usize);

impl LockOrder {
    /// Adds the shard of a subject.
    #[inline]
    pub(super) const fn add(&mut self, subject: Fingerprint) {
        self.add_place(subject.spread(SHARDS));
    }

    #[inline]
    const fn add_place(&mut self, place: usize) {
        self.0 |= 1 << place;
    }
}

impl Iterator for LockOrder {
    type Item = usize;

    #[inline]
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
