//! Counts the decisions of the fast path with the limiter.

use super::packed_entry::FastDecision;
use super::run::DecideArgs;
use super::steady_windows::SteadyDecision;
use crate::decision::{Decision, OpenWindows, PolicyHandle};
use crate::maybe_ready::MaybeReady;
use crate::model::Cost;
use crate::store::{DecideRequest, FastPath, FastPathLimiter};
use crate::time::Timestamp;

/// Counts a decision.
#[inline(always)]
pub(super) fn count_decision(
    request: &DecideRequest<'_>,
    decision: &Decision,
    limiter: &FastPath<'_>,
) {
    let is_counted = if decision.is_allowed() {
        try_count_allowed(request, decision.charged_in_all(), decision.at(), limiter)
    } else {
        limiter.try_count_denied(|| decision.over(), decision.at())
    };
    if !is_counted {
        limiter.count(request, decision);
    }
}

/// Counts an allowed request. Its parts were charged `units` together at the time `at`. Returns
/// false, and counts nothing, if the limiter needs the whole decision.
#[inline(always)]
pub(super) fn try_count_allowed(
    request: &DecideRequest<'_>,
    units: u64,
    at: Timestamp,
    limiter: &FastPath<'_>,
) -> bool {
    limiter.try_count_allowed(units, at) || limiter.try_count_under_rules(request, units, at)
}

/// Counts the result of a shortcut, then creates the decision. This order matters: if the decision
/// were created first and then inspected to count it, the compiler would copy it.
#[inline(always)]
pub(super) fn count_fast(
    request: &DecideRequest<'_>,
    DecideArgs { policy, cost, .. }: DecideArgs<'_>,
    decided: FastDecision<'_>,
    limiter: &FastPath<'_>,
) -> MaybeReady<Decision> {
    let FastDecision { at, is_allowed, over, states } = decided;
    let time = Timestamp::from_micros(at.absolute);
    // Create the handle once. If each of the three calls below created it, the compiler would not
    // inline its creation.
    let policy = PolicyHandle::from(policy);
    if is_allowed {
        if limiter.try_count_allowed(cost.units(), time) {
            return MaybeReady::ready(Decision::from_windows(policy, cost, at, true, states));
        }
    } else if limiter.try_count_denied(|| over, time) {
        return MaybeReady::ready(Decision::from_windows(policy, cost, at, false, states));
    }
    count_whole(request, Decision::from_windows(policy, cost, at, is_allowed, states), limiter)
}

/// Counts the decision on windows that are still open, then creates it.
#[inline(always)]
pub(super) fn count_steady(
    request: &DecideRequest<'_>,
    DecideArgs { policy, cost, .. }: DecideArgs<'_>,
    decided: SteadyDecision<'_>,
    limiter: &FastPath<'_>,
) -> MaybeReady<Decision> {
    let SteadyDecision { before, at, is_allowed, over, charged, later } = decided;
    let is_counted = if is_allowed {
        limiter.try_count_allowed(cost.units(), at)
    } else {
        limiter.try_count_denied(|| over, at)
    };
    // Create the box and the handle first, so that the decision is built directly in the returned
    // value.
    let required = if is_allowed { Cost::ZERO } else { cost };
    let open = OpenWindows::boxed(before, charged, required, later);
    let policy = PolicyHandle::from(policy);
    if is_counted {
        let decision = Decision::from_open_windows(policy, cost, at, is_allowed, open);
        return MaybeReady::ready(decision);
    }
    count_whole(request, Decision::from_open_windows(policy, cost, at, is_allowed, open), limiter)
}

/// Returns a decision that changes other counts than those of the thread, and counts it.
#[inline(never)]
pub(super) fn count_whole(
    request: &DecideRequest<'_>,
    decision: Decision,
    limiter: &FastPath<'_>,
) -> MaybeReady<Decision> {
    count_decision(request, &decision, limiter);
    MaybeReady::ready(decision)
}

/// Replaces the limiter while `Store::decide` calls `try_decide`, because the caller of `decide`
/// counts the decision. It counts nothing, and returns no decision.
pub(super) struct NotCounting;

impl FastPathLimiter for NotCounting {
    fn decide_by_steps(&self, _: &DecideRequest<'_>) -> MaybeReady<Decision> {
        MaybeReady::Ready(None)
    }

    fn try_count_allowed(&self, _: &DecideRequest<'_>, _: u64, _: Timestamp) -> bool {
        true
    }

    fn count(&self, _: &DecideRequest<'_>, _: &Decision) {}
}
