//! What a request brings: who makes it, the path, the query, the body, and what they have seen.
//!
//! Whatever cannot be used is an [`ApiError`](crate::ApiError) that names the field.

mod allowed;
mod body;
mod if_match;
mod path;
mod query;
mod wrong;

pub(crate) use allowed::{Allowed, ToCreate, ToDelete, ToGet, ToRead, ToReset, ToSet, ToUpdate};
pub(crate) use body::{Body, Input, LONGEST};
pub(crate) use if_match::IfMatch;
pub(crate) use path::{
    ApplicationName, ConsumerId, HourOfDay, In, LimitName, PeriodName, RateLimitingId, RealmName,
    ResourceName, SubjectText, TierName, subject,
};
pub(crate) use query::{
    Cost, FewChanges, FewNames, History, Names, Parameters, Search, SearchNames,
};
pub(crate) use wrong::field_and_expected;
