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
pub(super) struct LockedShards<'a>(SmallVec<[(usize, MutexGuard<'a, Shard>); 4]>);

impl<C> MemoryStore<C> {
    /// Locks the shards of these subjects, each once.
    #[inline(always)]
    pub(super) fn lock_shards(
        &self,
        subjects: impl Iterator<Item = Fingerprint>,
    ) -> LockedShards<'_> {
        let mut locked = SmallVec::new();
        for place in lock_order(subjects.map(|subject| subject.spread(SHARDS))) {
            locked.push((place, lock(&self.shards[place])));
        }
        LockedShards(locked)
    }
}

impl<'a> LockedShards<'a> {
    /// Returns the shard of a subject.
    #[inline]
    pub(super) fn of(&mut self, subject: Fingerprint) -> &mut Shard {
        let place = subject.spread(SHARDS);
        let shard = self.0.iter_mut().find(|(locked, _)| *locked == place);
        let (_, shard) = shard.expect("the shards of all subjects are locked");
        shard
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &(usize, MutexGuard<'a, Shard>)> {
        self.0.iter()
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut (usize, MutexGuard<'a, Shard>)> {
        self.0.iter_mut()
    }
}

/// Returns the order in which these shards are locked: each once, and always in ascending order.
#[inline]
fn lock_order(places: impl Iterator<Item = usize>) -> LockOrder {
    LockOrder(places.fold(0, |set, place| set | 1 << place))
}

/// A set of shards, one bit for each. It iterates in ascending order.
struct LockOrder(u64);

const _: () = assert!(SHARDS <= u64::BITS as usize);

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
        let order = |places: &[usize]| lock_order(places.iter().copied());
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
