//! Counts the decisions of the fast path with the limiter.

use super::packed_entry::FastDecision;
use crate::algorithm::fixed_window::denying_lanes;
use crate::decision::Decision;
use crate::maybe_ready::MaybeReady;
use crate::model::Cost;
use crate::policy::{LimitSet, Policy};
use crate::store::FastPath;
use crate::time::Timestamp;

/// Counts a decision about one subject.
#[inline(always)]
pub(super) fn count_decision(decision: &Decision, limiter: &dyn FastPath) {
    let is_counted = if decision.is_allowed() {
        limiter.try_count_allowed(decision.charged(), decision.at())
    } else {
        limiter.try_count_denied(decision.over(), decision.at())
    };
    if !is_counted {
        limiter.count(decision);
    }
}

/// Returns the decision that a shortcut has made, and counts it. It is counted before it is created,
/// because the compiler copies a decision that is inspected.
#[inline(always)]
pub(super) fn count_fast(
    policy: &Policy,
    cost: Cost,
    FastDecision { at, is_allowed, states }: FastDecision<'_>,
    limiter: &dyn FastPath,
) -> MaybeReady<Decision> {
    let time = Timestamp::from_micros(at.absolute);
    let is_counted = if is_allowed {
        limiter.try_count_allowed(cost.units(), time)
    } else {
        let lanes = |windows| denying_lanes(windows, states, at, cost);
        let over = policy.compiled_windows().map_or(0, lanes);
        limiter.try_count_denied(LimitSet::from_bits(over), time)
    };
    if is_counted {
        MaybeReady::ready(Decision::from_windows(policy, cost, at, is_allowed, states))
    } else {
        count_whole(policy, cost, FastDecision { at, is_allowed, states }, limiter)
    }
}

#[cold]
#[inline(never)]
fn count_whole(
    policy: &Policy,
    cost: Cost,
    FastDecision { at, is_allowed, states }: FastDecision<'_>,
    limiter: &dyn FastPath,
) -> MaybeReady<Decision> {
    let decision = Decision::from_windows(policy, cost, at, is_allowed, states);
    limiter.count(&decision);
    MaybeReady::ready(decision)
}

/// Counts nothing, and has no other steps.
pub(super) struct NotCounting;

impl FastPath for NotCounting {
    fn decide_by_steps(&self) -> MaybeReady<Decision> {
        MaybeReady::Ready(None)
    }

    fn try_count_allowed(&self, _: u64, _: Timestamp) -> bool {
        true
    }

    fn try_count_denied(&self, _: LimitSet, _: Timestamp) -> bool {
        true
    }

    fn count(&self, _: &Decision) {}
}
