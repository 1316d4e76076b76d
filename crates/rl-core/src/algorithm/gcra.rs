//! Generic cell rate algorithm: allows one unit every period / max, and at most `burst` units at
//! once after a pause.
//!
//! * **Guarantee**: at most burst + rate × *t* units are granted in every span of time *t*.
//! * **Invariant**: the *theoretical arrival time* (TAT) is the time at which the limit would be
//!   idle again. Let T be the emission interval, period / max. A request of cost `c` is allowed if
//!   and only if max(TAT, now) + `c` × T − burst × T <= now. The TAT then moves on by `c` × T.
//! * **Rounding**: none. T may be fractional, so the TAT is stored as whole microseconds and a
//!   fraction in units of 1 / max µs. Reported waits are rounded up to whole microseconds.
//! * **Refunds** move the TAT back by `c` × T, but never before now. They apply only if the limit
//!   has been in use without a pause since the charge. During that time no accrued unit was lost,
//!   so the whole charge still counts. Once the limit has been idle, no earlier charge counts, and
//!   nothing is refunded.
//! * **Why a refund never grants more**: let the limit have been in use without a pause since *s*.
//!   At *s*, the TAT was *s*. Since then, only charges have moved the TAT on, and only refunds of
//!   these charges have moved it back. At every time, TAT >= *s* + T × (charged − refunded)
//!   therefore holds. A request is allowed only if TAT − now <= burst × T afterwards, so charged −
//!   refunded <= burst + rate × (now − *s*). The same argument applies to every span of time *t*,
//!   from the TAT at its beginning: the units granted in the span, less those refunded in it, are
//!   at most burst + rate × *t*.
//! * **State**: three integers: the TAT, its fraction, and the time since which the limit has been
//!   in use. When `max` changes, the time until the limit is idle stays the same, so the used share
//!   of the burst stays the same.
//!
//! The algorithm is that of the ATM Forum's Traffic Management Specification 4.0, in the form of
//! *virtual scheduling*.
//!
//! `store/redis/scripts/algorithms/gcra.lua` is the same function in Lua; change both.

use super::divisor::Divisor;
use super::{Counting, set_cells, used_cells};
use crate::model::{Limit, MAX_UNITS, Outcome};
use crate::time::Timestamp;

/// A GCRA limit. Its cells are the TAT in whole microseconds, the fraction of the TAT in units of
/// 1 / max µs, and the time since which the limit has been in use without a pause.
#[derive(Clone, Copy, Debug)]
pub(super) struct Gcra {
    max: u64,
    burst: u64,
    by_max: Divisor,
    by_period: Divisor,
    /// The emission interval.
    interval: Exact,
    /// The largest number of units for which the arithmetic is exact. If a charge or a refund has
    /// more units, only this number is charged or refunded.
    chargeable: u64,
}

/// A time or a duration in µs, with a fraction in units of 1 / max µs. The fraction is below `max`,
/// so the derived `Ord` is correct.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
struct Exact {
    micros: u64,
    fraction: u64,
}

impl Exact {
    const fn ceil(self) -> u64 {
        self.micros + (self.fraction > 0) as u64
    }
}

impl Gcra {
    pub(super) const fn new(limit: Limit) -> Self {
        let (max, period) = (limit.max(), limit.period().as_micros());
        let by_max = Divisor::new(max);
        let interval =
            Exact { micros: by_max.quotient(period), fraction: by_max.remainder(period) };
        let by_fraction = by_max.quotient(MAX_UNITS);
        let by_time = MAX_UNITS / 2 / (interval.micros + 1);
        let chargeable = if by_fraction < by_time { by_fraction } else { by_time };
        let by_period = Divisor::new(period);
        Self { max, burst: limit.capacity(), by_max, by_period, interval, chargeable }
    }

    /// Returns the time that `units` take: units × period / max.
    ///
    /// The whole microseconds and the fraction of the interval are multiplied separately, so that
    /// no product exceeds 2^53. The twin in Lua cannot represent larger numbers exactly.
    const fn time_of(self, units: u64) -> Exact {
        let fractions = units * self.interval.fraction;
        let carry = self.by_max.quotient(fractions);
        let micros = units * self.interval.micros + carry;
        Exact { micros, fraction: fractions - carry * self.by_max.get() }
    }

    /// Returns the TAT if it is after `now`.
    fn ahead(self, cells: &[u64], now: Timestamp) -> Option<Exact> {
        let [micros, fraction] = used_cells(cells)?;
        // The fraction may have been stored under a larger `max`, before the limit was lowered.
        let tat = Exact { micros, fraction: fraction.min(self.max.saturating_sub(1)) };
        (tat > Exact { micros: now.as_micros(), fraction: 0 }).then_some(tat)
    }

    /// Returns the units in use at `now`: the smallest number of units that take at least the time
    /// from `now` to the TAT.
    fn used(self, tat: Exact, now: Timestamp) -> u64 {
        let ahead = tat.micros - now.as_micros();
        let fractions = ahead.checked_mul(self.max).and_then(|all| all.checked_add(tat.fraction));
        if let Some(fractions) = fractions {
            return self.by_period.quotient_up(fractions);
        }
        let fractions = u128::from(ahead) * u128::from(self.max) + u128::from(tat.fraction);
        u64::try_from(fractions.div_ceil(u128::from(self.by_period.get()))).unwrap_or(u64::MAX)
    }
}

impl Counting for Gcra {
    #[inline]
    fn available(&self, cells: &[u64], now: Timestamp) -> u64 {
        if self.max == 0 {
            return 0;
        }
        let used = self.ahead(cells, now).map_or(0, |tat| self.used(tat, now));
        self.burst.saturating_sub(used)
    }

    #[inline]
    fn charge(&self, cells: &mut [u64], now: Timestamp, units: u64) -> Outcome {
        if self.max == 0 {
            return Outcome::granted(0, 0);
        }
        let idle = Exact { micros: now.as_micros(), fraction: 0 };
        let (from, since) = match (self.ahead(cells, now), used_cells(cells)) {
            (Some(tat), Some([_, _, since])) => (tat, since),
            _ => (idle, now.as_micros()),
        };
        let time = self.time_of(units.min(self.chargeable));
        let (mut micros, mut fraction) = (from.micros + time.micros, from.fraction + time.fraction);
        if fraction >= self.max {
            (micros, fraction) = (micros + 1, fraction - self.max);
        }
        let tat = Exact { micros: micros.min(MAX_UNITS), fraction };
        set_cells(cells, [tat.micros, tat.fraction, since]);
        if tat <= idle {
            return Outcome::granted(0, 0);
        }
        Outcome::granted(self.used(tat, now), tat.ceil() - now.as_micros())
    }

    fn refund(&self, cells: &mut [u64], now: Timestamp, charged: Timestamp, units: u64) {
        let (Some(tat), Some([_, _, since])) = (self.ahead(cells, now), used_cells(cells)) else {
            return;
        };
        // If `since` is later than the charge, the limit was idle in between. The charged units
        // have accrued again by then, so a refund would grant them twice.
        if self.max == 0 || charged.as_micros() < since {
            return;
        }
        let time = self.time_of(units.min(self.chargeable));
        let (borrow, fraction) = if tat.fraction < time.fraction {
            (1, tat.fraction + self.max - time.fraction)
        } else {
            (0, tat.fraction - time.fraction)
        };
        let micros = tat.micros.saturating_sub(time.micros + borrow);
        let idle = Exact { micros: now.as_micros(), fraction: 0 };
        let is_in_use = Exact { micros, fraction } > idle;
        set_cells(cells, if is_in_use { [micros, fraction, since] } else { [0; 3] });
    }

    fn expires(&self, cells: &[u64]) -> Timestamp {
        let tat =
            used_cells(cells).map_or(0, |[micros, fraction]| Exact { micros, fraction }.ceil());
        Timestamp::from_micros(tat)
    }

    fn outcome(&self, cells: &[u64], now: Timestamp, needed: u64) -> Outcome {
        let ahead = if self.max == 0 { None } else { self.ahead(cells, now) };
        let (used, reset) =
            ahead.map_or((0, 0), |tat| (self.used(tat, now), tat.ceil() - now.as_micros()));
        if needed > self.burst {
            return Outcome::never(used, reset);
        }
        let Some(tat) = ahead.filter(|_| needed > 0) else {
            return Outcome::granted(used, reset);
        };
        // The request is allowed as soon as the TAT is at most `rest` after the current time.
        let rest = self.time_of(self.burst - needed);
        let is_late = tat.fraction > rest.fraction;
        let passes_at = (tat.micros + u64::from(is_late)).saturating_sub(rest.micros);
        match passes_at.saturating_sub(now.as_micros()) {
            0 => Outcome::granted(used, reset),
            wait => Outcome::denied(used, reset, wait),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn gcra(text: &str) -> Gcra {
        Gcra::new(text.parse().unwrap())
    }

    fn at(millis: u64) -> Timestamp {
        Timestamp::from_micros(1_750_000_000_000_000 + millis * 1_000)
    }

    #[test]
    fn the_burst_is_exact_for_rates_that_are_not_whole() {
        // 7 per second: an interval of 142 857.142857… µs.
        let limit = gcra("7/second:gcra");
        let mut state = [0; 3];
        for _ in 0..7 {
            assert!(limit.available(&state, at(0)) > 0);
            limit.charge(&mut state, at(0), 1);
        }
        assert_eq!(limit.available(&state, at(0)), 0);
        assert_eq!(
            used_cells(&state),
            Some([at(1_000).as_micros(), 0]),
            "seven intervals are a second"
        );
        assert_eq!(limit.outcome(&state, at(0), 1), Outcome::denied(7, 1_000_000, 142_858));
    }

    #[test]
    fn rates_below_one_a_day_and_above_a_thousand_a_second_are_exact() {
        let slow = gcra("1/month:gcra");
        let mut state = [0; 3];
        slow.charge(&mut state, at(0), 1);
        assert_eq!(
            slow.outcome(&state, at(1), 1),
            Outcome::denied(1, 2_592_000_000_000 - 1_000, 2_592_000_000_000 - 1_000)
        );

        let fast = gcra("3000000/second:gcra:burst=1");
        let mut state = [0; 3];
        fast.charge(&mut state, at(0), 1);
        assert_eq!(fast.outcome(&state, at(0), 1), Outcome::denied(1, 1, 1));
        assert_eq!(fast.available(&state, Timestamp::from_micros(at(0).as_micros() + 1)), 1);
    }

    /// Fault: units were refunded although the limit had been idle since their charge, when all
    /// units had accrued again. The refund allowed the next burst twice.
    #[test]
    fn a_refund_after_the_limit_was_idle_has_no_effect() {
        let limit = gcra("10/second:gcra");
        let mut state = [0; 3];
        limit.charge(&mut state, at(0), 10);
        limit.charge(&mut state, at(5_000), 10);
        limit.refund(&mut state, at(5_000), at(0), 10);
        assert_eq!(limit.available(&state, at(5_000)), 0);
        limit.refund(&mut state, at(5_000), at(5_000), 4);
        assert_eq!(limit.available(&state, at(5_000)), 4);
        // Two units have accrued in 200 ms, and the refund adds one.
        limit.refund(&mut state, at(5_200), at(5_000), 1);
        assert_eq!(limit.available(&state, at(5_200)), 7);
        limit.refund(&mut state, at(5_200), at(5_000), 6);
        assert_eq!(limit.available(&state, at(5_200)), 10, "never above the burst");
    }

    #[test]
    fn a_refund_is_complete_while_the_limit_has_been_in_use() {
        let limit = gcra("1000/second:gcra");
        let mut state = [0; 3];
        limit.charge(&mut state, at(0), 1_000);
        limit.charge(&mut state, at(900), 900);
        // In 900 ms, 900 units have accrued, and all of them were charged again. The limit was
        // never idle, so a refund of the first charge returns every unit.
        assert_eq!(limit.available(&state, at(900)), 0);
        limit.refund(&mut state, at(900), at(0), 800);
        assert_eq!(limit.available(&state, at(900)), 800);
        // The limit was idle before 2.0 s, so a refund of an earlier charge returns nothing.
        limit.charge(&mut state, at(2_000), 500);
        limit.refund(&mut state, at(2_000), at(900), 900);
        assert_eq!(limit.available(&state, at(2_000)), 500);
    }

    proptest! {
        /// Checks that every span grants at most burst + rate × time, and that the wait is exact to
        /// the microsecond.
        #[test]
        fn never_more_than_burst_and_rate(
            max in 1..2_000_u64, millis in 1..100_000_u64, burst in 1..50_u64,
            steps in prop::collection::vec((0..2_000_000_u64, 1..60_u64), 1..60),
        ) {
            let limit = gcra(&format!("{max}/{millis}ms:gcra:burst={burst}"));
            let (mut state, mut now, mut taken) = ([0; 3], at(0).as_micros(), 0_u64);
            let start = now;
            for (advance, cost) in steps {
                now += advance;
                let time = Timestamp::from_micros(now);
                let outcome = limit.outcome(&state, time, cost);
                let available = limit.available(&state, time);
                prop_assert_eq!(cost <= available, outcome == Outcome::granted(limit.burst - available, limit.expires(&state).micros_since(time)));
                if cost <= available {
                    limit.charge(&mut state, time, cost);
                    taken += cost;
                } else if cost <= burst {
                    let wait = outcome.wait_micros().unwrap();
                    prop_assert!(limit.available(&state, Timestamp::from_micros(now + wait)) >= cost);
                    prop_assert!(limit.available(&state, Timestamp::from_micros(now + wait - 1)) < cost);
                }
                let ceiling = u128::from(burst) * u128::from(millis) * 1_000
                    + u128::from(now - start) * u128::from(max);
                prop_assert!(u128::from(taken) * u128::from(millis) * 1_000 <= ceiling);
            }
        }
    }
}
