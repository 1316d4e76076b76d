use std::fmt;

use super::limit::{MAX_BUCKETS, MAX_LOGGED, MAX_PERMITS};
use super::{MAX_UNITS, Period};

/// Why numbers do not make a [`Limit`](super::Limit).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum InvalidLimit {
    /// More units than can be counted exactly.
    TooLarge {
        /// The units.
        max: u64,
    },
    /// A burst or capacity that is 0, or cannot be counted exactly.
    Capacity {
        /// The burst or capacity.
        capacity: u64,
        /// The units per period.
        max: u64,
    },
    /// A sliding log that would remember too many units.
    LogTooLong {
        /// The units.
        max: u64,
    },
    /// More units at the same time than can be kept apart.
    TooManyPermits {
        /// The units.
        max: u64,
    },
    /// A period of more than 50 years, for two windows.
    TooLong {
        /// The period.
        period: Period,
    },
    /// A unit that messages cannot name, or a unit other than requests for a limit that counts requests.
    Unit {
        /// Whether the limit counts requests.
        counts_requests: bool,
    },
    /// A lease for a limit that is not a concurrency limit.
    NoLease,
    /// An alignment to the clock for a limit that does not count in fixed windows.
    NotFixedWindow,
    /// A sliding window of too many buckets.
    TooPrecise {
        /// The period.
        period: Period,
        /// The length of a bucket.
        precision: Period,
    },
}

impl fmt::Display for InvalidLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooLarge { max } => {
                write!(f, "a limit of {max} is too large: {MAX_UNITS} at most")
            }
            Self::Capacity { capacity, max } => write!(
                f,
                "a burst or capacity of {capacity} with {max} per period: expected at least 1, at \
                 most {MAX_UNITS} / {max}, and 50 years to fill"
            ),
            Self::LogTooLong { max } => write!(
                f,
                "a sliding log of {max} units is too long: it remembers each of them, so {MAX_LOGGED} \
                 at most; a sliding window counter remembers two numbers"
            ),
            Self::TooManyPermits { max } => write!(
                f,
                "a concurrency limit of {max} is too large: it remembers each permit, so \
                 {MAX_PERMITS} at most"
            ),
            Self::TooLong { period } => {
                write!(f, "a period of {period} for two windows: expected 50 years at most")
            }
            Self::Unit { counts_requests: true } => {
                f.write_str("a limit that counts requests has no other unit")
            }
            Self::Unit { counts_requests: false } => {
                f.write_str("a unit is 1 to 16 characters of a-z 0-9 -, such as tokens")
            }
            Self::NoLease => f.write_str("only a concurrency limit has a lease"),
            Self::NotFixedWindow => {
                f.write_str("only the windows of a fixed window limit can be aligned to the clock")
            }
            Self::TooPrecise { period, precision } => write!(
                f,
                "a precision of {precision} for a period of {period}: expected at most \
                 {MAX_BUCKETS} buckets"
            ),
        }
    }
}

impl std::error::Error for InvalidLimit {}
