//! Runs the plan of a policy over the states of one subject.

use crate::algorithm::{Judgement, PlanStep, SubjectStates, SubjectStatesMut};
use crate::decision::Decision;
use crate::model::{Cost, MAX_FOREIGN_STATES, Mode};
use crate::policy::Policy;
use crate::store::Part;
use crate::time::Timestamp;

/// The arguments of a decision on one subject.
#[derive(Clone, Copy, Debug)]
pub(super) struct DecideArgs<'a> {
    pub(super) policy: &'a Policy,
    pub(super) mode: Mode,
    pub(super) cost: Cost,
    pub(super) now: Timestamp,
}

impl<'a> DecideArgs<'a> {
    pub(super) const fn new(part: &Part<'a>, mode: Mode, now: Timestamp) -> Self {
        Self { policy: part.policy, mode, cost: part.cost, now }
    }
}

/// The error of a charge that would exceed the number of states that one subject may have. Nothing
/// was changed.
#[derive(Debug)]
pub(super) struct TooManyStates;

/// Checks the number of states of other policies in an entry.
pub(super) fn check_foreign_states(count: usize) -> Result<(), TooManyStates> {
    if count > MAX_FOREIGN_STATES { Err(TooManyStates) } else { Ok(()) }
}

/// Returns the earliest time of a decision after a reset at `now`. The entry was last changed at
/// `last_change`.
///
/// A refund names a charge by its time. If a reset comes in the same microsecond as a charge, the
/// next charge gets a time one microsecond later. A refund of the first charge then does not find
/// it.
pub(super) fn earliest_after_reset(last_change: Timestamp, now: Timestamp) -> Timestamp {
    if last_change < now { now } else { last_change.plus_micros(1) }
}

/// Returns whether the result of [`earliest_after_reset`] must be stored when the whole entry is
/// removed. This is the case if the last change was at `now`, or less than a millisecond later
/// because the clock has stepped back.
///
/// After a larger step back, the next decision may use the time of the clock.
pub(super) fn is_same_moment(last_change: Timestamp, now: Timestamp) -> bool {
    const STEP_BACK_MICROS: u64 = 1_000;

    last_change >= now && last_change.micros_since(now) < STEP_BACK_MICROS
}

/// Returns whether a check of `args` would be granted at `at`.
pub(super) fn would_grant(args: &DecideArgs<'_>, states: SubjectStates<'_>, at: Timestamp) -> bool {
    // A cost of 0 is always granted, and charges nothing.
    args.cost == Cost::ZERO
        || args.policy.plan().judge(states, at, Mode::Check, args.cost).charged > 0
}

/// Makes the charge of `judgement`, or reports why nothing is charged. Completes the decision.
/// Returns the time until which further requests will be denied, or the epoch if they will not.
pub(super) fn conclude(
    args: &DecideArgs<'_>,
    states: &mut SubjectStatesMut<'_>,
    judgement: &Judgement,
    decision: &mut Decision,
) -> Timestamp {
    let (plan, Judgement { at, charged, is_full, .. }) = (args.policy.plan(), *judgement);
    if charged == 0 {
        let denied_until = deny(args, states.read(), at, decision);
        return match if is_full { 1 } else { args.cost.units() } {
            units if units == args.mode.required(args.cost) => denied_until,
            units => plan.denied_until(states.read(), at, units),
        };
    }
    plan.commit(states, judgement, decision.outcomes_mut().renew(plan.steps().len()));
    decision.finish(charged, at, true);
    if is_full { plan.denied_until(states.read(), at, 1) } else { Timestamp::EPOCH }
}

/// Completes the decision on a request that charges nothing, because it is denied or only peeks.
/// Returns the time until which the enforced limits deny it, or the epoch if they do not deny it.
fn deny(
    args: &DecideArgs<'_>,
    states: SubjectStates<'_>,
    at: Timestamp,
    decision: &mut Decision,
) -> Timestamp {
    let (mut is_allowed, mut wait) = (true, None);
    let (steps, required) = (args.policy.plan().steps(), args.mode.required(args.cost));
    let outcomes = decision.outcomes_mut().renew(steps.len());
    for (step, set) in steps.iter().zip(outcomes) {
        let outcome = step.outcome(states, at, required);
        *set = outcome;
        if !step.limit().is_shadow() {
            is_allowed &= !outcome.is_over();
            wait = outcome.wait_micros().max(wait);
        }
    }
    decision.finish(0, at, is_allowed);
    wait.map_or(Timestamp::EPOCH, |wait| at.plus_micros(wait))
}

/// Changes the states of the policy's limits. Calls `change` with the index of each limit that is
/// in use, and skips unused limits.
pub(super) fn amend(
    policy: &Policy,
    states: &mut SubjectStatesMut<'_>,
    at: Timestamp,
    mut change: impl FnMut(usize, &PlanStep, &mut SubjectStatesMut<'_>, Timestamp),
) {
    for (index, step) in policy.plan().steps().iter().enumerate() {
        if !step.is_unused(states.read()) {
            change(index, step, states, at);
        }
    }
}
