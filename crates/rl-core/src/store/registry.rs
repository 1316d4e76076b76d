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
    limiters: Vec<(Namespace, Vec<Policy>, Weak<()>)>,
    has_conflict: bool,
}

impl LimiterRegistry {
    /// The maximum number of namespaces that are compared. Most processes have only a few.
    const MAX: usize = 256;

    /// Registers a limiter until the returned token is dropped. `namespaces` are those in which it
    /// counts, each with the policies of its subjects: a rule has one policy for each tier.
    ///
    /// Also returns the namespace that the limiter must warn about, if any: another limiter in it
    /// shares a counter but has other limits, and no warning was logged before. Limiters with equal
    /// policies never conflict, because each worker of a server may build the same one.
    pub(crate) fn register<'a>(
        &self,
        namespaces: impl IntoIterator<Item = (&'a Namespace, Vec<Policy>)>,
    ) -> (Arc<()>, Option<&'a Namespace>) {
        let token = Arc::new(());
        let mut registered = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        registered.limiters.retain(|(_, _, token)| token.strong_count() > 0);
        let earlier = registered.limiters.len();
        let mut conflict = None;
        for (namespace, policies) in namespaces {
            // The limiter does not conflict with itself.
            let is_conflict =
                registered.limiters[..earlier].iter().any(|(other_namespace, others, _)| {
                    other_namespace == namespace
                        && *others != policies
                        && share_a_counter(others, &policies)
                });
            if is_conflict && !registered.has_conflict {
                registered.has_conflict = true;
                conflict = Some(namespace);
            }
            if registered.limiters.len() < Self::MAX {
                registered.limiters.push((namespace.clone(), policies, Arc::downgrade(&token)));
            }
        }
        (token, conflict)
    }
}

/// Returns whether limits of two lists of policies use the same state.
fn share_a_counter(ones: &[Policy], others: &[Policy]) -> bool {
    let states = |policies: &'_ [Policy]| {
        let limits = policies.iter().flat_map(|policy| policy.limits());
        limits.map(|limit| limit.state_id()).collect::<Vec<_>>()
    };
    let others = states(others);
    states(ones).iter().any(|state| others.contains(state))
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
            let (token, conflict) = limiters.register([(namespace, vec![of(limit)])]);
            std::mem::forget(token);
            conflict.is_some()
        };
        drop(limiters.register([(&default, vec![of("7/minute")])]));
        assert!(!is_conflict(&default, "5/minute"), "the other limiter is gone");
        assert!(!is_conflict(&default, "5/minute"), "the same limits");
        assert!(!is_conflict(&default, "9/minute:requests"), "another counter");
        assert!(!is_conflict(&login, "9/minute"), "another namespace");
        assert!(is_conflict(&default, "9/minute"));
        assert!(!is_conflict(&default, "8/minute"), "it has been reported");
    }
}
