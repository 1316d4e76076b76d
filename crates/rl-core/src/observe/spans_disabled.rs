//! The spans of `spans.rs` without any effect, for builds without the feature `tracing`.

use crate::decision::Decision;
use crate::model::StoreError;

pub(crate) use NoSpan as RequestSpan;
pub(crate) use NoSpan as StoreSpan;

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
