use super::{Algorithm, Anchor, Limit, Refill};

/// Identifies the state that a limit counts in: algorithm, period, anchor or precision, and whether
/// units or requests are counted.
///
/// `max` and bursts are no part of it, so a change of them keeps what was used.
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
    /// Returns the identity of the limit's state.
    pub(crate) const fn of(limit: Limit) -> Self {
        let (kind, precision) = match limit.algorithm() {
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
        let kind = if limit.counts_requests() { kind | REQUESTS } else { kind };
        Self { kind_and_period: kind << 56 | limit.period().as_millis(), precision }
    }

    /// Returns a number that is unique among states without a precision.
    pub(crate) const fn bits(self) -> u64 {
        self.kind_and_period
    }
}
