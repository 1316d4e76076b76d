//! What measures the time between sending and now.

use std::sync::Arc;

use tokio::time::Instant;

use crate::time::{Clock, ManualClock};

/// Microseconds since some time.
#[derive(Clone, Debug)]
pub(super) enum Watch {
    Running(Instant),
    /// The server's, in tests that make up the time.
    Manual(Arc<ManualClock>),
}

/// Our clock and the server's do not run alike: of each span so small a part is left to the server.
const DRIFT: u64 = 1_000;

impl Watch {
    pub(super) fn new(clock: Option<Arc<ManualClock>>) -> Self {
        clock.map_or_else(|| Self::Running(Instant::now()), Self::Manual)
    }

    pub(super) fn now(&self) -> u64 {
        match self {
            Self::Running(begun) => u64::try_from(begun.elapsed().as_micros()).unwrap_or(u64::MAX),
            Self::Manual(clock) => clock.now().as_micros(),
        }
    }
}

/// Until when a span lasts on our watch that began on the server no earlier than at `sent`.
pub(super) const fn lasts_until(sent: u64, micros: u64) -> u64 {
    sent.saturating_add(micros - micros.div_ceil(DRIFT))
}
