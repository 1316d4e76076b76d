//! Limits that shared their state by mistake, and counters that were lost.

use std::sync::Arc;
use std::time::Duration;

use rl_core::store::{Layout, Store};
use rl_core::time::ManualClock;
use rl_core::{
    Decision, FailureKind, Limit, MemoryStore, Origin, Period, Policy, RateLimiter, RedisStore,
    Subject,
};
use rl_tests::RedisServer;
use rl_tests::web::new_year;

fn policy(limits: &[&str]) -> Policy {
    Policy::new(limits.iter().map(|limit| limit.parse().unwrap())).unwrap()
}

fn limiter(store: Arc<dyn Store>) -> RateLimiter {
    let builder = RateLimiter::builder().limit(Limit::per_day(9)).store(store);
    builder.deadline(Duration::from_secs(60)).build().unwrap()
}

/// Returns a memory store and a packed Redis store with the same clock.
async fn stores(redis: &RedisServer) -> (Arc<ManualClock>, [Arc<dyn Store>; 2]) {
    let clock = new_year();
    let memory = MemoryStore::builder().clock(clock.clone()).build();
    let packed = RedisStore::builder(&redis.url()).manual_clock(clock.clone());
    let packed = packed.connection_wait(Duration::from_secs(60)).connect().await.unwrap();
    (clock, [Arc::new(memory), Arc::new(packed)])
}

/// Returns the units used under each limit.
fn used(decision: &Decision) -> Vec<u64> {
    decision.limits().map(|limit| limit.used()).collect()
}

/// Returns the names of the limits that deny.
fn over(decision: &Decision) -> Vec<&str> {
    decision.limits().filter(|limit| limit.is_over()).map(|limit| limit.name()).collect()
}

/// Fault: limits of requests and of tokens over the same period shared their state, so the policy
/// of a metered API could not be built.
#[tokio::test]
async fn requests_and_tokens_over_one_minute_are_limited_apart() {
    let redis = RedisServer::start();
    let of = |builder: fn(&str) -> rl_core::RedisStoreBuilder| {
        builder(&redis.url()).connection_wait(Duration::from_secs(60))
    };
    let stores: [Arc<dyn Store>; 4] = [
        Arc::new(MemoryStore::new()),
        Arc::new(of(RedisStore::builder).connect().await.unwrap()),
        Arc::new(of(RedisStore::builder).prefix("leased").lease(100).connect().await.unwrap()),
        Arc::new(of(RedisStore::builder).layout(Layout::Readable).connect().await.unwrap()),
    ];
    let metered = policy(&["3/hour:requests", "100/hour"]);
    for store in stores {
        let limiter = limiter(store);
        let many = Subject::user("many-requests");
        for count in 1..=3 {
            let decision = limiter.request(&many).policy(&metered).cost(30).check().await;
            assert_eq!((decision.is_allowed(), used(&decision)), (true, vec![count, 30 * count]));
        }
        for cost in [1, 10, 11] {
            let denied = limiter.request(&many).policy(&metered).cost(cost).check().await;
            let both =
                if cost == 11 { vec!["hour:requests", "hour"] } else { vec!["hour:requests"] };
            assert_eq!((over(&denied), used(&denied)), (both, vec![3, 90]));
        }

        let large = Subject::user("large-requests");
        assert!(limiter.request(&large).policy(&metered).cost(99).check().await.is_allowed());
        let denied = limiter.request(&large).policy(&metered).cost(2).check().await;
        assert_eq!((over(&denied), used(&denied)), (vec!["hour"], vec![1, 99]));
        let last = limiter.request(&large).policy(&metered).check().await;
        assert_eq!((last.is_allowed(), used(&last)), (true, vec![2, 100]));
    }
}

#[tokio::test]
async fn requests_and_tokens_count_apart_under_every_algorithm() {
    let redis = RedisServer::start();
    let (_, stores) = stores(&redis).await;
    for store in stores {
        let limiter = limiter(store);
        for algorithm in [
            "/hour",
            "/hour:clock",
            "/hour:clock:offset=minute",
            "/hour:sliding-log",
            "/hour:sliding-window:precision=minute",
            "/hour:sliding-window-counter",
            "/hour:token-bucket",
            "/hour:token-bucket:refill=interval",
            "/hour:gcra",
            ":concurrency",
        ] {
            let subject = Subject::user(algorithm);
            let (requests, units) = (format!("5{algorithm}:requests"), format!("50{algorithm}"));
            let (both, requests, units) =
                (policy(&[&requests, &units]), policy(&[&requests]), policy(&[&units]));
            for under in [&both, &requests, &units, &both] {
                assert!(
                    limiter.request(&subject).policy(under).cost(7).check().await.is_allowed(),
                    "{under}"
                );
            }
            let peek = limiter.request(&subject).policy(&both).cost(0).check().await;
            assert_eq!(used(&peek), [3, 21], "{both}");
        }
    }
}

/// Fault: if a subject had more than 16 states of other policies, the oldest state was dropped. A
/// client that could choose among 17 policies could in this way reset its own daily limit.
#[tokio::test]
async fn a_daily_limit_holds_beside_17_policies_of_the_same_subject() {
    let redis = RedisServer::start();
    let (clock, stores) = stores(&redis).await;
    for store in stores {
        let (limiter, client) = (limiter(store), Subject::user("client"));
        let daily = policy(&["1/day"]);
        assert!(limiter.request(&client).policy(&daily).check().await.is_allowed());
        let others = (1..=20).map(|n| {
            let period = Period::from_millis(2 * Period::DAY.as_millis() - n * 3_600_000).unwrap();
            Policy::new([Limit::new(9, period).unwrap()]).unwrap()
        });
        let mut origins = Vec::new();
        for other in others {
            origins.push(limiter.request(&client).policy(&other).check().await.origin());
            let denied = limiter.request(&client).policy(&daily).check().await;
            assert_eq!((denied.is_allowed(), used(&denied)), (false, vec![1]));
        }
        let refused = Origin::FailedClosed(FailureKind::Unsupported);
        // For one subject, the store decides under the policy `daily` and 16 others. It refuses
        // further policies.
        assert_eq!(origins[..16], [Origin::Store; 16]);
        assert_eq!(origins[16..], [refused; 4]);

        // After a day, the states whose windows have ended are dropped, so other policies are
        // accepted again.
        clock.advance(Duration::from_secs(86_400));
        assert!(limiter.request(&client).policy(&daily).check().await.is_allowed());
        clock.advance(Duration::from_secs(86_400));
        let wide: Vec<_> = (1..=16).map(|n| format!("9/{n}hours:clock")).collect();
        let wide = policy(&wide.iter().map(String::as_str).collect::<Vec<_>>());
        assert!(limiter.request(&client).policy(&wide).check().await.is_allowed());
        assert!(limiter.request(&client).policy(&daily).check().await.is_allowed());
        assert!(!limiter.request(&client).policy(&daily).check().await.is_allowed());
    }
}

/// The subject has 32 states, the maximum: one for each limit of two policies. Neither a refused
/// request under a third policy nor a refund may drop one of them.
#[tokio::test]
async fn neither_a_refused_request_nor_a_refund_forgets_one_of_32_states() {
    let redis = RedisServer::start();
    let (_, stores) = stores(&redis).await;
    for store in stores {
        let (limiter, client) = (limiter(store), Subject::user("client"));
        let of = |suffix: &str| {
            let limits: Vec<_> = (1..=16).map(|n| format!("9/{n}hours{suffix}")).collect();
            policy(&limits.iter().map(String::as_str).collect::<Vec<_>>())
        };
        let (first, second, third) = (of(""), of(":clock"), of(":gcra"));
        assert!(limiter.request(&client).policy(&first).cost(2).check().await.is_allowed());
        let charged = limiter.request(&client).policy(&second).cost(3).check().await;
        assert!(charged.is_allowed());
        let refused = limiter.request(&client).policy(&third).check().await;
        assert_eq!(refused.origin(), Origin::FailedClosed(FailureKind::Unsupported));
        limiter.request(&client).refund(&charged, &[1]).await.unwrap();
        for (under, units) in [(&first, 2), (&second, 2), (&third, 0)] {
            let peek = limiter.request(&client).policy(under).cost(0).check().await;
            assert_eq!(used(&peek), [units; 16]);
        }
    }
}
