//! Denials that need no counter: by blocks, limits of 0, and costs above every capacity.

use super::operation::Operation;
use crate::decision::Decision;
use crate::policy::Policy;
use crate::time::Clock;

/// Returns the denial of a request that its policy alone denies.
pub(super) fn deny(policy: &Policy, operation: Operation, clock: &dyn Clock) -> Option<Decision> {
    if policy.may_deny_alone(operation.needed()) {
        find_reason(policy, operation, clock)
    } else {
        None
    }
}

#[cold]
fn find_reason(policy: &Policy, operation: Operation, clock: &dyn Clock) -> Option<Decision> {
    let (cost, needed) = (operation.cost, operation.needed());
    if let Some(block) = policy.block() {
        let now = clock.now();
        if block.holds_at(now) {
            return Some(Decision::blocked(block, cost, now));
        }
    }
    policy.never_grants(needed).then(|| Decision::never_granted(policy, cost, needed))
}
