//! Fixed window: counts what is used in a window, and forgets it all when the window ends.
//!
//! * **Guarantee**: at most `max` units in each window. Across the edge of two windows up to
//!   2 × `max` units may pass within one period; the sliding algorithms do not have this edge.
//! * **Invariant**: `used` is what was charged since `since`; a request of cost `c` passes if and
//!   only if `used + c <= max`.
//! * **Windows** are half-open. With [`Anchor::FirstRequest`] a window begins with
//!   the first request that is charged and ends one period later, whatever comes in between. With
//!   [`Anchor::Clock`] it is the multiple of the period that contains the time, in UTC; weeks begin
//!   on Monday, months are calendar months.
//! * **Refunds** lower the count if the window is the one that was charged, and has not been reset or
//!   lost since. The state holds the time of its first charge, even if the window began earlier.
//! * **Rounding**: none; all times are whole microseconds.
//! * **State**: two integers.
//!
//! `store/redis/scripts/algorithms/fixed_window.lua` is the same function in Lua; change both.

use super::{Counting, State};
use crate::decision::Outcome;
use crate::model::{Anchor, Grid, Limit, MAX_UNITS, Period};
use crate::time::{Timestamp, calendar_month};

/// A fixed window limit. Cells: the first charge in the window, units used.
#[derive(Clone, Copy, Debug)]
pub(super) struct FixedWindow {
    max: u64,
    period: Period,
    anchor: Anchor,
}

impl FixedWindow {
    pub(super) const fn new(limit: Limit, anchor: Anchor) -> Self {
        Self { max: limit.max(), period: limit.period(), anchor }
    }

    /// The window that `now` is in, as the cells say.
    #[inline]
    fn window(self, [since, used]: [u64; 2], now: Timestamp) -> Window {
        if since | used == 0 {
            return Window::default();
        }
        let end = self.end(since);
        if now < end { Window { since, used, end: end.as_micros() } } else { Window::default() }
    }

    const fn left(self, window: Window) -> u64 {
        self.max.saturating_sub(window.used)
    }

    /// The window once `units` are taken at `now`: a new one, if none is open.
    #[inline]
    fn charged(self, window: Window, now: Timestamp, units: u64) -> Window {
        let Window { since, used, end } = if window.end == 0 { self.open(now) } else { window };
        Window { since, used: used.saturating_add(units).min(MAX_UNITS), end }
    }

    /// Where the limit stands at `now` for a request that needs `needed` units.
    #[inline]
    const fn told(self, window: Window, now: Timestamp, needed: u64) -> Outcome {
        Outcome::of_window(
            self.max,
            window.used,
            window.end.saturating_sub(now.as_micros()),
            needed,
        )
    }
}

/// A window that is open at some time. If none is, all of it is 0.
#[derive(Clone, Copy, Debug, Default)]
struct Window {
    since: u64,
    used: u64,
    end: u64,
}

impl Window {
    /// The cells of a window that has been charged.
    const fn cells(self) -> [u64; 2] {
        [self.since, self.used]
    }
}

impl FixedWindow {
    fn window_of(self, state: &State, now: Timestamp) -> Window {
        state.two().map_or_else(Window::default, |cells| self.window(cells, now))
    }
}

impl Counting for FixedWindow {
    fn available(&self, state: &State, now: Timestamp) -> u64 {
        self.left(self.window_of(state, now))
    }

    fn charge(&self, state: &mut State, now: Timestamp, units: u64) {
        state.set_two(self.charged(self.window_of(state, now), now, units).cells());
    }

    fn refund(&self, state: &mut State, _: Timestamp, charged: Timestamp, units: u64) {
        let Some([since, used]) = state.two() else { return };
        // A charge before `since` was made to a window that has ended, was reset or was lost.
        if since <= charged.as_micros() && charged < self.end(since) {
            state.set_two([since, used.saturating_sub(units)]);
        }
    }

    fn expires(&self, state: &State) -> Timestamp {
        state.two().map_or(Timestamp::EPOCH, |[since, _]| self.end(since))
    }

    fn outcome(&self, state: &State, now: Timestamp, needed: u64) -> Outcome {
        self.told(self.window_of(state, now), now, needed)
    }
}

impl FixedWindow {
    /// Returns the window whose first charge is at `now`.
    fn open(self, now: Timestamp) -> Window {
        let since = now.as_micros();
        Window { since, used: 0, end: self.end(since).as_micros() }
    }

    /// Returns the end of the window whose first charge was at `since`.
    fn end(self, since: u64) -> Timestamp {
        match self.grid() {
            Grid::None => Timestamp::from_micros(since.saturating_add(self.period.as_micros())),
            Grid::Shifted(shift) => {
                let period = self.period.as_micros();
                let from_origin = since + shift;
                Timestamp::from_micros(from_origin - from_origin % period + period - shift)
            }
            Grid::Month => {
                let (begin, length) = calendar_month(since);
                Timestamp::from_micros(begin + length)
            }
        }
    }

    fn grid(self) -> Grid {
        Grid::of(self.period, self.anchor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const fn secs(secs: u64) -> Timestamp {
        Timestamp::from_secs(secs)
    }

    fn window(max: u64, period: Period, anchor: Anchor) -> FixedWindow {
        FixedWindow::new(Limit::new(max, period).unwrap(), anchor)
    }

    fn charged(window: FixedWindow, now: Timestamp, units: u64) -> State {
        let mut state = State::empty();
        window.charge(&mut state, now, units);
        state
    }

    #[test]
    #[rustfmt::skip]
    fn windows_on_the_clock() {
        let fifteen = Period::from_millis(900_000).unwrap();
        let fortnight = Period::from_millis(2 * 604_800_000).unwrap();
        let cases = [
            // period        | now         | begins      | ends                  the window
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
                assert_eq!(window.end(secs(time).as_micros()), secs(ends), "{period} at {time}");
            }
            let before = secs(begins).as_micros() - 1;
            assert_eq!(window.end(before), secs(begins), "{period} before {begins}");
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
            state.two().unwrap()[1]
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
        let before = full.clone();
        window.charge(&mut full, now, u64::MAX);
        assert_eq!(full, before);
        assert_eq!(window.available(&full, now), 0);
        assert!(window.expires(&full).as_micros() < 1 << 53);
    }

    proptest! {
        #[test]
        fn a_window_ends_after_its_first_charge_and_within_a_period(
            now in 0..4_102_444_800_000_000_u64, millis in 1..5_000_000_000_u64, on_clock: bool,
        ) {
            let anchor = if on_clock { Anchor::Clock } else { Anchor::FirstRequest };
            let window = window(1, Period::from_millis(millis).unwrap(), anchor);
            let end = window.end(now);
            prop_assert!(now < end.as_micros() && end.as_micros() - now <= window.period.as_micros());
            let last = end.as_micros() - 1;
            prop_assert!(!on_clock || window.end(last) == end, "one window");
            let next = window.end(end.as_micros()).as_micros() - end.as_micros();
            prop_assert_eq!(next, window.period.as_micros(), "windows meet without a gap");
        }
    }
}
