//! The words of the domain: plain values, without clocks, locks or I/O.
//!
//! A [`Limit`] allows at most `max` units in each [`Period`], under an [`Algorithm`]. The limits one
//! [`Subject`] is under form a [`Policy`]. A request costs some units, its [`Cost`]; the
//! [`Decision`] says whether it may pass and, for each limit, where the subject stands
//! ([`LimitReport`]). When no decision could be made, a [`FailureKind`] says why.
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
mod block;
mod cost;
mod decision;
mod failure;
mod held_policy;
mod invalid_limit;
mod invalid_policy;
mod limit;
mod limit_set;
mod limit_text;
mod mode;
mod origin;
mod outcome;
mod outcomes;
mod packed;
mod period;
mod policy;
#[cfg(feature = "serde")]
mod serde;
mod state_id;
mod subject;
mod unit;
mod weight;
mod window_plan;

pub use algorithm::{Algorithm, Anchor, Refill};
pub use block::Block;
pub use cost::Cost;
pub use decision::{Decision, Follow};
pub use failure::FailureKind;
pub use invalid_limit::InvalidLimit;
pub use invalid_policy::InvalidPolicy;
pub use limit::{Limit, MAX_UNITS};
pub use limit_set::LimitSet;
pub use limit_text::ParseLimitError;
pub use mode::Mode;
pub use origin::Origin;
pub use outcome::{LimitReport, Outcome, RetryAfter};
pub(crate) use outcomes::{Outcomes, Windows};
pub(crate) use packed::{Moment, Packed, Pairs};
pub use period::{InvalidPeriod, Period};
pub use policy::{NamedLimit, Policy, PolicyBuilder};
pub(crate) use state_id::StateId;
pub use subject::{
    CustomRealm, InvalidLogSecret, InvalidRealm, Realm, Redacted, Subject, SubjectId,
};
use unit::Unit;
#[cfg(feature = "redis")]
pub(crate) use weight::weight;
pub(crate) use window_plan::{Grid, WindowPlan};
