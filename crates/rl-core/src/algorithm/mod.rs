//! How limits count, as pure functions: no clock, no lock, no I/O, no floating point.
//!
//! Every algorithm answers the same questions ([`Counting`]) about the [`State`] of one limit; a
//! store asks all limits of a policy, and charges all or none. Each file has a twin in
//! `store/redis/scripts/algorithms/` that charges the same way. What a client is told ([`Counting::outcome`]) is
//! computed here alone, from the state that either of the two left behind, or from what a script tells
//! of a log that stays on Redis.
//!
//! To add an algorithm: a file here, its twin, a variant of [`Algorithm`], an arm in [`counting!`],
//! a tag in `store/redis/encoding/policy.rs` and `store/redis/scripts/lib/slots.lua`. Concurrency is a sliding log
//! whose units are given back.

mod counting;
pub(crate) mod fixed_window;
mod gcra;
mod log;
mod sliding_log;
mod sliding_window;
mod sliding_window_counter;
mod state;
mod token_bucket;

use counting::Counting;
use fixed_window::FixedWindow;
use gcra::Gcra;
use sliding_log::SlidingLog;
use sliding_window::SlidingWindow;
use sliding_window_counter::SlidingWindowCounter;
pub(crate) use state::State;
use token_bucket::TokenBucket;

#[cfg(feature = "redis")]
use crate::model::Refill;
use crate::model::{Algorithm, Limit, Outcome};
use crate::time::Timestamp;

/// Calls a method of the algorithm that `limit` counts by.
macro_rules! counting {
    ($limit:expr, $method:ident($($argument:expr),*)) => {{
        let limit: Limit = $limit;
        match limit.algorithm() {
            Algorithm::FixedWindow { anchor } => {
                FixedWindow::new(limit, anchor).$method($($argument),*)
            }
            Algorithm::SlidingWindow { precision } => {
                SlidingWindow::new(limit, precision).$method($($argument),*)
            }
            Algorithm::SlidingWindowCounter => {
                SlidingWindowCounter::new(limit).$method($($argument),*)
            }
            Algorithm::TokenBucket { refill, .. } => {
                TokenBucket::new(limit, refill).$method($($argument),*)
            }
            Algorithm::Gcra { .. } => Gcra::new(limit).$method($($argument),*),
            Algorithm::SlidingLog | Algorithm::Concurrency => {
                SlidingLog::new(limit).$method($($argument),*)
            }
        }
    }};
}

/// The units of `limit` that may be taken at `now`: requests, if it counts those.
///
/// Below `units` are those of a request, of which such a limit takes one.
pub(crate) fn available(limit: Limit, state: &State, now: Timestamp) -> u64 {
    counting!(limit, available(state, now))
}

/// Takes `units` at `now`.
pub(crate) fn charge(limit: Limit, state: &mut State, now: Timestamp, units: u64) {
    counting!(limit, charge(state, now, limit.units(units)));
}

/// Gives back at `now` what still counts of `units` that were taken at `charged`.
///
/// A charge later than `now` belongs to a state that was lost before the clock stepped back.
pub(crate) fn refund(
    limit: Limit,
    state: &mut State,
    now: Timestamp,
    charged: Timestamp,
    units: u64,
) {
    if !state.is_empty() && units > 0 && charged <= now {
        counting!(limit, refund(state, now, charged, limit.units(units)));
    }
}

/// What counts at `now` of `units` that were taken at `charged` of a concurrency limit; 0 of others.
pub(crate) fn held(
    limit: Limit,
    state: &State,
    now: Timestamp,
    charged: Timestamp,
    units: u64,
) -> u64 {
    match limit.algorithm() {
        Algorithm::Concurrency => {
            SlidingLog::new(limit).held(state, now, charged, limit.units(units))
        }
        _ => 0,
    }
}

/// Takes at `now` what counts of `units` that were taken at `charged` of a concurrency limit, in
/// their place. Others have nothing to renew.
pub(crate) fn renew(
    limit: Limit,
    state: &mut State,
    now: Timestamp,
    charged: Timestamp,
    units: u64,
) {
    if let Algorithm::Concurrency = limit.algorithm() {
        SlidingLog::new(limit).renew(state, now, charged, limit.units(units));
    }
}

/// When `state` can be forgotten.
pub(crate) fn expires(limit: Limit, state: &State) -> Timestamp {
    if state.is_empty() { Timestamp::EPOCH } else { counting!(limit, expires(state)) }
}

/// How many integers a script replies for `limit`: its state, or of a log what is told of it.
#[cfg(feature = "redis")]
pub(crate) fn replied_cells(limit: Limit) -> usize {
    match limit.algorithm() {
        Algorithm::FixedWindow { .. } => 2,
        Algorithm::Gcra { .. } | Algorithm::TokenBucket { refill: Refill::Greedy, .. } => 3,
        Algorithm::TokenBucket { refill: Refill::Interval, .. } => 4,
        Algorithm::SlidingWindowCounter => 4,
        Algorithm::SlidingLog | Algorithm::Concurrency => 3,
        Algorithm::SlidingWindow { precision } => SlidingWindow::new(limit, precision).cells(),
    }
}

/// How many integers a script stores for `limit` beside the entries of a log.
#[cfg(feature = "redis")]
pub(crate) fn stored_cells(limit: Limit) -> usize {
    match limit.algorithm() {
        Algorithm::SlidingLog | Algorithm::Concurrency => 7,
        _ => replied_cells(limit),
    }
}

/// What the client is told about `limit`, for a request that needs `needed` units of the state that
/// the decision left behind.
pub(crate) fn outcome(limit: Limit, state: &State, now: Timestamp, needed: u64) -> Outcome {
    counting!(limit, outcome(state, now, limit.units(needed)))
}

/// The same, from what a script replied.
#[cfg(feature = "redis")]
pub(crate) fn replied_outcome(limit: Limit, cells: &State, now: Timestamp, needed: u64) -> Outcome {
    match limit.algorithm() {
        Algorithm::SlidingLog | Algorithm::Concurrency => {
            SlidingLog::new(limit).replied(cells, now, limit.units(needed))
        }
        _ => outcome(limit, cells, now, needed),
    }
}
