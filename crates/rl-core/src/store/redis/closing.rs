//! Closes a store: gives the units that it holds back to the server.

use super::RedisStore;
#[cfg(feature = "redis-cluster")]
use super::across_slots::join_all;
#[cfg(feature = "redis-cluster")]
use crate::maybe_ready::MaybeReady;
use crate::model::StoreError;

impl RedisStore {
    /// Returns all [leased](super::RedisStoreBuilder::lease) units to the server, and leases no
    /// more. On a cluster, also waits until the charges of denied requests are given back.
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
        #[cfg(feature = "redis-cluster")]
        {
            let layers = self.inner.layers.clone();
            let leases = MaybeReady::later(async move { layers.close().await });
            // Both are awaited at the same time, because each may take 5 seconds.
            let closed = join_all(vec![leases, self.inner.across_slots.close()]).await;
            closed.into_iter().collect()
        }
        #[cfg(not(feature = "redis-cluster"))]
        self.inner.layers.close().await
    }
}
