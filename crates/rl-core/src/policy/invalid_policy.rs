use std::fmt;

use super::limit_set::MAX_LIMITS;
use super::weight::{MOST_WEIGHT, UNITS_OF_WEIGHT, WEIGHT_OF_BUCKET, WEIGHT_OF_LOG};
use crate::model::Limit;

/// The error for limits that do not form a valid [`Policy`](crate::Policy).
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum InvalidPolicy {
    /// The policy has no limit.
    Empty,
    /// The policy has more limits than [`Policy::MAX_LIMITS`](crate::Policy::MAX_LIMITS).
    TooMany {
        /// The number of limits.
        count: usize,
    },
    /// The name of a limit contains characters that headers and keys cannot contain, or has a wrong
    /// length.
    Name {
        /// The name.
        name: String,
    },
    /// Two limits have the same name.
    NameTwice {
        /// The name.
        name: String,
    },
    /// Two limits differ only in `max` or burst, so they would count in the same state.
    SharedState {
        /// The limit that was added first, and the one that was added later.
        limits: Box<[Limit; 2]>,
    },
    /// A decision would take too long, because the sliding windows and logs store too many entries
    /// together.
    TooDetailed,
}

debug_as_display!(InvalidPolicy);

impl fmt::Display for InvalidPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Empty => f.write_str("a policy needs at least one limit"),
            Self::TooMany { count } => {
                write!(f, "policy has {count} limits: expected at most {MAX_LIMITS}")
            }
            Self::Name { name } => write!(
                f,
                "limit name {name:?}: expected 1 to 64 characters of A-Z a-z 0-9 _ . : * / -"
            ),
            Self::NameTwice { name } => {
                write!(f, "limit name {name:?} is used twice: give one of the two another name")
            }
            Self::SharedState { limits } => {
                let [first, second] = &**limits;
                write!(
                    f,
                    "limits {first} and {second} would share one counter: keep the stricter one, give \
                     one of them another period or algorithm, or let only one count requests \
                     (\":requests\")"
                )
            }
            Self::TooDetailed => write!(
                f,
                "sliding windows and logs that remember too much: expected {MOST_WEIGHT} at most in \
                 all, where each bucket is {WEIGHT_OF_BUCKET}, and a log or a concurrency limit is \
                 {WEIGHT_OF_LOG} and 1 for every {UNITS_OF_WEIGHT} units"
            ),
        }
    }
}

impl std::error::Error for InvalidPolicy {}
