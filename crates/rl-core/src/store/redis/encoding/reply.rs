//! What a server has decided of one subject, and what each who asked is told of it. No I/O.

use smallvec::SmallVec;

use crate::algorithm::fixed_window::{DecidedWindows, PackedStates};
use crate::algorithm::{self, State};
use crate::decision::Decision;
use crate::decision::{Origin, Outcomes};
use crate::model::Cost;
use crate::model::Mode;
use crate::policy::LimitSet;
use crate::policy::Policy;
use crate::time::Timestamp;

/// What was asked of each subject, in each of the calls that came one after the other.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Asked<'a> {
    pub(crate) policy: &'a Policy,
    pub(crate) mode: Mode,
    pub(crate) cost: Cost,
}

/// What a deciding script replied of one subject.
#[derive(Clone, Debug)]
pub(crate) struct Answer {
    /// Counters that had no expiry and were given one.
    pub(crate) healed: u64,
    pub(crate) told: Told,
}

#[derive(Clone, Debug)]
pub(crate) enum Told {
    /// Of fixed windows: how many of the calls pass, and the state after the last of them.
    Passing { passing: u16, after: After },
    /// For each call the state after it, up to the last that differs from the one before.
    Each(Vec<(LimitSet, u64, Each)>),
}

/// How the last of the calls left the limits.
#[derive(Clone, Debug)]
pub(crate) enum After {
    /// Windows that are decided in one pass, as decisions hold them: `now` is [`KEPT`] there.
    Windows {
        now: Timestamp,
        states: PackedStates,
    },
    // Boxed, so that `Windows` is cheap to move.
    Each(Box<Each>),
}

/// The states of the limits, in the order of the policy, and the time. Of logs what is told of them.
#[derive(Clone, Debug)]
pub(crate) struct Each {
    pub(crate) now: Timestamp,
    pub(crate) states: SmallVec<[State; 6]>,
}

/// What now is in the times of [`After::Windows`]: in the middle of those that can be kept.
const KEPT: u64 = 1 << 47;

/// What has become of a state since it was told.
#[derive(Clone, Copy, Debug)]
struct Since {
    /// Units that are counted in it and not for who is told.
    uncounted: u64,
    micros: u64,
}

impl Since {
    const NONE: Self = Self { uncounted: 0, micros: 0 };
}

impl Answer {
    /// The decision on the call of this number, from 0.
    pub(crate) fn decision(&self, call: u16, asked: Asked<'_>) -> Decision {
        let Asked { policy, mode, cost } = asked;
        match &self.told {
            Told::Passing { passing, after } => {
                let taken = if call < *passing { cost.units() } else { 0 };
                // What those have taken that came after it.
                let uncounted = u64::from(passing.saturating_sub(call + 1)) * cost.units();
                let needed = mode.required_after(cost, taken, false);
                after.decision(policy, cost, taken, Since { uncounted, micros: 0 }, needed)
            }
            Told::Each(calls) => {
                let call = usize::from(call).min(calls.len() - 1);
                let (uncharged, taken, after) = &calls[call];
                let needed = |place| mode.required_after(cost, *taken, uncharged.contains(place));
                after.decision(policy, cost, *taken, Since::NONE, needed)
            }
        }
    }

    /// The decision on a call that was given `taken` of units that were charged before, of which
    /// `unspent` are not used yet, so many microseconds later. Of fixed windows that begin with the first
    /// request: their length does not depend on when the decision was made, which is told as the time of
    /// the charge.
    #[inline(always)]
    pub(crate) fn with_unspent(
        &self,
        policy: &Policy,
        cost: Cost,
        taken: u64,
        unspent: u64,
        micros: u64,
    ) -> Decision {
        let needed = if taken == 0 { cost.units() } else { 0 };
        let since = Since { uncounted: unspent, micros };
        self.after_all(policy, cost, taken, since, needed).with_origin(Origin::Leased)
    }

    /// Whether the call of this number, from 0, was given what it asked for.
    pub(crate) fn passes(&self, call: u16) -> bool {
        match &self.told {
            Told::Passing { passing, .. } => call < *passing,
            Told::Each(calls) => calls[usize::from(call).min(calls.len() - 1)].1 > 0,
        }
    }

    /// How many of the calls pass. Of fixed windows.
    pub(crate) fn passing(&self) -> u16 {
        match &self.told {
            Told::Passing { passing, .. } => *passing,
            // No more are told than were asked for.
            Told::Each(calls) => {
                let passing = calls.iter().filter(|(_, taken, _)| *taken > 0).count();
                u16::try_from(passing).unwrap_or(u16::MAX)
            }
        }
    }

    /// The units that were left under the strictest limit. Of fixed windows.
    pub(crate) fn least_left(&self, policy: &Policy) -> u64 {
        let standing = self.after_all(policy, Cost::ZERO, 0, Since::NONE, 0);
        standing.limits().map(|limit| limit.remaining()).min().unwrap_or_default()
    }

    /// A decision by what the last call has left.
    #[inline(always)]
    fn after_all(
        &self,
        policy: &Policy,
        cost: Cost,
        taken: u64,
        since: Since,
        needed: u64,
    ) -> Decision {
        match &self.told {
            Told::Passing { after, .. } => after.decision(policy, cost, taken, since, needed),
            Told::Each(calls) => {
                // There is one at least.
                let (_, _, after) = &calls[calls.len() - 1];
                after.decision(policy, cost, taken, since, |_| needed)
            }
        }
    }
}

impl After {
    /// By since when windows last and what is used in them.
    pub(crate) fn of_windows(policy: &Policy, now: u64, windows: &[[u64; 2]]) -> Self {
        let states = policy.compiled_windows().and_then(|_| packed(now, windows));
        let now = Timestamp::from_micros(now);
        match states {
            Some(states) => Self::Windows { now, states },
            None => {
                let state = |cells: &[u64; 2]| State::from_cells(cells.iter().copied());
                Self::Each(Box::new(Each { now, states: windows.iter().map(state).collect() }))
            }
        }
    }

    #[inline(always)]
    fn decision(
        &self,
        policy: &Policy,
        cost: Cost,
        taken: u64,
        since: Since,
        needed: u64,
    ) -> Decision {
        match self {
            Self::Windows { now, states } => {
                let (states, kept) = (states.less(since.uncounted), KEPT + since.micros);
                let windows = DecidedWindows { states, decided_at: kept, required: needed };
                // Of a grant it is known that no limit denies.
                if taken > 0 {
                    Decision::from_windows(policy, cost, *now, true, windows)
                } else {
                    Decision::from_outcomes(policy, cost, 0, *now, Outcomes::Lazy(windows))
                }
            }
            Self::Each(after) => after.decision(policy, cost, taken, since, |_| needed),
        }
    }
}

impl Each {
    /// The decision by what is left, of which so much is needed under each limit. It is made at the time of
    /// the answer, by which units are given back.
    fn decision(
        &self,
        policy: &Policy,
        cost: Cost,
        taken: u64,
        Since { uncounted, micros }: Since,
        needed: impl Fn(usize) -> u64,
    ) -> Decision {
        let now = self.now.plus_micros(micros);
        let limits = policy.limits().iter().zip(&self.states).enumerate();
        let outcomes = limits.map(|(place, (limit, state))| {
            let state = state.with_less(uncounted);
            algorithm::replied_outcome(limit.limit(), &state, now, needed(place))
        });
        Decision::from_outcomes(policy, cost, taken, self.now, outcomes.collect())
    }
}

/// Since when windows last and what is used in them, as decisions hold it, if it fits.
fn packed(now: u64, windows: &[[u64; 2]]) -> Option<PackedStates> {
    let mut states = PackedStates::EMPTY;
    for (place, [since, used]) in windows.iter().enumerate() {
        // 0 is no window.
        if *since > 0 {
            let begun = KEPT.checked_sub(now - since).filter(|begun| *begun > 0)?;
            states.set(place, begun, *used)?;
        }
    }
    Some(states)
}
