//! The settings of the bound, and the refusals that it causes.

use std::time::Duration;

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

impl CallBounds {
    /// Returns the number of decisions that a server makes in three quarters of the deadline, if it
    /// makes `replies` in `elapsed`.
    pub(super) fn borne(self, replies: u64, elapsed: Duration) -> usize {
        let elapsed = elapsed.max(Duration::from_millis(1));
        (replies as f64 * self.deadline.as_secs_f64() * 0.75 / elapsed.as_secs_f64()) as usize
    }
}
