//! The counts of stores, as plain data.

use std::sync::atomic::{AtomicU64, Ordering};

/// The counts of a store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum StoreStats {
    /// The store counts nothing.
    #[default]
    None,
    /// A [`MemoryStore`](crate::MemoryStore).
    Memory(MemoryStats),
    /// A `RedisStore`.
    Redis(RedisStats),
}

/// The counts of a [`MemoryStore`](crate::MemoryStore).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct MemoryStats {
    /// The number of the store in this process. If two limiters report the same number, they share
    /// the store and these counts.
    pub id: u64,
    /// The subjects that are in the store, including expired subjects that are not dropped yet.
    pub subjects: u64,
    /// The largest number of subjects.
    pub capacity: u64,
    /// The subjects that were evicted because the store was full and other subjects needed room.
    pub evicted: u64,
}

impl MemoryStats {
    pub(crate) const fn new(id: u64, subjects: u64, capacity: u64, evicted: u64) -> Self {
        Self { id, subjects, capacity, evicted }
    }
}

/// The counts of a `RedisStore` since it was created.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct RedisStats {
    /// The number of the store in this process. If two limiters report the same number, they share
    /// the store and these counts.
    pub id: u64,
    /// The script calls that decide.
    pub calls: u64,
    /// The subjects in these calls. Batches have several.
    pub call_subjects: u64,
    /// The script calls that decide and failed.
    pub failed_calls: u64,
    /// The units that were leased.
    pub leased_units: u64,
    /// The connections that were opened.
    pub connects: u64,
    /// The attempts to open a connection that failed.
    pub failed_connects: u64,
    /// The replies of a cluster that redirected a command to another server.
    pub redirects: u64,
    /// The counters that were found without expiry, and given one.
    pub healed: u64,
}

/// Counts the calls of a `RedisStore`.
#[cfg(feature = "redis")]
#[derive(Debug)]
pub(crate) struct RedisCounts {
    id: u64,
    pub(crate) calls: AtomicU64,
    pub(crate) call_subjects: AtomicU64,
    pub(crate) failed_calls: AtomicU64,
    pub(crate) leased_units: AtomicU64,
    pub(crate) connects: AtomicU64,
    pub(crate) failed_connects: AtomicU64,
    pub(crate) redirects: AtomicU64,
    pub(crate) healed: AtomicU64,
}

#[cfg(feature = "redis")]
impl Default for RedisCounts {
    fn default() -> Self {
        let none = AtomicU64::default;
        Self {
            id: next_store_id(),
            calls: none(),
            call_subjects: none(),
            failed_calls: none(),
            leased_units: none(),
            connects: none(),
            failed_connects: none(),
            redirects: none(),
            healed: none(),
        }
    }
}

#[cfg(feature = "redis")]
impl RedisCounts {
    /// Adds `number` to one of the counts.
    pub(crate) fn add(count: &AtomicU64, number: u64) {
        count.fetch_add(number, Ordering::Relaxed);
    }

    /// Counts a script call, and whether it failed.
    pub(crate) fn add_call(&self, subjects: usize, is_failed: bool) {
        Self::add(&self.calls, 1);
        Self::add(&self.call_subjects, subjects as u64);
        if is_failed {
            Self::add(&self.failed_calls, 1);
        }
    }

    /// Returns the counts.
    pub(crate) fn stats(&self) -> RedisStats {
        let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
        RedisStats {
            id: self.id,
            calls: read(&self.calls),
            call_subjects: read(&self.call_subjects),
            failed_calls: read(&self.failed_calls),
            leased_units: read(&self.leased_units),
            connects: read(&self.connects),
            failed_connects: read(&self.failed_connects),
            redirects: read(&self.redirects),
            healed: read(&self.healed),
        }
    }
}

/// Returns a number that no other store of this process has.
pub(crate) fn next_store_id() -> u64 {
    static LAST: AtomicU64 = AtomicU64::new(0);
    LAST.fetch_add(1, Ordering::Relaxed) + 1
}
