use std::fmt;

use super::algorithm::{MAX_BUCKETS, MAX_LOGGED, MAX_PERMITS};
use super::{MAX_UNITS, Period};

/// An error in the numbers or options of a [`Limit`](super::Limit).
#[derive(Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum InvalidLimit {
    /// The limit allows more units than can be counted exactly.
    TooLarge {
        /// The units.
        max: u64,
    },
    /// The burst or capacity is 0, or cannot be counted exactly.
    Capacity {
        /// The burst or capacity.
        capacity: u64,
        /// The units per period.
        max: u64,
    },
    /// The sliding log would store too many units.
    LogTooLong {
        /// The units.
        max: u64,
    },
    /// The concurrency limit allows too many permits.
    TooManyPermits {
        /// The units.
        max: u64,
    },
    /// The sliding window counter has a period of more than 50 years.
    TooLong {
        /// The period.
        period: Period,
    },
    /// The unit has an invalid name, or the limit counts requests and can have no other unit.
    Unit {
        /// Whether the limit counts requests.
        counts_requests: bool,
    },
    /// A lease was set for a limit that is not a concurrency limit.
    NoLease,
    /// A hint to clients was set for a limit that is not a concurrency limit.
    NoRetryHint,
    /// A limit without fixed windows was aligned to the clock.
    NotFixedWindow,
    /// The offset is not shorter than the period, or is longer than 27 days for a month.
    OffsetTooLong {
        /// The period.
        period: Period,
        /// The offset.
        offset: Period,
    },
    /// The sliding window would have too many buckets.
    TooPrecise {
        /// The period.
        period: Period,
        /// The length of a bucket.
        precision: Period,
    },
}

debug_as_display!(InvalidLimit);

impl fmt::Display for InvalidLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooLarge { max } => {
                write!(f, "limit {max} is too large: expected at most {MAX_UNITS}")
            }
            Self::Capacity { capacity, max } => write!(
                f,
                "burst or capacity {capacity} does not fit {max} per period: expected at least 1, at \
                 most {MAX_UNITS} / {max}, and at most 50 years to fill"
            ),
            Self::LogTooLong { max } => write!(
                f,
                "sliding log of {max} units is too long: expected at most {MAX_LOGGED}, because it \
                 stores each unit; a sliding window counter stores two numbers"
            ),
            Self::TooManyPermits { max } => write!(
                f,
                "concurrency limit {max} is too large: expected at most {MAX_PERMITS}, because it \
                 stores each permit"
            ),
            Self::TooLong { period } => {
                write!(f, "period {period} is too long for two windows: expected at most 50 years")
            }
            Self::Unit { counts_requests: true } => {
                f.write_str("a limit that counts requests must not name another unit")
            }
            Self::Unit { counts_requests: false } => {
                f.write_str("unit name must be 1 to 16 characters of a-z 0-9 -, such as tokens")
            }
            Self::NoLease => f.write_str("only a concurrency limit has a lease"),
            Self::NoRetryHint => f.write_str("only a concurrency limit has a retry hint"),
            Self::NotFixedWindow => {
                f.write_str("only the windows of a fixed window limit can be aligned to the clock")
            }
            Self::OffsetTooLong { period, offset } => write!(
                f,
                "offset {offset} is too long: expected less than the period, {period}, or at most 27 \
                 days for a month"
            ),
            Self::TooPrecise { period, precision } => write!(
                f,
                "precision {precision} is too fine for a period of {period}: expected at most \
                 {MAX_BUCKETS} buckets"
            ),
        }
    }
}

impl std::error::Error for InvalidLimit {}
