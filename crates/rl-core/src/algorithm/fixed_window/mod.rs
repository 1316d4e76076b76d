//! Fixed window: counts the units used in a window, and starts again from 0 when the window ends.
//!
//! * **Guarantee**: at most `max` units in each window. Across the edge of two windows up to 2 ×
//!   `max` units may be granted within one period; the sliding algorithms do not have this edge.
//! * **Invariant**: `used` is the number of units charged since `since`. A request of cost `c` is
//!   allowed if and only if `used + c <= max`.
//! * **Windows** are half-open. With [`Anchor::FirstRequest`] a window begins with
//!   the first request that is charged and ends one period later. With
//!   [`Anchor::Clock`] it is the multiple of the period that contains the time, in UTC; weeks begin
//!   on Monday, months are calendar months.
//! * **Refunds** lower the count if the units were charged in the same window, and it has not been
//!   reset or lost since. The state holds the time of its first charge, even if the window began
//!   earlier.
//! * **Rounding**: none; all times are whole microseconds.
//! * **State**: two integers.
//!
//! `store/redis/scripts/algorithms/fixed_window.lua` is the same function in Lua; change both.
//!
//! # Packed form
//!
//! This file decides one window. Most policies consist of fixed windows only, so the other files of
//! this folder decide up to six of them together: the limits are compiled once into arrays
//! ([`CompiledWindows`]), and the counts stand side by side in three machine words
//! ([`PackedStates`]). One comparison of times and one of counts then decides a request under six
//! limits, in about 35 ns, and the states of a subject take 60 bytes. A property test in
//! `decide.rs` checks that the packed form decides as this file does.
//!
//! ```text
//! PackedStates          lane 0     lane 1     lane 2     lane 3     lane 4     lane 5
//!   numbers    6 × u32  [ used   ][ used   ][ used   ][ used   ][ used   ][ used   ]
//!   times_low  6 × u32  [ since: lower 32 of 48 bits, in µs after the base of the store ]
//!   times_high 6 × u16  [ since: upper 16 of 48 bits ]
//!
//! Lanes: the numbers as three u64, lane 0 in the lower half
//!              63 ........ 32   31 ......... 0
//!   word 0     [ 0 | lane 1 ]   [ 0 | lane 0 ]     Numbers stay below 2^31, so the top bit of each
//!   word 1     [ 0 | lane 3 ]   [ 0 | lane 2 ]     lane is free: after adding `units + bias`, it is
//!   word 2     [ 0 | lane 5 ]   [ 0 | lane 4 ]     set exactly in the lanes that exceed their max.
//! ```

mod compiled;
mod decide;
mod lanes;

pub(crate) use compiled::CompiledWindows;
pub(crate) use decide::{
    DecidedWindows, FastWindowsDecision, NO_LANE, are_all_closed, first_to_end, try_decide_fast,
    try_judge,
};
pub(crate) use lanes::{LANES, PackedStates, PackedTime};

use super::divisor::Divisor;
use super::{Counting, set_cells, used_cells};
use crate::model::{Anchor, Limit, MAX_UNITS, Outcome, Period};
use crate::time::{Timestamp, calendar_month};

/// A fixed window limit. Its cells are the time of the first charge in the window, and the units
/// used in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FixedWindow {
    max: u64,
    period: Divisor,
    alignment: Alignment,
}

/// The window that is open at a given time. All fields are 0 if no window is open.
#[derive(Clone, Copy, Debug, Default)]
struct Window {
    since: u64,
    used: u64,
    end: u64,
}

impl FixedWindow {
    pub(super) fn new(limit: Limit, anchor: Anchor) -> Self {
        let period = Divisor::new(limit.period().as_micros());
        Self { max: limit.max(), period, alignment: Alignment::new(limit.period(), anchor) }
    }

    /// Returns the window that is open at `now`.
    fn window(self, cells: &[u64], now: Timestamp) -> Window {
        let Some([since, used]) = used_cells(cells) else { return Window::default() };
        let end = self.end(since);
        if now.as_micros() < end { Window { since, used, end } } else { Window::default() }
    }

    /// Returns the end of the window whose first charge was at `since`.
    fn end(self, since: u64) -> u64 {
        since.saturating_add(self.alignment.open_for(self.period, since))
    }
}

impl Counting for FixedWindow {
    #[inline]
    fn available(&self, cells: &[u64], now: Timestamp) -> u64 {
        self.max.saturating_sub(self.window(cells, now).used)
    }

    #[inline]
    fn charge(&self, cells: &mut [u64], now: Timestamp, units: u64) -> Outcome {
        let mut window = self.window(cells, now);
        if window.end == 0 {
            (window.since, window.end) = (now.as_micros(), self.end(now.as_micros()));
        }
        let used = window.used.saturating_add(units).min(MAX_UNITS);
        set_cells(cells, [window.since, used]);
        Outcome::granted(used, window.end - now.as_micros())
    }

    fn refund(&self, cells: &mut [u64], _: Timestamp, charged_at: Timestamp, units: u64) {
        let Some([since, used]) = used_cells(cells) else { return };
        // A charge before `since` belongs to an earlier window, or to a state that was reset or
        // lost.
        if (since..self.end(since)).contains(&charged_at.as_micros()) {
            set_cells(cells, [since, used.saturating_sub(units)]);
        }
    }

    fn expires(&self, cells: &[u64]) -> Timestamp {
        Timestamp::from_micros(used_cells(cells).map_or(0, |[since, _]| self.end(since)))
    }

    fn outcome(&self, cells: &[u64], now: Timestamp, required: u64) -> Outcome {
        let window = self.window(cells, now);
        let reset = window.end.saturating_sub(now.as_micros());
        Outcome::of_window(self.max, window.used, reset, required)
    }
}

/// The points in time at which fixed windows begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Alignment {
    /// A window begins with its first charge.
    FirstCharge,
    /// Windows begin at multiples of the period, counted from `shift` µs before the epoch.
    Multiples { shift: u64 },
    /// Windows begin `offset` µs after the beginning of each calendar month.
    CalendarMonth { offset: u64 },
}

/// The time from the beginning of a week to the epoch. 1970-01-01 was a Thursday, so its week began
/// three days earlier.
const MONDAY_BEFORE_EPOCH: u64 = 3 * Period::DAY.as_micros();

impl Alignment {
    /// Returns the alignment of windows of `period` that begin at `anchor`.
    pub(crate) fn new(period: Period, anchor: Anchor) -> Self {
        let offset = match anchor {
            Anchor::FirstRequest => return Self::FirstCharge,
            Anchor::Clock => 0,
            Anchor::ClockOffset(offset) => offset.as_micros(),
        };
        if period == Period::MONTH {
            return Self::CalendarMonth { offset };
        }
        let period = period.as_micros();
        let is_whole_weeks = period.is_multiple_of(Period::WEEK.as_micros());
        let shift = if is_whole_weeks { MONDAY_BEFORE_EPOCH } else { 0 };
        Self::Multiples { shift: (shift + period - offset) % period }
    }

    /// Returns the constant `alignment` of `clock_window.lua`.
    #[cfg(feature = "redis")]
    pub(crate) const fn constant(self) -> u64 {
        match self {
            Self::FirstCharge => 0,
            Self::Multiples { shift } => shift,
            Self::CalendarMonth { offset } => offset,
        }
    }

    /// Returns the time in µs for which a window stays open after its first charge at
    /// `first_charge` µs since the epoch.
    const fn open_for(self, period: Divisor, first_charge: u64) -> u64 {
        match self {
            Self::FirstCharge => period.get(),
            Self::Multiples { shift } => period.get() - period.remainder(first_charge + shift),
            Self::CalendarMonth { offset } => open_for_rest_of_month(first_charge, offset),
        }
    }
}

/// Returns the time from `first_charge` to the end of its window. Windows begin `offset` after the
/// beginning of each calendar month. Not inlined, because it takes a hundred instructions.
#[inline(never)]
const fn open_for_rest_of_month(first_charge: u64, offset: u64) -> u64 {
    match first_charge.checked_sub(offset) {
        Some(time) => {
            let (begin, length) = calendar_month(time);
            length - (time - begin)
        }
        // `first_charge` is in the window that began in December 1969.
        None => offset - first_charge,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Period;
    use proptest::prelude::*;

    const fn secs(secs: u64) -> Timestamp {
        Timestamp::from_secs(secs)
    }

    fn window(max: u64, period: Period, anchor: Anchor) -> FixedWindow {
        FixedWindow::new(Limit::new(max, period).unwrap(), anchor)
    }

    fn charged(window: FixedWindow, now: Timestamp, units: u64) -> [u64; 2] {
        let mut state = [0; 2];
        window.charge(&mut state, now, units);
        state
    }

    #[test]
    #[rustfmt::skip]
    fn windows_on_the_clock() {
        let fifteen = Period::from_millis(900_000).unwrap();
        let fortnight = Period::from_millis(2 * 604_800_000).unwrap();
        let cases = [
            // period        | now         | window from | window to              remark
            (Period::MINUTE,  1_769_903_998, 1_769_903_940, 1_769_904_000), // 2026-01-31T23:59:58Z
            (Period::DAY,     1_769_903_998, 1_769_817_600, 1_769_904_000),
            (Period::WEEK,    1_769_903_998, 1_769_385_600, 1_769_990_400), // Mon 26 Jan to Mon 2 Feb
            (Period::MONTH,   1_769_903_998, 1_767_225_600, 1_769_904_000),
            (Period::MONTH,   1_769_904_000, 1_769_904_000, 1_772_323_200), // February 2026: 28 days
            (Period::MONTH,   1_835_438_400, 1_832_976_000, 1_835_481_600), // February 2028: 29 days
            (Period::MONTH,   4_107_542_399, 4_105_123_200, 4_107_542_400), // February 2100: 28 days
            (Period::MONTH,   951_868_799,   949_363_200,   951_868_800),   // 2000-02-29T23:59:59Z
            (fifteen,         1_769_903_998, 1_769_903_100, 1_769_904_000),
            (fortnight,       1_769_903_998, 1_769_385_600, 1_770_595_200),
        ];
        for (period, now, begins, ends) in cases {
            let window = window(1, period, Anchor::Clock);
            for time in [now, begins, ends - 1] {
                let end = window.end(secs(time).as_micros());
                assert_eq!(end, secs(ends).as_micros(), "{period} at {time}");
            }
            let before = secs(begins).as_micros() - 1;
            assert_eq!(window.end(before), secs(begins).as_micros(), "{period} before {begins}");
        }
    }

    #[test]
    fn windows_on_the_clock_begin_later_by_their_offset() {
        let hours = |hours: u64| Period::from_millis(hours * 3_600_000).unwrap();
        let cases = [
            // period, offset in hours, now, window from and to
            (Period::DAY, 16, 1_769_903_998, 1_769_875_200, 1_769_961_600), // 16:00 UTC
            (Period::DAY, 1, 1_769_903_998, 1_769_821_200, 1_769_907_600),
            (Period::WEEK, 24, 1_769_903_998, 1_769_472_000, 1_770_076_800), // Tue to Tue
            (Period::MONTH, 14 * 24, 1_769_903_998, 1_768_435_200, 1_771_113_600), // 15 Jan
            (Period::MONTH, 27 * 24, 1_772_323_199, 1_772_236_800, 1_774_656_000), // 28 Feb to 28 Mar
        ];
        for (period, offset, now, begins, ends) in cases {
            let window = window(1, period, Anchor::ClockOffset(hours(offset)));
            for time in [now, begins, ends - 1] {
                let end = window.end(secs(time).as_micros());
                assert_eq!(end, secs(ends).as_micros(), "{period} at {time}");
            }
            assert_eq!(window.end(secs(begins).as_micros() - 1), secs(begins).as_micros());
            let first = window.end(0);
            assert!(first <= period.as_micros(), "the first window: {period}");
        }
    }

    #[test]
    fn a_window_is_half_open() {
        let window = window(1, Period::SECOND, Anchor::FirstRequest);
        let state = charged(window, secs(10), 1);
        let last = Timestamp::from_micros(10_999_999);
        assert_eq!(window.available(&state, last), 0);
        assert_eq!(window.outcome(&state, last, 1), Outcome::denied(1, 1, 1));
        assert_eq!(window.available(&state, secs(11)), 1);
        assert_eq!(window.outcome(&state, secs(11), 1), Outcome::granted(0, 0));
    }

    #[test]
    fn a_refund_reaches_only_the_window_that_was_charged() {
        let window = window(5, Period::SECOND, Anchor::FirstRequest);
        let used = |charged_at, units| {
            let mut state = charged(window, secs(10), 3);
            window.refund(&mut state, charged_at, charged_at, units);
            state[1]
        };
        assert_eq!(used(secs(10), 2), 1);
        assert_eq!(used(secs(10), 9), 0, "never below zero");
        assert_eq!(used(secs(9), 2), 3, "charged in an earlier window");
        assert_eq!(used(secs(11), 2), 3, "charged in a later window");
    }

    #[test]
    fn the_longest_period_and_the_largest_limit_do_not_overflow() {
        let window = window(MAX_UNITS, Period::LONGEST, Anchor::FirstRequest);
        let now = secs(1_800_000_000);
        let mut full = charged(window, now, MAX_UNITS);
        let before = full;
        window.charge(&mut full, now, u64::MAX);
        assert_eq!(full, before);
        assert_eq!(window.available(&full, now), 0);
        assert!(window.expires(&full).as_micros() < 1 << 53);
    }

    proptest! {
        #[test]
        fn a_window_ends_after_its_first_charge_and_within_a_period(
            now in 0..4_102_444_800_000_000_u64, millis in 2..5_000_000_000_u64, on_clock: bool,
            offset in 0..5_000_000_000_u64,
        ) {
            let anchor = match Period::from_millis(offset % millis) {
                _ if !on_clock => Anchor::FirstRequest,
                Ok(offset) => Anchor::ClockOffset(offset),
                Err(_) => Anchor::Clock,
            };
            let window = window(1, Period::from_millis(millis).unwrap(), anchor);
            let end = window.end(now);
            prop_assert!(now < end && end - now <= window.period.get());
            prop_assert!(!on_clock || window.end(end - 1) == end, "one window");
            let next = window.end(end) - end;
            prop_assert_eq!(next, window.period.get(), "windows meet without a gap");
        }
    }
}
