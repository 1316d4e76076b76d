//! The reply of a deciding script for one subject, and the decisions computed from it.

use smallvec::SmallVec;

use crate::algorithm::fixed_window::{DecidedWindows, PackedStates, PackedTime};
use crate::algorithm::{self, State};
use crate::decision::{Decision, Origin, Outcomes};
use crate::model::Cost;
use crate::policy::{LimitSet, Policy};
use crate::store::Mode;
use crate::time::Timestamp;

/// The relative time that represents *now* in [`FinalState::Windows`]: the middle of the 48-bit
/// range, so that both earlier and later times fit.
const RELATIVE_NOW: u64 = 1 << 47;

/// The arguments of the call that a reply belongs to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CallArgs<'a> {
    pub(crate) policy: &'a Policy,
    pub(crate) mode: Mode,
    pub(crate) cost: Cost,
}

/// The reply of a deciding script for one subject. The script has decided one or more *calls* of
/// the subject, one after the other. A call is a request, or one unit of a lease. If there are
/// several, all are checks.
#[derive(Clone, Debug)]
pub(crate) struct ScriptReply {
    /// The number of counters whose missing expiry was restored.
    pub(crate) healed: u64,
    pub(crate) body: ReplyBody,
    /// The server's time, if the server's clock has stepped back and is more than 1 ms behind the
    /// last change of a subject of the call.
    pub(crate) server_time: Option<Timestamp>,
}

#[derive(Clone, Debug)]
pub(crate) enum ReplyBody {
    /// The first `allowed` calls are allowed. `last` contains the states after the last call.
    Counted { allowed: u16, last: FinalState },
    /// The results of the calls in their order, at least one. All calls after the last listed one
    /// have the same result as that one.
    PerCall(Vec<CallResult>),
}

/// The result of one call.
#[derive(Clone, Debug)]
pub(crate) struct CallResult {
    /// The limits in shadow that were not charged, because they would have denied the call.
    pub(crate) uncharged: LimitSet,
    pub(crate) granted: u64,
    pub(crate) states: States,
}

impl CallResult {
    /// Returns the decision on one part of a request. `is_allowed` is the verdict on the whole
    /// request.
    pub(crate) fn part_decision(&self, args: CallArgs<'_>, is_allowed: bool) -> Decision {
        let CallArgs { policy, mode, cost } = args;
        let Self { uncharged, granted, states } = self;
        let required = |place| match *granted {
            // The request is allowed although this part granted nothing, so the part is in shadow.
            // Its limits are evaluated for the whole cost.
            0 if is_allowed => Mode::Check.required(cost),
            granted => mode.required_after(cost, granted, uncharged.contains(place)),
        };
        states.decision(policy, cost, *granted, Adjustment::NONE, required)
    }
}

/// The states of all limits after the last call.
#[derive(Clone, Debug)]
pub(crate) enum FinalState {
    /// Up to six fixed windows, in the form in which decisions store them. Their times are relative
    /// to the reply, whose time is [`RELATIVE_NOW`].
    Windows { now: Timestamp, states: PackedStates },
    /// Boxed, so that `Windows` is cheap to move.
    States(Box<States>),
}

/// The states of the limits at one time, in the order of the policy.
///
/// In place of a sliding log, it contains the summary that the script returns.
#[derive(Clone, Debug)]
pub(crate) struct States {
    pub(crate) now: Timestamp,
    pub(crate) states: SmallVec<[State; 6]>,
}

/// The difference between the states of a reply and those that a decision describes.
#[derive(Clone, Copy, Debug)]
struct Adjustment {
    /// The number of calls that the states include, but the decision does not.
    later_calls: u64,
    /// The cost of each of these calls.
    cost: u64,
    /// The time from the reply to the decision, in µs.
    later_by: u64,
}

impl Adjustment {
    const NONE: Self = Self { later_calls: 0, cost: 0, later_by: 0 };
}

impl ScriptReply {
    /// Returns the decision on the call with this number, from 0.
    pub(crate) fn decision(&self, call: u16, args: CallArgs<'_>) -> Decision {
        let CallArgs { policy, mode, cost } = args;
        let decision = match &self.body {
            ReplyBody::Counted { allowed, last } => {
                let granted = if call < *allowed { cost.units() } else { 0 };
                let later_calls = u64::from(allowed.saturating_sub(call + 1));
                let required = mode.required_after(cost, granted, false);
                let adjustment = Adjustment { later_calls, cost: cost.units(), later_by: 0 };
                last.decision(policy, cost, granted, adjustment, required)
            }
            ReplyBody::PerCall(calls) => {
                let call = usize::from(call).min(calls.len() - 1);
                let CallResult { uncharged, granted, states } = &calls[call];
                let required =
                    |place| mode.required_after(cost, *granted, uncharged.contains(place));
                states.decision(policy, cost, *granted, Adjustment::NONE, required)
            }
        };
        decision.at_server_time(self.server_time)
    }

    /// Returns the decision on a call that was granted `granted` leased units. The call was made
    /// `later_by` µs after the reply.
    ///
    /// `unspent` leased units are left, and do not count as used. The policy must consist of fixed
    /// windows that begin with the first request. The decision contains the time of the charge,
    /// because a refund identifies the charge by this time.
    pub(crate) fn leased_decision(
        &self,
        policy: &Policy,
        cost: Cost,
        granted: u64,
        unspent: u64,
        later_by: u64,
    ) -> Decision {
        let required = if granted == 0 { cost.units() } else { 0 };
        let adjustment = Adjustment { later_calls: unspent, cost: 1, later_by };
        self.final_decision(policy, cost, granted, adjustment, required).with_origin(Origin::Leased)
    }

    /// Returns the number of allowed calls. Only fixed windows are supported.
    pub(crate) fn allowed_calls(&self) -> u16 {
        match &self.body {
            ReplyBody::Counted { allowed, .. } => *allowed,
            ReplyBody::PerCall(calls) => {
                let allowed = calls.iter().filter(|call| call.granted > 0).count();
                u16::try_from(allowed).unwrap_or(u16::MAX)
            }
        }
    }

    /// Returns the smallest number of units that remain under a limit. Only fixed windows are
    /// supported.
    pub(crate) fn least_remaining(&self, policy: &Policy) -> u64 {
        let status = self.final_decision(policy, Cost::ZERO, 0, Adjustment::NONE, 0);
        status.limits().map(|limit| limit.remaining()).min().unwrap_or_default()
    }

    /// Returns a decision on the states after the last call.
    fn final_decision(
        &self,
        policy: &Policy,
        cost: Cost,
        granted: u64,
        adjustment: Adjustment,
        required: u64,
    ) -> Decision {
        let decision = match &self.body {
            ReplyBody::Counted { last, .. } => {
                last.decision(policy, cost, granted, adjustment, required)
            }
            ReplyBody::PerCall(calls) => {
                let states = &calls[calls.len() - 1].states;
                states.decision(policy, cost, granted, adjustment, |_| required)
            }
        };
        decision.at_server_time(self.server_time)
    }
}

impl FinalState {
    /// Creates the states of fixed windows. Each window consists of the time of its first request
    /// and its used units. The time is 0 if the window is not open.
    pub(crate) fn of_windows(policy: &Policy, now: u64, windows: &[[u64; 2]]) -> Self {
        let states = policy.compiled_windows().and_then(|_| packed(now, windows));
        let now = Timestamp::from_micros(now);
        match states {
            Some(states) => Self::Windows { now, states },
            None => {
                let state = |cells: &[u64; 2]| State::from_cells(cells.iter().copied());
                Self::States(Box::new(States { now, states: windows.iter().map(state).collect() }))
            }
        }
    }

    /// Returns the decision on a part that was charged its whole cost, or nothing. `is_allowed` is
    /// the verdict on the whole request.
    pub(crate) fn part_decision(&self, args: CallArgs<'_>, is_allowed: bool) -> Decision {
        let CallArgs { policy, mode, cost } = args;
        let granted = if is_allowed { cost.units() } else { 0 };
        let required = mode.required_after(cost, granted, false);
        self.decision(policy, cost, granted, Adjustment::NONE, required)
    }

    fn decision(
        &self,
        policy: &Policy,
        cost: Cost,
        granted: u64,
        adjustment: Adjustment,
        required: u64,
    ) -> Decision {
        match self {
            Self::Windows { now, states } => {
                let states = states.less(adjustment.later_calls * adjustment.cost);
                let decided_at = RELATIVE_NOW + adjustment.later_by;
                if granted > 0 {
                    // No limit denies a granted call, so the outcomes are not computed here.
                    let at = PackedTime { absolute: now.as_micros(), relative: decided_at };
                    Decision::from_windows(policy, cost, at, true, &states)
                } else {
                    let windows = DecidedWindows { states: &states, decided_at, required };
                    let outcomes = Outcomes::of_windows(policy, windows, *now);
                    Decision::from_outcomes(policy, cost, 0, *now, outcomes)
                }
            }
            Self::States(states) => {
                states.decision(policy, cost, granted, adjustment, |_| required)
            }
        }
    }
}

impl States {
    /// Returns the decision of one call of the script. The call needs `required(i)` units of the
    /// limit at index `i`. The decision contains the time of the script's reply, because a refund
    /// identifies the charge by this time.
    fn decision(
        &self,
        policy: &Policy,
        cost: Cost,
        granted: u64,
        adjustment: Adjustment,
        required: impl Fn(usize) -> u64,
    ) -> Decision {
        let now = self.now.plus_micros(adjustment.later_by);
        let limits = policy.limits().iter().zip(&self.states).enumerate();
        let outcomes = limits.map(|(place, (limit, state))| {
            let (limit, Adjustment { later_calls, cost, .. }) = (limit.limit(), adjustment);
            let state = state.without(limit, self.now, later_calls, cost);
            algorithm::replied_outcome(limit, &state, now, required(place))
        });
        Decision::from_outcomes(policy, cost, granted, self.now, outcomes.collect())
    }
}

/// Packs windows into the form in which decisions store them. Returns `None` if they do not fit.
fn packed(now: u64, windows: &[[u64; 2]]) -> Option<PackedStates> {
    let mut states = PackedStates::EMPTY;
    for (place, [since, used]) in windows.iter().enumerate() {
        if *since > 0 {
            let begun = RELATIVE_NOW.checked_sub(now - since).filter(|begun| *begun > 0)?;
            if states.set(place, begun, *used) != 0 {
                return None;
            }
        }
    }
    Some(states)
}
