//! Bounds the decisions in flight by the number that the store answers in time.
//!
//! A store that receives more calls than it can handle answers all of them late. A late answer is
//! useless: the store has done the work, but the request has timed out. So the number in flight is
//! bounded by the number of replies (Little's law):
//!
//! ```text
//! bound = replies per second * 3/4 of the deadline
//! ```
//!
//! Only two events change the bound: a late decision lowers it to that value, and a refused
//! decision raises it. All other decisions only count their replies. Latency alone does not change
//! the bound, because a process without CPU time is slow under any bound.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use super::reply_progress::{DRAINING, Lateness, ReplyProgress, SentCall};
use crate::maybe_ready::MaybeReady;
use crate::model::{FailureKind, StoreError};
use crate::store::StoreFuture;

/// The minimum of the bound. If `max_in_flight` is set to less, the bound always equals the
/// setting.
const FLOOR: usize = 64;

/// The largest factor by which the bound grows in one step.
const GROWTH: usize = 4;

/// The time over which replies are counted. Older replies do not reflect the current load.
const WINDOW: Duration = Duration::from_secs(1);

/// The replies since a point in time. They determine the bound.
#[derive(Clone, Copy, Debug)]
struct ReplyWindow {
    from: Instant,
    // The number of calls that had been answered at `from`.
    answered: u64,
    // Calls that were sent before this time say nothing about the current bound, because the store
    // was still working on calls that had timed out.
    shows_from: Instant,
    // The bound that applies from `shows_from` on. A lower one may apply before, so that the store
    // can finish the calls that timed out.
    then: usize,
}

/// The decisions that wait for the store.
#[derive(Debug)]
pub(super) struct InFlight {
    waiting: AtomicUsize,
    // The configured bound.
    most: usize,
    // The number of decisions that may be in flight now, at most `most`.
    bound: AtomicUsize,
    deadline: Duration,
    // Only late and refused decisions lock it.
    window: Mutex<ReplyWindow>,
    replies: ReplyProgress,
}

/// The slot of a decision in flight. It is free again when this value is dropped.
#[derive(Debug)]
pub(super) struct InFlightSlot {
    in_flight: Arc<InFlight>,
    sent: SentCall,
}

impl InFlight {
    pub(super) fn new(most: usize, deadline: Duration) -> Arc<Self> {
        let now = Instant::now();
        Arc::new(Self {
            waiting: AtomicUsize::new(0),
            most,
            bound: AtomicUsize::new(most),
            deadline,
            window: Mutex::new(ReplyWindow { from: now, answered: 0, shows_from: now, then: most }),
            replies: ReplyProgress::default(),
        })
    }

    pub(super) fn waiting(&self) -> usize {
        self.waiting.load(Ordering::Relaxed)
    }

    /// Returns the number of decisions that may be in flight now.
    pub(super) fn bound(&self) -> usize {
        self.bound.load(Ordering::Relaxed)
    }

    pub(super) fn is_full(&self) -> bool {
        self.waiting() >= self.bound()
    }

    /// Returns a slot, unless all are taken.
    pub(super) fn enter(self: &Arc<Self>) -> Option<InFlightSlot> {
        // Counts first and checks afterwards, so that concurrent callers never exceed the bound.
        let ahead = self.waiting.fetch_add(1, Ordering::Relaxed);
        if ahead >= self.bound() {
            self.waiting.fetch_sub(1, Ordering::Relaxed);
            return None;
        }
        Some(InFlightSlot { in_flight: Arc::clone(self), sent: self.replies.send() })
    }

    /// Occupies a slot until a pending result is ready. Fails as overloaded if all slots are taken.
    pub(super) fn limit<T: Send + 'static>(
        self: &Arc<Self>,
        result: StoreFuture<T>,
    ) -> StoreFuture<T> {
        match result {
            MaybeReady::Boxed(pending) => match self.enter() {
                Some(slot) => MaybeReady::later(async move {
                    let result = pending.await;
                    drop(slot);
                    result
                }),
                None => MaybeReady::ready(Err(StoreError::new(FailureKind::Overloaded))),
            },
            ready => ready,
        }
    }

    /// Records that a decision was refused because too many are in flight. Raises the bound if the
    /// store answers more decisions in time than the bound allows.
    pub(super) fn refused(&self) {
        let Some(now) = self.replies.refused() else { return };
        let bound = self.bound();
        if bound == self.most {
            return;
        }
        // If another thread holds the lock, that thread adjusts the bound.
        let Ok(mut window) = self.window.try_lock() else { return };
        if bound < window.then {
            // The bound rises again when the store has finished the calls that timed out. That is
            // expected at `shows_from`. A reply to a call sent after `from` shows it earlier.
            if now >= window.shows_from || self.replies.newest_is_after(window.from) {
                self.bound.store(window.then, Ordering::Relaxed);
                window.shows_from = now;
            }
            return;
        }
        if now < window.from.max(window.shows_from) + self.deadline * 2 {
            return;
        }
        let answered = self.replies.answered_count();
        let borne = self.borne(answered.wrapping_sub(window.answered), now - window.from);
        let raised = borne.min(bound.saturating_mul(GROWTH)).min(self.most);
        if raised > bound {
            self.bound.store(raised, Ordering::Relaxed);
            (window.shows_from, window.then) = (now, raised);
        }
        (window.from, window.answered) = (now, answered);
    }

    /// Lowers the bound if the store answers fewer decisions in time than are in flight. Called for
    /// a decision that is late.
    fn shrink(&self, sent: SentCall, now: Instant) {
        let mut window = self.window.lock().unwrap_or_else(PoisonError::into_inner);
        let (answered, waiting) = (self.replies.answered_count(), self.waiting());
        let (replies, elapsed) = (answered.wrapping_sub(sent.answered), now - sent.at);
        // A late call says nothing about the bound if no reply has arrived since it was sent. It
        // says nothing either if it was sent before `shows_from`, because the store may have been
        // busy with calls that had timed out.
        if replies == 0 || sent.at < window.shows_from {
            return;
        }
        // `borne` is to be the bound from `shows_from` on. After a pause of this process, few
        // replies have arrived, although the store is fast. Therefore it is at least what the
        // replies since `window.from` give, and at least half of the decisions that wait.
        let over_window = self.borne(answered.wrapping_sub(window.answered), now - window.from);
        let borne = self.borne(replies, elapsed).max(over_window).max(waiting / 2).max(FLOOR);
        if borne < waiting && borne < self.bound() {
            // The store still works on calls that timed out, so calls that are sent now would be
            // late as well. Until it has finished, the bound is a quarter of `borne`.
            self.bound.store((borne / 4).max(FLOOR.min(borne)), Ordering::Relaxed);
            let drains_for = elapsed.mul_f64(waiting as f64 / replies as f64).min(DRAINING);
            let shows_from = now + drains_for;
            *window = ReplyWindow { from: now, answered, shows_from, then: borne };
        } else if now - window.from > WINDOW {
            (window.from, window.answered) = (now, answered);
        }
    }

    /// Returns the number of decisions that the store answers in three quarters of the deadline, if
    /// it sends `replies` in `elapsed`.
    fn borne(&self, replies: u64, elapsed: Duration) -> usize {
        let elapsed = elapsed.max(Duration::from_millis(1));
        (replies as f64 * self.deadline.as_secs_f64() * 0.75 / elapsed.as_secs_f64()) as usize
    }
}

impl InFlightSlot {
    /// Returns the time at which the decision was sent.
    pub(super) fn sent_at(&self) -> Instant {
        self.sent.at
    }

    /// Returns the same time, in microseconds since the limiter was built.
    pub(super) fn sent_micros(&self) -> u64 {
        self.sent.micros
    }

    /// Records that the store has decided.
    pub(super) fn answered(self) {
        self.in_flight.replies.answered(self.sent);
    }

    /// Records that the store has not decided within `patience`. Returns false if an outage is the
    /// reason, and true if the store or this process is overloaded.
    pub(super) fn timed_out(self, patience: Duration) -> bool {
        let now = Instant::now();
        let late = self.in_flight.replies.judge(self.sent, patience, now);
        if late == Lateness::Behind {
            self.in_flight.shrink(self.sent, now);
        }
        late != Lateness::Outage
    }
}

impl Drop for InFlightSlot {
    fn drop(&mut self) {
        self.in_flight.waiting.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use tokio::time::advance;

    use super::*;

    const DEADLINE: Duration = Duration::from_millis(100);

    /// A store that answers `each_deadline` calls within the time of one deadline. It answers all
    /// calls in order, even those that have timed out.
    struct Remote {
        in_flight: Arc<InFlight>,
        each_deadline: usize,
        queue: VecDeque<Option<InFlightSlot>>,
        sent: VecDeque<Instant>,
        in_time: usize,
        late: usize,
    }

    impl Remote {
        fn new(most: usize, each_deadline: usize) -> Self {
            let in_flight = InFlight::new(most, DEADLINE);
            let (queue, sent, in_time, late) = Default::default();
            Self { in_flight, each_deadline, queue, sent, in_time, late }
        }

        /// Simulates `clients` clients for `millis` milliseconds. Each of them sends a request
        /// again when its last one was answered or has timed out.
        async fn flood(&mut self, clients: usize, millis: usize) {
            (self.in_time, self.late) = (0, 0);
            for _ in 0..millis {
                advance(Duration::from_millis(1)).await;
                let answers = (self.each_deadline / 100).min(self.queue.len());
                for slot in self.queue.drain(..answers).flatten() {
                    slot.answered();
                    self.in_time += 1;
                }
                self.sent.drain(..answers);
                for (slot, sent) in self.queue.iter_mut().zip(&self.sent) {
                    if sent.elapsed() >= DEADLINE
                        && let Some(slot) = slot.take()
                    {
                        assert!(slot.timed_out(DEADLINE), "it is behind, not down");
                        self.late += 1;
                    }
                }
                for _ in self.in_flight.waiting()..clients {
                    match self.in_flight.enter() {
                        Some(slot) => {
                            self.queue.push_back(Some(slot));
                            self.sent.push_back(Instant::now());
                        }
                        None => {
                            self.in_flight.refused();
                            break;
                        }
                    }
                }
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn the_bound_follows_what_the_store_answers_within_the_deadline() {
        let mut remote = Remote::new(4_096, 1_000);
        for each_deadline in [1_000, 200, 3_000, 1_000] {
            remote.each_deadline = each_deadline;
            // During the first flood, the bound adapts, and the store finishes the calls that timed
            // out. Only the second flood is measured.
            remote.flood(20_000, 3_000).await;
            remote.flood(20_000, 1_000).await;
            let (bound, share) = (remote.in_flight.bound(), remote.in_time * 10 / each_deadline);
            let least = each_deadline / 2;
            assert!((least..=each_deadline).contains(&bound), "{each_deadline}: {bound}");
            assert!(
                share >= 90,
                "{each_deadline}: {} answered, {} late",
                remote.in_time,
                remote.late
            );
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_few_late_calls_shrink_nothing() {
        let in_flight = InFlight::new(4_096, DEADLINE);
        for _ in 0..10 {
            let late: Vec<_> = (0..10).filter_map(|_| in_flight.enter()).collect();
            advance(DEADLINE * 3 / 4).await;
            for _ in 0..8 {
                in_flight.enter().unwrap().answered();
            }
            advance(DEADLINE / 4).await;
            let _ = late.into_iter().map(|slot| slot.timed_out(DEADLINE)).collect::<Vec<_>>();
        }
        assert_eq!(in_flight.bound(), 4_096);
    }

    #[tokio::test(start_paused = true)]
    async fn a_process_that_gets_no_time_shrinks_nothing() {
        let in_flight = InFlight::new(4_096, DEADLINE);
        let late: Vec<_> = (0..1_000).filter_map(|_| in_flight.enter()).collect();
        advance(DEADLINE * 3 / 4).await;
        (0..100).for_each(|_| in_flight.enter().unwrap().answered());
        // The calls time out late, because the operating system has suspended this process.
        advance(DEADLINE).await;
        assert!(late.into_iter().all(|slot| slot.timed_out(DEADLINE)));
        assert_eq!(in_flight.bound(), 4_096);
    }

    #[tokio::test(start_paused = true)]
    async fn a_dropped_slot_is_free_again() {
        let in_flight = InFlight::new(2, DEADLINE);
        let (first, second) = (in_flight.enter().unwrap(), in_flight.enter().unwrap());
        assert!(in_flight.enter().is_none());
        drop(first);
        let third = in_flight.enter().unwrap();
        advance(DEADLINE).await;
        assert!(!second.timed_out(DEADLINE), "nothing was ever answered");
        drop(third);
        assert_eq!((in_flight.waiting(), in_flight.bound()), (0, 2));
    }
}
