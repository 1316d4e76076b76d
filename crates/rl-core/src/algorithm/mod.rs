//! How limits count, as pure functions: no clock, no lock, no I/O, no floating point.
//!
//! Every algorithm answers the same questions about the [`State`] of one limit; [`decide`] asks all
//! limits of a policy and charges all or none. Each file has a twin in `store/redis/lua/` that
//! charges the same way. What a client is told is computed here alone ([`outcomes`]), from the
//! state that either of the two left behind.
//!
//! To add an algorithm: a file here, its twin, a variant of [`Algorithm`], an arm in the functions
//! below.

mod fixed_window;

use fixed_window::FixedWindow;

use crate::model::{Algorithm, Cost, Limit, Outcome, Outcomes, Policy};
use crate::time::Timestamp;

/// What one limit of one subject remembers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct State {
    /// Since when it counts.
    pub(crate) since: Timestamp,
    /// The units in use.
    pub(crate) used: u64,
}

impl State {
    /// Nothing to remember.
    pub(crate) const EMPTY: Self = Self { since: Timestamp::EPOCH, used: 0 };

    /// Whether there is nothing to remember.
    pub(crate) fn is_empty(self) -> bool {
        self == Self::EMPTY
    }
}

/// Which state a limit counts in: its algorithm, period and anchor, whatever its `max`.
///
/// Limits with equal ids count in the same state, so a change of `max` keeps what was used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StateId(u64);

impl StateId {
    /// The id of the state that `limit` counts in.
    pub(crate) const fn of(limit: Limit) -> Self {
        let Algorithm::FixedWindow { anchor } = limit.algorithm();
        // A period has less than 2^42 milliseconds.
        Self(limit.period().as_millis() << 8 | anchor as u64)
    }
}

/// What is asked of the limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mode {
    /// Takes the whole cost or nothing.
    Check,
    /// Takes as much of the cost as every limit grants.
    CheckUpTo,
    /// Takes nothing: would the cost pass?
    Peek,
    /// Takes the whole cost even beyond the limits: it was used already.
    Charge,
}

impl Mode {
    /// The units without which the answer is a denial.
    const fn needed(self, cost: Cost) -> u64 {
        match self {
            Self::Check | Self::Peek => cost.units(),
            Self::CheckUpTo => {
                if cost.units() > 0 {
                    1
                } else {
                    0
                }
            }
            Self::Charge => 0,
        }
    }

    /// The units taken when every limit has `available` left.
    const fn taken(self, cost: Cost, available: u64) -> u64 {
        let cost = cost.units();
        match self {
            Self::Check if cost <= available => cost,
            Self::Check | Self::Peek => 0,
            Self::CheckUpTo if cost <= available => cost,
            Self::CheckUpTo => available,
            Self::Charge => cost,
        }
    }
}

/// Decides `cost` on the states of one subject, which come in the order of the policy: all limits
/// are charged, or none is. Returns the units taken; if there are any, `states` hold the new states.
///
/// States of windows that are over are emptied in passing.
pub(crate) fn decide(
    policy: &Policy,
    states: &mut [State],
    now: Timestamp,
    mode: Mode,
    cost: Cost,
) -> u64 {
    let limits = || policy.limits().iter().map(|limit| algorithm(limit.limit()));
    let mut available = u64::MAX;
    for (limit, state) in limits().zip(&mut *states) {
        *state = limit.roll(*state, now);
        available = available.min(limit.available(*state));
    }
    let taken = mode.taken(cost, available);
    if taken > 0 {
        for (limit, state) in limits().zip(states) {
            *state = limit.charge(*state, now, taken);
        }
    }
    taken
}

/// What the client is told, from the states that [`decide`] left behind.
pub(crate) fn outcomes(
    policy: &Policy,
    states: impl IntoIterator<Item = State>,
    now: Timestamp,
    mode: Mode,
    cost: Cost,
    taken: u64,
) -> Outcomes {
    // What was taken is in the states already: asking for more would deny what was granted.
    let needed = if taken > 0 { 0 } else { mode.needed(cost) };
    let outcome = |limit: Limit, state: State| -> Outcome {
        let limit = algorithm(limit);
        limit.outcome(limit.roll(state, now), now, needed)
    };
    policy.limits().iter().zip(states).map(|(limit, state)| outcome(limit.limit(), state)).collect()
}

/// `state` with `units` fewer in use, if what was charged at `charged` still counts.
pub(crate) fn refund(limit: Limit, state: State, charged: Timestamp, units: u64) -> State {
    algorithm(limit).refund(state, charged, units)
}

/// When `state` can be forgotten.
pub(crate) fn expires(limit: Limit, state: State) -> Timestamp {
    algorithm(limit).expires(state)
}

/// The units that `state` has left at `now`.
pub(crate) fn available(limit: Limit, state: State, now: Timestamp) -> u64 {
    let limit = algorithm(limit);
    limit.available(limit.roll(state, now))
}

const fn algorithm(limit: Limit) -> FixedWindow {
    let Algorithm::FixedWindow { anchor } = limit.algorithm();
    FixedWindow { max: limit.max(), period: limit.period(), anchor }
}
