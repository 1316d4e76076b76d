//! The settings of the bound, and the refusals that it causes.

use std::time::Duration;

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

impl CallBounds {
    /// Returns the number of decisions that may be in flight on a server that makes `rate` of them
    /// in a second.
    pub(super) fn bound_at(self, rate: u64) -> usize {
        let in_time = rate as f64 * self.seconds();
        (in_time as usize).max(FLOOR).min(self.max_in_flight)
    }

    /// Returns the decisions per second of a server on which `bound` decisions may be in flight.
    pub(super) fn rate_at(self, bound: usize) -> u64 {
        (bound as f64 / self.seconds()) as u64
    }

    fn seconds(self) -> f64 {
        self.deadline.as_secs_f64() * SHARE_OF_DEADLINE
    }
}

/// Returns the decisions per second of a server that makes `replies` in `elapsed`.
pub(super) fn rate_of(replies: u64, elapsed: Duration) -> u64 {
    let elapsed = elapsed.max(Duration::from_millis(1));
    (replies as f64 / elapsed.as_secs_f64()) as u64
}
