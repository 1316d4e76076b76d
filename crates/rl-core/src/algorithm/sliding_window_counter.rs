//! Sliding window counter: counts units in two windows that are aligned to the clock. The earlier
//! window is weighted by the part of it that a window of one period, ending now, still covers.
//!
//! * **Invariant**: a request of cost `c` is allowed if and only if
//!   ⌊previous × (period − elapsed) / period⌋ + current + `c` <= max, where *elapsed* is the time
//!   since the current window began.
//! * **Error**: the units of the previous window are assumed to be spread evenly. If they came at
//!   its end, up to 2 × max units may be granted within one period. If they came at its start, up
//!   to max units fewer than allowed are granted. For steady traffic the error is the rounding.
//! * **Rounding**: the weighted part is rounded down to whole units; waits are rounded up to whole
//!   microseconds.
//! * **Refunds** lower the count of the window in which the units were charged, the current or the
//!   previous one. Nothing is refunded if the state was created after the charge.
//! * **State**: four integers.
//!
//! The idea is described in Cloudflare, *How we built rate limiting capable of scaling to millions
//! of domains* (2017).
//!
//! `store/redis/scripts/algorithms/sliding_window_counter.lua` is the same function in Lua; change
//! both.

use super::divisor::Divisor;
use super::{Counting, set_cells, until, used_cells};
use crate::model::{Limit, MAX_UNITS, Outcome};
use crate::time::Timestamp;

/// A sliding window counter. Its cells are the beginning of the current window, the units used in
/// it, the time of the first charge that may still count, and the units used in the previous
/// window. Redis stores the last two in the other order.
#[derive(Clone, Copy, Debug)]
pub(super) struct SlidingWindowCounter {
    max: u64,
    period: Divisor,
}

/// The state of both windows at one time.
#[derive(Clone, Copy, Debug)]
struct Windows {
    since: u64,
    current: u64,
    /// The time of the first charge since the state was empty, or the beginning of the previous
    /// window, whichever is later.
    first: u64,
    previous: u64,
}

impl SlidingWindowCounter {
    pub(super) const fn new(limit: Limit) -> Self {
        Self { max: limit.max(), period: Divisor::new(limit.period().as_micros()) }
    }

    fn windows(self, cells: &[u64], now: Timestamp) -> Windows {
        let (now, period) = (now.as_micros(), self.period.get());
        let [since, current, first, previous] = used_cells(cells).unwrap_or_default();
        if now.wrapping_sub(since) < period && since > 0 {
            return Windows { since, current, first, previous };
        }
        let begin = now - self.period.remainder(now);
        if since == begin {
            Windows { since, current, first, previous }
        } else if since.checked_add(period) == Some(begin) {
            Windows { since: begin, current: 0, first: first.max(since), previous: current }
        } else {
            Windows { since: begin, current: 0, first: now, previous: 0 }
        }
    }

    fn used(self, windows: Windows, now: Timestamp) -> u64 {
        let left = self.period.get() - (now.as_micros() - windows.since);
        self.period.of_product(windows.previous, left).saturating_add(windows.current)
    }

    /// Returns the earliest time at which at most `allowed` of the `units` used in the previous
    /// window still count. `since` is the beginning of the current window.
    fn faded_at(self, units: u64, allowed: u64, since: u64) -> u64 {
        if units <= allowed {
            return since;
        }
        // With `left` µs until the current window ends, ⌊units × left / period⌋ of the units count.
        // That is at most `allowed` if left < (allowed + 1) × period / units.
        let period = self.period.get();
        let bound = (u128::from(allowed) + 1) * u128::from(period);
        let left = bound.div_ceil(u128::from(units)) - 1;
        since + period - u64::try_from(left).unwrap_or(period)
    }

    /// Returns the time from which no unit counts, or a time in the past if none counts now.
    fn end(self, windows: Windows) -> u64 {
        let periods = match windows {
            Windows { current: 1.., .. } => 2,
            Windows { previous: 1.., .. } => 1,
            _ => 0,
        };
        windows.since + periods * self.period.get()
    }

    fn reset(self, windows: Windows, now: Timestamp) -> u64 {
        until(self.end(windows), now)
    }
}

impl Counting for SlidingWindowCounter {
    fn available(&self, cells: &[u64], now: Timestamp) -> u64 {
        self.max.saturating_sub(self.used(self.windows(cells, now), now))
    }

    fn charge(&self, cells: &mut [u64], now: Timestamp, units: u64) -> Outcome {
        let mut windows = self.windows(cells, now);
        windows.current = windows.current.saturating_add(units).min(MAX_UNITS);
        set_cells(cells, [windows.since, windows.current, windows.first, windows.previous]);
        Outcome::granted(self.used(windows, now), self.reset(windows, now))
    }

    fn refund(&self, cells: &mut [u64], _: Timestamp, charged: Timestamp, units: u64) {
        let Some([since, current, first, previous]) = used_cells(cells) else { return };
        let (charged, period) = (charged.as_micros(), self.period.get());
        if charged < first {
            return;
        }
        if charged >= since && charged < since + period {
            set_cells(cells, [since, current.saturating_sub(units)]);
        } else if charged < since && charged + period >= since {
            set_cells(cells, [since, current, first, previous.saturating_sub(units)]);
        }
    }

    fn expires(&self, cells: &[u64]) -> Timestamp {
        let [since, current, first, previous] = used_cells(cells).unwrap_or_default();
        let windows = Windows { since, current, first, previous };
        Timestamp::from_micros(self.end(windows))
    }

    fn outcome(&self, cells: &[u64], now: Timestamp, needed: u64) -> Outcome {
        let windows = self.windows(cells, now);
        let (used, reset) = (self.used(windows, now), self.reset(windows, now));
        if needed > self.max {
            return Outcome::never(used, reset);
        }
        if needed <= self.max.saturating_sub(used) {
            return Outcome::granted(used, reset);
        }
        let room = self.max - needed;
        let passes_at = match room.checked_sub(windows.current) {
            // It suffices that units of the previous window expire, during the current one.
            Some(allowed) => self.faded_at(windows.previous, allowed, windows.since),
            // The current window alone has too many units. They expire during the next one.
            None => self.faded_at(windows.current, room, windows.since + self.period.get()),
        };
        Outcome::denied(used, reset, until(passes_at, now))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn at(micros: u64) -> Timestamp {
        Timestamp::from_micros(1_750_000_020_000_000 + micros)
    }

    #[test]
    fn the_previous_window_fades() {
        let limit = SlidingWindowCounter::new("10/minute:sliding-window-counter".parse().unwrap());
        let mut state = [0; 4];
        limit.charge(&mut state, at(0), 10);
        assert_eq!(limit.available(&state, at(59_999_999)), 0);
        assert_eq!(limit.outcome(&state, at(0), 1), Outcome::denied(10, 120_000_000, 60_000_001));
        // When the next window begins, all ten units still count. One microsecond later, 9.99… of
        // them count, which rounds down to 9.
        assert_eq!(limit.available(&state, at(60_000_000)), 0);
        assert_eq!(limit.available(&state, at(60_000_001)), 1);
        assert_eq!(limit.available(&state, at(90_000_000)), 5);
        assert_eq!(limit.available(&state, at(120_000_000)), 10);
    }

    proptest! {
        #[test]
        fn the_wait_is_exact(
            max in 1..1_000_000_u64, millis in 1..10_000_u64, previous in 0..2_000_000_u64,
            current in 0..2_000_000_u64, elapsed: u64, cost in 1..1_000_000_u64,
        ) {
            let text = format!("{max}/{millis}ms:sliding-window-counter");
            let limit = SlidingWindowCounter::new(text.parse().unwrap());
            let since = at(0).as_micros() / limit.period.get() * limit.period.get();
            let now = since + elapsed % limit.period.get();
            let state = [since, current, since, previous];
            let time = Timestamp::from_micros(now);
            let outcome = limit.outcome(&state, time, cost);
            if cost <= limit.available(&state, time) || cost > max {
                return Ok(());
            }
            let wait = outcome.wait_micros().unwrap();
            let passes = |wait| limit.available(&state, Timestamp::from_micros(now + wait)) >= cost;
            prop_assert!(!passes(wait - 1) && passes(wait), "{outcome:?}");
        }
    }
}
