//! How many decisions wait for the store: no more than it answers in time.
//!
//! A store that is asked for more than it bears answers all of it late, and a late answer is worth nothing:
//! the work is done, and the request has given up. So the number in flight is bounded by the latency that
//! is measured, of one decision after the other:
//!
//! ```text
//!  0    least                                                    deadline
//!  |------|----------------|----------------|-----------------------|
//!            grows by 1/8        stays          shrinks to what would take 3/8 of the time
//! ```
//!
//! *Least* is the latency without load. A decision that was sent when few were in flight shrinks nothing:
//! then it is not the load that makes the store slow.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use super::progress::{Late, Progress, Sent};

/// The bound never falls below this, or below the setting if that is smaller.
const FLOOR: usize = 16;

const UNKNOWN: u64 = u64::MAX;

/// The decisions that wait for the store.
#[derive(Debug)]
pub(super) struct InFlight {
    waiting: AtomicUsize,
    // The setting.
    most: usize,
    // What the latency allows, at most `most`.
    bound: AtomicUsize,
    deadline: Duration,
    // The latency without load, in microseconds, or `UNKNOWN`.
    least: AtomicU64,
    // Whether a decision is in flight whose latency is measured.
    is_measuring: AtomicBool,
    progress: Progress,
}

/// A decision that waits, until it is dropped.
#[derive(Debug)]
pub(super) struct Slot {
    in_flight: Arc<InFlight>,
    sent: Sent,
    // How many were in flight when it was sent, if its latency is measured.
    measured_behind: Option<usize>,
}

impl InFlight {
    pub(super) fn new(most: usize, deadline: Duration) -> Arc<Self> {
        Arc::new(Self {
            waiting: AtomicUsize::new(0),
            most,
            bound: AtomicUsize::new(most),
            deadline,
            least: AtomicU64::new(UNKNOWN),
            is_measuring: AtomicBool::new(false),
            progress: Progress::default(),
        })
    }

    pub(super) fn waiting(&self) -> usize {
        self.waiting.load(Ordering::Relaxed)
    }

    /// The number that may be in flight now.
    pub(super) fn bound(&self) -> usize {
        self.bound.load(Ordering::Relaxed)
    }

    pub(super) fn is_full(&self) -> bool {
        self.waiting() >= self.bound()
    }

    /// Returns a slot, unless all are taken.
    pub(super) fn enter(self: &Arc<Self>) -> Option<Slot> {
        // Counted first: the excess gives its place back, and no more than the bound ever wait.
        let ahead = self.waiting.fetch_add(1, Ordering::Relaxed);
        if ahead >= self.bound() {
            self.waiting.fetch_sub(1, Ordering::Relaxed);
            return None;
        }
        let relaxed = Ordering::Relaxed;
        let is_measured =
            !self.is_measuring.load(relaxed) && !self.is_measuring.swap(true, relaxed);
        let measured_behind = is_measured.then_some(ahead);
        Some(Slot { in_flight: Arc::clone(self), sent: self.progress.send(), measured_behind })
    }

    /// Moves the bound by the latency of a decision that was sent behind `ahead` others.
    fn adjust(&self, latency: u64, ahead: usize) {
        let relaxed = Ordering::Relaxed;
        let bound = self.bound();
        // Only what was sent without load says how fast the store is; it may become slower, step by step.
        if ahead < FLOOR {
            let least = self.least.load(relaxed);
            self.least.store(latency.min(least.saturating_add(least / 16 + 1)), relaxed);
        }
        let least = self.least.load(relaxed);
        let least = if least == UNKNOWN { 0 } else { least };
        let deadline = u64::try_from(self.deadline.as_micros()).unwrap_or(u64::MAX);
        let spare = deadline.saturating_sub(least);
        if latency > least.saturating_add(spare / 2) {
            self.shrink(ahead, (least + spare / 8 * 3) as f64 / latency as f64);
        } else if latency < least.saturating_add(spare / 4)
            && bound < self.most
            && ahead >= bound / 2
        {
            let grown = bound + (bound / 8).max(1);
            self.bound.store(grown.min(self.most), relaxed);
        }
    }

    /// Lowers the bound to this part of the number that the store was asked for.
    fn shrink(&self, ahead: usize, part: f64) {
        if ahead > FLOOR {
            self.shrink_to((ahead as f64 * part) as usize);
        }
    }

    fn shrink_to(&self, number: usize) {
        let number = number.max(FLOOR).min(self.bound());
        self.bound.store(number, Ordering::Relaxed);
    }
}

impl Slot {
    /// When the decision was sent.
    pub(super) fn sent_at(&self) -> tokio::time::Instant {
        self.sent.at
    }

    /// Notes that the store has decided.
    pub(super) fn answered(mut self) {
        let in_flight = &self.in_flight;
        in_flight.progress.answered(self.sent);
        if let Some(ahead) = self.measured_behind {
            let latency = u64::try_from(self.sent.at.elapsed().as_micros()).unwrap_or(u64::MAX);
            in_flight.adjust(latency, ahead);
        }
        self.stop_measuring();
    }

    /// Notes that the store has not decided in time. Returns whether that is because it is overloaded.
    pub(super) fn timed_out(mut self, patience: Duration) -> bool {
        let in_flight = &self.in_flight;
        let late = in_flight.progress.judge(self.sent, patience, in_flight.waiting());
        if let Late::Behind { replies } = late
            && replies > 0
        {
            in_flight.shrink_to(replies as usize / 8 * 3);
        }
        self.stop_measuring();
        late != Late::Outage
    }

    fn stop_measuring(&mut self) {
        if self.measured_behind.take().is_some() {
            self.in_flight.is_measuring.store(false, Ordering::Relaxed);
        }
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.stop_measuring();
        self.in_flight.waiting.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;

    const DEADLINE: Duration = Duration::from_millis(100);

    /// Lets `count` enter, and answers them all after this time; returns how many had a slot.
    async fn burst(in_flight: &Arc<InFlight>, count: usize, latency: Duration) -> usize {
        let slots: Vec<_> = (0..count).filter_map(|_| in_flight.enter()).collect();
        advance(latency).await;
        let entered = slots.len();
        // The one that is measured is the last to be sent.
        slots.into_iter().rev().for_each(Slot::answered);
        entered
    }

    /// The latency of a store that answers so many in a millisecond.
    fn latency(per_milli: usize, count: usize) -> Duration {
        Duration::from_micros(200 + (count * 1_000 / per_milli) as u64)
    }

    /// A call behind this many others, whose latency is measured.
    async fn measure(in_flight: &Arc<InFlight>, per_milli: usize, offered: usize) {
        in_flight.is_measuring.store(true, Ordering::Relaxed);
        let ahead: Vec<_> = (1..offered).filter_map(|_| in_flight.enter()).collect();
        in_flight.is_measuring.store(false, Ordering::Relaxed);
        if let Some(last) = in_flight.enter() {
            advance(latency(per_milli, ahead.len())).await;
            last.answered();
        } else {
            // All places are taken: the next that is free is measured.
            let mut ahead = ahead;
            ahead.pop();
            let last = in_flight.enter().unwrap();
            advance(latency(per_milli, ahead.len())).await;
            last.answered();
        }
    }

    #[tokio::test(start_paused = true)]
    async fn the_bound_follows_what_the_store_answers_within_half_of_the_deadline() {
        let in_flight = InFlight::new(4_096, DEADLINE);
        for (per_milli, least, most) in [(10, 250, 550), (2, 40, 110), (100, 2_000, 4_096)] {
            for _ in 0..100 {
                measure(&in_flight, per_milli, 20_000).await;
            }
            let bound = in_flight.bound();
            assert!((least..=most).contains(&bound), "{per_milli} in 1 ms: {bound}");
        }
        assert_eq!(in_flight.waiting(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn a_store_that_stalls_or_is_far_away_shrinks_nothing_without_load() {
        let in_flight = InFlight::new(4_096, DEADLINE);
        for millis in [1, 60, 99, 60] {
            for _ in 0..10 {
                assert_eq!(burst(&in_flight, 10, Duration::from_millis(millis)).await, 10);
            }
        }
        assert_eq!(in_flight.bound(), 4_096);
    }

    #[tokio::test(start_paused = true)]
    async fn a_slot_that_is_dropped_leaves_the_measuring_to_another() {
        let in_flight = InFlight::new(2, DEADLINE);
        let (first, second) = (in_flight.enter().unwrap(), in_flight.enter().unwrap());
        assert!(first.measured_behind.is_some() && second.measured_behind.is_none());
        assert!(in_flight.enter().is_none());
        drop(first);
        assert!(in_flight.enter().unwrap().measured_behind.is_some());
        assert!(!second.timed_out(DEADLINE), "nothing was ever answered");
        assert_eq!((in_flight.waiting(), in_flight.bound()), (0, 2));
    }
}
