//! The JSON of requests and responses.

mod active;
mod date;
mod history;
mod limit_usage;
mod limits;
mod limits_input;
mod name;
mod periods;
mod record;
mod resource;
mod rule;
mod subscription;
mod tier;
mod top_subjects;
mod usage;

pub(crate) use active::ActiveRateLimits;
pub(crate) use date::{Date, Hour, civil, instant};
pub(crate) use history::{Changes, HistoryEntry, ResourceChange};
pub(crate) use limit_usage::{
    Considered, LimitUsage, PoliciesOf, UNKNOWN_FAILURE_POLICY, is_limited, joined, policy_text,
    seconds_of,
};
pub(crate) use limits::LimitTexts;
pub(crate) use limits_input::{LimitsInput, LimitsUpdate, RealmText};
pub(crate) use name::Name;
pub(crate) use periods::{
    CallCounter, CallCounters, CallState, ConsumerCounters, RuleCounters, all_periods, one_period,
};
pub(crate) use record::{CallLimitsAndState, RateLimit, RateLimitInput, RateLimits, UntilInput};
pub(crate) use resource::{Resource, ResourceInput, ResourceUpdate, Resources};
pub(crate) use rule::{Rule, RuleUpdate, Rules};
pub(crate) use subscription::{
    DatesInput, StatusInput, Subscription, SubscriptionInput, SubscriptionStatus, Subscriptions,
};
pub(crate) use tier::{Consumer, Consumers, Membership, MembershipInput, Tier, TierUpdate, Tiers};
pub(crate) use top_subjects::TopSubjects;
pub(crate) use usage::{
    DayText, ExportedRow, UsageDays, UsageMonth, UsageOfDay, UsageOfMonth, month_text, parse_month,
};
