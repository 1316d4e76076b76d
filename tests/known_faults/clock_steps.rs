//! Answers after the clock of a store has stepped back.

use std::sync::Arc;
use std::time::Duration;

use rl_core::store::{DecideRequest, Mode, Namespace, Part, Store};
use rl_core::time::{ManualClock, Timestamp};
use rl_core::{
    Cost, Decision, Limit, MemoryStore, Policy, RateLimiter, RedisStore, RetryAfter, Subject,
};
use rl_tests::RedisServer;

const START: Timestamp = Timestamp::from_secs(1_700_000_000);
const HOUR: Duration = Duration::from_secs(3_600);
const MICROSECOND: Duration = Duration::from_micros(1);

/// A limit of each algorithm that denies a third request.
const LIMITS: [&str; 9] = [
    "2/minute",
    "2/hour:clock",
    "2/minute:sliding-window-counter",
    "2/minute:sliding-window:precision=second",
    "2/minute:sliding-log",
    "2/minute:gcra",
    "2/minute:token-bucket",
    "2/minute:token-bucket:refill=interval",
    "2:concurrency:lease=60seconds",
];

fn policy(limits: &[&str]) -> Policy {
    Policy::new(limits.iter().map(|limit| limit.parse::<Limit>().unwrap())).unwrap()
}

async fn on_redis(server: &RedisServer, clock: &Arc<ManualClock>) -> RedisStore {
    let store = server.patient_store().connections(1).manual_clock(clock.clone());
    store.script_shapes(usize::MAX).connect().await.unwrap()
}

async fn check(store: &dyn Store, policy: &Policy, subjects: &[&Subject]) -> Decision {
    let namespace = Namespace::default();
    let parts: Vec<_> =
        subjects.iter().map(|subject| Part::new(subject, policy, Cost::ONE)).collect();
    store.decide(DecideRequest::new(&namespace, &parts, Mode::Check)).await.unwrap()
}

fn wait_of(denial: &Decision) -> Duration {
    match denial.retry_after() {
        RetryAfter::In(wait) if !denial.is_allowed() => wait,
        other => panic!("{other:?}: expected a denial with a wait, got {denial:?}"),
    }
}

/// Fills a limit an hour ahead, sets the clock right again, and waits as long as the denial
/// reports.
async fn the_reported_wait_is_enough(store: &dyn Store, clock: &ManualClock, policy: &Policy) {
    let subject = Subject::consumer(&policy.limits()[0].limit().to_string());
    clock.set(START.plus_micros(3_600_000_000));
    while check(store, policy, &[&subject]).await.is_allowed() {}
    clock.set(START);
    let denied = check(store, policy, &[&subject]).await;
    assert_eq!(denied.clock_lag(), HOUR, "{policy:?}");
    let limit = denied.limits().next().unwrap();
    assert!(limit.reset_after() >= wait_of(&denied), "{denied:?}");
    clock.advance(wait_of(&denied) - MICROSECOND);
    let early = check(store, policy, &[&subject]).await;
    assert_eq!(wait_of(&early), MICROSECOND, "{policy:?}");
    clock.advance(MICROSECOND);
    let allowed = check(store, policy, &[&subject]).await;
    assert!(allowed.is_allowed(), "{allowed:?}");
    assert_eq!(allowed.clock_lag(), Duration::ZERO);
}

/// Fault: after the clock had been an hour ahead for a second, a denial reported a wait of a
/// minute, and the client was denied again after each of the next sixty waits.
#[tokio::test]
async fn a_wait_after_a_step_back_is_enough_under_every_algorithm() {
    let (server, clock) = (RedisServer::start(), Arc::new(ManualClock::at(START)));
    let memory = MemoryStore::builder().clock(clock.clone()).build();
    let redis = on_redis(&server, &clock).await;
    let many =
        ["2/second", "3/minute", "4/5minutes", "5/10minutes", "6/20minutes", "7/hour", "8/day"];
    let policies = LIMITS.iter().map(|limit| policy(&[limit])).chain([policy(&many)]);
    for policy in policies {
        the_reported_wait_is_enough(&memory, &clock, &policy).await;
        the_reported_wait_is_enough(&redis, &clock, &policy).await;
    }
}

/// Fault: requests of several subjects that Redis decides in one script call had waits without the
/// time by which the clock was behind.
#[tokio::test]
async fn each_subject_of_a_batch_reports_how_far_the_clock_is_behind_it() {
    let (server, clock) = (RedisServer::start(), Arc::new(ManualClock::at(START)));
    let memory = MemoryStore::builder().clock(clock.clone()).build();
    let redis = on_redis(&server, &clock).await;
    let subjects: Vec<_> = (0..6).map(|n| Subject::consumer(&n.to_string())).collect();
    for policy in [policy(&["1/minute"]), policy(&["2/minute", "9/hour:gcra"])] {
        for (seconds, subject) in subjects.iter().enumerate().take(4) {
            clock.set(START.plus_micros(1_000_000 * seconds as u64));
            check(&memory, &policy, &[subject]).await;
            check(&redis, &policy, &[subject]).await;
        }
        clock.set(START);
        for _ in 0..2 {
            let decide = async |store: &dyn Store| {
                let all = subjects.iter().map(|one| {
                    let (policy, one) = (&policy, [one]);
                    async move { check(store, policy, &one).await }
                });
                futures::future::join_all(all).await
            };
            let (rust, lua) = (decide(&memory).await, decide(&redis).await);
            assert_eq!(format!("{rust:#?}"), format!("{lua:#?}"));
            let lags = lua.iter().take(4).map(|decision| decision.clock_lag().as_secs());
            assert_eq!(lags.collect::<Vec<_>>(), [0, 1, 2, 3]);
        }
    }
}

/// Fault: the parts of a request are decided at the latest of their last changes, and no part
/// reported how far the clock was behind that time.
#[tokio::test]
async fn a_request_of_several_parts_reports_how_far_the_clock_is_behind() {
    let (server, clock) = (RedisServer::start(), Arc::new(ManualClock::at(START)));
    let memory = MemoryStore::builder().clock(clock.clone()).build();
    let redis = on_redis(&server, &clock).await;
    // Logs have no fast path, so their parts take another way through the scripts.
    for limits in [&["2/minute"][..], &["2/minute", "9/hour:gcra"], &["2/minute:sliding-log"]] {
        let policy = policy(limits);
        let subject = |name: &str| Subject::consumer(&format!("{name} of {limits:?}"));
        let (ahead, clean) = (subject("ahead"), subject("clean"));
        for store in [&memory as &dyn Store, &redis] {
            clock.set(START.plus_micros(3_600_000_000));
            check(store, &policy, &[&ahead]).await;
            clock.set(START);
            let allowed = check(store, &policy, &[&clean, &ahead]).await;
            assert!(allowed.is_allowed());
            let orders = [[&clean, &ahead], [&ahead, &clean]];
            let together = orders.iter().map(|parts| check(store, &policy, parts));
            for denied in futures::future::join_all(together).await {
                assert!(denied.parts().all(|part| part.limits().len() == limits.len()));
                assert_eq!(denied.clock_lag(), HOUR, "{denied:?}");
                assert!(wait_of(&denied) > HOUR, "{denied:?}");
            }
            let wait = wait_of(&check(store, &policy, &[&clean, &ahead]).await);
            clock.advance(wait);
            assert!(check(store, &policy, &[&clean, &ahead]).await.is_allowed());
        }
    }
}

/// A request in the same millisecond as a later change is no step of the clock. Resets of a minute
/// must not be rounded up to 61 seconds.
#[tokio::test]
async fn a_clock_that_is_a_millisecond_behind_is_not_reported() {
    let (server, clock) = (RedisServer::start(), Arc::new(ManualClock::at(START)));
    let memory = MemoryStore::builder().clock(clock.clone()).build();
    let redis = on_redis(&server, &clock).await;
    let (policy, subject) = (policy(&["9/minute"]), Subject::global());
    for store in [&memory as &dyn Store, &redis] {
        clock.set(START.plus_micros(1_000));
        check(store, &policy, &[&subject]).await;
        clock.set(START);
        let decision = check(store, &policy, &[&subject]).await;
        assert_eq!(decision.clock_lag(), Duration::ZERO);
        let reset = decision.limits().next().unwrap().reset_after();
        assert_eq!(reset, Duration::from_secs(60));
    }
}

/// Fault: a denial that is repeated without a call to Redis lost the time by which the server's
/// clock was behind.
#[tokio::test]
async fn a_repeated_denial_reports_how_far_the_clock_is_behind() {
    let (server, clock) = (RedisServer::start(), Arc::new(ManualClock::at(START)));
    let store = server.patient_store().local_denial(true).manual_clock(clock.clone());
    let store = store.connect().await.unwrap();
    let limiter = RateLimiter::builder().limit(Limit::per_minute(1)).store(store).build().unwrap();
    let alice = Subject::user("alice");
    clock.set(START.plus_micros(3_600_000_000));
    assert!(limiter.check(&alice, 1).await.is_allowed());
    clock.set(START);
    let denied = limiter.check(&alice, 1).await;
    assert_eq!(wait_of(&denied), HOUR + Duration::from_secs(60));
    clock.advance(Duration::from_millis(500));
    let repeated = limiter.check(&alice, 1).await;
    assert_eq!(repeated.origin(), rl_core::Origin::LocalDeny);
    assert_eq!(wait_of(&repeated), wait_of(&denied) - Duration::from_millis(500));
}
