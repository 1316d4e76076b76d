use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use crate::FailureKind;

/// What happens to a request when no decision can be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum OnFailure {
    /// It passes: an API that is down because its limiter is, is worse than an hour without limits.
    Allow,
    /// It is turned away; adapters answer 503 with `Retry-After`.
    Deny,
    /// Another store decides, on this instance's [`Share`](super::Share) of the limits:
    /// [`fallback`](crate::RateLimiterBuilder::fallback). What it cannot decide either is turned away.
    Fallback,
}

impl OnFailure {
    pub(super) const fn consequence(self) -> &'static str {
        match self {
            Self::Allow => "requests pass without limits until it answers again",
            Self::Deny => "requests are turned away until it answers again",
            Self::Fallback => {
                "the fallback decides, on a share of the limits, until it answers again"
            }
        }
    }
}

const WELL: u8 = 0;
const FAILING: u8 = 1;
const MISCONFIGURED: u8 = 2;

/// Whether the store answers, so that an outage is two log lines and not one for each request.
#[derive(Debug, Default)]
pub(super) struct Health {
    state: AtomicU8,
    failures: AtomicU64,
    /// Failures that concern one subject or policy, and say nothing about the store.
    single: AtomicU64,
}

/// Taken when a request sets out to the store.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ticket(u64);

impl Health {
    pub(super) fn set_out(&self) -> Ticket {
        Ticket(self.failures.load(Ordering::Relaxed))
    }

    /// Notes a failure; true if it is worth a log line: the store was well, or failed in another way,
    /// until now.
    pub(super) fn failed(&self, kind: FailureKind) -> bool {
        if matches!(kind, FailureKind::Corrupt | FailureKind::Unsupported) {
            // Others get their answers meanwhile, so there is no end to log: the first is a line, then
            // the second, the fourth, the eighth …
            return (self.single.fetch_add(1, Ordering::Relaxed) + 1).is_power_of_two();
        }
        self.failures.fetch_add(1, Ordering::AcqRel);
        let state = if kind.is_configuration() { MISCONFIGURED } else { FAILING };
        self.state.swap(state, Ordering::AcqRel) != state
    }

    /// Notes an answer; true if it ends an outage.
    ///
    /// An answer to a request that set out before the last failure says nothing about now: without
    /// this rule the last answers of a dying store would end the outage again and again.
    pub(super) fn answered(&self, ticket: Ticket) -> bool {
        self.state.load(Ordering::Acquire) != WELL
            && self.failures.load(Ordering::Acquire) == ticket.0
            && self.state.swap(WELL, Ordering::AcqRel) != WELL
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_damaged_counter_is_no_outage() {
        let health = Health::default();
        let lines = (0..100).filter(|_| {
            let line = health.failed(FailureKind::Corrupt);
            assert!(!health.answered(health.set_out()), "nothing has ended");
            line
        });
        assert_eq!(lines.count(), 7, "1, 2, 4, 8, 16, 32 and 64");
    }

    #[test]
    fn an_outage_begins_once_and_ends_once() {
        let health = Health::default();
        let before = health.set_out();
        assert!(!health.answered(before));
        assert!(health.failed(FailureKind::Unavailable));
        assert!(!health.failed(FailureKind::TimedOut));
        assert!(!health.answered(before), "an answer from before the failure");
        assert!(health.failed(FailureKind::Refused), "another kind of failure");
        let after = health.set_out();
        assert!(health.answered(after));
        assert!(!health.answered(after));
    }
}
