//! Selects the rules of a request by its descriptors.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;

use rl_core::key::{CountedAs, KeyExtractor, RequestInfo};
use rl_core::rules::{RuleSelector, SelectedRule};
use rl_core::{Limit, Policy, Realm, Subject};

use super::rule::Charge;
use super::tree::{Found, Tree};
use crate::request::{
    Counted, Descriptor, Descriptors, GatewayRequest, Phase, SelectedPart, Selection,
};

/// The realm of subjects that descriptors name.
const REALM: &str = "descriptor";

/// Selects the rules of a request by its descriptors, or by their names.
#[derive(Debug)]
pub(super) struct Selector {
    pub(super) domains: HashMap<Box<str>, DomainSelector>,
    /// The positions of all rules by name.
    pub(super) places: HashMap<Arc<str>, usize>,
    pub(super) realm: Realm,
}

/// The rules of a domain.
#[derive(Debug, Default)]
pub(super) struct DomainSelector {
    pub(super) tree: Tree,
    pub(super) rules: Vec<DescriptorRule>,
    /// The rule for descriptors whose limit the gateway sets.
    pub(super) overridden: Option<DescriptorRule>,
}

/// A rule that descriptors select.
#[derive(Clone, Debug)]
pub(super) struct DescriptorRule {
    pub(super) name: Arc<str>,
    /// The position of the rule; `None` if it has no limit.
    pub(super) place: Option<usize>,
    pub(super) charge: Charge,
    pub(super) is_shared: bool,
    /// The largest estimate that the rule holds.
    pub(super) largest_hold: u64,
    /// The positions, in the domain, of the rules that it replaces.
    pub(super) replaces: Vec<usize>,
}

impl Selector {
    pub(super) fn realm() -> Realm {
        Realm::custom(REALM).expect("a valid name")
    }

    fn select_descriptors(
        &self,
        request: &GatewayRequest,
        descriptors: &Descriptors,
        phase: Phase,
        select: &mut dyn FnMut(SelectedRule),
    ) {
        let Some(domain) = self.domains.get(&*descriptors.domain) else {
            return request.record_unknown_domain();
        };
        let found: Vec<_> =
            descriptors.list.iter().map(|one| domain.tree.find(&one.entries)).collect();
        let replaced = |place: usize| {
            let others = found.iter().flatten().map(|found| &domain.rules[found.rule]);
            others.into_iter().any(|other| other.replaces.contains(&place))
        };
        for (position, (descriptor, found)) in descriptors.list.iter().zip(&found).enumerate() {
            let rule = match (found, descriptor.limit, &domain.overridden) {
                (Some(found), ..) if replaced(found.rule) => continue,
                (Some(found), None, _) => &domain.rules[found.rule],
                // The limit of the gateway applies whichever rule the descriptor has.
                (_, Some(_), Some(overridden)) => overridden,
                _ => continue,
            };
            let hits = descriptor.hits.unwrap_or(descriptors.hits);
            let counted = match (rule.place, rule.charge, phase) {
                (None, ..) => Counted::Unlimited,
                (_, Charge::After, Phase::Before) => Counted::Later,
                (_, Charge::Before, Phase::Ask | Phase::After) => continue,
                (_, _, Phase::Ask) if hits > 0 => continue,
                (_, _, Phase::After) if hits == 0 => continue,
                _ => Counted::Now,
            };
            request.record(SelectedPart { position, rule: Arc::clone(&rule.name), counted });
            let Some(place) = rule.place.filter(|_| counted == Counted::Now) else { continue };
            let hits = match phase {
                Phase::Before | Phase::After | Phase::All => hits,
                // A cost of 0 is never denied.
                Phase::Ask => 1,
                Phase::Hold => hits.min(descriptor.limit.map_or(rule.largest_hold, largest_hold)),
            };
            let found = found.as_ref().filter(|_| descriptor.limit.is_none());
            let subject = self.subject(descriptor, found, rule.is_shared);
            let selected = SelectedRule::new(place, subject).cost(hits);
            let policy = descriptor.limit.and_then(|limit| Policy::new([limit]).ok());
            select(match policy {
                Some(policy) => selected.policy(policy),
                None => selected,
            });
        }
    }

    /// Returns the subject of a descriptor: the values that its rule does not name.
    fn subject(
        &self,
        descriptor: &Descriptor,
        found: Option<&Found<'_>>,
        is_shared: bool,
    ) -> Subject {
        let entries: Vec<(&str, &str)> = match found {
            Some(Found { variables, matched, .. }) => {
                let matched = matched.iter().filter(|_| !is_shared);
                variables.iter().chain(matched).copied().collect()
            }
            None => descriptor.entries.iter().map(|(key, value)| (&**key, &**value)).collect(),
        };
        match &*entries {
            [] => return Subject::global(),
            // The console and blocks know clients by their addresses.
            [("remote_address", address)] => {
                if let Ok(address) = address.parse::<IpAddr>() {
                    return Subject::ip(address);
                }
            }
            _ => {}
        }
        // The length of each value keeps apart what a client puts into one of them.
        let id = entries.iter().map(|(key, value)| format!("{key}:{}={value}", value.len()));
        Subject::new(self.realm.clone(), &*id.collect::<Vec<_>>().join(","))
    }
}

impl RuleSelector for Selector {
    fn select(&self, request: &dyn RequestInfo, select: &mut dyn FnMut(SelectedRule)) {
        let Some(request) = request.extensions().downcast_ref::<GatewayRequest>() else { return };
        match &request.selection {
            Selection::Matching => {}
            Selection::Descriptors(descriptors, phase) => {
                self.select_descriptors(request, descriptors, *phase, select);
            }
            Selection::Rules(rules) => {
                for (position, rule) in rules.iter().enumerate() {
                    let Some((name, place)) = self.places.get_key_value(&*rule.rule) else {
                        continue;
                    };
                    let (rule_name, counted) = (Arc::clone(name), Counted::Now);
                    request.record(SelectedPart { position, rule: rule_name, counted });
                    let selected = SelectedRule::new(*place, rule.subject.clone());
                    select(match rule.cost {
                        Some(cost) => selected.cost(cost),
                        None => selected,
                    });
                }
            }
        }
    }

    fn selects_all(&self, request: &dyn RequestInfo) -> bool {
        let request = request.extensions().downcast_ref::<GatewayRequest>();
        request.is_some_and(|request| match &request.selection {
            Selection::Matching | Selection::Descriptors(_, Phase::Before) => false,
            Selection::Descriptors(..) | Selection::Rules(_) => true,
        })
    }
}

/// Returns the largest estimate that a limit holds: half of it, and at least one unit.
pub(super) fn largest_hold(limit: Limit) -> u64 {
    limit.capacity().div_ceil(2).max(1)
}

/// The extractor of selected rules, for reports: they count subjects of descriptors.
#[derive(Debug)]
pub(super) struct DescriptorKey {
    pub(super) realm: Realm,
}

impl KeyExtractor for DescriptorKey {
    fn subject(&self, _: &dyn RequestInfo) -> Result<Option<Subject>, rl_core::key::AmbiguousKey> {
        Ok(None)
    }

    fn counts(&self, subject: &Subject) -> CountedAs {
        let is_counted = *subject.realm() == self.realm
            || *subject.realm() == Realm::Ip
            || *subject == Subject::global();
        if is_counted { CountedAs::Itself } else { CountedAs::Nothing }
    }
}
