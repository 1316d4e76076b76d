//! Sliding window: counts units in buckets of `precision` that are aligned to the clock. The
//! buckets expire one by one as a window of one period, ending now, slides over them.
//!
//! * **Guarantee**: at most `max` units in *every* span of one period, and at least the units that
//!   an exact log over period + precision would grant. A bucket counts until its last possible unit
//!   has expired.
//! * **Invariant**: bucket `i` holds what was charged in [i × precision, (i + 1) × precision), and
//!   counts while now < (i + 1) × precision + period. A request of cost `c` is allowed if and only
//!   if the sum of the buckets that count + `c` <= max.
//! * **Rounding**: none.
//! * **Refunds** lower the bucket in which the units were charged. Nothing is refunded if the state
//!   was created after the charge.
//! * **State**: 2 + ⌈period / precision⌉ + 1 integers.
//!
//! `store/redis/scripts/algorithms/sliding_window.lua` is the same function in Lua; change both.

use super::divisor::Divisor;
use super::{Counting, until};
use crate::model::{Limit, MAX_UNITS, Outcome, Period};
use crate::time::Timestamp;

/// The number of cells before the buckets. They contain the number of the newest bucket, the time
/// of the first charge since the state was empty, the sum of all buckets, and the time until which
/// this sum is valid. At that time a bucket expires, or a new one begins.
const HEAD: usize = 4;

/// A sliding window. Its cells are the `HEAD` cells, then the buckets, newest first.
/// Redis stores neither the sum of the buckets nor the time until which the sum is valid.
#[derive(Clone, Copy, Debug)]
pub(super) struct SlidingWindow {
    max: u64,
    period: u64,
    precision: Divisor,
}

/// The buckets of a state.
#[derive(Clone, Copy, Debug)]
struct Buckets<'a> {
    /// The number of the newest bucket.
    newest: u64,
    units: &'a [u64],
}

impl SlidingWindow {
    pub(super) const fn new(limit: Limit, precision: Period) -> Self {
        let (period, precision) = (limit.period().as_micros(), precision.as_micros());
        Self { max: limit.max(), period, precision: Divisor::new(precision) }
    }

    /// Returns the number of cells.
    pub(super) const fn cells(self) -> usize {
        HEAD + self.size()
    }

    /// Returns the number of cells that a script stores and returns.
    #[cfg(feature = "redis")]
    pub(super) const fn replied_cells(self) -> usize {
        2 + self.size()
    }

    /// Returns the largest number of buckets that count at the same time.
    const fn size(self) -> usize {
        (self.precision.quotient_up(self.period) + 1) as usize
    }

    /// Returns the time at which the bucket `number` expires. The result saturates, because a
    /// damaged state may contain any number.
    const fn leaves(self, number: u64) -> u64 {
        number.saturating_add(1).saturating_mul(self.precision.get()).saturating_add(self.period)
    }

    /// Returns the number and the units of each bucket that counts at `now`, newest first.
    fn counting(self, buckets: Buckets<'_>, now: Timestamp) -> impl Iterator<Item = (u64, u64)> {
        let Buckets { newest, units } = buckets;
        let numbered = units
            .iter()
            .enumerate()
            .map_while(move |(age, units)| Some((newest.checked_sub(age as u64)?, *units)));
        numbered.take_while(move |(number, _)| now.as_micros() < self.leaves(*number))
    }

    fn used_in(self, buckets: Buckets<'_>, now: Timestamp) -> u64 {
        self.counting(buckets, now).fold(0, |sum, (_, units)| sum.saturating_add(units))
    }

    fn used(self, cells: &[u64], now: Timestamp) -> u64 {
        match cells {
            [_, _, sum, until, ..] if now.as_micros() < *until => *sum,
            _ => self.used_in(buckets(cells), now),
        }
    }

    /// Begins the bucket of `now`. Shifts the older buckets, and empties those that have expired. Not
    /// inlined, because most charges find the bucket begun.
    #[inline(never)]
    fn begin_bucket(self, cells: &mut [u64], now: Timestamp) {
        let [newest, since, _, _, units @ ..] = cells else { return };
        let number = self.precision.quotient(now.as_micros());
        if *since == 0 {
            *since = now.as_micros();
        }
        let age = number.saturating_sub(*newest).min(units.len() as u64) as usize;
        units.rotate_right(age % units.len());
        units[..age].fill(0);
        *newest = number;
    }

    /// Computes the sum of all buckets, and the time until which it is valid.
    fn add_up(self, cells: &mut [u64], now: Timestamp) {
        let buckets = buckets(cells);
        let used = self.used_in(buckets, now);
        let oldest = self.counting(buckets, now).filter(|(_, units)| *units > 0).last();
        let next_begins = buckets.newest.saturating_add(1).saturating_mul(self.precision.get());
        let until = oldest.map_or(0, |(number, _)| self.leaves(number).min(next_begins));
        cells[2..HEAD].copy_from_slice(&[used, until]);
    }

    /// Computes the outcome from the cells that a script returns.
    #[cfg(feature = "redis")]
    pub(super) fn replied(self, cells: &[u64], now: Timestamp, needed: u64) -> Outcome {
        let buckets = match cells {
            [newest, _, units @ ..] => Buckets { newest: *newest, units },
            _ => Buckets { newest: 0, units: &[] },
        };
        self.outcome_of(buckets, self.used_in(buckets, now), now, needed)
    }

    fn outcome_of(self, buckets: Buckets<'_>, used: u64, now: Timestamp, needed: u64) -> Outcome {
        let newest = self.counting(buckets, now).find(|(_, units)| *units > 0);
        let reset = newest.map_or(0, |(number, _)| until(self.leaves(number), now));
        if needed > self.max {
            return Outcome::never(used, reset);
        }
        if needed <= self.max.saturating_sub(used) {
            return Outcome::granted(used, reset);
        }
        // Add up the buckets, beginning with the newest, until their sum leaves too few units for
        // the request. The request is allowed when the oldest of these buckets has expired.
        let room = self.max - needed;
        let mut kept = 0_u64;
        let must_leave = self.counting(buckets, now).find(|(_, units)| {
            kept = kept.saturating_add(*units);
            kept > room
        });
        let wait = must_leave.map_or(0, |(number, _)| until(self.leaves(number), now));
        Outcome::denied(used, reset, wait)
    }
}

/// Returns the buckets of a state.
fn buckets(cells: &[u64]) -> Buckets<'_> {
    match cells {
        [newest, _, _, _, units @ ..] => Buckets { newest: *newest, units },
        _ => Buckets { newest: 0, units: &[] },
    }
}

impl Counting for SlidingWindow {
    fn available(&self, cells: &[u64], now: Timestamp) -> u64 {
        self.max.saturating_sub(self.used(cells, now))
    }

    fn charge(&self, cells: &mut [u64], now: Timestamp, units: u64) -> Outcome {
        let is_current = cells.get(3).is_some_and(|until| now.as_micros() < *until);
        if !is_current {
            self.begin_bucket(cells, now);
        }
        let [newest, _, sum, _, bucket, ..] = cells else { return Outcome::granted(0, 0) };
        let charged = bucket.saturating_add(units).min(MAX_UNITS);
        *sum += charged - *bucket;
        *bucket = charged;
        let reset = until(self.leaves(*newest), now);
        if !is_current {
            self.add_up(cells, now);
        }
        Outcome::granted(cells[2], reset)
    }

    fn refund(&self, cells: &mut [u64], now: Timestamp, charged: Timestamp, units: u64) {
        let number = self.precision.quotient(charged.as_micros());
        if let [newest, since, _, _, buckets @ ..] = cells
            && charged.as_micros() >= *since
            && let Some(age) = newest.checked_sub(number)
            && let Some(bucket) = usize::try_from(age).ok().and_then(|age| buckets.get_mut(age))
        {
            *bucket = bucket.saturating_sub(units);
            self.add_up(cells, now);
        }
    }

    fn expires(&self, cells: &[u64]) -> Timestamp {
        let newest = match cells {
            [newest, since, ..] if *since > 0 => Some(*newest),
            _ => None,
        };
        Timestamp::from_micros(newest.map_or(0, |newest| self.leaves(newest)))
    }

    fn outcome(&self, cells: &[u64], now: Timestamp, needed: u64) -> Outcome {
        self.outcome_of(buckets(cells), self.used(cells, now), now, needed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn at(secs: u64) -> Timestamp {
        Timestamp::from_secs(1_750_000_020 + secs)
    }

    #[test]
    fn a_bucket_of_no_time_never_leaves() {
        let limit: Limit = "10/minute:sliding-window:precision=20s".parse().unwrap();
        let limit = SlidingWindow::new(limit, Period::from_millis(20_000).unwrap());
        let mut state = vec![0; limit.cells()];
        limit.charge(&mut state, at(5), 10);
        (state[0], state[3]) = (MAX_UNITS, 0);
        assert_eq!(limit.available(&state, at(99_999)), 0);
        assert_eq!(limit.expires(&state).as_micros(), u64::MAX);
    }

    #[test]
    fn buckets_leave_one_by_one() {
        let limit: Limit = "10/minute:sliding-window:precision=20s".parse().unwrap();
        let limit = SlidingWindow::new(limit, Period::from_millis(20_000).unwrap());
        let mut state = vec![0; limit.cells()];
        limit.charge(&mut state, at(5), 4);
        limit.charge(&mut state, at(25), 6);
        assert_eq!(limit.outcome(&state, at(30), 1), Outcome::denied(10, 70_000_000, 50_000_000));
        assert_eq!(limit.outcome(&state, at(30), 5), Outcome::denied(10, 70_000_000, 70_000_000));
        assert_eq!(limit.available(&state, at(79)), 0);
        assert_eq!(limit.available(&state, at(80)), 4);
        limit.charge(&mut state, at(80), 4);
        assert_eq!(limit.available(&state, at(99)), 0);
        assert_eq!(limit.available(&state, at(100)), 6);
        limit.refund(&mut state, at(81), at(80), 3);
        assert_eq!(limit.available(&state, at(100)), 9);
        assert_eq!(limit.expires(&state), at(160));
    }

    proptest! {
        /// Checks that no span of one period grants more than max, and that the wait is exact.
        #[test]
        fn never_more_than_max_in_any_period(
            max in 1..20_u64, period in 1..50_u64, precision in 1..60_u64,
            steps in prop::collection::vec((0..40_u64, 1..5_u64), 1..80),
        ) {
            let text = format!("{max}/{period}ms:sliding-window:precision={precision}ms");
            let limit: Limit = text.parse().unwrap();
            let precision = Period::from_millis(precision.min(period)).unwrap();
            let limit = SlidingWindow::new(limit, precision);
            let (mut state, mut now) = (vec![0; limit.cells()], at(0).as_micros());
            let mut admitted: Vec<(u64, u64)> = Vec::new();
            for (advance, cost) in steps {
                now += advance * 313;
                let time = Timestamp::from_micros(now);
                let available = limit.available(&state, time);
                let outcome = limit.outcome(&state, time, cost);
                if cost <= available {
                    limit.charge(&mut state, time, cost);
                    admitted.push((now, cost));
                } else if cost <= max {
                    let wait = outcome.wait_micros().unwrap();
                    let after = |wait| limit.available(&state, Timestamp::from_micros(now + wait));
                    prop_assert!(after(wait) >= cost && after(wait - 1) < cost, "{outcome:?}");
                }
                let in_period = admitted.iter().filter(|(at, _)| at + limit.period > now);
                prop_assert!(in_period.map(|(_, units)| units).sum::<u64>() <= max);
            }
        }
    }
}
