//! Redis servers whose memory is full.

use std::time::Duration;

use rl_core::store::{Layout, Part};
use rl_core::{
    FailureKind, Limit, MemoryStore, OnFailure, Origin, Policy, RateLimiter, RedisStore,
    RetryAfter, Share, Subject,
};
use rl_tests::web::eventually;
use rl_tests::{Bystander, RedisCluster, RedisServer, connected};
use tokio::task::JoinSet;
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

/// Makes the server refuse each write that needs memory.
async fn fill(operator: &mut Bystander) {
    operator.query::<()>("CONFIG SET maxmemory 1").await;
}

async fn free(operator: &mut Bystander) {
    operator.query::<()>("CONFIG SET maxmemory 0").await;
}

/// Fault: a full server was an outage. The circuit breaker opened, and clients over their limit
/// were allowed, although the server could still deny their requests. One client was enough.
#[tokio::test]
async fn a_flood_that_fills_the_server_lifts_no_limit() {
    const GUESSERS: usize = 20;
    let server = RedisServer::start_with(&["--maxmemory-policy", "noeviction"]);
    // Without the denial cache, the server decides each request.
    let store = connected(server.patient_store().local_denial(false)).await;
    let limiter = RateLimiter::builder().limit(Limit::per_hour(3)).store(store);
    let limiter = limiter.deadline(super::PATIENCE).build().unwrap();
    let guessers: Vec<_> = (0..GUESSERS).map(|n| Subject::ip([192, 0, 2, n as u8])).collect();
    for guesser in &guessers {
        while limiter.check(guesser, 1).await.is_allowed() {}
    }
    let mut operator = Bystander::new(&server).await;
    let used: String = operator.query("INFO memory").await;
    let used = used.lines().find_map(|line| line.strip_prefix("used_memory:")).unwrap();
    let full: u64 = used.trim().parse::<u64>().unwrap() + 400_000;
    operator.query::<()>(&format!("CONFIG SET maxmemory {full}")).await;

    // The flood and the guessers share batches. Each continues after the server has become full.
    let mut flood = JoinSet::new();
    for client in 0..40 {
        let limiter = limiter.clone();
        flood.spawn(async move {
            let mut rejected = 0;
            for request in 0.. {
                let invented = Subject::consumer(&format!("invented-{client}-{request}"));
                let decision = limiter.check(&invented, 1).await;
                match decision.origin() {
                    Origin::Store => assert!(decision.is_allowed()),
                    origin => {
                        assert_eq!(origin, Origin::FailedClosed(FailureKind::OutOfMemory));
                        let second = RetryAfter::In(Duration::from_secs(1));
                        assert_eq!(decision.retry_after(), second);
                        rejected += 1;
                    }
                }
                if rejected == 50 {
                    break;
                }
            }
        });
    }
    let mut guesses = 0;
    while !flood.is_empty() {
        let checks: Vec<_> =
            guessers.iter().map(|guesser| tokio::spawn(limiter.check(guesser, 1))).collect();
        for check in checks {
            let decision = check.await.unwrap();
            assert_eq!((decision.is_allowed(), decision.origin()), (false, Origin::Store));
            guesses += 1;
        }
        while let Some(ended) = flood.try_join_next() {
            ended.unwrap();
        }
    }
    assert!(guesses > 10 * GUESSERS, "{guesses}");

    free(&mut operator).await;
    for allowed in [true, true, true, false] {
        let decision = limiter.check(&Subject::user("alice"), 1).await;
        assert_eq!((decision.is_allowed(), decision.origin()), (allowed, Origin::Store));
    }
}

/// A full server cannot charge. This must not look like a denial with 429, and must not lift the
/// limits of others.
#[tokio::test]
async fn on_overload_decides_what_a_full_server_cannot_charge() {
    let full = FailureKind::OutOfMemory;
    let server = RedisServer::start_with(&["--maxmemory-policy", "noeviction"]);
    let mut operator = Bystander::new(&server).await;
    for layout in [Layout::Packed, Layout::Readable] {
        let store = server.patient_store().layout(layout).local_denial(false);
        let store = connected(store).await;
        for (on_overload, expected) in [
            (OnFailure::Reject, Origin::FailedClosed(full)),
            (OnFailure::Allow, Origin::FailedOpen(full)),
            (OnFailure::Fallback, Origin::Fallback(full)),
        ] {
            let limiter = RateLimiter::builder().limit(Limit::per_hour(3)).store(store.clone());
            let limiter = limiter.fallback(MemoryStore::new(), Share::with_instances(1));
            let limiter = limiter.on_overload(on_overload).deadline(super::PATIENCE);
            let name = format!("{}-{}", layout == Layout::Packed, expected.as_str());
            let limiter = limiter.namespace(&name).build().unwrap();
            let [denied, alice] = ["denied", "alice"].map(Subject::user);
            while limiter.check(&denied, 1).await.is_allowed() {}
            fill(&mut operator).await;
            for _ in 0..20 {
                let decision = limiter.check(&denied, 1).await;
                assert_eq!((decision.is_allowed(), decision.origin()), (false, Origin::Store));
                assert_eq!(limiter.check(&alice, 1).await.origin(), expected);
            }
            free(&mut operator).await;
            let decision = limiter.check(&alice, 1).await;
            let remaining = decision.limits().next().unwrap().remaining();
            assert_eq!((remaining, decision.origin()), (2, Origin::Store));
        }
    }
}

/// The parts of a request are charged in one script. Redis refuses its first write, or none.
#[tokio::test]
async fn a_full_server_charges_all_parts_of_a_request_or_none() {
    let server = RedisServer::start_with(&["--maxmemory-policy", "noeviction"]);
    let store = connected(server.patient_store().local_denial(false)).await;
    let one = Policy::new([Limit::per_hour(3)]).unwrap();
    let two = Policy::new(["4/hour:sliding-log".parse().unwrap()]).unwrap();
    let limiter = RateLimiter::builder().limit(Limit::per_hour(1)).store(store);
    let limiter = limiter.deadline(super::PATIENCE).build().unwrap();
    let [alice, fleet, denied] = ["alice", "fleet", "denied"].map(Subject::user);
    let parts = |first| [Part::new(first, &one, 1.into()), Part::new(&fleet, &two, 1.into())];
    for _ in 0..3 {
        limiter.request(&[Part::new(&denied, &one, 1.into())]).check().await;
    }
    assert!(limiter.request(&parts(&alice)).check().await.is_allowed());

    let mut operator = Bystander::new(&server).await;
    fill(&mut operator).await;
    // The requests share a batch.
    let requests = (0..8).map(|_| tokio::spawn(limiter.request(&parts(&alice)).check()));
    let requests: Vec<_> = requests.collect();
    let full = Origin::FailedClosed(FailureKind::OutOfMemory);
    for request in requests {
        assert_eq!(request.await.unwrap().origin(), full);
    }
    let decision = limiter.request(&parts(&denied)).check().await;
    assert_eq!((decision.is_allowed(), decision.origin()), (false, Origin::Store));
    free(&mut operator).await;

    let decision = limiter.request(&parts(&alice)).check().await;
    assert_eq!(decision.origin(), Origin::Store);
    let used: Vec<_> = decision.parts().map(|part| part.limits().next().unwrap().used()).collect();
    assert_eq!(used, [2, 2], "one request before the server was full, and one after");
}

#[tokio::test]
async fn a_full_server_is_logged_when_it_refuses_charges_and_when_it_charges_again() {
    let (log, _guard) = Log::capture();
    let server = RedisServer::start_with(&["--maxmemory-policy", "noeviction"]);
    let store = connected(server.patient_store().local_denial(false)).await;
    let limiter = RateLimiter::builder().limit(Limit::per_hour(1_000_000)).store(store);
    let limiter = limiter.deadline(super::PATIENCE).build().unwrap();
    let alice = Subject::user("alice");
    let mut operator = Bystander::new(&server).await;
    fill(&mut operator).await;
    for _ in 0..100 {
        limiter.check(&alice, 1).await;
    }
    free(&mut operator).await;
    eventually(async || limiter.check(&alice, 1).await.is_allowed() && log.lines().len() > 1).await;
    log.assert_lines(&[
        (Level::ERROR, "store out of memory"),
        (Level::INFO, "store charges requests again"),
    ]);
    let [(_, begin), (_, end)] = &log.lines()[..] else { unreachable!("two lines") };
    for words in ["Redis replied OOM: it has reached maxmemory", "rejected with 503"] {
        assert!(begin.contains(words), "{begin}");
    }
    assert!(end.contains("undecided=100"), "{end}");
}
