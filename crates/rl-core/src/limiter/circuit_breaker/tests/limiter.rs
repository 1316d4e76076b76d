//! The circuit breaker of a limiter in front of a store whose replies take time.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};
use std::time::Duration;

use tokio::task::{JoinSet, yield_now};
use tokio::time::{Instant, advance};

use super::super::state::{FAILURE_THRESHOLD, FIRST_WAIT, LONGEST_WAIT};
use super::DOWN;
use crate::decision::{Decision, Origin};
use crate::limiter::{OnFailure, RateLimiter, Share};
use crate::maybe_ready::MaybeReady;
use crate::model::{FailureKind, Limit, StoreError, Subject};
use crate::store::memory::MemoryStore;
use crate::store::{DecideRequest, LeaseStatus, Renewal, Reset, Settlement, Store, StoreFuture};
use crate::time::Timestamp;

const ANSWERS: u8 = 0;
const FAILS: u8 = 1;
const HANGS: u8 = 2;
const IS_FULL: u8 = 3;

/// A store whose replies take time.
#[derive(Debug, Default)]
struct Remote {
    memory: MemoryStore,
    does: AtomicU8,
    asked: AtomicUsize,
}

impl Remote {
    fn does(&self, what: u8) {
        self.does.store(what, Ordering::SeqCst);
    }

    fn asked(&self) -> usize {
        self.asked.swap(0, Ordering::SeqCst)
    }
}

impl Store for Remote {
    fn decide(&self, request: DecideRequest<'_>) -> StoreFuture<Decision> {
        let decision = self.memory.decide(request);
        self.asked.fetch_add(1, Ordering::SeqCst);
        let does = self.does.load(Ordering::SeqCst);
        MaybeReady::later(async move {
            yield_now().await;
            match does {
                ANSWERS => decision.await,
                FAILS => Err(StoreError::new(DOWN)),
                IS_FULL => Err(StoreError::new(FailureKind::OutOfMemory)),
                _ => std::future::pending().await,
            }
        })
    }

    fn settle(&self, settlements: &[Settlement<'_>]) -> StoreFuture<LeaseStatus> {
        self.memory.settle(settlements)
    }

    fn renew(&self, renewal: Renewal<'_>) -> StoreFuture<LeaseStatus<Timestamp>> {
        self.memory.renew(renewal)
    }

    fn reset(&self, resets: &[Reset<'_>]) -> StoreFuture<()> {
        self.memory.reset(resets)
    }
}

fn limiter(limit: Limit) -> (Arc<Remote>, RateLimiter) {
    let remote = Arc::new(Remote::default());
    let limiter = RateLimiter::builder().limit(limit).store(Arc::clone(&remote)).build().unwrap();
    (remote, limiter)
}

/// Sends `requests` concurrent requests, and returns the origins of their decisions.
async fn at_once(limiter: &RateLimiter, requests: usize) -> Vec<Origin> {
    let mut asking = JoinSet::new();
    for _ in 0..requests {
        let limiter = limiter.clone();
        asking.spawn(async move { limiter.check(&Subject::user("alice"), 1).await.origin() });
    }
    asking.join_all().await
}

async fn until_open(remote: &Remote, limiter: &RateLimiter) {
    remote.does(FAILS);
    for _ in 0..FAILURE_THRESHOLD {
        at_once(limiter, 1).await;
    }
    assert_eq!(remote.asked(), FAILURE_THRESHOLD as usize);
    at_once(limiter, 100).await;
    assert_eq!(remote.asked(), 0, "open");
}

const WAIT: Duration = Duration::from_millis(FIRST_WAIT);

#[tokio::test(start_paused = true)]
async fn one_of_a_thousand_concurrent_requests_is_the_probe() {
    let (remote, limiter) = limiter(Limit::per_hour(10_000));
    for does in [FAILS, HANGS, ANSWERS] {
        until_open(&remote, &limiter).await;
        advance(WAIT).await;
        remote.does(does);
        let origins = at_once(&limiter, 1_000).await;
        assert_eq!(remote.asked(), 1);
        let by_store = origins.iter().filter(|origin| **origin == Origin::Store).count();
        assert_eq!(by_store, usize::from(does == ANSWERS));
        // Closes the breaker for the next round.
        advance(WAIT * 2).await;
        remote.does(ANSWERS);
        at_once(&limiter, 1).await;
        assert_eq!(at_once(&limiter, 10).await, [Origin::Store; 10]);
        remote.asked();
    }
}

/// If the client that sent the probe disconnects, the breaker must not stay open for ever.
#[tokio::test(start_paused = true)]
async fn another_request_probes_after_the_client_of_a_probe_disconnects() {
    let (remote, limiter) = limiter(Limit::per_hour(10_000));
    until_open(&remote, &limiter).await;
    advance(WAIT).await;
    remote.does(HANGS);
    for _ in 0..50 {
        let alice = Subject::user("alice");
        let mut probe = limiter.check(&alice, 1);
        std::future::poll_fn(|cx| {
            assert!(std::pin::Pin::new(&mut probe).poll(cx).is_pending());
            std::task::Poll::Ready(())
        })
        .await;
        assert_eq!(remote.asked(), 1);
        at_once(&limiter, 10).await;
        assert_eq!(remote.asked(), 0);
        drop(probe);
    }
    assert_eq!(limiter.stats().in_flight, 0);
    remote.does(ANSWERS);
    assert_eq!(at_once(&limiter, 1).await, [Origin::Store]);
}

/// Under load, few calls reach a store during a long outage. The store decides again soon after it
/// has recovered.
#[tokio::test(start_paused = true)]
async fn a_failing_store_is_probed_a_few_times_a_second_and_decides_soon_after_its_recovery() {
    let (remote, limiter) = limiter(Limit::per_hour(1_000_000));
    for does in [FAILS, HANGS] {
        until_open(&remote, &limiter).await;
        remote.does(does);
        let mut asking = JoinSet::new();
        // One request in each millisecond, for ten seconds.
        for _ in 0..10_000 {
            let limiter = limiter.clone();
            asking.spawn(async move {
                let asked = Instant::now();
                limiter.check(&Subject::user("alice"), 1).await;
                // The test's clock advances by 1 ms at a time, so the deadline of 100 ms fires
                // within 101 ms. Then the request yields once.
                let took = asked.elapsed();
                assert!(took <= Duration::from_millis(102), "{took:?}");
            });
            advance(Duration::from_millis(1)).await;
        }
        while let Some(done) = asking.join_next().await {
            done.unwrap();
        }
        let asked = remote.asked();
        assert!((30..=110).contains(&asked), "{asked} in 10 s");

        remote.does(ANSWERS);
        let back = Instant::now();
        while at_once(&limiter, 1).await != [Origin::Store] {
            advance(Duration::from_millis(1)).await;
        }
        assert!(
            back.elapsed() <= Duration::from_millis(LONGEST_WAIT + 100),
            "{:?}",
            back.elapsed()
        );
        assert_eq!(at_once(&limiter, 1_000).await, [Origin::Store; 1_000]);
        remote.asked();
    }
}

#[tokio::test(start_paused = true)]
async fn a_store_that_hangs_delays_requests_for_three_deadlines() {
    let (remote, limiter) = limiter(Limit::per_hour(10_000));
    remote.does(HANGS);
    let begun = Instant::now();
    let mut asking = JoinSet::new();
    while limiter.pipeline.breaker.try_acquire().is_ok() {
        let limiter = limiter.clone();
        asking.spawn(async move { limiter.check(&Subject::user("alice"), 1).await });
        advance(Duration::from_millis(1)).await;
        yield_now().await;
    }
    let took = begun.elapsed().as_millis();
    assert!((300..=310).contains(&took), "{took} ms");
}

#[tokio::test(start_paused = true)]
async fn no_more_decisions_wait_than_are_allowed() {
    let remote = Arc::new(Remote::default());
    let builder = RateLimiter::builder().limit(Limit::per_hour(10_000)).store(remote.clone());
    let limiter = builder.max_in_flight(10).build().unwrap();
    remote.does(HANGS);
    let waiting = {
        let limiter = limiter.clone();
        tokio::spawn(async move { at_once(&limiter, 10).await })
    };
    while limiter.stats().in_flight < 10 {
        yield_now().await;
    }
    let asked = Instant::now();
    let overloaded = Origin::FailedClosed(FailureKind::Overloaded);
    assert_eq!(at_once(&limiter, 1_000).await, [overloaded; 1_000]);
    assert_eq!((asked.elapsed(), limiter.stats().in_flight), (Duration::ZERO, 10));
    waiting.await.unwrap();
    assert_eq!(limiter.stats().in_flight, 0);
    // Overload is no failure of the store: calls to it continue.
    remote.does(ANSWERS);
    assert_eq!(at_once(&limiter, 10).await, [Origin::Store; 10]);
}

/// A fallback may be a server too, and may hang as well.
#[tokio::test(start_paused = true)]
async fn no_more_decisions_wait_for_the_fallback_than_are_allowed() {
    let remotes = [Arc::new(Remote::default()), Arc::new(Remote::default())];
    let builder = RateLimiter::builder().limit(Limit::per_hour(10_000)).store(remotes[0].clone());
    let builder = builder.fallback(remotes[1].clone(), Share::with_instances(1));
    let limiter = builder.max_in_flight(10).build().unwrap();
    until_open(&remotes[0], &limiter).await;
    remotes[1].asked();
    remotes[1].does(HANGS);
    let mut waiting = {
        let limiter = limiter.clone();
        tokio::spawn(async move { at_once(&limiter, 1_000).await })
    };
    while remotes[1].asked() == 0 || limiter.stats().in_flight < 10 {
        yield_now().await;
    }
    let origins = (&mut waiting).await.unwrap();
    let of = |kind| origins.iter().filter(|o| **o == Origin::FailedClosed(kind)).count();
    assert_eq!((of(FailureKind::TimedOut), of(FailureKind::Overloaded)), (10, 990));
    assert_eq!(limiter.stats().in_flight, 0);
}

/// Fault: the decisions that waited for the store took the slots of the fallback, so it decided
/// nothing.
#[tokio::test(start_paused = true)]
async fn a_fallback_on_a_server_decides_while_the_store_is_overloaded() {
    let remotes = [Arc::new(Remote::default()), Arc::new(Remote::default())];
    let builder = RateLimiter::builder().limit(Limit::per_hour(10_000)).store(remotes[0].clone());
    let builder = builder.fallback(remotes[1].clone(), Share::with_instances(1));
    let limiter = builder.max_in_flight(10).build().unwrap();
    remotes[0].does(HANGS);
    let waiting = {
        let limiter = limiter.clone();
        tokio::spawn(async move { at_once(&limiter, 10).await })
    };
    while limiter.stats().in_flight < 10 {
        yield_now().await;
    }
    let fallback = Origin::Fallback(FailureKind::Overloaded);
    assert_eq!(at_once(&limiter, 10).await, [fallback; 10]);
    waiting.await.unwrap();
}

/// One client can fill a store. A store that is full still decides the requests that it denies.
#[tokio::test(start_paused = true)]
async fn a_full_store_is_called_for_each_request_and_ends_an_outage() {
    let remote = Arc::new(Remote::default());
    let builder = RateLimiter::builder().limit(Limit::per_hour(10_000)).store(remote.clone());
    let limiter = builder.on_overload(OnFailure::Allow).build().unwrap();
    let full = Origin::FailedOpen(FailureKind::OutOfMemory);
    remote.does(IS_FULL);
    assert_eq!(at_once(&limiter, 100).await, [full; 100]);
    assert_eq!(remote.asked(), 100);

    remote.does(FAILS);
    until_open(&remote, &limiter).await;
    remote.does(IS_FULL);
    advance(Duration::from_millis(LONGEST_WAIT)).await;
    assert_eq!(at_once(&limiter, 1).await, [full], "a probe");
    remote.asked();
    assert_eq!(at_once(&limiter, 100).await, [full; 100]);
    assert_eq!(remote.asked(), 100);
}
