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
mod mode;
mod packed;
mod period;
mod state_id;
mod store_error;
mod subject;
mod unit;
mod window_plan;

pub use algorithm::{Algorithm, Anchor, Refill};
pub use cost::Cost;
pub use failure::FailureKind;
pub use invalid_limit::InvalidLimit;
pub use limit::{Limit, MAX_UNITS};
pub use limit_text::ParseLimitError;
pub use mode::Mode;
pub(crate) use packed::{Moment, Packed, Pairs};
pub use period::{InvalidPeriod, Period};
pub(crate) use state_id::StateId;
pub use store_error::StoreError;
pub(crate) use store_error::{MAX_FOREIGN_STATES, TOO_MANY_STATES};
pub use subject::{
    CustomRealm, InvalidLogSecret, InvalidRealm, Realm, Redacted, Subject, SubjectId,
};
use unit::Unit;
pub(crate) use window_plan::{Grid, WindowPlan};
