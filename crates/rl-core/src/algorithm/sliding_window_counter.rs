//! Sliding window counter: two windows on the clock, the earlier weighted by the part of it that a
//! window of one period, ending now, still covers.
//!
//! * **Invariant**: a request of cost `c` is allowed if and only if
//!   ⌊previous × (period − elapsed) / period⌋ + current + `c` <= max, where *elapsed* is the time
//!   since the current window began.
//! * **Error**: the units of the previous window are assumed to be spread evenly. If they came at its
//!   end, up to 2 × max units may be granted within one period. If they came at its start, up to max
//!   units fewer than allowed are granted. For steady traffic the error is the rounding.
//! * **Rounding**: the weighted part is rounded down to whole units; waits are rounded up to whole
//!   microseconds.
//! * **Refunds** lower the count of the window in which the units were charged, the current or the one
//!   before, unless the state is younger than the charge.
//! * **State**: four integers.
//!
//! The idea is that of Cloudflare, *How we built rate limiting capable of scaling to millions of
//! domains* (2017).
//!
//! `store/redis/scripts/algorithms/sliding_window_counter.lua` is the same function in Lua; change both.

use super::State;
use super::counting::Counting;
use super::state::until;
use crate::model::{Limit, MAX_UNITS, Outcome};
use crate::time::Timestamp;

/// A sliding window counter. Cells: the beginning of the current window, units used in it, units
/// used in the one before, and the first charge that may count in them.
#[derive(Clone, Copy, Debug)]
pub(super) struct SlidingWindowCounter {
    max: u64,
    period: u64,
}

/// Both windows as they are at one time.
#[derive(Clone, Copy, Debug)]
struct Windows {
    since: u64,
    current: u64,
    previous: u64,
    /// The time of the first charge since the state was empty, or the beginning of the window
    /// before, whichever is later.
    first: u64,
}

impl SlidingWindowCounter {
    pub(super) const fn new(limit: Limit) -> Self {
        Self { max: limit.max(), period: limit.period().as_micros() }
    }

    fn windows(self, state: &State, now: Timestamp) -> Windows {
        let begin = now.as_micros() - now.as_micros() % self.period;
        let [since, current, previous, first] = state.four().unwrap_or_default();
        if since == begin {
            Windows { since, current, previous, first }
        } else if since.checked_add(self.period) == Some(begin) {
            Windows { since: begin, current: 0, previous: current, first: first.max(since) }
        } else {
            Windows { since: begin, current: 0, previous: 0, first: now.as_micros() }
        }
    }

    /// Returns ⌊units × part / whole⌋, where `part` <= `whole`.
    fn share(units: u64, part: u64, whole: u64) -> u64 {
        let share = u128::from(units) * u128::from(part) / u128::from(whole);
        u64::try_from(share).unwrap_or(u64::MAX)
    }

    fn used(self, windows: Windows, now: Timestamp) -> u64 {
        let left = self.period - (now.as_micros() - windows.since);
        Self::share(windows.previous, left, self.period).saturating_add(windows.current)
    }

    /// Returns when at most `allowed` of the `units` used in the previous window still count. The current
    /// window began at `since`.
    fn faded_at(self, units: u64, allowed: u64, since: u64) -> u64 {
        if units <= allowed {
            return since;
        }
        // ⌊units × left / period⌋ <= allowed means left < (allowed + 1) × period / units.
        let bound = (u128::from(allowed) + 1) * u128::from(self.period);
        let left = bound.div_ceil(u128::from(units)) - 1;
        since + self.period - u64::try_from(left).unwrap_or(self.period)
    }

    fn reset(self, windows: Windows, now: Timestamp) -> u64 {
        let periods = match windows {
            Windows { current: 1.., .. } => 2,
            Windows { previous: 1.., .. } => 1,
            _ => 0,
        };
        until(windows.since + periods * self.period, now)
    }
}

impl Counting for SlidingWindowCounter {
    fn available(&self, state: &State, now: Timestamp) -> u64 {
        self.max.saturating_sub(self.used(self.windows(state, now), now))
    }

    fn charge(&self, state: &mut State, now: Timestamp, units: u64) {
        let Windows { since, current, previous, first } = self.windows(state, now);
        state.set_four([since, current.saturating_add(units).min(MAX_UNITS), previous, first]);
    }

    fn refund(&self, state: &mut State, _: Timestamp, charged: Timestamp, units: u64) {
        let Some([since, current, previous, first]) = state.four() else { return };
        let charged = charged.as_micros();
        if charged < first {
            return;
        }
        if charged >= since && charged < since + self.period {
            state.set_four([since, current.saturating_sub(units), previous, first]);
        } else if charged < since && charged + self.period >= since {
            state.set_four([since, current, previous.saturating_sub(units), first]);
        }
    }

    fn expires(&self, state: &State) -> Timestamp {
        let [since, ..] = state.three().unwrap_or_default();
        Timestamp::from_micros(since).plus_micros(2 * self.period)
    }

    fn outcome(&self, state: &State, now: Timestamp, needed: u64) -> Outcome {
        let windows = self.windows(state, now);
        let (used, reset) = (self.used(windows, now), self.reset(windows, now));
        if needed > self.max {
            return Outcome::never(used, reset);
        }
        if needed <= self.max.saturating_sub(used) {
            return Outcome::granted(used, reset);
        }
        let room = self.max - needed;
        let passes_at = match room.checked_sub(windows.current) {
            // Enough units of the previous window expire during the current one …
            Some(allowed) => self.faded_at(windows.previous, allowed, windows.since),
            // … or enough units of the current window expire during the next one.
            None => self.faded_at(windows.current, room, windows.since + self.period),
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
        let mut state = State::empty();
        limit.charge(&mut state, at(0), 10);
        assert_eq!(limit.available(&state, at(59_999_999)), 0);
        assert_eq!(limit.outcome(&state, at(0), 1), Outcome::denied(10, 120_000_000, 60_000_001));
        // A microsecond into the next window 9.99… units count: 9.
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
            let since = at(0).as_micros() / limit.period * limit.period;
            let now = since + elapsed % limit.period;
            let mut state = State::empty();
            state.set_four([since, current, previous, since]);
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
