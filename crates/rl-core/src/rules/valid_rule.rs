//! A rule whose values are valid.

use std::sync::Arc;

use super::invalid_rules::InvalidRules;
use super::over_limit::{MissingKey, OverLimit};
use super::request_match::{Applies, CompiledMatch, Match, RequestView};
use super::rule::{RequestCost, ResponseCost, Rule, RuleCost, RuleLimits};
use crate::decision::RuleLabel;
use crate::key::{AmbiguousKey, ClientAddress, KeyExtractor, RequestInfo, Tier};
use crate::model::{Cost, Limit, Realm, Subject};
use crate::policy::{InvalidPolicy, NamedLimit, Policy, PolicyBuilder};
use crate::source::PolicySource;
use crate::store::{Namespace, Part};

/// A rule of a set.
pub(super) struct ValidRule {
    pub(super) name: Arc<str>,
    // The namespace of the rule's counters.
    pub(super) namespace: Namespace,
    pub(super) matches: Option<CompiledMatch>,
    pub(super) exempt: Box<[CompiledMatch]>,
    pub(super) per: Box<[Arc<dyn KeyExtractor>]>,
    pub(super) limits: ValidLimits,
    pub(super) tiers: Box<[(Tier, ValidLimits)]>,
    pub(super) cost: Option<RuleCost>,
    pub(super) response_cost: Option<ResponseCost>,
    pub(super) on_over_limit: Option<OverLimit>,
    pub(super) on_missing_key: Option<MissingKey>,
    pub(super) is_shadow: bool,
    pub(super) is_stored: bool,
    pub(super) definition: Option<Arc<str>>,
    pub(super) is_disclosed: bool,
    /// Whether the selector of the rules selects it. It then has no match of its own.
    pub(super) is_selected: bool,
    // The name, and what clients read in its place.
    pub(super) label: Arc<RuleLabel>,
}

/// The limits of a rule or of a tier.
pub(super) enum ValidLimits {
    Policy(Policy),
    /// The source finds the limits of each subject.
    Source(Arc<dyn PolicySource>),
}

/// The settings of a layer for rules without settings of their own.
pub(crate) struct Defaults<'a> {
    pub(crate) on_missing_key: MissingKey,
    pub(crate) cost: Option<&'a RequestCost>,
}

/// The reason for which rules reject a request without counting it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Uncounted<'a> {
    /// The request has no key that this rule knows.
    MissingKey {
        rule: &'a str,
    },
    AmbiguousKey,
    /// More rules match the request than a decision can have parts.
    TooManyRules,
    /// The address of the client is unknown, because the server does not know the peer of the
    /// connection.
    UnknownAddress,
}

impl From<AmbiguousKey> for Uncounted<'_> {
    fn from(_: AmbiguousKey) -> Self {
        Self::AmbiguousKey
    }
}

impl ValidRule {
    /// Checks a rule of a limiter that counts in `namespace`. `client` finds the addresses of
    /// clients. In responses, `pseudonym` replaces the name of the rule.
    ///
    /// # Errors
    ///
    /// Returns an error for the first value that is not valid.
    pub(super) fn new(
        rule: &Rule,
        namespace: &Namespace,
        pseudonym: Box<str>,
        client: &ClientAddress,
    ) -> Result<Self, InvalidRules> {
        let name = || rule.name.to_string();
        let namespace = namespace
            .rule(&rule.name)
            .map_err(|_| InvalidRules::Name { rule: clip(&rule.name) })?;
        let of_match = |error| InvalidRules::Match { rule: Some(name()), error };
        let matches = rule.matches.as_ref().map(|one| CompiledMatch::new(one, client));
        let matches = matches.transpose().map_err(of_match)?;
        let of_tier = |tier: Option<&str>| {
            let tier = tier.map(str::to_owned);
            move |error| InvalidRules::Policy {
                rule: rule.name.to_string(),
                tier,
                error: Box::new(error),
            }
        };
        let mut tiers = Vec::<(Tier, ValidLimits)>::with_capacity(rule.tiers.len());
        for (tier, limits) in &rule.tiers {
            if tiers.iter().any(|(earlier, _)| earlier.name() == &**tier) {
                return Err(InvalidRules::TierTwice { rule: name(), tier: tier.to_string() });
            }
            let policy = limits.build(&rule.name).map_err(of_tier(Some(tier)))?;
            tiers.push((Tier::new(tier), policy));
        }
        let label =
            RuleLabel { name: Arc::clone(&rule.name), pseudonym, is_named: rule.is_name_disclosed };
        let rule = Self {
            namespace,
            matches,
            exempt: compile(&rule.exempt, client).map_err(of_match)?,
            per: rule.per.as_slice().into(),
            limits: rule.limits.build(&rule.name).map_err(of_tier(None))?,
            tiers: tiers.into(),
            cost: rule.cost.clone(),
            response_cost: rule.response_cost.clone(),
            on_over_limit: rule.on_over_limit,
            on_missing_key: rule.on_missing_key,
            is_shadow: rule.is_shadow,
            is_stored: rule.is_stored,
            definition: rule.definition.clone(),
            is_disclosed: rule.is_disclosed.unwrap_or(!rule.per.is_empty() || rule.is_selected),
            is_selected: rule.is_selected,
            name: Arc::clone(&rule.name),
            label: Arc::new(label),
        };
        if rule.response_cost.is_some() && rule.known_cost() == Cost::ZERO {
            return Err(InvalidRules::Estimate { rule: name() });
        }
        match rule.exceeded_limit() {
            Some((cost, limit)) => Err(InvalidRules::Cost { rule: name(), cost, limit }),
            None => Ok(rule),
        }
    }

    /// Returns the cost of the rule and a limit that never grants it, if the rule would deny every
    /// request. Limits of 0 and blocks deny every request on purpose, so they are left out.
    fn exceeded_limit(&self) -> Option<(Cost, Limit)> {
        let (Some(RuleCost::Units(cost)), false) = (&self.cost, self.is_shadow) else {
            return None;
        };
        let tiers = self.tiers.iter().map(|(_, limits)| limits);
        let policies = std::iter::once(&self.limits).chain(tiers).map(ValidLimits::policy);
        let policies: Vec<&Policy> = policies.collect::<Option<_>>()?;
        if !policies.iter().all(|policy| policy.never_grants(cost.units())) {
            return None;
        }
        let is_exceeded =
            |limit: &Limit| !limit.is_shadow() && limit.units(cost.units()) > limit.capacity();
        let lowest = |policy: &Policy| {
            let limits = policy.limits().iter().map(NamedLimit::limit);
            limits.filter(is_exceeded).min_by_key(|limit| limit.capacity())
        };
        let enforced = policies.into_iter().filter(|policy| policy.block().is_none());
        let limit = enforced.filter_map(lowest).find(|limit| limit.capacity() > 0)?;
        Some((*cost, limit))
    }

    /// Returns whether each request has a part under the rule, except for requests without a key
    /// that a layer allows.
    pub(super) fn counts_all(&self) -> bool {
        !self.is_selected
            && self.matches.as_ref().is_none_or(CompiledMatch::is_unconditional)
            && self.exempt.is_empty()
            && self.on_missing_key != Some(MissingKey::Allow)
    }

    /// Returns the subject of a request. Returns `None` if the rule does not apply to the request,
    /// or if the request has no key, and the rule does not count such requests.
    ///
    /// # Errors
    ///
    /// Returns an error if the request has to be rejected.
    pub(super) fn subject(
        &self,
        view: &RequestView<'_>,
        missing: MissingKey,
    ) -> Result<Option<Subject>, Uncounted<'_>> {
        self.subject_if(self.applies(view), view, missing)
    }

    /// Returns the [subject](Self::subject) under which the rule may count other requests of the
    /// client that sent this one, whatever their method and path are. Returns `None` for a rule that
    /// clients do not see.
    ///
    /// # Errors
    ///
    /// Returns an error if such requests have to be rejected.
    pub(super) fn subject_of_client(
        &self,
        view: &RequestView<'_>,
        defaults: &Defaults<'_>,
    ) -> Result<Option<Subject>, Uncounted<'_>> {
        let applies = match &self.matches {
            _ if self.is_shadow || !self.is_disclosed || self.is_selected => Applies::No,
            Some(matches) => matches.applies_to_client(view),
            None => Applies::Yes,
        };
        self.subject_if(applies, view, self.on_missing_key.unwrap_or(defaults.on_missing_key))
    }

    fn subject_if(
        &self,
        applies: Applies,
        view: &RequestView<'_>,
        missing: MissingKey,
    ) -> Result<Option<Subject>, Uncounted<'_>> {
        if applies == Applies::No {
            return Ok(None);
        }
        if !view.count_applied() {
            return Err(Uncounted::TooManyRules);
        }
        let is_fault_of_server = if applies == Applies::IfAddressMatches {
            view.lacks_peer()
        } else {
            if self.per.is_empty() {
                return Ok(Some(Subject::global()));
            }
            for key in &self.per {
                if let Some(subject) = key.subject(view.info)? {
                    return Ok(Some(subject));
                }
            }
            view.info.peer().is_none() && self.per.iter().any(|key| key.needs_peer())
        };
        match missing {
            MissingKey::Reject if is_fault_of_server => Err(Uncounted::UnknownAddress),
            MissingKey::Reject => Err(Uncounted::MissingKey { rule: &self.name }),
            MissingKey::Allow => Ok(None),
            MissingKey::Share => Ok(Some(Subject::new(Realm::Unknown, ""))),
        }
    }

    /// Returns whether the rule applies to a request: it matches, and is not exempt.
    pub(super) fn applies(&self, view: &RequestView<'_>) -> Applies {
        match &self.matches {
            _ if self.exempt.iter().any(|exempt| exempt.exempts(view)) => Applies::No,
            Some(matches) => matches.applies(view),
            None => Applies::Yes,
        }
    }

    pub(super) fn cost(&self, request: &dyn RequestInfo, defaults: &Defaults<'_>) -> Cost {
        match &self.cost {
            Some(RuleCost::Units(cost)) => *cost,
            Some(RuleCost::OfRequest(cost)) => cost(request),
            None => defaults.cost.map_or(Cost::ONE, |cost| cost(request)),
        }
    }

    pub(super) fn position(&self, tier: &Tier) -> Option<usize> {
        self.tiers.iter().position(|(known, _)| known == tier)
    }

    /// Returns the limits of clients in the tier at this position.
    pub(super) fn limits(&self, tier: Option<usize>) -> &ValidLimits {
        tier.map_or(&self.limits, |place| &self.tiers[place].1)
    }

    /// Returns the part of a request that the rule counts under `policy`.
    pub(super) fn part<'a>(
        &'a self,
        subject: &'a Subject,
        policy: &'a Policy,
        cost: Cost,
    ) -> Part<'a> {
        let part = Part::new(subject, policy, cost).with_namespace(&self.namespace);
        let part = if self.is_shadow { part.shadow() } else { part };
        if self.is_disclosed { part } else { part.undisclosed() }
    }

    /// Returns whether the rule sets its own cost, so that the cost of the layer does not apply to
    /// it.
    pub(super) fn has_own_cost(&self) -> bool {
        self.cost.is_some() || self.response_cost.is_some()
    }

    /// Returns the largest cost of a request that is known before there is a request.
    pub(super) fn known_cost(&self) -> Cost {
        match self.cost {
            Some(RuleCost::Units(cost)) => cost,
            Some(RuleCost::OfRequest(_)) | None => Cost::ONE,
        }
    }

    /// Returns the policies that the rule itself sets: one for each tier, and one for clients
    /// without a tier. Limits from a source are left out.
    pub(super) fn own_policies(&self) -> Vec<Policy> {
        self.policies_by_tier().into_iter().map(|(_, policy)| policy).collect()
    }

    /// Returns the policies that the rule itself sets, each with the name of its tier. The name is
    /// empty for clients without a tier.
    pub(super) fn policies_by_tier(&self) -> Vec<(String, Policy)> {
        let tiers = self.tiers.iter().map(|(tier, limits)| (tier.name(), limits));
        let limits = std::iter::once(("", &self.limits)).chain(tiers);
        let own =
            limits.filter_map(|(tier, limits)| Some((tier.to_owned(), limits.policy()?.clone())));
        own.collect()
    }
}

impl ValidLimits {
    /// Returns the policy, unless a source has to find it.
    pub(super) fn policy(&self) -> Option<&Policy> {
        match self {
            Self::Policy(policy) => Some(policy),
            Self::Source(_) => None,
        }
    }
}

impl RuleLimits {
    fn build(&self, rule: &str) -> Result<ValidLimits, InvalidPolicy> {
        Ok(match self {
            Self::Builder(policy) => ValidLimits::Policy(PolicyBuilder::build(policy.clone())?),
            Self::Policy(policy) => ValidLimits::Policy(policy.clone()),
            Self::Source(source) => {
                ValidLimits::Source(source.for_rule(rule).unwrap_or_else(|| Arc::clone(source)))
            }
        })
    }
}

/// Checks the values of matches, and compiles them.
///
/// # Errors
///
/// Returns an error for the first value that is not valid.
pub(super) fn compile(
    matches: &[Match],
    client: &ClientAddress,
) -> Result<Box<[CompiledMatch]>, super::InvalidMatch> {
    matches.iter().map(|one| CompiledMatch::new(one, client)).collect()
}

/// Returns at most 80 characters of a text for an error.
fn clip(text: &str) -> String {
    text.chars().take(80).collect()
}
