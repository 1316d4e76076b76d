//! Denials that need no counter: by blocks, limits of 0, and costs above every capacity.

use super::operation::Operation;
use crate::decision::Decision;
use crate::store::Part;
use crate::time::Clock;

/// Returns the denial of a request that the policy of one of its parts alone denies.
pub(super) fn deny(
    parts: &[Part<'_>],
    operation: Operation,
    clock: &dyn Clock,
) -> Option<Decision> {
    let may_deny = |part: &Part<'_>| part.policy.may_deny_alone(operation.needed(part.cost));
    match parts {
        [part] if part.is_plain() => {
            if may_deny(part) {
                find_reason(part, operation, clock)
            } else {
                None
            }
        }
        parts if parts.iter().any(may_deny) => find_reason_of_parts(parts, operation, clock),
        _ => None,
    }
}

#[cold]
fn find_reason(part: &Part<'_>, operation: Operation, clock: &dyn Clock) -> Option<Decision> {
    let Part { policy, cost, .. } = *part;
    let needed = operation.needed(cost);
    if let Some(block) = policy.block() {
        let now = clock.now();
        if block.holds_at(now) {
            return Some(Decision::blocked(block, cost, now));
        }
    }
    policy.never_grants(needed).then(|| Decision::never_granted(policy, cost, needed))
}

/// Returns the denial of a request that an enforced part denies alone. It reports the other parts as
/// unused.
#[cold]
fn find_reason_of_parts(
    parts: &[Part<'_>],
    operation: Operation,
    clock: &dyn Clock,
) -> Option<Decision> {
    let mut is_denied = false;
    let statuses: Vec<_> = parts
        .iter()
        .map(|part| match find_reason(part, operation, clock) {
            Some(denial) => {
                is_denied |= !part.is_shadow();
                denial
            }
            None => Decision::never_granted(part.policy, part.cost, operation.needed(part.cost)),
        })
        .collect();
    is_denied.then(|| Decision::of_parts(Part::flags(parts), statuses))
}
