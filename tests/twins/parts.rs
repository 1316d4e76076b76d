//! Requests of several parts: the algorithms in Rust and in Lua decide them alike, and charge all
//! parts or none.

use std::time::Duration;

use rl_core::RedisStoreBuilder;
use rl_tests::RedisCluster;
use tokio::runtime::Runtime;

use super::*;

const REQUESTS_PER_TIMELINE: usize = 40;
const SUBJECTS: usize = 3;

/// A rule: its limits, and whether it is in shadow.
type Rule = (Policy, bool);

/// A part of a random request: the rule, the subject and the cost.
type RandomPart = (usize, usize, u64);

/// A random operation, and the time since the one before.
type Request = (i64, PartsOperation);

#[derive(Clone, Debug)]
enum PartsOperation {
    Decide(Mode, Vec<RandomPart>),
    /// Settles an earlier request. Each of its charges gets one of these costs.
    Settle(usize, Vec<u64>),
    /// Refunds units of each charge of an earlier request.
    Refund(usize, u64),
    /// Renews the permits of one charge of an earlier request.
    Renew(usize, usize),
    /// Resets one limit of a rule and a subject, or all limits.
    Reset(usize, usize, Option<usize>),
}

/// The charge of an earlier request to the counters of one rule and one subject.
struct PartCharge {
    rule: usize,
    subject: usize,
    charged: Timestamp,
    /// The time at which the leases of its permits began.
    leased: Timestamp,
    units: u64,
    uncharged: LimitSet,
}

/// One timeline of random requests: its rules, and the charges of its requests so far.
struct Timeline<'a> {
    rules: &'a [Rule],
    namespaces: Vec<Namespace>,
    subjects: Vec<Subject>,
    past: Vec<Vec<PartCharge>>,
}

fn rules() -> impl Strategy<Value = Vec<Rule>> {
    let mixed = prop::collection::vec(limit(ALGORITHMS.to_vec()), 1..=5);
    let mixed =
        mixed.prop_filter_map("two limits that share a state", |limits| Policy::new(limits).ok());
    let simple = prop::sample::select(vec![
        "3/minute",
        "5/second",
        "7/minute:gcra",
        "20/minute:token-bucket:capacity=9",
        "6/hour:sliding-window-counter",
        "9/hour:clock",
        "4/minute:requests",
        "3:concurrency",
    ]);
    let simple = simple.prop_map(|limit| Policy::new([limit.parse().unwrap()]).unwrap());
    shadowed(prop_oneof![2 => fixed_windows(), 2 => mixed, 3 => simple])
}

/// Generates rules that the readable layout supports: fixed windows of named periods.
fn readable_rules() -> impl Strategy<Value = Vec<Rule>> {
    let limits = prop::collection::vec((0..6_usize, 0..9_u64, prop::bool::weighted(0.2)), 1..=3);
    let policy = limits.prop_filter_map("two limits of one period", |limits| {
        let limit = |(period, max, counts_requests)| {
            let limit = Limit::new(max, Period::NAMED[period]).unwrap();
            if counts_requests { limit.count_requests() } else { limit }
        };
        Policy::new(limits.into_iter().map(limit)).ok()
    });
    shadowed(policy)
}

fn shadowed(policy: impl Strategy<Value = Policy>) -> impl Strategy<Value = Vec<Rule>> {
    prop::collection::vec((policy, prop::bool::weighted(0.15)), 1..=4)
}

/// Generates random operations. Their times never step back. Otherwise the stores would differ: the
/// store in memory drops the states of a subject when all of them have expired, whereas the
/// tests let Redis keep them for longer.
fn requests() -> impl Strategy<Value = Vec<Request>> {
    let advance = prop_oneof![
        2 => Just(0_i64),
        4 => 0..3_000_000_i64,
        2 => 0..90_000_000_i64,
    ];
    let mode = prop_oneof![
        6 => Just(Mode::Check),
        2 => Just(Mode::CheckUpTo),
        1 => Just(Mode::Peek),
        1 => Just(Mode::Charge),
    ];
    let cost = || prop_oneof![8 => 0..4_u64, 1 => 0..30_u64];
    let parts = prop::collection::vec((0..4_usize, 0..SUBJECTS, cost()), 1..=5);
    // Most settlements, refunds and renewals refer to one of the latest requests, because the units
    // of older ones may no longer count.
    let back = || prop_oneof![4 => 0..4_usize, 1 => 4..20_usize];
    let costs = prop::collection::vec(cost(), 5);
    let operation = prop_oneof![
        14 => (mode, parts).prop_map(|(mode, parts)| PartsOperation::Decide(mode, parts)),
        4 => (back(), costs).prop_map(|(back, costs)| PartsOperation::Settle(back, costs)),
        2 => (back(), 0..5_u64).prop_map(|(back, units)| PartsOperation::Refund(back, units)),
        2 => (back(), 0..5_usize).prop_map(|(back, part)| PartsOperation::Renew(back, part)),
        1 => (0..4_usize, 0..SUBJECTS, prop::option::of(0..5_usize))
            .prop_map(|(rule, subject, limit)| PartsOperation::Reset(rule, subject, limit)),
    ];
    prop::collection::vec((advance, operation), REQUESTS_PER_TIMELINE)
}

impl<'a> Timeline<'a> {
    fn new(number: u64, rules: &'a [Rule], namespace: &Namespace) -> Self {
        let subject = |index| Subject::consumer(&format!("{number}-{index}"));
        let name = |index: usize| namespace.rule(&format!("rule-{index}")).unwrap();
        Self {
            rules,
            namespaces: (0..rules.len()).map(name).collect(),
            subjects: (0..SUBJECTS).map(subject).collect(),
            past: Vec::new(),
        }
    }

    fn part(&self, (rule, subject, cost): RandomPart) -> Part<'_> {
        let (policy, is_shadow) = &self.rules[rule];
        let part = Part::new(&self.subjects[subject], policy, Cost::new(cost));
        let part = part.with_namespace(&self.namespaces[rule]);
        if *is_shadow { part.shadow() } else { part }
    }

    /// Returns the settlement of a charge at `cost`, without a release of permits.
    fn settlement(&self, charge: &PartCharge, cost: u64) -> Settlement<'_> {
        let policy = &self.rules[charge.rule].0;
        let refunded = charge.units.saturating_sub(cost);
        let mut kept = charge.uncharged;
        for (place, limit) in policy.limits().iter().enumerate() {
            if refunded < charge.units && limit.limit().counts_requests() {
                kept.insert(place);
            }
        }
        Settlement {
            namespace: &self.namespaces[charge.rule],
            subject: &self.subjects[charge.subject],
            policy,
            charged: charge.charged,
            leased: charge.leased,
            released: 0,
            refunded,
            added: cost.saturating_sub(charge.units),
            uncharged: charge.uncharged,
            kept,
            reservation: None,
        }
    }

    /// Adds the charges of a request. Parts with the same counters share one charge.
    fn remember(&mut self, parts: &[RandomPart], decision: &Decision) {
        let mut charges: Vec<PartCharge> = Vec::new();
        for ((rule, subject, _), part) in parts.iter().zip(decision.parts()) {
            let known = charges.iter_mut().find(|c| (c.rule, c.subject) == (*rule, *subject));
            if let Some(known) = known {
                known.units += part.charged();
                continue;
            }
            let (rule, subject, at) = (*rule, *subject, decision.at());
            let limits = part.limits().enumerate();
            let uncharged =
                limits.filter(|(_, limit)| limit.limit().is_shadow() && limit.is_over());
            let uncharged = uncharged.map(|(place, _)| place).collect();
            let units = part.charged();
            charges.push(PartCharge { rule, subject, charged: at, leased: at, units, uncharged });
        }
        charges.retain(|charge| charge.units > 0);
        if !charges.is_empty() {
            self.past.push(charges);
        }
    }
}

impl Twins {
    async fn carry_out(&self, timeline: &mut Timeline<'_>, (advance, operation): &Request) {
        let now = self.clock.now().as_micros().saturating_add_signed(*advance);
        self.clock.set(Timestamp::from_micros(now));
        let count = timeline.rules.len();
        match operation {
            PartsOperation::Decide(mode, parts) => {
                let parts: Vec<_> =
                    parts.iter().map(|part| (part.0 % count, part.1, part.2)).collect();
                let decision = self.decide_alike(timeline, *mode, &parts).await;
                if let Some(decision) = decision.filter(|_| *mode != Mode::Peek) {
                    timeline.remember(&parts, &decision);
                }
            }
            PartsOperation::Settle(back, costs) => {
                let Some(place) = timeline.past.len().checked_sub(back + 1) else { return };
                let charges = timeline.past.remove(place);
                let settled = charges.iter().zip(costs).map(|(charge, cost)| {
                    let settlement = timeline.settlement(charge, *cost);
                    Settlement { released: charge.units, ..settlement }
                });
                self.settle_alike(timeline, &charges, &settled.collect::<Vec<_>>()).await;
            }
            PartsOperation::Refund(back, units) => {
                let Some(charges) = timeline.past.iter().rev().nth(*back) else { return };
                let refunds = charges.iter().map(|charge| {
                    let left = charge.units.saturating_sub(*units);
                    let refund = timeline.settlement(charge, left);
                    Settlement { released: refund.refunded, uncharged: refund.kept, ..refund }
                });
                self.settle_alike(timeline, charges, &refunds.collect::<Vec<_>>()).await;
            }
            PartsOperation::Renew(back, charge) => {
                let Some(place) = timeline.past.len().checked_sub(back + 1) else { return };
                let index = charge % timeline.past[place].len();
                let PartCharge { rule, subject, leased, units, uncharged, .. } =
                    timeline.past[place][index];
                let (subject, policy) = (&timeline.subjects[subject], &timeline.rules[rule].0);
                let namespace = &timeline.namespaces[rule];
                let renewal = Renewal {
                    namespace,
                    subject,
                    policy,
                    charged: leased,
                    units,
                    uncharged,
                    lease: Lease::Permits,
                };
                let rust = self.memory.renew(renewal).await.unwrap();
                assert_eq!(rust, self.redis.renew(renewal).await.unwrap());
                timeline.past[place][index].leased = rust.held().unwrap_or(leased);
            }
            PartsOperation::Reset(rule, subject, limit) => {
                let (rule, subject) = (rule % count, &timeline.subjects[*subject]);
                let (policy, namespace) = (&timeline.rules[rule].0, &timeline.namespaces[rule]);
                let limit = limit.filter(|limit| *limit < policy.limits().len());
                let reset = Reset { namespace, subject, policy, limit };
                self.memory.reset(&[reset]).await.unwrap();
                self.redis.reset(&[reset]).await.unwrap();
            }
        }
    }

    /// Decides a request in both stores. Returns the decision, or `None` if both have refused the
    /// request.
    async fn decide_alike(
        &self,
        timeline: &Timeline<'_>,
        mode: Mode,
        parts: &[RandomPart],
    ) -> Option<Decision> {
        let parts: Vec<_> = parts.iter().map(|part| timeline.part(*part)).collect();
        let request = DecideRequest::new(&self.namespace, &parts, mode);
        let (rust, lua) = (self.memory.decide(request).await, self.redis.decide(request).await);
        if is_refused(&rust) && is_refused(&lua) {
            return None;
        }
        let (rust, lua) = (rust.unwrap(), lua.unwrap());
        if format!("{rust:?}") != format!("{lua:?}") {
            assert_eq!(format!("{rust:#?}"), format!("{lua:#?}"), "{mode:?} {parts:?}");
        }
        let charged: u64 = rust.parts().map(|part| part.charged()).sum();
        assert!(rust.is_allowed() || charged == 0, "{rust:?}");
        Some(rust)
    }

    /// Settles charges in both stores, and compares the usage of their subjects afterwards.
    async fn settle_alike(
        &self,
        timeline: &Timeline<'_>,
        charges: &[PartCharge],
        settlements: &[Settlement<'_>],
    ) {
        let rust = self.memory.settle(settlements).await;
        let lua = self.redis.settle(settlements).await;
        assert_eq!(rust.is_ok(), lua.is_ok(), "{rust:?} {lua:?}");
        let usage: Vec<_> = charges.iter().map(|charge| (charge.rule, charge.subject, 0)).collect();
        self.decide_alike(timeline, Mode::Peek, &usage).await;
    }
}

fn runtime() -> Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

/// Creates a store in memory and one on Redis, with the same clock.
fn twins(runtime: &Runtime, redis: RedisStoreBuilder) -> Twins {
    let clock = Arc::new(ManualClock::at(Timestamp::from_secs(1_700_000_000)));
    let redis = redis.script_shapes(usize::MAX).manual_clock(clock.clone());
    Twins {
        memory: MemoryStore::builder().clock(clock.clone()).build(),
        redis: runtime.block_on(redis.connect()).unwrap(),
        clock,
        namespace: Namespace::default(),
    }
}

/// Makes random requests to the memory store and to Redis, and compares every field of their
/// decisions. All times are multiples of `precision` microseconds.
fn drive_parts(
    runtime: &Runtime,
    redis: RedisStoreBuilder,
    rules: impl Strategy<Value = Vec<Rule>>,
    requests: usize,
    precision: i64,
) {
    let twins = twins(runtime, redis);
    let cases = u32::try_from(requests / REQUESTS_PER_TIMELINE).unwrap();
    let config = Config { cases, failure_persistence: None, ..Config::default() };
    let number = std::cell::Cell::new(0_u64);
    TestRunner::new(config)
        .run(&(rules, self::requests()), |(rules, mut requests)| {
            number.set(number.get() + 1);
            let mut timeline = Timeline::new(number.get(), &rules, &twins.namespace);
            runtime.block_on(async {
                for request in &mut requests {
                    request.0 = (request.0 / precision + 1) * precision - i64::from(precision == 1);
                    twins.carry_out(&mut timeline, request).await;
                }
            });
            Ok(())
        })
        .unwrap();
}

#[test]
fn requests_of_parts_are_decided_and_settled_alike_in_memory_and_on_redis() {
    let (runtime, server) = (runtime(), RedisServer::start());
    drive_parts(&runtime, server.patient_store(), rules(), steps(), 1);
    assert_eq!(runtime.block_on(server.keys_without_expiry()), [""; 0]);
}

/// The readable layout counts time in milliseconds, and does not store the time of a reset. So each
/// operation has a millisecond of its own.
#[test]
fn requests_of_parts_are_decided_and_settled_alike_in_the_readable_layout() {
    let (runtime, server) = (runtime(), RedisServer::start());
    let readable = server.patient_store().layout(Layout::Readable);
    drive_parts(&runtime, readable, readable_rules(), steps() / 2, 1_000);
    assert_eq!(runtime.block_on(server.keys_without_expiry()), [""; 0]);
}

/// Returns the builder of a store that waits long for connections and for the status of parts, so
/// that a busy machine leaves no gap in a decision.
fn on_cluster(cluster: &RedisCluster) -> RedisStoreBuilder {
    const PATIENCE: Duration = Duration::from_secs(60);
    let store = RedisStore::cluster(cluster.urls()).connection_wait(PATIENCE);
    store.response_timeout(PATIENCE).status_wait(PATIENCE)
}

/// All subjects are in one slot, so one script decides all parts, as on one server.
#[test]
fn requests_of_parts_are_decided_and_settled_alike_in_memory_and_on_a_cluster() {
    let runtime = runtime();
    let cluster = runtime.block_on(RedisCluster::start());
    drive_parts(&runtime, on_cluster(&cluster).slot_groups(1), rules(), steps() / 4, 1);
    for server in &cluster.servers[..3] {
        assert_eq!(runtime.block_on(server.keys_without_expiry()), [""; 0]);
    }
}

/// Subjects are in slots of their own. A denied request is charged for a moment, so all rules have
/// algorithms on which a refund leaves no trace. A fixed window would stay open.
#[test]
fn requests_of_parts_in_several_slots_are_decided_alike_in_memory_and_on_a_cluster() {
    const RULES: [&str; 5] = [
        "3/minute:gcra:burst=3",
        "7/minute:gcra",
        "20/minute:token-bucket:capacity=9",
        "5/minute:sliding-log",
        "4:concurrency:lease=1minute",
    ];
    let rule = |text: &str| (Policy::new([text.parse().unwrap()]).unwrap(), false);
    let mode = prop_oneof![8 => Just(Mode::Check), 1 => Just(Mode::Peek), 1 => Just(Mode::Charge)];
    let parts = prop::collection::vec((0..RULES.len(), 0..SUBJECTS, 1..4_u64), 1..=4);
    drive_across_slots(&RULES.map(rule), mode, parts, status);
}

/// Subject 0 has a limit in shadow beside an enforced one, subject 1 has only enforced limits, and
/// subject 2 only parts in shadow.
#[test]
fn a_check_up_to_in_several_slots_charges_shadow_alike_in_memory_and_on_a_cluster() {
    let policy = |limits: &[&str]| Policy::new(limits.iter().map(|l| l.parse().unwrap())).unwrap();
    let rules = [
        (policy(&["9/minute:gcra:burst=9", "4/hour:sliding-log:shadow"]), false),
        (policy(&["7/minute:gcra:burst=7"]), false),
        (policy(&["30/minute:token-bucket:capacity=12"]), false),
        (policy(&["8/minute:sliding-log"]), true),
        (policy(&["5/minute:gcra:burst=5"]), true),
    ];
    let mode = prop_oneof![6 => Just(Mode::CheckUpTo), 1 => Just(Mode::Check)];
    let part = prop::sample::select(vec![(0, 0), (1, 0), (2, 1), (1, 1), (3, 2), (4, 2)]);
    let part = (part, 1..9_u64).prop_map(|((rule, subject), cost)| (rule, subject, cost));
    let used = |decision: &Decision| {
        let parts = decision.parts().map(|part| {
            let used: Vec<_> = part.limits().map(|limit| limit.used()).collect();
            (part.charged(), used)
        });
        (decision.is_allowed(), parts.collect::<Vec<_>>())
    };
    drive_across_slots(&rules, mode, prop::collection::vec(part, 1..=4), used);
}

/// Sends random requests to both stores, and compares what `status` returns for their decisions.
fn drive_across_slots<T: PartialEq + std::fmt::Debug>(
    rules: &[Rule],
    mode: impl Strategy<Value = Mode>,
    parts: impl Strategy<Value = Vec<RandomPart>>,
    status: impl Fn(&Decision) -> (bool, T),
) {
    let runtime = runtime();
    let cluster = runtime.block_on(RedisCluster::start());
    let twins = twins(&runtime, on_cluster(&cluster));
    let advance = prop_oneof![2 => Just(0_u64), 3 => 0..3_000_000_u64, 1 => 0..90_000_000_u64];
    let requests = prop::collection::vec((advance, mode, parts), REQUESTS_PER_TIMELINE);
    let cases = u32::try_from(steps() / 10 / REQUESTS_PER_TIMELINE).unwrap().max(1);
    let config = Config { cases, failure_persistence: None, ..Config::default() };
    let (number, denied) = (std::cell::Cell::new(0_u64), std::cell::Cell::new(0_u64));
    TestRunner::new(config)
        .run(&requests, |requests| {
            number.set(number.get() + 1);
            let timeline = Timeline::new(number.get(), rules, &twins.namespace);
            for (advance, mode, parts) in &requests {
                twins.clock.advance(Duration::from_micros(*advance));
                let parts: Vec<_> = parts.iter().map(|part| timeline.part(*part)).collect();
                let request = DecideRequest::new(&twins.namespace, &parts, *mode);
                let (rust, lua) = runtime.block_on(async {
                    let decided =
                        (twins.memory.decide(request).await, twins.redis.decide(request).await);
                    // Closing the store waits until the charges of a denied request are given back.
                    twins.redis.close().await.unwrap();
                    decided
                });
                let (rust, lua) = (status(&rust.unwrap()), status(&lua.unwrap()));
                denied.set(denied.get() + u64::from(!rust.0));
                prop_assert_eq!(rust.0, lua.0, "{:?} {:?}", mode, parts);
                prop_assert_eq!(rust.1, lua.1, "{:?} {:?}", mode, parts);
            }
            Ok(())
        })
        .unwrap();
    assert!(denied.get() > number.get(), "hardly any request was denied: {}", denied.get());
}

/// The charged units of a part, and the used units, the wait and the time until the reset of each
/// of its limits.
type StatusOfPart = (u64, Vec<(u64, RetryAfter, Duration)>);

/// Returns whether a request is allowed, and the status of its parts.
fn status(decision: &Decision) -> (bool, Vec<StatusOfPart>) {
    let parts = decision.parts().map(|part| {
        let limits =
            part.limits().map(|limit| (limit.used(), limit.retry_after(), limit.reset_after()));
        (part.charged(), limits.collect())
    });
    (decision.is_allowed(), parts.collect())
}
