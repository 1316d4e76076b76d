//! Bounds the decisions that wait for the store by what it answers in time.
//!
//! An overloaded store answers everything late, and a late answer is worthless, because the request has
//! given up by then. So the measured latency of single decisions, one after the other, moves the bound on
//! the number in flight:
//!
//! ```text
//!  0    least                                                    deadline
//!  |------|----------------|----------------|-----------------------|
//!            grows by 1/8        stays          shrinks to what would take 3/8 of the time
//! ```
//!
//! *Least* is the latency without load. A decision that was sent when few were in flight never shrinks the
//! bound, because load does not explain its latency. If a smaller bound does not lower the latency, as in
//! a process that starves its tasks, the bound goes back and stays there for a while.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use super::progress::{DRAINING, Late, Progress, Sent};

/// The bound never falls below this, or below the setting if that is smaller.
const FLOOR: usize = 16;

const UNKNOWN: u64 = u64::MAX;

/// How long the bound stays unchanged after shrinking it did not help.
const HOLD: Duration = Duration::from_secs(5);

/// A bound that has shrunk, until it is known whether that helped.
#[derive(Clone, Copy, Debug)]
struct Trial {
    // The bound, the latency and the number in flight before.
    bound: usize,
    latency: u64,
    ahead: usize,
    // Decisions that are sent from then on show whether it helped.
    from: Instant,
}

#[derive(Debug)]
struct Control {
    trial: Option<Trial>,
    held_until: Instant,
}

/// The decisions that wait for the store.
#[derive(Debug)]
pub(super) struct InFlight {
    waiting: AtomicUsize,
    // The setting.
    most: usize,
    // The number that the latency allows, at most `most`.
    bound: AtomicUsize,
    deadline: Duration,
    // The latency without load, in microseconds, or `UNKNOWN`.
    least: AtomicU64,
    // Whether a decision is in flight whose latency is measured.
    is_measuring: AtomicBool,
    // Locked for a decision that is measured, or late.
    control: Mutex<Control>,
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
            control: Mutex::new(Control { trial: None, held_until: Instant::now() }),
            progress: Progress::default(),
        })
    }

    pub(super) fn waiting(&self) -> usize {
        self.waiting.load(Ordering::Relaxed)
    }

    /// Returns the number that may be in flight now.
    pub(super) fn bound(&self) -> usize {
        self.bound.load(Ordering::Relaxed)
    }

    pub(super) fn is_full(&self) -> bool {
        self.waiting() >= self.bound()
    }

    /// Returns a slot, unless all are taken.
    pub(super) fn enter(self: &Arc<Self>) -> Option<Slot> {
        // Counted before the check, so that no more than the bound ever wait.
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

    /// Notes that a decision is refused because too many are in flight.
    pub(super) fn refused(&self) {
        self.progress.refused();
    }

    fn control(&self) -> MutexGuard<'_, Control> {
        self.control.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Moves the bound by the latency of a decision that was sent at that time behind `ahead` others.
    fn adjust(&self, sent: Instant, latency: u64, ahead: usize) {
        let relaxed = Ordering::Relaxed;
        // Only decisions sent without load show how fast the store is. It may become slower step by step.
        if ahead < FLOOR {
            let least = self.least.load(relaxed);
            self.least.store(latency.min(least.saturating_add(least / 16 + 1)), relaxed);
        }
        let least = self.least.load(relaxed);
        let least = if least == UNKNOWN { 0 } else { least };
        let spare = micros(self.deadline).saturating_sub(least);
        let mut control = self.control();
        if !self.conclude_trial(&mut control, sent, latency, ahead) {
            return;
        }
        let bound = self.bound();
        if latency > least.saturating_add(spare / 2) {
            let borne = ahead as f64 * (least + spare / 8 * 3) as f64 / latency as f64;
            self.shrink(&mut control, borne as usize, latency, ahead, Duration::ZERO);
        } else if latency < least.saturating_add(spare / 4)
            && bound < self.most
            && ahead >= bound / 2
        {
            self.bound.store((bound + (bound / 8).max(1)).min(self.most), relaxed);
        }
    }

    /// Ends a trial that is due. Returns false if shrinking the bound did not help.
    fn conclude_trial(
        &self,
        control: &mut Control,
        sent: Instant,
        latency: u64,
        ahead: usize,
    ) -> bool {
        let Some(trial) = control.trial.take_if(|trial| sent >= trial.from) else { return true };
        // The latency must fall by at least half as much as the queue became shorter.
        let part = ahead.min(trial.ahead) as f64 / trial.ahead as f64;
        let was_of_use = latency as f64 <= trial.latency as f64 * (1.0 + part) / 2.0;
        if !was_of_use {
            self.bound.store(trial.bound, Ordering::Relaxed);
            control.held_until = Instant::now() + HOLD;
        }
        was_of_use
    }

    /// Lowers the bound to this number, unless it is on trial or held.
    fn shrink(
        &self,
        control: &mut Control,
        number: usize,
        latency: u64,
        ahead: usize,
        drains_for: Duration,
    ) {
        let (now, bound) = (Instant::now(), self.bound());
        if ahead > FLOOR && control.trial.is_none() && now >= control.held_until {
            control.trial = Some(Trial { bound, latency, ahead, from: now + drains_for });
            self.bound.store(number.max(FLOOR).min(bound), Ordering::Relaxed);
        }
    }
}

fn micros(span: Duration) -> u64 {
    u64::try_from(span.as_micros()).unwrap_or(u64::MAX)
}

impl Slot {
    /// Returns the time at which the decision was sent.
    pub(super) fn sent_at(&self) -> tokio::time::Instant {
        self.sent.at
    }

    /// Notes that the store has decided.
    pub(super) fn answered(mut self) {
        let in_flight = &self.in_flight;
        in_flight.progress.answered(self.sent);
        if let Some(ahead) = self.measured_behind {
            in_flight.adjust(self.sent.at, micros(self.sent.at.elapsed()), ahead);
        }
        self.stop_measuring();
    }

    /// Notes that the store has not decided in time. Returns whether that is because it is overloaded.
    pub(super) fn timed_out(mut self, patience: Duration) -> bool {
        let in_flight = &self.in_flight;
        let late = in_flight.progress.judge(self.sent, patience);
        if let Late::Behind { replies } = late
            && replies > 0
        {
            let (mut control, waiting) = (in_flight.control(), in_flight.waiting());
            let latency = micros(patience);
            if in_flight.conclude_trial(&mut control, self.sent.at, latency, waiting) {
                // The store keeps working on decisions that were given up.
                let drains_for = patience.mul_f64(waiting as f64 / replies as f64).min(DRAINING);
                let borne = replies as usize / 8 * 3;
                in_flight.shrink(&mut control, borne, latency, waiting, drains_for);
            }
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

    /// Sends `count` decisions and answers all of them after this time. Returns how many had a slot.
    async fn burst(in_flight: &Arc<InFlight>, count: usize, latency: Duration) -> usize {
        let slots: Vec<_> = (0..count).filter_map(|_| in_flight.enter()).collect();
        advance(latency).await;
        let entered = slots.len();
        // The one that is measured is the last to be sent.
        slots.into_iter().rev().for_each(Slot::answered);
        entered
    }

    /// Returns the latency of a store that answers `per_milli` decisions in a millisecond.
    fn latency(per_milli: usize, count: usize) -> Duration {
        Duration::from_micros(200 + (count * 1_000 / per_milli) as u64)
    }

    /// Measures the latency of one decision behind `offered` others.
    async fn measure(in_flight: &Arc<InFlight>, per_milli: usize, offered: usize) {
        in_flight.is_measuring.store(true, Ordering::Relaxed);
        let ahead: Vec<_> = (1..offered).filter_map(|_| in_flight.enter()).collect();
        in_flight.is_measuring.store(false, Ordering::Relaxed);
        if let Some(last) = in_flight.enter() {
            advance(latency(per_milli, ahead.len())).await;
            last.answered();
        } else {
            // All slots are taken: the next free one is measured.
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

    /// The fault: where tasks wait for the processor, a smaller bound makes nothing faster, and it fell to
    /// the floor.
    #[tokio::test(start_paused = true)]
    async fn a_bound_goes_back_if_shrinking_it_does_not_help() {
        let in_flight = InFlight::new(4_096, DEADLINE);
        for _ in 0..3 {
            // A store of unlimited capacity, 80 ms away.
            let slots: Vec<_> = (0..4_000).filter_map(|_| in_flight.enter()).collect();
            advance(Duration::from_millis(80)).await;
            in_flight.adjust(slots[0].sent.at, 80_000, slots.len());
            slots.into_iter().for_each(Slot::answered);
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
