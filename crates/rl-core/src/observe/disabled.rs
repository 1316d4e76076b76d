//! The same functions as in `enabled.rs`, silent.

use crate::store::StoreError;
use crate::{Decision, LimitReport, Subject};

pub(crate) const fn may_decisions_be_logged() -> bool {
    false
}

pub(crate) const fn decided(_: &Subject, _: &Decision) {}

pub(crate) const fn would_deny(_: &Subject, _: &LimitReport<'_>, _: bool) {}

pub(crate) const fn store_failed(_: &StoreError, _: &str) {}

pub(crate) const fn store_recovered() {}

pub(crate) const fn source_failed(_: &StoreError, _: &str) {}

pub(crate) const fn source_recovered() {}

pub(crate) const fn too_many_states(_: &str) {}

pub(crate) const fn fallback_failed(_: &StoreError, _: &str) {}

pub(crate) const fn overloaded(_: usize, _: &str) {}

pub(crate) const fn caught_up() {}

#[cfg(feature = "redis")]
pub(crate) const fn healed(_: u64) {}

#[cfg(feature = "redis")]
pub(crate) const fn not_connected(_: &StoreError) {}

#[cfg(feature = "redis")]
pub(crate) const fn can_evict(_: &str) {}

pub(crate) const fn missing_key() {}

pub(crate) const fn ambiguous_key() {}
