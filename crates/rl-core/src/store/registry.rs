use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use super::Namespace;
use crate::policy::Policy;

/// The limiters that count in one store. It detects limiters that share counters by accident.
///
/// Limiters on one store share the counters of a subject unless their namespaces differ. If their
/// limits differ, this is rarely intended: each request then uses up the limits of both. A limiter
/// registers itself when it is built, and logs a warning if it shares a counter with another one.
///
/// A store keeps a registry beside its counters and returns it in its
/// [report](super::StoreReport::registry).
#[derive(Default)]
pub struct LimiterRegistry(Mutex<Registered>);

#[derive(Default)]
struct Registered {
    counted: Vec<CountedNamespace>,
    has_conflict: bool,
}

/// A namespace in which a limiter counts, with the policies of its subjects.
struct CountedNamespace {
    namespace: Namespace,
    policies: Vec<Policy>,
    limiter: Weak<()>,
    /// Whether the policies may change, because a rule file sets them.
    may_change: bool,
}

impl LimiterRegistry {
    /// The maximum number of namespaces that are compared. Most processes have only a few.
    const MAX: usize = 256;

    /// Registers a limiter until the returned token is dropped. `namespaces` are those in which it
    /// counts, each with the policies of its subjects: a rule has one policy for each tier.
    ///
    /// Also returns a namespace in which another limiter shares a counter but has other limits. The
    /// caller logs a warning about it. A registry returns such a namespace only once. Limiters with
    /// equal policies never conflict, because each worker of a server may build the same limiter.
    pub(crate) fn register<'a>(
        &self,
        namespaces: impl IntoIterator<Item = (&'a Namespace, Vec<Policy>)>,
        may_change: bool,
    ) -> (Arc<()>, Option<&'a Namespace>) {
        let limiter = Arc::new(());
        let conflict = self.lock().add(&limiter, namespaces, may_change, |_| true);
        (limiter, conflict)
    }

    /// Replaces the policies of a registered limiter whose rules have changed. Returns a namespace
    /// with a conflict, as [`register`](Self::register) does.
    ///
    /// Other limiters whose rules may change are not compared. They may have the same file, but not
    /// have read the change yet.
    pub(crate) fn replace<'a>(
        &self,
        limiter: &Arc<()>,
        namespaces: impl IntoIterator<Item = (&'a Namespace, Vec<Policy>)>,
    ) -> Option<&'a Namespace> {
        let mut registered = self.lock();
        registered.counted.retain(|counted| counted.limiter.as_ptr() != Arc::as_ptr(limiter));
        registered.add(limiter, namespaces, true, |other| !other.may_change)
    }

    fn lock(&self) -> MutexGuard<'_, Registered> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Registered {
    /// Adds a limiter, and compares it with the others that satisfy `is_compared`. Returns a
    /// namespace with a conflict, as `register` does.
    fn add<'a>(
        &mut self,
        limiter: &Arc<()>,
        namespaces: impl IntoIterator<Item = (&'a Namespace, Vec<Policy>)>,
        may_change: bool,
        is_compared: fn(&CountedNamespace) -> bool,
    ) -> Option<&'a Namespace> {
        self.counted.retain(|counted| counted.limiter.strong_count() > 0);
        let earlier = self.counted.len();
        let mut conflict = None;
        for (namespace, policies) in namespaces {
            // Compare only with the entries of other limiters, which were there before this loop. A
            // limiter does not conflict with itself.
            let is_conflict = self.counted[..earlier].iter().any(|other| {
                is_compared(other)
                    && other.namespace == *namespace
                    && other.policies != policies
                    && share_a_counter(&other.policies, &policies)
            });
            if is_conflict && !self.has_conflict {
                self.has_conflict = true;
                conflict = Some(namespace);
            }
            if self.counted.len() < LimiterRegistry::MAX {
                let (namespace, limiter) = (namespace.clone(), Arc::downgrade(limiter));
                self.counted.push(CountedNamespace { namespace, policies, limiter, may_change });
            }
        }
        conflict
    }
}

/// Returns whether a limit of `ones` and a limit of `others` use the same state.
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
            let (token, conflict) = limiters.register([(namespace, vec![of(limit)])], false);
            std::mem::forget(token);
            conflict.is_some()
        };
        drop(limiters.register([(&default, vec![of("7/minute")])], false));
        assert!(!is_conflict(&default, "5/minute"), "the other limiter is gone");
        assert!(!is_conflict(&default, "5/minute"), "the same limits");
        assert!(!is_conflict(&default, "9/minute:requests"), "another counter");
        assert!(!is_conflict(&login, "9/minute"), "another namespace");
        assert!(is_conflict(&default, "9/minute"));
        assert!(!is_conflict(&default, "8/minute"), "it has been reported");
    }

    #[test]
    fn a_limiter_whose_rules_change_is_compared_with_those_whose_limits_are_fixed() {
        let of = |limit: &str| vec![Policy::new([limit.parse().unwrap()]).unwrap()];
        let name = Namespace::default();
        let limiters = LimiterRegistry::default();
        let (of_file, _) = limiters.register([(&name, of("5/minute"))], true);
        let (_same_file, _) = limiters.register([(&name, of("5/minute"))], true);
        assert_eq!(limiters.replace(&of_file, [(&name, of("6/minute"))]), None, "the same file");
        let (_fixed, conflict) = limiters.register([(&name, of("6/hour"))], false);
        assert_eq!(conflict, None, "another counter");
        assert_eq!(limiters.replace(&of_file, [(&name, of("6/hour"))]), None, "the same limits");
        assert_eq!(limiters.replace(&of_file, [(&name, of("7/hour"))]), Some(&name));
        assert_eq!(limiters.replace(&of_file, [(&name, of("8/hour"))]), None, "it was reported");
        assert_eq!(limiters.lock().counted.len(), 3);
    }
}
