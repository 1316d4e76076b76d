//! A cluster: each command reaches the server of its subject, even after the slot of the subject
//! has moved.

use std::time::Duration;

use rl_core::conformance::{Suite, suite};
use rl_core::store::{ConnectError, DecideRequest, Layout, Mode, Namespace, Store};
use rl_core::time::{Clock, SystemClock, Timestamp};
use rl_core::{
    FailureKind, Limit, Origin, Part, Policy, RateLimiter, RedisStore, RedisStoreBuilder, Subject,
};
use rl_tests::{Bystander, RedisCluster, RedisServer};

use super::load::{FailOver, Load, first_decision, replicated, subject, subjects};
use super::{PATIENCE, assert_exactly_five_of_twenty_pass, patient};
use crate::redis::behaviour::access::documented_user;
use crate::store_conformance::{ServerTime, manual_clock};

/// The additional permissions for a cluster, as in REDIS.md.
const ON_A_CLUSTER: &str = "+cluster|slots +asking";

/// Starts a cluster. All its servers have the user that REDIS.md documents.
pub(super) async fn start() -> RedisCluster {
    let page = include_str!("../../../crates/rl-core/docs/REDIS.md");
    assert!(page.contains(ON_A_CLUSTER));
    let cluster = RedisCluster::start().await;
    for mut operator in cluster.operators().await {
        operator.query::<()>(&format!("{} {ON_A_CLUSTER}", documented_user(Layout::Packed))).await;
    }
    cluster
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_url_of_a_cluster_is_enough_to_decide() {
    let cluster = start().await;
    let url = cluster.url("rl:secret@");
    assert_exactly_five_of_twenty_pass(patient(RedisStore::builder(&url)).await).await;
    let wrong = RedisStore::builder(&url.replace("secret", "wrong")).connect_timeout(PATIENCE);
    match wrong.connect().await.unwrap_err() {
        ConnectError::Refused(error) => assert_eq!(error.kind(), FailureKind::Refused, "{error}"),
        other => panic!("{other}"),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn instances_on_a_cluster_read_the_notes_of_each_other() {
    let cluster = start().await;
    let one = patient(store_of_administrator(&cluster)).await;
    let two = patient(store_of_administrator(&cluster)).await;
    let namespace = Namespace::default();
    for (store, name) in [(&one, "one"), (&two, "two")] {
        store.publish_note(&namespace, name, name).await.unwrap();
    }
    let mut notes = one.read_notes(&namespace).await.unwrap();
    notes.sort();
    assert_eq!(notes, ["one", "two"]);
}

/// Returns the builder of a store that knows the URL of one server. Through this server, the store
/// finds the others.
pub(super) fn store(cluster: &RedisCluster) -> RedisStoreBuilder {
    let builder = RedisStore::cluster(&cluster.urls()[4..5]).user("rl").password("secret");
    // Without a denial cache, every decision needs a server.
    builder.local_denial(false)
}

/// The number of slot groups in the tests: each primary has three.
pub(super) const GROUPS: u32 = 9;

/// Returns the builder of a store with the permissions of an administrator.
fn store_of_administrator(cluster: &RedisCluster) -> RedisStoreBuilder {
    RedisStore::cluster(cluster.urls()).local_denial(false)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cluster_keeps_the_contract_in_both_layouts() {
    let cluster = RedisCluster::start().await;
    let clock = manual_clock();
    let packed = patient(store_of_administrator(&cluster).manual_clock(clock.clone())).await;
    suite(&Suite::new(packed, clock).without_stored_count()).await;
    let clock = manual_clock();
    let grouped = store_of_administrator(&cluster).slot_groups(GROUPS).manual_clock(clock.clone());
    suite(&Suite::new(patient(grouped).await, clock).without_stored_count()).await;
    let readable = patient(store_of_administrator(&cluster).layout(Layout::Readable)).await;
    let time = ServerTime(cluster.servers[0].connection().await);
    suite(&Suite::new(readable, time).only_fixed_windows().without_stored_count()).await;

    // Every primary stores some of the subjects. All keys of a subject are in one slot.
    let mut operators = cluster.operators().await;
    for (number, operator) in operators[..3].iter_mut().enumerate() {
        let keys: Vec<String> = operator.query("KEYS *").await;
        assert!(keys.len() > 5, "primary {number}: {keys:?}");
        assert_eq!(operator.keys_without_expiry().await, [""; 0]);
        for key in keys {
            let tags = (key.matches('{').count(), key.matches('}').count());
            assert_eq!(tags, (1, 1), "{key}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn concurrent_requests_never_exceed_the_limit_on_a_cluster() {
    let cluster = start().await;
    let grouped = patient(store(&cluster).slot_groups(GROUPS)).await;
    let store = patient(store(&cluster)).await;
    // The scripts are loaded on every primary before the first decision.
    let mut operators = cluster.operators().await;
    for operator in &mut operators[..3] {
        for script in RedisStore::scripts(Layout::Packed, []) {
            let known: Vec<u8> = operator.query(&format!("SCRIPT EXISTS {}", script.sha())).await;
            assert_eq!(known, [1]);
        }
    }
    assert_exactly_five_of_twenty_pass(store.clone()).await;
    assert_exactly_five_of_twenty_pass(grouped.clone()).await;
    // The servers lose their scripts. The next calls load them again.
    for operator in &mut operators[..3] {
        operator.query::<()>("FLUSHALL").await;
        operator.query::<()>("SCRIPT FLUSH").await;
    }
    assert_exactly_five_of_twenty_pass(store).await;
    assert_exactly_five_of_twenty_pass(grouped).await;
}

/// Returns the number of script calls of all primaries.
pub(super) async fn calls(cluster: &RedisCluster) -> u64 {
    let mut sum = 0;
    for server in &cluster.servers[..3] {
        sum += server.calls("evalsha").await;
    }
    sum
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn subjects_of_one_slot_group_share_calls_and_are_spread_over_all_primaries() {
    const SUBJECTS: usize = 1_000;
    let cluster = RedisCluster::start().await;
    let store = patient(store_of_administrator(&cluster).slot_groups(GROUPS)).await;
    let limiter = RateLimiter::builder()
        .limit(Limit::per_hour(2))
        .limit(Limit::per_day(3))
        .store(store)
        .deadline(PATIENCE)
        .build()
        .unwrap();
    let before = calls(&cluster).await;
    for allowed in [SUBJECTS, SUBJECTS, 0] {
        let decisions = (0..SUBJECTS).map(|number| {
            let limiter = limiter.clone();
            async move { limiter.check(&subject(number), 1).await }
        });
        let decisions = futures::future::join_all(decisions).await;
        assert!(decisions.iter().all(|decision| decision.origin() == Origin::Store));
        assert_eq!(decisions.iter().filter(|decision| decision.is_allowed()).count(), allowed);
    }
    let calls = calls(&cluster).await - before;
    assert!(calls < SUBJECTS as u64, "{calls} calls for {} decisions", 3 * SUBJECTS);

    let mut slots = std::collections::BTreeSet::new();
    for (number, operator) in cluster.operators().await[..3].iter_mut().enumerate() {
        let keys: Vec<String> = operator.query("KEYS *").await;
        assert!(keys.len() > SUBJECTS / 5, "primary {number}: {} keys", keys.len());
        for key in keys {
            slots.insert(operator.query::<u16>(&format!("CLUSTER KEYSLOT {key}")).await);
        }
    }
    assert_eq!(slots.len(), GROUPS as usize, "{slots:?}");
}

/// The parts of each request are in one group, and so in one slot. The requests are decided one
/// after the other, as on one server. On one thread, a batch contains all requests that are
/// waiting, however busy the machine is.
#[tokio::test]
async fn requests_of_parts_in_one_slot_group_share_calls() {
    const REQUESTS: usize = 600;
    const PER_KEY: u32 = 4;
    let cluster = RedisCluster::start().await;
    let store = patient(store_of_administrator(&cluster).slot_groups(1)).await;
    let limiter = RateLimiter::builder().policies(|_: &Subject| None).store(store);
    let limiter = limiter.deadline(PATIENCE).build().unwrap();
    let keys = Policy::new([Limit::per_hour(PER_KEY)]).unwrap();
    let fleet = Policy::new([Limit::per_day(500)]).unwrap();
    let before = calls(&cluster).await;
    let requests = (0..REQUESTS).map(|number| {
        let (key, global) = (subject(number % 100), Subject::global());
        let parts = [Part::new(&key, &keys, 1.into()), Part::new(&global, &fleet, 1.into())];
        limiter.request(&parts).check()
    });
    let decisions = futures::future::join_all(requests.collect::<Vec<_>>()).await;
    assert!(decisions.iter().all(|decision| decision.origin() == Origin::Store));
    let allowed = decisions.iter().filter(|decision| decision.is_allowed()).count();
    assert_eq!(allowed, 100 * PER_KEY as usize, "each key uses up its limit");
    let calls = calls(&cluster).await - before;
    assert!(calls < REQUESTS as u64 / 4, "{calls} calls for {REQUESTS} requests");
    let peeked = limiter.request(&[Part::new(&Subject::global(), &fleet, 0.into())]).peek().await;
    assert_eq!(peeked.limits().next().unwrap().used(), 400, "denied requests charge no part");
}

#[tokio::test]
async fn slot_groups_that_do_not_fit_fail_the_connect() {
    let cluster = || RedisStore::cluster(["redis://127.0.0.1:1/"]);
    for (builder, why) in [
        (cluster().slot_groups(0), "slot_groups must be at least 1 and at most 16384"),
        (cluster().slot_groups(16_385), "slot_groups must be at least 1 and at most 16384"),
        (cluster().slot_groups(9).layout(Layout::Readable), "slot_groups needs the packed layout"),
        (
            RedisStore::builder("redis://127.0.0.1:1/").slot_groups(9),
            "slot_groups is a setting of a cluster only",
        ),
    ] {
        assert_eq!(builder.connect().await.unwrap_err().to_string(), why);
    }
}

#[tokio::test]
async fn a_refusal_of_a_cluster_fails_the_connect() {
    let cluster = start().await;
    let wrong = store(&cluster).password("wrong").connect_timeout(PATIENCE);
    match wrong.connect().await.unwrap_err() {
        ConnectError::Refused(error) => assert_eq!(error.kind(), FailureKind::Refused, "{error}"),
        other => panic!("{other}"),
    }
    for (urls, why) in [
        (vec![], "at least one URL"),
        (vec!["redis://h/", "rediss://h/"], "differ in more than host and port"),
        (vec!["redis://:hunter2@h/", "redis://h/"], "differ in more than host and port"),
        (vec!["redis://h/1"], "database 0 only"),
    ] {
        let builder = RedisStore::cluster(urls);
        assert!(!format!("{builder:?}").contains("hunter2"));
        let error = builder.connect().await.unwrap_err();
        assert!(error.to_string().contains(why), "{error}");
    }
}

/// Returns the slot of a subject.
async fn slot_of(operator: &mut Bystander, number: usize) -> u16 {
    operator.query(&format!("CLUSTER KEYSLOT {{load-{number}}}")).await
}

/// Returns the index of the primary that owns a slot at the start.
pub(super) fn owner(slot: u16) -> usize {
    RedisCluster::SHARES.iter().rposition(|first| *first <= slot).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slots_migrated_under_load_lose_no_request_and_no_count() {
    let cluster = start().await;
    let mut load =
        Load::start(RateLimiter::builder().deadline(PATIENCE), patient(store(&cluster)).await)
            .await;
    // In the readable layout, a subject has one key for each limit. These keys are migrated one by
    // one.
    let readable = patient(store_of_administrator(&cluster).layout(Layout::Readable)).await;
    let readable = RateLimiter::builder()
        .limit(Limit::per_minute(1_000_000))
        .limit(Limit::per_hour(500))
        .limit(Limit::per_day(1_000_000))
        .store(readable)
        .deadline(PATIENCE)
        .build()
        .unwrap();
    let (stop, mut stopped) = tokio::sync::oneshot::channel::<()>();
    let several = tokio::spawn(async move {
        let (mut allowed, mut is_used_up, mut is_stopped) = (0, false, false);
        // On a busy machine, the slots have moved before the limit is used up.
        while !is_stopped || !is_used_up {
            is_stopped |= stopped.try_recv().is_ok();
            let decision = readable.check(&subject(0), 1).await;
            assert_eq!(decision.origin(), Origin::Store);
            allowed += u32::from(decision.is_allowed());
            is_used_up = !decision.is_allowed();
        }
        allowed
    });
    load.run_for(0.3).await;

    let mut operator = Bystander::new(&cluster.servers[0]).await;
    for number in 0..5 {
        let slot = slot_of(&mut operator, number).await;
        let (home, other) = (owner(slot), (owner(slot) + 1) % 3);
        cluster.move_slot(slot, home, other).await;
        load.run_for(0.2).await;
        cluster.move_slot(slot, other, home).await;
        load.run_for(0.2).await;
    }
    stop.send(()).unwrap();
    assert_eq!(several.await.unwrap(), 500);
    let outcome = load.stop().await;
    assert!(outcome.answers.len() > 250 * subjects());
    let strays = outcome.answers.iter().map(|answer| answer.decision.origin());
    let strays: Vec<_> = strays.filter(|origin| *origin != Origin::Store).collect();
    assert_eq!(strays, []);
    assert_eq!(outcome.above_the_limit(), 0);
}

/// Returns the slot of the group to which a subject belongs.
async fn slot_of_group(cluster: &RedisCluster, number: usize) -> u16 {
    for mut operator in cluster.operators().await.drain(..3) {
        let pattern = format!("KEYS rl:6:*:consumer:load-{number}");
        let keys: Vec<String> = operator.query(&pattern).await;
        if let Some(key) = keys.first() {
            return operator.query(&format!("CLUSTER KEYSLOT {key}")).await;
        }
    }
    panic!("no primary has the key of subject {number}");
}

/// While a slot group is migrated, its subjects are on two servers. A batch with subjects on both
/// is divided, so that no request waits until the whole group has moved.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slot_groups_migrated_under_load_lose_no_request_and_no_count() {
    const OTHERS: usize = 300;
    let cluster = start().await;
    let grouped = || store(&cluster).slot_groups(GROUPS);
    let limiter = RateLimiter::builder().deadline(PATIENCE);
    let mut load = Load::start(limiter, patient(grouped()).await).await;
    // After more than 36 charges, each of the 300 subjects of this limiter has a second key, with
    // the sealed entries of its log. With the keys of `windows`, each group then has about a
    // hundred keys.
    let limiter = RateLimiter::builder()
        .limit(Limit::per_hour(50))
        .limit("60/hour:sliding-log".parse().unwrap())
        .store(patient(grouped()).await)
        .deadline(PATIENCE)
        .build()
        .unwrap();
    let windows = RateLimiter::builder()
        .limit(Limit::per_day(50))
        .store(patient(grouped()).await)
        .deadline(PATIENCE)
        .build()
        .unwrap();
    let (stop, stopped) = tokio::sync::watch::channel(false);
    let others = [("log", limiter), ("window", windows)].map(|(name, limiter)| {
        let stopped = stopped.clone();
        tokio::spawn(async move {
            let (mut allowed, mut rounds) = (vec![0; OTHERS], 0);
            while !*stopped.borrow() || rounds < 60 {
                let checks = (0..OTHERS).map(|number| {
                    let subject = Subject::consumer(&format!("{name}-{number}"));
                    let limiter = limiter.clone();
                    async move { limiter.check(&subject, 1).await }
                });
                let decisions = futures::future::join_all(checks).await;
                for (allowed, decision) in allowed.iter_mut().zip(decisions) {
                    assert_eq!(decision.origin(), Origin::Store, "{name}");
                    *allowed += u32::from(decision.is_allowed());
                }
                rounds += 1;
            }
            allowed
        })
    });
    load.run_for(0.3).await;

    for number in 0..4 {
        let slot = slot_of_group(&cluster, number).await;
        let (home, other) = (owner(slot), (owner(slot) + 1) % 3);
        cluster.move_slot(slot, home, other).await;
        load.run_for(0.2).await;
        cluster.move_slot(slot, other, home).await;
        load.run_for(0.2).await;
    }
    stop.send(true).unwrap();
    for others in others {
        assert_eq!(others.await.unwrap(), [50; OTHERS]);
    }
    let outcome = load.stop().await;
    assert!(outcome.answers.iter().all(|answer| answer.decision.origin() == Origin::Store));
    assert_eq!(outcome.above_the_limit(), 0);
}

/// Waits until the replica of the first primary reports itself as a primary. Returns that time.
pub(super) async fn promotion(cluster: &RedisCluster) -> Timestamp {
    let mut replica = Bystander::new(&cluster.servers[3]).await;
    let mut ticks = tokio::time::interval(Duration::from_millis(2));
    let promoted = async {
        while !replica.query::<String>("INFO replication").await.contains("role:master") {
            ticks.tick().await;
        }
        SystemClock.now()
    };
    tokio::time::timeout(PATIENCE, promoted).await.expect("a promotion in the end")
}

/// Puts a cluster under load, and runs `fail`, which stops its first primary. Asserts that the
/// replica decides soon.
pub(super) async fn assert_fail_over(
    what: &str,
    configure: impl FnOnce(RedisStoreBuilder) -> RedisStoreBuilder,
    fail: impl FnOnce(&mut RedisServer),
) {
    let mut cluster = start().await;
    let store = configure(store(&cluster)).connect().await.unwrap();
    let mut load = Load::start(RateLimiter::builder(), store).await;
    load.decide_for(1.3).await;
    let replicated = replicated(&cluster.servers[0], 1).await;
    fail(&mut cluster.servers[0]);
    let failed = SystemClock.now();
    let promoted = promotion(&cluster).await;
    let asked = first_decision(&cluster.servers[3]).await;
    load.decide_for(3.0).await;
    let times = FailOver { replicated, failed, left: failed, promoted, asked };
    load.stop().await.figures(&times).assert_bounds(what);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_primary_of_a_cluster_that_dies_under_load_is_replaced_within_a_second_of_the_promotion()
{
    assert_fail_over("primary of a cluster killed", |store| store, RedisServer::stop).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_primary_of_a_cluster_that_hangs_under_load_is_replaced_within_a_second_of_the_promotion()
{
    let freeze = |primary: &mut RedisServer| primary.signal("STOP");
    assert_fail_over("primary of a cluster frozen", |store| store, freeze).await;
}

/// A primary has died, and a request waits for a connection to it. The request may wait for longer
/// than the promotion of the replica takes. Once the replica is promoted, it decides the request.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_that_waits_for_a_dead_primary_is_decided_once_its_replica_is_promoted() {
    let mut cluster = start().await;
    let store = patient(store(&cluster)).await;
    let mut operator = Bystander::new(&cluster.servers[0]).await;
    let mut number = 0;
    while owner(slot_of(&mut operator, number).await) != 0 {
        number += 1;
    }
    let policy = Policy::new([Limit::per_hour(9)]).unwrap();
    let decide = move || {
        let (store, policy) = (store.clone(), policy.clone());
        async move {
            let (namespace, subject) = (Namespace::default(), subject(number));
            let parts = [Part::new(&subject, &policy, 1.into())];
            store.decide(DecideRequest::new(&namespace, &parts, Mode::Check)).await
        }
    };
    decide().await.unwrap();
    cluster.servers[0].stop();
    // The first requests may still find a connection, and fail with it.
    let waiting = loop {
        let mut request = tokio::spawn(decide());
        if tokio::time::timeout(Duration::from_millis(300), &mut request).await.is_err() {
            break request;
        }
    };
    promotion(&cluster).await;
    // A request may wait for a connection for up to `PATIENCE`. After the promotion, a third of
    // that time must be enough.
    for request in [waiting, tokio::spawn(decide())] {
        let decided = tokio::time::timeout(PATIENCE / 3, request).await;
        let decision = decided.expect("the request follows the promotion").unwrap().unwrap();
        assert!(decision.is_allowed());
    }
}

/// The store is created while no server runs. It finds the cluster once the servers run.
#[tokio::test]
async fn a_store_created_before_the_cluster_enforces_limits_once_it_is_up() {
    let mut cluster = RedisCluster::start().await;
    for server in &mut cluster.servers {
        server.stop();
    }
    let store = store_of_administrator(&cluster).connect().await.unwrap();
    let limiter = RateLimiter::builder().limit(Limit::per_hour(3)).store(store).build().unwrap();
    let origin = limiter.check(&Subject::user("alice"), 1).await.origin();
    assert!(matches!(origin, Origin::FailedOpen(_)), "{origin:?}");
    // Each server restarts in its own folder, which contains the state of the cluster.
    for server in &mut cluster.servers {
        server.restart();
    }
    rl_tests::web::eventually(|| async {
        limiter.check(&Subject::user("alice"), 1).await.origin() == Origin::Store
    })
    .await;
}

/// The cluster starts after the store, and refuses the service. This must count as a configuration
/// failure, not as an outage, in which requests would be allowed.
#[tokio::test]
async fn a_cluster_that_refuses_the_service_later_rejects_requests() {
    let mut cluster = RedisCluster::start().await;
    for server in &mut cluster.servers {
        server.stop();
    }
    let store = store(&cluster).password("wrong").connect().await.unwrap();
    let limiter = RateLimiter::builder().limit(Limit::per_hour(3)).store(store).build().unwrap();
    for server in &mut cluster.servers {
        server.restart();
    }
    let refused = Origin::FailedClosed(FailureKind::Refused);
    let origin = async || limiter.check(&Subject::user("alice"), 1).await.origin();
    rl_tests::web::eventually(|| async { origin().await == refused }).await;
    for _ in 0..20 {
        assert_eq!(origin().await, refused);
    }
}
