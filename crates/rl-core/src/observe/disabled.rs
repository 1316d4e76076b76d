//! The functions of `enabled.rs` and the spans of `spans.rs` without any effect, for builds without
//! the feature `tracing`.

use std::time::Duration;

use super::{DecisionEvent, Ended, EventLocation, RequestIds};
use crate::decision::{Decision, LimitStatus};
use crate::model::{Limit, Redacted, StoreError, Subject};

pub(crate) use NoSpan as RequestSpan;
pub(crate) use NoSpan as StoreSpan;

pub(crate) const fn may_decisions_be_logged() -> bool {
    false
}

pub(crate) const fn decided(_: &DecisionEvent<'_>) {}

pub(crate) const fn would_deny(_: EventLocation<'_>, _: &Subject, _: &LimitStatus<'_>, _: bool) {}

pub(crate) const fn store_failed(_: EventLocation<'_>, _: &StoreError, _: &str) {}

pub(crate) const fn store_recovered(_: EventLocation<'_>, _: Duration, _: u64) {}

pub(crate) const fn overloaded(_: EventLocation<'_>, _: usize, _: usize, _: &str) {}

pub(crate) const fn overload_ended(_: EventLocation<'_>, _: Ended) {}

pub(crate) const fn out_of_memory(_: EventLocation<'_>, _: &StoreError, _: &str) {}

pub(crate) const fn out_of_memory_ended(_: EventLocation<'_>, _: Ended) {}

pub(crate) const fn shared_counters(_: EventLocation<'_>) {}

pub(crate) const fn share_raised(_: EventLocation<'_>, _: &str, _: Limit, _: u64, _: u32) {}

pub(crate) const fn unknown_rule(_: &str, _: &str) {}

pub(crate) const fn too_many_states(_: &str) {}

pub(crate) const fn unsupported(_: EventLocation<'_>, _: &StoreError, _: &str) {}

pub(crate) const fn unsupported_ended(_: EventLocation<'_>, _: Ended) {}

pub(crate) const fn lease_lapsed(_: EventLocation<'_>, _: Redacted, _: bool) {}

pub(crate) const fn lapses_ended(_: EventLocation<'_>, _: Ended) {}

pub(crate) const fn damaged(_: EventLocation<'_>, _: &str, _: Redacted, _: &StoreError, _: &str) {}

pub(crate) const fn more_damaged(_: EventLocation<'_>, _: &str) {}

pub(crate) const fn damage_ended(_: EventLocation<'_>, _: Redacted, _: Ended) {}

pub(crate) const fn source_failed(_: EventLocation<'_>, _: &StoreError, _: &str) {}

pub(crate) const fn source_recovered(_: EventLocation<'_>, _: Ended) {}

pub(crate) const fn source_overloaded(_: EventLocation<'_>, _: &str) {}

pub(crate) const fn source_overload_ended(_: EventLocation<'_>, _: Ended) {}

pub(crate) const fn unknown_policy(
    _: EventLocation<'_>,
    _: &str,
    _: Redacted,
    _: &StoreError,
    _: &str,
) {
}

pub(crate) const fn unknown_policy_ended(_: EventLocation<'_>, _: Redacted, _: Ended) {}

pub(crate) const fn fallback_failed(_: EventLocation<'_>, _: &StoreError, _: &str) {}

pub(crate) const fn fallback_recovered(_: EventLocation<'_>, _: Ended) {}

#[cfg(feature = "redis")]
pub(crate) const fn healed(_: &str, _: u64) {}

#[cfg(feature = "redis")]
pub(crate) const fn healing_ended(_: &str, _: Ended) {}

#[cfg(feature = "redis")]
pub(crate) const fn give_back_failed(_: &str, _: &StoreError) {}

#[cfg(feature = "redis")]
pub(crate) const fn give_back_recovered(_: &str, _: Ended) {}

#[cfg(feature = "redis")]
pub(crate) const fn not_connected(_: &str, _: &StoreError) {}

#[cfg(feature = "redis")]
pub(crate) const fn can_evict(_: &str, _: &str) {}

#[cfg(feature = "rules-file")]
pub(crate) fn rules_applied(_: &std::path::Path, _: &str) {}

#[cfg(feature = "rules-file")]
pub(crate) const fn rules_warned(_: &std::path::Path, _: &[String]) {}

#[cfg(feature = "rules-file")]
pub(crate) fn rules_refused(_: &std::path::Path, _: &dyn std::error::Error) {}

pub(crate) const fn missing_key(_: &str, _: Option<&str>, _: &RequestIds) {}

pub(crate) const fn ambiguous_key(_: &str, _: &RequestIds) {}

pub(crate) const fn too_many_rules(_: &str, _: &str, _: &str, _: &RequestIds) {}

pub(crate) const fn unknown_address(_: &str, _: &RequestIds) {}

#[derive(Clone, Debug)]
pub(crate) struct NoSpan;

impl NoSpan {
    pub(crate) fn new<L, D>(_: L, _: D) -> Self {
        Self
    }

    pub(crate) fn instrument<F: Future>(&self, future: F) -> F {
        future
    }

    pub(crate) fn enter<T>(&self, function: impl FnOnce() -> T) -> T {
        function()
    }

    pub(crate) const fn decided(&self, _: &Result<Decision, StoreError>) {}

    pub(crate) const fn failed(&self, _: &StoreError) {}
}
