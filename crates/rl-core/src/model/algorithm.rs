use super::Period;

/// The maximum number of buckets of a sliding window.
pub(super) const MAX_BUCKETS: u64 = 200;

/// The maximum number of units of a sliding log, which stores the time of each unit.
pub(super) const MAX_LOGGED: u64 = 100_000;

/// The maximum number of permits of a concurrency limit, which stores each permit.
pub(super) const MAX_PERMITS: u64 = 10_000;

/// The time at which a fixed window begins.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Anchor {
    /// A window begins with the first charged request, and ends one period later.
    #[default]
    FirstRequest,
    /// Windows begin at multiples of the period on the clock, in UTC: 12:00:03 is in the window
    /// that begins at 12:00:00. Periods of whole weeks begin on Monday; [`Period::MONTH`] is the
    /// calendar month. Other periods are counted from 1970-01-01T00:00.
    Clock,
    /// Windows begin later than with [`Clock`](Self::Clock), by this offset. With 14 days, a month
    /// begins on the 15th. With 16 hours, a day begins at midnight in Singapore.
    /// [`Limit::with_clock_offset`](super::Limit::with_clock_offset) checks the length of the offset.
    ClockOffset(Period),
}

/// The way in which a token bucket is refilled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Refill {
    /// Evenly: one token is added every period / max.
    #[default]
    Greedy,
    /// At the end of each period: `max` tokens are added. Periods are counted from the first use of
    /// the bucket.
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
    /// Stores the time of every unit for one period. It grants at most `max` units in any period,
    /// and denies a request only if that bound requires it. `max` is at most 100 000.
    SlidingLog,
    /// Counts in buckets of length `precision`. As a window of one period slides over the buckets,
    /// they expire one by one. It grants at most `max` units in any period.
    SlidingWindow {
        /// The length of a bucket. A length above the period means the period.
        precision: Period,
    },
    /// Counts in two consecutive windows that begin on the clock. The earlier one is weighted by
    /// the part of it that a sliding window still covers.
    SlidingWindowCounter,
    /// A bucket to which `max` tokens are added in each period. A request takes as many tokens as
    /// it costs.
    TokenBucket {
        /// The maximum number of tokens in the bucket. A new bucket is full.
        capacity: u64,
        /// The way in which tokens are added.
        refill: Refill,
    },
    /// The generic cell rate algorithm: one unit every period / max. After a pause, up to `burst`
    /// units are granted at once.
    Gcra {
        /// The maximum number of units at once.
        burst: u64,
    },
    /// At most `max` permits at the same time; `max` is at most 10 000. A permit is released when
    /// its request has ended. If the process of the request dies, the permit is free when its lease
    /// ends. The period of the limit is the lease.
    ///
    /// The wait in a denial is the time until enough leases have ended. Permits are usually
    /// released sooner.
    Concurrency,
}

/// The identity of a limit's state: its algorithm, its period, its anchor or precision, and whether
/// it counts units or requests.
///
/// `max` and bursts are not part of the identity. If they change, the used units stay counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StateId {
    // The upper byte contains the algorithm, and the bit `REQUESTS` if requests are counted. The
    // bits below contain the period in milliseconds, which is less than 2^42.
    kind_and_period: u64,
    // The precision of a sliding window, or the offset of a window on the clock, in milliseconds.
    precision: u64,
}

/// The bit that marks the algorithm of a limit that counts requests.
const REQUESTS: u64 = 0x10;

impl StateId {
    /// Returns the identity of the state of a limit with these properties.
    pub(super) const fn new(algorithm: Algorithm, period: Period, counts_requests: bool) -> Self {
        let (kind, precision) = match algorithm {
            Algorithm::FixedWindow { anchor: Anchor::FirstRequest } => (0, 0),
            Algorithm::FixedWindow { anchor: Anchor::Clock } => (1, 0),
            Algorithm::FixedWindow { anchor: Anchor::ClockOffset(offset) } => {
                (1, offset.as_millis())
            }
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

    /// Returns a number that identifies the state if its algorithm has no precision.
    pub(crate) const fn bits(self) -> u64 {
        self.kind_and_period
    }
}
