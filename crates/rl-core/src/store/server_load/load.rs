//! The load of one server.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::time::Instant;

use super::replies::{DRAINING, Replies, ServerCall, ServerGroup};

/// The largest factor by which the bound grows in one step.
const GROWTH: usize = 4;

/// The time over which replies are counted. Older replies do not reflect the current load.
const WINDOW: Duration = Duration::from_secs(1);

/// Fewer decisions in a deadline are not a flood.
const SMALLEST_FLOOD: u64 = 256;

/// The factor by which sent decisions must exceed recent ones to be a flood.
const FLOOD_FACTOR: u64 = 2;

/// The time without a refusal by a server that answers, after which the bound is lifted. It is
/// longer than the `Retry-After` of a refusal, so that the bound applies when clients return.
pub(super) const QUIET_PERIOD: Duration = Duration::from_secs(3);

/// The load of one server, which the limiters of a store share.
///
/// The store creates one for each of its servers, and reports calls and replies to it. Limiters
/// use it to bound decisions in flight and to distinguish an outage from an overload.
///
/// # Examples
///
/// ```
/// use rl_core::store::ServerLoad;
///
/// # async fn exchange(_: &[u8]) -> std::io::Result<Vec<u8>> { Ok(Vec::new()) }
/// async fn send(load: &ServerLoad, command: &[u8]) -> std::io::Result<Vec<u8>> {
///     let call = load.begin_call();
///     let reply = exchange(command).await?;
///     call.finish();
///     Ok(reply)
/// }
/// ```
#[derive(Debug)]
pub struct ServerLoad {
    origin: Instant,
    /// The number of decisions in flight.
    pub(super) in_flight: AtomicUsize,
    /// The number of decisions that the server makes in a second, which determines the bound;
    /// `u64::MAX` if no overload has lowered it.
    rate: AtomicU64,
    /// The last time at which the bound was lowered, or a decision was refused by a server that
    /// answers, in microseconds from `origin`.
    last_needed_at: AtomicU64,
    /// The number of decisions that were sent.
    pub(super) sent: AtomicU64,
    /// The number of decisions that were made in time.
    pub(super) answered: AtomicU64,
    recent: RecentDecisions,
    /// The time at which the decision with the newest reply was sent, in microseconds from
    /// `origin`.
    newest_reply_sent_at: AtomicU64,
    // Only late and refused decisions lock it.
    window: Mutex<ReplyWindow>,
    pub(super) replies: Arc<Replies>,
    /// Whether a decision in flight counts as a call, because nothing else reports calls.
    pub(super) has_own_calls: bool,
    pub(super) group: Arc<ServerGroup>,
    /// The runtime that reads the replies of the server, if it is known.
    pub(super) runtime: Option<Handle>,
}

/// The decisions that the server has recently made in time. Only decisions in time change it, so it
/// shows the pace before the server fell silent.
#[derive(Debug, Default)]
struct RecentDecisions {
    /// The time at which the current period began, in microseconds from `origin`. It lasts for at
    /// least [`WINDOW`].
    began: AtomicU64,
    /// The number of decisions that had been made when it began.
    answered_before: AtomicU64,
    /// The decisions per second in the period before.
    previous_rate: AtomicU64,
}

/// The replies since a point in time. They determine the rate.
#[derive(Clone, Copy, Debug)]
struct ReplyWindow {
    from: Instant,
    /// The number of decisions that had been made at `from`.
    answered_before: u64,
    /// Decisions that were sent before this time say nothing about the current rate, because the
    /// server was still working on calls that had timed out.
    valid_from: Instant,
    /// The rate that applies from `valid_from` on. A lower one may apply before, so that the server
    /// can finish the calls that timed out.
    target_rate: u64,
}

impl Default for ServerLoad {
    fn default() -> Self {
        Self::new()
    }
}

impl ServerLoad {
    /// Creates the load of a server without calls.
    #[must_use]
    pub fn new() -> Self {
        Self::with(true, false, Arc::default(), None)
    }

    /// Creates the load of a store that reports neither calls nor replies. Its decisions count as
    /// calls.
    pub(crate) fn of_decisions() -> Self {
        Self::with(true, true, Arc::default(), None)
    }

    /// Creates the load of a server to which no connection is open yet. Its replies are read in
    /// `runtime`.
    #[cfg(feature = "redis")]
    pub(crate) fn unconnected(runtime: &Handle) -> Self {
        Self::with(false, false, Arc::default(), Some(runtime.clone()))
    }

    /// Creates the load of one of several servers, to which no connection is open yet. Its replies
    /// are read in `runtime`.
    #[cfg(feature = "redis-cluster")]
    pub(crate) fn in_group(group: &Arc<ServerGroup>, runtime: &Handle) -> Self {
        Self::with(false, false, Arc::clone(group), Some(runtime.clone()))
    }

    fn with(
        is_up: bool,
        has_own_calls: bool,
        group: Arc<ServerGroup>,
        runtime: Option<Handle>,
    ) -> Self {
        let origin = Instant::now();
        let (from, valid_from, target_rate) = (origin, origin, u64::MAX);
        Self {
            origin,
            in_flight: AtomicUsize::new(0),
            rate: AtomicU64::new(u64::MAX),
            last_needed_at: AtomicU64::new(0),
            sent: AtomicU64::new(0),
            answered: AtomicU64::new(0),
            recent: RecentDecisions::default(),
            newest_reply_sent_at: AtomicU64::new(0),
            window: Mutex::new(ReplyWindow { from, answered_before: 0, valid_from, target_rate }),
            replies: Arc::new(Replies::new(is_up)),
            has_own_calls,
            group,
            runtime,
        }
    }

    /// Records that a call is sent now.
    pub fn begin_call(&self) -> ServerCall<'_> {
        self.replies.begin()
    }

    /// Records that the server has sent a reply, whether or not its caller still waits for it.
    pub fn record_reply(&self) {
        self.replies.record_reply();
    }

    /// Records that a connection to the server was opened.
    #[cfg(feature = "redis")]
    pub(crate) fn record_connection(&self) {
        self.replies.record_connection();
    }

    /// Records that the connections to the server have failed.
    #[cfg(feature = "redis")]
    pub(crate) fn record_connection_failure(&self) {
        self.replies.record_connection_failure();
    }

    /// Returns the record of the server's replies.
    #[cfg(feature = "redis-cluster")]
    pub(crate) const fn replies(&self) -> &Arc<Replies> {
        &self.replies
    }

    /// Returns the number of decisions in flight.
    pub(crate) fn in_flight(&self) -> usize {
        self.in_flight.load(Ordering::Relaxed)
    }

    /// Returns the number of decisions that may be in flight now.
    pub(super) fn bound(&self, bounds: CallBounds) -> usize {
        bounds.bound_at(self.rate.load(Ordering::Relaxed))
    }

    /// Returns the microseconds from the creation of this value to `at`.
    pub(super) fn micros(&self, at: Instant) -> u64 {
        u64::try_from(at.duration_since(self.origin).as_micros()).unwrap_or(u64::MAX)
    }

    /// Records that a decision was made, which was sent at `sent_at`.
    pub(super) fn count_answered(&self, sent_at: Instant) {
        let answered = self.answered.fetch_add(1, Ordering::Relaxed) + 1;
        let sent_at = self.micros(sent_at);
        self.newest_reply_sent_at.store(sent_at, Ordering::Relaxed);
        let RecentDecisions { began, answered_before, previous_rate } = &self.recent;
        let from = began.load(Ordering::Relaxed);
        let period = Duration::from_micros(sent_at.saturating_sub(from));
        let is_over = period >= WINDOW;
        // If another thread begins the next period first, that thread stores the rate of this one.
        if is_over
            && began.compare_exchange(from, sent_at, Ordering::Relaxed, Ordering::Relaxed).is_ok()
        {
            let made = answered.wrapping_sub(answered_before.swap(answered, Ordering::Relaxed));
            previous_rate.store(rate_of(made, period), Ordering::Relaxed);
        }
    }

    /// Marks the server as behind if, during the last `waited`, more decisions were sent than it
    /// usually makes in that time. `sent_before` is the counter when the wait began.
    ///
    /// At the start of a flood, the server may be busy with a few large calls, and reply to none of
    /// them for a while. No decision has been refused by then that would show the flood.
    pub(super) fn detect_flood(&self, sent_before: u64, waited: Duration, now: Instant) {
        let RecentDecisions { began, answered_before, previous_rate } = &self.recent;
        let began = Duration::from_micros(began.load(Ordering::Relaxed));
        let age = now.duration_since(self.origin).saturating_sub(began);
        let made = self.answered.load(Ordering::Relaxed);
        let made = made.wrapping_sub(answered_before.load(Ordering::Relaxed));
        // If the period is older than a window and the drain time, no decision was made since, so
        // the pace is 0.
        let is_current = age < WINDOW + DRAINING;
        let pace = if is_current { made.max(previous_rate.load(Ordering::Relaxed)) } else { 0 };
        let usual = (pace as f64 * waited.as_secs_f64()) as u64;
        let sent = self.sent.load(Ordering::Relaxed).wrapping_sub(sent_before);
        if sent > SMALLEST_FLOOD.max(usual.saturating_mul(FLOOD_FACTOR)) {
            self.replies.record_flood(now);
        }
    }

    /// Checks the bound again after `in_flight` decisions have reached it.
    ///
    /// Lifts the bound if it has not been needed for some seconds. Otherwise, raises it for later
    /// decisions if the server makes more decisions in time than the bound allows.
    ///
    /// # Errors
    ///
    /// Returns a refusal, unless the bound has just been lifted.
    #[cold]
    pub(super) fn recheck_bound(
        &self,
        bounds: CallBounds,
        in_flight: usize,
    ) -> Result<(), FullServer> {
        let now = Instant::now();
        self.lift_if_unneeded(now);
        let bound = self.bound(bounds);
        if in_flight < bound {
            return Ok(());
        }
        if self.replies.record_refusal(bounds.deadline, now) {
            self.last_needed_at.store(self.micros(now), Ordering::Relaxed);
            self.raise(bounds, now);
        }
        Err(FullServer { in_flight, bound })
    }

    /// Lifts a bound that has not been needed for some seconds.
    fn lift_if_unneeded(&self, now: Instant) {
        let is_lowered = self.rate.load(Ordering::Relaxed) < u64::MAX;
        let last_needed_at = Duration::from_micros(self.last_needed_at.load(Ordering::Relaxed));
        if !is_lowered || now.duration_since(self.origin) < last_needed_at + QUIET_PERIOD {
            return;
        }
        let mut window = self.window.lock().unwrap_or_else(PoisonError::into_inner);
        self.rate.store(u64::MAX, Ordering::Relaxed);
        let answered_before = self.answered.load(Ordering::Relaxed);
        *window =
            ReplyWindow { from: now, answered_before, valid_from: now, target_rate: u64::MAX };
    }

    /// Raises the bound if the server makes more decisions in time than the bound allows.
    fn raise(&self, bounds: CallBounds, now: Instant) {
        let bound = self.bound(bounds);
        if bound == bounds.max_in_flight {
            return;
        }
        // If another thread holds the lock, that thread adjusts the bound.
        let Ok(mut window) = self.window.try_lock() else { return };
        if bound < bounds.bound_at(window.target_rate) {
            // The bound rises again when the server has finished the calls that timed out. That is
            // expected at `valid_from`. A reply to a call sent after `from` shows it earlier.
            let sent_at = self.newest_reply_sent_at.load(Ordering::Relaxed);
            if now >= window.valid_from || sent_at > self.micros(window.from) {
                self.rate.store(window.target_rate, Ordering::Relaxed);
                window.valid_from = now;
            }
            return;
        }
        if now < window.from.max(window.valid_from) + bounds.deadline * 2 {
            return;
        }
        let answered = self.answered.load(Ordering::Relaxed);
        let rate = rate_of(answered.wrapping_sub(window.answered_before), now - window.from);
        let raised = rate.min(bounds.rate_at(bound.saturating_mul(GROWTH)));
        if bounds.bound_at(raised) > bound {
            self.rate.store(raised, Ordering::Relaxed);
            (window.valid_from, window.target_rate) = (now, raised);
        }
        (window.from, window.answered_before) = (now, answered);
    }

    /// Lowers the bound if the server makes fewer decisions in time than are in flight. Called for
    /// a late decision that was sent at `sent_at`, when `answered_before` decisions had been made.
    pub(super) fn shrink(
        &self,
        bounds: CallBounds,
        sent_at: Instant,
        answered_before: u64,
        now: Instant,
    ) {
        let mut window = self.window.lock().unwrap_or_else(PoisonError::into_inner);
        let (total, in_flight) = (self.answered.load(Ordering::Relaxed), self.in_flight());
        let (replies, elapsed) = (total.wrapping_sub(answered_before), now - sent_at);
        // A late decision says nothing about the bound if none was made since it was sent. It says
        // nothing either if it was sent before `valid_from`, because the server may have been busy
        // with calls that had timed out.
        if replies == 0 || sent_at < window.valid_from {
            return;
        }
        // A pause of this process must not lower the bound, so take the highest of three rates:
        // * the rate of replies since this decision was sent,
        // * the rate of replies since `window.from`,
        // * the rate at which the bound is half of the decisions in flight.
        let over_window = rate_of(total.wrapping_sub(window.answered_before), now - window.from);
        let rate = rate_of(replies, elapsed).max(over_window).max(bounds.rate_at(in_flight / 2));
        let bound = bounds.bound_at(rate);
        if bound < in_flight && bound < self.bound(bounds) {
            // The server still works on calls that timed out, so calls that are sent now would be
            // late as well. Until it has finished, a quarter of the rate applies.
            self.rate.store(rate / 4, Ordering::Relaxed);
            self.last_needed_at.store(self.micros(now), Ordering::Relaxed);
            let drains_for = elapsed.mul_f64(in_flight as f64 / replies as f64).min(DRAINING);
            (window.from, window.answered_before) = (now, total);
            (window.valid_from, window.target_rate) = (now + drains_for, rate);
        } else if now - window.from > WINDOW {
            (window.from, window.answered_before) = (now, total);
        }
    }
}

/// The minimum of the bound. If `max_in_flight` is set to less, that is the bound.
const FLOOR: usize = 64;

/// The part of the deadline in which a server has to make all decisions in flight.
const SHARE_OF_DEADLINE: f64 = 0.75;

/// The settings by which a limiter bounds its decisions in flight.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CallBounds {
    /// The largest number of decisions in flight on a server.
    pub(crate) max_in_flight: usize,
    /// The longest time that a decision may take.
    pub(crate) deadline: Duration,
}

/// A server without a free slot, because too many decisions are in flight.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FullServer {
    pub(crate) in_flight: usize,
    pub(crate) bound: usize,
}

impl FullServer {
    /// Returns the number of decisions in flight, and its bound.
    pub(crate) const fn figures(self) -> (usize, usize) {
        (self.in_flight, self.bound)
    }
}

impl CallBounds {
    /// Returns the number of decisions that may be in flight on a server that makes `rate` of them
    /// in a second.
    fn bound_at(self, rate: u64) -> usize {
        let in_time = rate as f64 * self.seconds();
        (in_time as usize).max(FLOOR).min(self.max_in_flight)
    }

    /// Returns the decisions per second of a server on which `bound` decisions may be in flight.
    fn rate_at(self, bound: usize) -> u64 {
        (bound as f64 / self.seconds()) as u64
    }

    fn seconds(self) -> f64 {
        self.deadline.as_secs_f64() * SHARE_OF_DEADLINE
    }
}

/// Returns the decisions per second of a server that makes `replies` in `elapsed`.
fn rate_of(replies: u64, elapsed: Duration) -> u64 {
    let elapsed = elapsed.max(Duration::from_millis(1));
    (replies as f64 / elapsed.as_secs_f64()) as u64
}
