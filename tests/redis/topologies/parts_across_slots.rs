//! Requests whose parts are on different primaries of a cluster: no part is allowed above its
//! limit, and a denied request leaves no charge, whatever fails meanwhile.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use rl_core::time::{Clock, SystemClock, Timestamp};
use rl_core::{
    Decision, Origin, Part, Policy, RateLimiter, RedisStore, RedisStoreBuilder, Subject,
};
use rl_tests::web::eventually;
use rl_tests::{Bystander, RedisCluster};
use tokio::task::JoinSet;

use super::cluster::{calls, owner, promotion, start, store};
use super::load::replicated;
use super::{PATIENCE, patient};

/// The number of tasks that send requests concurrently, and the number of stores that they share.
const TASKS: usize = 8;
const STORES: usize = 4;
const KEYS: usize = 12;
const CUSTOMERS: usize = 3;

/// The subjects and the limits of the requests. A request has three parts: a key, its customer, and
/// the fleet.
struct Rules {
    /// The subjects of keys, which are on the second primary.
    keys: Vec<Subject>,
    /// The subjects of customers, which are on the third primary.
    customers: Vec<Subject>,
    /// The subject of the fleet, which is on the first primary.
    fleet: Subject,
    of_key: Policy,
    of_customer: Policy,
    of_fleet: Policy,
}

impl Rules {
    async fn new(cluster: &RedisCluster, limits: [&str; 3]) -> Self {
        let mut operator = Bystander::new(&cluster.servers[0]).await;
        let policy = |limit: &str| Policy::new([limit.parse().unwrap()]).unwrap();
        let [of_key, of_customer, of_fleet] = limits.map(policy);
        Self {
            keys: on_primary(&mut operator, 1, KEYS).await,
            customers: on_primary(&mut operator, 2, CUSTOMERS).await,
            fleet: on_primary(&mut operator, 0, 1).await.remove(0),
            of_key,
            of_customer,
            of_fleet,
        }
    }

    /// Returns the parts of a request. `key` is the index of its key.
    fn parts(&self, key: usize) -> [Part<'_>; 3] {
        let part = |subject, policy| Part::new(subject, policy, 1.into());
        [
            part(&self.keys[key], &self.of_key),
            part(&self.customers[key % CUSTOMERS], &self.of_customer),
            part(&self.fleet, &self.of_fleet),
        ]
    }

    /// Returns the parts of all keys, of all customers, and of the fleet.
    fn all(&self) -> Vec<Part<'_>> {
        let keys = (0..KEYS).map(|key| self.parts(key)[0]);
        let customers = (0..CUSTOMERS).map(|key| self.parts(key)[1]);
        keys.chain(customers).chain([self.parts(0)[2]]).collect()
    }
}

/// Returns `count` subjects whose counters are on this primary.
async fn on_primary(operator: &mut Bystander, primary: usize, count: usize) -> Vec<Subject> {
    let mut subjects = Vec::new();
    for number in 0.. {
        let id = format!("part-{number}");
        let slot: u16 = operator.query(&format!("CLUSTER KEYSLOT {{{id}}}")).await;
        if owner(slot) == primary {
            subjects.push(Subject::consumer(&id));
        }
        if subjects.len() == count {
            break;
        }
    }
    subjects
}

fn limiter(store: RedisStore, deadline: Duration) -> RateLimiter {
    let limiter = RateLimiter::builder().policies(|_: &Subject| None).store(store);
    limiter.deadline(deadline).build().unwrap()
}

/// A decision and the index of the key that requested it, with the times at which the request was
/// sent and the decision arrived.
struct Answer {
    key: usize,
    decision: Decision,
    sent: Timestamp,
    came: Timestamp,
}

/// Creates the stores of a load. They wait long for connections.
async fn patient_stores(
    cluster: &RedisCluster,
    configure: impl Fn(RedisStoreBuilder) -> RedisStoreBuilder,
) -> Vec<RedisStore> {
    let mut stores = Vec::new();
    for _ in 0..STORES {
        stores.push(patient(configure(store(cluster))).await);
    }
    stores
}

/// Requests of several tasks through several stores, until they are stopped.
struct Load {
    stop: Arc<AtomicBool>,
    tasks: JoinSet<Vec<Answer>>,
    answered: Arc<AtomicUsize>,
    stores: Vec<RedisStore>,
}

impl Load {
    fn start(rules: &Arc<Rules>, stores: Vec<RedisStore>, deadline: Duration) -> Self {
        let (stop, answered) = (Arc::new(AtomicBool::new(false)), Arc::<AtomicUsize>::default());
        let mut tasks = JoinSet::new();
        for task in 0..TASKS {
            let (stop, rules, answered) =
                (Arc::clone(&stop), Arc::clone(rules), Arc::clone(&answered));
            let limiter = limiter(stores[task % STORES].clone(), deadline);
            tasks.spawn(async move {
                let mut answers = Vec::new();
                let mut ticks = tokio::time::interval(Duration::from_millis(4));
                for number in task.. {
                    if stop.load(Ordering::Relaxed) {
                        break;
                    }
                    ticks.tick().await;
                    let key = number * 7 % KEYS;
                    let sent = SystemClock.now();
                    let decision = limiter.request(&rules.parts(key)).check().await;
                    answers.push(Answer { key, decision, sent, came: SystemClock.now() });
                    answered.fetch_add(1, Ordering::Relaxed);
                }
                answers
            });
        }
        Self { stop, tasks, answered, stores }
    }

    /// Waits until this number of requests was answered.
    async fn answers(&self, count: usize) {
        eventually(|| async { self.answered.load(Ordering::Relaxed) >= count }).await;
    }

    async fn stop(self) -> Outcome {
        self.stop.store(true, Ordering::Relaxed);
        let answers = self.tasks.join_all().await.into_iter().flatten().collect();
        Outcome { answers, stores: self.stores }
    }
}

struct Outcome {
    answers: Vec<Answer>,
    stores: Vec<RedisStore>,
}

impl Outcome {
    /// Returns for each subject the number of its requests for which `counts` returns true.
    fn count(&self, rules: &Rules, counts: impl Fn(&Answer) -> bool) -> HashMap<Subject, u64> {
        let all = rules.all().into_iter().map(|part| (part.subject.clone(), 0));
        let mut requests: HashMap<_, _> = all.collect();
        for answer in self.answers.iter().filter(|answer| counts(answer)) {
            for part in rules.parts(answer.key) {
                *requests.entry(part.subject.clone()).or_default() += 1;
            }
        }
        requests
    }

    fn unreturned(&self) -> u64 {
        self.stores.iter().map(RedisStore::unreturned_charges).sum()
    }

    /// Asserts for each part that no more requests were allowed than its limit permits. Also
    /// asserts that every allowed request is charged, and that no denied one is. A request whose
    /// result is unknown may be charged.
    async fn assert_exact(&self, rules: &Rules, parts: impl IntoIterator<Item = Part<'_>>) {
        let allowed = self.count(rules, |answer| is_allowed(&answer.decision));
        let unknown = self.count(rules, |answer| !is_decided(&answer.decision));
        let limiter = limiter(self.stores[0].clone(), PATIENCE);
        for part in parts {
            let (allowed, unknown) = (allowed[part.subject], unknown[part.subject]);
            let max = part.policy.limits()[0].limit().max();
            assert!(allowed <= max, "{part:?}: {allowed} of {max}");
            // A denied request is charged for a moment, until its charges are returned.
            eventually(|| async {
                let used = used(&limiter, part).await.unwrap();
                allowed <= used && used <= allowed + unknown + self.unreturned()
            })
            .await;
        }
    }
}

/// Returns the used units of a part; `None` if the store does not reply.
async fn used(limiter: &RateLimiter, part: Part<'_>) -> Option<u64> {
    let usage = limiter.request(&part).usage().await.ok()?;
    usage.limits().next().map(|limit| limit.used())
}

/// Waits until the fleet has used up its limit.
async fn is_exhausted(limiter: &RateLimiter, rules: &Rules) {
    let fleet = rules.parts(0)[2];
    let max = rules.of_fleet.limits()[0].limit().max();
    eventually(|| async { used(limiter, fleet).await == Some(max) }).await;
}

fn is_decided(decision: &Decision) -> bool {
    matches!(decision.origin(), Origin::Store | Origin::Leased | Origin::LocalDeny)
}

fn is_allowed(decision: &Decision) -> bool {
    is_decided(decision) && decision.is_allowed()
}

/// Every operation on parts reaches the slots of all parts.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_operation_works_on_parts_in_several_slots() {
    let cluster = start().await;
    let limits = ["20/hour", "9/hour:sliding-log", "5:concurrency:lease=1hour"];
    let rules = Rules::new(&cluster, limits).await;
    let limiter = limiter(patient(store(&cluster)).await, PATIENCE);
    let parts =
        |cost: u64| rules.parts(0).map(|part| Part::new(part.subject, part.policy, cost.into()));
    let assert_used = async |expected: [u64; 3]| {
        eventually(|| async {
            let mut all = [0; 3];
            for (used_units, part) in all.iter_mut().zip(parts(1)) {
                *used_units = used(&limiter, part).await.unwrap();
            }
            all == expected
        })
        .await;
    };

    let peeked = limiter.request(&parts(5)).peek().await;
    assert!(peeked.is_allowed());
    assert_used([0, 0, 0]).await;
    let granted = limiter.request(&parts(7)).check_up_to().await;
    assert_eq!(granted.parts().map(|part| part.charged()).collect::<Vec<_>>(), [5, 5, 5]);
    assert_used([5, 5, 5]).await;
    limiter.request(&parts(7)).refund(&granted, &[1, 2, 5]).await.unwrap();
    assert_used([4, 3, 0]).await;
    assert!(limiter.request(&parts(2)).charge().await.is_allowed());
    assert_used([6, 5, 0]).await;

    let permit = limiter.request(&parts(3)).acquire().await;
    assert!(permit.decision().is_allowed());
    assert_used([9, 8, 3]).await;
    let denied = limiter.request(&parts(3)).check().await;
    assert!(!denied.is_allowed());
    let over: Vec<bool> = denied.parts().map(|part| part.is_over()).collect();
    assert_eq!(over, [false, true, true], "every part is reported");
    assert_used([9, 8, 3]).await;
    permit.set_cost(1);
    permit.settle().await.unwrap();
    assert_used([7, 6, 0]).await;
    limiter.request(&parts(1)[1]).reset().await.unwrap_err();
    let administrator = RedisStore::cluster(cluster.urls());
    let administrator = self::limiter(patient(administrator).await, PATIENCE);
    administrator.request(&parts(1)[1]).reset().await.unwrap();
    assert_used([7, 0, 0]).await;

    // The parts are in three slots. Their usage takes one call for each slot, and so does their
    // reset.
    let before = calls(&cluster).await;
    let usage = administrator.request(&parts(1)).usage().await.unwrap();
    let used: Vec<u64> =
        usage.parts().flat_map(|part| part.limits().next()).map(|l| l.used()).collect();
    assert_eq!(used, [7, 0, 0]);
    assert_eq!(calls(&cluster).await - before, 3);
    let before = calls(&cluster).await;
    administrator.request(&parts(1)).reset().await.unwrap();
    assert_eq!(calls(&cluster).await - before, 3);
    assert_used([0, 0, 0]).await;
}

/// No limit is exceeded. In the end, the fleet has used all its units: units that a denied request
/// held for a moment are granted to later requests.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn parts_on_three_primaries_are_charged_together_or_not_at_all() {
    let cluster = start().await;
    for (limits, configure) in [
        (["9/hour", "26/hour:sliding-log", "70/hour"], (|store| store) as fn(_) -> _),
        (
            ["9/hour", "26/hour", "70/hour:sliding-window:precision=minute"],
            |store: RedisStoreBuilder| store.slot_groups(9),
        ),
    ] {
        let rules = Arc::new(Rules::new(&cluster, limits).await);
        let load = Load::start(&rules, patient_stores(&cluster, configure).await, PATIENCE);
        let limiter = limiter(load.stores[0].clone(), PATIENCE);
        is_exhausted(&limiter, &rules).await;
        let outcome = load.stop().await;
        assert!(outcome.answers.iter().all(|answer| is_decided(&answer.decision)));
        outcome.assert_exact(&rules, rules.all()).await;
        assert_eq!(outcome.unreturned(), 0);
        let allowed = outcome.count(&rules, |answer| is_allowed(&answer.decision));
        assert_eq!(allowed[&rules.fleet], 70, "of {} requests", outcome.answers.len());
        for mut operator in cluster.operators().await.drain(..3) {
            operator.query::<()>("FLUSHALL").await;
        }
    }
}

/// Leased units and cached denials decide some parts without a call. Leased units are charged
/// before they are granted, so no limit is exceeded.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn shortcuts_allow_no_part_above_its_limit() {
    let cluster = start().await;
    let rules = Arc::new(Rules::new(&cluster, ["9/hour", "60/hour", "80/hour"]).await);
    let stores = patient_stores(&cluster, |store| store.lease(8).local_denial(true)).await;
    let load = Load::start(&rules, stores, PATIENCE);
    load.answers(1_000).await;
    let outcome = load.stop().await;
    for store in &outcome.stores {
        store.close().await.unwrap();
    }
    outcome.assert_exact(&rules, rules.all()).await;
    let origins = outcome.answers.iter().map(|answer| answer.decision.origin());
    let origins = origins.fold(BTreeMap::<_, u32>::new(), |mut counts, origin| {
        *counts.entry(origin.as_str()).or_default() += 1;
        counts
    });
    println!("{} requests: {origins:?}", outcome.answers.len());
    assert!(origins.contains_key("local_deny"), "{origins:?}");
}

/// Commands are redirected, and replies are lost. Only requests whose result is unknown may leave
/// charges behind.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn migrated_slots_and_cut_connections_allow_no_part_above_its_limit() {
    let cluster = start().await;
    let limits = ["60/hour", "170/hour:sliding-log", "450/hour"];
    let rules = Arc::new(Rules::new(&cluster, limits).await);
    let stores = patient_stores(&cluster, |store| store).await;
    let load = Load::start(&rules, stores, PATIENCE);
    let mut operators = cluster.operators().await;
    let mut slots = Vec::new();
    for subject in [&rules.fleet, &rules.keys[0], &rules.customers[0]] {
        let keyslot = format!("CLUSTER KEYSLOT {{{}}}", subject.id());
        slots.push(operators[0].query::<u16>(&keyslot).await);
    }
    let mut ticks = tokio::time::interval(Duration::from_millis(25));
    for round in 0..18 {
        for operator in &mut operators[..3] {
            // Cuts the connections of the stores. The operators have another user, and keep theirs.
            operator.query::<u32>("CLIENT KILL TYPE normal USER rl").await;
        }
        if round == 9 {
            for slot in &slots {
                let (home, other) = (owner(*slot), (owner(*slot) + 1) % 3);
                cluster.move_slot(*slot, home, other).await;
                // Waits until the servers have learnt the new owner from each other.
                for _ in 0..10 {
                    ticks.tick().await;
                }
                cluster.move_slot(*slot, other, home).await;
                for _ in 0..10 {
                    ticks.tick().await;
                }
            }
        }
        ticks.tick().await;
        ticks.tick().await;
    }
    let limiter = limiter(load.stores[0].clone(), PATIENCE);
    is_exhausted(&limiter, &rules).await;
    let outcome = load.stop().await;
    let unknown = outcome.answers.iter().filter(|answer| !is_decided(&answer.decision)).count();
    println!(
        "{} requests, {unknown} without a decision, {} charges not given back",
        outcome.answers.len(),
        outcome.unreturned()
    );
    assert!(unknown > 0, "no connection was cut while a request was in flight");
    outcome.assert_exact(&rules, rules.all()).await;
}

/// A primary is killed. Counts that it had not replicated are lost. Refunds that arrive after the
/// promotion may subtract charges that were lost. Parts on the other primaries stay exact.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_primary_loses_only_the_counts_that_it_had_not_replicated() {
    let mut cluster = start().await;
    let limits = ["40/hour", "400/hour", "300/hour"];
    let rules = Arc::new(Rules::new(&cluster, limits).await);
    let mut stores = Vec::new();
    for _ in 0..STORES {
        stores.push(store(&cluster).connect().await.unwrap());
    }
    let load = Load::start(&rules, stores, Duration::from_millis(100));
    let limiter = limiter(load.stores[0].clone(), PATIENCE);
    let fleet = rules.parts(0)[2];
    eventually(|| async { used(&limiter, fleet).await > Some(150) }).await;
    let replicated = replicated(&cluster.servers[0], 1).await;
    cluster.servers[0].stop();
    let failed = SystemClock.now();
    promotion(&cluster).await;
    is_exhausted(&limiter, &rules).await;
    let outcome = load.stop().await;

    let allowed = outcome.count(&rules, |answer| is_allowed(&answer.decision));
    let unknown = outcome.count(&rules, |answer| !is_decided(&answer.decision));
    // The replica may lack the charges that were made after its last confirmation. It may also
    // receive refunds of charges that it lacks.
    let at_risk =
        outcome.count(&rules, |answer| answer.sent <= failed && answer.came >= replicated);
    println!(
        "{} requests, {} without a decision, {} charges not given back, {} of 300 allowed, {} at \
         risk",
        outcome.answers.len(),
        unknown[&rules.fleet],
        outcome.unreturned(),
        allowed[&rules.fleet],
        at_risk[&rules.fleet],
    );
    assert!(unknown[&rules.fleet] > 0, "the primary was not needed");
    assert!(allowed[&rules.fleet] <= 300 + at_risk[&rules.fleet]);
    let others = rules.all().into_iter().filter(|part| *part.subject != rules.fleet);
    outcome.assert_exact(&rules, others).await;
}

/// A process dies between two calls. The charges of its requests in flight count until their
/// windows end, and its permits until their leases end.
#[test]
fn the_charges_of_a_process_that_dies_between_two_calls_expire() {
    const REQUESTS: u64 = 5;
    let runtime = || tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let observer = runtime();
    let cluster = observer.block_on(start());
    for limit in ["5/6seconds", "5:concurrency:lease=6seconds"] {
        let rules = observer.block_on(Rules::new(&cluster, [limit, "9/hour", "90000/hour"]));
        let rules = Arc::new(rules);
        let observing = observer.block_on(patient(store(&cluster)));
        let observing = limiter(observing, PATIENCE);
        // Dropping the runtime of the service ends all its tasks.
        let service = runtime();
        let serving = limiter(service.block_on(patient(store(&cluster))), PATIENCE);

        // The primary with the counter of the fleet does not reply. So each request charges its
        // first part, the key, and then waits.
        cluster.servers[0].signal("STOP");
        for _ in 0..REQUESTS {
            let (serving, rules) = (serving.clone(), Arc::clone(&rules));
            service.spawn(async move {
                let [key, _, fleet] = rules.parts(0);
                serving.request(&[key, fleet]).check().await
            });
        }
        let [key, _, fleet] = rules.parts(0);
        let used_by_key = || used(&observing, key);
        observer.block_on(eventually(|| async { used_by_key().await == Some(REQUESTS) }));
        service.shutdown_background();
        cluster.servers[0].signal("CONT");
        observer.block_on(async {
            assert_eq!(used_by_key().await, Some(REQUESTS), "{limit}");
            eventually(|| async { used_by_key().await == Some(0) }).await;
            let decision = observing.request(&[key, fleet]).check().await;
            assert!(is_allowed(&decision), "{limit}: {decision:?}");
        });
        drop(serving);
    }
}
