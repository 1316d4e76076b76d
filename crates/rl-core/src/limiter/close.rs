//! Closes a limiter: waits for running settlements, and gives back the units that the stores have
//! reserved ahead.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::Notify;

use super::RateLimiter;
use super::permit::both;
use crate::maybe_ready::MaybeReady;
use crate::store::StoreFuture;

/// Counts the settlements that run in tasks of their own.
#[derive(Debug, Default)]
pub(super) struct Settlements {
    running: AtomicUsize,
    idle: Notify,
}

/// A settlement that runs until this is dropped.
#[derive(Debug)]
pub(super) struct Running(Arc<Settlements>);

impl Settlements {
    pub(super) fn begin(self: &Arc<Self>) -> Running {
        self.running.fetch_add(1, Ordering::AcqRel);
        Running(Arc::clone(self))
    }

    async fn finish(&self) {
        let mut idle = std::pin::pin!(self.idle.notified());
        loop {
            // Enabled before the check, so that a settlement that ends in between is not missed.
            idle.as_mut().enable();
            if self.running.load(Ordering::Acquire) == 0 {
                return;
            }
            idle.as_mut().await;
            idle.set(self.idle.notified());
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if self.0.running.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.0.idle.notify_waiters();
        }
    }
}

impl RateLimiter {
    /// Gives back the units that this process has reserved ahead. Call it when a service shuts down, after
    /// its last request.
    ///
    /// It waits for the settlements of [permits](crate::Permit) that were dropped, and
    /// [closes](crate::store::Store::close) the store and its fallback: on Redis, units that were
    /// leased go back to the other instances. The limiter keeps deciding
    /// afterwards, without leases, and so do all limiters on the same store.
    ///
    /// It takes a few round trips, and 5 seconds at most if a store does not answer. A store in memory is
    /// closed without waiting.
    ///
    /// # Examples
    ///
    /// ```
    /// # use rl_core::{Limit, RateLimiter};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let limiter = RateLimiter::builder().limit(Limit::per_hour(1_000)).build()?;
    /// // serve(limiter.clone()).with_graceful_shutdown(..).await?;
    /// limiter.close().await?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// Resolves to an error if some units could not be given back. They stay charged until their windows
    /// end, so a service may log the error and exit.
    pub fn close(&self) -> StoreFuture<()> {
        let this = self.clone();
        MaybeReady::later(async move {
            this.inner.settlements.finish().await;
            let fallback = this.inner.fallback.as_ref().map(|fallback| fallback.store.close());
            both(this.inner.store.close(), fallback.unwrap_or(MaybeReady::ready(Ok(())))).await
        })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;

    use super::*;
    use crate::decision::Decision;
    use crate::model::{Limit, Subject};
    use crate::store::{DecideRequest, MemoryStore, Refund, Renewal, Reset, Store};
    use crate::time::Timestamp;

    /// A store in memory whose refunds take a few turns of the runtime, and which notes that it was closed.
    #[derive(Debug, Default)]
    struct Slow {
        store: MemoryStore,
        refunds: Arc<AtomicUsize>,
        is_closed: Arc<AtomicBool>,
    }

    impl Store for Slow {
        fn decide(&self, request: DecideRequest<'_>) -> StoreFuture<Decision> {
            self.store.decide(request)
        }

        fn refund(&self, refund: Refund<'_>) -> StoreFuture<()> {
            let (refunded, refunds) = (self.store.refund(refund), Arc::clone(&self.refunds));
            MaybeReady::later(async move {
                for _ in 0..10 {
                    tokio::task::yield_now().await;
                }
                refunds.fetch_add(1, Ordering::SeqCst);
                refunded.await
            })
        }

        fn renew(&self, renewal: Renewal<'_>) -> StoreFuture<Option<Timestamp>> {
            self.store.renew(renewal)
        }

        fn reset(&self, reset: Reset<'_>) -> StoreFuture<()> {
            self.store.reset(reset)
        }

        fn close(&self) -> StoreFuture<()> {
            self.is_closed.store(true, Ordering::SeqCst);
            MaybeReady::ready(Ok(()))
        }
    }

    #[tokio::test]
    async fn close_waits_for_settlements_and_closes_the_store_and_the_fallback() {
        let (store, fallback) = (Slow::default(), Slow::default());
        let refunds = Arc::clone(&store.refunds);
        let closed = [Arc::clone(&store.is_closed), Arc::clone(&fallback.is_closed)];
        let limiter = RateLimiter::builder().limit(Limit::per_hour(10)).store(store);
        let limiter = limiter.fallback(fallback, crate::limiter::Share::of_instances(2));
        let limiter = limiter.build().unwrap();
        for _ in 0..3 {
            let permit = limiter.acquire(&Subject::user("alice"), 2).await;
            permit.set_cost(1);
            drop(permit);
        }
        limiter.close().await.unwrap();
        assert_eq!(refunds.load(Ordering::SeqCst), 3);
        assert!(closed.iter().all(|closed| closed.load(Ordering::SeqCst)));
    }
}
