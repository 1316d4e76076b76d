//! Shortcuts for requests of several parts: batches, cached denials and leased units decide as the
//! server does, and charge nothing for a denied request.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::time::Duration;

use futures::future::join_all;
use rl_core::{Origin, RedisStoreBuilder};

use super::*;

/// The number of subjects of each rule.
const SUBJECTS: usize = 3;

/// A request: for each rule, the subject and the cost.
type Request = Vec<(usize, u64)>;

/// The rules of a timeline: their policies, and the namespaces in which they count.
struct Rules {
    policies: Vec<Policy>,
    namespaces: Vec<Namespace>,
    subjects: Vec<Subject>,
}

impl Rules {
    fn new(number: u64, policies: &[Policy]) -> Self {
        let name = |index| Namespace::default().rule(&format!("rule-{index}")).unwrap();
        Self {
            policies: policies.to_vec(),
            namespaces: (0..policies.len()).map(name).collect(),
            subjects: (0..SUBJECTS)
                .map(|index| Subject::consumer(&format!("{number}-{index}")))
                .collect(),
        }
    }

    fn part(&self, rule: usize, subject: usize, cost: u64) -> Part<'_> {
        let part = Part::new(&self.subjects[subject], &self.policies[rule], Cost::new(cost));
        part.with_namespace(&self.namespaces[rule])
    }

    fn parts(&self, request: &Request) -> Vec<Part<'_>> {
        let rules = request.iter().enumerate();
        rules.map(|(rule, (subject, cost))| self.part(rule, *subject, *cost)).collect()
    }

    async fn decide(&self, store: &dyn Store, request: &Request) -> Result<Decision, StoreError> {
        let (namespace, parts) = (Namespace::default(), self.parts(request));
        store.decide(DecideRequest::new(&namespace, &parts, Mode::Check)).await
    }
}

fn policies(limits: &'static [&'static str]) -> impl Strategy<Value = Vec<Policy>> {
    let limit = prop::sample::select(limits.to_vec());
    let policy = prop::collection::vec(limit, 1..=3).prop_filter_map("one state twice", |limits| {
        Policy::new(limits.iter().map(|limit| limit.parse::<Limit>().unwrap())).ok()
    });
    prop::collection::vec(policy, 2..=3)
}

fn cost() -> impl Strategy<Value = u64> {
    prop_oneof![6 => Just(1_u64), 1 => 2..5_u64]
}

fn request(rules: usize) -> impl Strategy<Value = Request> {
    prop::collection::vec((0..SUBJECTS, cost()), rules)
}

const RATES: &[&str] = &[
    "4/minute",
    "20/hour",
    "9/second",
    "6/minute:gcra",
    "12/minute:token-bucket:capacity=5",
    "15/hour:sliding-window-counter",
    "7/minute:sliding-window:precision=10s",
    "10/hour:clock",
    "5/minute:requests",
];

/// Checks that Redis decides the requests of one batch as the memory store decides them one after
/// the other. All fields of the decisions are compared.
#[test]
fn requests_of_parts_in_one_batch_are_decided_one_after_the_other() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let server = RedisServer::start();
    let clock = Arc::new(ManualClock::default());
    let memory = MemoryStore::builder().clock(clock.clone()).build();
    // There is only one connection, so that requests are served in the order of their arrival.
    let redis = server.patient_store().connections(1).manual_clock(clock.clone());
    let redis = runtime.block_on(redis.script_shapes(usize::MAX).connect()).unwrap();
    let crowds = |rules| prop::collection::vec(prop::collection::vec(request(rules), 1..40), 1..6);
    let timeline = policies(RATES).prop_flat_map(move |policies| {
        let rules = policies.len();
        (Just(policies), crowds(rules), 0..9_000_000_u64)
    });
    let number = Cell::new(0_u64);
    let cases = u32::try_from(steps() / 100).unwrap();
    TestRunner::new(Config { cases, failure_persistence: None, ..Config::default() })
        .run(&timeline, |(policies, crowds, advance)| {
            number.set(number.get() + 1);
            clock.set(Timestamp::from_secs(1_700_000_000));
            // These requests load the scripts. A call whose script is not loaded yet is sent twice,
            // which may change the order of arrival.
            let first = Rules::new(u64::MAX - number.get(), &policies);
            let request = vec![(0, 1); policies.len()];
            runtime.block_on(join_all((0..3).map(|_| first.decide(&redis, &request))));
            let rules = Rules::new(number.get(), &policies);
            for crowd in &crowds {
                clock.advance(Duration::from_micros(advance));
                let (mut one_by_one, mut together) = (Vec::new(), Vec::new());
                runtime.block_on(async {
                    let all = crowd.iter().map(|request| rules.decide(&redis, request));
                    together = join_all(all).await;
                    for request in crowd {
                        one_by_one.push(rules.decide(&memory, request).await);
                    }
                });
                for (rust, lua) in one_by_one.iter().zip(&together) {
                    let (rust, lua) = (rust.as_ref().unwrap(), lua.as_ref().unwrap());
                    prop_assert_eq!(format!("{rust:#?}"), format!("{lua:#?}"), "{:?}", crowd);
                }
            }
            Ok(())
        })
        .unwrap();
    assert_eq!(runtime.block_on(server.keys_without_expiry()), [""; 0]);
}

/// A cached denial of one part denies no request that the server would allow.
#[test]
fn a_cached_denial_of_a_part_equals_the_decision_of_the_server() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let server = RedisServer::start();
    let clock = Arc::new(ManualClock::default());
    let memory = MemoryStore::builder().clock(clock.clone()).build();
    let store = |remembers| {
        let store = server.patient_store().manual_clock(clock.clone());
        runtime.block_on(store.local_denial(remembers).connect()).unwrap()
    };
    let stores = [store(false), store(true)];
    let moment = |rules| {
        (any::<bool>(), request(rules), prop_oneof![4 => 0..60_000_u64, 1 => 0..1_500_000_u64])
    };
    let timeline = policies(RATES).prop_flat_map(move |policies| {
        let rules = policies.len();
        (Just(policies), prop::collection::vec(moment(rules), 60))
    });
    let (number, local) = (Cell::new(0_u64), Cell::new(0_u64));
    let cases = u32::try_from(steps() / 100).unwrap();
    TestRunner::new(Config { cases, failure_persistence: None, ..Config::default() })
        .run(&timeline, |(policies, moments)| {
            number.set(number.get() + 1);
            clock.set(Timestamp::from_secs(1_700_000_000));
            let rules = Rules::new(number.get(), &policies);
            for (remembers, request, advance) in &moments {
                clock.advance(Duration::from_micros(*advance));
                runtime.block_on(async {
                    let truth = rules.decide(&memory, request).await.unwrap();
                    let store = &stores[usize::from(*remembers)];
                    let decision = rules.decide(store, request).await.unwrap();
                    assert_eq!(truth.is_allowed(), decision.is_allowed(), "{decision:#?}");
                    if decision.origin() == Origin::LocalDeny {
                        local.set(local.get() + 1);
                        assert!(decision.retry_after() <= truth.retry_after());
                    }
                });
            }
            Ok(())
        })
        .unwrap();
    assert!(local.get() > number.get(), "hardly any denial was remembered: {}", local.get());
}

/// The units that were allowed under each limit of each rule and subject, by the end of the window.
#[derive(Default)]
struct Admitted(BTreeMap<(usize, usize, usize, u64), u64>);

/// Nodes with leases grant no more than the limits. Once all nodes are closed, the server has
/// counted exactly the allowed units, so denied requests were not charged.
#[test]
fn leased_units_of_a_part_are_spent_once_and_only_by_allowed_requests() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let server = RedisServer::start();
    let clock = Arc::new(ManualClock::default());
    let connect = |store: RedisStoreBuilder| runtime.block_on(store.connect()).unwrap();
    let node =
        || connect(server.patient_store().manual_clock(clock.clone()).lease(8).local_denial(true));
    let observer = connect(server.patient_store().manual_clock(clock.clone()));
    let windows = policies(&["40/minute", "90/hour", "25/second", "60/day", "9/hour:gcra"]);
    let crowd = |rules| prop::collection::vec((0..2_usize, request(rules)), 1..12);
    let advance = prop_oneof![3 => Just(0_u64), 1 => 0..400_000_u64, 1 => 0..2_000_000_u64];
    let timeline =
        (windows, prop::collection::vec(advance, 10)).prop_flat_map(move |(policies, advances)| {
            let rules = policies.len();
            (Just(policies), Just(advances), prop::collection::vec(crowd(rules), 10))
        });
    let (number, leased) = (Cell::new(0_u64), Cell::new(0_u64));
    let _ = timeline;
    let (adv, cro): (Vec<u64>, Vec<Vec<(usize, Vec<(usize, u64)>)>>) = (vec![0, 192009, 0, 0, 0, 60837, 0, 0, 241076, 0], vec![vec![(0, vec![(1, 1), (2, 1)]), (1, vec![(0, 1), (2, 1)]), (0, vec![(2, 1), (2, 1)]), (0, vec![(1, 1), (1, 1)]), (0, vec![(1, 1), (0, 1)]), (1, vec![(0, 1), (1, 1)]), (1, vec![(1, 1), (1, 1)])], vec![(0, vec![(2, 1), (2, 1)]), (0, vec![(0, 3), (0, 1)]), (0, vec![(1, 1), (0, 1)]), (1, vec![(0, 1), (1, 1)]), (0, vec![(2, 1), (1, 1)])], vec![(1, vec![(0, 1), (1, 1)])], vec![(1, vec![(2, 1), (0, 1)]), (1, vec![(1, 1), (0, 3)]), (1, vec![(1, 1), (2, 1)]), (1, vec![(1, 1), (0, 1)]), (0, vec![(0, 1), (0, 1)]), (0, vec![(2, 1), (0, 4)]), (0, vec![(2, 1), (1, 1)]), (1, vec![(1, 1), (1, 1)])], vec![(1, vec![(1, 4), (0, 1)]), (0, vec![(1, 1), (0, 1)]), (0, vec![(0, 1), (2, 2)]), (1, vec![(1, 1), (2, 1)]), (1, vec![(1, 4), (1, 1)])], vec![(0, vec![(1, 1), (0, 1)]), (1, vec![(0, 1), (2, 1)]), (1, vec![(0, 1), (0, 1)]), (0, vec![(0, 1), (0, 1)]), (1, vec![(2, 1), (0, 1)]), (1, vec![(2, 1), (0, 1)])], vec![(0, vec![(0, 1), (2, 1)]), (0, vec![(0, 3), (1, 1)]), (1, vec![(2, 1), (0, 1)]), (0, vec![(0, 1), (1, 4)])], vec![(0, vec![(1, 1), (1, 2)]), (0, vec![(0, 1), (1, 1)]), (1, vec![(0, 1), (2, 4)]), (1, vec![(2, 1), (1, 1)]), (0, vec![(0, 1), (1, 1)]), (0, vec![(0, 1), (0, 1)]), (0, vec![(1, 1), (0, 1)]), (1, vec![(1, 1), (1, 1)]), (0, vec![(0, 1), (1, 1)])], vec![(0, vec![(1, 1), (1, 1)]), (0, vec![(2, 1), (2, 1)]), (1, vec![(1, 1), (1, 1)]), (0, vec![(2, 1), (1, 1)]), (1, vec![(0, 3), (1, 3)]), (0, vec![(2, 3), (0, 1)]), (0, vec![(2, 1), (2, 3)]), (0, vec![(2, 1), (0, 1)])], vec![(1, vec![(0, 1), (1, 3)]), (1, vec![(2, 1), (0, 1)]), (0, vec![(0, 1), (0, 1)]), (1, vec![(2, 1), (2, 1)]), (1, vec![(1, 1), (2, 1)]), (0, vec![(2, 1), (0, 1)])]]);
    let timeline = Just((crate::twins::part_shortcuts::two_policies(), adv, cro));
    let cases = 800;
    TestRunner::new(Config { cases, failure_persistence: None, ..Config::default() })
        .run(&timeline, |(policies, advances, crowds)| {
            number.set(number.get() + 1);
            clock.set(Timestamp::from_secs(1_700_000_000));
            let rules = Rules::new(number.get(), &policies);
            let (nodes, mut admitted) = ([node(), node()], Admitted::default());
            let usage = |rule, subject| {
                let parts = [rules.part(rule, subject, 0)];
                let namespace = Namespace::default();
                let request = DecideRequest::new(&namespace, &parts, Mode::Peek);
                runtime.block_on(observer.decide(request)).unwrap()
            };
            for (advance, crowd) in advances.iter().zip(&crowds) {
                clock.advance(Duration::from_micros(*advance));
                let decided =
                    runtime.block_on(join_all(crowd.iter().map(async |(node, request)| {
                        let decision = rules.decide(&nodes[*node], request).await.unwrap();
                        leased.set(leased.get() + u64::from(decision.origin() == Origin::Leased));
                        (decision.is_allowed(), request)
                    })));
                let allowed = decided.into_iter().filter(|(is_allowed, _)| *is_allowed);
                let parts = allowed.flat_map(|(_, request)| request.iter().enumerate());
                for (rule, (subject, cost)) in parts {
                    for (place, limit) in usage(rule, *subject).limits().enumerate() {
                        let end = limit.reset_after().as_micros();
                        let end = clock.now().plus_micros(u64::try_from(end).unwrap()).as_micros();
                        // A fixed window is identified by its end, so its units can be added up.
                        // Other algorithms have no such end.
                        if matches!(limit.limit().algorithm(), Algorithm::FixedWindow { .. }) {
                            let units = admitted.0.entry((rule, *subject, place, end)).or_default();
                            *units += cost;
                            assert!(*units <= limit.max(), "{units} of {limit:?}");
                            assert!(*units <= limit.used(), "{units} were not charged: {limit:?}");
                        }
                    }
                }
            }
            nodes.iter().for_each(|node| runtime.block_on(node.close()).unwrap());
            for ((rule, subject, place, end), units) in &admitted.0 {
                let limits = usage(*rule, *subject);
                let limit = limits.limits().nth(*place).unwrap();
                let micros = u64::try_from(limit.reset_after().as_micros()).unwrap();
                if clock.now().plus_micros(micros).as_micros() == *end && limit.is_active() {
                    assert_eq!(limit.used(), *units, "a denied request was charged: {limit:?}");
                }
            }
            Ok(())
        })
        .unwrap();
    assert!(leased.get() > 5 * number.get(), "hardly anything was leased: {}", leased.get());
}

fn two_policies() -> Vec<rl_core::Policy> {
    let limit = |text: &str| text.parse::<rl_core::Limit>().unwrap();
    vec![
        rl_core::Policy::new([limit("25/second")]).unwrap(),
        rl_core::Policy::new([limit("25/second"), limit("90/hour")]).unwrap(),
    ]
}
