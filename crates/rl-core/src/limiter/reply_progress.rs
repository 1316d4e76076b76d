//! Judges whether a call without a reply means an outage or an overload of the other side.
//!
//! Replies come roughly in the order in which calls were sent. When a call gives up, the replies to other
//! calls show why:
//!
//! | replies since this call was sent | meaning |
//! |---|---|
//! | there were no replies in the second half of its wait | nothing is answered any more: an outage |
//! | the newest reply is to a call sent at about the same time, or before | replies come late: overload |
//! | the newest reply is to a call sent long after | this one was overtaken, and only its part of the store is silent: an outage |
//!
//! Two signs outweigh these, so that neither a flood nor a busy machine looks like an outage:
//!
//! * There was overload within [`DRAINING`]: the other side may be busy with calls that were given up.
//! * The timer of the call fired late, and a reply came within [`DRAINING`]: this process gets no time.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::time::Instant;

/// The calls that were answered.
#[derive(Debug)]
pub(super) struct ReplyProgress {
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
pub(super) enum Lateness {
    /// Nothing is answered.
    Outage,
    /// The other side is behind.
    Behind,
    /// This process is behind.
    Starved,
}

/// A call that was sent.
#[derive(Clone, Copy, Debug)]
pub(super) struct SentCall {
    pub(super) at: Instant,
    // In microseconds from the origin.
    micros: u64,
    // The calls that were answered by then.
    pub(super) answered: u64,
}

impl Default for ReplyProgress {
    fn default() -> Self {
        let (answered, newest, replied, behind, answered_by_refusal) = Default::default();
        Self { origin: Instant::now(), answered, newest, replied, behind, answered_by_refusal }
    }
}

impl ReplyProgress {
    /// Notes that a call is sent now.
    pub(super) fn send(&self) -> SentCall {
        let at = Instant::now();
        let micros = self.micros(at);
        SentCall { at, micros, answered: self.answered.load(Ordering::Relaxed) }
    }

    fn micros(&self, at: Instant) -> u64 {
        u64::try_from((at - self.origin).as_micros()).unwrap_or(u64::MAX)
    }

    /// Notes that the call was answered. Replies that arrive together may be noted in any order.
    pub(super) fn answered(&self, sent: SentCall) {
        if self.answered.fetch_add(1, Ordering::Relaxed).is_multiple_of(TIMED) {
            self.replied.store(self.micros(Instant::now()), Ordering::Relaxed);
        }
        self.newest.store(sent.micros, Ordering::Relaxed);
    }

    /// Returns how many calls were answered.
    pub(super) fn answered_count(&self) -> u64 {
        self.answered.load(Ordering::Relaxed)
    }

    /// Returns whether the newest reply is to a call that was sent after this time.
    pub(super) fn newest_is_after(&self, time: Instant) -> bool {
        self.newest.load(Ordering::Relaxed) > self.micros(time)
    }

    /// Notes that a call is refused because too many are in flight: a sign that the other side is behind, if it
    /// has answered any since the last refusal. Returns the time then.
    pub(super) fn refused(&self) -> Option<Instant> {
        let answered = self.answered_count();
        if self.answered_by_refusal.load(Ordering::Relaxed) == answered {
            return None;
        }
        self.answered_by_refusal.store(answered, Ordering::Relaxed);
        let now = Instant::now();
        self.behind.store(self.micros(now), Ordering::Relaxed);
        Some(now)
    }

    /// Returns why the call is late, which is given up now, after `patience`.
    pub(super) fn judge(&self, sent: SentCall, patience: Duration, now: Instant) -> Lateness {
        let half = self.micros(sent.at + patience / 2);
        let (replied, behind) = (&self.replied, &self.behind);
        let [replied, behind] = [replied, behind].map(|at| at.load(Ordering::Relaxed));
        let was_overtaken = self.newest.load(Ordering::Relaxed) > half;
        let since = |at: u64| Duration::from_micros(self.micros(now).saturating_sub(at));
        let is_starved = now > sent.at + patience + patience / 8;
        if replied >= half && !was_overtaken {
            self.behind.store(self.micros(now), Ordering::Relaxed);
        } else if !(behind > 0 && since(behind) < DRAINING
            || is_starved && replied > 0 && since(replied) < DRAINING)
        {
            return Lateness::Outage;
        }
        if is_starved { Lateness::Starved } else { Lateness::Behind }
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;

    const PATIENCE: Duration = Duration::from_millis(100);

    async fn later(millis: u64, progress: &ReplyProgress) -> SentCall {
        advance(Duration::from_millis(millis)).await;
        progress.send()
    }

    fn judge(progress: &ReplyProgress, sent: SentCall, patience: Duration) -> Lateness {
        progress.judge(sent, patience, Instant::now())
    }

    #[tokio::test(start_paused = true)]
    async fn a_call_that_is_given_up_tells_an_outage_from_an_overload() {
        let progress = ReplyProgress::default();
        let old = progress.send();
        assert_eq!(judge(&progress, old, PATIENCE), Lateness::Outage, "nothing was ever answered");

        let late = later(10, &progress).await;
        advance(PATIENCE / 2 - Duration::from_millis(1)).await;
        (0..100).for_each(|_| progress.answered(old));
        advance(PATIENCE / 2).await;
        assert_eq!(
            judge(&progress, late, PATIENCE),
            Lateness::Outage,
            "there were replies, and no more"
        );
        (0..100).for_each(|_| progress.answered(old));
        assert_eq!(judge(&progress, late, PATIENCE), Lateness::Behind, "older calls are answered");

        let silent = later(0, &progress).await;
        // Refusals alone are no sign: nothing is answered in an outage either.
        progress.refused();
        progress.refused();
        advance(DRAINING - Duration::from_millis(1)).await;
        assert_eq!(
            judge(&progress, silent, DRAINING),
            Lateness::Behind,
            "busy with what was given up"
        );
        let last = later(1, &progress).await;
        progress.answered(last);
        advance(PATIENCE).await;
        assert_eq!(judge(&progress, last, PATIENCE), Lateness::Outage, "a reply was on its way");

        (0..100).for_each(|_| progress.answered(progress.send()));
        assert_eq!(judge(&progress, last, PATIENCE), Lateness::Outage, "it was overtaken by far");

        let starved = progress.send();
        advance(PATIENCE * 2).await;
        assert_eq!(judge(&progress, starved, PATIENCE), Lateness::Starved, "its timer fired late");
        advance(DRAINING).await;
        assert_eq!(judge(&progress, starved, PATIENCE), Lateness::Outage, "no reply for a second");
    }
}
