//! Finds requests that raise a limit to 80, 90 or 100 % of its units.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::{Mutex, PoisonError};

use super::parts::CounterKey;
use crate::decision::{LimitStatus, Origin};
use crate::time::Timestamp;

/// The fractions that are reported, in percent, the highest first.
const THRESHOLDS: [u8; 3] = [100, 90, 80];

/// The largest number of crossings to remember. With more, a crossing may be reported again in the
/// same window.
const MAX_REMEMBERED: usize = 10_000;

/// The largest number of crossings that a limiter reports in a second.
const MAX_PER_SECOND: u64 = 100;

/// A crossing that is to be reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Crossing {
    pub(super) percent: u8,
    /// The number of crossings since the last report that were left out, because they were too
    /// frequent.
    pub(super) suppressed: u64,
}

/// Remembers the crossings that were reported, until the windows of their limits end.
///
/// A single decision shows a crossing: the used units are below a threshold before the charge, and
/// not after it. Reported crossings are remembered because of two cases, in which a limit crosses a
/// threshold again: units that are refunded and charged again, and limits without windows.
#[derive(Debug, Default)]
pub(super) struct NearLimits {
    reported: Mutex<Reported>,
    hasher: RandomState,
}

#[derive(Debug, Default)]
struct Reported {
    /// The key is a hash of a subject, a limit and a threshold; the value is the end of the window.
    until: HashMap<u64, Timestamp>,
    /// The second in which the last crossing was found.
    second: u64,
    /// The crossings that were reported in this second.
    in_second: u64,
    suppressed: u64,
}

impl NearLimits {
    /// Returns the crossing that a charge of `charged` units has caused at `now`, unless it has
    /// been reported in this window.
    ///
    /// If there is no crossing, this takes only a few comparisons.
    pub(super) fn crossing(
        &self,
        counters: CounterKey<'_>,
        limit: &LimitStatus<'_>,
        charged: u64,
        origin: Origin,
        now: Timestamp,
    ) -> Option<Crossing> {
        let charged = limit.limit().units(charged);
        // Leased units count as used as soon as they are leased, perhaps by another instance. So
        // the lease crosses a threshold, and not this charge. With a `before` of 0, the first
        // charge after the lease reports it.
        let before = match origin {
            Origin::Leased => 0,
            _ => limit.used().saturating_sub(charged),
        };
        let percent = crossed(limit.max(), before, limit.used()).filter(|_| charged > 0)?;
        let namespace = counters.namespace.map(|namespace| namespace.digest());
        let key = self.hasher.hash_one((counters.subject, namespace, limit.name(), percent));
        let window = match u64::try_from(limit.reset_after_decision().as_micros()) {
            Ok(0) | Err(_) => limit.limit().period().as_micros(),
            Ok(until_reset) => until_reset,
        };
        let mut reported = self.reported.lock().unwrap_or_else(PoisonError::into_inner);
        reported
            .add(key, now, now.plus_micros(window))
            .map(|suppressed| Crossing { percent, suppressed })
    }
}

impl Reported {
    /// Adds a crossing whose window ends at `until`. Returns `None` if it is not to be reported, or
    /// else the number of crossings that were suppressed since the last report.
    fn add(&mut self, key: u64, now: Timestamp, until: Timestamp) -> Option<u64> {
        if self.until.get(&key).is_some_and(|until| now < *until) {
            return None;
        }
        if self.until.len() >= MAX_REMEMBERED {
            self.until.retain(|_, until| now < *until);
        }
        if self.until.len() >= MAX_REMEMBERED {
            self.until.clear();
        }
        self.until.insert(key, until);
        let second = now.as_micros() / 1_000_000;
        if second != self.second {
            (self.second, self.in_second) = (second, 0);
        }
        if self.in_second >= MAX_PER_SECOND {
            self.suppressed += 1;
            return None;
        }
        self.in_second += 1;
        Some(std::mem::take(&mut self.suppressed))
    }
}

/// Returns the highest threshold that lies above `before` and not above `after`.
fn crossed(max: u64, before: u64, after: u64) -> Option<u8> {
    let reaches =
        |used: u64, percent: u8| u128::from(used) * 100 >= u128::from(max) * u128::from(percent);
    // Under a limit of 0, `before` already reaches every threshold, so none is new.
    let is_new = |percent: &u8| reaches(after, *percent) && !reaches(before, *percent);
    THRESHOLDS.into_iter().find(is_new)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_charge_crosses_the_highest_threshold_that_it_reaches_first() {
        assert_eq!(crossed(100, 79, 80), Some(80));
        assert_eq!(crossed(100, 80, 81), None);
        assert_eq!(crossed(100, 79, 95), Some(90));
        assert_eq!(crossed(100, 0, 100), Some(100));
        assert_eq!(crossed(100, 100, 250), None);
        assert_eq!(crossed(3, 1, 2), None, "two of three are 67 %");
        assert_eq!(crossed(3, 2, 3), Some(100));
        assert_eq!(crossed(0, 0, 5), None);
        assert_eq!(crossed(u64::MAX, 0, u64::MAX), Some(100));
    }

    #[test]
    fn crossings_beyond_the_rate_are_counted_and_the_memory_is_bounded() {
        let mut reported = Reported::default();
        let at = |second: u64| Timestamp::from_micros(second * 1_000_000);
        let mut add = |key: u64, second: u64| reported.add(key, at(second), at(second + 3_600));
        let emitted = (0..30_000).filter(|key| add(*key, 1).is_some()).count();
        assert_eq!(emitted as u64, MAX_PER_SECOND);
        assert_eq!(add(50_000, 2), Some(30_000 - MAX_PER_SECOND));
        assert_eq!(add(50_000, 3), None, "the window has not ended");
        assert_eq!(add(50_000, 4_000), Some(0), "this is another window");
        assert!(reported.until.len() <= MAX_REMEMBERED);
    }
}
