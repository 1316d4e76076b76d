use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;
use tokio::time::timeout;

use crate::decision::{Origin, RetryAfter};
use crate::limiter::tests::{Delayed, Faulty, on_tokio_time};
use crate::limiter::{BuildError, OnFailure, Share};
use crate::limiter::{RateLimiter, RateLimiterBuilder};
use crate::maybe_ready::MaybeReady;
use crate::model::{Algorithm, Cost, FailureKind, Limit, Period, Refill, StoreError, Subject};
use crate::policy::Policy;
use crate::source::{PolicyFuture, PolicySource};
use crate::store::memory::MemoryStore;
use crate::time::ManualClock;

const DOWN: FailureKind = FailureKind::Unavailable;

fn alice() -> Subject {
    Subject::user("alice")
}

/// Creates the limiter of one of four instances that share a store.
fn on(store: &Arc<Faulty>) -> RateLimiterBuilder {
    let builder = RateLimiter::builder().store(Arc::clone(store));
    builder.fallback(MemoryStore::new(), Share::with_instances(4))
}

#[tokio::test]
async fn four_instances_allow_four_shares_during_an_outage() {
    let store = Arc::new(Faulty::default());
    let fleet: Vec<_> =
        (0..4).map(|_| on(&store).limit(Limit::per_hour(103)).build().unwrap()).collect();
    store.fail_with(DOWN);
    let mut admitted = 0;
    for _ in 0..60 {
        for limiter in &fleet {
            let decision = limiter.check(&alice(), 1).await;
            assert_eq!(decision.origin(), Origin::Fallback(DOWN));
            let limit = decision.limits().next().unwrap();
            assert_eq!((limit.name(), limit.max()), ("hour", 25));
            admitted += u32::from(decision.is_allowed());
        }
    }
    assert_eq!(admitted, 4 * 25);
}

/// If the fallback continued to decide after the outage, instances would never share limits again.
#[tokio::test(start_paused = true)]
async fn the_store_decides_again_when_it_answers_again() {
    let store = Arc::new(Faulty::default());
    let limiter = on(&store).limit(Limit::per_hour(8)).build().unwrap();
    let origin = async || limiter.check(&alice(), 1).await.origin();
    for _ in 0..3 {
        assert_eq!(origin().await, Origin::Store);
        store.fail_with(DOWN);
        assert_eq!(origin().await, Origin::Fallback(DOWN));
        store.fail_with(None);
        tokio::time::advance(Duration::from_secs(1)).await;
        assert_eq!(origin().await, Origin::Store);
    }
    // The store does not count requests that the fallback allowed.
    let usage = limiter.usage(&alice()).await.unwrap();
    assert_eq!(usage.limits().next().unwrap().used(), 6);
}

#[tokio::test(start_paused = true)]
async fn units_go_back_to_the_store_that_took_them() {
    let (store, fallback) = (Arc::new(Faulty::default()), Arc::new(MemoryStore::new()));
    let share = Share::with_instances(4);
    let builder = RateLimiter::builder().limit(Limit::per_hour(40)).store(store.clone());
    let limiter = builder.fallback(fallback.clone(), share).build().unwrap();
    let beside = RateLimiter::builder().limit(Limit::per_hour(10)).store(fallback).build().unwrap();
    let used = async |limiter: &RateLimiter| {
        limiter.usage(&alice()).await.unwrap().limits().next().unwrap().used()
    };

    let of_store = limiter.acquire(&alice(), 5).await;
    store.fail_with(DOWN);
    let of_fallback = limiter.check(&alice(), 5).await;
    let settled_down = limiter.acquire(&alice(), 5).await;
    let settled_up = limiter.acquire(&alice(), 1).await;
    assert!(!settled_up.decision().is_allowed(), "the share of 10 is used up");
    assert_eq!(used(&beside).await, 10);
    limiter.request(&alice()).refund(&of_fallback, &[3]).await.unwrap();
    assert_eq!(used(&beside).await, 7);
    settled_down.set_cost(1);
    drop(settled_down);
    assert_eq!(used(&beside).await, 3);

    let of_fallback = limiter.acquire(&alice(), 2).await;
    store.fail_with(None);
    tokio::time::advance(Duration::from_secs(1)).await;
    assert_eq!((used(&limiter).await, used(&beside).await), (5, 5));
    // Units beyond the estimate are charged to the store that made the decision.
    of_fallback.set_cost(4);
    drop(of_fallback);
    of_store.set_cost(1);
    drop(of_store);
    assert_eq!((used(&limiter).await, used(&beside).await), (1, 7));
}

/// Fault: only late replies of the store were noticed, so such a place stayed occupied until its
/// lease ended.
#[tokio::test(start_paused = true)]
async fn a_place_that_the_fallback_grants_after_its_request_has_ended_is_released() {
    let store = Arc::new(Faulty::default());
    let fallback = Arc::new(Delayed(on_tokio_time(), |_| Duration::from_millis(2)));
    let limit = || Limit::concurrency(1).unwrap();
    let builder = RateLimiter::builder().limit(limit()).store(store.clone());
    let limiter = builder.fallback(fallback.clone(), Share::with_instances(1)).build().unwrap();
    let beside = RateLimiter::builder().limit(limit()).store(fallback).build().unwrap();
    store.fail_with(DOWN);
    let mut request = Box::pin(async { limiter.acquire(&alice(), 1).await });
    assert!(timeout(Duration::ZERO, &mut request).await.is_err());
    let is_free = async || beside.peek(&alice(), 1).await.is_allowed();
    assert!(!is_free().await, "the fallback holds a place for the request");
    drop(request);
    tokio::time::advance(Duration::from_millis(2)).await;
    tokio::task::yield_now().await;
    assert!(is_free().await);
}

#[tokio::test]
async fn a_place_that_the_fallback_granted_is_released_there() {
    let store = Arc::new(Faulty::default());
    let limiter = on(&store).limit(Limit::concurrency(8).unwrap()).build().unwrap();
    store.fail_with(DOWN);
    for _ in 0..5 {
        let held = [limiter.acquire(&alice(), 1).await, limiter.acquire(&alice(), 1).await];
        assert!(held.iter().all(|permit| permit.decision().is_allowed()));
        assert!(!limiter.acquire(&alice(), 1).await.decision().is_allowed());
    }
}

/// Fault: a share of less than the cost rejected every request with 503, though the client was
/// within its limit.
#[tokio::test]
async fn a_share_grants_the_cost_of_one_request() {
    let store = Arc::new(Faulty::default());
    let limiter = |limit| on(&store).limit(limit).build().unwrap();
    store.fail_with(DOWN);
    let gcra = Limit::per_minute(60).with_algorithm(Algorithm::Gcra { burst: 3 }).unwrap();
    for (limit, cost) in [(Limit::per_hour(3), 1), (Limit::per_hour(10), 3), (gcra, 1)] {
        let limiter = limiter(limit);
        let allowed = limiter.check(&alice(), cost).await;
        assert_eq!((allowed.is_allowed(), allowed.origin()), (true, Origin::Fallback(DOWN)));
        let denied = limiter.check(&alice(), cost).await;
        assert_eq!((denied.is_allowed(), denied.origin()), (false, Origin::Fallback(DOWN)));
        assert!(matches!(denied.retry_after(), RetryAfter::In(_)), "{limit}");
        let [status] = &denied.limits().collect::<Vec<_>>()[..] else { panic!("one limit") };
        assert_eq!((status.configured(), status.max(), status.remaining()), (limit, cost, 0));
    }
    // A cost above the limit itself, not only above the share, is never granted.
    for (limit, cost) in [(Limit::per_hour(0), 1), (Limit::per_hour(3), 4)] {
        let denied = limiter(limit).check(&alice(), cost).await;
        assert_eq!(denied.origin(), Origin::Policy, "{limit}");
        assert_eq!(denied.retry_after(), RetryAfter::Never);
    }
}

#[tokio::test]
async fn a_request_is_allowed_if_configured_when_the_fallback_cannot_decide() {
    let (store, fallback) = (Arc::new(Faulty::default()), Arc::new(Faulty::default()));
    let builder = RateLimiter::builder().limit(Limit::per_hour(8)).limit(Limit::per_day(1));
    let builder = builder.store(store.clone()).on_fallback_failure(OnFailure::Allow);
    let limiter = builder.fallback(fallback.clone(), Share::with_instances(2)).build().unwrap();
    store.fail_with(DOWN);
    fallback.fail_with(FailureKind::TimedOut);
    let passed = limiter.check(&alice(), 1).await;
    let origin = Origin::FailedOpen(FailureKind::TimedOut);
    assert_eq!((passed.is_allowed(), passed.origin()), (true, origin));
    // The policy alone still denies a cost above its limit.
    assert!(!limiter.check(&alice(), 9).await.is_allowed());
}

/// A source that always fails.
#[derive(Debug)]
struct FailingSource;

impl PolicySource for FailingSource {
    fn policy(&self, _: &Subject) -> PolicyFuture {
        MaybeReady::ready(Err(StoreError::new(DOWN)))
    }
}

#[tokio::test]
async fn a_request_without_a_policy_is_decided_like_one_that_the_fallback_cannot_decide() {
    let builder = || RateLimiter::builder().policies(FailingSource);
    let with_fallback = || builder().fallback(MemoryStore::new(), Share::with_instances(2));
    let rejecting = with_fallback().build().unwrap();
    let allowing = with_fallback().on_fallback_failure(OnFailure::Allow).build().unwrap();
    let alone = builder().on_fallback_failure(OnFailure::Reject).build().unwrap();
    for (limiter, origin) in [
        (rejecting, Origin::FailedClosed(DOWN)),
        (allowing, Origin::FailedOpen(DOWN)),
        (alone, Origin::FailedOpen(DOWN)),
    ] {
        assert_eq!(limiter.check(&alice(), 1).await.origin(), origin);
    }
}

#[test]
fn a_fallback_cannot_fall_back_on_itself() {
    let builder = on(&Arc::default()).limit(Limit::per_hour(8));
    let error = builder.on_fallback_failure(OnFailure::Fallback).build().unwrap_err();
    assert_eq!(error, BuildError::FallbackOfFallback);
    assert!(error.to_string().contains("expected `OnFailure::Allow` or `OnFailure::Reject`"));
}

#[tokio::test]
async fn a_fallback_that_fails_too_rejects_requests() {
    let (store, fallback) = (Arc::new(Faulty::default()), Arc::new(Faulty::default()));
    let builder = RateLimiter::builder().limit(Limit::per_hour(8)).store(store.clone());
    let limiter = builder.fallback(fallback.clone(), Share::with_instances(2)).build().unwrap();
    store.fail_with(DOWN);
    fallback.fail_with(FailureKind::TimedOut);
    let denied = limiter.check(&alice(), 1).await;
    assert_eq!(denied.origin(), Origin::FailedClosed(FailureKind::TimedOut));
}

/// A fallback is for outages. A damaged value may have been caused by a client, so such a request
/// is rejected by default.
#[tokio::test]
async fn a_configuration_failure_does_not_fall_back() {
    let store = Arc::new(Faulty::default());
    let limiter = on(&store).limit(Limit::per_hour(8)).build().unwrap();
    store.fail_with(FailureKind::Corrupt);
    let denied = limiter.check(&alice(), 1).await;
    assert_eq!(denied.origin(), Origin::FailedClosed(FailureKind::Corrupt));
}

fn any_limit() -> impl Strategy<Value = Limit> {
    let period = (1..=10_000_u64).prop_map(|millis| Period::from_millis(millis).unwrap());
    let algorithms = prop_oneof![
        Just(Algorithm::FixedWindow { anchor: crate::model::Anchor::FirstRequest }),
        Just(Algorithm::SlidingLog),
        Just(Algorithm::SlidingWindowCounter),
        (1..=400_u64).prop_map(|burst| Algorithm::Gcra { burst }),
        (1..=400_u64)
            .prop_map(|capacity| Algorithm::TokenBucket { capacity, refill: Refill::Greedy }),
    ];
    (0..=400_u64, period, algorithms).prop_filter_map("a limit", |(max, period, algorithm)| {
        Limit::new(max, period).unwrap().with_algorithm(algorithm).ok()
    })
}

proptest! {
    /// Under every algorithm, the shares of all idle instances together are within the limit, or
    /// each of them is one unit.
    #[test]
    fn a_share_is_the_limit_divided_by_the_instances_or_one_unit(limit in any_limit(), instances in 1..=20_u32) {
        let policy = Policy::new([limit]).unwrap();
        let share = Share::with_instances(instances).of(&policy, 1);
        let part = share.limits()[0].limit();
        let instances = u64::from(instances);
        let share_of = |whole: u64| (whole / instances).max(1).min(whole);
        prop_assert_eq!(part.max(), share_of(limit.max()));
        prop_assert_eq!(part.capacity(), share_of(limit.capacity()));
        prop_assert!(part.shares_state_with(limit));

        let clock = Arc::new(ManualClock::default());
        let store = MemoryStore::builder().clock(clock).build();
        let alone = RateLimiter::builder().policies(share).store(store).build().unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let granted = runtime.block_on(alone.request(&alice()).cost(Cost::new(1_000)).check_up_to()).granted();
        prop_assert!(granted <= share_of(limit.capacity()));
    }
}
