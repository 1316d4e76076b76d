use crate::model::Outcome;
use crate::time::Timestamp;

/// The operations of an algorithm on the state of one limit.
///
/// A state consists of a few integers, the *cells*, whose meaning the algorithm defines. All cells
/// of an unused limit are 0. `now` is never before the last change of the state.
pub(super) trait Counting {
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
#[inline]
pub(super) fn used_cells<const N: usize>(cells: &[u64]) -> Option<[u64; N]> {
    let cells = *cells.first_chunk::<N>()?;
    (cells != [0; N]).then_some(cells)
}

/// Replaces the first `N` cells.
#[inline]
pub(super) fn set_cells<const N: usize>(cells: &mut [u64], new: [u64; N]) {
    if let Some(cells) = cells.first_chunk_mut::<N>() {
        *cells = new;
    }
}

/// Returns the time from `now` to `end` in µs, or 0 if `end` has passed.
#[inline]
pub(super) const fn until(end: u64, now: Timestamp) -> u64 {
    end.saturating_sub(now.as_micros())
}
