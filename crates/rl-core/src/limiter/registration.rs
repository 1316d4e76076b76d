//! Registers limiters with their stores, which notice limiters that share counters by accident, and
//! warns of shares of a fallback that have to be raised.

use std::sync::Arc;

use super::failure_policy::Share;
use crate::model::Cost;
use crate::observe::{self, EventLocation};
use crate::policy::Policy;
use crate::rules::{ActiveRules, RuleSet};
use crate::store::{Namespace, Store};

/// Registers a limiter until the returned token is dropped. `own` is its namespace with the policy
/// of all subjects, if there is one. Logs a warning if another limiter on the store has other
/// limits for the same counters, now or after a change of `rules`. Also logs warnings about the
/// shares of its fallback.
pub(super) fn register(
    store: &Arc<dyn Store>,
    own: Option<(&Namespace, Vec<Policy>)>,
    rules: Option<&ActiveRules>,
    shares: Option<Shares>,
) -> Option<Arc<()>> {
    let current = rules.map(ActiveRules::current);
    if let Some(shares) = &shares {
        for policy in own.iter().flat_map(|(_, policies)| policies) {
            shares.warn(None, policy, Cost::ONE);
        }
        current.iter().for_each(|rules| shares.warn_of_rules(rules));
    }
    let of_rules = current.iter().flat_map(|rules| rules.policies());
    let may_change = rules.is_some_and(ActiveRules::may_change);
    let report = store.report();
    let registered = report
        .registry
        .map(|registry| registry.register(own.into_iter().chain(of_rules), may_change));
    let (token, conflict) = registered.unzip();
    if let Some(namespace) = conflict.flatten() {
        observe::shared_counters(EventLocation::new(namespace.as_str(), report.label));
    }
    if let Some(rules) = rules {
        let (store, limiter) = (Arc::downgrade(store), token.as_ref().map(Arc::downgrade));
        rules.on_change(move |rules| {
            shares.iter().for_each(|shares| shares.warn_of_rules(rules));
            let limiter = limiter.as_ref().and_then(std::sync::Weak::upgrade);
            let (Some(store), Some(limiter)) = (store.upgrade(), limiter) else { return };
            let report = store.report();
            let conflict = report.registry.and_then(|all| all.replace(&limiter, rules.policies()));
            if let Some(namespace) = conflict {
                let location = EventLocation::new(namespace.as_str(), report.label);
                observe::shared_counters(location);
            }
        });
    }
    token
}

/// The shares of the limits that the fallback of a limiter enforces.
pub(super) struct Shares {
    pub(super) share: Share,
    /// The namespace of the limiter.
    pub(super) limiter: Namespace,
    /// The name of the fallback.
    pub(super) fallback: String,
}

impl Shares {
    fn warn_of_rules(&self, rules: &RuleSet) {
        for (rule, policies, cost) in rules.known_costs() {
            policies.iter().for_each(|policy| self.warn(Some(rule), policy, cost));
        }
    }

    /// Logs a warning for each limit of `policy` whose share has to be raised for `cost`.
    fn warn(&self, rule: Option<&str>, policy: &Policy, cost: Cost) {
        let location = EventLocation::new(self.limiter.as_str(), &self.fallback).with_rule(rule);
        self.share.warn_if_raised(location, policy, cost.units());
    }
}
