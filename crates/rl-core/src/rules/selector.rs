//! Rules that a service selects itself, instead of by a match.

use std::sync::Arc;

use crate::key::RequestInfo;
use crate::model::{Cost, Subject};
use crate::policy::Policy;

/// Selects rules for requests in a way that no [`Match`](super::Match) expresses, such as by the
/// descriptors that a gateway sends.
///
/// [`Rules::select_with`](super::Rules::select_with) sets it, and
/// [`Rule::selected`](super::Rule::selected) marks the rules that it selects. The selected rules of a
/// request are decided in one step with those that match it.
pub trait RuleSelector: Send + Sync + 'static {
    /// Calls `select` for each rule that counts `request`.
    fn select(&self, request: &dyn RequestInfo, select: &mut dyn FnMut(SelectedRule));

    /// Returns whether only selected rules count `request`, and none that matches it. The default
    /// returns false.
    fn selects_all(&self, request: &dyn RequestInfo) -> bool {
        let _ = request;
        false
    }
}

/// A rule that counts a request, with the subject that it counts.
#[derive(Clone, Debug)]
#[must_use]
pub struct SelectedRule {
    pub(super) place: usize,
    pub(super) subject: Subject,
    pub(super) cost: Option<Cost>,
    pub(super) policy: Option<Policy>,
}

impl SelectedRule {
    /// Selects the rule at `place` among all rules of the set, which counts `subject`. A place
    /// beyond the last rule selects nothing.
    pub const fn new(place: usize, subject: Subject) -> Self {
        Self { place, subject, cost: None, policy: None }
    }

    /// Sets the cost of the request under the rule. Defaults to the cost of the rule, or else that
    /// of the layer.
    pub fn cost(mut self, cost: impl Into<Cost>) -> Self {
        self.cost = Some(cost.into());
        self
    }

    /// Replaces the limits of the rule for this request. Limits of the same period and algorithm
    /// continue to use their counters.
    pub fn policy(mut self, policy: Policy) -> Self {
        self.policy = Some(policy);
        self
    }
}

impl<T: RuleSelector + ?Sized> RuleSelector for Arc<T> {
    fn select(&self, request: &dyn RequestInfo, select: &mut dyn FnMut(SelectedRule)) {
        (**self).select(request, select);
    }

    fn selects_all(&self, request: &dyn RequestInfo) -> bool {
        (**self).selects_all(request)
    }
}
