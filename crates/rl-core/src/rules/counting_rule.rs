//! The rules that count a subject, for reports about the subject.

use super::over_limit::MissingKey;
use super::request_match::Applies;
use super::rule::RuleCost;
use super::rule_set::RuleSet;
use super::valid_rule::ValidRule;
use crate::key::{CountedAs, RequestInfo};
use crate::model::{Cost, Realm, Subject};

/// A rule that counts a subject: see [`RateLimiter::rules_of`](crate::RateLimiter::rules_of).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct CountingRule {
    /// The name of the rule.
    pub name: String,
    /// The subject under which the rule counts.
    pub subject: Subject,
    /// Whether the rule counts the subject alone, or only together with another one.
    pub counted_as: CountedAs,
    /// The cost that the rule sets. It is `None` if the rule sets none, or computes it from a
    /// request that is not known.
    pub cost: Option<Cost>,
    /// Whether the rule is in shadow, so that it denies nothing.
    pub is_shadow: bool,
    /// Whether the rule counts only requests that match it.
    pub has_match: bool,
    /// Whether a source, such as the records of a database, finds the limits of the rule.
    pub has_source: bool,
    /// The tier whose limits apply to the subject, as [`tier_by`](crate::rules::Rules::tier_by)
    /// returns it. It is `None` for the limits of the rule itself.
    pub tier: Option<String>,
    /// The names of the tiers with limits of their own. A tier in the extensions of a request
    /// replaces [`tier`](Self::tier).
    pub tiers: Vec<String>,
}

impl RuleSet {
    /// Returns the names of the rules, in their order.
    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.rules().iter().map(|rule| &*rule.name)
    }

    /// Returns the rules that may count one of `subjects`, in their order. If `request` is given,
    /// the rules that do not match it are left out.
    pub(crate) fn rules_of(
        &self,
        subjects: &[Subject],
        request: Option<&dyn RequestInfo>,
    ) -> Vec<CountingRule> {
        let view = request.map(|request| self.view(request));
        if view.as_ref().is_some_and(|view| self.is_exempt(view)) {
            return Vec::new();
        }
        let rules = self.rules().iter();
        let matching =
            rules.filter(|rule| view.as_ref().is_none_or(|view| rule.applies(view) != Applies::No));
        matching.filter_map(|rule| rule.counting(self, subjects, request)).collect()
    }
}

impl ValidRule {
    /// Returns how the rule counts the first of `subjects` that it may count.
    fn counting(
        &self,
        set: &RuleSet,
        subjects: &[Subject],
        request: Option<&dyn RequestInfo>,
    ) -> Option<CountingRule> {
        let counted = |subject: &Subject| (subject.clone(), self.counts(subject));
        let found = subjects.iter().map(counted);
        let found = found.filter(|(_, counted_as)| *counted_as != CountedAs::Nothing);
        // An extractor may not tell which subjects it returns. `min_by_key` returns the first of
        // the subjects that are counted alone.
        let (subject, counted_as) =
            found.min_by_key(|(_, counted_as)| std::cmp::Reverse(*counted_as))?;
        let cost = match (&self.cost, request) {
            (Some(RuleCost::Units(cost)), _) => Some(*cost),
            (Some(RuleCost::OfRequest(cost)), Some(request)) => Some(cost(request)),
            (Some(RuleCost::OfRequest(_)), None) | (None, _) => None,
        };
        let tier = set.tier_of(self, &subject).map(|tier| &self.tiers[tier].0);
        Some(CountingRule {
            name: self.name.to_string(),
            subject,
            counted_as,
            cost,
            is_shadow: self.is_shadow,
            has_match: self.matches.is_some() || !self.exempt.is_empty(),
            has_source: self.has_source(),
            tier: tier.map(|tier| tier.name().to_owned()),
            tiers: self.tiers.iter().map(|(tier, _)| tier.name().to_owned()).collect(),
        })
    }

    /// Returns how the rule may count `subject`.
    fn counts(&self, subject: &Subject) -> CountedAs {
        if self.per.is_empty() {
            let is_counted = *subject == Subject::global();
            return if is_counted { CountedAs::Itself } else { CountedAs::Nothing };
        }
        let may_share = matches!(self.on_missing_key, None | Some(MissingKey::Share));
        if may_share && *subject == Subject::new(Realm::Unknown, "") {
            return CountedAs::Itself;
        }
        let counts = self.per.iter().map(|key| key.counts(subject));
        counts.max().unwrap_or(CountedAs::Nothing)
    }

    /// Returns whether a source finds the limits of the rule, or of one of its tiers.
    fn has_source(&self) -> bool {
        let tiers = self.tiers.iter().map(|(_, limits)| limits);
        std::iter::once(&self.limits).chain(tiers).any(|limits| limits.policy().is_none())
    }
}
