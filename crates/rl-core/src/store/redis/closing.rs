//! Closes a store: gives the units that it holds back to the server.

use std::time::Duration;

use tokio::time::timeout;

use super::RedisStore;
use crate::model::{FailureKind, StoreError};

/// The longest time that closing may take.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(5);

impl RedisStore {
    /// Returns all [leased](super::RedisStoreBuilder::lease) units to the server, and leases no
    /// more. Then waits until all charges are given back: those of permits that were dropped, and
    /// those of denied requests on a cluster.
    ///
    /// A service calls it when it shuts down, after its last request. The store continues to decide
    /// afterwards, and asks the server each time. [`RateLimiter::close`](crate::RateLimiter::close)
    /// does the same through the limiter.
    ///
    /// Closing takes one round trip for each subject, with 64 of them at the same time, and at most
    /// 5 seconds. Without leases, and without charges to give back, it does nothing.
    ///
    /// # Errors
    ///
    /// Returns an error if some units could not be returned or given back. They stay charged until
    /// their windows end.
    pub async fn close(&self) -> Result<(), StoreError> {
        let closing = async {
            let returned = self.inner.layers.close().await;
            self.inner.give_back.finish().await;
            returned
        };
        let late = |_| Err(StoreError::new(FailureKind::TimedOut));
        timeout(CLOSE_TIMEOUT, closing).await.unwrap_or_else(late)
    }
}
