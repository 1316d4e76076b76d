//! The parts of a request: its actor, path, query, body and precondition.
//!
//! An invalid part is an [`ApiError`](crate::ApiError) that names the field.

mod allowed;
mod body;
mod explained_request;
mod if_match;
mod inputs;
mod path;
mod query;
mod scope;
mod serde_error;
mod subject;

pub(crate) use allowed::{
    Allowed, CanCreateRateLimits, CanDeleteRateLimits, CanGetRateLimits, CanReadCallLimits,
    CanResetCallCounters, CanSetCallLimits, CanSetSubscriptionStatus, CanUpdateRateLimits,
};
pub(crate) use body::{BODY_TIMEOUT, Body};
pub(crate) use explained_request::{ExplainQuery, ExplainedRequest};
pub(crate) use if_match::IfMatch;
pub(crate) use path::{
    ApplicationName, ConsumerId, HourOfDay, LimitName, MonthParam, PathParam, PeriodName,
    RateLimitingId, ResourceName, RuleName, SubscriptionIdParam, TierName, period_of,
};
pub(crate) use query::{
    FewChanges, FewNames, FewRules, Format, History, Names, Query, QueryParams, RuleQuery, Search,
    SearchLimits, SearchMonth, SearchNames, SearchSubscriptions, SearchUsage, TopQuery, UsageQuery,
};
pub(crate) use scope::sees_record;
pub(crate) use subject::{SubjectParams, subject, subject_of_body};
