//! The words of the domain: plain values, without clocks, locks or I/O.
//!
//! A [`Limit`] allows at most `max` units in each [`Period`], under an [`Algorithm`]. The limits one
//! [`Subject`] is under form a [`Policy`]. A request costs some units, its [`Cost`]; the
//! [`Decision`] says whether it may pass and, for each limit, where the subject stands
//! ([`LimitStatus`]). When no decision could be made, a [`FailureKind`] says why.
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

mod algorithm;
mod cost;
mod failure;
mod invalid_limit;
mod limit;
mod limit_text;
mod outcome;
mod period;
mod store_error;
mod subject;
mod unit;

pub(crate) use algorithm::StateId;
pub use algorithm::{Algorithm, Anchor, Refill};
pub use cost::{Cost, MAX_UNITS, Mode};
pub use failure::FailureKind;
pub use invalid_limit::InvalidLimit;
pub use limit::Limit;
pub use limit_text::ParseLimitError;
pub use outcome::Outcome;
pub use period::{InvalidPeriod, Period};
pub use store_error::StoreError;
pub(crate) use store_error::{MAX_FOREIGN_STATES, TOO_MANY_STATES};
pub use subject::{
    CustomRealm, InvalidLogSecret, InvalidRealm, Realm, Redacted, Subject, SubjectId,
};
use unit::Unit;
