//! The minimum load that a local Redis must handle. The results of `rl-bench` are at least ten
//! times better. Real times are only judged in a soak test, in which the machine has no other load.
//! Otherwise the tests check that Redis makes each of these decisions.

use std::time::Duration;

use rl_core::{Limit, Origin, Period, RateLimiter, Subject};
use rl_tests::{Bystander, RedisServer, is_soak};
use tokio::time::Instant;

/// Returns a limiter with six periods whose limits are never reached.
async fn limiter(server: &RedisServer) -> RateLimiter {
    let limits = Period::NAMED.map(|period| Limit::new(1_000_000_000, period).unwrap());
    let store = server.patient_store().connect().await.unwrap();
    let limiter = RateLimiter::builder().store(store).deadline(Duration::from_secs(20));
    limits.into_iter().fold(limiter, |limiter, limit| limiter.limit(limit)).build().unwrap()
}

/// Makes decisions with concurrent callers, each on its own subjects.
async fn decide(limiter: &RateLimiter, callers: usize, each: usize) {
    let callers: Vec<_> = (0..callers)
        .map(|caller| {
            let limiter = limiter.clone();
            tokio::spawn(async move {
                for call in 0..each {
                    let subject = Subject::user(&format!("{caller}-{}", call % 10));
                    let decision = limiter.check(&subject, 1).await;
                    assert_eq!(decision.origin(), Origin::Store);
                    assert!(decision.is_allowed());
                }
            })
        })
        .collect();
    for caller in callers {
        caller.await.unwrap();
    }
}

#[tokio::test]
async fn a_decision_on_a_local_redis_adds_less_than_a_millisecond() {
    let server = RedisServer::start();
    let limiter = limiter(&server).await;
    let begun = Instant::now();
    for _ in 0..200 {
        let decision = limiter.check(&Subject::user("alice"), 1).await;
        assert_eq!((decision.origin(), decision.is_allowed()), (Origin::Store, true));
    }
    let mean = begun.elapsed() / 200;
    assert!(mean < Duration::from_millis(1) || !is_soak(), "{mean:?}");
}

/// A decision may take at most 20 µs of the server's processor time.
#[tokio::test]
async fn a_core_of_redis_carries_fifty_thousand_decisions_a_second() {
    const CALLERS: usize = 64;
    const EACH: usize = 150;

    let server = RedisServer::start();
    let limiter = limiter(&server).await;
    decide(&limiter, CALLERS, EACH).await;
    let mut operator = Bystander::new(&server).await;
    let before = processor_time(&mut operator).await;
    decide(&limiter, CALLERS, EACH).await;
    let spent = processor_time(&mut operator).await - before;
    assert!(spent > 0.0, "the server did nothing");
    let rate = (CALLERS * EACH) as f64 / spent;
    assert!(rate > 50_000.0, "{rate} decisions for a second of the server's processor");
}

/// Returns the processor time of the server since its start, in seconds.
async fn processor_time(operator: &mut Bystander) -> f64 {
    let info: String = operator.query("INFO cpu").await;
    let seconds = |kind: &str| -> f64 {
        let line = info.lines().find_map(|line| line.strip_prefix(kind)?.strip_prefix(':'));
        line.unwrap().parse().unwrap()
    };
    seconds("used_cpu_user") + seconds("used_cpu_sys")
}

#[tokio::test]
async fn one_caller_ten_and_a_hundred_are_served_faster_than_the_seed_served_them() {
    let server = RedisServer::start();
    let limiter = limiter(&server).await;
    for (callers, each, seed) in [(1, 250, 250.0), (10, 100, 2_000.0), (100, 25, 5_000.0)] {
        let begun = Instant::now();
        decide(&limiter, callers, each).await;
        let rate = (callers * each) as f64 / begun.elapsed().as_secs_f64();
        assert!(rate > seed || !is_soak(), "{callers} callers: {rate} a second");
    }
}
