//! The types of the domain: plain values, without clocks, locks or I/O.
//!
//! A [`Limit`] allows at most `max` units in each [`Period`], counted by an [`Algorithm`]. All
//! limits of a [`Subject`] form its [`Policy`](crate::Policy). A request uses some units, its
//! [`Cost`]. The [`Decision`](crate::Decision) contains the verdict and the status of each limit
//! ([`LimitStatus`](crate::LimitStatus)). If no decision can be made, a [`FailureKind`] gives the
//! reason.
//!
//! # Example
//!
//! ```
//! use rl_core::{Limit, Period, Policy, Subject};
//!
//! let policy = Policy::new([
//!     Limit::per_second(10),
//!     "100/15minutes".parse()?,
//!     Limit::new(5_000, Period::DAY)?,
//! ])?;
//! assert_eq!(policy.limits()[1].name(), "15minutes");
//! let subject = Subject::consumer("consumer_abc123");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

/// Implements `Debug` of an error as its `Display`.
///
/// If `main` returns an error, the program prints its `Debug`, as `unwrap` does.
#[doc(hidden)]
#[macro_export]
macro_rules! debug_as_display {
    ($error:ty $(, $parameter:ident)?) => {
        impl<$($parameter)?> std::fmt::Debug for $error {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                std::fmt::Display::fmt(self, f)
            }
        }
    };
}

mod algorithm;
mod cost;
mod error;
mod invalid_limit;
mod limit;
mod limit_text;
mod on_failure;
mod outcome;
mod period;
mod subject;

pub(crate) use algorithm::StateId;
pub use algorithm::{Algorithm, Anchor, Refill};
use cost::Unit;
pub use cost::{Cost, MAX_UNITS, Mode};
pub use error::{FailureKind, StoreError};
pub(crate) use error::{MAX_FOREIGN_STATES, TOO_MANY_STATES};
pub use invalid_limit::InvalidLimit;
pub use limit::Limit;
pub use limit_text::ParseLimitError;
pub use on_failure::OnFailure;
pub use outcome::Outcome;
pub use period::{InvalidPeriod, Period};
pub use subject::{
    CustomRealm, InvalidLogSecret, InvalidRealm, Realm, Redacted, Subject, SubjectId,
};
