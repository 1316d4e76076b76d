//! Sliding window: counts in buckets of `precision` on the clock, which expire one by one as a window of
//! one period, ending now, slides over them.
//!
//! * **Guarantee**: at most `max` units in *every* span of one period, and at least the units that an
//!   exact log over period + precision would grant. A bucket counts until its last possible unit has
//!   expired.
//! * **Invariant**: bucket `i` holds what was charged in [i × precision, (i + 1) × precision), and
//!   counts while now < (i + 1) × precision + period. A request of cost `c` is allowed if and only if
//!   the sum of the buckets that count + `c` <= max.
//! * **Rounding**: none.
//! * **Refunds** lower the bucket in which the units were charged, unless the state is younger than the
//!   charge.
//! * **State**: 2 + ⌈period / precision⌉ + 1 integers.
//!
//! `store/redis/scripts/algorithms/sliding_window.lua` is the same function in Lua; change both.

use super::State;
use super::counting::Counting;
use super::state::until;
use crate::model::{Limit, MAX_UNITS, Outcome, Period};
use crate::time::Timestamp;

/// Cells before the buckets.
const HEAD: usize = 2;

/// A sliding window. Cells: the number of the newest bucket, the time of the first charge since the
/// state was empty, then the buckets, newest first.
#[derive(Clone, Copy, Debug)]
pub(super) struct SlidingWindow {
    max: u64,
    period: u64,
    precision: u64,
}

impl SlidingWindow {
    pub(super) const fn new(limit: Limit, precision: Period) -> Self {
        let (period, precision) = (limit.period().as_micros(), precision.as_micros());
        Self { max: limit.max(), period, precision }
    }

    /// Returns the number of cells.
    pub(super) const fn cells(self) -> usize {
        HEAD + self.size()
    }

    /// Returns the most buckets that count at the same time.
    const fn size(self) -> usize {
        (self.period.div_ceil(self.precision) + 1) as usize
    }

    /// Returns the time at which the bucket of this number expires. It saturates, because a damaged state
    /// may contain any number.
    const fn leaves(self, number: u64) -> u64 {
        number.saturating_add(1).saturating_mul(self.precision).saturating_add(self.period)
    }

    /// Returns the buckets that count at `now`, newest first: number and units.
    fn counting(self, state: &State, now: Timestamp) -> impl Iterator<Item = (u64, u64)> + '_ {
        let (newest, buckets) = match state.many() {
            [newest, _, buckets @ ..] => (*newest, buckets),
            _ => (0, &[][..]),
        };
        let numbered = buckets
            .iter()
            .enumerate()
            .map_while(move |(age, units)| Some((newest.checked_sub(age as u64)?, *units)));
        numbered.take_while(move |(number, _)| now.as_micros() < self.leaves(*number))
    }

    fn used(self, state: &State, now: Timestamp) -> u64 {
        self.counting(state, now).fold(0, |sum, (_, units)| sum.saturating_add(units))
    }
}

impl Counting for SlidingWindow {
    fn available(&self, state: &State, now: Timestamp) -> u64 {
        self.max.saturating_sub(self.used(state, now))
    }

    fn charge(&self, state: &mut State, now: Timestamp, units: u64) {
        let number = now.as_micros() / self.precision;
        let cells = state.many_mut(self.cells());
        let age = number.saturating_sub(cells[0]).min(self.size() as u64) as usize;
        if cells[1] == 0 {
            cells[1] = now.as_micros();
        }
        let buckets = &mut cells[HEAD..];
        buckets.rotate_right(age % buckets.len());
        buckets[..age].fill(0);
        buckets[0] = buckets[0].saturating_add(units).min(MAX_UNITS);
        cells[0] = number;
    }

    fn refund(&self, state: &mut State, _: Timestamp, charged: Timestamp, units: u64) {
        let number = charged.as_micros() / self.precision;
        let cells = state.many_mut(self.cells());
        if charged.as_micros() < cells[1] {
            return;
        }
        let bucket = cells[0].checked_sub(number).and_then(|age| usize::try_from(age).ok());
        if let Some(bucket) = bucket.and_then(|age| cells[HEAD..].get_mut(age)) {
            *bucket = bucket.saturating_sub(units);
        }
    }

    fn expires(&self, state: &State) -> Timestamp {
        let newest = match state.many() {
            [newest, since, ..] if *since > 0 => Some(*newest),
            _ => None,
        };
        Timestamp::from_micros(newest.map_or(0, |newest| self.leaves(newest)))
    }

    fn outcome(&self, state: &State, now: Timestamp, needed: u64) -> Outcome {
        let used = self.used(state, now);
        let newest = self.counting(state, now).find(|(_, units)| *units > 0);
        let reset = newest.map_or(0, |(number, _)| until(self.leaves(number), now));
        if needed > self.max {
            return Outcome::never(used, reset);
        }
        if needed <= self.max.saturating_sub(used) {
            return Outcome::granted(used, reset);
        }
        // Sum the newest buckets until the request no longer fits beside them. The bucket that
        // exceeds must expire first.
        let room = self.max - needed;
        let mut kept = 0_u64;
        let must_leave = self.counting(state, now).find(|(_, units)| {
            kept = kept.saturating_add(*units);
            kept > room
        });
        let wait = must_leave.map_or(0, |(number, _)| until(self.leaves(number), now));
        Outcome::denied(used, reset, wait)
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
        let mut state = State::empty();
        limit.charge(&mut state, at(5), 10);
        state.many_mut(limit.cells())[0] = MAX_UNITS;
        assert_eq!(limit.available(&state, at(99_999)), 0);
        assert_eq!(limit.expires(&state).as_micros(), u64::MAX);
    }

    #[test]
    fn buckets_leave_one_by_one() {
        let limit: Limit = "10/minute:sliding-window:precision=20s".parse().unwrap();
        let limit = SlidingWindow::new(limit, Period::from_millis(20_000).unwrap());
        let mut state = State::empty();
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
        /// Never more than max in any span of one period; the wait is exact.
        #[test]
        fn never_more_than_max_in_any_period(
            max in 1..20_u64, period in 1..50_u64, precision in 1..60_u64,
            steps in prop::collection::vec((0..40_u64, 1..5_u64), 1..80),
        ) {
            let text = format!("{max}/{period}ms:sliding-window:precision={precision}ms");
            let limit: Limit = text.parse().unwrap();
            let precision = Period::from_millis(precision.min(period)).unwrap();
            let limit = SlidingWindow::new(limit, precision);
            let (mut state, mut now) = (State::empty(), at(0).as_micros());
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
