//! Whether a server still answers calls.

use std::sync::{Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use tokio::time::Instant;

/// The time for which a server may be busy with calls that have timed out. Some stores never see
/// the replies to these calls.
pub(super) const DRAINING: Duration = Duration::from_secs(1);

/// The calls to a server, or to a source of policies, and the times of its replies.
#[derive(Debug)]
pub(crate) struct Replies(Mutex<ReplyState>);

#[derive(Debug)]
struct ReplyState {
    /// The number of calls whose callers wait.
    pending: usize,
    /// The time since which a reply is outstanding: that of the last reply, or of the first call
    /// after it. `None` if no reply is outstanding.
    outstanding_since: Option<Instant>,
    replied_at: Option<Instant>,
    /// The last time at which the server answered calls, but had more of them than it answers in
    /// time.
    behind_at: Option<Instant>,
    /// Whether the server can be reached, as far as is known.
    is_up: bool,
}

impl Default for Replies {
    fn default() -> Self {
        Self::new(true)
    }
}

impl Replies {
    /// Creates the state before the first call.
    pub(crate) fn new(is_up: bool) -> Self {
        let (pending, outstanding_since, replied_at, behind_at) = Default::default();
        Self(Mutex::new(ReplyState { pending, outstanding_since, replied_at, behind_at, is_up }))
    }

    /// Records that a call is sent now.
    pub(crate) fn begin(&self) -> ServerCall<'_> {
        self.record_call();
        ServerCall(self)
    }

    /// Records that a call is sent now, without a guard.
    pub(super) fn record_call(&self) {
        let mut state = self.lock();
        // A reply is still outstanding after the caller has stopped waiting for it.
        state.outstanding_since.get_or_insert_with(Instant::now);
        state.pending += 1;
    }

    /// Records that the server has sent a reply.
    pub(crate) fn record_reply(&self) {
        self.lock().record_reply();
    }

    /// Records that the server has answered a call for which its caller waited.
    pub(super) fn record_awaited_reply(&self) {
        let mut state = self.lock();
        state.pending -= 1;
        state.record_reply();
    }

    /// Records that the caller of a call has stopped waiting. The reply is still outstanding.
    pub(super) fn record_abandoned_call(&self) {
        self.lock().pending -= 1;
    }

    /// Records that a connection to the server was opened.
    #[cfg(feature = "redis")]
    pub(crate) fn record_connection(&self) {
        let mut state = self.lock();
        if !state.is_up {
            // The outstanding replies of the last connections are lost.
            state.outstanding_since = (state.pending > 0).then(Instant::now);
            state.is_up = true;
        }
    }

    /// Records that the connections to the server have failed.
    #[cfg(feature = "redis")]
    pub(crate) fn record_connection_failure(&self) {
        self.lock().is_up = false;
    }

    /// Returns whether the server cannot be reached, or a reply has been outstanding for longer
    /// than `time`.
    fn has_not_replied_for(&self, time: Duration, now: Instant) -> bool {
        self.lock().has_not_replied_for(time, now)
    }

    /// Returns whether a reply is outstanding.
    pub(super) fn has_outstanding_reply(&self) -> bool {
        self.lock().outstanding_since.is_some()
    }

    /// Returns whether a timed-out call shows an outage. `waited` is its real wait, and `deadline`
    /// the allowed one. It does if a reply was outstanding during the whole second half of the
    /// wait, and none was sent. A server that was behind within [`DRAINING`] may still be busy.
    ///
    /// The time by which the timer fired late does not count as time without a reply: this process
    /// did not run, and the server may not have run either.
    pub(crate) fn shows_outage(&self, waited: Duration, deadline: Duration, now: Instant) -> bool {
        let state = self.lock();
        let first_half = deadline.min(waited) / 2;
        state.has_not_replied_for(waited - first_half, now) && !state.was_behind(now)
    }

    /// Marks the server as behind from its oldest outstanding call for [`DRAINING`]. A later flood
    /// does not extend this.
    pub(super) fn record_flood(&self, now: Instant) {
        let mut state = self.lock();
        let is_recent = |since: &Instant| now.duration_since(*since) < DRAINING;
        if state.is_up {
            state.behind_at = state.behind_at.max(state.outstanding_since.filter(is_recent));
        }
    }

    /// Records that a call for which the limiter waits for up to `deadline` was refused, because
    /// too many are in flight. If the server has answered within half of the deadline, marks it as
    /// behind, and returns true.
    ///
    /// A time-out alone does not mark it as behind, so that a wrong verdict cannot cause the next
    /// one.
    pub(super) fn record_refusal(&self, deadline: Duration, now: Instant) -> bool {
        let mut state = self.lock();
        let has_replied = state.is_up
            && state.replied_at.is_some_and(|at| now.duration_since(at) <= deadline / 2);
        if has_replied {
            state.behind_at = Some(now);
        }
        has_replied
    }

    fn lock(&self) -> MutexGuard<'_, ReplyState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A call to a server. If it is dropped without a reply, the reply is still outstanding.
#[derive(Debug)]
#[must_use = "a call that is dropped has no reply"]
pub struct ServerCall<'a>(&'a Replies);

impl ServerCall<'_> {
    /// Records that the server has answered the call, with a result or with an error.
    pub fn finish(self) {
        self.0.record_awaited_reply();
        std::mem::forget(self);
    }
}

impl Drop for ServerCall<'_> {
    fn drop(&mut self) {
        self.0.record_abandoned_call();
    }
}

impl ReplyState {
    fn record_reply(&mut self) {
        let now = Instant::now();
        self.outstanding_since = (self.pending > 0).then_some(now);
        self.replied_at = Some(now);
        self.is_up = true;
    }

    fn has_not_replied_for(&self, time: Duration, now: Instant) -> bool {
        // An instant may be later than `now` if another thread has just read the clock.
        !self.is_up || self.outstanding_since.is_some_and(|since| now.duration_since(since) > time)
    }

    fn was_behind(&self, now: Instant) -> bool {
        self.behind_at.is_some_and(|at| now.duration_since(at) < DRAINING)
    }
}

/// The servers of one store. It is empty if there is only one.
#[derive(Debug, Default)]
pub(crate) struct ServerGroup(Mutex<Vec<Weak<Replies>>>);

impl ServerGroup {
    /// Replaces the servers.
    #[cfg(feature = "redis-cluster")]
    pub(crate) fn set(&self, servers: Vec<Weak<Replies>>) {
        *self.lock() = servers;
    }

    /// Returns whether a server other than `own` can be reached, and has not had an outstanding
    /// reply for longer than `time`.
    pub(super) fn has_other(&self, own: &Replies, time: Duration, now: Instant) -> bool {
        let servers: Vec<_> = self.lock().iter().filter_map(Weak::upgrade).collect();
        let mut others = servers.iter().filter(|other| !std::ptr::eq(&***other, own));
        others.any(|other| !other.has_not_replied_for(time, now))
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Weak<Replies>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
