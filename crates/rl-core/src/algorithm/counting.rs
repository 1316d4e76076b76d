use super::State;
use crate::model::Outcome;
use crate::time::Timestamp;

/// The operations of an algorithm on the state of one limit.
///
/// `now` is never before the last change of the state.
pub(super) trait Counting {
    /// Returns the units that can be granted at `now`.
    fn available(&self, state: &State, now: Timestamp) -> u64;

    /// Charges `units` at `now`, even if fewer are available.
    fn charge(&self, state: &mut State, now: Timestamp, units: u64);

    /// Gives back those of the `units` charged at `charged_at` that still count at `now`.
    ///
    /// `charged_at` is not after `now`. If the state was reset or lost since then, nothing is given back.
    fn refund(&self, state: &mut State, now: Timestamp, charged_at: Timestamp, units: u64);

    /// Returns the time from which the state is as if never used, so that it can be removed.
    fn expires(&self, state: &State) -> Timestamp;

    /// Returns the status of the limit at `now` for a request that requires `required` units.
    fn outcome(&self, state: &State, now: Timestamp, required: u64) -> Outcome;
}
