//! The states of limits as the scripts on Redis return them.

use smallvec::SmallVec;

use super::Counting;
use super::step::LimitCounter;
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

    /// Returns the state as it was before the last `calls` calls. Each of them charged `cost` units
    /// at `now`.
    pub(crate) fn without(&self, limit: Limit, now: Timestamp, calls: u64, cost: u64) -> Self {
        let (mut state, units) = (self.clone(), calls.saturating_mul(limit.units(cost)));
        if units == 0 {
            return state;
        }
        let cells = &mut state.0;
        let place = match LimitCounter::new(limit) {
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

/// Computes the outcome of `limit` for a request that needs `needed` units. `cells` is the state
/// that a script returned after its decision.
pub(crate) fn replied_outcome(limit: Limit, cells: &State, now: Timestamp, needed: u64) -> Outcome {
    let (cells, needed) = (&cells.0[..], limit.units(needed));
    match LimitCounter::new(limit) {
        LimitCounter::Window(window) => window.outcome(cells, now, needed),
        LimitCounter::Gcra(gcra) => gcra.outcome(cells, now, needed),
        LimitCounter::IntervalBucket(bucket) => bucket.outcome(cells, now, needed),
        LimitCounter::TwoWindows(windows) => match *cells {
            [since, current, previous, first] => {
                windows.outcome(&[since, current, first, previous], now, needed)
            }
            _ => windows.outcome(&[0; 4], now, needed),
        },
        LimitCounter::Buckets(window) => window.replied(cells, now, needed),
        LimitCounter::Log(log) => log.replied(cells, now, needed),
    }
}
