use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rl_core::time::{Clock, Timestamp};

/// A clock that advances by a microsecond whenever it is read.
///
/// Under callgrind, a repetition takes a hundred times as long. With the system clock, work that is
/// due once in a millisecond would be counted too often, and more often on a busy machine.
#[derive(Clone, Debug)]
pub(crate) struct SteadyClock(Arc<AtomicU64>);

impl SteadyClock {
    /// Returns a clock that begins in the middle of a month.
    pub(crate) fn new() -> Self {
        const BEGIN: u64 = 1_700_000_000_000_000;

        Self(Arc::new(AtomicU64::new(BEGIN)))
    }
}

impl Clock for SteadyClock {
    fn now(&self) -> Timestamp {
        Timestamp::from_micros(self.0.fetch_add(1, Ordering::Relaxed))
    }
}
