//! Denials that need no counter: by blocks, pauses, limits of 0, and costs above every capacity.

use smallvec::SmallVec;

use super::operation::Operation;
use super::parts::summed_costs;
use super::pauses::Pauses;
use super::stores::Stores;
use crate::decision::{Decision, DecisionList};
use crate::model::Cost;
use crate::store::{Namespace, Part};
use crate::time::{Clock, Timestamp};

/// Returns the denial of a request if the policy of one part suffices to deny it, or one of the
/// `pauses`. A part without a namespace is in the namespace of `stores`.
///
/// Returns `None` for a request of too many parts, which is a configuration failure.
pub(super) fn deny(
    stores: &Stores,
    parts: &[Part<'_>],
    operation: Operation,
    clock: &dyn Clock,
    pauses: Option<&Pauses>,
) -> Option<Decision> {
    if let [part] = parts
        && part.is_plain()
    {
        let needed = operation.needed(part.cost);
        return if pauses.is_some() || part.policy.may_deny_alone(needed) {
            find_reason(part, needed, clock.now(), pauses)
        } else {
            None
        };
    }
    // Parts with the same counters need the sum of their costs. That is at most the sum of all
    // costs, so a policy that grants the sum of all costs denies nothing here.
    let total = parts.iter().map(|part| part.cost.units()).fold(0, u64::saturating_add);
    let needed = operation.needed(Cost::new(total));
    let may_deny = pauses.is_some() || parts.iter().any(|part| part.policy.may_deny_alone(needed));
    if may_deny && parts.len() <= Part::MAX {
        find_reason_of_parts(&stores.namespace, parts, operation, clock, pauses)
    } else {
        None
    }
}

#[cold]
fn find_reason(
    part: &Part<'_>,
    needed: u64,
    now: Timestamp,
    pauses: Option<&Pauses>,
) -> Option<Decision> {
    let Part { policy, cost, .. } = *part;
    if let Some(block) = policy.block()
        && block.holds_at(now)
    {
        return Some(Decision::blocked(block, cost, now));
    }
    if let Some(remaining) = pauses.and_then(|pauses| pauses.remaining(part.subject)) {
        let end = now.plus_micros(Timestamp::from(remaining).as_micros());
        let paused = policy.blocked_until(end);
        return paused.block().map(|block| Decision::blocked(block, cost, now));
    }
    policy.never_grants(needed).then(|| Decision::never_granted(policy, cost, needed, now))
}

/// Returns the denial of a request if the policy of one enforced part suffices to deny it. The
/// denial reports the other parts as unused.
///
/// The costs of parts with the same counters are added, because a store charges them together.
#[cold]
fn find_reason_of_parts(
    own: &Namespace,
    parts: &[Part<'_>],
    operation: Operation,
    clock: &dyn Clock,
    pauses: Option<&Pauses>,
) -> Option<Decision> {
    let mut is_denied = false;
    let costs = summed_costs(own, parts);
    let needed = costs.into_iter().map(|cost| operation.needed(cost));
    let needed: SmallVec<[u64; 4]> = needed.collect();
    let may_deny = |(part, needed): (&Part<'_>, &u64)| part.policy.may_deny_alone(*needed);
    if pauses.is_none() && !parts.iter().zip(&needed).any(may_deny) {
        return None;
    }
    let now = clock.now();
    let statuses: DecisionList = parts
        .iter()
        .zip(needed)
        .map(|(part, needed)| match find_reason(part, needed, now, pauses) {
            Some(denial) => {
                is_denied |= !part.is_shadow();
                denial
            }
            None => Decision::never_granted(part.policy, part.cost, needed, now),
        })
        .collect();
    is_denied.then(|| Decision::of_parts(Part::flags(parts), statuses))
}
