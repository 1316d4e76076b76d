//! The functions of `log.rs` and the spans of `spans.rs` without any effect, for builds without
//! the feature `tracing`.

#[cfg(feature = "redis")]
use super::Ended;
use super::{EventLocation, Observer, RequestIds};
use crate::decision::Decision;
use crate::model::{Limit, StoreError};

pub(crate) use NoLog as LogObserver;
pub(crate) use NoSpan as RequestSpan;
pub(crate) use NoSpan as StoreSpan;

pub(crate) const fn may_decisions_be_logged() -> bool {
    false
}

/// The log, which writes nothing.
#[derive(Debug)]
pub(crate) struct NoLog;

impl Observer for NoLog {}

pub(crate) const fn shared_counters(_: EventLocation<'_>) {}

pub(crate) const fn share_raised(_: EventLocation<'_>, _: &str, _: Limit, _: u64, _: u32) {}

pub(crate) const fn unknown_rule(_: &str, _: &str) {}

pub(crate) const fn too_many_states(_: &str) {}

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
pub(crate) const fn rules_warned(_: &std::path::Path, _: &[String]) {}

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
