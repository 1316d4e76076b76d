//! The layers that decide without the server, by cached denials or by leased units, and the clock
//! that both use.

mod denial_cache;
mod leases;

use std::sync::{Arc, LazyLock};

pub(crate) use denial_cache::DenialCache;
pub(crate) use leases::{LeaseSettings, Leases};
use tokio::time::Instant;

use crate::time::{Clock, Counter, ManualClock};

/// The largest drift between two clocks: one microsecond in this number of microseconds.
const DRIFT: u64 = 1_000;

/// The largest error of an interval on the calibrated clock, in µs. Each end of the interval has an
/// error of 20 µs: 10 µs from reading the system clock, and 10 µs from drift since the last
/// calibration.
const CLOCK_ERROR: u64 = 40;

/// A clock that never steps back. It returns microseconds since an arbitrary start.
#[derive(Debug)]
pub(crate) enum MonotonicClock {
    Running(Counter),
    /// The server's clock, for tests that set the time.
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

    /// Returns whether a test controls the time.
    pub(crate) const fn is_manual(&self) -> bool {
        matches!(self, Self::Manual(_))
    }
}

fn micros_since_start() -> u64 {
    static START: LazyLock<Instant> = LazyLock::new(Instant::now);
    u64::try_from(START.elapsed().as_micros()).unwrap_or(u64::MAX)
}

/// Returns a local time at which an interval on the server's clock is certainly not over. The
/// interval lasts `micros` on that clock, and began at the local time `sent` or later.
pub(crate) const fn safe_deadline(sent: u64, micros: u64) -> u64 {
    sent.saturating_add((micros - micros.div_ceil(DRIFT)).saturating_sub(CLOCK_ERROR))
}
