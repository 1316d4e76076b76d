//! Sentinels: the store finds the primary, and finds the new primary after a fail-over.

use std::time::Duration;

use rl_core::conformance::{Suite, suite};
use rl_core::store::{ConnectError, Layout};
use rl_core::time::{Clock, SystemClock, Timestamp};
use rl_core::{FailureKind, Origin, RateLimiter, RedisStore, RedisStoreBuilder, Subject};
use rl_tests::Sentinels;

use super::load::{FailOver, Load, first_decision, replicated};
use super::{PATIENCE, assert_exactly_five_of_twenty_pass, patient};
use crate::redis::behaviour::access::documented_user;
use crate::store_conformance::{ServerTime, manual_clock};

/// Starts servers with the user that REDIS.md documents.
async fn start() -> Sentinels {
    let sentinels = Sentinels::start().await;
    for server in &sentinels.servers {
        server.query::<()>(&documented_user(Layout::Packed)).await;
    }
    sentinels
}

fn store(sentinels: &Sentinels) -> RedisStoreBuilder {
    let builder = RedisStore::sentinel(sentinels.urls(), Sentinels::NAME);
    // Without a denial cache, every decision needs a server.
    builder.user("rl").password("secret").local_denial(false)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_primary_that_sentinels_name_keeps_the_contract() {
    let mut sentinels = start().await;
    let all = || store(&sentinels).user("default").password("any");
    let clock = manual_clock();
    let packed = patient(all().manual_clock(clock.clone())).await;
    suite(&Suite::new(packed, clock).without_stored_count()).await;
    let readable = patient(all().layout(Layout::Readable)).await;
    let time = ServerTime(sentinels.servers[0].connection().await);
    suite(&Suite::new(readable, time).only_fixed_windows().without_stored_count()).await;
    assert_exactly_five_of_twenty_pass(patient(store(&sentinels)).await).await;
    assert_eq!(sentinels.servers[0].keys_without_expiry().await, [""; 0]);

    // Only one of the three sentinels stays reachable.
    sentinels.sentinels[0].stop();
    sentinels.sentinels[1].signal("STOP");
    assert_exactly_one_passes(patient(store(&sentinels)).await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_url_of_sentinels_is_enough_to_decide() {
    let sentinels = start().await;
    let url = sentinels.url("rl:secret@");
    assert_exactly_five_of_twenty_pass(patient(RedisStore::builder(&url)).await).await;
    // The number of the database is that of the servers.
    let other = sentinels.url("").replace('?', "/2?");
    assert_exactly_five_of_twenty_pass(patient(RedisStore::builder(&other)).await).await;

    for wrong in [url.replace("rl:secret", "rl:wrong"), url.replace(Sentinels::PASSWORD, "wrong")] {
        let builder = RedisStore::builder(&wrong).connect_timeout(PATIENCE);
        match builder.connect().await.unwrap_err() {
            ConnectError::Refused(error) => assert_eq!(error.kind(), FailureKind::Refused),
            other => panic!("{other}"),
        }
    }
    // The methods of the builder take precedence over the URL.
    let builder = RedisStore::builder(&url.replace("rl:secret", "rl:wrong")).password("secret");
    assert_exactly_one_passes(patient(builder).await).await;
}

async fn assert_exactly_one_passes(store: RedisStore) {
    let limiter = RateLimiter::builder().limit("1/hour".parse().unwrap()).store(store);
    let limiter = limiter.deadline(PATIENCE).build().unwrap();
    for allowed in [true, false] {
        let decision = limiter.check(&Subject::user("alice"), 1).await;
        assert_eq!((decision.origin(), decision.is_allowed()), (Origin::Store, allowed));
    }
}

#[tokio::test]
async fn a_refusal_of_sentinels_or_servers_fails_the_connect() {
    let sentinels = start().await;
    let plain: Vec<String> = sentinels.sentinels.iter().map(|sentinel| sentinel.url()).collect();
    for (builder, kind) in [
        (RedisStore::sentinel(plain, Sentinels::NAME), FailureKind::Refused),
        (store(&sentinels).password("wrong"), FailureKind::Refused),
        (RedisStore::sentinel(sentinels.urls(), "others"), FailureKind::Protocol),
    ] {
        let shown = format!("{builder:?}");
        assert!(!shown.contains("hunter2") && !shown.contains("wrong"), "{shown}");
        let builder = builder.user("rl").connect_timeout(PATIENCE);
        match builder.connect().await.unwrap_err() {
            ConnectError::Refused(error) => assert_eq!(error.kind(), kind, "{error}"),
            other => panic!("{other}"),
        }
    }
    for (urls, why) in [
        (vec![], "at least one URL"),
        (vec!["redis://h/", "rediss://h/"], "mix redis:// and rediss://"),
        (vec!["redis://h/1"], "no databases"),
    ] {
        let error = RedisStore::sentinel(urls, Sentinels::NAME).connect().await.unwrap_err();
        assert!(error.to_string().contains(why), "{error}");
    }
}

/// Returns the time at which the sentinels report another primary, and the time of the first
/// decision of that primary.
async fn promotion(sentinels: &Sentinels) -> (Timestamp, Timestamp) {
    let port = sentinels.servers[0].port();
    let mut asking = tokio::task::JoinSet::new();
    for mut operator in sentinels.operators().await {
        asking.spawn(async move {
            let mut ticks = tokio::time::interval(Duration::from_millis(2));
            while Sentinels::primary_port(&mut operator).await == port {
                ticks.tick().await;
            }
            (SystemClock.now(), Sentinels::primary_port(&mut operator).await)
        });
    }
    let first = tokio::time::timeout(PATIENCE, asking.join_next()).await;
    let (promoted, port) = first.expect("a promotion in the end").unwrap().unwrap();
    let server = sentinels.servers.iter().find(|server| server.port() == port).unwrap();
    (promoted, first_decision(server).await)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_primary_that_dies_under_load_is_replaced_within_a_second_of_the_promotion() {
    let mut sentinels = start().await;
    let mut load =
        Load::start(RateLimiter::builder(), store(&sentinels).connect().await.unwrap()).await;
    load.decide_for(1.3).await;
    let replicated = replicated(&sentinels.servers[0], 2).await;

    sentinels.servers[0].stop();
    let failed = SystemClock.now();
    let (promoted, asked) = promotion(&sentinels).await;
    load.decide_for(3.0).await;
    let times = FailOver { replicated, failed, left: failed, promoted, asked };
    load.stop().await.figures(&times).assert_bounds("primary killed");
}

/// The primary is frozen. It does not notice that it was replaced, and keeps its connections open.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_primary_that_hangs_under_load_is_replaced_within_a_second_of_the_promotion() {
    let sentinels = start().await;
    let mut load =
        Load::start(RateLimiter::builder(), store(&sentinels).connect().await.unwrap()).await;
    load.decide_for(1.3).await;
    let replicated = replicated(&sentinels.servers[0], 2).await;

    sentinels.servers[0].signal("STOP");
    let failed = SystemClock.now();
    let (promoted, asked) = promotion(&sentinels).await;
    load.decide_for(3.0).await;
    let times = FailOver { replicated, failed, left: failed, promoted, asked };
    load.stop().await.figures(&times).assert_bounds("primary frozen");
}

/// In a planned fail-over, the old primary accepts commands for some more seconds. The store must
/// stop using it immediately.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_primary_demoted_under_load_is_abandoned_immediately() {
    let sentinels = start().await;
    let mut load =
        Load::start(RateLimiter::builder(), store(&sentinels).connect().await.unwrap()).await;
    load.decide_for(1.3).await;
    let replicated = replicated(&sentinels.servers[0], 2).await;

    let failed = SystemClock.now();
    let mut operator = sentinels.operators().await.remove(0);
    operator.query::<()>(&format!("SENTINEL FAILOVER {}", Sentinels::NAME)).await;
    let (promoted, asked) = promotion(&sentinels).await;
    load.decide_for(3.0).await;
    let times = FailOver { replicated, failed, left: asked, promoted, asked };
    load.stop().await.figures(&times).assert_bounds("primary demoted");
}
