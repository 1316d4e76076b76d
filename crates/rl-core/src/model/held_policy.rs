use std::cell::Cell;

use super::Policy;

thread_local! {
    /// The handle that a decision of this thread had last.
    static SPARE: Cell<Option<Policy>> = const { Cell::new(None) };
}

/// The policy of a decision.
///
/// All decisions of a process count the handles of a few policies, whichever threads make them: that
/// would be what they wait for most. So each thread keeps the handle of the decision that it gave up
/// last, for the next one under the same policy.
#[derive(Debug)]
pub(super) struct HeldPolicy(Option<Policy>);

impl HeldPolicy {
    pub(super) const NONE: Self = Self(None);

    #[inline]
    pub(super) fn handle_of(policy: &Policy) -> Self {
        let spare = SPARE.try_with(Cell::take).ok().flatten();
        let spare = spare.filter(|spare| spare.is_handle_of(policy));
        Self(Some(spare.unwrap_or_else(|| policy.clone())))
    }

    pub(super) const fn get(&self) -> Option<&Policy> {
        self.0.as_ref()
    }
}

impl Clone for HeldPolicy {
    fn clone(&self) -> Self {
        self.0.as_ref().map_or(Self::NONE, Self::handle_of)
    }
}

impl Drop for HeldPolicy {
    #[inline]
    fn drop(&mut self) {
        if self.0.is_some() {
            // A thread that is about to end keeps nothing. What is replaced is dropped with this.
            let _ = SPARE.try_with(|spare| self.0 = spare.replace(self.0.take()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Limit;

    #[test]
    fn a_thread_keeps_one_handle_and_no_policy_for_another() {
        let [one, other] = [1, 2].map(|max| Policy::new([Limit::per_hour(max)]).unwrap());
        for policy in [&one, &other, &other, &one] {
            let held = [HeldPolicy::handle_of(policy), HeldPolicy::handle_of(policy)];
            assert!(held.iter().all(|held| held.get().unwrap().is_handle_of(policy)));
            drop(held);
            assert_eq!(policy.handles(), 2, "the test's, and the spare one");
        }
        drop(HeldPolicy::handle_of(&one));
        assert_eq!((one.handles(), other.handles()), (2, 1));
    }
}
