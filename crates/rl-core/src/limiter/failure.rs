use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

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

/// Counts failures that have no end which could be logged: the first is a line, then the second, the
/// fourth, the eighth …
#[derive(Debug, Default)]
pub(super) struct Tally(AtomicU64);

impl Tally {
    /// Counts one more; true if it is a line.
    pub(super) fn is_worth_a_line(&self) -> bool {
        (self.0.fetch_add(1, Ordering::Relaxed) + 1).is_power_of_two()
    }
}

/// Whether the source of policies answers, so that an outage of it is two lines in the log.
///
/// It says nothing about the store, and must not keep requests from it.
#[derive(Debug, Default)]
pub(super) struct SourceHealth(AtomicBool);

impl SourceHealth {
    /// Notes a failure; true if it is the first.
    pub(super) fn failed(&self) -> bool {
        !self.0.swap(true, Ordering::Relaxed)
    }

    /// Notes an answer; true if it is the first after a failure.
    pub(super) fn answered(&self) -> bool {
        self.0.load(Ordering::Relaxed) && self.0.swap(false, Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_has_no_end_is_logged_ever_more_rarely() {
        let tally = Tally::default();
        let lines = (0..100).filter(|_| tally.is_worth_a_line());
        assert_eq!(lines.count(), 7, "1, 2, 4, 8, 16, 32 and 64");
    }
}
