use std::time::Duration;

use crate::model::{Cost, Mode};

/// The operation of a request on the limits of its subject.
#[derive(Clone, Copy, Debug)]
pub(super) struct Operation {
    pub(super) mode: Mode,
    pub(super) cost: Cost,
    /// The longest time that the decision may take.
    pub(super) deadline: Duration,
    /// Whether the observer and the log get a denial. They always get an allowed request.
    pub(super) reports_denial: bool,
    /// Whether the charge is a reservation, if the limiter makes any.
    pub(super) reserves: bool,
}

impl Operation {
    /// Returns the units without which the request is denied.
    #[inline]
    pub(super) const fn needed(&self) -> u64 {
        self.mode.required(self.cost)
    }
}
