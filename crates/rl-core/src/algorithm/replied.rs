//! The states of limits as the scripts on Redis return them.

use smallvec::SmallVec;

use super::counting::Counting;
use super::step::{LimitCounter, PlanStep};
use crate::model::{Limit, Outcome};
use crate::time::Timestamp;

/// The state of one limit in the reply of a script: its cells, or the summary of a log.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct State(SmallVec<[u64; 4]>);

impl State {
    /// Creates a state of these cells.
    pub(crate) fn from_cells(cells: impl ExactSizeIterator<Item = u64>) -> Self {
        Self(cells.collect())
    }

    /// Returns the state of the limit of `step` as it was before the last `calls` calls. Each of them
    /// charged `cost` units at `now`.
    pub(crate) fn without(&self, step: &PlanStep, now: Timestamp, calls: u64, cost: u64) -> Self {
        let (mut state, units) = (self.clone(), calls.saturating_mul(step.limit().units(cost)));
        if units == 0 {
            return state;
        }
        let cells = &mut state.0;
        let place = match &step.counter {
            LimitCounter::Gcra(gcra) => {
                gcra.refund(cells, now, now, units);
                return state;
            }
            LimitCounter::IntervalBucket(bucket) => {
                bucket.refund(cells, now, now, units);
                return state;
            }
            LimitCounter::Window(_) | LimitCounter::TwoWindows(_) => 1,
            // Cell 2 contains the units of the newest bucket.
            LimitCounter::Buckets(_) => 2,
            LimitCounter::Log(_) => 0,
        };
        if let Some(used) = cells.get_mut(place) {
            *used = used.saturating_sub(units);
        }
        state
    }

    /// Returns the status of the limit of `step` for a request that requires `required` units. A
    /// script has returned this state after its decision.
    pub(crate) fn outcome(&self, step: &PlanStep, now: Timestamp, required: u64) -> Outcome {
        let (cells, required) = (&self.0[..], step.limit().units(required));
        match &step.counter {
            LimitCounter::Window(window) => window.outcome(cells, now, required),
            LimitCounter::Gcra(gcra) => gcra.outcome(cells, now, required),
            LimitCounter::IntervalBucket(bucket) => bucket.outcome(cells, now, required),
            LimitCounter::TwoWindows(windows) => match *cells {
                [since, current, previous, first] => {
                    windows.outcome(&[since, current, first, previous], now, required)
                }
                _ => windows.outcome(&[0; 4], now, required),
            },
            LimitCounter::Buckets(window) => window.replied(cells, now, required),
            LimitCounter::Log(log) => log.replied(cells, now, required),
        }
    }
}

/// Returns the number of integers that a script returns for `limit`: its state, or the summary of a
/// log.
pub(crate) fn replied_cells(limit: Limit) -> usize {
    match LimitCounter::new(limit) {
        LimitCounter::Window(_) => 2,
        LimitCounter::Gcra(_) | LimitCounter::Log(_) => 3,
        LimitCounter::IntervalBucket(_) | LimitCounter::TwoWindows(_) => 4,
        LimitCounter::Buckets(window) => window.replied_cells(),
    }
}

/// Returns the number of integers that a script stores for `limit`, without the entries of a log.
pub(crate) fn stored_cells(limit: Limit) -> usize {
    match LimitCounter::new(limit) {
        LimitCounter::Log(_) => 8,
        _ => replied_cells(limit),
    }
}
