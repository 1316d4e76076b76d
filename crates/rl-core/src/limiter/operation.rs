use std::time::Duration;

use tokio::time::Instant;

use crate::model::{Cost, Mode};

/// An operation on the limits of a request, and its settings.
#[derive(Clone, Copy, Debug)]
pub(super) struct Operation {
    pub(super) mode: Mode,
    /// The longest time that the decision may take.
    pub(super) deadline: Duration,
    /// Whether a denial is reported to the observer and the log. Allowed requests are always
    /// reported.
    pub(super) reports_denial: bool,
    /// Whether the decision is counted. A request that waits is counted once, after its last
    /// decision.
    pub(super) is_counted: bool,
    /// Whether the charge is to be a reservation. Has no effect if the limiter makes no
    /// reservations.
    pub(super) reserves: bool,
    /// The time since which the request waits for its policy or for the store; `None` if both were
    /// ready at once.
    pub(super) begun: Option<Instant>,
}

impl Operation {
    /// Returns the smallest number of units of `cost` with which the request is allowed.
    pub(super) const fn needed(&self, cost: Cost) -> u64 {
        self.mode.required(cost)
    }
}
