//! How limits count, as pure functions: no clock, no lock, no I/O, no floating point.
//!
//! Every algorithm implements the same operations ([`Counting`]) on the [`State`] of one limit. A store
//! calls them for all limits of a policy, and charges all or none. Each file has a twin in
//! `store/redis/scripts/algorithms/` that charges the same way. Only this module computes the status that
//! a client sees ([`Counting::outcome`]): from the state that was stored here or on Redis, or, for a log
//! on Redis, from the summary that the script replies.
//!
//! To add an algorithm: a file here, its twin, a variant of [`Algorithm`], an arm in [`counting!`],
//! a tag in `store/redis/encoding/policy.rs` and `store/redis/scripts/lib/slots.lua`. Concurrency is a sliding
//! log whose units are released.

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

/// Returns the units that `limit` can grant at `now`; requests, if it counts requests.
///
/// The other functions take the units of a request, which are one unit of a limit that counts requests.
pub(crate) fn available(limit: Limit, state: &State, now: Timestamp) -> u64 {
    counting!(limit, available(state, now))
}

/// Charges a request of `units` at `now`.
pub(crate) fn charge(limit: Limit, state: &mut State, now: Timestamp, units: u64) {
    counting!(limit, charge(state, now, limit.units(units)));
}

/// Gives back those of the `units` charged at `charged` that still count at `now`.
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

/// Returns how many of the `units` charged at `charged` a concurrency limit still counts at `now`; 0 for
/// any other limit.
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

/// Re-dates to `now` those of the `units` charged at `charged` that a concurrency limit still counts.
/// Other limits have no lease to renew.
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

/// Returns the time from which `state` can be removed.
pub(crate) fn expires(limit: Limit, state: &State) -> Timestamp {
    if state.is_empty() { Timestamp::EPOCH } else { counting!(limit, expires(state)) }
}

/// Returns how many integers a script replies for `limit`: its state, or the summary of a log.
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

/// Returns how many integers a script stores for `limit`, without the entries of a log.
#[cfg(feature = "redis")]
pub(crate) fn stored_cells(limit: Limit) -> usize {
    match limit.algorithm() {
        Algorithm::SlidingLog | Algorithm::Concurrency => 7,
        _ => replied_cells(limit),
    }
}

/// Computes the outcome of `limit` for a request that needs `needed` units, from the state after the
/// decision.
pub(crate) fn outcome(limit: Limit, state: &State, now: Timestamp, needed: u64) -> Outcome {
    counting!(limit, outcome(state, now, limit.units(needed)))
}

/// Computes the outcome of `limit` as [`outcome`] does, from the cells of a script's reply.
#[cfg(feature = "redis")]
pub(crate) fn replied_outcome(limit: Limit, cells: &State, now: Timestamp, needed: u64) -> Outcome {
    match limit.algorithm() {
        Algorithm::SlidingLog | Algorithm::Concurrency => {
            SlidingLog::new(limit).replied(cells, now, limit.units(needed))
        }
        _ => outcome(limit, cells, now, needed),
    }
}
