use std::fmt;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use super::Namespace;
use crate::policy::Policy;

/// The limiters that count in one store. It detects limiters that share counters by accident.
///
/// Limiters on one store share the counters of a subject unless their namespaces differ. If their
/// limits differ, this is rarely intended: each request then uses up the limits of both. A limiter
/// registers itself when it is built, and logs a warning if it shares a counter with another one.
///
/// A store keeps a registry beside its counters and returns it from
/// [`Store::registry`](super::Store::registry).
#[derive(Default)]
pub struct LimiterRegistry(Mutex<Registered>);

#[derive(Default)]
struct Registered {
    limiters: Vec<(Namespace, Policy, Weak<()>)>,
    has_conflict: bool,
}

impl LimiterRegistry {
    /// The maximum number of limiters that are compared. Most processes have only a few.
    const MAX: usize = 64;

    /// Registers a limiter until the returned token is dropped.
    ///
    /// Also returns true if a warning is due. This is the case if another limiter in the same
    /// namespace shares a counter but has other limits, and no warning was logged before. Limiters
    /// with equal policies never conflict, because each worker of a server may build the same one.
    pub(crate) fn register(&self, namespace: &Namespace, policy: &Policy) -> (Arc<()>, bool) {
        let token = Arc::new(());
        let mut registered = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        registered.limiters.retain(|(_, _, token)| token.strong_count() > 0);
        let is_conflict = !registered.has_conflict
            && registered.limiters.iter().any(|(other_namespace, other, _)| {
                other_namespace == namespace && other != policy && share_a_counter(other, policy)
            });
        registered.has_conflict |= is_conflict;
        if registered.limiters.len() < Self::MAX {
            let entry = (namespace.clone(), policy.clone(), Arc::downgrade(&token));
            registered.limiters.push(entry);
        }
        (token, is_conflict)
    }
}

/// Returns whether a limit of one policy uses the same state as a limit of the other.
fn share_a_counter(one: &Policy, other: &Policy) -> bool {
    let mut limits = one.limits().iter();
    limits.any(|limit| other.limits().iter().any(|other| other.state_id() == limit.state_id()))
}

impl fmt::Debug for LimiterRegistry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("LimiterRegistry")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limiters_that_share_a_counter_under_other_limits_are_noticed_once() {
        let limiters = LimiterRegistry::default();
        let (default, login) = (Namespace::default(), "login".parse().unwrap());
        let of = |limit: &str| Policy::new([limit.parse().unwrap()]).unwrap();
        let is_conflict = |namespace: &Namespace, limit| {
            let (token, is_conflict) = limiters.register(namespace, &of(limit));
            std::mem::forget(token);
            is_conflict
        };
        drop(limiters.register(&default, &of("7/minute")));
        assert!(!is_conflict(&default, "5/minute"), "the other limiter is gone");
        assert!(!is_conflict(&default, "5/minute"), "the same limits");
        assert!(!is_conflict(&default, "9/minute:requests"), "another counter");
        assert!(!is_conflict(&login, "9/minute"), "another namespace");
        assert!(is_conflict(&default, "9/minute"));
        assert!(!is_conflict(&default, "8/minute"), "it has been reported");
    }
}
