//! What measures the time between sending and now.

use std::sync::{Arc, LazyLock};

use tokio::time::Instant;

use crate::time::{Clock, Counter, ManualClock};

/// Microseconds since some time.
#[derive(Debug)]
pub(crate) enum Watch {
    Running(Counter),
    /// The server's, in tests that make up the time.
    Manual(Arc<ManualClock>),
}

/// Our clock and the server's do not run alike: of each span so small a part is left to the server,
const DRIFT: u64 = 1_000;
/// and so many µs, by which our clock corrects itself at most: it is asked in ten, and in the hundredth of a second
/// until it is asked again it goes wrong by ten more in either direction.
const STEP: u64 = 40;

impl Watch {
    pub(crate) fn new(clock: Option<Arc<ManualClock>>) -> Self {
        clock.map_or_else(|| Self::Running(Counter::of(running)), Self::Manual)
    }

    #[inline]
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

/// µs since this was first asked for.
fn running() -> u64 {
    static BEGUN: LazyLock<Instant> = LazyLock::new(Instant::now);
    u64::try_from(BEGUN.elapsed().as_micros()).unwrap_or(u64::MAX)
}

/// Until when a span lasts on our watch that began on the server no earlier than at `sent`.
pub(crate) const fn lasts_until(sent: u64, micros: u64) -> u64 {
    sent.saturating_add((micros - micros.div_ceil(DRIFT)).saturating_sub(STEP))
}
