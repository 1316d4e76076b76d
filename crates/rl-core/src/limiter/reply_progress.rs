//! Judges whether a call without a reply means an outage or an overload of the server.
//!
//! Replies arrive roughly in the order in which calls were sent. When a call times out, the replies
//! to other calls show the reason:
//!
//! | replies since this call was sent | meaning |
//! |---|---|
//! | none arrived in the second half of its wait | the server answers nothing any more: an outage |
//! | the newest reply is to a call sent before this one, or at about the same time | replies are late: overload |
//! | the newest reply is to a call sent long after this one | only the part of the store that this call went to is silent: an outage |
//!
//! Two signs override these rules, so that neither a flood nor a busy machine looks like an outage:
//!
//! * There was an overload within [`DRAINING`]: the server may still work on calls that have timed
//!   out.
//! * The timer of the call fired late, and a reply arrived within [`DRAINING`]: this process gets
//!   too little CPU time.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::time::Instant;

/// Counts the calls that were answered, and the times of the replies.
#[derive(Debug)]
pub(super) struct ReplyProgress {
    origin: Instant,
    answered: AtomicU64,
    // The time at which the call with the newest reply was sent, in microseconds from `origin`.
    newest: AtomicU64,
    // The time of the last reply, or of one shortly before it, in microseconds from `origin`.
    replied: AtomicU64,
    // The last time that the server was found to be behind, in microseconds from `origin`, or 0.
    behind: AtomicU64,
    // The number of answered calls when a call was last refused because too many were in flight.
    answered_by_refusal: AtomicU64,
}

/// The clock is read only for one in `TIMED` replies, because reading it takes time.
const TIMED: u64 = 8;

/// The time for which a server may be busy with calls that have timed out. Their replies are
/// discarded.
pub(super) const DRAINING: Duration = Duration::from_secs(1);

/// The reason why a call is late.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lateness {
    /// The server answers nothing.
    Outage,
    /// The server is behind with its work.
    Behind,
    /// This process gets too little CPU time.
    Starved,
}

/// A call that was sent.
#[derive(Clone, Copy, Debug)]
pub(super) struct SentCall {
    pub(super) at: Instant,
    // The time of sending, in microseconds from `origin`.
    pub(super) micros: u64,
    // The number of calls that had been answered when this one was sent.
    pub(super) answered: u64,
}

impl Default for ReplyProgress {
    fn default() -> Self {
        let (answered, newest, replied, behind, answered_by_refusal) = Default::default();
        Self { origin: Instant::now(), answered, newest, replied, behind, answered_by_refusal }
    }
}

impl ReplyProgress {
    /// Records that a call is sent now.
    pub(super) fn send(&self) -> SentCall {
        let at = Instant::now();
        let micros = self.micros(at);
        SentCall { at, micros, answered: self.answered.load(Ordering::Relaxed) }
    }

    fn micros(&self, at: Instant) -> u64 {
        u64::try_from((at - self.origin).as_micros()).unwrap_or(u64::MAX)
    }

    /// Records that the call was answered. Replies that arrive together may be recorded in any
    /// order.
    pub(super) fn answered(&self, sent: SentCall) {
        if self.answered.fetch_add(1, Ordering::Relaxed).is_multiple_of(TIMED) {
            self.replied.store(self.micros(Instant::now()), Ordering::Relaxed);
        }
        self.newest.store(sent.micros, Ordering::Relaxed);
    }

    /// Returns the number of calls that were answered.
    pub(super) fn answered_count(&self) -> u64 {
        self.answered.load(Ordering::Relaxed)
    }

    /// Returns whether the newest reply is to a call that was sent after `time`.
    pub(super) fn newest_is_after(&self, time: Instant) -> bool {
        self.newest.load(Ordering::Relaxed) > self.micros(time)
    }

    /// Records that a call is refused because too many are in flight. If the server has answered
    /// any call since the last refusal, it is behind, but not down: returns the current time.
    /// Otherwise returns `None`.
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

    /// Returns why the call has timed out at `now`, after a wait of `patience`.
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
    async fn a_call_that_times_out_is_judged_as_outage_or_overload() {
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
        // Refusals without replies do not show an overload: they occur in an outage too.
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
