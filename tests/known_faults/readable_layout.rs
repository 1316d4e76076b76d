//! Readable counters that other programs write, or that two services share.

use std::time::Duration;

use rl_core::store::{ConnectError, Layout};
use rl_core::{FailureKind, Limit, Policy, RateLimiter, RedisStore, Subject};
use rl_tests::{Bystander, RedisServer};

const PATIENCE: Duration = Duration::from_secs(60);

async fn limiter(server: &RedisServer, limits: &[&str]) -> RateLimiter {
    let store = RedisStore::builder(&server.url()).layout(Layout::Readable);
    let store = store.connection_wait(PATIENCE).connect().await.unwrap();
    let limits = limits.iter().map(|limit| limit.parse().unwrap());
    let builder = RateLimiter::builder().policy(Policy::new(limits).unwrap());
    builder.store(store).deadline(PATIENCE).build().unwrap()
}

/// Fault: a counter that was written with an expiry in the wrong unit denied its client for 27
/// hours, under a limit per minute.
#[tokio::test]
async fn a_counter_that_outlives_its_period_is_healed() {
    let server = RedisServer::start();
    let (limiter, client) = (limiter(&server, &["5/minute"]).await, Subject::consumer("acme"));
    let mut operator = Bystander::new(&server).await;
    for (used, is_allowed) in [(4, true), (5, false)] {
        operator.query::<()>(&format!("SET acme_PER_MINUTE {used} EX 100000")).await;
        let decision = limiter.check(&client, 1).await;
        let minute = decision.limits().next().unwrap();
        assert_eq!((decision.is_allowed(), minute.used()), (is_allowed, 5));
        assert!(minute.reset_after() <= Duration::from_secs(60), "{minute:?}");
        let ttl: u64 = operator.query("TTL acme_PER_MINUTE").await;
        assert!(ttl <= 60, "{ttl}");
    }
}

/// Fault: one damaged counter made the usage of all limits unknown.
#[tokio::test]
async fn usage_of_one_limit_is_reported_beside_a_damaged_counter() {
    let server = RedisServer::start();
    let limits = ["9/minute", "9/hour", "9/day", "9/day:requests"];
    let (limiter, client) = (limiter(&server, &limits).await, Subject::consumer("acme"));
    let policy = Policy::new(limits.map(|limit| limit.parse().unwrap())).unwrap();
    limiter.check(&client, 3).await;
    let mut operator = Bystander::new(&server).await;
    operator.query::<()>("DEL acme_PER_HOUR").await;
    operator.query::<u64>("RPUSH acme_PER_HOUR x").await;
    operator.query::<()>("SET acme_PER_DAY garbage EX 100").await;

    let error = limiter.request(&client).policy(&policy).usage().await.unwrap_err();
    assert_eq!(error.kind(), FailureKind::Corrupt);
    let mut usage = Vec::new();
    for limit in limits {
        let alone = Policy::new([limit.parse().unwrap()]).unwrap();
        let used = limiter.request(&client).policy(&alone).usage().await;
        let used = used.map(|used| used.limits().next().unwrap().used());
        usage.push(used.map_err(|error| error.kind()));
    }
    assert_eq!(usage, [Ok(3), Err(FailureKind::Corrupt), Err(FailureKind::Corrupt), Ok(1)]);

    limiter.request(&client).policy(&policy).reset_limit("hour").await.unwrap();
    limiter.request(&client).policy(&policy).reset().await.unwrap();
    let healed = limiter.request(&client).policy(&policy).usage().await.unwrap();
    assert!(healed.limits().all(|limit| limit.used() == 0));
    assert_eq!(server.query::<u64>("DBSIZE").await, 0);
}

/// Fault: the consumer `2abc` of the service with the prefix `shop` had the same counter as the
/// consumer `abc` of the service with the prefix `shop2`.
#[tokio::test]
async fn services_do_not_share_counters_when_one_prefix_begins_with_the_other() {
    let server = RedisServer::start();
    let of = |prefix: &'static str| {
        let store = RedisStore::builder(&server.url()).layout(Layout::Readable).prefix(prefix);
        store.connection_wait(PATIENCE).connect()
    };
    for prefix in ["shop", "shop2"] {
        let error = of(prefix).await.unwrap_err();
        assert!(matches!(error, ConnectError::PrefixWithoutSeparator { .. }), "{error}");
    }
    for (prefix, id) in [("shop:", "2:abc"), ("shop2:", "abc"), ("shop:", "abc"), ("", "shop:abc")]
    {
        let store = of(prefix).await.unwrap();
        let builder = RateLimiter::builder().limit(Limit::per_day(1)).store(store);
        let limiter = builder.deadline(PATIENCE).build().unwrap();
        let client = Subject::consumer(id);
        assert!(limiter.check(&client, 1).await.is_allowed(), "{prefix}{id}");
        assert!(!limiter.check(&client, 1).await.is_allowed(), "{prefix}{id}");
    }
}
