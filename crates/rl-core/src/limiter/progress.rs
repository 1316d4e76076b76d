//! Judges whether a call without a reply means an outage or an overload of the other side.
//!
//! Replies come roughly in the order in which calls were sent. When a call gives up, the replies to other
//! calls show why:
//!
//! | replies since this call was sent | meaning |
//! |---|---|
//! | none in the second half of its wait | nothing is answered any more: an outage |
//! | the newest is to a call sent at about the same time, or before | replies are late: overload |
//! | likewise none, but within [`DRAINING`] of the last sign of overload | the other side is busy with calls that were given up: overload |
//! | the newest is to a call sent long after | this call was overtaken, so only its part of the store is silent: an outage |

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
    // When a reply came last, to within a few, in microseconds from `origin`.
    replied: AtomicU64,
    // The last sign that the other side is behind, in microseconds from `origin`, or 0.
    behind: AtomicU64,
    // The calls that were answered when a call was last refused.
    answered_by_refusal: AtomicU64,
}

/// The clock is read for one reply in this number: what a reply costs matters.
const TIMED: u64 = 8;

/// How long the other side may be busy with calls that were given up, whose replies are discarded.
pub(super) const DRAINING: Duration = Duration::from_secs(1);

/// Why a call is late.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Late {
    /// Nothing is answered.
    Outage,
    /// The other side is behind. It has answered this number of calls since this one was sent, if any.
    Behind { replies: u64 },
}

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
        let (answered, newest, replied, behind, answered_by_refusal) = Default::default();
        Self { origin: Instant::now(), answered, newest, replied, behind, answered_by_refusal }
    }
}

impl Progress {
    /// Notes that a call is sent now.
    pub(super) fn send(&self) -> Sent {
        let at = Instant::now();
        let micros = self.micros(at);
        Sent { at, micros, answered: self.answered.load(Ordering::Relaxed) }
    }

    fn micros(&self, at: Instant) -> u64 {
        u64::try_from((at - self.origin).as_micros()).unwrap_or(u64::MAX)
    }

    /// Notes that the call was answered. Replies that arrive together may be noted in any order.
    pub(super) fn answered(&self, sent: Sent) {
        if self.answered.fetch_add(1, Ordering::Relaxed).is_multiple_of(TIMED) {
            self.replied.store(self.micros(Instant::now()), Ordering::Relaxed);
        }
        self.newest.store(sent.micros, Ordering::Relaxed);
    }

    /// Notes that a call is refused because too many are in flight. That is a sign of overload if the other
    /// side has answered any call since the last refusal.
    pub(super) fn refused(&self) {
        let answered = self.answered.load(Ordering::Relaxed);
        if self.answered_by_refusal.load(Ordering::Relaxed) != answered {
            self.answered_by_refusal.store(answered, Ordering::Relaxed);
            self.behind.store(self.micros(Instant::now()), Ordering::Relaxed);
        }
    }

    /// Returns why the call is late that gives up now, after `patience`.
    pub(super) fn judge(&self, sent: Sent, patience: Duration) -> Late {
        let micros = |span: Duration| u64::try_from(span.as_micros()).unwrap_or(u64::MAX);
        let replies = self.answered.load(Ordering::Relaxed).wrapping_sub(sent.answered);
        let half = sent.micros.saturating_add(micros(patience / 2));
        let is_answering = self.replied.load(Ordering::Relaxed) >= half;
        let was_overtaken = self.newest.load(Ordering::Relaxed) > half;
        let now = self.micros(Instant::now());
        match is_answering {
            true if was_overtaken => Late::Outage,
            true => {
                self.behind.store(now, Ordering::Relaxed);
                Late::Behind { replies }
            }
            false => {
                let behind = self.behind.load(Ordering::Relaxed);
                let is_draining = behind > 0 && now.saturating_sub(behind) < micros(DRAINING);
                if is_draining { Late::Behind { replies: 0 } } else { Late::Outage }
            }
        }
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
        assert_eq!(progress.judge(old, PATIENCE), Late::Outage, "nothing was ever answered");

        let late = later(10, &progress).await;
        advance(PATIENCE / 2 - Duration::from_millis(1)).await;
        (0..100).for_each(|_| progress.answered(old));
        advance(PATIENCE / 2).await;
        assert_eq!(progress.judge(late, PATIENCE), Late::Outage, "there were replies, and no more");
        (0..100).for_each(|_| progress.answered(old));
        let behind = Late::Behind { replies: 200 };
        assert_eq!(progress.judge(late, PATIENCE), behind, "older calls are answered");

        let silent = later(0, &progress).await;
        // Refusals alone are no sign: nothing is answered in an outage either.
        progress.refused();
        progress.refused();
        let draining = Late::Behind { replies: 0 };
        advance(DRAINING - Duration::from_millis(1)).await;
        assert_eq!(progress.judge(silent, DRAINING), draining, "busy with what was given up");
        let last = later(1, &progress).await;
        progress.answered(last);
        advance(PATIENCE).await;
        assert_eq!(progress.judge(last, PATIENCE), Late::Outage, "a reply was on its way");

        (0..100).for_each(|_| progress.answered(progress.send()));
        assert_eq!(progress.judge(last, PATIENCE), Late::Outage, "it was overtaken by far");
    }
}
