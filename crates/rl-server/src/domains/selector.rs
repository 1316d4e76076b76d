//! Selects the rules of a request by its descriptors.

use std::collections::HashMap;
use std::sync::Arc;

use rl_core::key::{CountedAs, KeyExtractor, RequestInfo};
use rl_core::rules::{RuleSelector, SelectedRule};
use rl_core::{Limit, Policy, Realm, Subject};

use super::expression::{Evaluation, Expression, append_entry, counted_address};
use super::rule::Charge;
use super::tree::{Found, Tree};
use crate::request::{
    Counted, Descriptor, Descriptors, GatewayRequest, Phase, SelectedPart, Selection,
};

/// The realm of subjects that descriptors name.
const REALM: &str = "descriptor";

/// Selects the rules of a request by its descriptors, or by their names.
#[derive(Debug, Default)]
pub(super) struct Selector {
    pub(super) domains: HashMap<Box<str>, DomainSelector>,
    /// The positions of all rules by name.
    pub(super) places: HashMap<Arc<str>, usize>,
}

/// The rules of a domain.
#[derive(Debug, Default)]
pub(super) struct DomainSelector {
    pub(super) tree: Tree,
    pub(super) rules: Vec<SelectableRule>,
    /// The rules with conditions, in their order.
    conditional: Vec<Conditional>,
    /// The positions, among the rules with conditions, of those that need an entry with this key and
    /// value.
    by_entry: HashMap<Box<str>, HashMap<Box<str>, Vec<usize>>>,
    /// The positions, among the rules with conditions, of all others.
    others: Vec<usize>,
    /// The rule for descriptors whose limit the gateway sets.
    pub(super) overridden: Option<SelectableRule>,
}

/// A rule that descriptors select.
#[derive(Clone, Debug)]
pub(super) struct SelectableRule {
    pub(super) name: Arc<str>,
    /// The position of the rule among all rules of the limiter; `None` if it has no limit.
    pub(super) place: Option<usize>,
    /// The realm of its subjects: that of descriptors, or consumers if its limits are records.
    pub(super) realm: Realm,
    pub(super) charge: Charge,
    /// The largest part of an estimate that a reservation charges to the rule.
    pub(super) largest_hold: u64,
    /// The positions, in the domain, of the rules that it replaces.
    pub(super) replaces: Vec<usize>,
}

/// The conditions of a rule that has no descriptor.
#[derive(Debug)]
pub(super) struct Conditional {
    /// The position of the rule in the domain.
    pub(super) rule: usize,
    /// The realm of the rule's subjects.
    pub(super) realm: Realm,
    pub(super) when: Vec<Expression>,
    pub(super) per: Vec<Expression>,
}

/// A rule that counts a request, with its subject and cost.
struct MatchedRule<'a> {
    /// The position of the descriptor.
    descriptor: usize,
    rule: &'a SelectableRule,
    subject: Subject,
    cost: u64,
    limit: Option<Limit>,
}

impl DomainSelector {
    /// Adds the conditions of a rule.
    pub(super) fn insert_conditional(&mut self, conditional: Conditional) {
        let position = self.conditional.len();
        let entry = conditional.when.iter().find_map(|condition| match condition {
            Expression::Equals(entry, value) => Some((entry.key.clone(), value.clone())),
            _ => None,
        });
        match entry {
            Some((key, value)) => {
                self.by_entry.entry(key).or_default().entry(value).or_default().push(position);
            }
            None => self.others.push(position),
        }
        self.conditional.push(conditional);
    }

    /// Returns the positions of the rules whose conditions a request satisfies, each with its
    /// subject, in their order.
    fn satisfied(&self, descriptors: &[Descriptor]) -> Vec<(usize, Subject)> {
        if self.conditional.is_empty() {
            return Vec::new();
        }
        let evaluation = Evaluation::new(descriptors);
        let rules = self.candidates(descriptors).into_iter().filter_map(|position| {
            let conditional = &self.conditional[position];
            let is_satisfied = conditional.when.iter().all(|one| one.holds(&evaluation));
            let subject = is_satisfied.then(|| conditional.subject(&evaluation)).flatten()?;
            Some((conditional.rule, subject))
        });
        rules.collect()
    }

    /// Returns the positions of the rules whose conditions have to be evaluated, in their order.
    fn candidates(&self, descriptors: &[Descriptor]) -> Vec<usize> {
        let mut candidates = self.others.clone();
        for (key, value) in descriptors.iter().flat_map(|descriptor| &descriptor.entries) {
            let found = self.by_entry.get(&**key).and_then(|values| values.get(&**value));
            candidates.extend(found.into_iter().flatten());
        }
        candidates.sort_unstable();
        // An entry may be in several descriptors.
        candidates.dedup();
        candidates
    }
}

impl Conditional {
    /// Returns the subject of a request: the values by which the rule counts. Returns `None` if the
    /// request does not have one of them.
    fn subject(&self, evaluation: &Evaluation<'_>) -> Option<Subject> {
        let realm = &self.realm;
        if let [Expression::Entry(entry)] = &*self.per {
            return Some(subject(realm, &[(&entry.key, evaluation.entry(entry)?)]));
        }
        let mut id = String::new();
        for (position, value) in self.per.iter().enumerate() {
            if position > 0 {
                id.push(',');
            }
            value.append(evaluation, &mut id)?;
        }
        let is_global = id.is_empty() && *realm != Realm::Consumer;
        Some(if is_global { Subject::global() } else { Subject::new(realm.clone(), &id) })
    }
}

/// Returns the realm of subjects that descriptors name.
pub(crate) fn descriptor_realm() -> Realm {
    Realm::custom(REALM).expect("a valid name")
}

impl Selector {
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
        for MatchedRule { descriptor, rule, subject, cost, limit } in
            self.matched_rules(domain, descriptors)
        {
            let counted = match (rule.place, rule.charge, phase) {
                (None, ..) => Counted::Unlimited,
                (_, Charge::After, Phase::Before) => Counted::Later,
                (_, Charge::Before, Phase::Ask | Phase::After) => continue,
                (_, _, Phase::Ask) if cost > 0 => continue,
                (_, _, Phase::After) if cost == 0 => continue,
                _ => Counted::Now,
            };
            let rule_name = Arc::clone(&rule.name);
            request.record(SelectedPart { position: descriptor, rule: rule_name, counted });
            let Some(place) = rule.place.filter(|_| counted == Counted::Now) else { continue };
            let cost = match phase {
                Phase::Before | Phase::After | Phase::All => cost,
                // A cost of 0 is never denied.
                Phase::Ask => 1,
                Phase::Hold => cost.min(limit.map_or(rule.largest_hold, largest_hold)),
            };
            let selected = SelectedRule::new(place, subject).cost(cost);
            select(match limit.and_then(|limit| Policy::new([limit]).ok()) {
                Some(policy) => selected.policy(policy),
                None => selected,
            });
        }
    }

    /// Returns the rules of a request: those of its descriptors, and then those whose conditions it
    /// satisfies.
    fn matched_rules<'a>(
        &self,
        domain: &'a DomainSelector,
        descriptors: &Descriptors,
    ) -> Vec<MatchedRule<'a>> {
        let list = &descriptors.list;
        let found: Vec<_> = list.iter().map(|one| domain.tree.find(&one.entries)).collect();
        let satisfied = domain.satisfied(list);
        let all = found.iter().flatten().map(|found| found.rule);
        let all: Vec<usize> = all.chain(satisfied.iter().map(|(rule, _)| *rule)).collect();
        let is_replaced =
            |place: usize| all.iter().any(|other| domain.rules[*other].replaces.contains(&place));
        let mut matched = Vec::with_capacity(all.len());
        for (position, (descriptor, found)) in list.iter().zip(&found).enumerate() {
            let (rule, found) = match (found, descriptor.limit, &domain.overridden) {
                (Some(found), ..) if is_replaced(found.rule) => continue,
                (Some(found), None, _) => (&domain.rules[found.rule], Some(found)),
                // A limit that the gateway sets applies also without a rule for the descriptor.
                (_, Some(_), Some(overridden)) => (overridden, None),
                _ => continue,
            };
            matched.push(MatchedRule {
                descriptor: position,
                rule,
                subject: rule.subject(descriptor, found),
                cost: descriptor.hits.unwrap_or(descriptors.hits),
                limit: descriptor.limit,
            });
        }
        let satisfied = satisfied.into_iter().filter(|(rule, _)| !is_replaced(*rule));
        matched.extend(satisfied.map(|(rule, subject)| MatchedRule {
            // A response has no status for rules of the whole request: the first one shows them.
            descriptor: 0,
            rule: &domain.rules[rule],
            subject,
            cost: descriptors.hits,
            limit: None,
        }));
        matched
    }
}

impl SelectableRule {
    /// Returns the subject of a descriptor: the values that its rule does not name.
    fn subject(&self, descriptor: &Descriptor, found: Option<&Found<'_>>) -> Subject {
        if let Some(found) = found {
            return subject(&self.realm, &found.variables);
        }
        let entries = descriptor.entries.iter().map(|(key, value)| (&**key, &**value));
        subject(&self.realm, &entries.collect::<Vec<_>>())
    }
}

/// Returns the subject that consists of these entries.
fn subject(realm: &Realm, entries: &[(&str, &str)]) -> Subject {
    match entries {
        [] => return Subject::global(),
        [(_, consumer)] if *realm == Realm::Consumer => return Subject::consumer(consumer),
        // The console and blocks identify clients by their addresses.
        [(key, value)] => {
            if let Some(address) = counted_address(key, value) {
                return Subject::new(Realm::Ip, &address);
            }
        }
        _ => {}
    }
    let mut id = String::new();
    for (position, (key, value)) in entries.iter().enumerate() {
        if position > 0 {
            id.push(',');
        }
        append_entry(key, value, &mut id);
    }
    Subject::new(realm.clone(), &id)
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

/// Returns the largest part of an estimate that a reservation charges to a limit: half of the limit,
/// and at least one unit.
pub(super) fn largest_hold(limit: Limit) -> u64 {
    limit.capacity().div_ceil(2).max(1)
}

/// The extractor of rules that descriptors select. Reports ask it which subjects such a rule counts:
/// those of descriptors, or consumers.
#[derive(Debug)]
pub(super) struct DescriptorKey {
    pub(super) realm: Realm,
}

impl KeyExtractor for DescriptorKey {
    fn subject(&self, _: &dyn RequestInfo) -> Result<Option<Subject>, rl_core::key::AmbiguousKey> {
        Ok(None)
    }

    fn counts(&self, subject: &Subject) -> CountedAs {
        let has_addresses = self.realm != Realm::Consumer;
        let is_address = *subject.realm() == Realm::Ip || *subject == Subject::global();
        let is_counted = *subject.realm() == self.realm || has_addresses && is_address;
        if is_counted { CountedAs::Itself } else { CountedAs::Nothing }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_few_conditions_are_evaluated_among_ten_thousand_rules_as_among_ten() {
        let evaluated = |count: usize| {
            let mut domain = DomainSelector::default();
            for rule in 0..count {
                let text = format!("descriptors[0].tenant == 't{rule}'");
                let when = vec![Expression::new(&text).unwrap()];
                let realm = descriptor_realm();
                domain.insert_conditional(Conditional { rule, realm, when, per: Vec::new() });
            }
            let entries = vec![("tenant".to_owned(), "t7".to_owned()), ("x".into(), "t8".into())];
            let descriptor = Descriptor { entries, ..Descriptor::default() };
            let descriptors = [descriptor.clone(), descriptor];
            let satisfied = domain.satisfied(&descriptors);
            assert_eq!(satisfied, [(7, Subject::global())]);
            domain.candidates(&descriptors).len()
        };
        assert_eq!((evaluated(10), evaluated(10_000)), (1, 1));
    }
}
