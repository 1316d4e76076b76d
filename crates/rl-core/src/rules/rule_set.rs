//! Rules whose values are valid, and the parts that they make of a request.

use std::fmt;
use std::sync::Arc;

use arrayvec::ArrayVec;

use super::invalid_rules::InvalidRules;
use super::over_limit::{MissingKey, OverLimit};
use super::overlap::overlapping;
use super::request_match::{CompiledMatch, Match, RequestView};
use super::rule::{RequestCost, Rule, RuleCost, RuleLimits};
use super::rule_list::{Rules, TierBy};
use crate::key::{AmbiguousKey, ClientAddress, KeyExtractor, RequestInfo, Tier};
use crate::model::{Cost, Realm, Subject};
use crate::policy::{Policy, PolicyBuilder};
use crate::store::{Namespace, Part};

/// The valid rules of one limiter.
pub(crate) struct RuleSet {
    rules: Box<[ValidRule]>,
    exempt: Box<[CompiledMatch]>,
    client: ClientAddress,
    tier_by: Option<TierBy>,
}

struct ValidRule {
    name: Arc<str>,
    // The namespace of the rule's counters.
    namespace: Namespace,
    matches: Option<CompiledMatch>,
    exempt: Box<[CompiledMatch]>,
    per: Box<[Arc<dyn KeyExtractor>]>,
    policy: Policy,
    tiers: Box<[(Tier, Policy)]>,
    cost: Option<RuleCost>,
    on_over_limit: Option<OverLimit>,
    on_missing_key: Option<MissingKey>,
    is_shadow: bool,
    is_disclosed: bool,
}

/// The settings of a layer for rules without settings of their own.
pub(crate) struct Defaults<'a> {
    pub(crate) on_missing_key: MissingKey,
    pub(crate) cost: Option<&'a RequestCost>,
}

/// The reason for which rules reject a request without counting it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Uncounted {
    MissingKey,
    AmbiguousKey,
}

impl From<AmbiguousKey> for Uncounted {
    fn from(_: AmbiguousKey) -> Self {
        Self::AmbiguousKey
    }
}

impl RuleSet {
    /// Checks the rules of a limiter with this namespace.
    ///
    /// # Errors
    ///
    /// Returns an error for the first value that is not valid.
    pub(crate) fn new(rules: &Rules, namespace: &Namespace) -> Result<Self, InvalidRules> {
        if rules.rules.is_empty() {
            return Err(InvalidRules::Empty);
        }
        let mut valid = Vec::<ValidRule>::with_capacity(rules.rules.len());
        for rule in &rules.rules {
            if valid.iter().any(|earlier| earlier.name == rule.name) {
                return Err(InvalidRules::NameTwice { rule: rule.name.to_string() });
            }
            valid.push(ValidRule::new(rule, namespace)?);
        }
        let overlap = |one: usize, other: usize| valid[one].may_overlap(&valid[other]);
        if let Some(places) = overlapping(valid.len(), Part::MAX + 1, &overlap) {
            let rules = places.into_iter().map(|place| valid[place].name.to_string());
            return Err(InvalidRules::TooMany { rules: rules.collect() });
        }
        let exempt =
            compile(&rules.exempt).map_err(|error| InvalidRules::Match { rule: None, error })?;
        let (client, tier_by) = (rules.client.clone(), rules.tier_by.clone());
        Ok(Self { rules: valid.into(), exempt, client, tier_by })
    }

    /// Returns the parts that the rules make of a request; `None` if the request is exempt, or no
    /// rule matches it.
    ///
    /// # Errors
    ///
    /// Returns an error if the request has no key or an ambiguous key, and is rejected for that.
    /// Also returns an error if its path can be read in two ways, and matches too many rules.
    pub(crate) fn parts_of(
        self: &Arc<Self>,
        request: &dyn RequestInfo,
        defaults: &Defaults<'_>,
    ) -> Result<Option<RequestParts>, Uncounted> {
        let view = RequestView::new(request, &self.client);
        if self.exempt.iter().any(|exempt| exempt.exempts(&view)) {
            return Ok(None);
        }
        let mut parts = ArrayVec::new();
        for (place, rule) in self.rules.iter().enumerate() {
            if !rule.applies(&view) {
                continue;
            }
            let missing = rule.on_missing_key.unwrap_or(defaults.on_missing_key);
            let subject = match rule.subject(request, missing) {
                Ok(Some(subject)) => subject,
                Ok(None) => continue,
                // A rule in shadow denies nothing.
                Err(_) if rule.is_shadow => continue,
                Err(uncounted) => return Err(uncounted),
            };
            let tier = self.tier(rule, request, &subject);
            let cost = rule.cost(request, defaults);
            // The check of the rules bounds those that match one form of a path. The raw and the
            // normalized form of a path together may match more, so the path is ambiguous.
            let pushed = parts.try_push(RulePart { place, tier, subject, cost });
            if pushed.is_err() && !rule.is_shadow {
                return Err(Uncounted::AmbiguousKey);
            }
        }
        Ok((!parts.is_empty()).then(|| RequestParts { set: Arc::clone(self), parts }))
    }

    /// Returns the namespace of each rule, with the policies that may count in it.
    pub(crate) fn policies(&self) -> impl Iterator<Item = (&Namespace, Vec<Policy>)> {
        self.rules.iter().map(|rule| {
            let tiers = rule.tiers.iter().map(|(_, policy)| policy);
            (&rule.namespace, std::iter::once(&rule.policy).chain(tiers).cloned().collect())
        })
    }

    /// Returns the part of `subject` under the rule called `name`; `None` if there is no such rule.
    pub(crate) fn part_of_rule<'a>(
        &'a self,
        name: &str,
        subject: &'a Subject,
        cost: Cost,
    ) -> Option<Part<'a>> {
        let rule = self.rules.iter().find(|rule| &*rule.name == name)?;
        let tier = self.tier_by.as_ref().and_then(|tier_by| rule.position(&tier_by(subject)?));
        Some(rule.part(subject, tier, cost))
    }

    /// Returns the position of the tier of a request in the rule.
    fn tier(
        &self,
        rule: &ValidRule,
        request: &dyn RequestInfo,
        subject: &Subject,
    ) -> Option<usize> {
        if rule.tiers.is_empty() {
            return None;
        }
        match (request.tier(), &self.tier_by) {
            (Some(tier), _) => rule.position(tier),
            (None, Some(tier_by)) => rule.position(&tier_by(subject)?),
            (None, None) => None,
        }
    }
}

impl ValidRule {
    fn new(rule: &Rule, namespace: &Namespace) -> Result<Self, InvalidRules> {
        let name = || rule.name.to_string();
        let namespace = namespace
            .rule(&rule.name)
            .map_err(|_| InvalidRules::Name { rule: clip(&rule.name) })?;
        let of_match = |error| InvalidRules::Match { rule: Some(name()), error };
        let matches =
            rule.matches.as_ref().map(CompiledMatch::new).transpose().map_err(of_match)?;
        let of_tier = |tier: Option<&str>| {
            let tier = tier.map(str::to_owned);
            move |error| InvalidRules::Policy {
                rule: rule.name.to_string(),
                tier,
                error: Box::new(error),
            }
        };
        let mut tiers = Vec::<(Tier, Policy)>::with_capacity(rule.tiers.len());
        for (tier, limits) in &rule.tiers {
            if tiers.iter().any(|(earlier, _)| earlier.name() == &**tier) {
                return Err(InvalidRules::TierTwice { rule: name(), tier: tier.to_string() });
            }
            let policy = limits.build().map_err(of_tier(Some(tier)))?;
            tiers.push((Tier::new(tier), policy));
        }
        Ok(Self {
            namespace,
            matches,
            exempt: compile(&rule.exempt).map_err(of_match)?,
            per: rule.per.as_slice().into(),
            policy: rule.limits.build().map_err(of_tier(None))?,
            tiers: tiers.into(),
            cost: rule.cost.clone(),
            on_over_limit: rule.on_over_limit,
            on_missing_key: rule.on_missing_key,
            is_shadow: rule.is_shadow,
            is_disclosed: rule.is_disclosed.unwrap_or(!rule.per.is_empty()),
            name: Arc::clone(&rule.name),
        })
    }

    fn may_overlap(&self, other: &Self) -> bool {
        match (&self.matches, &other.matches) {
            (Some(one), Some(other)) => one.may_overlap(other),
            _ => true,
        }
    }

    fn applies(&self, view: &RequestView<'_>) -> bool {
        self.matches.as_ref().is_none_or(|matches| matches.applies(view))
            && !self.exempt.iter().any(|exempt| exempt.exempts(view))
    }

    /// Returns the subject of a request; `None` if the rule does not count requests without a key.
    fn subject(
        &self,
        request: &dyn RequestInfo,
        missing: MissingKey,
    ) -> Result<Option<Subject>, Uncounted> {
        if self.per.is_empty() {
            return Ok(Some(Subject::global()));
        }
        for key in &self.per {
            if let Some(subject) = key.subject(request)? {
                return Ok(Some(subject));
            }
        }
        match missing {
            MissingKey::Reject => Err(Uncounted::MissingKey),
            MissingKey::Allow => Ok(None),
            MissingKey::Share => Ok(Some(Subject::new(Realm::Unknown, ""))),
        }
    }

    fn cost(&self, request: &dyn RequestInfo, defaults: &Defaults<'_>) -> Cost {
        match &self.cost {
            Some(RuleCost::Units(cost)) => *cost,
            Some(RuleCost::OfRequest(cost)) => cost(request),
            None => defaults.cost.map_or(Cost::ONE, |cost| cost(request)),
        }
    }

    fn position(&self, tier: &Tier) -> Option<usize> {
        self.tiers.iter().position(|(known, _)| known == tier)
    }

    fn policy(&self, tier: Option<usize>) -> &Policy {
        tier.map_or(&self.policy, |place| &self.tiers[place].1)
    }

    fn part<'a>(&'a self, subject: &'a Subject, tier: Option<usize>, cost: Cost) -> Part<'a> {
        let part = Part::new(subject, self.policy(tier), cost).with_namespace(&self.namespace);
        let part = if self.is_shadow { part.shadow() } else { part };
        if self.is_disclosed { part } else { part.undisclosed() }
    }
}

impl RuleLimits {
    fn build(&self) -> Result<Policy, crate::policy::InvalidPolicy> {
        match self {
            Self::Builder(policy) => PolicyBuilder::build(policy.clone()),
            Self::Policy(policy) => Ok(policy.clone()),
        }
    }
}

fn compile(matches: &[Match]) -> Result<Box<[CompiledMatch]>, super::InvalidMatch> {
    matches.iter().map(CompiledMatch::new).collect()
}

/// Returns at most 80 characters of a text for an error.
fn clip(text: &str) -> String {
    text.chars().take(80).collect()
}

/// The parts that rules make of one request.
#[derive(Clone)]
pub(crate) struct RequestParts {
    set: Arc<RuleSet>,
    parts: ArrayVec<RulePart, { Part::MAX }>,
}

#[derive(Clone)]
struct RulePart {
    // The position of the rule, and of the tier in it.
    place: usize,
    tier: Option<usize>,
    subject: Subject,
    cost: Cost,
}

impl RequestParts {
    /// Returns the parts for a limiter.
    pub(crate) fn parts(&self) -> ArrayVec<Part<'_>, { Part::MAX }> {
        let parts = self.parts.iter();
        let rules = parts.map(|part| (part, &self.set.rules[part.place]));
        rules.map(|(part, rule)| rule.part(&part.subject, part.tier, part.cost)).collect()
    }

    /// Returns the subject of the part at `index`, and the name of its rule.
    pub(crate) fn rule(&self, index: usize) -> Option<(&Subject, &str)> {
        let part = self.parts.get(index)?;
        Some((&part.subject, &self.set.rules[part.place].name))
    }

    /// Returns whether the rule of the part at `index` has a cost of its own.
    pub(crate) fn has_own_cost(&self, index: usize) -> bool {
        let part = self.parts.get(index);
        part.is_some_and(|part| self.set.rules[part.place].cost.is_some())
    }

    /// Returns the subject of the first rule that has extractors, or of the first rule.
    pub(crate) fn main_subject(&self) -> &Subject {
        let has_key = |part: &&RulePart| !self.set.rules[part.place].per.is_empty();
        let main = self.parts.iter().find(has_key).unwrap_or(&self.parts[0]);
        &main.subject
    }

    /// Returns the subjects with the positions of their rules.
    pub(crate) fn subjects(&self) -> impl Iterator<Item = (usize, &Subject)> {
        self.parts.iter().map(|part| (part.place, &part.subject))
    }

    /// Returns whether one of the parts has a concurrency limit.
    pub(crate) fn has_permits(&self) -> bool {
        let policy = |part: &RulePart| self.set.rules[part.place].policy(part.tier).has_permits();
        self.parts.iter().any(policy)
    }

    /// Returns how a request is handled if the parts at these positions deny it.
    pub(crate) fn on_over_limit(
        &self,
        denying: impl Iterator<Item = usize>,
        default: OverLimit,
    ) -> OverLimit {
        let rules = denying.filter_map(|index| self.parts.get(index));
        let settings =
            rules.map(|part| self.set.rules[part.place].on_over_limit.unwrap_or(default));
        settings.reduce(stricter).unwrap_or(default)
    }

    /// Returns whether a rule of the request has a setting that satisfies `predicate`.
    pub(crate) fn may(&self, default: OverLimit, predicate: fn(OverLimit) -> bool) -> bool {
        let setting = |part: &RulePart| self.set.rules[part.place].on_over_limit.unwrap_or(default);
        self.parts.iter().any(|part| predicate(setting(part)))
    }
}

/// Returns the setting that applies if two rules deny. Rejecting takes precedence over waiting, and
/// waiting over degrading. If both wait, the shorter wait applies.
fn stricter(one: OverLimit, other: OverLimit) -> OverLimit {
    match (one, other) {
        (OverLimit::Reject, _) | (_, OverLimit::Reject) => OverLimit::Reject,
        (
            OverLimit::Wait { at_most, queue },
            OverLimit::Wait { at_most: other_wait, queue: other_queue },
        ) => OverLimit::Wait { at_most: at_most.min(other_wait), queue: queue.min(other_queue) },
        (wait @ OverLimit::Wait { .. }, _) | (_, wait @ OverLimit::Wait { .. }) => wait,
        (OverLimit::Degrade, OverLimit::Degrade) => OverLimit::Degrade,
    }
}

impl fmt::Debug for RequestParts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = self.parts.iter().map(|part| &self.set.rules[part.place].name);
        f.debug_list().entries(names).finish()
    }
}

impl fmt::Debug for RuleSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rules = self.rules.iter().map(|rule| (&rule.name, &rule.policy));
        f.debug_map().entries(rules).finish()
    }
}
