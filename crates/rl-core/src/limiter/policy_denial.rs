//! Denials that need no counter: by blocks, limits of 0, and costs above every capacity.

use smallvec::SmallVec;

use super::charges::summed_costs;
use super::operation::Operation;
use super::stores::Stores;
use crate::decision::{Decision, DecisionList};
use crate::model::Cost;
use crate::store::{Namespace, Part};
use crate::time::{Clock, Timestamp};

/// Returns whether the policy of one part may suffice to deny a request.
#[inline]
pub(super) fn may_deny(parts: &[Part<'_>], operation: &Operation) -> bool {
    // Parts with the same counters need the sum of their costs. That is at most the sum of all
    // costs, so a policy that grants the sum of all costs denies nothing here.
    let total = parts.iter().map(|part| part.cost.units()).fold(0, u64::saturating_add);
    let needed = operation.needed(Cost::new(total));
    parts.iter().any(|part| part.policy.may_deny_alone(needed))
}

/// Returns the denial of a request if the policy of one part suffices to deny it. A part without a
/// namespace is in the namespace of `stores`.
///
/// Returns `None` for a request of too many parts, which is a configuration failure.
#[cold]
pub(super) fn deny(
    stores: &Stores,
    parts: &[Part<'_>],
    operation: &Operation,
    clock: &dyn Clock,
) -> Option<Decision> {
    match parts {
        [part] if part.is_plain() => find_reason(part, operation.needed(part.cost), clock.now()),
        _ if parts.len() <= Part::MAX => {
            find_reason_of_parts(&stores.namespace, parts, operation, clock)
        }
        _ => None,
    }
}

fn find_reason(part: &Part<'_>, needed: u64, now: Timestamp) -> Option<Decision> {
    let Part { policy, cost, .. } = *part;
    if let Some(block) = policy.block()
        && block.holds_at(now)
    {
        return Some(Decision::blocked(block, cost, now));
    }
    policy.never_grants(needed).then(|| Decision::never_granted(policy, cost, needed, now))
}

/// Returns the denial of a request if the policy of one enforced part suffices to deny it. The
/// denial reports the other parts as unused.
///
/// The costs of parts with the same counters are added, because a store charges them together.
fn find_reason_of_parts(
    own: &Namespace,
    parts: &[Part<'_>],
    operation: &Operation,
    clock: &dyn Clock,
) -> Option<Decision> {
    let mut is_denied = false;
    let costs = summed_costs(own, parts);
    let needed = costs.into_iter().map(|cost| operation.needed(cost));
    let needed: SmallVec<[u64; 4]> = needed.collect();
    if !parts.iter().zip(&needed).any(|(part, needed)| part.policy.may_deny_alone(*needed)) {
        return None;
    }
    let now = clock.now();
    let statuses: DecisionList = parts
        .iter()
        .zip(needed)
        .map(|(part, needed)| match find_reason(part, needed, now) {
            Some(denial) => {
                is_denied |= !part.is_shadow();
                denial
            }
            None => Decision::never_granted(part.policy, part.cost, needed, now),
        })
        .collect();
    is_denied.then(|| Decision::of_parts(Part::flags(parts), statuses))
}
