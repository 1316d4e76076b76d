//! The labels of a decision: its parts by rule, and the limits that responses list.

use std::sync::Arc;

use super::labels::{LabelledParts, Labels, PartLabels};
use super::parts::PartStatus;
use super::{Decision, LimitStatus, Origin};

impl Decision {
    /// Returns the labels of the part that the public methods describe.
    #[inline]
    pub(super) fn labels_of_described(&self) -> PartLabels<'_> {
        match self.linked.get() {
            None => PartLabels::new(None, 0, self.origin != Origin::Policy),
            Some(_) => self.labels_of(self.governing_part().unwrap_or(0), self.described()),
        }
    }

    /// Returns the labels of the part at `index`, on which `part` was decided.
    pub(super) fn labels_of(&self, index: usize, part: &Self) -> PartLabels<'_> {
        let labels = self.linked.get().map(|linked| &linked.labels);
        PartLabels::new(labels, index, part.origin != Origin::Policy)
    }

    /// Returns the labels of the parts, to change them.
    pub(crate) fn labels_mut(&mut self) -> &mut Labels {
        &mut self.linked.get_or_new().labels
    }

    /// Returns the status of the part that the [rule](crate::rules) called `name` counts. Returns
    /// `None` if this rule does not count the request, or if neither a store nor the policy itself
    /// decided.
    ///
    /// # Examples
    ///
    /// ```
    /// use rl_core::key::Identified;
    /// use rl_core::rules::{Rule, Rules};
    /// use rl_core::{Limit, RateLimiter, Subject};
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let tokens = Rule::named("tokens").per(Identified).limit(Limit::per_minute(10_000));
    /// let limiter = RateLimiter::builder().rules(Rules::new().rule(tokens)).build()?;
    /// let decision = limiter.rule("tokens").of(&Subject::user("alice")).cost(1_200).check().await;
    /// let tokens = decision.rule("tokens").and_then(|part| part.limits().next());
    /// assert_eq!(tokens.map(|limit| limit.remaining()), Some(8_800));
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn rule(&self, name: &str) -> Option<PartStatus<'_>> {
        self.parts().find(|part| part.rule() == Some(name))
    }

    /// Sets the rules that count the parts.
    pub(crate) fn labelled(mut self, rules: Arc<dyn LabelledParts>) -> Self {
        self.labels_mut().rules = Some(rules);
        self
    }

    /// Returns the limits that responses list: the enforced limits of all parts that are enforced
    /// and disclosed.
    pub(crate) fn listed(&self) -> impl Iterator<Item = LimitStatus<'_>> {
        let listed = self.parts().filter(|part| part.is_enforced() && part.is_disclosed());
        listed.flat_map(|part| part.limits().filter(|limit| !limit.limit().is_shadow()))
    }
}
