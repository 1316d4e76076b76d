//! Turns the rules of domains into rules of a limiter.

use std::collections::HashMap;
use std::sync::Arc;

use rl_core::rules::{Rule, Rules};
use rl_core::{Limit, Realm};

use super::expression::Expression;
use super::rule::{Disclosed, DomainRule, Domains, InvalidDomainRule};
use super::selector::{
    Conditional, DescriptorKey, DomainSelector, SelectableRule, Selector, descriptor_realm,
    largest_hold,
};
use super::tree::Conflict;
use crate::records::RecordLimits;

/// The longest name of a rule.
const MAX_NAME: usize = 64;

/// The name, in each domain, of the rule for descriptors whose limit the gateway sets.
const OVERRIDE: &str = "override";

/// The `limits` of a rule whose limits are records of consumers.
const RECORDS: &str = "records";

/// Adds the rules of `domains` to `rules`, with the selector that finds them. `records` are the limits
/// of rules with `limits: records`.
///
/// # Errors
///
/// Returns an error for the first rule that is not valid.
pub fn compile(
    domains: &Domains,
    mut rules: Rules,
    records: Option<&RecordLimits>,
) -> Result<Rules, InvalidDomainRule> {
    let names = RuleNames::new(domains, &rules);
    let mut selector = Selector::default();
    let mut count = rules.names().count();
    for (domain, of_domain) in domains {
        let mut compiled = DomainSelector::default();
        let mut add = |name: String, rule: &DomainRule| {
            let place = if rule.limits.is_empty() {
                None
            } else {
                rules = std::mem::take(&mut rules).rule(rule.rule(&name, records)?);
                count += 1;
                Some(count - 1)
            };
            let charge = rule.charge;
            Ok::<_, String>(SelectableRule {
                name: name.into(),
                place,
                realm: rule.realm(),
                charge,
                largest_hold: rule.largest_hold(),
                replaces: Vec::new(),
            })
        };
        for (name, rule) in of_domain {
            let invalid = |reason: String| InvalidDomainRule {
                domain: domain.clone(),
                rule: name.clone(),
                reason,
            };
            let selectable = add(names.of(domain, name), rule).and_then(|mut selectable| {
                selectable.replaces = replaced(rule, of_domain)?;
                Ok(selectable)
            });
            let selectable = selectable.map_err(invalid)?;
            compiled.insert(rule, selectable, of_domain).map_err(invalid)?;
        }
        // Its limits are never used: the gateway sets those of each request.
        let unused = DomainRule { limits: vec!["1/second".into()], ..DomainRule::default() };
        compiled.overridden = Some(add(names.of_override(domain), &unused).map_err(|reason| {
            InvalidDomainRule { domain: domain.clone(), rule: OVERRIDE.to_owned(), reason }
        })?);
        selector.domains.insert(domain.as_str().into(), compiled);
    }
    let names = rules.names().enumerate();
    selector.places = names.map(|(place, name)| (Arc::from(name), place)).collect();
    Ok(rules.select_with(selector))
}

impl DomainSelector {
    /// Adds a rule, as the next one of the domain.
    fn insert(
        &mut self,
        rule: &DomainRule,
        selectable: SelectableRule,
        of_domain: &indexmap::IndexMap<String, DomainRule>,
    ) -> Result<(), String> {
        let position = self.rules.len();
        self.rules.push(selectable);
        if rule.descriptor.is_empty() {
            if rule.limits.is_empty() {
                return Err("limits: expected at least one limit, or `descriptor`".into());
            }
            let compile = |texts: &[String]| {
                texts.iter().map(|text| Expression::new(text)).collect::<Result<Vec<_>, _>>()
            };
            let when = compile(&rule.when).map_err(|error| format!("when: {error}"))?;
            let per = compile(&rule.per).map_err(|error| format!("per: {error}"))?;
            let realm = rule.realm();
            self.insert_conditional(Conditional { rule: position, realm, when, per });
            return Ok(());
        }
        if !rule.when.is_empty() || !rule.per.is_empty() {
            return Err("expected either `descriptor`, or `when` and `per`".into());
        }
        let is_empty = |entry: &&String| entry.split('=').next().is_none_or(str::is_empty);
        if let Some(entry) = rule.descriptor.iter().find(is_empty) {
            return Err(format!("descriptor {entry:?}: expected a key"));
        }
        let descriptor = rule.descriptor.iter().map(String::as_str);
        self.tree.insert(descriptor, position).map_err(|conflict| match conflict {
            Conflict::Same(known) => {
                let known = of_domain.get_index(known).map_or("", |(name, _)| name);
                format!("the descriptor is that of rule {known:?}")
            }
            Conflict::Shared => {
                "another rule has `*` where this one has `**`: expected the same".into()
            }
        })
    }
}

/// Returns the positions of the rules that a rule replaces.
fn replaced(
    rule: &DomainRule,
    of_domain: &indexmap::IndexMap<String, DomainRule>,
) -> Result<Vec<usize>, String> {
    let positions = rule.replaces.iter().map(|name| {
        let known = of_domain.get_index_of(name);
        known.ok_or_else(|| format!("replaces {name:?}: expected a rule of the domain"))
    });
    positions.collect()
}

impl DomainRule {
    /// Returns the rule of a limiter that counts for this one.
    fn rule(&self, name: &str, records: Option<&RecordLimits>) -> Result<Rule, String> {
        let mut rule = Rule::named(name).selected().per(DescriptorKey { realm: self.realm() });
        if self.has_records() {
            let limits =
                records.ok_or("limits: records: expected `records` in the section `server`")?;
            if self.per.len() + self.descriptor.iter().filter(|entry| is_variable(entry)).count()
                != 1
            {
                let expected = "expected one key without a value, or one value in `per`";
                return Err(format!(
                    "limits: records: {expected}, which is the id of the consumer"
                ));
            }
            rule = rule.policies(limits.clone());
        }
        for text in self.limits.iter().filter(|_| !self.has_records()) {
            let limit: Limit =
                text.parse().map_err(|error: rl_core::ParseLimitError| error.to_string())?;
            rule = rule.limit(limit);
        }
        rule = match self.disclosed {
            Disclosed::Limits(is_disclosed) => rule.disclosed(is_disclosed),
            Disclosed::Name(_) => rule.disclosed(true).name_disclosed(true),
        };
        Ok(if self.shadow { rule.shadow() } else { rule })
    }

    /// Returns whether the limits are records of consumers.
    fn has_records(&self) -> bool {
        matches!(&*self.limits, [limits] if limits == RECORDS)
    }

    /// Returns the realm of the subjects that the rule counts.
    fn realm(&self) -> Realm {
        if self.has_records() { Realm::Consumer } else { descriptor_realm() }
    }

    /// Returns the largest part of an estimate that a reservation charges to the rule.
    fn largest_hold(&self) -> u64 {
        let limits = self.limits.iter().filter_map(|text| text.parse::<Limit>().ok());
        let limits = limits.filter(|limit| !limit.counts_requests() && !limit.is_shadow());
        limits.map(largest_hold).min().unwrap_or(u64::MAX)
    }
}

/// Returns whether each value of an entry of `descriptor` has counters of its own.
fn is_variable(entry: &str) -> bool {
    entry.split_once('=').is_none_or(|(_, value)| value.contains('*') && !value.contains("**"))
}

/// The names of the rules of domains among all rules: `domain.rule`.
///
/// Characters that names cannot have are replaced. A hash keeps these names distinct, and also names
/// that are too long, and names that differ only in the case of letters.
struct RuleNames {
    /// The number of rules with each name, in lower case.
    counts: HashMap<String, usize>,
}

impl RuleNames {
    fn new(domains: &Domains, rules: &Rules) -> Self {
        let mut counts = HashMap::new();
        let of_domains = domains.iter().flat_map(|(domain, rules)| {
            rules.keys().map(String::as_str).chain([OVERRIDE]).map(|rule| plain(domain, rule))
        });
        for name in of_domains.chain(rules.names().map(str::to_owned)) {
            *counts.entry(name.to_ascii_lowercase()).or_default() += 1;
        }
        Self { counts }
    }

    /// Returns the name of the rule `rule` of `domain`.
    fn of(&self, domain: &str, rule: &str) -> String {
        self.distinct(plain(domain, rule), &[domain, rule])
    }

    /// Returns the name of the rule of `domain` for descriptors whose limit the gateway sets.
    fn of_override(&self, domain: &str) -> String {
        self.distinct(plain(domain, OVERRIDE), &[domain])
    }

    /// Returns the text if it is valid and unique, and otherwise a valid one with a hash of `hashed`.
    fn distinct(&self, text: String, hashed: &[&str]) -> String {
        let is_valid = |char: char| char.is_ascii_alphanumeric() || matches!(char, '_' | '.' | '-');
        let is_unique = self.counts.get(&text.to_ascii_lowercase()).is_some_and(|n| *n == 1);
        if text.len() <= MAX_NAME && text.chars().all(is_valid) && is_unique {
            return text;
        }
        let hash = short_hash(hashed);
        let valid = text.chars().map(|char| if is_valid(char) { char } else { '_' });
        let valid: String = valid.take(MAX_NAME - hash.len() - 1).collect();
        format!("{valid}-{hash}")
    }
}

fn plain(domain: &str, rule: &str) -> String {
    format!("{domain}.{rule}")
}

/// Returns twelve hexadecimal digits of a hash of a list of texts.
pub(super) fn short_hash(texts: &[&str]) -> String {
    // The length of each text distinguishes lists that consist of the same bytes.
    let lengths = texts.iter().map(|text| format!("{}:{text}", text.len()));
    let hash = fnv(lengths.collect::<String>().as_bytes());
    format!("{:012x}", hash >> 16)
}

/// Returns the 64-bit FNV-1a hash. The names of counters depend on it, so it must not change.
pub(super) fn fnv(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_rules_differ_also_without_their_case_and_invalid_characters() {
        let of_domain = ["user", "User", "a/b", "a_b", OVERRIDE, "b.c", "plain"];
        let of_domain = of_domain.iter().map(|name| {
            let limits = vec!["1/second".to_owned()];
            let descriptor = vec![format!("key={name}")];
            ((*name).to_owned(), DomainRule { descriptor, limits, ..DomainRule::default() })
        });
        let of_domain: indexmap::IndexMap<_, _> = of_domain.collect();
        let other = indexmap::IndexMap::from([("c".to_owned(), of_domain["user"].clone())]);
        let domains = Domains::from([("x".to_owned(), of_domain), ("x.b".to_owned(), other)]);
        let rules = Rules::new().rule(Rule::named("x.plain").limit(Limit::per_second(1)));
        let rules = compile(&domains, rules, None).unwrap();
        let names: Vec<String> = rules.names().map(str::to_ascii_lowercase).collect();
        assert_eq!(names.len(), 11, "{names:?}");
        let distinct: std::collections::HashSet<_> = names.iter().collect();
        assert_eq!(distinct.len(), names.len(), "{names:?}");
        rl_core::RateLimiter::builder().rules(rules).build().unwrap();
    }
}
