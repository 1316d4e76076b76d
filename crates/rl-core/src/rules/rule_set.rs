//! Rules whose values are valid, and the parts that they make of a request.

use std::collections::HashSet;
use std::fmt;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use arrayvec::ArrayVec;

use super::invalid_rules::InvalidRules;
use super::match_index::MatchIndex;
use super::over_limit::{MissingKey, OverLimit};
use super::pseudonyms::pseudonyms;
use super::request_match::{Applies, CompiledMatch, RequestView};
use super::rule::RuleCost;
use super::rule_list::{Rules, TierBy};
use super::selector::{RuleSelector, SelectedRule};
use super::valid_rule::{Defaults, Uncounted, ValidLimits, ValidRule, compile};
use crate::decision::{Decision, LabelledParts, RuleLabel};
use crate::headers::ResponseInfo;
use crate::key::{ClientAddress, CountedAs, RequestInfo};
use crate::model::{Cost, Realm, Subject};
use crate::observe::{self, RequestIds, Transition};
use crate::policy::Policy;
use crate::source::PolicySource;
use crate::store::{Namespace, Part};

/// The time without requests that too many rules match, after which the next one is logged.
const TOO_MANY_PERIOD: Duration = Duration::from_secs(60);

/// The valid rules of one limiter.
pub(crate) struct RuleSet {
    rules: Box<[ValidRule]>,
    index: MatchIndex,
    exempt: Box<[CompiledMatch]>,
    exempt_index: MatchIndex,
    client: ClientAddress,
    tier_by: Option<TierBy>,
    selector: Option<Arc<dyn RuleSelector>>,
    namespace: Namespace,
    /// The condition that requests are rejected because too many rules match them.
    rejections: Transition,
    /// The condition that rules in shadow and stored rules do not count requests, because too many
    /// rules match them.
    left_out: Transition,
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
        let mut names = HashSet::with_capacity(rules.rules.len());
        for rule in &rules.rules {
            if !names.insert(rule.name.to_ascii_lowercase()) {
                return Err(InvalidRules::NameTwice { rule: rule.name.to_string() });
            }
        }
        for (rule, pseudonym) in rules.rules.iter().zip(pseudonyms(&rules.rules, namespace)) {
            valid.push(ValidRule::new(rule, namespace, pseudonym, &rules.client)?);
        }
        let of_all = valid.iter().filter(|rule| rule.counts_all());
        let of_all: Vec<String> = of_all.map(|rule| rule.name.to_string()).collect();
        if of_all.len() > Part::MAX {
            return Err(InvalidRules::TooMany { rules: of_all });
        }
        let exempt = compile(&rules.exempt, &rules.client)
            .map_err(|error| InvalidRules::Match { rule: None, error })?;
        let matched = valid.iter().enumerate().filter(|(_, rule)| !rule.is_selected);
        Ok(Self {
            index: MatchIndex::new(matched.map(|(place, rule)| (place, rule.matches.as_ref()))),
            rules: valid.into(),
            exempt_index: MatchIndex::new(exempt.iter().map(Some).enumerate()),
            exempt,
            client: rules.client.clone(),
            tier_by: rules.tier_by.clone(),
            selector: rules.selector.clone(),
            namespace: namespace.clone(),
            rejections: Transition::new(TOO_MANY_PERIOD),
            left_out: Transition::new(TOO_MANY_PERIOD),
        })
    }

    /// Returns the parts that the rules make of a request; `None` if the request is exempt, or no
    /// rule matches it.
    ///
    /// # Errors
    ///
    /// Returns an error if the request has to be rejected:
    ///
    /// * It has no key, an ambiguous key, or a client whose address is unknown.
    /// * More than eight rules match it that are not in shadow.
    /// * A rule matches it that is not in shadow, after 32 other rules.
    pub(crate) fn parts_of(
        self: &Arc<Self>,
        request: &dyn RequestInfo,
        defaults: &Defaults<'_>,
    ) -> Result<Option<RequestParts>, Uncounted<'_>> {
        let view = self.view(request);
        let selector = self.selector.as_deref();
        let is_matched = selector.is_none_or(|selector| !selector.selects_all(request));
        if is_matched && self.is_exempt(&view) {
            return Ok(None);
        }
        let mut parts = ArrayVec::new();
        let found = is_matched.then(|| self.index.find(&view));
        for place in found.into_iter().flatten() {
            let rule = &self.rules[place];
            let missing = rule.on_missing_key.unwrap_or(defaults.on_missing_key);
            let subject = match rule.subject(&view, missing) {
                Ok(Some(subject)) => subject,
                Ok(None) => continue,
                Err(uncounted) => {
                    let is_one_too_many = matches!(uncounted, Uncounted::TooManyRules);
                    let gives_way = rule.is_shadow || rule.is_stored && is_one_too_many;
                    if is_one_too_many {
                        self.report_too_many(&parts, place, gives_way, request);
                    }
                    // A rule in shadow denies nothing.
                    if gives_way {
                        continue;
                    }
                    return Err(uncounted);
                }
            };
            let (tier, cost) = (self.tier(rule, request, &subject), rule.cost(request, defaults));
            let part = RulePart { place, tier, subject, cost, policy: None };
            self.push(&mut parts, part, request)?;
        }
        if let Some(selector) = selector {
            self.select(selector, &mut parts, request, defaults)?;
        }
        Ok((!parts.is_empty()).then(|| RequestParts::new(self, parts)))
    }

    /// Returns the parts that the disclosed rules make of other requests of the client that sent
    /// this one, whatever their method and path are. Each element has as many parts as a decision
    /// can have. Rules in shadow are left out, and those after the first 32.
    ///
    /// # Errors
    ///
    /// Returns an error if the key is ambiguous, or if no rule finds one.
    pub(crate) fn parts_of_client(
        self: &Arc<Self>,
        request: &dyn RequestInfo,
        defaults: &Defaults<'_>,
    ) -> Result<Vec<RequestParts>, Uncounted<'_>> {
        let (view, mut parts, mut missing) = (self.view(request), Vec::new(), None);
        for (place, rule) in self.rules.iter().enumerate() {
            match rule.subject_of_client(&view, defaults) {
                Ok(Some(subject)) => {
                    let tier = self.tier(rule, request, &subject);
                    let cost = rule.cost(request, defaults);
                    parts.push(RulePart { place, tier, subject, cost, policy: None });
                }
                Ok(None) => {}
                Err(Uncounted::TooManyRules) => break,
                Err(error @ Uncounted::AmbiguousKey) => return Err(error),
                Err(error) => missing = missing.or(Some(error)),
            }
        }
        if let Some(error) = missing.filter(|_| parts.is_empty()) {
            return Err(error);
        }
        let chunks = parts.chunks(Part::MAX).map(|chunk| chunk.iter().cloned().collect());
        Ok(chunks.map(|chunk| RequestParts::new(self, chunk)).collect())
    }

    /// Adds the parts of the rules that the selector selects for a request.
    fn select(
        &self,
        selector: &dyn RuleSelector,
        parts: &mut ArrayVec<RulePart, { Part::MAX }>,
        request: &dyn RequestInfo,
        defaults: &Defaults<'_>,
    ) -> Result<(), Uncounted<'static>> {
        let mut pushed = Ok(());
        selector.select(request, &mut |selected| {
            let SelectedRule { place, subject, cost, policy } = selected;
            let (Some(rule), Ok(())) = (self.rules.get(place), pushed) else { return };
            let cost = cost.unwrap_or_else(|| rule.cost(request, defaults));
            let tier = self.tier(rule, request, &subject);
            let part = RulePart { place, tier, subject, cost, policy };
            pushed = self.push(parts, part, request);
        });
        pushed
    }

    /// Adds a part to those of a request.
    ///
    /// # Errors
    ///
    /// Returns an error if the request has too many parts.
    fn push(
        &self,
        parts: &mut ArrayVec<RulePart, { Part::MAX }>,
        part: RulePart,
        request: &dyn RequestInfo,
    ) -> Result<(), Uncounted<'static>> {
        match parts.try_push(part) {
            Ok(()) => Ok(()),
            Err(error) => self.push_to_full(parts, error.element(), request),
        }
    }

    /// Adds a part to those of a request that has as many as a decision can have. Logs a line that
    /// names the rules.
    ///
    /// A part in shadow is left out. Any other part replaces the last one in shadow. If none is in
    /// shadow, a stored part is left out, and any other part replaces the last stored one.
    ///
    /// A stored rule gives way because its author knows only some of the rules. Otherwise a single
    /// row of a database could make the service reject every request that the rules match.
    ///
    /// # Errors
    ///
    /// Returns an error if none of the rules is stored or in shadow.
    #[cold]
    fn push_to_full(
        &self,
        parts: &mut ArrayVec<RulePart, { Part::MAX }>,
        part: RulePart,
        request: &dyn RequestInfo,
    ) -> Result<(), Uncounted<'static>> {
        let rule = |part: &RulePart| &self.rules[part.place];
        let is_in_shadow: fn(&ValidRule) -> bool = |rule| rule.is_shadow;
        for gives_way in [is_in_shadow, |rule| rule.is_stored] {
            let is_left_out = gives_way(rule(&part));
            let replaced = parts.iter().rposition(|part| gives_way(rule(part)));
            if is_left_out || replaced.is_some() {
                self.report_too_many(parts, part.place, true, request);
                if let Some(index) = replaced.filter(|_| !is_left_out) {
                    parts.remove(index);
                    parts.push(part);
                }
                return Ok(());
            }
        }
        self.report_too_many(parts, part.place, false, request);
        Err(Uncounted::TooManyRules)
    }

    /// Logs, unless this happened within the last minute, that the rule at `place` is one too many
    /// for a request, beside the rules of `parts`. With `is_left_out`, a rule in shadow or a stored
    /// rule does not count the request; otherwise the request is rejected.
    #[cold]
    fn report_too_many(
        &self,
        parts: &[RulePart],
        place: usize,
        is_left_out: bool,
        request: &dyn RequestInfo,
    ) {
        let (condition, consequence) = if is_left_out {
            (&self.left_out, "a rule in shadow or of the database does not count the request")
        } else {
            (&self.rejections, "the request is rejected with 503")
        };
        // The condition ends if it has not occurred for a while. The next occurrence begins it.
        condition.ended();
        if condition.occurred() {
            let places = parts.iter().map(|part| part.place).chain([place]);
            let names = places.map(|place| &*self.rules[place].name);
            let rules = names.collect::<Vec<_>>().join(", ");
            let ids = RequestIds::read(|name| request.header(name));
            observe::too_many_rules(self.namespace.as_str(), &rules, consequence, &ids);
        }
    }

    /// Creates the view of a request.
    pub(super) fn view<'a>(&'a self, request: &'a dyn RequestInfo) -> RequestView<'a> {
        RequestView::new(request, &self.client)
    }

    /// Returns the rules, in the order in which they were added.
    pub(super) fn rules(&self) -> &[ValidRule] {
        &self.rules
    }

    /// Returns whether a request is exempt from all rules.
    pub(super) fn is_exempt(&self, view: &RequestView<'_>) -> bool {
        self.exempt_index.find(view).into_iter().any(|place| self.exempt[place].exempts(view))
    }

    /// Returns the namespace of each rule, with the policies that the rule itself sets.
    pub(crate) fn policies(&self) -> impl Iterator<Item = (&Namespace, Vec<Policy>)> {
        self.rules.iter().map(|rule| (&rule.namespace, rule.own_policies()))
    }

    /// Returns the name of each rule, with the policies that it sets and the largest cost that is
    /// known.
    pub(crate) fn known_costs(&self) -> impl Iterator<Item = (&str, Vec<Policy>, Cost)> {
        self.rules.iter().map(|rule| (&*rule.name, rule.own_policies(), rule.known_cost()))
    }

    /// Returns the namespace of each rule, with the policies that the rule itself sets, by the
    /// names of their tiers. The name is empty for clients without a tier.
    pub(crate) fn policies_by_tier(
        &self,
    ) -> impl Iterator<Item = (&Namespace, Vec<(String, Policy)>)> {
        self.rules.iter().map(|rule| (&rule.namespace, rule.policies_by_tier()))
    }

    /// Returns the part with which a rule counts `subject`. Returns `None` if there is no such
    /// rule, or if a source has to find its limits. `policy` replaces the limits of the rule.
    pub(crate) fn part_of_rule<'a>(
        &'a self,
        of: OfRule<'a>,
        policy: Option<&'a Policy>,
        cost: Cost,
    ) -> Option<Part<'a>> {
        let rule = self.rule(of.rule)?;
        let own = || rule.limits(self.tier_in_rule(rule, of)).policy();
        Some(rule.part(of.subject, policy.or_else(own)?, cost))
    }

    /// Returns the label of the rule called `name`.
    pub(crate) fn label_of_rule(&self, name: &str) -> Option<Arc<RuleLabel>> {
        Some(Arc::clone(&self.rule(name)?.label))
    }

    /// Returns whether the rule called `name` is in shadow, if there is such a rule.
    pub(crate) fn is_in_shadow(&self, name: &str) -> Option<bool> {
        Some(self.rule(name)?.is_shadow)
    }

    /// Returns the definition of the rule called `name`, if it has one.
    pub(crate) fn definition(&self, name: &str) -> Option<Arc<str>> {
        self.rule(name)?.definition.clone()
    }

    fn rule(&self, name: &str) -> Option<&ValidRule> {
        self.rules.iter().find(|rule| &*rule.name == name)
    }

    /// Returns the parts of a request that has only one: the part with which a rule counts
    /// `subject`. Returns `None` if there is no such rule.
    pub(crate) fn parts_of_rule(
        self: &Arc<Self>,
        of: OfRule<'_>,
        cost: Cost,
    ) -> Option<RequestParts> {
        let place = self.rules.iter().position(|rule| &*rule.name == of.rule)?;
        let tier = self.tier_in_rule(&self.rules[place], of);
        let part = RulePart { place, tier, subject: of.subject.clone(), cost, policy: None };
        Some(RequestParts::new(self, ArrayVec::from_iter([part])))
    }

    /// Returns the position of a tier among the tiers of the rule. The tier is the named one, or
    /// else the one that `tier_by` returns.
    fn tier_in_rule(&self, rule: &ValidRule, of: OfRule<'_>) -> Option<usize> {
        let named = |tier: &str| rule.tiers.iter().position(|(known, _)| known.name() == tier);
        of.tier.map_or_else(|| self.tier_of(rule, of.subject), named)
    }

    /// Returns the position of a subject's tier among the tiers of the rule. Returns `None` if the
    /// subject has no tier, or if the rule does not name it.
    pub(super) fn tier_of(&self, rule: &ValidRule, subject: &Subject) -> Option<usize> {
        self.tier_by.as_ref().and_then(|tier_by| rule.position(&tier_by(subject)?))
    }

    /// Returns the position of a request's tier among the tiers of the rule. The tier is the one in
    /// the request's extensions, or else the one that `tier_by` returns. Returns `None` if the rule
    /// does not name the tier.
    fn tier(
        &self,
        rule: &ValidRule,
        request: &dyn RequestInfo,
        subject: &Subject,
    ) -> Option<usize> {
        if rule.tiers.is_empty() {
            return None;
        }
        match request.tier() {
            Some(tier) => rule.position(tier),
            None => self.tier_of(rule, subject),
        }
    }

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

/// A subject under the rule of a limiter, by the name of the rule.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OfRule<'a> {
    pub(crate) rule: &'a str,
    /// The name of the tier of the request, if it is not that of `tier_by`.
    pub(crate) tier: Option<&'a str>,
    pub(crate) subject: &'a Subject,
}

/// The parts that rules make of one request.
///
/// A part whose source finds no limits for the subject is not counted, and is not in the decision.
/// The methods take the position of a part in the decision.
#[derive(Clone)]
pub(crate) struct RequestParts {
    set: Arc<RuleSet>,
    parts: ArrayVec<RulePart, { Part::MAX }>,
    // The policies that sources have found, one for each part; empty if no part needs a look-up.
    found: Box<[OnceLock<Option<Policy>>]>,
}

#[derive(Clone)]
struct RulePart {
    // The position of the rule, and of the tier in it.
    place: usize,
    tier: Option<usize>,
    subject: Subject,
    cost: Cost,
    // The policy that a selector has set in place of the rule's.
    policy: Option<Policy>,
}

impl RulePart {
    /// Returns the policy of the part, unless a source has to find it.
    fn policy<'a>(&'a self, rule: &'a ValidRule) -> Option<&'a Policy> {
        self.policy.as_ref().or_else(|| rule.limits(self.tier).policy())
    }
}

impl RequestParts {
    fn new(set: &Arc<RuleSet>, parts: ArrayVec<RulePart, { Part::MAX }>) -> Self {
        let has_source = |part: &RulePart| part.policy(&set.rules[part.place]).is_none();
        let lookups = if parts.iter().any(has_source) { parts.len() } else { 0 };
        let found = (0..lookups).map(|_| OnceLock::new()).collect();
        Self { set: Arc::clone(set), parts, found }
    }

    /// Returns the look-ups that are not done yet. Each consists of the index for
    /// [`set_policy`](Self::set_policy), the source and the subject.
    pub(crate) fn lookups(&self) -> impl Iterator<Item = (usize, &dyn PolicySource, &Subject)> {
        let parts = self.parts.iter().zip(&self.found).enumerate();
        parts.filter_map(|(index, (part, found))| {
            match self.set.rules[part.place].limits(part.tier) {
                ValidLimits::Source(source) if part.policy.is_none() && found.get().is_none() => {
                    Some((index, &**source, &part.subject))
                }
                ValidLimits::Source(_) | ValidLimits::Policy(_) => None,
            }
        })
    }

    /// Returns the subject of the look-up at `index`.
    pub(crate) fn subject_of_lookup(&self, index: usize) -> &Subject {
        &self.parts[index].subject
    }

    /// Returns whether the rule of the look-up at `index` is in shadow.
    pub(crate) fn is_in_shadow(&self, index: usize) -> bool {
        self.set.rules[self.parts[index].place].is_shadow
    }

    /// Sets the result of the look-up at `index`.
    pub(crate) fn set_policy(&self, index: usize, policy: Option<Policy>) {
        let _ = self.found[index].set(policy);
    }

    /// Sets the policies that a decision on the request was made under, without a look-up.
    pub(crate) fn set_policies_of(&self, decision: &Decision) {
        for index in 0..self.found.len() {
            let of_part = decision.of_part(index);
            self.set_policy(index, of_part.and_then(|part| part.policy().cloned()));
        }
    }

    /// Returns the parts that are counted, with their rules and policies.
    fn counted(&self) -> impl Iterator<Item = (&RulePart, &ValidRule, &Policy)> {
        self.parts.iter().enumerate().filter_map(|(index, part)| {
            let rule = &self.set.rules[part.place];
            let found = || self.found.get(index)?.get()?.as_ref();
            let policy = part.policy(rule).or_else(found)?;
            Some((part, rule, policy))
        })
    }

    /// Returns the parts for a limiter.
    pub(crate) fn parts(&self) -> ArrayVec<Part<'_>, { Part::MAX }> {
        let counted = self.counted();
        counted.map(|(part, rule, policy)| rule.part(&part.subject, policy, part.cost)).collect()
    }

    /// Returns a part for each policy under which requests of the first part's subject may be
    /// counted by its rule: the policy of the part, and those of the other tiers.
    pub(crate) fn parts_of_each_tier(&self) -> Vec<Part<'_>> {
        let Some(part) = self.parts.first() else { return Vec::new() };
        let rule = &self.set.rules[part.place];
        let tiers = std::iter::once(None).chain((0..rule.tiers.len()).map(Some));
        let others = tiers.filter(|tier| *tier != part.tier);
        let others = others.filter_map(|tier| rule.limits(tier).policy());
        let own = self.counted().map(|(.., policy)| policy);
        own.chain(others).map(|policy| rule.part(&part.subject, policy, part.cost)).collect()
    }

    /// Returns the subject of the part at `index`, and the name of its rule.
    pub(crate) fn rule(&self, index: usize) -> Option<(&Subject, &str)> {
        let (part, rule, _) = self.counted().nth(index)?;
        Some((&part.subject, &rule.name))
    }

    /// Returns whether the set of the request has a rule of this name, whether the rule counts the
    /// request or not.
    pub(crate) fn has_rule(&self, name: &str) -> bool {
        self.set.rules.iter().any(|rule| &*rule.name == name)
    }

    /// Returns the subjects of the parts that are counted, in their order.
    pub(crate) fn counted_subjects(&self) -> impl Iterator<Item = &Subject> {
        self.counted().map(|(part, ..)| &part.subject)
    }

    /// Returns whether the rule of the part at `index` has a cost of its own.
    pub(crate) fn has_own_cost(&self, index: usize) -> bool {
        self.counted().nth(index).is_some_and(|(_, rule, _)| rule.has_own_cost())
    }

    /// Returns the final costs that rules read from the response, with the positions of their
    /// parts.
    pub(crate) fn costs_of_response(
        &self,
        response: &dyn ResponseInfo,
    ) -> impl Iterator<Item = (usize, Cost)> {
        let counted = self.counted().enumerate();
        counted.filter_map(move |(index, (_, rule, _))| {
            let cost = rule.response_cost.as_ref()?;
            Some((index, cost(response)?))
        })
    }

    /// Returns whether a rule reads the final cost of the request from its response.
    pub(crate) fn settles_cost(&self) -> bool {
        self.parts.iter().any(|part| self.set.rules[part.place].response_cost.is_some())
    }

    /// Returns the subject and the cost of the first rule that has extractors, or of the first
    /// rule.
    pub(crate) fn main(&self) -> (&Subject, Cost) {
        let has_key = |part: &&RulePart| !self.set.rules[part.place].per.is_empty();
        let main = self.parts.iter().find(has_key).unwrap_or(&self.parts[0]);
        (&main.subject, main.cost)
    }

    /// Returns the subjects with the positions of their rules.
    pub(crate) fn subjects(&self) -> impl Iterator<Item = (usize, &Subject)> {
        self.parts.iter().map(|part| (part.place, &part.subject))
    }

    /// Returns whether the request needs a permit: it occupies places until its end, or its cost is
    /// settled at its end.
    pub(crate) fn needs_permit(&self) -> bool {
        self.settles_cost() || self.counted().any(|(_, _, policy)| policy.has_permits())
    }

    /// Returns how a request is handled if the parts at these positions deny it. `default` applies
    /// to rules without a setting.
    pub(crate) fn on_over_limit(
        &self,
        denying: impl Iterator<Item = usize>,
        default: OverLimit,
    ) -> OverLimit {
        let rules = denying.filter_map(|index| self.counted().nth(index));
        let settings = rules.map(|(_, rule, _)| rule.on_over_limit.unwrap_or(default));
        settings.reduce(OverLimit::stricter).unwrap_or(default)
    }

    /// Returns whether some rule of the request handles requests over its limits in a way that
    /// satisfies `predicate`. `default` applies to rules without a setting.
    pub(crate) fn may(&self, default: OverLimit, predicate: fn(OverLimit) -> bool) -> bool {
        let setting = |part: &RulePart| self.set.rules[part.place].on_over_limit.unwrap_or(default);
        self.parts.iter().any(|part| predicate(setting(part)))
    }
}

impl LabelledParts for RequestParts {
    fn label(&self, index: usize) -> Option<&RuleLabel> {
        self.counted().nth(index).map(|(_, rule, _)| &*rule.label)
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
        let rules = self.rules.iter().map(|rule| (&rule.name, rule.limits.policy()));
        f.debug_map().entries(rules).finish()
    }
}

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
