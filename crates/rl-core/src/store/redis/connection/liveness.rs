//! Detects connections that have failed.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::time::Instant;

use crate::store::ServerLoad;

/// The generation of a pool's connections.
///
/// All connections that were opened in one generation lead to the same server. If one of them
/// fails, the generation ends, and the pool replaces all of its connections. Clones share the
/// number.
#[derive(Clone, Default)]
pub(crate) struct Generation(Arc<AtomicU64>);

impl Generation {
    /// Returns the number of the current generation.
    pub(super) fn current(&self) -> u64 {
        self.0.load(Ordering::Acquire)
    }

    /// Ends the current generation.
    #[cfg(feature = "redis-sentinel")]
    pub(super) fn advance(&self) {
        self.0.fetch_add(1, Ordering::AcqRel);
    }

    /// Ends the generation `number`, unless it has ended already. Returns whether it has ended now.
    ///
    /// Many connections of a generation may fail together. The comparison ensures that a late
    /// failure from an old generation does not end a new one.
    fn end(&self, number: u64) -> bool {
        let next = number + 1;
        self.0.compare_exchange(number, next, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }
}

/// Tracks whether a connection still works. All handles to one connection share it.
pub(super) struct Liveness {
    /// The generation in which the connection was opened.
    opened_under: u64,
    generation: Generation,
    load: Arc<ServerLoad>,
    opened_at: Instant,
    /// The longest time that a command may wait for a reply.
    response_timeout: Duration,
    /// The time at which the first command since the last reply was sent, in milliseconds from
    /// `opened_at`.
    oldest_unanswered: AtomicU64,
}

impl Liveness {
    /// The value of `oldest_unanswered` if no command was sent since the last reply.
    const NONE: u64 = u64::MAX;

    /// Creates the state of a connection that has just been opened in the generation
    /// `opened_under`.
    pub(super) fn new(
        opened_under: u64,
        generation: Generation,
        load: Arc<ServerLoad>,
        response_timeout: Duration,
    ) -> Self {
        Self {
            opened_under,
            generation,
            load,
            opened_at: Instant::now(),
            response_timeout,
            oldest_unanswered: AtomicU64::new(Self::NONE),
        }
    }

    /// Marks the connection as failed, together with all connections of its generation.
    pub(super) fn fail(&self) {
        if self.generation.end(self.opened_under) {
            self.load.record_connection_failure();
        }
    }

    /// Returns whether the connection or another one of its generation has failed.
    pub(super) fn is_stale(&self) -> bool {
        self.opened_under != self.generation.current()
    }

    /// Records that a reply was received.
    pub(super) fn on_reply(&self) {
        self.oldest_unanswered.store(Self::NONE, Ordering::Relaxed);
    }

    /// Marks the connection as failed if a command sent at `sent` has waited for the whole response
    /// timeout.
    fn check_timeout(&self, sent: u64, now: u64) {
        if u128::from(now.saturating_sub(sent)) >= self.response_timeout.as_millis() {
            self.fail();
        }
    }

    /// Returns the milliseconds since the connection was opened.
    fn elapsed_millis(&self) -> u64 {
        u64::try_from(self.opened_at.elapsed().as_millis()).unwrap_or(u64::MAX)
    }
}

/// A command that is waiting for its reply.
///
/// The limiter drops it at the deadline of the decision. When it is dropped, the connection counts
/// as failed if a reply is missing for the whole response timeout.
pub(super) struct PendingCommand<'a>(&'a Liveness);

impl<'a> PendingCommand<'a> {
    /// Records that a command is sent now.
    pub(super) fn begin(liveness: &'a Liveness) -> Self {
        let now = liveness.elapsed_millis();
        let previous = liveness.oldest_unanswered.compare_exchange(
            Liveness::NONE,
            now,
            Ordering::Relaxed,
            Ordering::Relaxed,
        );
        if let Err(sent) = previous {
            // Check here too, and not only when a command is dropped: a command without a deadline,
            // such as a change of a permit, may wait forever.
            liveness.check_timeout(sent, now);
        }
        Self(liveness)
    }
}

impl Drop for PendingCommand<'_> {
    fn drop(&mut self) {
        let sent = self.0.oldest_unanswered.load(Ordering::Relaxed);
        self.0.check_timeout(sent, self.0.elapsed_millis());
    }
}
