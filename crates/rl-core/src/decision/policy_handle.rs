use std::cell::Cell;
use std::thread::LocalKey;

use crate::policy::Policy;

thread_local! {
    /// The handle of the decision that this thread dropped last.
    static RECYCLED: Cell<Option<Policy>> = const { Cell::new(None) };
    /// The handle that was in `RECYCLED` before. A clone of a decision takes it: a request that
    /// passes a layer holds two decisions, so two handles are recycled.
    static RECYCLED_FOR_CLONE: Cell<Option<Policy>> = const { Cell::new(None) };
}

/// A decision's handle to its policy, which is recycled per thread.
///
/// Every decision holds a handle, and most processes have few policies. Without recycling, all
/// threads would contend for the reference counts of these policies.
///
/// ```text
/// drop    handle ─► RECYCLED, whose content ─► RECYCLED_FOR_CLONE, whose content is dropped
/// new     a handle of the same policy from RECYCLED, or else a clone of the policy
/// clone   a handle of the same policy from RECYCLED_FOR_CLONE, or else a clone of the policy
/// ```
///
/// Without recycling, a decision in memory takes one thread 91 ns instead of 82 ns.
#[derive(Debug)]
pub(crate) struct PolicyHandle(Option<Policy>);

impl PolicyHandle {
    pub(super) const NONE: Self = Self(None);

    /// Creates a handle to `policy`.
    #[inline]
    pub(super) fn new(policy: &Policy) -> Self {
        Self::recycled(&RECYCLED, policy)
    }

    #[inline]
    fn recycled(slot: &'static LocalKey<Cell<Option<Policy>>>, policy: &Policy) -> Self {
        let recycled = slot.try_with(Cell::take).ok().flatten();
        let recycled = recycled.filter(|recycled| recycled.is_same_handle(policy));
        Self(Some(recycled.unwrap_or_else(|| policy.clone())))
    }

    pub(super) const fn get(&self) -> Option<&Policy> {
        self.0.as_ref()
    }
}

impl Clone for PolicyHandle {
    fn clone(&self) -> Self {
        self.0.as_ref().map_or(Self::NONE, |policy| Self::recycled(&RECYCLED_FOR_CLONE, policy))
    }
}

impl Drop for PolicyHandle {
    #[inline]
    fn drop(&mut self) {
        if self.0.is_some() {
            // While a thread ends, its slot no longer exists.
            if let Ok(Some(before)) = RECYCLED.try_with(|slot| slot.replace(self.0.take())) {
                keep_for_clone(before);
            }
        }
    }
}

/// Stores the handle that a newer one replaces in `RECYCLED`. Not inlined, because otherwise every
/// drop of a decision would save registers, even without a replaced handle.
#[inline(never)]
fn keep_for_clone(before: Policy) {
    let _ = RECYCLED_FOR_CLONE.try_with(|slot| slot.set(Some(before)));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Limit;

    #[test]
    fn a_thread_recycles_handles_for_a_decision_and_its_clone_under_the_same_policy() {
        let [one, other] = [1, 2].map(|max| Policy::new([Limit::per_hour(max)]).unwrap());
        for policy in [&one, &other, &other, &one] {
            let handle = PolicyHandle::new(policy);
            let handles = [handle.clone(), handle];
            assert!(handles.iter().all(|handle| handle.get().unwrap().is_same_handle(policy)));
            assert_eq!(policy.handles(), 3, "the test's and these, of which two are recycled");
            drop(handles);
            assert_eq!(policy.handles(), 3, "the test's and the two that are recycled");
        }
        assert_eq!(other.handles(), 1);
    }
}
