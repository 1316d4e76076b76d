//! Leases cost a consumer nothing, because unspent units are returned.

use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use rl_core::store::{DecideRequest, Mode, Namespace, Part, Store};
use rl_core::time::{ManualClock, Timestamp};
use rl_core::{
    Cost, Decision, Limit, Origin, Policy, RateLimiter, RedisStore, RedisStoreBuilder, Subject,
};
use rl_tests::RedisServer;
use tokio::runtime::Handle;

/// The time limit for waiting for a condition.
const PATIENCE: Duration = Duration::from_secs(30);

fn clock() -> Arc<ManualClock> {
    Arc::new(ManualClock::at(Timestamp::from_secs(1_700_000_000)))
}

fn node(server: &RedisServer, clock: &Arc<ManualClock>) -> RedisStoreBuilder {
    patient(server).manual_clock(clock.clone())
}

/// Returns the settings of a store with long timeouts. With shorter ones, calls could fail on a
/// busy machine.
fn patient(server: &RedisServer) -> RedisStoreBuilder {
    RedisStore::builder(&server.url()).connection_wait(PATIENCE).response_timeout(PATIENCE)
}

async fn decide(store: &dyn Store, subject: &Subject, policy: &Policy, cost: u64) -> Decision {
    ask(store, subject, policy, Mode::Check, cost).await
}

async fn ask(
    store: &dyn Store,
    subject: &Subject,
    policy: &Policy,
    mode: Mode,
    cost: u64,
) -> Decision {
    let namespace = &Namespace::default();
    let parts = [Part::new(subject, policy, Cost::new(cost))];
    let request = DecideRequest::new(namespace, &parts, mode);
    store.decide(request).await.unwrap()
}

/// Returns the units that the server has charged under the first limit.
async fn used(store: &dyn Store, subject: &Subject, policy: &Policy) -> u64 {
    let usage = ask(store, subject, policy, Mode::Peek, 0).await;
    usage.limits().next().unwrap().used()
}

#[tokio::test]
async fn restarted_nodes_grant_the_whole_limit_if_they_were_closed() {
    let (server, clock) = (RedisServer::start(), clock());
    let policy = Policy::new([Limit::per_month(2_000)]).unwrap();
    let subject = &Subject::consumer("alice");
    let mut served = 0;
    for _ in 0..16 {
        let store = node(&server, &clock).lease(100).connect().await.unwrap();
        let builder = RateLimiter::builder().policy(policy.clone()).store(store.clone());
        let limiter = builder.deadline(PATIENCE).build().unwrap();
        for _ in 0..130 {
            served += u64::from(limiter.check(subject, 1).await.is_allowed());
        }
        limiter.close().await.unwrap();
        assert_eq!(used(&store, subject, &policy).await, served, "unspent units are returned");
    }
    assert_eq!(served, 2_000);
}

#[tokio::test]
async fn a_closed_store_decides_without_leases() {
    let (server, clock) = (RedisServer::start(), clock());
    let store = node(&server, &clock).lease(20).connect().await.unwrap();
    let policy = Policy::new([Limit::per_hour(100)]).unwrap();
    let subjects = ["alice", "bob", "carol"].map(Subject::consumer);
    for subject in &subjects {
        for _ in 0..5 {
            decide(&store, subject, &policy, 1).await;
        }
    }
    let store: Arc<dyn Store> = Arc::new(store);
    store.close().await.unwrap();
    for subject in &subjects {
        assert_eq!(used(&store, subject, &policy).await, 5);
        let decision = decide(&store, subject, &policy, 1).await;
        assert_eq!((decision.origin(), used(&store, subject, &policy).await), (Origin::Store, 6));
    }
    store.close().await.unwrap();
}

/// Requests still arrive while the store is being closed. All units that they lease must be
/// returned.
#[tokio::test]
async fn a_store_that_is_closed_under_load_holds_nothing() {
    let (server, clock) = (RedisServer::start(), clock());
    let policy = Policy::new([Limit::per_hour(100_000)]).unwrap();
    for round in 0..20 {
        let store = node(&server, &clock).lease(20).connect().await.unwrap();
        let subjects = [0, 1, 2].map(|n| Subject::consumer(&format!("{round}-{n}")));
        let load = (0..200).map(async |n| {
            if n == 100 + round {
                store.close().await.unwrap();
            }
            let decision = decide(&store, &subjects[n % 3], &policy, 1 + n as u64 % 4).await;
            assert!(decision.is_allowed());
        });
        join_all(load).await;
        let granted = |place: usize| (0..200).filter(|n| n % 3 == place).map(|n| 1 + n % 4).sum();
        for (place, subject) in subjects.iter().enumerate() {
            let granted: usize = granted(place);
            assert_eq!(used(&store, subject, &policy).await, granted as u64, "round {round}");
        }
    }
}

#[tokio::test]
async fn idle_units_are_returned_after_the_idle_time_and_not_before() {
    let (server, clock) = (RedisServer::start(), clock());
    let store = node(&server, &clock).lease(20).connect().await.unwrap();
    let policy = Policy::new([Limit::per_month(1_000)]).unwrap();
    let subject = &Subject::consumer("alice");
    for _ in 0..3 {
        decide(&store, subject, &policy, 1).await;
        clock.advance(Duration::from_secs(9));
        store.return_idle_leases().await;
    }
    assert_eq!(used(&store, subject, &policy).await, 6, "2 and 4 were leased, 3 are unspent");
    clock.advance(Duration::from_secs(1));
    store.return_idle_leases().await;
    assert_eq!(used(&store, subject, &policy).await, 3);
}

#[tokio::test]
async fn one_task_returns_the_idle_units_of_all_subjects() {
    let server = RedisServer::start();
    let store =
        patient(&server).lease(20).lease_idle(Duration::from_millis(20)).connect().await.unwrap();
    let policy = Policy::new([Limit::per_month(1_000)]).unwrap();
    let subjects: Vec<_> = (0..200).map(|n| Subject::consumer(&n.to_string())).collect();
    decide(&store, &Subject::global(), &policy, 1).await;
    let tasks = || Handle::current().metrics().num_alive_tasks();
    let before = tasks();
    for subject in &subjects {
        decide(&store, subject, &policy, 1).await;
    }
    let after = tasks();
    // The store returns the idle units of at most 64 subjects at the same time, so it needs no task
    // for each of the 200 subjects.
    assert!(after <= before + 70, "{before} tasks became {after}");
    for subject in &subjects {
        let returned = async { while used(&store, subject, &policy).await != 1 {} };
        tokio::time::timeout(PATIENCE, returned).await.unwrap();
    }
}

/// Two scripts are tested: the short one, and the one for a subject that also has counts of another
/// policy.
#[tokio::test]
async fn a_denied_request_charges_nothing_when_units_are_leased() {
    let (server, clock) = (RedisServer::start(), clock());
    let policy = Policy::new([Limit::per_hour(10)]).unwrap();
    let other = Policy::new([Limit::per_day(100)]).unwrap();
    let [a, b] = [20, 20].map(|units| node(&server, &clock).lease(units).local_denial(false));
    let (a, b) = (a.connect().await.unwrap(), b.connect().await.unwrap());
    let plain = node(&server, &clock).connect().await.unwrap();
    for (name, has_other_counts) in [("alice", false), ("bob", true)] {
        let subject = &Subject::consumer(name);
        if has_other_counts {
            decide(&plain, subject, &other, 1).await;
        }
        assert!(decide(&plain, subject, &policy, 7).await.is_allowed());
        let denied = decide(&a, subject, &policy, 5).await;
        let limit = denied.limits().next().unwrap();
        assert_eq!((denied.is_allowed(), limit.used(), limit.remaining()), (false, 7, 3));
        assert_eq!(used(&plain, subject, &policy).await, 7, "{name}");
        // Concurrent requests may share a script call. Such a call must not charge anything either.
        let crowd = join_all((0..40).map(|n| decide(&a, subject, &policy, 4 + n % 3))).await;
        assert!(crowd.iter().all(|decision| !decision.is_allowed()));
        assert_eq!(used(&plain, subject, &policy).await, 7, "{name}");
        for _ in 0..3 {
            assert!(decide(&b, subject, &policy, 1).await.is_allowed());
        }
        assert!(!decide(&b, subject, &policy, 1).await.is_allowed());
    }
}

/// Units that were leased for allowed requests stay leased. Units that were leased for a denied
/// request are returned.
#[tokio::test]
async fn a_denied_request_leaves_the_lease_as_it_was() {
    let (server, clock) = (RedisServer::start(), clock());
    let policy = Policy::new([Limit::per_hour(20)]).unwrap();
    let subject = &Subject::consumer("alice");
    let store = node(&server, &clock).lease(8).connect().await.unwrap();
    let plain = node(&server, &clock).connect().await.unwrap();
    assert!(decide(&store, subject, &policy, 5).await.is_allowed());
    assert!(decide(&store, subject, &policy, 1).await.is_allowed());
    let held = used(&plain, subject, &policy).await;
    assert!(held > 6, "some units are held: {held}");
    assert!(decide(&plain, subject, &policy, 20 - held - 1).await.is_allowed());
    assert!(!decide(&store, subject, &policy, 8).await.is_allowed());
    assert_eq!(used(&plain, subject, &policy).await, 19);
    let held_by_store = held - 6;
    for _ in 0..=held_by_store {
        assert!(decide(&store, subject, &policy, 1).await.is_allowed());
    }
    assert!(!decide(&store, subject, &policy, 1).await.is_allowed());
}

#[tokio::test]
async fn idle_subjects_that_fill_the_table_do_not_switch_leases_off() {
    const MOST: usize = 16_384;

    let (server, clock) = (RedisServer::start(), clock());
    let store = node(&server, &clock).lease(20).connect().await.unwrap();
    let policy = Policy::new([Limit::per_day(5_000)]).unwrap();
    let subjects: Vec<_> = (0..MOST).map(|n| Subject::consumer(&format!("idle-{n}"))).collect();
    for subjects in subjects.chunks(1_024) {
        join_all(subjects.iter().map(|subject| decide(&store, subject, &policy, 1))).await;
    }
    // Two seconds pass. The leases are not idle yet, and no window has ended.
    clock.advance(Duration::from_secs(2));
    let mut leased = 0;
    for n in 0..10 {
        let subject = &Subject::consumer(&format!("busy-{n}"));
        for _ in 0..100 {
            let decision = decide(&store, subject, &policy, 1).await;
            leased += usize::from(decision.origin() == Origin::Leased);
        }
    }
    assert!(leased > 900, "{leased} of 1000 decisions were leased");
    // Each lease that was replaced has returned its unspent units. After ten more seconds, the
    // other leases are idle. One sweep returns the units of 2048 subjects.
    clock.advance(Duration::from_secs(10));
    for _ in 0..=MOST / 2_048 {
        store.return_idle_leases().await;
    }
    let used = join_all(subjects.iter().map(|subject| used(&store, subject, &policy))).await;
    assert_eq!(used.iter().filter(|used| **used != 1).count(), 0);
}

/// A second node's clock is an hour ahead, so its request begins a new window on the server. The
/// first node still grants its leased units of the old window, until its lease ends. The same
/// happens when the server's clock steps forward, or when a machine is suspended.
#[tokio::test]
async fn a_clock_that_jumps_allows_one_more_lease_and_only_within_its_lifetime() {
    let (server, behind, ahead) = (RedisServer::start(), clock(), clock());
    let policy = Policy::new([Limit::per_hour(1_000)]).unwrap();
    let subject = &Subject::consumer("alice");
    let lifetime = Duration::from_secs(60);
    let store = node(&server, &behind).lease(20).lease_lifetime(lifetime).connect().await.unwrap();
    for _ in 0..40 {
        decide(&store, subject, &policy, 1).await;
    }
    ahead.advance(Duration::from_secs(3_600));
    let other = node(&server, &ahead).connect().await.unwrap();
    assert!(decide(&other, subject, &policy, 1_000).await.is_allowed(), "a window has begun");
    let admitted = async || {
        let mut admitted = 0;
        for _ in 0..40 {
            admitted += u64::from(decide(&store, subject, &policy, 1).await.is_allowed());
        }
        admitted
    };
    let of_the_lease = admitted().await;
    assert!((1..=20).contains(&of_the_lease), "{of_the_lease} of a lease of 20");

    // Makes the same requests for another subject. This time the lease of the first node ends
    // before its last request, so this node grants none of its leased units.
    let subject = &Subject::consumer("bob");
    for _ in 0..40 {
        decide(&store, subject, &policy, 1).await;
    }
    ahead.advance(Duration::from_secs(3_600));
    assert!(decide(&other, subject, &policy, 1_000).await.is_allowed(), "a window has begun");
    behind.advance(lifetime);
    assert!(!decide(&store, subject, &policy, 1).await.is_allowed());
}
