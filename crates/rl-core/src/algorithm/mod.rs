//! The algorithms, as pure functions: no clock, no lock, no I/O, no floating point.
//!
//! Every algorithm implements the same operations (`Counting`) on the state of one limit. A
//! [`Plan`] contains the algorithms of a policy with their constants. The memory store runs the
//! plan over the states of a subject, and charges all limits or none.
//!
//! Each algorithm has a twin in `store/redis/scripts/algorithms/` that charges the same way. Only
//! this module computes the status that a client sees. It computes it from the state that was
//! stored here or on Redis. For a log on Redis, it uses the summary that the script returns.
//!
//! A concurrency limit is a sliding log whose units are released. ARCHITECTURE.md lists the steps
//! to add an algorithm.

mod divisor;
pub(crate) mod fixed_window;
mod gcra;
mod log;
mod plan;
#[cfg(feature = "redis")]
mod replied;
mod sliding_log;
mod sliding_window;
mod sliding_window_counter;
mod step;
mod token_bucket;

pub(crate) use log::Log;
pub(crate) use plan::{Judgement, Plan};
#[cfg(feature = "redis")]
pub(crate) use replied::{State, replied_cells, replied_outcome, stored_cells};
pub(crate) use step::{PlanStep, SubjectStates, SubjectStatesMut};

use crate::model::Outcome;
use crate::time::Timestamp;

/// The operations of an algorithm on the state of one limit.
///
/// A state consists of a few integers, the *cells*, whose meaning the algorithm defines. All cells
/// of an unused limit are 0. `now` is never before the last change of the state.
trait Counting {
    /// Returns the units that can be granted at `now`.
    fn available(&self, cells: &[u64], now: Timestamp) -> u64;

    /// Charges `units` at `now`, even if fewer are available. Returns the limit's status
    /// afterwards.
    fn charge(&self, cells: &mut [u64], now: Timestamp, units: u64) -> Outcome;

    /// Refunds the `units` that were charged at `charged_at`, as far as they still count at `now`.
    ///
    /// `charged_at` is not after `now`. If the state was reset or lost after the charge, nothing is
    /// refunded.
    fn refund(&self, cells: &mut [u64], now: Timestamp, charged_at: Timestamp, units: u64);

    /// Returns the time from which the state can be removed, because it equals that of an unused
    /// limit.
    fn expires(&self, cells: &[u64]) -> Timestamp;

    /// Returns the status of the limit at `now` for a request that requires `required` units.
    fn outcome(&self, cells: &[u64], now: Timestamp, required: u64) -> Outcome;
}

/// Returns the first `N` cells, or `None` if the limit is unused.
fn used_cells<const N: usize>(cells: &[u64]) -> Option<[u64; N]> {
    let cells = *cells.first_chunk::<N>()?;
    (cells != [0; N]).then_some(cells)
}

/// Replaces the first `N` cells.
fn set_cells<const N: usize>(cells: &mut [u64], new: [u64; N]) {
    if let Some(cells) = cells.first_chunk_mut::<N>() {
        *cells = new;
    }
}

/// Returns the time from `now` to `end` in µs, or 0 if `end` has passed.
const fn until(end: u64, now: Timestamp) -> u64 {
    end.saturating_sub(now.as_micros())
}
