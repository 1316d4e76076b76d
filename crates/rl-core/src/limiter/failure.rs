use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use tokio::time::Instant;

/// What happens to a request when no decision can be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum OnFailure {
    /// It passes: an API that is down because its limiter is, is worse than an hour without limits.
    Allow,
    /// It is turned away; adapters answer 503 with `Retry-After`.
    Deny,
    /// Another store decides, on this instance's [`Share`](super::Share) of the limits:
    /// [`fallback`](crate::RateLimiterBuilder::fallback). What it cannot decide either is up to
    /// [`on_fallback_failure`](crate::RateLimiterBuilder::on_fallback_failure).
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
/// fourth, the eighth … After a minute without one the next is the first again.
#[derive(Debug)]
pub(super) struct Tally {
    begun: Instant,
    count: AtomicU64,
    // When the last one was, in milliseconds from `begun`.
    last: AtomicU64,
}

impl Tally {
    const CALM_MILLIS: u64 = 60_000;

    /// Counts one more; true if it is a line.
    pub(super) fn is_worth_a_line(&self) -> bool {
        let now = u64::try_from(self.begun.elapsed().as_millis()).unwrap_or(u64::MAX);
        if now.saturating_sub(self.last.swap(now, Ordering::Relaxed)) >= Self::CALM_MILLIS {
            self.count.store(0, Ordering::Relaxed);
        }
        (self.count.fetch_add(1, Ordering::Relaxed) + 1).is_power_of_two()
    }
}

impl Default for Tally {
    fn default() -> Self {
        Self { begun: Instant::now(), count: AtomicU64::new(0), last: AtomicU64::new(0) }
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
    use std::time::Duration;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn what_has_no_end_is_logged_ever_more_rarely_until_it_has_stopped_for_a_while() {
        let tally = Tally::default();
        for _ in 0..2 {
            let lines = (0..100).filter(|_| tally.is_worth_a_line());
            assert_eq!(lines.count(), 7, "1, 2, 4, 8, 16, 32 and 64");
            tokio::time::advance(Duration::from_secs(59)).await;
            assert!(!tally.is_worth_a_line(), "it goes on");
            tokio::time::advance(Duration::from_secs(60)).await;
        }
    }
}
