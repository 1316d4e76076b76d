//! Whether a call without a reply says that the other side is down, or that it is behind.
//!
//! Replies come roughly in the order in which calls were sent. So when a call gives up, the replies to others
//! tell why:
//!
//! | since this call was sent | means |
//! |---|---|
//! | there were next to no replies, for the number that wait | nothing is answered any more: an outage |
//! | the newest reply is to a call sent at about the same time, or before | replies come late: overload |
//! | the newest reply is to a call sent long after | this one was overtaken, and only its part of the store is silent: an outage |

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::time::Instant;

/// The calls that were answered.
#[derive(Debug)]
pub(super) struct Progress {
    origin: Instant,
    answered: AtomicU64,
    // When the newest of them was sent, in microseconds from `origin`.
    newest: AtomicU64,
}

/// A call counts as one of an outage if there was less than one reply for this number that wait: those are
/// replies that were on their way when everything stopped.
const WAITING_FOR_A_REPLY: u64 = 16;

/// A call that was sent.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sent {
    pub(super) at: Instant,
    // In microseconds from the origin.
    micros: u64,
    // The calls that were answered by then.
    answered: u64,
}

impl Default for Progress {
    fn default() -> Self {
        Self { origin: Instant::now(), answered: AtomicU64::new(0), newest: AtomicU64::new(0) }
    }
}

impl Progress {
    /// Notes that a call is sent now.
    pub(super) fn send(&self) -> Sent {
        let at = Instant::now();
        let micros = u64::try_from((at - self.origin).as_micros()).unwrap_or(u64::MAX);
        Sent { at, micros, answered: self.answered.load(Ordering::Relaxed) }
    }

    /// Notes that the call was answered. Of answers that come together any may be last.
    pub(super) fn answered(&self, sent: Sent) {
        self.answered.fetch_add(1, Ordering::Relaxed);
        self.newest.store(sent.micros, Ordering::Relaxed);
    }

    /// Returns whether the call, which was given up after `patience` while this number were waiting, was
    /// late because the other side is behind.
    pub(super) fn is_behind(&self, sent: Sent, patience: Duration, waiting: usize) -> bool {
        let replies = self.answered.load(Ordering::Relaxed).wrapping_sub(sent.answered);
        let few = (waiting as u64 / WAITING_FOR_A_REPLY).max(1);
        let half = u64::try_from(patience.as_micros() / 2).unwrap_or(u64::MAX);
        let newest = self.newest.load(Ordering::Relaxed);
        replies > few && newest <= sent.micros.saturating_add(half)
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;

    const PATIENCE: Duration = Duration::from_millis(100);

    async fn later(millis: u64, progress: &Progress) -> Sent {
        advance(Duration::from_millis(millis)).await;
        progress.send()
    }

    #[tokio::test(start_paused = true)]
    async fn a_call_that_is_given_up_tells_an_outage_from_an_overload() {
        let progress = Progress::default();
        let old = progress.send();
        assert!(!progress.is_behind(old, PATIENCE, 1), "nothing was ever answered");

        let late = later(10, &progress).await;
        advance(PATIENCE).await;
        (0..100).for_each(|_| progress.answered(old));
        assert!(progress.is_behind(late, PATIENCE, 1_000), "older calls were answered meanwhile");
        assert!(!progress.is_behind(late, PATIENCE, 2_000), "next to none for so many");

        let last = later(1, &progress).await;
        progress.answered(last);
        advance(PATIENCE).await;
        assert!(!progress.is_behind(last, PATIENCE, 1), "a reply was on its way, and then no more");

        (0..100).for_each(|_| progress.answered(progress.send()));
        assert!(!progress.is_behind(last, PATIENCE, 1_000), "it was overtaken by far");
    }
}
