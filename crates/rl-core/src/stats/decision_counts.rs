//! The decisions of a store, as one thread counts them.
//!
//! ```text
//! allowed ──► count, charged, denied_by[no limits]         three additions
//! denied  ──► count, charged, denied_by[limits that deny]  three additions
//! ```
//!
//! A decision is counted by the set of the limits that deny it. Readers derive the denials of each
//! limit from the counts of the sets that contain it. A table of sets covers six limits, so a
//! denial by a limit after the sixth takes four additions, and after the twelfth five.

use std::sync::OnceLock;

use super::sharded::{ThreadCount, Writer};
use crate::policy::LimitSet;
use crate::time::Timestamp;

/// The time in µs after which the subject and the utilization of the next decision are recorded.
const RECORD_INTERVAL: u64 = 1_000;

/// The number of limits of one table of [`DenialCounts`].
const LIMITS_OF_TABLE: usize = 6;

/// The number of tables that a policy with 16 limits, the maximum, needs.
const TABLES: usize = (u16::BITS as usize).div_ceil(LIMITS_OF_TABLE);

/// The decisions of a store that one thread has counted. They lie in one cache line.
#[derive(Debug, Default)]
#[repr(align(64))]
pub(crate) struct DecisionCounts {
    pub(crate) allowed: OutcomeCounts,
    pub(crate) denied: OutcomeCounts,
    /// The units that checks charged.
    pub(crate) charged: ThreadCount,
    /// The denials by the policy that all subjects share. They are allocated at the first decision
    /// under it.
    denied_by: OnceLock<Box<DenialCounts>>,
    /// 1 if the next decision is timed, else 0.
    times_next: ThreadCount,
}

const _: () = assert!(size_of::<DecisionCounts>() == 64);

/// The decisions of a store with one outcome.
#[derive(Debug, Default)]
pub(crate) struct OutcomeCounts {
    pub(crate) count: ThreadCount,
    /// The time at which the subject of a decision was last recorded. It is on the store's clock,
    /// or on the limiter's for a denial by the policy alone.
    pub(crate) recorded_at: ThreadCount,
}

/// The denials by each set of limits. A table belongs to six limits of a policy, and has a count
/// for each subset of them.
#[derive(Debug)]
struct DenialCounts([[ThreadCount; 1 << LIMITS_OF_TABLE]; TABLES]);

impl Default for DenialCounts {
    fn default() -> Self {
        Self(std::array::from_fn(|_| std::array::from_fn(|_| ThreadCount::default())))
    }
}

impl DenialCounts {
    fn add(&self, over: LimitSet, writer: Writer) {
        let mut bits = usize::from(over.bits());
        for table in &self.0 {
            table[bits % (1 << LIMITS_OF_TABLE)].add(1, writer);
            bits >>= LIMITS_OF_TABLE;
            if bits == 0 {
                break;
            }
        }
    }

    /// Returns the denials by the limit at `index`.
    fn of_limit(&self, index: usize) -> u64 {
        let Some(table) = self.0.get(index / LIMITS_OF_TABLE) else { return 0 };
        let sets = table.iter().enumerate();
        let of_limit = sets.filter(|(set, _)| set >> (index % LIMITS_OF_TABLE) & 1 == 1);
        of_limit.map(|(_, count)| count.get()).fold(0, u64::wrapping_add)
    }
}

impl DecisionCounts {
    /// Returns whether the next decision of the thread is timed.
    pub(crate) fn is_next_timed(&self) -> bool {
        self.times_next.get() != 0
    }

    /// Lets the next decision of the thread be timed. Two readings of a clock take 50 ns, so this
    /// is called at most once in a millisecond for each outcome.
    pub(crate) fn time_next(&self) {
        self.times_next.set(1);
    }

    /// Clears the flag that [`time_next`](Self::time_next) sets, because a decision is timed now.
    pub(crate) fn timing_begins(&self) {
        self.times_next.set(0);
    }

    /// Returns the decisions with this outcome.
    pub(crate) const fn of_outcome(&self, is_allowed: bool) -> &OutcomeCounts {
        if is_allowed { &self.allowed } else { &self.denied }
    }

    /// Counts a decision by the limits that deny it, `over`; the set is empty if it is allowed. The
    /// limits belong to the policy that all subjects share.
    pub(crate) fn add_over(&self, over: LimitSet, writer: Writer) {
        self.denied_by.get_or_init(Box::default).add(over, writer);
    }

    /// Returns the denials by the limit at `index` of the policy that all subjects share.
    pub(crate) fn denied_by(&self, index: usize) -> u64 {
        self.denied_by.get().map_or(0, |denied_by| denied_by.of_limit(index))
    }
}

impl OutcomeCounts {
    /// Returns whether the subject of a decision at `at` is to be recorded, because the last record
    /// is at least a millisecond old.
    pub(crate) fn is_record_due(&self, at: Timestamp) -> bool {
        is_record_due(at, &self.recorded_at)
    }
}

/// Returns whether the last record, made at `last`, is at least a millisecond old, or the clock has
/// stepped back since.
pub(crate) fn is_record_due(at: Timestamp, last: &ThreadCount) -> bool {
    at.as_micros().wrapping_sub(last.get()) >= RECORD_INTERVAL
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn denials_by_sets_of_limits_add_up_for_each_limit() {
        let counts = DecisionCounts::default();
        let sets = [0b1, 0b11, 0b10_0000, 0b100_0000, 0x8001, 0xffff, 0xffff, 0b1];
        for bits in sets {
            counts.add_over(LimitSet::from_bits(bits), Writer::Sole);
        }
        for index in 0..16 {
            let expected = sets.iter().filter(|bits| *bits >> index & 1 == 1).count() as u64;
            assert_eq!(counts.denied_by(index), expected, "limit {index}");
        }
    }
}
