use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use crate::decision::Decision;
use crate::limiter::{RateLimiter, Share};
use crate::maybe_ready::MaybeReady;
use crate::model::{Limit, Subject};
use crate::store::memory::MemoryStore;
use crate::store::{DecideRequest, LeaseStatus, Renewal, Reset, Settlement, Store, StoreFuture};
use crate::time::Timestamp;

/// A store in memory that records that it was closed, and whose refunds take a few turns of the
/// runtime.
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

    fn settle(&self, settlements: &[Settlement<'_>]) -> StoreFuture<LeaseStatus> {
        let (refunded, refunds) = (self.store.settle(settlements), Arc::clone(&self.refunds));
        MaybeReady::later(async move {
            for _ in 0..10 {
                tokio::task::yield_now().await;
            }
            refunds.fetch_add(1, Ordering::SeqCst);
            refunded.await
        })
    }

    fn renew(&self, renewal: Renewal<'_>) -> StoreFuture<LeaseStatus<Timestamp>> {
        self.store.renew(renewal)
    }

    fn reset(&self, resets: &[Reset<'_>]) -> StoreFuture<()> {
        self.store.reset(resets)
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
    let limiter = limiter.fallback(fallback, Share::with_instances(2));
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
