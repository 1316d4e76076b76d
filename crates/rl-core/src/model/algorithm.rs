use super::Period;

/// The most buckets of a sliding window.
pub(super) const MAX_BUCKETS: u64 = 200;

/// The most units of a sliding log, which stores each of them.
pub(super) const MAX_LOGGED: u64 = 100_000;

/// The most permits of a concurrency limit, which stores each of them.
pub(super) const MAX_PERMITS: u64 = 10_000;

/// The time at which a fixed window begins.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Anchor {
    /// With the first request that is charged. The window ends one period later.
    #[default]
    FirstRequest,
    /// At multiples of the period on the clock, in UTC. 12:00:03 belongs to the minute 12:00:00.
    /// Periods of whole weeks begin on Monday; [`Period::MONTH`] is the calendar month. Other
    /// periods count from 1970-01-01T00:00.
    Clock,
}

/// The way in which a token bucket is refilled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Refill {
    /// Evenly: one token every period / max.
    #[default]
    Greedy,
    /// With `max` tokens at the end of each period, counted from the first use of the bucket.
    Interval,
}

/// The algorithm by which a limit counts. `docs/ALGORITHMS.md` compares the algorithms.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Algorithm {
    /// Counts the units used in a window, and starts again from 0 when the window ends.
    FixedWindow {
        /// The time at which a window begins.
        anchor: Anchor,
    },
    /// Stores the time of every unit for one period. It grants at most `max` units in any period, and
    /// denies no request that would keep this bound. `max` is at most 100 000.
    SlidingLog,
    /// Counts in buckets of `precision`, which expire one by one as a window of one period slides over
    /// them. It grants at most `max` units in any period.
    SlidingWindow {
        /// The length of a bucket. A length above the period counts as the period.
        precision: Period,
    },
    /// Counts in two consecutive windows that begin on the clock. The earlier one is weighted by the part
    /// of it that a sliding window still covers.
    SlidingWindowCounter,
    /// A bucket to which `max` tokens are added in each period. A request takes as many tokens as it
    /// costs.
    TokenBucket {
        /// The most tokens in the bucket. A new bucket is full.
        capacity: u64,
        /// The way in which tokens are added.
        refill: Refill,
    },
    /// The generic cell rate algorithm: one unit every period / max, and up to `burst` units at once after
    /// a pause.
    Gcra {
        /// The most units at once.
        burst: u64,
    },
    /// At most `max` permits at the same time, and at most 10 000. A permit is released when the work is
    /// done. If its holder dies, the permit is free when its lease ends. The limit's period is the lease.
    ///
    /// The wait that a denial reports is the time until enough leases have ended. A permit is usually
    /// released sooner.
    Concurrency,
}

/// The identity of the state that a limit counts in: algorithm, period, anchor or precision, and
/// whether units or requests are counted.
///
/// `max` and bursts are not part of the identity, so changing them keeps what was used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StateId {
    // The algorithm in the upper byte, with `REQUESTS` if requests are counted; the period in
    // milliseconds below, which is less than 2^42.
    kind_and_period: u64,
    precision: u64,
}

/// Marks the algorithm of a limit that counts requests.
const REQUESTS: u64 = 0x10;

impl StateId {
    /// Returns the identity of the state of a limit with these properties.
    pub(super) const fn new(algorithm: Algorithm, period: Period, counts_requests: bool) -> Self {
        let (kind, precision) = match algorithm {
            Algorithm::FixedWindow { anchor: Anchor::FirstRequest } => (0, 0),
            Algorithm::FixedWindow { anchor: Anchor::Clock } => (1, 0),
            Algorithm::SlidingWindowCounter => (2, 0),
            Algorithm::SlidingWindow { precision } => (3, precision.as_millis()),
            Algorithm::Gcra { .. } => (4, 0),
            Algorithm::TokenBucket { refill: Refill::Greedy, .. } => (5, 0),
            Algorithm::TokenBucket { refill: Refill::Interval, .. } => (6, 0),
            Algorithm::SlidingLog => (7, 0),
            Algorithm::Concurrency => (8, 0),
        };
        let kind = if counts_requests { kind | REQUESTS } else { kind };
        Self { kind_and_period: kind << 56 | period.as_millis(), precision }
    }

    /// Returns a number that is unique among states without a precision.
    pub(crate) const fn bits(self) -> u64 {
        self.kind_and_period
    }
}
