//! The settings and the state of a limiter.

use std::sync::Arc;

use super::{OnFailure, RateLimiter};
use crate::model::FailureKind;

impl RateLimiter {
    /// Returns the number of decisions that wait for the store now, as a gauge for metrics: at most
    /// [`max_in_flight`](crate::RateLimiterBuilder::max_in_flight), and 0 with a store in memory.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.pipeline.in_flight.waiting()
    }

    /// Returns whether the limiter is switched on.
    #[must_use]
    pub fn is_enabled(&self) -> bool {
        self.pipeline.enabled
    }

    /// Returns the setting for requests that the store does not decide for this reason.
    #[must_use]
    pub fn on_failure(&self, kind: FailureKind) -> OnFailure {
        self.pipeline.failure_policy.setting(kind)
    }

    /// Returns whether the limiter is in shadow: it decides and reports, but denies nothing.
    #[must_use]
    pub fn is_shadow(&self) -> bool {
        self.pipeline.failure_policy.is_shadow
    }

    /// Returns a number that the limiter shares with its clones, and with no other limiter that is
    /// alive.
    pub(crate) fn id(&self) -> usize {
        Arc::as_ptr(&self.pipeline).addr()
    }
}
