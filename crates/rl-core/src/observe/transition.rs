//! Samples the log lines of a condition: one when it begins, one when it is over.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::time::Instant;

/// Samples the log lines of a condition that affects many requests, such as an overload.
///
/// The first occurrence begins the condition. The condition is over when it has not occurred for
/// the recovery period. Occurrences at shorter intervals therefore belong to one condition. No
/// background task runs: code that observes a success calls [`Transition::ended`]. The clock is
/// tokio's, which tests can pause.
///
/// The limiter logs with it. Stores and sources of policies in other crates can do the same.
///
/// # Examples
///
/// ```
/// use rl_core::observe::Transition;
/// use std::time::Duration;
///
/// let late = Transition::new(Duration::ZERO);
/// let lines = (0..1_000).filter(|_| late.occurred()).count();
/// assert_eq!(lines, 1, "only the first occurrence is logged");
/// let ended = late.ended().expect("the recovery period is zero");
/// assert_eq!(ended.count, 1_000);
/// assert!(late.ended().is_none(), "the end is logged once as well");
/// ```
#[derive(Debug)]
pub struct Transition {
    recovery_period: Duration,
    origin: Instant,
    // Microseconds from `origin` to the first occurrence, plus one; 0 while the condition does not
    // hold.
    begun: AtomicU64,
    // Microseconds from `origin` to the last occurrence.
    last: AtomicU64,
    count: AtomicU64,
}

/// A condition that has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Ended {
    /// The time from the first occurrence to the last.
    pub lasted: Duration,
    /// The number of occurrences.
    pub count: u64,
}

impl Transition {
    /// Creates a condition that has not begun. It is over after `recovery_period` without an
    /// occurrence.
    #[must_use]
    pub fn new(recovery_period: Duration) -> Self {
        let (begun, last, count) = Default::default();
        Self { recovery_period, origin: Instant::now(), begun, last, count }
    }

    /// Records an occurrence. Returns true if the condition begins with it, so that the caller logs
    /// a line.
    pub fn occurred(&self) -> bool {
        self.occurred_times(1)
    }

    /// Records several occurrences, like [`occurred`](Self::occurred).
    pub fn occurred_times(&self, count: u64) -> bool {
        self.count.fetch_add(count, Ordering::Relaxed);
        let now = self.now();
        self.last.fetch_max(now, Ordering::Relaxed);
        let (relaxed, begun) = (Ordering::Relaxed, &self.begun);
        begun.load(relaxed) == 0 && begun.compare_exchange(0, now + 1, relaxed, relaxed).is_ok()
    }

    /// Counts an occurrence if the condition has begun. Does not begin it.
    pub fn count_if_on(&self) {
        if self.is_on() {
            self.count.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Returns whether the condition holds, by one relaxed load.
    #[must_use]
    pub fn is_on(&self) -> bool {
        self.begun.load(Ordering::Relaxed) != 0
    }

    /// Ends the condition if it has not occurred for the recovery period. Returns what to log, or
    /// `None` if the condition has not ended. If several threads call this, only one of them gets a
    /// result.
    ///
    /// Costs one relaxed load if the condition has not begun.
    pub fn ended(&self) -> Option<Ended> {
        if self.is_on() { self.ended_if_recovered() } else { None }
    }

    #[cold]
    fn ended_if_recovered(&self) -> Option<Ended> {
        let since = self.now().saturating_sub(self.last.load(Ordering::Relaxed));
        if u128::from(since) < self.recovery_period.as_micros() { None } else { self.end() }
    }

    /// Ends the condition without waiting for the recovery period.
    pub fn end(&self) -> Option<Ended> {
        let begun = self.begun.swap(0, Ordering::Relaxed).checked_sub(1)?;
        let micros = self.last.load(Ordering::Relaxed).saturating_sub(begun);
        let count = self.count.swap(0, Ordering::Relaxed);
        Some(Ended { lasted: Duration::from_micros(micros), count })
    }

    /// Returns the time since the condition began.
    #[must_use]
    pub fn held_for(&self) -> Duration {
        let begun = self.begun.load(Ordering::Relaxed).checked_sub(1);
        begun.map_or(Duration::ZERO, |begun| {
            Duration::from_micros(self.now() - begun.min(self.now()))
        })
    }

    fn now(&self) -> u64 {
        u64::try_from(self.origin.elapsed().as_micros()).unwrap_or(u64::MAX - 1)
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_condition_that_flickers_begins_once_and_ends_once_after_the_recovery_period() {
        let overload = Transition::new(Duration::from_secs(1));
        let mut lines = Vec::new();
        for second in 0..30 {
            for _ in 0..10 {
                // An occurrence every tenth of a second for ten seconds, then no more.
                if second < 10 && overload.occurred() {
                    lines.push("begun".to_owned());
                }
                if let Some(Ended { lasted, count }) = overload.ended() {
                    lines.push(format!("ended after {lasted:?}, {count} times"));
                }
                advance(Duration::from_millis(100)).await;
            }
        }
        assert_eq!(lines, ["begun", "ended after 9.9s, 100 times"]);
    }

    #[tokio::test(start_paused = true)]
    async fn count_if_on_does_not_begin_a_condition() {
        let outage = Transition::new(Duration::ZERO);
        outage.count_if_on();
        assert_eq!((outage.is_on(), outage.ended()), (false, None));
        assert!(outage.occurred());
        outage.count_if_on();
        advance(Duration::from_millis(7)).await;
        assert_eq!(outage.held_for(), Duration::from_millis(7));
        assert_eq!(outage.end(), Some(Ended { lasted: Duration::ZERO, count: 2 }));
        assert_eq!(outage.held_for(), Duration::ZERO);
    }
}
