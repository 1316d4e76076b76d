//! Registers limiters with their stores, which notice limiters that share counters by accident.

use std::sync::Arc;

use crate::observe::{self, EventLocation};
use crate::policy::Policy;
use crate::rules::ActiveRules;
use crate::store::{Namespace, Store};

/// Registers a limiter until the returned token is dropped. `own` is its namespace with the policy
/// of all subjects, if there is one. Logs a warning if another limiter on the store has other
/// limits for the same counters, now or after a change of `rules`.
pub(super) fn register(
    store: &Arc<dyn Store>,
    own: Option<(&Namespace, Vec<Policy>)>,
    rules: Option<&ActiveRules>,
) -> Option<Arc<()>> {
    let registry = store.registry()?;
    let current = rules.map(ActiveRules::current);
    let of_rules = current.iter().flat_map(|rules| rules.policies());
    let may_change = rules.is_some_and(ActiveRules::may_change);
    let (token, conflict) = registry.register(own.into_iter().chain(of_rules), may_change);
    if let Some(namespace) = conflict {
        observe::shared_counters(EventLocation::new(namespace.as_str(), store.label()));
    }
    if let Some(rules) = rules {
        let (store, limiter) = (Arc::downgrade(store), Arc::downgrade(&token));
        rules.on_change(move |rules| {
            let (Some(store), Some(limiter)) = (store.upgrade(), limiter.upgrade()) else { return };
            let registry = store.registry();
            let conflict = registry.and_then(|all| all.replace(&limiter, rules.policies()));
            if let Some(namespace) = conflict {
                let location = EventLocation::new(namespace.as_str(), store.label());
                observe::shared_counters(location);
            }
        });
    }
    Some(token)
}
