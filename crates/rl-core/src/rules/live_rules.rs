//! Rules that change while limiters use them.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use arc_swap::ArcSwap;

use super::invalid_rules::InvalidRules;
use super::rule_list::Rules;
use super::rule_set::RuleSet;
use crate::store::Namespace;

/// Rules that a service replaces while limiters use them, such as those of a gateway's own files.
///
/// Clones share the rules. Counters survive a change: they belong to the name of a rule and its
/// subjects. [`RulesFile`](super::RulesFile) replaces rules when their file changes.
///
/// # Examples
///
/// ```
/// use rl_core::rules::{LiveRules, Rule, Rules};
/// use rl_core::{Limit, RateLimiter};
///
/// let fleet = |limit| Rules::new().rule(Rule::named("fleet").limit(limit));
/// let rules = LiveRules::new(fleet(Limit::per_second(100)));
/// let limiter = RateLimiter::builder().rules(&rules).build()?;
///
/// rules.replace(fleet(Limit::per_second(200)))?;
/// # let _ = limiter;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct LiveRules(Arc<Mutex<LiveState>>);

struct LiveState {
    rules: Rules,
    limiters: Vec<LiveLimiter>,
}

/// A limiter that uses the rules.
struct LiveLimiter {
    namespace: Namespace,
    rules: Weak<ArcSwap<RuleSet>>,
    on_change: Option<OnChange>,
}

/// A function that gets the rules of a limiter before each change.
type OnChange = Box<dyn Fn(&RuleSet) + Send>;

impl LiveRules {
    /// Creates rules that can be replaced.
    #[must_use]
    pub fn new(rules: Rules) -> Self {
        Self(Arc::new(Mutex::new(LiveState { rules, limiters: Vec::new() })))
    }

    /// Replaces the rules of all limiters, or of none.
    ///
    /// # Errors
    ///
    /// Returns an error for the first value that is not valid. The present rules continue to apply.
    pub fn replace(&self, rules: Rules) -> Result<(), InvalidRules> {
        let mut valid = ValidSets::new();
        if self.state().limiters.is_empty() {
            // No limiter checks the rules yet.
            RuleSet::new(&rules, &Namespace::default())?;
        }
        let mut state = loop {
            let mut state = self.state();
            state.limiters.retain(|limiter| limiter.rules.strong_count() > 0);
            let new = state.limiters.iter().filter(|limiter| find(&valid, limiter).is_none());
            let new: Vec<_> = new.map(|one| (one.rules.clone(), one.namespace.clone())).collect();
            if new.is_empty() {
                break state;
            }
            // Large rule sets take a while, so they are built without the lock.
            drop(state);
            for (limiter, namespace) in new {
                valid.push((limiter, Arc::new(RuleSet::new(&rules, &namespace)?)));
            }
        };
        for limiter in &state.limiters {
            let Some(set) = find(&valid, limiter) else { continue };
            if let Some(on_change) = &limiter.on_change {
                on_change(set);
            }
            if let Some(current) = limiter.rules.upgrade() {
                current.store(Arc::clone(set));
            }
        }
        state.rules = rules;
        Ok(())
    }

    /// Returns the rules of a limiter with this namespace. They change with the others.
    ///
    /// # Errors
    ///
    /// Returns an error if the rules are not valid.
    pub(super) fn subscribe(
        &self,
        namespace: &Namespace,
    ) -> Result<Arc<ArcSwap<RuleSet>>, InvalidRules> {
        let mut state = self.state();
        let rules = Arc::new(ArcSwap::from_pointee(RuleSet::new(&state.rules, namespace)?));
        let (namespace, weak) = (namespace.clone(), Arc::downgrade(&rules));
        state.limiters.push(LiveLimiter { namespace, rules: weak, on_change: None });
        Ok(rules)
    }

    /// Sets the function that gets the new rules before each change. `rules` are those of the
    /// limiter, which [`subscribe`](Self::subscribe) returned.
    pub(super) fn on_change(
        &self,
        rules: &Arc<ArcSwap<RuleSet>>,
        on_change: impl Fn(&RuleSet) + Send + 'static,
    ) {
        let mut state = self.state();
        let is_same = |limiter: &&mut LiveLimiter| limiter.rules.as_ptr() == Arc::as_ptr(rules);
        if let Some(limiter) = state.limiters.iter_mut().find(is_same) {
            limiter.on_change = Some(Box::new(on_change));
        }
    }

    fn state(&self) -> MutexGuard<'_, LiveState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The rule sets of limiters, each with the limiter that it belongs to.
type ValidSets = Vec<(Weak<ArcSwap<RuleSet>>, Arc<RuleSet>)>;

/// Returns the rule set that belongs to the limiter.
fn find<'a>(valid: &'a ValidSets, limiter: &LiveLimiter) -> Option<&'a Arc<RuleSet>> {
    let found = valid.iter().find(|(rules, _)| rules.ptr_eq(&limiter.rules));
    found.map(|(_, set)| set)
}

impl fmt::Debug for LiveRules {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("LiveRules").field(&self.state().rules).finish()
    }
}
