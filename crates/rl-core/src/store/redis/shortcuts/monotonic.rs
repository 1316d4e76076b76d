//! Measures on this machine how long an interval on the server lasts.

use std::sync::{Arc, LazyLock};

use tokio::time::Instant;

use crate::time::{Clock, Counter, ManualClock};

/// The part of an interval that clock drift may take: one thousandth.
const DRIFT: u64 = 1_000;

/// The largest correction that the calibrated clock makes, in µs: 10 of reading time, and 10 of
/// drift since the last calibration, in either direction, on both ends of an interval.
const CLOCK_ERROR: u64 = 40;

/// A clock that never steps back, in microseconds since some time.
#[derive(Debug)]
pub(crate) enum MonotonicClock {
    Running(Counter),
    /// The server's clock, in tests that set the time.
    Manual(Arc<ManualClock>),
}

impl MonotonicClock {
    pub(crate) fn new(clock: Option<Arc<ManualClock>>) -> Self {
        clock.map_or_else(|| Self::Running(Counter::new(micros_since_start)), Self::Manual)
    }

    pub(crate) fn now(&self) -> u64 {
        match self {
            Self::Running(counter) => counter.micros(),
            Self::Manual(clock) => clock.now().as_micros(),
        }
    }

    /// Returns whether a test sets the time.
    pub(crate) const fn is_manual(&self) -> bool {
        matches!(self, Self::Manual(_))
    }
}

fn micros_since_start() -> u64 {
    static START: LazyLock<Instant> = LazyLock::new(Instant::now);
    u64::try_from(START.elapsed().as_micros()).unwrap_or(u64::MAX)
}

/// Returns the time here until which an interval of `micros` on the server's clock surely lasts, if
/// it began no earlier than `sent`.
pub(crate) const fn safe_deadline(sent: u64, micros: u64) -> u64 {
    sent.saturating_add((micros - micros.div_ceil(DRIFT)).saturating_sub(CLOCK_ERROR))
}
