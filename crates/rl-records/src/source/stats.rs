use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// The counts of a [`RecordSource`](super::RecordSource) since it was started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct RecordSourceStats {
    /// Requests whose limits were cached.
    pub cached: u64,
    /// Requests that waited for the database.
    pub waited: u64,
    /// Requests whose limits were not known and could not be looked up.
    pub failed: u64,
    /// The consumers whose limits are in the cache.
    pub consumers: u64,
    /// The time since the change log was last read; `None` before the first time.
    pub lag: Option<Duration>,
}

/// Counts look-ups by their result.
#[derive(Debug, Default)]
pub(super) struct LookupCounts {
    pub(super) cached: AtomicU64,
    pub(super) waited: AtomicU64,
    pub(super) failed: AtomicU64,
}

impl LookupCounts {
    /// Adds a look-up.
    pub(super) fn add(count: &AtomicU64) {
        count.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns the counts, with the state of the source.
    pub(super) fn stats(&self, consumers: usize, lag: Option<Duration>) -> RecordSourceStats {
        let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
        RecordSourceStats {
            cached: read(&self.cached),
            waited: read(&self.waited),
            failed: read(&self.failed),
            consumers: consumers as u64,
            lag,
        }
    }
}
