use std::time::Duration;

use futures::StreamExt;
use futures::stream::FuturesUnordered;
use rl_core::{OnFailure, RateLimiter};
use rl_server::grpc::messages::{Code, RateLimitDescriptor, RateLimitOverride, Unit};
use rl_tests::{Bystander, RedisServer, connected, is_soak};
use tokio::time::Instant;

use super::{Served, descriptor, request, user_rules};

/// The default time for which Envoy waits.
const OF_ENVOY: Duration = Duration::from_millis(20);

async fn scripts(bystander: &mut Bystander) -> u64 {
    let calls = bystander.calls().await;
    calls.get("evalsha").copied().unwrap_or(0)
}

/// Fault: after the gateway raised a limit, requests were denied from the denial cache of the earlier
/// limit.
#[tokio::test]
async fn a_cached_denial_is_not_repeated_under_a_limit_that_the_gateway_sets() {
    let server = RedisServer::start();
    let mut bystander = Bystander::new(&server).await;
    let store = connected(server.patient_store().local_denial(true)).await;
    let limiter = RateLimiter::builder().store(store).deadline(Duration::from_secs(60));
    let served = Served::new(user_rules(&["1/day"]), limiter).await;
    let with_limit = |requests_per_unit| {
        let limit = Some(RateLimitOverride { requests_per_unit, unit: Unit::Day.into() });
        request([RateLimitDescriptor { limit, ..descriptor("user", "alice") }])
    };
    let without_limit = || request([descriptor("user", "alice")]);

    for (name, denied) in [("rule", without_limit()), ("override", with_limit(1))] {
        assert_eq!(served.decide(denied.clone()).await.0, Code::Ok, "{name}");
        assert_eq!(served.decide(denied.clone()).await.0, Code::OverLimit, "{name}");
        let before = scripts(&mut bystander).await;
        assert_eq!(served.decide(denied).await.0, Code::OverLimit, "{name}");
        assert_eq!(scripts(&mut bystander).await, before, "{name}: the denial is remembered");
    }
    // The limit of the gateway has used 1 unit.
    let (code, statuses) = served.decide(with_limit(5)).await;
    assert_eq!((code, statuses), (Code::Ok, vec![(Code::Ok, 3)]));
    // The rule's own denial still holds.
    assert_eq!(served.decide(without_limit()).await.0, Code::OverLimit);
}

#[tokio::test]
async fn the_failure_policy_answers_before_envoy_gives_up_if_redis_hangs() {
    for (policy, expected) in [(OnFailure::Allow, Code::Ok), (OnFailure::Reject, Code::OverLimit)] {
        let server = RedisServer::start();
        let store = connected(server.patient_store()).await;
        let limiter = RateLimiter::builder().store(store).on_store_failure(policy);
        let deadline = Duration::from_millis(15);
        let served = Served::new(user_rules(&["1000/day"]), limiter.deadline(deadline)).await;
        server.signal("STOP");
        let mut longest = Duration::ZERO;
        for _ in 0..20 {
            let begun = Instant::now();
            let (code, statuses) = served.decide(request([descriptor("user", "alice")])).await;
            longest = longest.max(begun.elapsed());
            assert_eq!((code, statuses.len()), (expected, 1), "{policy:?}");
        }
        server.signal("CONT");
        println!("{policy:?}: the longest answer took {longest:?}");
        assert!(!is_soak() || longest < OF_ENVOY, "{policy:?}: {longest:?}");
    }
}

/// A reservation is held by the instance that granted it. Another one charges the whole cost.
#[tokio::test]
async fn a_commit_at_another_instance_is_charged_beside_the_hold() {
    let server = RedisServer::start();
    let mut instances = Vec::new();
    for _ in 0..2 {
        let store = connected(server.patient_store()).await;
        let limiter = RateLimiter::builder().store(store).deadline(Duration::from_secs(60));
        instances.push(Served::new(user_rules(&["100/day"]), limiter).await);
    }
    let [one, other] = &*instances else { panic!("two instances") };
    let id = super::kuadrant::reserve(one, 40).await.reservation_id;
    assert_eq!(super::kuadrant::remaining(other).await, 60);
    assert!(!super::kuadrant::commit(other, &id, 25).await);
    assert_eq!(super::kuadrant::remaining(one).await, 35);
    // A commit of 0 at the instance that granted it ends the hold, as its expiry does.
    assert!(super::kuadrant::commit(one, &id, 0).await);
    assert_eq!(super::kuadrant::remaining(other).await, 75);
}

/// An overload must not lift the limits, although the failure policy allows requests.
#[tokio::test]
async fn calls_beyond_what_redis_can_take_are_rejected_and_charged_to_no_limit() {
    let server = RedisServer::start();
    let store = connected(server.patient_store()).await;
    let limiter = RateLimiter::builder().store(store).on_store_failure(OnFailure::Allow);
    let limiter = limiter.deadline(Duration::from_secs(60)).max_in_flight(8);
    let served = Served::new(user_rules(&["10/day"]), limiter).await;
    let call = || served.decide(request([descriptor("user", "alice")]));

    server.signal("STOP");
    let mut calls: FuturesUnordered<_> = (0..40).map(|_| call()).collect();
    for _ in 0..32 {
        assert_eq!(calls.next().await.unwrap().0, Code::OverLimit);
    }
    server.signal("CONT");
    let waited: Vec<_> = calls.map(|(code, _)| code).collect().await;
    assert_eq!(waited, [Code::Ok; 8]);
    let then = [call().await.0, call().await.0, call().await.0];
    assert_eq!(then, [Code::Ok, Code::Ok, Code::OverLimit]);
}
