use super::Period;

/// Where a fixed window begins.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Anchor {
    /// With the first request that is charged; the window lives one period from there.
    #[default]
    FirstRequest,
    /// At multiples of the period on the clock, in UTC. 12:00:03 belongs to the minute 12:00:00.
    /// Periods of whole weeks begin on Monday; [`Period::MONTH`] is the calendar month. Other
    /// periods count from 1970-01-01T00:00.
    Clock,
}

/// How a token bucket is filled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Refill {
    /// Evenly: a token every period / max.
    #[default]
    Greedy,
    /// All at once at the end of each period, counted from the bucket's first use.
    Interval,
}

/// How a limit counts. `docs/ALGORITHMS.md` compares them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Algorithm {
    /// Counts what is used in a window, and forgets it when the window ends.
    FixedWindow {
        /// Where the window begins.
        anchor: Anchor,
    },
    /// Remembers every unit for one period: never more than `max` in any period, and never fewer
    /// than that allows. `max` is 100 000 at most.
    SlidingLog,
    /// Counts in buckets of `precision`, which leave one by one as a window of one period slides
    /// over them: never more than `max` in any period.
    SlidingWindow {
        /// The length of a bucket; longer than the period counts as the period.
        precision: Period,
    },
    /// Counts in two windows on the clock, the earlier weighted by the part of it that a sliding
    /// window still covers.
    SlidingWindowCounter,
    /// Tokens, `max` of which are added in each period; a request takes as many as it costs.
    TokenBucket {
        /// The most tokens there can be; a new bucket is full.
        capacity: u64,
        /// How tokens are added.
        refill: Refill,
    },
    /// The generic cell rate algorithm: one unit every period / max, and `burst` at once from idle.
    Gcra {
        /// The most units at once.
        burst: u64,
    },
    /// At most `max` at the same time, 10 000 at most. Units are given back when the work is done;
    /// those of a holder that dies are free when its lease ends. The limit's period is the lease.
    ///
    /// The wait that a denial tells is the time until enough leases have ended: exact if nobody
    /// gives back or renews, so a place is usually free sooner.
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
