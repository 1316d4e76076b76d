//! Leases: nodes reserve units ahead. Together they never exceed the limits, even if nodes fail.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use rl_core::store::{DecideRequest, Mode, Namespace, Part, Reset, Store};
use rl_core::time::{Clock, ManualClock, Timestamp};
use rl_core::{
    Cost, Decision, Limit, Origin, Period, Policy, RedisStore, RedisStoreBuilder, Subject,
};
use rl_tests::web::eventually;
use rl_tests::{Bystander, RedisServer};

#[derive(Clone, Debug)]
enum Event {
    /// A node receives a request with this cost.
    Ask(usize, u64),
    /// A node disappears with its leases, and a new node replaces it.
    Die(usize),
    /// A node is closed, and a new node replaces it.
    Close(usize),
    /// A node returns idle leases.
    Sweep(usize),
}

fn policies() -> impl Strategy<Value = Policy> {
    let limit = |period| (1..60_u64).prop_map(move |max| Limit::new(max, period).unwrap());
    let day = (50..200_u64).prop_map(|max| Limit::new(max, Period::DAY).unwrap());
    (limit(Period::SECOND), limit(Period::MINUTE), day)
        .prop_map(|(second, minute, day)| Policy::new([second, minute, day]).unwrap())
}

async fn decide(
    store: &RedisStore,
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

fn node(server: &RedisServer, clock: &Arc<ManualClock>, lease: u32) -> RedisStoreBuilder {
    // The timeouts are long. With shorter ones, a decision could be made without the store on a
    // busy machine.
    let patience = Duration::from_secs(30);
    let store = RedisStore::builder(&server.url()).connection_wait(patience);
    store.response_timeout(patience).manual_clock(clock.clone()).lease(lease).local_denial(true)
}

/// The units that were allowed in each window. A window is identified by the index of its limit and
/// by its end.
#[derive(Default)]
struct Audit(BTreeMap<(usize, u64), u64>);

impl Audit {
    /// Adds allowed units to the windows that are open on the server. Asserts that no window
    /// exceeds its limit, or contains more units than the server has charged.
    fn count(&mut self, usage: &Decision, now: Timestamp, units: u64) {
        for (place, limit) in usage.limits().enumerate() {
            assert!(limit.is_active(), "units were spent in no window: {usage:?}");
            let ends = now.plus_micros(u64::try_from(limit.reset_after().as_micros()).unwrap());
            let admitted = self.0.entry((place, ends.as_micros())).or_default();
            *admitted += units;
            assert!(*admitted <= limit.max(), "{admitted} of {limit:?}");
            assert!(*admitted <= limit.used(), "more than was charged: {admitted} of {limit:?}");
        }
    }
}

#[test]
fn nodes_that_start_and_stop_never_allow_more_than_the_limits() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let server = RedisServer::start();
    let clock = Arc::new(ManualClock::default());
    let start_node = || runtime.block_on(node(&server, &clock, 20).connect()).unwrap();
    let observer =
        runtime.block_on(server.patient_store().manual_clock(clock.clone()).connect()).unwrap();
    let event = prop_oneof![
        12 => (0..3_usize, prop_oneof![4 => Just(1_u64), 1 => 1..9_u64]).prop_map(|(node, cost)| Event::Ask(node, cost)),
        1 => (0..3_usize).prop_map(Event::Die),
        1 => (0..3_usize).prop_map(Event::Close),
        2 => (0..3_usize).prop_map(Event::Sweep),
    ];
    let advance = prop_oneof![8 => 0..30_000_u64, 1 => 0..1_200_000_u64, 1 => 0..70_000_000_u64];
    let timeline = (policies(), prop::collection::vec((advance, event), 120));
    let (number, leased) = (std::cell::Cell::new(0_u64), std::cell::Cell::new(0_u64));
    let nodes = std::cell::RefCell::new([start_node(), start_node(), start_node()]);
    TestRunner::new(Config { cases: 60, max_shrink_iters: 100, ..Config::default() })
        .run(&timeline, |(policy, events)| {
            number.set(number.get() + 1);
            let subject = Subject::consumer(&format!("leased-{}", number.get()));
            clock.set(Timestamp::from_secs(1_700_000_000));
            let mut audit = Audit::default();
            for (advance, event) in &events {
                clock.advance(Duration::from_micros(*advance));
                match *event {
                    Event::Ask(node, cost) => runtime.block_on(async {
                        let store = nodes.borrow()[node].clone();
                        let decision = decide(&store, &subject, &policy, Mode::Check, cost).await;
                        leased.set(leased.get() + u64::from(decision.origin() == Origin::Leased));
                        if decision.is_allowed() {
                            let usage = decide(&observer, &subject, &policy, Mode::Peek, 0).await;
                            audit.count(&usage, clock.now(), cost);
                        }
                    }),
                    Event::Die(node) => nodes.borrow_mut()[node] = start_node(),
                    Event::Close(node) => {
                        let closed = std::mem::replace(&mut nodes.borrow_mut()[node], start_node());
                        runtime.block_on(closed.close()).unwrap();
                    }
                    Event::Sweep(node) => {
                        let store = nodes.borrow()[node].clone();
                        runtime.block_on(store.return_idle_leases());
                    }
                }
            }
            Ok(())
        })
        .unwrap();
    assert!(leased.get() > 5 * number.get(), "hardly anything was leased: {}", leased.get());
    assert_eq!(runtime.block_on(server.keys_without_expiry()), [""; 0]);
}

/// Concurrent requests. Each has a node, a subject and a cost, in this order.
type Crowd = Vec<(usize, usize, u64)>;

/// Generates groups of concurrent requests. Each group has the pause before it, in microseconds.
fn crowds() -> impl Strategy<Value = Vec<(u64, Crowd)>> {
    let cost = prop_oneof![3 => Just(1_u64), 2 => 1..7_u64];
    let crowd = prop::collection::vec((0..2_usize, 0..3_usize, cost), 1..24);
    let advance = prop_oneof![4 => 0..30_000_u64, 1 => 0..1_200_000_u64];
    prop::collection::vec((advance, crowd), 12)
}

#[test]
fn leased_units_are_granted_only_to_the_request_that_took_them() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let server = RedisServer::start();
    let clock = Arc::new(ManualClock::default());
    let connect = |store: RedisStoreBuilder| runtime.block_on(store.connect()).unwrap();
    let observer = connect(server.patient_store().manual_clock(clock.clone()));
    // If units of one request were given to another one, small leases would show it soonest.
    let fleets = [1, 2, 4].map(|lease| {
        [connect(node(&server, &clock, lease)), connect(node(&server, &clock, lease))]
    });
    let number = std::cell::Cell::new(0_u64);
    TestRunner::new(Config { cases: 90, max_shrink_iters: 100, ..Config::default() })
        .run(&(0..fleets.len(), policies(), crowds()), |(fleet, policy, crowds)| {
            number.set(number.get() + 1);
            clock.set(Timestamp::from_secs(1_700_000_000));
            let subject = |n: usize| Subject::consumer(&format!("crowd-{}-{n}", number.get()));
            let (subjects, fleet) = ([0, 1, 2].map(subject), &fleets[fleet]);
            let mut audits = [(); 3].map(|()| Audit::default());
            for (advance, crowd) in &crowds {
                clock.advance(Duration::from_micros(*advance));
                runtime.block_on(async {
                    let asked = crowd.iter().map(async |(node, whose, cost)| {
                        let (store, subject) = (&fleet[*node], &subjects[*whose]);
                        let decision = decide(store, subject, &policy, Mode::Check, *cost).await;
                        (*whose, if decision.is_allowed() { *cost } else { 0 })
                    });
                    let mut admitted = [0; 3];
                    for (whose, units) in join_all(asked).await {
                        admitted[whose] += units;
                    }
                    for ((subject, audit), units) in subjects.iter().zip(&mut audits).zip(admitted)
                    {
                        if units > 0 {
                            let usage = decide(&observer, subject, &policy, Mode::Peek, 0).await;
                            audit.count(&usage, clock.now(), units);
                        }
                    }
                });
            }
            Ok(())
        })
        .unwrap();
}

/// Makes a check of one unit. Returns the used units of each limit twice: as the decision reports
/// them, and as the server counts them.
async fn used(store: &RedisStore, subject: &Subject, policy: &Policy) -> (Vec<u64>, Vec<u64>) {
    let reported = decide(store, subject, policy, Mode::Check, 1).await;
    assert!(reported.is_allowed());
    let charged = decide(store, subject, policy, Mode::Peek, 0).await;
    let used = |decision: &Decision| decision.limits().map(|limit| limit.used()).collect();
    (used(&reported), used(&charged))
}

#[tokio::test]
async fn a_lease_grows_with_demand_and_returns_unspent_units() {
    let (server, clock) = (RedisServer::start(), Arc::new(ManualClock::default()));
    clock.set(Timestamp::from_secs(1_700_000_000));
    let store = node(&server, &clock, 20).connect().await.unwrap();
    let policy = Policy::new([Limit::per_second(1_000), Limit::per_hour(5_000)]).unwrap();
    let subject = &Subject::consumer("alice");
    // The first calls load the scripts.
    used(&store, &Subject::global(), &policy).await;
    let before = server.calls("evalsha").await;
    let mut seen = Vec::new();
    for _ in 0..8 {
        seen.push(used(&store, subject, &policy).await);
    }
    let (reported, charged): (Vec<_>, Vec<_>) = seen.into_iter().unzip();
    assert_eq!(
        reported,
        (1..=8).map(|n| vec![n, n]).collect::<Vec<_>>(),
        "leased units are not reported as used"
    );
    let hours: Vec<u64> = charged.iter().map(|used| used[1]).collect();
    assert_eq!(hours, [2, 2, 6, 6, 6, 6, 14, 14], "twice as much each time");
    let calls = server.calls("evalsha").await - before;
    assert_eq!(calls, 8 + 3, "8 peeks and 3 leases");

    // Six leased units are still unspent when the window of one second ends. They are returned to
    // the limit per hour before sixteen new units are leased.
    clock.advance(Duration::from_secs(1));
    assert_eq!(used(&store, subject, &policy).await, (vec![1, 9], vec![16, 24]));
}

#[tokio::test]
async fn a_reset_discards_leased_units() {
    let (server, clock) = (RedisServer::start(), Arc::new(ManualClock::default()));
    clock.set(Timestamp::from_secs(1_700_000_000));
    let store = node(&server, &clock, 20).connect().await.unwrap();
    let policy = Policy::new([Limit::per_hour(10)]).unwrap();
    let (subject, namespace) = (&Subject::consumer("alice"), &Namespace::default());
    for expected in [10, 10] {
        let mut allowed = 0;
        for _ in 0..15 {
            allowed +=
                u64::from(decide(&store, subject, &policy, Mode::Check, 1).await.is_allowed());
        }
        assert_eq!(allowed, expected);
        store.reset(&[Reset { namespace, subject, policy: &policy, limit: None }]).await.unwrap();
    }
    decide(&store, subject, &policy, Mode::Check, 1).await;
    store.reset(&[Reset { namespace, subject, policy: &policy, limit: None }]).await.unwrap();
    let fresh = decide(&store, subject, &policy, Mode::Check, 1).await;
    assert_eq!((fresh.origin(), fresh.limits().next().unwrap().used()), (Origin::Store, 1));
}

/// Fault: a reset of one limit discarded the leased units, which the other limits counted on.
#[tokio::test]
async fn a_reset_of_one_limit_returns_the_leased_units_to_the_others() {
    let (server, clock) = (RedisServer::start(), Arc::new(ManualClock::default()));
    clock.set(Timestamp::from_secs(1_700_000_000));
    let store = node(&server, &clock, 100).connect().await.unwrap();
    let policy = Policy::new([Limit::per_minute(1_000), Limit::per_day(2_000)]).unwrap();
    let (subject, namespace) = (&Subject::consumer("alice"), &Namespace::default());
    for rounds in 1..=3 {
        for _ in 0..70 {
            assert!(decide(&store, subject, &policy, Mode::Check, 1).await.is_allowed());
        }
        store
            .reset(&[Reset { namespace, subject, policy: &policy, limit: Some(0) }])
            .await
            .unwrap();
        let used = async || {
            let usage = decide(&store, subject, &policy, Mode::Peek, 0).await;
            usage.limits().map(|limit| limit.used()).collect::<Vec<_>>()
        };
        eventually(async || used().await == [0, 70 * rounds]).await;
    }
}

/// Fault: each denied request leased units of the fleet and put them back without a bound, so that
/// a client over its own limit took them from other instances.
#[tokio::test]
async fn denied_requests_leave_at_most_one_lease_of_the_fleet_unspent() {
    const LEASE: u32 = 10;
    let (server, clock) = (RedisServer::start(), Arc::new(ManualClock::default()));
    clock.set(Timestamp::from_secs(1_700_000_000));
    // A cached denial would deny a request before it leases units.
    let node = |lease| node(&server, &clock, lease).local_denial(false).connect();
    let (leasing, other) = (node(LEASE).await.unwrap(), node(0).await.unwrap());
    let of_key = Policy::new(["50/hour:gcra".parse().unwrap()]).unwrap();
    let of_fleet = Policy::new([Limit::per_hour(1_000)]).unwrap();
    let (key, fleet) = (Subject::consumer("mallory"), Subject::global());
    assert!(decide(&other, &key, &of_key, Mode::Check, 50).await.is_allowed());
    let namespace = Namespace::default();
    for _ in 0..3 {
        let requests = (0..64).map(async |_| {
            let parts =
                [Part::new(&key, &of_key, Cost::ONE), Part::new(&fleet, &of_fleet, Cost::new(8))];
            leasing.decide(DecideRequest::new(&namespace, &parts, Mode::Check)).await.unwrap()
        });
        assert!(join_all(requests).await.iter().all(|decision| !decision.is_allowed()));
    }
    let used = async || {
        let usage = decide(&other, &fleet, &of_fleet, Mode::Peek, 0).await;
        usage.limits().next().unwrap().used()
    };
    eventually(async || used().await <= LEASE.into()).await;
}

/// Only fixed windows that begin with the first request are leased, because their end is fixed.
#[tokio::test]
async fn limits_that_cannot_be_leased_take_a_call_each_time() {
    let (server, clock) = (RedisServer::start(), Arc::new(ManualClock::default()));
    clock.set(Timestamp::from_secs(1_700_000_000));
    let store = node(&server, &clock, 20).connect().await.unwrap();
    for text in
        ["100/minute:gcra", "100/minute:clock", "100/minute:sliding-log", "100/minute:shadow"]
    {
        let policy = Policy::new([text.parse().unwrap()]).unwrap();
        // The first check loads the script.
        decide(&store, &Subject::consumer("first"), &policy, Mode::Check, 1).await;
        let before = server.calls("evalsha").await;
        for _ in 0..5 {
            let decision = decide(&store, &Subject::global(), &policy, Mode::Check, 1).await;
            assert_eq!(decision.origin(), Origin::Store, "{text}");
        }
        assert_eq!(server.calls("evalsha").await - before, 5, "{text}");
    }
}

/// Creates a server and a node on it, with a manual clock.
async fn leasing(lease: u32) -> (RedisServer, Arc<ManualClock>, RedisStore) {
    let (server, clock) = (RedisServer::start(), Arc::new(ManualClock::default()));
    clock.set(Timestamp::from_secs(1_700_000_000));
    let store = node(&server, &clock, lease).connect().await.unwrap();
    (server, clock, store)
}

/// A request needs more units than its lease contains. During the call that leases more units, the
/// lease expires. The new units alone do not cover the cost, so the whole cost is charged in the
/// next window.
#[tokio::test]
async fn a_request_whose_lease_ends_during_its_call_is_charged_in_full() {
    let (server, clock, store) = leasing(4).await;
    let policy = Policy::new([Limit::per_second(10)]).unwrap();
    let subject = Subject::consumer("alice");
    assert!(decide(&store, &subject, &policy, Mode::Check, 1).await.is_allowed());

    let mut operator = Bystander::new(&server).await;
    operator.query::<()>("CLIENT PAUSE 1000000 WRITE").await;
    let asking = tokio::spawn({
        let (store, subject, policy) = (store.clone(), subject.clone(), policy.clone());
        async move { decide(&store, &subject, &policy, Mode::Check, 3).await }
    });
    while !operator.query::<String>("INFO clients").await.contains("blocked_clients:1") {}
    clock.advance(Duration::from_secs(1));
    operator.query::<()>("CLIENT UNPAUSE").await;
    let decision = asking.await.unwrap();
    assert_eq!((decision.is_allowed(), decision.granted()), (true, 3));
    let charged = decide(&store, &subject, &policy, Mode::Peek, 0).await;
    assert!(
        charged.limits().next().unwrap().used() >= 3,
        "in the window that is open: {charged:?}"
    );
}

#[tokio::test]
async fn a_cost_above_the_lease_is_charged_whole_or_not_at_all() {
    let (_server, _clock, store) = leasing(4).await;
    let policy = Policy::new([Limit::per_hour(10)]).unwrap();
    let subject = &Subject::consumer("alice");
    let used = async || {
        let usage = decide(&store, subject, &policy, Mode::Peek, 0).await;
        usage.limits().next().unwrap().used()
    };
    assert!(!decide(&store, subject, &policy, Mode::Check, 11).await.is_allowed());
    assert_eq!(used().await, 0);
    assert!(decide(&store, subject, &policy, Mode::Check, 1).await.is_allowed());
    assert_eq!(used().await, 2, "one is held");
    assert!(!decide(&store, subject, &policy, Mode::Check, 10).await.is_allowed());
    assert_eq!(used().await, 1, "the held unit was returned");
    assert!(decide(&store, subject, &policy, Mode::Check, 9).await.is_allowed());
    assert_eq!(used().await, 10);
}

#[tokio::test]
async fn a_lease_has_one_task_however_often_it_is_refilled() {
    let (_server, _clock, store) = leasing(2).await;
    let policy = Policy::new([Limit::per_hour(1_000)]).unwrap();
    let subject = &Subject::consumer("alice");
    decide(&store, subject, &policy, Mode::Check, 1).await;
    let alive = || tokio::runtime::Handle::current().metrics().num_alive_tasks();
    let before = alive();
    for cost in (0..60).map(|n| 1 + n % 3) {
        assert!(decide(&store, subject, &policy, Mode::Check, cost).await.is_allowed());
    }
    let after = alive();
    assert!(after <= before + 5, "{before} tasks became {after}");
}

#[tokio::test]
async fn leased_units_are_spent_while_the_server_is_down() {
    let (mut server, _clock, store) = leasing(4).await;
    let policy = Policy::new([Limit::per_hour(100)]).unwrap();
    let (subject, namespace) = (&Subject::consumer("alice"), &Namespace::default());
    decide(&store, subject, &policy, Mode::Check, 1).await;
    server.stop();
    let cost = Cost::new(2);
    let parts = [Part::new(subject, &policy, cost)];
    let request = DecideRequest::new(namespace, &parts, Mode::Check);
    store.decide(request).await.unwrap_err();
    let held = decide(&store, subject, &policy, Mode::Check, 1).await;
    assert_eq!((held.is_allowed(), held.origin()), (true, Origin::Leased));
}

#[tokio::test]
async fn requests_waiting_for_an_exhausted_lease_share_calls() {
    for remembers in [true, false] {
        let (server, clock, _) = leasing(8).await;
        let store = node(&server, &clock, 8).local_denial(remembers).connect().await.unwrap();
        let policy = Policy::new([Limit::per_hour(10)]).unwrap();
        let subject = &Subject::consumer("alice");
        decide(&store, &Subject::global(), &policy, Mode::Peek, 0).await;
        let before = server.calls("evalsha").await;
        let ask = |_| decide(&store, subject, &policy, Mode::Check, 1);
        let decided = join_all((0..200).map(ask)).await;
        let allowed = decided.iter().filter(|decision| decision.is_allowed()).count();
        let calls = server.calls("evalsha").await - before;
        assert_eq!(allowed, 10);
        assert!(calls <= 20, "{calls} calls, denials are remembered: {remembers}");
    }
}
