use std::time::Duration;

use super::damaged::Damaged;
use super::progress::Progress;
use crate::observe::Transition;

/// What happens to a request when no decision can be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum OnFailure {
    /// It passes: an API that is down because its limiter is, is worse than an hour without limits.
    Allow,
    /// It is turned away; adapters answer 503 with `Retry-After`.
    Reject,
    /// Another store decides, on this instance's [`Share`](super::Share) of the limits:
    /// [`fallback`](crate::RateLimiterBuilder::fallback). If it fails too,
    /// [`on_fallback_failure`](crate::RateLimiterBuilder::on_fallback_failure) decides.
    Fallback,
}

impl OnFailure {
    /// Returns what happens to the requests without a decision, in words for the log.
    pub(super) const fn consequence(self) -> &'static str {
        match self {
            Self::Allow => "undecided requests are allowed without limits",
            Self::Reject => "undecided requests are rejected with 503",
            Self::Fallback => "the fallback decides on a share of the limits",
        }
    }
}

/// The time without an occurrence after which a condition is over, so that one that flickers is one line.
pub(super) const CALM: Duration = Duration::from_secs(1);

/// The same for conditions that have no other sign of their end.
pub(super) const LONG_CALM: Duration = Duration::from_secs(60);

/// Whether the source of policies answers.
///
/// The state of the source says nothing about the store, and must not keep requests from the store.
#[derive(Debug)]
pub(super) struct SourceHealth {
    pub(super) outage: Transition,
    pub(super) overload: Transition,
    /// Single subjects whose policy cannot be read.
    pub(super) damaged: Damaged,
    pub(super) progress: Progress,
}

impl Default for SourceHealth {
    fn default() -> Self {
        let (outage, overload) = (Transition::new(CALM), Transition::new(CALM));
        Self { outage, overload, damaged: Damaged::default(), progress: Progress::default() }
    }
}

/// What the log says about the store, beside the states of the breaker.
#[derive(Debug)]
pub(super) struct StoreHealth {
    /// Begins and ends with what the breaker finds; counts the requests without a decision.
    pub(super) outage: Transition,
    pub(super) overload: Transition,
    /// Requests that the store does not support; others may be supported.
    pub(super) unsupported: Transition,
    /// Failures of the fallback.
    pub(super) fallback: Transition,
    /// Leases of places that have ended while their requests are in flight.
    pub(super) lapses: Transition,
}

impl Default for StoreHealth {
    fn default() -> Self {
        Self {
            outage: Transition::new(Duration::ZERO),
            overload: Transition::new(CALM),
            unsupported: Transition::new(LONG_CALM),
            fallback: Transition::new(CALM),
            lapses: Transition::new(LONG_CALM),
        }
    }
}
