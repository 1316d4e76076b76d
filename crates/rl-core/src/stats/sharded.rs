//! Counters of which each thread has its own copy, so that counting needs no atomic
//! read-modify-write.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

/// A value of which each thread has its own copy. All copies are allocated at once.
///
/// Up to 64 threads have copies of their own. Further threads share one.
#[derive(Debug)]
pub(crate) struct PerThread<T>(Box<[T; OWN_SLOTS + 1]>);

/// A large value of which each thread has its own copy, like [`PerThread`]. A copy is allocated
/// when its thread first needs it.
#[derive(Debug, Default)]
pub(crate) struct Sharded<T>(PerThread<OnceLock<Box<T>>>);

/// The copy of the current thread.
#[derive(Debug)]
pub(crate) struct OwnShard<'a, T> {
    pub(crate) counts: &'a T,
    pub(crate) writer: Writer,
}

impl<T> Clone for OwnShard<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for OwnShard<'_, T> {}

/// The threads that may write a counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Writer {
    /// Only the current thread.
    Sole,
    /// Several threads.
    Many,
}

/// A number that only grows.
#[derive(Debug, Default)]
pub(crate) struct ThreadCount(AtomicU64);

impl ThreadCount {
    /// Adds `units`. A sole writer needs no read-modify-write, which would take 5 ns.
    pub(crate) fn add(&self, units: u64, writer: Writer) {
        match writer {
            Writer::Sole => self.0.store(self.get().wrapping_add(units), Ordering::Relaxed),
            Writer::Many => {
                self.0.fetch_add(units, Ordering::Relaxed);
            }
        }
    }

    /// Replaces the number. If several threads write, the last number stays.
    pub(crate) fn set(&self, value: u64) {
        self.0.store(value, Ordering::Relaxed);
    }

    /// Returns the number.
    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

impl<T: Default> Default for PerThread<T> {
    fn default() -> Self {
        Self(Box::new(std::array::from_fn(|_| T::default())))
    }
}

impl<T> PerThread<T> {
    /// Returns the copy of the current thread.
    pub(crate) fn own(&self) -> OwnShard<'_, T> {
        let slot = current();
        let writer = if slot == SHARED_SLOT { Writer::Many } else { Writer::Sole };
        OwnShard { counts: &self.0[slot], writer }
    }

    /// Returns the sum of a number over all copies.
    pub(crate) fn sum(&self, number: impl Fn(&T) -> u64) -> u64 {
        self.0.iter().map(number).fold(0, u64::wrapping_add)
    }
}

impl<T: Default> Sharded<T> {
    /// Returns the copy of the current thread.
    pub(crate) fn own(&self) -> OwnShard<'_, T> {
        let OwnShard { counts, writer } = self.0.own();
        let counts = match counts.get() {
            Some(counts) => counts,
            None => allocate(counts),
        };
        OwnShard { counts, writer }
    }

    /// Returns the copies that exist.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &T> {
        self.0.0.iter().filter_map(|shard| shard.get().map(|counts| &**counts))
    }

    /// Returns the sum of a number over all copies.
    pub(crate) fn sum(&self, number: impl Fn(&T) -> u64) -> u64 {
        self.iter().map(number).fold(0, u64::wrapping_add)
    }
}

#[cold]
fn allocate<T: Default>(shard: &OnceLock<Box<T>>) -> &T {
    shard.get_or_init(Box::default)
}

/// The number of slots that a thread can have for itself. Each of them has a bit in [`TAKEN`].
const OWN_SLOTS: usize = 64;

/// The slot that all further threads share.
const SHARED_SLOT: usize = OWN_SLOTS;

const UNASSIGNED: usize = usize::MAX;

thread_local! {
    static SLOT: Cell<usize> = const { Cell::new(UNASSIGNED) };
    /// The claim of this thread on its slot. It is dropped when the thread ends, which frees the
    /// slot.
    static CLAIM: Cell<Option<SlotClaim>> = const { Cell::new(None) };
}

/// The slots that belong to a thread, one bit for each.
///
/// A slot gets a new owner under this lock. So the new owner sees all counts of the previous one.
static TAKEN: Mutex<u64> = Mutex::new(0);

/// The claim of a thread on a slot of its own.
struct SlotClaim(usize);

impl Drop for SlotClaim {
    fn drop(&mut self) {
        // Destructors of this thread that run later count in the shared slot.
        SLOT.set(SHARED_SLOT);
        *TAKEN.lock().unwrap_or_else(PoisonError::into_inner) &= !(1 << self.0);
    }
}

/// Returns the slot of this thread.
#[inline(always)]
fn current() -> usize {
    let slot = SLOT.get();
    if slot == UNASSIGNED { assign() } else { slot }
}

/// Claims the first free slot for this thread. If there is none, the thread uses the shared slot.
#[cold]
fn assign() -> usize {
    let slot = {
        let mut taken = TAKEN.lock().unwrap_or_else(PoisonError::into_inner);
        let free = taken.trailing_ones() as usize;
        if free < OWN_SLOTS {
            *taken |= 1 << free;
        }
        free.min(SHARED_SLOT)
    };
    SLOT.set(slot);
    if slot < OWN_SLOTS {
        // An error is impossible: once `CLAIM` has been destroyed, `SLOT` is the shared slot, and
        // this function is no longer called.
        let _ = CLAIM.try_with(|claim| claim.set(Some(SlotClaim(slot))));
    }
    SLOT.get()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::sync::Barrier;

    use super::*;

    #[test]
    fn the_counts_of_more_threads_than_slots_add_up() {
        let counts = Sharded::<ThreadCount>::default();
        std::thread::scope(|scope| {
            for _ in 0..100 {
                scope.spawn(|| {
                    for _ in 0..1_000 {
                        let own = counts.own();
                        own.counts.add(3, own.writer);
                    }
                });
            }
        });
        assert_eq!(counts.sum(ThreadCount::get), 300_000);
    }

    #[test]
    fn threads_that_run_at_the_same_time_share_no_slot_of_their_own() {
        let barrier = Barrier::new(100);
        let slots: Vec<usize> = std::thread::scope(|scope| {
            let slot_of_thread = || {
                let slot = current();
                assert_eq!(current(), slot, "a thread keeps its slot");
                barrier.wait();
                slot
            };
            let threads: Vec<_> = (0..100).map(|_| scope.spawn(slot_of_thread)).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        let own: Vec<_> = slots.iter().filter(|slot| **slot < OWN_SLOTS).collect();
        assert_eq!(own.iter().collect::<BTreeSet<_>>().len(), own.len());
        assert!(slots.iter().all(|slot| *slot <= SHARED_SLOT));
        assert!(slots.contains(&SHARED_SLOT), "there are more threads than slots");
    }

    #[test]
    fn the_slots_of_threads_that_have_ended_are_used_again() {
        // Without reuse, at most `OWN_SLOTS` threads would get slots of their own. Not every thread
        // has to get one, because other tests occupy slots too.
        let mut own = 0;
        for _ in 0..1_000 {
            own += usize::from(std::thread::spawn(current).join().unwrap() < OWN_SLOTS);
        }
        assert!(own > OWN_SLOTS, "{own}");
    }
}
