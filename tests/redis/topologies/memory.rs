//! Redis servers whose memory is full.

use rl_core::store::Layout;
use rl_core::{FailureKind, Limit, Origin, RateLimiter, RedisStore, Subject};
use rl_tests::web::eventually;
use rl_tests::{Bystander, RedisCluster, RedisServer, connected};
use tracing::Level;

use crate::redis::behaviour::access::documented_user;
use crate::redis::failure::log::Log;

const FORGETS: (Level, &str) = (Level::WARN, "Redis may evict counters");

#[tokio::test]
async fn an_evicting_server_is_logged_when_the_store_connects() {
    let (log, _guard) = Log::capture();
    let server = RedisServer::start();
    let mut operator = Bystander::new(&server).await;
    for (limit, policy, expected) in [
        // Without `maxmemory`, Redis evicts nothing.
        ("0", "allkeys-lru", None),
        ("100mb", "noeviction", None),
        ("100mb", "volatile-ttl", Some(FORGETS)),
        ("100mb", "allkeys-lru", Some(FORGETS)),
    ] {
        let before = log.lines().len();
        operator.query::<()>(&format!("CONFIG SET maxmemory {limit}")).await;
        operator.query::<()>(&format!("CONFIG SET maxmemory-policy {policy}")).await;
        server.patient_store().connections(4).connect().await.unwrap();
        let lines = log.lines().split_off(before);
        assert_eq!(lines.len(), usize::from(expected.is_some()), "{limit} {policy}: {lines:?}");
        if let Some((level, words)) = expected {
            assert!(lines[0].0 == level && lines[0].1.contains(words), "{lines:?}");
            assert!(lines[0].1.contains(policy), "{lines:?}");
        }
    }

    // If the user may not read these settings, the store connects without a warning.
    let lines = log.lines().len();
    operator.query::<()>(&documented_user(Layout::Packed)).await;
    RedisStore::connect(&server.url_of("rl", "secret")).await.unwrap();
    assert_eq!(log.lines().len(), lines);
}

#[tokio::test]
async fn an_evicting_cluster_is_logged_once() {
    let (log, _guard) = Log::capture();
    let cluster = RedisCluster::start().await;
    for mut operator in cluster.operators().await {
        operator.query::<()>("CONFIG SET maxmemory 100mb").await;
        operator.query::<()>("CONFIG SET maxmemory-policy allkeys-random").await;
    }
    super::patient(RedisStore::cluster(cluster.urls())).await;
    log.assert_lines(&[FORGETS]);
}

/// A full server cannot count. This must not look like a denial with 429.
#[tokio::test]
async fn a_full_server_is_an_outage_and_denies_no_request() {
    let server = RedisServer::start_with(&["--maxmemory-policy", "noeviction"]);
    let store = connected(server.patient_store().local_denial(false)).await;
    let limiter = RateLimiter::builder().limit(Limit::per_hour(3)).store(store);
    let limiter = limiter.deadline(super::PATIENCE).build().unwrap();
    let mut operator = Bystander::new(&server).await;
    // Fills the memory until the server refuses writes.
    let used: String = operator.query("INFO memory").await;
    let used = used.lines().find_map(|line| line.strip_prefix("used_memory:")).unwrap();
    let full: u64 = used.trim().parse::<u64>().unwrap() + 3_000_000;
    operator.query::<()>(&format!("CONFIG SET maxmemory {full}")).await;
    let mut other = server.connection().await;
    let refused = loop {
        let mut set = redis::cmd("SET");
        set.arg(operator.now().await.as_micros()).arg("x".repeat(10_000));
        if let Err(error) = set.query_async::<()>(&mut other).await {
            break error;
        }
    };
    assert_eq!(refused.code(), Some("OOM"));
    for _ in 0..5 {
        let decision = limiter.check(&Subject::user("alice"), 1).await;
        assert!(decision.is_allowed());
        assert_eq!(decision.origin(), Origin::FailedOpen(FailureKind::Unavailable));
    }
    operator.query::<()>("CONFIG SET maxmemory 0").await;
    // A probe of the circuit breaker detects the recovery.
    let is_back = async || {
        let seen = limiter.peek(&Subject::user("alice"), 1).await;
        seen.origin() == Origin::Store
    };
    eventually(is_back).await;
    let allowed = {
        let mut allowed = 0;
        for _ in 0..5 {
            let decision = limiter.check(&Subject::user("alice"), 1).await;
            assert_eq!(decision.origin(), Origin::Store);
            allowed += u32::from(decision.is_allowed());
        }
        allowed
    };
    assert_eq!(allowed, 3);
}
