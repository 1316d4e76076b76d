//! Denials for which no counter is read: blocks, limits of 0, and costs above a limit. They apply
//! even while Redis is down.

use std::time::Duration;

use rl_core::time::Timestamp;
use rl_core::{
    Decision, Limit, OnFailure, Origin, Policy, RateLimiter, RateLimiterBuilder, Realm, RedisStore,
    RetryAfter, Subject,
};
use rl_records::{CallLimits, RecordContent, RecordSource, Records};
use rl_tests::{Bystander, RedisServer, connected};

use super::GIVE_UP;

/// Returns a policy of three requests per hour. Some subjects have policies that always deny.
fn policy_of(subject: &Subject) -> Policy {
    let three = Policy::new([Limit::per_hour(3)]).unwrap();
    match subject.id().as_text() {
        Some("zero") => Policy::new([Limit::per_second(9), Limit::per_day(0)]).unwrap(),
        Some("blocked") => three.blocked_until(None),
        // The block ends in the year 2255.
        Some("blocked for a time") => three.blocked_until(Timestamp::from_micros(1 << 53)),
        _ => three,
    }
}

/// Returns a limiter that fails open when Redis is down.
async fn limiter(server: &RedisServer) -> RateLimiter {
    builder(RedisStore::connect(&server.url()).await.unwrap()).build().unwrap()
}

fn builder(store: RedisStore) -> RateLimiterBuilder {
    // On a busy machine, this process may get too little CPU time. The limiter may then take the
    // outage for an overload, and would reject requests by default.
    let builder = RateLimiter::builder().on_overload(OnFailure::Allow).store(store);
    builder.policies(|subject: &Subject| Some(policy_of(subject)))
}

fn assert_closed(decision: &Decision) {
    assert_eq!((decision.is_allowed(), decision.origin()), (false, Origin::Policy), "{decision:?}");
    assert_eq!(decision.granted(), 0);
}

/// Asserts that every operation denies the subjects that have to be denied, and that other subjects
/// are allowed. Returns the origins of the decisions on the other subjects.
async fn assert_all_are_closed_out(limiter: &RateLimiter) -> Vec<Origin> {
    let mut others = Vec::new();
    for round in 0..5 {
        for (id, cost) in [("zero", 1), ("blocked", 1), ("blocked for a time", 1), ("costly", 4)] {
            let subject = Subject::user(id);
            assert_closed(&limiter.check(&subject, cost).await);
            assert_closed(&limiter.peek(&subject, cost).await);
            assert_closed(limiter.acquire(&subject, cost).await.decision());
            let (at_most, queue) = (Duration::from_secs(60), 10);
            assert_closed(&limiter.request(&subject).cost(cost).wait(at_most, queue).check().await);
            assert_closed(
                &limiter.request(&subject).policy(&policy_of(&subject)).cost(cost).check().await,
            );
            if id != "costly" {
                assert_closed(&limiter.request(&subject).cost(cost).check_up_to().await);
            }
        }
        let other = limiter.check(&Subject::user(&format!("other-{round}")), 1).await;
        assert!(other.is_allowed(), "{other:?}");
        others.push(other.origin());
    }
    others
}

fn all_failed_open(origins: &[Origin]) -> bool {
    origins.iter().all(|origin| matches!(origin, Origin::FailedOpen(_)))
}

#[tokio::test]
async fn blocks_hold_when_redis_is_killed() {
    let mut server = RedisServer::start();
    let store = RedisStore::builder(&server.url()).response_timeout(GIVE_UP);
    // Calls to a killed server fail before the deadline, so it can be long enough for a busy
    // machine.
    let limiter = builder(connected(store).await).deadline(GIVE_UP).build().unwrap();
    let before = assert_all_are_closed_out(&limiter).await;
    assert_eq!(before, [Origin::Store; 5]);
    server.stop();
    let during = assert_all_are_closed_out(&limiter).await;
    assert!(all_failed_open(&during), "{during:?}");
}

#[tokio::test]
async fn blocks_hold_when_redis_is_frozen() {
    let server = RedisServer::start();
    let limiter = limiter(&server).await;
    server.signal("STOP");
    let during = assert_all_are_closed_out(&limiter).await;
    server.signal("CONT");
    assert!(all_failed_open(&during), "{during:?}");
}

#[tokio::test]
async fn blocks_hold_when_redis_is_out_of_memory() {
    let server = RedisServer::start();
    let limiter = limiter(&server).await;
    let mut operator = Bystander::new(&server).await;
    operator.query::<()>("CONFIG SET maxmemory 1").await;
    let during = assert_all_are_closed_out(&limiter).await;
    assert!(all_failed_open(&during), "{during:?}");
}

#[tokio::test]
async fn blocks_hold_when_the_service_starts_without_redis() {
    let server = RedisServer::stopped();
    let limiter = limiter(&server).await;
    let during = assert_all_are_closed_out(&limiter).await;
    assert!(all_failed_open(&during), "{during:?}");
}

/// The blocks are in the database, which is not stopped.
#[tokio::test]
async fn consumers_blocked_by_records_stay_blocked_when_redis_is_killed() {
    let records = Records::connect("sqlite::memory:").await.unwrap();
    let (begin, end) = (Timestamp::EPOCH, Timestamp::from_micros(1 << 53));
    let zero = RecordContent::new("zero", begin, end, CallLimits::BLOCKED);
    for record in [zero, RecordContent::block("blocked", begin, end)] {
        records.create(record, "alice").await.unwrap();
    }
    let mut server = RedisServer::start();
    let store = server.patient_store().connect().await.unwrap();
    let source = RecordSource::builder(&records).start();
    // The first look-up of a record may take longer than the usual deadline of a decision.
    let deadline = Duration::from_secs(60);
    let builder = RateLimiter::builder().policies(source).store(store).deadline(deadline);
    let limiter = builder.build().unwrap();
    server.stop();
    for _ in 0..5 {
        for (id, is_known_to_end) in [("zero", false), ("blocked", true)] {
            let denied = limiter.check(&Subject::new(Realm::Consumer, id), 1).await;
            assert_closed(&denied);
            assert_eq!(matches!(denied.retry_after(), RetryAfter::In(_)), is_known_to_end, "{id}");
        }
    }
}
