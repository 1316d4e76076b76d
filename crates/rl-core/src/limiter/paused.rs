use std::time::Duration;

use tokio::time::Instant;

use crate::time::{Clock, Timestamp};

/// Tokio's time, which in tests stands still until everybody waits for it.
#[derive(Debug)]
pub(super) struct Paused(Instant);

impl Paused {
    pub(super) fn now() -> Self {
        Self(Instant::now())
    }
}

impl Clock for Paused {
    fn now(&self) -> Timestamp {
        Timestamp::from(Duration::from_secs(1_000_000) + self.0.elapsed())
    }
}
