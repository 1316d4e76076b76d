//! The JSON that goes over the wire: what is read, and what is told.

mod active;
mod date;
mod history;
mod limits;
mod name;
mod periods;
mod record;
mod resource;
mod standing;
mod tier;

pub(crate) use active::ActiveRateLimits;
pub(crate) use date::{Date, Hour, civil, instant};
pub(crate) use history::{Changes, HistoryEntry, ResourceChange};
pub(crate) use limits::{Calls, Limits};
pub(crate) use name::{Name, Optional};
pub(crate) use periods::{CallCounter, CallCounters, CallState, Periods, all_periods, one_period};
pub(crate) use record::{
    CallLimitsAndState, Content, RateLimit, RateLimitInput, RateLimits, UntilInput,
};
pub(crate) use resource::{Resource, ResourceContent, ResourceInput, ResourceUpdate, Resources};
pub(crate) use standing::{
    Considered, OTHER_PROGRAM, PoliciesOf, Standing, is_limited, policy_text, seconds_of,
    whole_seconds,
};
pub(crate) use tier::{Consumer, Consumers, Membership, MembershipInput, Tier, TierUpdate, Tiers};
