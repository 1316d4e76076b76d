//! The settings of tests that control the time.

use std::sync::Arc;

use super::RedisStoreBuilder;
use crate::time::ManualClock;

impl RedisStoreBuilder {
    /// Sets a clock that replaces the server's clock, for tests that control the time.
    #[cfg_attr(docsrs, doc(cfg(feature = "conformance")))]
    pub fn manual_clock(mut self, clock: Arc<ManualClock>) -> Self {
        self.clock = Some(clock);
        self
    }

    /// Makes the pages of long logs small, so that a log of a few hundred entries has several. This
    /// has an effect only with [`manual_clock`](Self::manual_clock).
    #[cfg_attr(docsrs, doc(cfg(feature = "conformance")))]
    pub fn small_log_pages(mut self) -> Self {
        self.has_small_log_pages = true;
        self
    }
}
