//! Turns the rules of domains into rules of a limiter.

use std::collections::HashMap;
use std::sync::Arc;

use rl_core::Limit;
use rl_core::rules::{Rule, Rules};

use super::rule::{Charge, DomainRule, Domains, InvalidDomainRule};
use super::selector::{DescriptorKey, DescriptorRule, DomainSelector, Selector, largest_hold};

/// The longest name of a rule.
const MAX_NAME: usize = 64;

/// Adds the rules of `domains` to `rules`, with the selector that finds them.
///
/// # Errors
///
/// Returns an error for the first rule that is not valid.
pub fn compile(domains: &Domains, mut rules: Rules) -> Result<Rules, InvalidDomainRule> {
    let mut selector =
        Selector { domains: HashMap::new(), places: HashMap::new(), realm: Selector::realm() };
    let mut count = rules.names().count();
    for (domain, of_domain) in domains {
        let mut compiled = DomainSelector::default();
        for (position, (name, rule)) in of_domain.iter().enumerate() {
            let invalid = |reason: String| InvalidDomainRule {
                domain: domain.clone(),
                rule: name.clone(),
                reason,
            };
            let place = if rule.limits.is_empty() {
                None
            } else {
                rules = rules.rule(rule.rule(&rule_name(domain, name)).map_err(invalid)?);
                count += 1;
                Some(count - 1)
            };
            if rule.descriptor.is_empty() {
                return Err(invalid("descriptor: expected at least one key".into()));
            }
            let descriptor = rule.descriptor.iter().map(String::as_str);
            if let Some(known) = compiled.tree.insert(descriptor, position) {
                let known = of_domain.get_index(known).map_or("", |(name, _)| name);
                return Err(invalid(format!("the descriptor is that of rule {known:?}")));
            }
            let replaces = rule.replaces.iter().map(|name| {
                let known = of_domain.get_index_of(name);
                known.ok_or_else(|| {
                    invalid(format!("replaces {name:?}: expected a rule of the domain"))
                })
            });
            compiled.rules.push(DescriptorRule {
                name: rule_name(domain, name).into(),
                place,
                charge: rule.charge,
                is_shared: rule.shared,
                largest_hold: rule.largest_hold(),
                replaces: replaces.collect::<Result<_, _>>()?,
            });
        }
        // Its limits are never used: the gateway sets those of each request.
        let name = rule_name(domain, "override");
        let unused = DomainRule { limits: vec!["1/second".into()], ..DomainRule::default() };
        let invalid =
            |reason| InvalidDomainRule { domain: domain.clone(), rule: name.clone(), reason };
        rules = rules.rule(unused.rule(&name).map_err(invalid)?);
        count += 1;
        compiled.overridden = Some(DescriptorRule {
            name: name.as_str().into(),
            place: Some(count - 1),
            charge: Charge::Before,
            is_shared: false,
            largest_hold: u64::MAX,
            replaces: Vec::new(),
        });
        selector.domains.insert(domain.as_str().into(), compiled);
    }
    let names = rules.names().enumerate();
    selector.places = names.map(|(place, name)| (Arc::from(name), place)).collect();
    Ok(rules.select_with(selector))
}

impl DomainRule {
    /// Returns the rule of a limiter that counts for this one.
    fn rule(&self, name: &str) -> Result<Rule, String> {
        let mut rule = Rule::named(name).selected().per(DescriptorKey { realm: Selector::realm() });
        for text in &self.limits {
            let limit: Limit = text.parse().map_err(|error| format!("limit {text:?}: {error}"))?;
            rule = rule.limit(limit);
        }
        Ok(if self.shadow { rule.shadow() } else { rule })
    }

    /// Returns the largest estimate that the limits hold.
    fn largest_hold(&self) -> u64 {
        let limits = self.limits.iter().filter_map(|text| text.parse::<Limit>().ok());
        let limits = limits.filter(|limit| !limit.counts_requests() && !limit.is_shadow());
        limits.map(largest_hold).min().unwrap_or(u64::MAX)
    }
}

/// Returns the name of the rule `rule` of `domain` among all rules: `domain.rule`. Characters that
/// names cannot have are replaced, and a hash keeps such names, and long ones, apart.
fn rule_name(domain: &str, rule: &str) -> String {
    let text = format!("{domain}.{rule}");
    let is_valid = |char: char| char.is_ascii_alphanumeric() || matches!(char, '_' | '.' | '-');
    if text.len() <= MAX_NAME && text.chars().all(is_valid) {
        return text;
    }
    let hash = format!("{:08x}", fnv(text.as_bytes()));
    let valid = text.chars().map(|char| if is_valid(char) { char } else { '_' });
    let valid: String = valid.take(MAX_NAME - hash.len() - 1).collect();
    format!("{valid}-{hash}")
}

/// Returns the hash FNV-1a of 32 bits. The names of counters depend on it, so it must not change.
fn fnv(bytes: &[u8]) -> u32 {
    bytes.iter().fold(0x811c_9dc5, |hash, byte| (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193))
}
