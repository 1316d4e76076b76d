use super::{Algorithm, Anchor, Limit, Refill};

/// Which state a limit counts in: its algorithm, period and anchor or precision, whatever its `max`.
///
/// Limits with equal ids count in the same state, so a change of `max` keeps what was used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StateId {
    // The algorithm in the upper byte, the period in milliseconds below; no period has 2^42.
    kind_and_period: u64,
    precision: u64,
}

impl StateId {
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
        Self { kind_and_period: kind << 56 | limit.period().as_millis(), precision }
    }

    /// What tells it from those of other limits without a precision.
    pub(crate) const fn bits(self) -> u64 {
        self.kind_and_period
    }
}
