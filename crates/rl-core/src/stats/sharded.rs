//! Counters of which each thread has its own copy, so that counting needs no atomic
//! read-modify-write.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use super::thread_slot::{OWN_SLOTS, SHARED_SLOT, current};

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

#[cfg(test)]
mod tests {
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
}
