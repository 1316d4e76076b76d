//! Sliding log: stores the time of every unit for one period.
//!
//! * **Guarantee**: exact. At most `max` units are granted in *every* span of one period. A request
//!   is denied only if it would break this bound: a unit charged at *x* counts until *x* + period,
//!   not longer.
//! * **Invariant**: a request of cost `c` is allowed if and only if the units charged in
//!   (now − period, now] + `c` <= max.
//! * **Entries** hold a time and the number of units charged at that time. Units of one microsecond
//!   share an entry. The entries form a ring, with sums of their units. However long the log is, a
//!   few sums and entries are enough to count the units that expire, and to find the entry that
//!   must expire before a request is allowed.
//! * **Charges beyond the limit** occur for units that were used before they are charged, and after
//!   `max` was lowered. They add no entry to a full log. Their units are added to the newest entry,
//!   whose time becomes now. The units of that entry then count longer, never shorter.
//! * **Refunds** remove units from the entry of the time at which they were charged, if it still
//!   exists. No other entry moves.
//! * **Rounding**: none.
//! * **State**: two integers for each entry. In a long log, an integer and a byte for each entry,
//!   and a sum for every 16 entries.
//!
//! # Concurrency
//!
//! A concurrency limit is a sliding log whose period is the lease, and whose units are refunded
//! when the work is done. A permit is a charge, and its release is a refund. If the holder dies,
//! the lease ends when the units expire. A renewal is a refund and a charge in one step. The
//! reported wait is the time until enough leases have ended; usually a permit is released sooner.
//!
//! The log of one record for each request is described in ClassDojo, *Better rate limiting with
//! Redis sorted sets* (2015), and Figma, *An alternative approach to rate limiting* (2017). Leases
//! are described in C. G. Gray and D. R. Cheriton, *Leases: an efficient fault-tolerant mechanism
//! for distributed file cache consistency*, SOSP 1989.
//!
//! `store/redis/scripts/algorithms/sliding_log.lua` is the same function in Lua; change both.

use super::log::Log;
use super::until;
use crate::model::{Limit, MAX_UNITS, Outcome};
use crate::time::Timestamp;

/// A sliding log or a concurrency limit.
#[derive(Clone, Copy, Debug)]
pub(super) struct SlidingLog {
    max: u64,
    period: u64,
}

/// The summary of a log, from which an outcome is computed. A script on Redis returns it in place
/// of the log. All fields are 0 if no unit counts.
#[derive(Clone, Copy, Debug, Default)]
struct Standing {
    used: u64,
    /// The time at which the newest unit was charged.
    newest: u64,
    /// The time at which enough units have expired to allow a request that is denied now. It is 0
    /// if the request is allowed now, or never will be.
    passes_at: u64,
}

impl SlidingLog {
    pub(super) const fn new(limit: Limit) -> Self {
        Self { max: limit.max(), period: limit.period().as_micros() }
    }

    /// Returns the time from which units charged at `time` no longer count.
    const fn leaves(self, time: u64) -> u64 {
        time.saturating_add(self.period)
    }

    /// Returns the latest time of charge that has expired at `now`. Units that were charged then or
    /// earlier no longer count. `None` means that nothing can have expired, because less than a
    /// period has passed since the epoch.
    const fn left_until(self, now: Timestamp) -> Option<u64> {
        now.as_micros().checked_sub(self.period)
    }

    /// Returns the units that count at `now`.
    fn used(self, log: &Log, now: Timestamp) -> u64 {
        log.units_after(self.left_until(now))
    }

    /// Returns how many of the `units` charged at `charged` still count at `now`.
    pub(super) fn held(self, log: &Log, now: Timestamp, charged: Timestamp, units: u64) -> u64 {
        let charged = charged.as_micros();
        if self.leaves(charged) <= now.as_micros() {
            return 0;
        }
        log.find(charged).map_or(0, |(_, held)| held.min(units))
    }

    /// Renews the lease of the `units` charged at `charged`, as far as they still count. Their time
    /// of charge becomes `now`.
    pub(super) fn renew(self, log: &mut Log, now: Timestamp, charged: Timestamp, units: u64) {
        let held = self.held(log, now, charged, units);
        if held > 0 {
            self.refund(log, now, charged, held);
            self.charge(log, now, held);
        }
    }

    /// Returns the units that can be granted at `now`.
    pub(super) fn available(self, log: &Log, now: Timestamp) -> u64 {
        self.max.saturating_sub(self.used(log, now))
    }

    /// Charges `units` at `now`, even if fewer are available. Returns the limit's status
    /// afterwards.
    pub(super) fn charge(self, log: &mut Log, now: Timestamp, units: u64) -> Outcome {
        log.drop_until(self.left_until(now));
        let units = units.min(MAX_UNITS - log.units());
        let time = now.as_micros();
        let (newest, count) = (log.newest(), log.len() as u64);
        if units > 0 {
            // An empty log gets an entry even if `max` is 0, because finished work is charged even
            // if nothing is allowed.
            if newest.is_none() || (newest < Some(time) && count < self.max) {
                log.push(time, units);
            } else {
                log.add(time, units);
            }
        }
        let newest = if units > 0 { time } else { newest.unwrap_or(0) };
        let used = log.units();
        Outcome::granted(used, if used == 0 { 0 } else { until(self.leaves(newest), now) })
    }

    /// Refunds the `units` that were charged at `charged`, as far as they still count at `now`.
    pub(super) fn refund(self, log: &mut Log, now: Timestamp, charged: Timestamp, units: u64) {
        log.drop_until(self.left_until(now));
        if let Some((place, held)) = log.find(charged.as_micros()) {
            log.lower(place, units.min(held));
        }
    }

    /// Returns the time from which the log equals that of an unused limit.
    pub(super) fn expires(self, log: &Log) -> Timestamp {
        Timestamp::from_micros(log.newest().map_or(0, |newest| self.leaves(newest)))
    }

    /// Returns the status of the limit at `now` for a request that requires `required` units.
    pub(super) fn outcome(self, log: &Log, now: Timestamp, required: u64) -> Outcome {
        let used = self.used(log, now);
        if used == 0 {
            return self.outcome_of(Standing::default(), now, required);
        }
        let newest = log.newest().unwrap_or(0);
        let passes_at = self.passes_at(log, now, used, required);
        self.outcome_of(Standing { used, newest, passes_at }, now, required)
    }

    /// Computes the outcome from the three integers that a script returns.
    #[cfg(feature = "redis")]
    pub(super) fn replied(self, cells: &[u64], now: Timestamp, needed: u64) -> Outcome {
        let [used, newest, passes_at] = cells.first_chunk().copied().unwrap_or_default();
        self.outcome_of(Standing { used, newest, passes_at }, now, needed)
    }

    fn outcome_of(self, standing: Standing, now: Timestamp, needed: u64) -> Outcome {
        let Standing { used, newest, passes_at } = standing;
        let reset = if used == 0 { 0 } else { until(self.leaves(newest), now) };
        if needed > self.max {
            Outcome::never(used, reset)
        } else if needed <= self.max.saturating_sub(used) {
            Outcome::granted(used, reset)
        } else {
            Outcome::denied(used, reset, until(passes_at, now))
        }
    }

    /// Returns the time at which enough of the `used` units have expired for `needed` units to be
    /// available. It is 0 if they are available now, or never will be.
    fn passes_at(self, log: &Log, now: Timestamp, used: u64, needed: u64) -> u64 {
        if needed > self.max || needed <= self.max.saturating_sub(used) {
            return 0;
        }
        let must_leave = used - (self.max - needed);
        let last = log.leaves_with(self.left_until(now), must_leave);
        last.map_or(0, |last| self.leaves(last))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn log(text: &str) -> SlidingLog {
        SlidingLog::new(text.parse().unwrap())
    }

    /// Returns the time `secs` seconds after 12:00.
    fn at(secs: u64) -> Timestamp {
        Timestamp::from_secs(1_749_988_800 + secs)
    }

    const SECOND: u64 = 1_000_000;

    fn entries(log: &Log) -> usize {
        log.len()
    }

    /// Five requests, at 12:33:35, 12:33:37, 12:34:14, 12:34:26 and 12:34:28, use up the limit.
    #[test]
    fn a_request_is_allowed_when_the_oldest_unit_expires() {
        let limit = log("5/minute:sliding-log");
        let mut state = Log::default();
        for time in [33 * 60 + 35, 33 * 60 + 37, 34 * 60 + 14, 34 * 60 + 26, 34 * 60 + 28] {
            assert!(limit.available(&state, at(time)) > 0);
            limit.charge(&mut state, at(time), 1);
        }
        let now = at(34 * 60 + 31);
        assert_eq!(limit.outcome(&state, now, 1), Outcome::denied(5, 57 * SECOND, 4 * SECOND));
        assert_eq!(limit.outcome(&state, now, 3), Outcome::denied(5, 57 * SECOND, 43 * SECOND));
        assert_eq!(limit.outcome(&state, now, 6), Outcome::never(5, 57 * SECOND));
        assert_eq!(limit.available(&state, at(34 * 60 + 34).plus_micros(SECOND - 1)), 0);
        assert_eq!(limit.available(&state, at(34 * 60 + 35)), 1);
        assert_eq!(limit.available(&state, at(34 * 60 + 40)), 2);
        limit.charge(&mut state, at(34 * 60 + 40), 1);
        assert_eq!(limit.outcome(&state, at(34 * 60 + 40), 0), Outcome::granted(4, 60 * SECOND));
        assert_eq!(limit.expires(&state), at(35 * 60 + 40));
    }

    #[test]
    fn units_of_one_microsecond_share_an_entry() {
        let limit = log("1000/second:sliding-log");
        let mut state = Log::default();
        for _ in 0..1_000 {
            limit.charge(&mut state, at(0), 1);
        }
        assert_eq!((limit.available(&state, at(0)), entries(&state)), (0, 1));
        assert_eq!(limit.available(&state, at(1)), 1_000);
    }

    /// A charge beyond the limit adds its units to the newest entry of the full log, not a new
    /// entry.
    #[test]
    fn a_full_log_that_is_charged_moves_its_newest_entry() {
        let limit = log("3/minute:sliding-log");
        let mut state = Log::default();
        for time in 0..10 {
            limit.charge(&mut state, at(time), 1);
        }
        assert_eq!(entries(&state), 3);
        assert_eq!(limit.outcome(&state, at(9), 1), Outcome::denied(10, 60 * SECOND, 60 * SECOND));
        // The units of 0 s and 1 s have expired. The other eight share an entry, which counts from
        // 9 s.
        assert_eq!(limit.outcome(&state, at(68), 1), Outcome::denied(8, SECOND, SECOND));
        assert_eq!(limit.available(&state, at(69)), 3);
    }

    #[test]
    fn a_limit_of_zero_reports_forced_charges() {
        let limit = log("0/minute:sliding-log");
        let mut state = Log::default();
        limit.charge(&mut state, at(0), 2);
        assert_eq!(limit.outcome(&state, at(1), 1), Outcome::never(2, 59 * SECOND));
    }

    #[test]
    fn units_beyond_what_can_be_counted_exactly_are_not_added_up() {
        let limit = log("9/minute:sliding-log");
        let mut state = Log::default();
        limit.charge(&mut state, at(0), MAX_UNITS - 5);
        limit.charge(&mut state, at(30), MAX_UNITS + 1);
        assert_eq!(limit.outcome(&state, at(30), 0), Outcome::granted(MAX_UNITS, 60 * SECOND));
        // The first entry has expired. Only 5 units of the second charge count, because the sum is
        // cut off at `MAX_UNITS`.
        limit.charge(&mut state, at(60), 100);
        assert_eq!(limit.outcome(&state, at(60), 0), Outcome::granted(105, 60 * SECOND));
        assert_eq!(limit.available(&state, at(90)), 0);
        assert_eq!(limit.available(&state, at(120)), 9);
    }

    #[test]
    fn a_permit_is_free_when_refunded_or_when_its_lease_ends() {
        let limit = log("2:concurrency:lease=30s");
        let mut state = Log::default();
        limit.charge(&mut state, at(0), 1);
        limit.charge(&mut state, at(10), 1);
        assert_eq!(limit.outcome(&state, at(11), 1), Outcome::denied(2, 29 * SECOND, 19 * SECOND));

        limit.renew(&mut state, at(20), at(0), 1);
        assert_eq!(limit.held(&state, at(20), at(0), 1), 0, "it counts from its renewal on");
        assert_eq!(limit.held(&state, at(49), at(20), 5), 1);
        assert_eq!(limit.outcome(&state, at(20), 1), Outcome::denied(2, 30 * SECOND, 20 * SECOND));

        limit.refund(&mut state, at(25), at(10), 1);
        limit.refund(&mut state, at(25), at(10), 1);
        assert_eq!(limit.available(&state, at(25)), 1, "once, however often it is refunded");
        limit.renew(&mut state, at(50), at(20), 1);
        assert_eq!(limit.available(&state, at(50)), 2, "a lease that has ended is not renewed");
    }

    proptest! {
        /// For any charges and refunds, a log decides like a plain list of all units, and the wait
        /// is exact.
        #[test]
        fn a_log_decides_as_a_list_of_all_units(
            max in 1..40_u64, period in 1..50_u64,
            steps in prop::collection::vec((0..9_000_u64, 0..9_u64, prop::option::of(0..12_usize)), 1..120),
        ) {
            let limit = log(&format!("{max}/{period}ms:sliding-log"));
            let (mut state, mut now) = (Log::default(), at(0));
            let mut units: Vec<Timestamp> = Vec::new();
            for (advance, cost, back) in steps {
                now = now.plus_micros(advance);
                if let Some(charged) = back.and_then(|back| units.iter().rev().nth(back).copied()) {
                    limit.refund(&mut state, now, charged, cost);
                    let mut left = cost;
                    units.retain(|time| *time != charged || left == 0 || { left -= 1; false });
                }
                let in_use = |now: Timestamp| {
                    units.iter().filter(|time| now.micros_since(**time) < limit.period).count() as u64
                };
                let used = in_use(now);
                prop_assert_eq!(limit.available(&state, now), max - used);
                let outcome = limit.outcome(&state, now, cost);
                if cost <= max - used {
                    let newest = units.iter().filter(|_| used > 0).max().copied().unwrap_or(now);
                    let reset = if used == 0 { 0 } else { newest.plus_micros(limit.period).micros_since(now) };
                    prop_assert_eq!(outcome, Outcome::granted(used, reset));
                    limit.charge(&mut state, now, cost);
                    units.extend((0..cost).map(|_| now));
                } else if cost <= max {
                    let wait = outcome.wait_micros().unwrap();
                    prop_assert!(in_use(now.plus_micros(wait)) + cost <= max);
                    prop_assert!(in_use(now.plus_micros(wait - 1)) + cost > max);
                }
                prop_assert!(entries(&state) <= max as usize);
            }
        }

        /// For any charges beyond the limit, renewals and refunds, a log counts at least as many
        /// units as a list does, and has no more entries than the limit allows.
        #[test]
        fn a_log_never_counts_less_than_a_list(
            max in 0..12_u64,
            steps in prop::collection::vec((0..2_000_u64, 1..4_u64, prop::option::of(0..12_usize)), 1..120),
        ) {
            let limit = log(&format!("{max}:concurrency:lease=10ms"));
            let (mut state, mut now) = (Log::default(), at(0));
            let mut units: Vec<Timestamp> = Vec::new();
            for (advance, cost, back) in steps {
                now = now.plus_micros(advance);
                match back.and_then(|back| units.iter().rev().nth(back).copied()) {
                    Some(charged) => {
                        let held = limit.held(&state, now, charged, 1);
                        limit.renew(&mut state, now, charged, 1);
                        let renewed = units.iter_mut().rev().find(|time| **time == charged);
                        if let Some(unit) = renewed.filter(|_| held > 0) {
                            *unit = now;
                        }
                        units.sort();
                    }
                    None => {
                        limit.charge(&mut state, now, cost);
                        units.extend((0..cost).map(|_| now));
                    }
                }
                let counting = units.iter().filter(|time| now.micros_since(**time) < limit.period);
                prop_assert!(limit.used(&state, now) >= counting.count() as u64);
                prop_assert!(entries(&state) <= max.max(1) as usize);
            }
        }
    }
}
