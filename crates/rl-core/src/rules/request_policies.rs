//! The lists of policies under which requests may be decided: a policy for each rule that a request
//! matches.

use super::invalid_rules::InvalidRules;
use super::over_limit::MissingKey;
use super::rule_list::Rules;
use super::rule_set::RuleSet;
use super::valid_rule::ValidRule;
use crate::policy::Policy;
use crate::store::Namespace;

/// The maximum number of lists. By default, a store on Redis has special scripts for the same
/// number of lists.
const MAX_LISTS: usize = 64;

/// The maximum number of combinations of rules that are tried. Combinations with equal policies
/// have one list, so there may be many more combinations than lists.
const MAX_TRIED: usize = 4_096;

impl Rules {
    /// Returns the lists of policies under which requests may be decided. Each list is in the order
    /// of the rules, and the longest lists come first. `RedisStore::scripts_of_parts` returns the
    /// scripts for these lists.
    ///
    /// Each combination of rules that may match one request has a list for each combination of
    /// their tiers. A rule without a match belongs to every combination, unless it has exemptions
    /// or [allows](MissingKey::Allow) requests without a key. There are at most 64 lists. A
    /// combination has no list if a source finds the limits of one of its rules.
    ///
    /// # Errors
    ///
    /// Returns an error for the first value of the rules that is not valid.
    ///
    /// # Examples
    ///
    /// ```
    /// use rl_core::Limit;
    /// use rl_core::rules::{Rule, Rules};
    ///
    /// let login = Rule::named("login").on("POST", "/login").limit(Limit::per_minute(5));
    /// let fleet = Rule::named("fleet").limit(Limit::per_second(5_000));
    /// let lists = Rules::new().rule(login).rule(fleet).policies_of_requests()?;
    /// let lengths: Vec<_> = lists.iter().map(Vec::len).collect();
    /// assert_eq!(lengths, [2, 1], "a login, and any other request");
    /// # Ok::<(), rl_core::rules::InvalidRules>(())
    /// ```
    pub fn policies_of_requests(&self) -> Result<Vec<Vec<Policy>>, InvalidRules> {
        let set = RuleSet::new(self, &Namespace::default())?;
        let mut search =
            Search { chosen: Vec::new(), policies: Vec::new(), lists: Vec::new(), tried: 0 };
        search.extend(set.rules());
        // The sort is stable: lists of equal length keep the order of the rules.
        search.lists.sort_by_key(|list| std::cmp::Reverse(list.len()));
        Ok(search.lists)
    }
}

/// A search for combinations of rules.
struct Search<'a> {
    /// The rules of the present combination. `policies` contains one policy for each.
    chosen: Vec<&'a ValidRule>,
    policies: Vec<Policy>,
    lists: Vec<Vec<Policy>>,
    tried: usize,
}

impl<'a> Search<'a> {
    /// Adds the lists of the present combination together with each combination of `rules`.
    fn extend(&mut self, rules: &'a [ValidRule]) {
        if self.lists.len() >= MAX_LISTS || self.tried >= MAX_TRIED {
            return;
        }
        let Some((rule, rest)) = rules.split_first() else {
            self.tried += 1;
            if !self.policies.is_empty() && !self.lists.contains(&self.policies) {
                self.lists.push(self.policies.clone());
            }
            return;
        };
        if self.chosen.iter().all(|chosen| chosen.may_overlap(rule)) {
            self.chosen.push(rule);
            for policy in rule.own_policies() {
                self.policies.push(policy);
                self.extend(rest);
                self.policies.pop();
            }
            self.chosen.pop();
        }
        if may_be_absent(rule) {
            self.extend(rest);
        }
    }
}

/// Returns whether requests may have no part under the rule.
fn may_be_absent(rule: &ValidRule) -> bool {
    rule.matches.is_some()
        || !rule.exempt.is_empty()
        || rule.on_missing_key == Some(MissingKey::Allow)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Limit;
    use crate::rules::Rule;
    use crate::source::Preset;

    /// Returns the lists of `rules`, with the maximum of its first limit in place of each policy.
    fn lists(rules: Rules) -> Vec<Vec<u64>> {
        let max = |policy: &Policy| policy.limits()[0].limit().max();
        let lists = rules.policies_of_requests().unwrap();
        lists.iter().map(|list| list.iter().map(max).collect()).collect()
    }

    fn rule(name: &str, max: u32) -> Rule {
        Rule::named(name).limit(Limit::per_minute(max))
    }

    #[test]
    fn combinations_of_overlapping_rules_have_a_list_for_each_tier() {
        let rules = Rules::new()
            .rule(rule("keys", 1).tier("pro", [Limit::per_minute(2)]))
            .rule(rule("login", 3).on("POST", "/login"))
            .rule(rule("export", 4).on("GET", "/export"))
            .rule(rule("fleet", 5));
        assert_eq!(
            lists(rules),
            [vec![1, 3, 5], vec![1, 4, 5], vec![2, 3, 5], vec![2, 4, 5], vec![1, 5], vec![2, 5]]
        );
    }

    #[test]
    fn combinations_with_a_source_have_no_list_and_equal_lists_are_one() {
        let records = Rule::named("records").on("GET", "/a").policies(Preset::OpenBank);
        let rules = Rules::new().rule(records).rule(rule("fleet", 5));
        assert_eq!(lists(rules), [[5]]);
        let numbered =
            |number: usize| rule(&format!("rule-{number}"), 7).on("GET", format!("/{number}"));
        let rules = (0..100).fold(Rules::new(), |rules, number| rules.rule(numbered(number)));
        assert_eq!(lists(rules), [[7]]);
    }
}
