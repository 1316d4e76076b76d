use std::cell::Cell;
use std::thread::LocalKey;

use crate::policy::Policy;

thread_local! {
    /// The handle that a decision of this thread had last.
    static SPARE: Cell<Option<Policy>> = const { Cell::new(None) };
    /// The one before that, for who clones a decision: a request through a layer holds two.
    static SECOND: Cell<Option<Policy>> = const { Cell::new(None) };
}

/// The policy of a decision.
///
/// All decisions of a process count the handles of a few policies, whichever threads make them: that
/// would be what they wait for most. So each thread keeps the handle of the decision that it gave up
/// last, for the next one under the same policy, and the one before for its clone.
#[derive(Debug)]
pub(super) struct HeldPolicy(Option<Policy>);

impl HeldPolicy {
    pub(super) const NONE: Self = Self(None);

    #[inline]
    pub(super) fn handle_of(policy: &Policy) -> Self {
        Self::handle_from(&SPARE, policy)
    }

    #[inline]
    fn handle_from(kept: &'static LocalKey<Cell<Option<Policy>>>, policy: &Policy) -> Self {
        let spare = kept.try_with(Cell::take).ok().flatten();
        let spare = spare.filter(|spare| spare.is_handle_of(policy));
        Self(Some(spare.unwrap_or_else(|| policy.clone())))
    }

    pub(super) const fn get(&self) -> Option<&Policy> {
        self.0.as_ref()
    }
}

impl Clone for HeldPolicy {
    fn clone(&self) -> Self {
        self.0.as_ref().map_or(Self::NONE, |policy| Self::handle_from(&SECOND, policy))
    }
}

impl Drop for HeldPolicy {
    #[inline]
    fn drop(&mut self) {
        if self.0.is_some() {
            // A thread that is about to end keeps nothing.
            if let Ok(Some(before)) = SPARE.try_with(|spare| spare.replace(self.0.take())) {
                keep_second(before);
            }
        }
    }
}

/// Keeps the handle that another one replaces. Not inlined, so that the usual drop saves no registers.
#[inline(never)]
fn keep_second(before: Policy) {
    let _ = SECOND.try_with(|second| second.set(Some(before)));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Limit;

    #[test]
    fn a_thread_keeps_handles_for_a_decision_and_its_clone_and_none_of_another_policy() {
        let [one, other] = [1, 2].map(|max| Policy::new([Limit::per_hour(max)]).unwrap());
        for policy in [&one, &other, &other, &one] {
            let held = HeldPolicy::handle_of(policy);
            let held = [held.clone(), held];
            assert!(held.iter().all(|held| held.get().unwrap().is_handle_of(policy)));
            assert_eq!(policy.handles(), 3, "the test's and these: spare ones are used");
            drop(held);
            assert_eq!(policy.handles(), 3, "the test's, and the spare ones");
        }
        assert_eq!(other.handles(), 1);
    }
}
