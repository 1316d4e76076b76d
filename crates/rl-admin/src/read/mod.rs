//! What a request brings: who makes it, the path, the query, the body, and what they have seen.
//!
//! Whatever cannot be used is an [`ApiError`](crate::ApiError) that names the field.

mod allowed;
mod body;
mod if_match;
mod inputs;
mod path;
mod query;
mod subject;
mod wrong;

pub(crate) use allowed::{
    Allowed, Asked, ToCreate, ToDelete, ToGet, ToRead, ToReset, ToSet, ToUpdate,
};
pub(crate) use body::{Body, Input, LONGEST};
pub(crate) use if_match::IfMatch;
pub(crate) use path::{
    ApplicationName, ConsumerId, HourOfDay, In, LimitName, PeriodName, RateLimitingId,
    ResourceName, TierName, period_of,
};
pub(crate) use query::{
    Cost, FewChanges, FewNames, History, Names, Parameters, Search, SearchNames,
};
pub(crate) use subject::OfSubject;
pub(crate) use wrong::fault_of;
