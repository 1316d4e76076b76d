//! The counts of one thread.

use std::sync::OnceLock;

use super::names::{CHUNK, CHUNKS};
use crate::decision::Origin;
use crate::stats::{ThreadCount, TimeHistogram, Writer};

/// The bounds of used fractions, in millionths.
pub(super) const UTILIZATION_BOUNDS: [u64; 5] = [250_000, 500_000, 750_000, 900_000, 1_000_000];

/// The number of buckets in which used fractions are counted: one up to each bound, and one above
/// the last.
pub(super) const UTILIZATION_BUCKETS: usize = UTILIZATION_BOUNDS.len() + 1;

/// The counts of one thread, except those in `DecisionCounts`, which most decisions change.
#[derive(Debug, Default)]
pub(super) struct TallyShard {
    /// For the denied and for the allowed decisions about limits: their number when one of them was
    /// last recorded under its subject. The decisions since then are the weight of the next record.
    pub(super) recorded: [ThreadCount; 2],
    pub(super) permits_begun: ThreadCount,
    pub(super) permits_ended: ThreadCount,
    /// The time on the store's clock at which a permit was last timed.
    pub(super) permit_sampled_at: ThreadCount,
    pub(super) charged_after: ThreadCount,
    pub(super) refunded: ThreadCount,
    /// The denied and the allowed decisions of each origin other than the store.
    pub(super) by_origin: [[ThreadCount; 2]; Origin::COUNT],
    /// The sum over those origins whose decisions have an outcome for each limit.
    pub(super) of_other_origins: [ThreadCount; 2],
    pub(super) decision_times: TimeHistogram,
    /// The time, in microseconds since the limiter was built, from which the next call to the store
    /// is timed.
    pub(super) next_timed_call: ThreadCount,
    names: [OnceLock<Box<[NameCounts; CHUNK]>>; CHUNKS],
}

/// The counts of a limit or a rule.
#[derive(Debug, Default)]
pub(super) struct NameCounts {
    pub(super) over: ThreadCount,
    pub(super) shadow_over: ThreadCount,
    /// The requests that the rule allows, or would allow if another rule did not deny them.
    pub(super) within: ThreadCount,
    pub(super) utilization: [ThreadCount; UTILIZATION_BUCKETS],
    /// The sum of used fractions, in millionths.
    pub(super) utilization_sum: ThreadCount,
}

impl NameCounts {
    /// Adds the counts of another thread.
    pub(super) fn add(&self, other: &Self) {
        let sums = [&self.over, &self.shadow_over, &self.within, &self.utilization_sum];
        let counts = [&other.over, &other.shadow_over, &other.within, &other.utilization_sum];
        let (sums, counts) = (
            sums.into_iter().chain(&self.utilization),
            counts.into_iter().chain(&other.utilization),
        );
        sums.zip(counts).for_each(|(sum, count)| sum.add(count.get(), Writer::Sole));
    }
}

impl TallyShard {
    /// Counts a decision that the store did not make.
    pub(super) fn add_other_origin(&self, origin: Origin, is_allowed: bool, writer: Writer) {
        self.by_origin[origin.index()][usize::from(is_allowed)].add(1, writer);
        if origin.has_outcomes() {
            self.of_other_origins[usize::from(is_allowed)].add(1, writer);
        }
    }

    /// Returns the counts of the name at `place`.
    pub(super) fn of_name(&self, place: usize) -> &NameCounts {
        let chunk = &self.names[place / CHUNK % CHUNKS];
        &chunk.get_or_init(Box::default)[place % CHUNK]
    }

    /// Returns the counts of the name at `place`. Returns `None` if this thread has no chunk of
    /// counts for it, because it has counted no name of this chunk.
    pub(super) fn counted_name(&self, place: usize) -> Option<&NameCounts> {
        Some(&self.names[place / CHUNK % CHUNKS].get()?[place % CHUNK])
    }
}
