//! Samples that several readers share.

use std::collections::HashSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use rl_core::time::{Clock, Timestamp};

use crate::sample::Sample;

/// The time in µs for which readers share a snapshot. A collection takes less.
const LONGEST: u64 = 1_000_000;

/// Computes samples once for all readers of a collection.
///
/// OpenTelemetry calls each instrument of a collection, and does not say when a collection begins.
/// An instrument that has already read the snapshot must therefore belong to the next collection.
pub(crate) struct Snapshots {
    compute: Box<dyn Fn() -> Vec<Sample> + Send + Sync>,
    clock: Box<dyn Clock>,
    readers: AtomicUsize,
    snapshot: Mutex<Option<Snapshot>>,
}

/// The position of a reader among all readers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct ReaderId(usize);

struct Snapshot {
    samples: Arc<[Sample]>,
    at: Timestamp,
    read_by: HashSet<ReaderId>,
}

impl Snapshots {
    /// Creates snapshots of the samples that `compute` returns. `clock` measures their age.
    pub(crate) fn new(
        compute: impl Fn() -> Vec<Sample> + Send + Sync + 'static,
        clock: impl Clock,
    ) -> Self {
        Self {
            compute: Box::new(compute),
            clock: Box::new(clock),
            readers: AtomicUsize::new(0),
            snapshot: Mutex::new(None),
        }
    }

    /// Adds a reader.
    pub(crate) fn add_reader(&self) -> ReaderId {
        ReaderId(self.readers.fetch_add(1, Ordering::Relaxed))
    }

    /// Returns the samples of the last snapshot. Computes them if this reader has already read it,
    /// or if it is older than a second.
    pub(crate) fn read(&self, reader: ReaderId) -> Arc<[Sample]> {
        let now = self.clock.now();
        let mut last = self.snapshot.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(snapshot) = &mut *last
            && now.micros_since(snapshot.at) < LONGEST
            && snapshot.read_by.insert(reader)
        {
            return Arc::clone(&snapshot.samples);
        }
        let samples: Arc<[Sample]> = (self.compute)().into();
        let read_by = HashSet::from([reader]);
        *last = Some(Snapshot { samples: Arc::clone(&samples), at: now, read_by });
        samples
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use rl_core::time::ManualClock;

    use super::*;
    use crate::catalogue::DEGRADED;

    #[test]
    fn readers_share_a_snapshot_until_one_of_them_reads_again_or_it_is_a_second_old() {
        let (computed, clock) = (AtomicUsize::new(0), Arc::new(ManualClock::default()));
        let compute = move || {
            let count = computed.fetch_add(1, Ordering::Relaxed) as u64;
            vec![Sample::new(DEGRADED, ["one"], count)]
        };
        let snapshots = Snapshots::new(compute, Arc::clone(&clock));
        let [one, other, third] = [(); 3].map(|()| snapshots.add_reader());
        let read = |reader| snapshots.read(reader)[0].value.clone();
        let of = |count: u64| crate::sample::SampleValue::from(count);
        assert_eq!([one, other].map(read), [of(0), of(0)]);
        assert_eq!([one, other].map(read), [of(1), of(1)]);
        assert_eq!([other, one].map(read), [of(2), of(2)]);
        clock.advance(Duration::from_millis(999));
        assert_eq!(read(third), of(2));
        clock.advance(Duration::from_secs(2));
        assert_eq!([third, one, other].map(read), [of(3), of(3), of(3)]);
    }
}
