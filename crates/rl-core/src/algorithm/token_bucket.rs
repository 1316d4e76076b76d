//! Token bucket: `max` tokens are added in each period, up to `capacity`; a request takes as many
//! as it costs, and a new bucket is full.
//!
//! * **Guarantee**: with greedy refill, at most capacity + rate × *t* units are granted in every
//!   span of time *t*. With interval refill, at most capacity, and `max` more for each period that
//!   ends in the span. After a pause of any length, at most `capacity` units are granted at once.
//! * **Greedy refill** adds tokens evenly. A bucket with capacity `b` that lacks `n` tokens equals
//!   a [GCRA](super::gcra) limit of burst `b` that would be idle in `n` intervals. GCRA therefore
//!   counts it: decisions are the same, and no part of an accrued token is lost.
//! * **Interval refill** adds `max` tokens at once at the end of each period, counted from the
//!   first use of the full bucket. Invariant: `used` tokens are missing since the period that began
//!   at `since`.
//! * **Refunds** return the whole cost if the bucket has not been full since the charge. In that
//!   time no added token was lost. Once the bucket has been full, it lacks no token of an earlier
//!   charge, so nothing is refunded. With interval refill, the tokens granted in a span, less those
//!   refunded in it, are at most the capacity, and `max` for each period that ends in the span. The
//!   reason is that a refund lowers `used` by no more than the charge raised it, and never below
//!   zero.
//! * **Rounding**: none; reported waits are rounded up to whole microseconds.
//! * **State**: three integers for greedy refill; four for interval refill. The third is the time
//!   at which the bucket is full, for readers that do not know `max`; the fourth is the number of
//!   periods that have ended since the bucket was last full.
//!
//! J. S. Turner, *New directions in communications*, IEEE Communications Magazine 24(10), 1986.
//!
//! `store/redis/scripts/algorithms/token_bucket.lua` is the same function in Lua; change both.

use super::divisor::Divisor;
use super::{Counting, set_cells, until, used_cells};
use crate::model::{Limit, MAX_UNITS, Outcome};
use crate::time::Timestamp;

/// A token bucket that is refilled at the end of each period. Its cells are the beginning of the
/// period, the number of missing tokens, the time at which the bucket is full, and the number of
/// periods that have ended since it was last full.
#[derive(Clone, Copy, Debug)]
pub(super) struct IntervalBucket {
    max: u64,
    capacity: u64,
    by_max: Divisor,
    period: Divisor,
}

/// The state of a bucket that is not full.
#[derive(Clone, Copy, Debug)]
struct Lacking {
    /// The beginning of the period.
    since: u64,
    /// The number of missing tokens.
    used: u64,
    /// The number of periods that have ended since the bucket was full.
    ended: u64,
}

impl IntervalBucket {
    pub(super) const fn new(limit: Limit) -> Self {
        Self {
            max: limit.max(),
            capacity: limit.capacity(),
            by_max: Divisor::new(limit.max()),
            period: Divisor::new(limit.period().as_micros()),
        }
    }

    /// Returns the state at `now`, or `None` if the bucket is full.
    fn current(self, cells: &[u64], now: Timestamp) -> Option<Lacking> {
        let [since, used, full_at, ended] = used_cells(cells)?;
        let elapsed = until(now.as_micros(), Timestamp::from_micros(since));
        let periods = if elapsed < self.period.get() { 0 } else { self.period.quotient(elapsed) };
        // The bucket is full at `full_at`, even if `max` was lowered after that time was computed.
        let refilled = periods.saturating_mul(self.max);
        if now.as_micros() >= full_at || refilled >= used {
            return None;
        }
        Some(Lacking {
            since: since + periods * self.period.get(),
            used: used - refilled,
            ended: ended.saturating_add(periods),
        })
    }

    /// Stores the state. Returns the time at which the bucket is full.
    fn keep(self, cells: &mut [u64], Lacking { since, used, ended }: Lacking) -> u64 {
        let full_at = self.full_at(since, used);
        set_cells(cells, [since, used, full_at, ended]);
        full_at
    }

    /// Returns the number of periods after which at most `allowed` of the `used` tokens are
    /// missing.
    const fn periods(self, used: u64, allowed: u64) -> u64 {
        self.by_max.quotient_up(used.saturating_sub(allowed))
    }

    /// Returns the time at which a bucket is full again, if it lacked `used` tokens at `since`.
    const fn full_at(self, since: u64, used: u64) -> u64 {
        let refilling = self.periods(used, 0).saturating_mul(self.period.get());
        let full_at = since.saturating_add(refilling);
        if full_at < MAX_UNITS { full_at } else { MAX_UNITS }
    }
}

impl Counting for IntervalBucket {
    fn available(&self, cells: &[u64], now: Timestamp) -> u64 {
        if self.max == 0 {
            return 0;
        }
        self.capacity.saturating_sub(self.current(cells, now).map_or(0, |lacking| lacking.used))
    }

    fn charge(&self, cells: &mut [u64], now: Timestamp, units: u64) -> Outcome {
        if self.max == 0 {
            return Outcome::granted(0, 0);
        }
        let full = Lacking { since: now.as_micros(), used: 0, ended: 0 };
        let lacking = self.current(cells, now).unwrap_or(full);
        let used = lacking.used.saturating_add(units).min(MAX_UNITS);
        let full_at = self.keep(cells, Lacking { used, ..lacking });
        Outcome::granted(used, until(full_at, now))
    }

    fn refund(&self, cells: &mut [u64], now: Timestamp, charged: Timestamp, units: u64) {
        if self.max == 0 {
            return;
        }
        let Some(lacking) = self.current(cells, now) else { return };
        let open_for = lacking.ended.saturating_mul(self.period.get());
        if charged.as_micros() < lacking.since.saturating_sub(open_for) {
            return;
        }
        match lacking.used.saturating_sub(units) {
            0 => set_cells(cells, [0; 4]),
            used => {
                self.keep(cells, Lacking { used, ..lacking });
            }
        }
    }

    fn expires(&self, cells: &[u64]) -> Timestamp {
        Timestamp::from_micros(used_cells(cells).map_or(0, |[_, _, full_at]| full_at))
    }

    fn outcome(&self, cells: &[u64], now: Timestamp, needed: u64) -> Outcome {
        let current = if self.max == 0 { None } else { self.current(cells, now) };
        let (since, used) =
            current.map_or((now.as_micros(), 0), |lacking| (lacking.since, lacking.used));
        let reset = if used == 0 { 0 } else { until(self.full_at(since, used), now) };
        if needed > self.capacity {
            return Outcome::never(used, reset);
        }
        if needed == 0 {
            return Outcome::granted(used, reset);
        }
        match self.periods(used, self.capacity - needed) {
            0 => Outcome::granted(used, reset),
            periods => {
                let passes_at = since.saturating_add(periods.saturating_mul(self.period.get()));
                Outcome::denied(used, reset, until(passes_at, now))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::algorithm::gcra::Gcra;
    use crate::model::{Algorithm, Refill};

    fn bucket(text: &str) -> Box<dyn Counting> {
        let limit: Limit = text.parse().unwrap();
        match limit.algorithm() {
            Algorithm::TokenBucket { refill: Refill::Greedy, .. } => Box::new(Gcra::new(limit)),
            _ => Box::new(IntervalBucket::new(limit)),
        }
    }

    fn at(millis: u64) -> Timestamp {
        Timestamp::from_micros(1_750_000_000_000_000 + millis * 1_000)
    }

    #[test]
    fn interval_refill_comes_at_once_at_the_end_of_the_period() {
        let bucket = bucket("2/second:token-bucket:capacity=5:refill=interval");
        let mut state = [0; 4];
        bucket.charge(&mut state, at(300), 5);
        assert_eq!(bucket.outcome(&state, at(300), 1), Outcome::denied(5, 3_000_000, 1_000_000));
        assert_eq!(bucket.outcome(&state, at(300), 3), Outcome::denied(5, 3_000_000, 2_000_000));
        assert_eq!(bucket.outcome(&state, at(300), 6), Outcome::never(5, 3_000_000));
        assert_eq!(bucket.available(&state, at(1_299)), 0);
        assert_eq!(bucket.available(&state, at(1_300)), 2);
        bucket.charge(&mut state, at(2_000), 1);
        assert_eq!(bucket.outcome(&state, at(2_000), 2), Outcome::denied(4, 1_300_000, 300_000));
        assert_eq!(bucket.available(&state, at(3_300)), 5);
        assert_eq!(bucket.expires(&state), at(3_300));
    }

    #[test]
    fn a_refund_is_complete_unless_the_bucket_was_full_meanwhile() {
        let bucket = bucket("2/second:token-bucket:capacity=5:refill=interval");
        let mut state = [0; 4];
        bucket.charge(&mut state, at(0), 5);
        bucket.refund(&mut state, at(1_000), at(0), 1);
        assert_eq!(bucket.available(&state, at(1_000)), 3, "two were added, one is refunded");
        bucket.refund(&mut state, at(1_000), at(0), 4);
        assert_eq!(bucket.available(&state, at(1_000)), 5, "never above the capacity");
        bucket.charge(&mut state, at(1_000), 5);
        bucket.charge(&mut state, at(2_500), 1);
        bucket.refund(&mut state, at(2_500), at(1_000), 1);
        assert_eq!(bucket.available(&state, at(2_500)), 2, "two were added, one was taken");
        bucket.charge(&mut state, at(9_000), 5);
        bucket.refund(&mut state, at(9_000), at(0), 5);
        assert_eq!(bucket.available(&state, at(9_000)), 0, "the bucket was full meanwhile");
    }

    /// Fault: a bucket of 10 tokens gained one per second, and one request came every five seconds.
    /// After ten minutes, it allowed 488 requests at once.
    #[test]
    fn idleness_never_grants_more_than_the_capacity() {
        for text in [
            "1/second:token-bucket:capacity=10",
            "1/second:token-bucket:capacity=10:refill=interval",
        ] {
            let bucket = bucket(text);
            let mut state = [0; 4];
            for second in (0..600).step_by(5) {
                assert!(bucket.available(&state, at(second * 1_000)) >= 1, "{text}");
                bucket.charge(&mut state, at(second * 1_000), 1);
            }
            assert_eq!(bucket.available(&state, at(3_600_000)), 10, "{text}");
        }
    }

    /// Sends a request every 60 ms to a bucket that gains 15 tokens per second. A bucket that lost
    /// accrued parts of tokens would allow little more than half of the requests.
    #[test]
    fn a_partly_accrued_token_is_kept() {
        let bucket = bucket("15/second:token-bucket");
        let mut state = [0; 4];
        let mut passed = 0;
        for request in 0..1_000 {
            let now = at(request * 60);
            if bucket.available(&state, now) > 0 {
                bucket.charge(&mut state, now, 1);
                passed += 1;
            }
        }
        // 15 tokens are there at the start, and 15 accrue in each of 59.94 seconds.
        assert_eq!(passed, 914);
    }

    /// Begins with a full bucket of `b` tokens, which gains `r` tokens per second. A client that
    /// sends `m` requests per second is first denied after b × m / (m − r) requests.
    #[test]
    fn a_burst_is_as_large_as_the_formula_says() {
        let (capacity, rate, asked) = (100, 10, 110);
        let bucket = bucket(&format!("{rate}/second:token-bucket:capacity={capacity}"));
        let mut state = [0; 4];
        let passed = (0..10 * asked)
            .take_while(|request| {
                let now = at(request * 1_000 / asked);
                let passes = bucket.available(&state, now) > 0;
                bucket.charge(&mut state, now, 1);
                passes
            })
            .count();
        // The formula gives 110 for a continuous flow. Requests are whole, and the 110th arrives
        // when 0.1 tokens are still missing.
        assert_eq!(passed, 109);
    }
}
