//! The algorithms exist twice, in Rust and in Lua. Random timelines drive both, and every field of
//! every decision must be equal.

mod part_shortcuts;
mod parts;

use std::sync::Arc;

use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use rl_core::store::{
    DecideRequest, Layout, Lease, Mode, Namespace, Part, Refund, RefundOf, Renewal, Reset,
    Settlement, Store,
};
use rl_core::time::{Clock, ManualClock, Timestamp};
use rl_core::{
    Algorithm, Cost, Decision, FailureKind, Limit, LimitSet, MemoryStore, Period, Policy,
    RedisStore, Refill, RetryAfter, StoreError, Subject,
};
use rl_tests::RedisServer;

/// The number of random steps in each run. `RL_TWIN_STEPS` sets another number: 100000 takes about
/// five times as long.
const STEPS: usize = 20_000;
const STEPS_PER_TIMELINE: usize = 50;

#[derive(Clone, Debug)]
struct Step {
    advance: Advance,
    policy: usize,
    operation: Operation,
}

#[derive(Clone, Copy, Debug)]
enum Advance {
    /// Advances by this number of microseconds.
    By(i64),
    /// Advances by the `Retry-After` of the last decision, less a number of microseconds.
    ToEdge(i64),
}

#[derive(Clone, Debug)]
enum Operation {
    Decide(Mode, u64),
    /// Refunds some units of an earlier decision.
    Refund(usize, u64, RefundOf),
    /// Renews the lease of some units of an earlier decision.
    Renew(usize, u64),
    /// Resets one limit of the policy, or all limits.
    Reset(Option<usize>),
}

/// The algorithms that a run mixes. `RL_TWIN_ALGORITHM` selects a single one.
const ALGORITHMS: [&str; 9] = [
    "fixed-window",
    "clock",
    "sliding-window-counter",
    "sliding-window",
    "gcra",
    "token-bucket",
    "interval-bucket",
    "sliding-log",
    "concurrency",
];

fn is_log(algorithm: &str) -> bool {
    matches!(algorithm, "sliding-log" | "concurrency")
}

fn limit(algorithms: Vec<&'static str>) -> impl Strategy<Value = Limit> {
    let period = prop_oneof![
        4 => (0..6_usize).prop_map(|i| Period::NAMED[i]),
        1 => (1..20_000_u64).prop_map(|millis| Period::from_millis(millis).unwrap()),
        1 => (1..5_u64).prop_map(|weeks| Period::from_millis(weeks * 604_800_000).unwrap()),
    ];
    let max = prop_oneof![8 => 0..8_u64, 1 => Just(rl_core::MAX_UNITS), 1 => 0..=rl_core::MAX_UNITS, 1 => 0..100_000_u64];
    let capacity = prop_oneof![4 => 1..12_u64, 1 => 1..100_000_u64, 1 => any::<u64>()];
    let precision = 1..60_u64;
    // A log has room for eight entries at first, so only the larger of these limits let it grow.
    // With a period of a few seconds, entries expire during a timeline.
    let logged = prop_oneof![1 => 0..9_u64, 2 => 9..48_u64];
    let seconds = prop::option::of(1_000..9_000_u64);
    let log = (logged, seconds);
    let counted = (max, period, prop::sample::select(algorithms), capacity, precision, log);
    let limit =
        counted.prop_map(|(max, period, algorithm, capacity, precision, (logged, seconds))| {
            let (max, period) = match seconds {
                _ if !is_log(algorithm) => (max, period),
                Some(millis) => (logged, Period::from_millis(millis).unwrap()),
                None => (logged, period),
            };
            let limit = Limit::new(max, period).unwrap();
            let algorithm = match algorithm {
                "fixed-window" => return limit,
                "clock" => {
                    let offset = Period::from_millis(capacity % 100_000_000);
                    let shifted =
                        offset.ok().and_then(|offset| limit.with_clock_offset(offset).ok());
                    return shifted.unwrap_or_else(|| limit.aligned_to_clock().unwrap());
                }
                "sliding-window-counter" => Algorithm::SlidingWindowCounter,
                "sliding-window" => {
                    let millis = period.as_millis().div_ceil(precision);
                    Algorithm::SlidingWindow { precision: Period::from_millis(millis).unwrap() }
                }
                "gcra" => Algorithm::Gcra { burst: capacity },
                "token-bucket" => Algorithm::TokenBucket { capacity, refill: Refill::Greedy },
                "interval-bucket" => Algorithm::TokenBucket { capacity, refill: Refill::Interval },
                "sliding-log" => Algorithm::SlidingLog,
                "concurrency" => Algorithm::Concurrency,
                _ => unreachable!("an algorithm of the list"),
            };
            // A combination that no policy accepts is replaced by a small limit.
            let small = || Limit::new(max % 8, period).unwrap();
            let fits = limit.with_algorithm(algorithm);
            fits.or_else(|_| small().with_algorithm(algorithm)).unwrap_or_else(|_| small())
        });
    let is_shadow = prop::bool::weighted(0.2);
    let counts_requests = prop::bool::weighted(0.2);
    (limit, is_shadow, counts_requests).prop_map(|(limit, shadow, requests)| {
        let limit = if requests { limit.count_requests() } else { limit };
        if shadow { limit.shadow() } else { limit }
    })
}

/// Generates policies of 1 to 16 fixed windows, as most services have.
fn fixed_windows() -> impl Strategy<Value = Policy> {
    let max = prop_oneof![8 => 0..9_u64, 1 => Just(rl_core::MAX_UNITS)];
    let periods = prop_oneof![
        2 => (1..=6_usize).prop_map(|count| Period::NAMED[..count].to_vec()),
        1 => (1..=16_u64).prop_map(|count| {
            (1..=count).map(|n| Period::from_millis(700 * n * n).unwrap()).collect()
        }),
    ];
    (periods, prop::collection::vec(max, 16)).prop_map(|(periods, maxima)| {
        let limits = periods.into_iter().zip(maxima);
        Policy::new(limits.map(|(period, max)| Limit::new(max, period).unwrap())).unwrap()
    })
}

/// Generates policies of any limits that do not share a state.
fn policy(algorithms: Vec<&'static str>) -> impl Strategy<Value = Policy> {
    prop::collection::vec(limit(algorithms), 1..=7).prop_map(|limits| {
        let mut kept: Vec<Limit> = Vec::new();
        for limit in limits {
            if !kept.iter().any(|other| other.shares_state_with(limit)) {
                kept.push(limit);
            }
        }
        // By default, limits of the same period have the same name, so they are numbered here.
        let numbered = kept.into_iter().enumerate();
        let policy = numbered.fold(Policy::builder(), |policy, (i, limit)| {
            policy.named(&format!("limit-{i}"), limit)
        });
        policy.build().unwrap()
    })
}

fn step() -> impl Strategy<Value = Step> {
    let cost = prop_oneof![6 => 1..4_u64, 2 => Just(0), 1 => 4..20_u64, 1 => any::<u64>()];
    let mode = prop_oneof![
        6 => Just(Mode::Check),
        2 => Just(Mode::CheckUpTo),
        1 => Just(Mode::Peek),
        1 => Just(Mode::Charge),
    ];
    // Most refunds and renewals are of one of the latest decisions, because their units still
    // count.
    let back = prop_oneof![4 => 0..6_usize, 1 => 6..40_usize];
    let of = prop_oneof![
        2 => Just(RefundOf::All),
        1 => Just(RefundOf::Rates),
        1 => Just(RefundOf::Permits),
    ];
    let operation = prop_oneof![
        12 => (mode, cost).prop_map(|(mode, cost)| Operation::Decide(mode, cost)),
        2 => (back.clone(), 0..5_u64, of).prop_map(|(back, units, of)| Operation::Refund(back, units, of)),
        2 => (back, 0..5_u64).prop_map(|(back, units)| Operation::Renew(back, units)),
        1 => prop::option::of(0..7_usize).prop_map(Operation::Reset),
    ];
    let advance = prop_oneof![
        6 => (0..1_500_000_i64).prop_map(Advance::By),
        2 => Just(Advance::By(0)),
        2 => (0..90_000_000_i64).prop_map(Advance::By),
        2 => (0..4_000_000_000_000_i64).prop_map(Advance::By),
        1 => (-5_000_000..0_i64).prop_map(Advance::By),
        1 => (-100_000_000_000..0_i64).prop_map(Advance::By),
        2 => (0..2_i64).prop_map(Advance::ToEdge),
    ];
    // Mostly one policy is used, and sometimes another, as during a change or with a second
    // service.
    let policy = prop_oneof![6 => Just(0_usize), 1 => Just(1), 1 => Just(2)];
    (advance, policy, operation).prop_map(|(advance, policy, operation)| Step {
        advance,
        policy,
        operation,
    })
}

/// A charge, and the time of its last renewal.
struct Past {
    policy: Policy,
    charged: Timestamp,
    granted: u64,
    uncharged: LimitSet,
    wait: i64,
}

impl Step {
    /// Reduces the pause before this step to less than 0.7 s, so that the effects of many earlier
    /// steps still count.
    fn calm(mut self) -> Self {
        if let Advance::By(micros) = self.advance {
            self.advance = Advance::By(micros.rem_euclid(700_000));
        }
        self
    }
}

/// Returns the time until the request would be allowed. If no wait is known, returns the shortest
/// time until a limit is fully reset. The result is at most a year, so that it is still exact in
/// Lua after many steps.
fn wait_of(decision: &Decision) -> i64 {
    const YEAR: i64 = 365 * 86_400_000_000;
    let wait = match decision.retry_after() {
        RetryAfter::In(wait) => wait,
        _ => decision.limits().map(|limit| limit.reset_after()).min().unwrap_or_default(),
    };
    i64::try_from(wait.as_micros()).map_or(YEAR, |wait| wait.min(YEAR))
}

struct Twins {
    clock: Arc<ManualClock>,
    memory: MemoryStore<Arc<ManualClock>>,
    redis: RedisStore,
    namespace: Namespace,
}

impl Twins {
    async fn take(
        &self,
        subject: &Subject,
        step: &Step,
        policies: &[Policy],
        past: &mut Vec<Past>,
    ) {
        let advance = match step.advance {
            Advance::By(micros) => micros,
            Advance::ToEdge(early) => past.last().map_or(0, |past| past.wait) - early,
        };
        let now = self.clock.now().as_micros().saturating_add_signed(advance);
        self.clock.set(Timestamp::from_micros(now));
        let (policy, namespace) = (&policies[step.policy], &self.namespace);
        match step.operation {
            Operation::Decide(mode, cost) => {
                let parts = [Part::new(subject, policy, Cost::new(cost))];
                let request = DecideRequest::new(namespace, &parts, mode);
                let rust = self.memory.decide(request).await;
                let lua = self.redis.decide(request).await;
                if is_refused(&rust) && is_refused(&lua) {
                    return;
                }
                let (rust, lua) = (rust.unwrap(), lua.unwrap());
                assert_eq!(format!("{rust:#?}"), format!("{lua:#?}"));
                let policy = policy.clone();
                let (charged, granted, uncharged) = (rust.at(), rust.granted(), rust.uncharged());
                let wait = wait_of(&rust);
                past.push(Past { policy, charged, granted, uncharged, wait });
            }
            Operation::Refund(back, units, of) => {
                let Some(past) = past.iter().rev().nth(back) else { return };
                let Past { ref policy, charged, granted, uncharged, .. } = *past;
                let units = units.min(granted);
                let refund = Refund { namespace, subject, policy, charged, units, of, uncharged };
                self.memory.settle(&[refund.into()]).await.unwrap();
                self.redis.settle(&[refund.into()]).await.unwrap();
            }
            Operation::Renew(back, units) => {
                let Some(Past { policy, charged, granted, uncharged, .. }) =
                    past.iter_mut().rev().nth(back)
                else {
                    return;
                };
                let (charged_before, units, uncharged) =
                    (*charged, units.min(*granted), *uncharged);
                let renewal = Renewal {
                    namespace,
                    subject,
                    policy,
                    charged: charged_before,
                    units,
                    uncharged,
                    lease: Lease::Permits,
                };
                let rust = self.memory.renew(renewal).await.unwrap();
                let lua = self.redis.renew(renewal).await.unwrap();
                assert_eq!(rust, lua);
                *charged = rust.held().unwrap_or(*charged);
            }
            Operation::Reset(limit) => {
                let limit = limit.filter(|limit| *limit < policy.limits().len());
                let reset = Reset { namespace, subject, policy, limit };
                self.memory.reset(&[reset]).await.unwrap();
                self.redis.reset(&[reset]).await.unwrap();
            }
        }
    }
}

/// Returns whether a charge was refused because its subject has states of too many other policies.
fn is_refused(decision: &Result<Decision, StoreError>) -> bool {
    decision.as_ref().is_err_and(|error| error.kind() == FailureKind::Unsupported)
}

/// Returns the number of steps.
fn steps() -> usize {
    std::env::var("RL_TWIN_STEPS").map_or(STEPS, |steps| {
        steps.parse().unwrap_or_else(|_| panic!("RL_TWIN_STEPS={steps}: expected a number"))
    })
}

/// Drives both twins through this number of timelines.
fn drive(timelines: usize, timeline: impl Strategy<Value = (u64, [Policy; 3], Vec<Step>)>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let server = RedisServer::start();
    // A packed entry of the memory store can hold times from a year before the creation of the
    // store to almost eight years after it. Most timelines stay in this range, but some begin
    // earlier.
    let clock = Arc::new(ManualClock::at(Timestamp::from_secs(1_700_000_000)));
    let twins = Twins {
        memory: MemoryStore::builder().clock(clock.clone()).build(),
        redis: runtime
            .block_on(
                server
                    .patient_store()
                    .script_shapes(usize::MAX)
                    .manual_clock(clock.clone())
                    .connect(),
            )
            .unwrap(),
        clock,
        namespace: Namespace::default(),
    };
    let cases = u32::try_from(timelines).unwrap();
    let number = std::cell::Cell::new(0_u64);
    TestRunner::new(Config { cases, ..Config::default() })
        .run(&timeline, |(start, policies, steps)| {
            number.set(number.get() + 1);
            let subject = Subject::consumer(&format!("twins-{}", number.get()));
            twins.clock.set(Timestamp::from_micros(start));
            let mut past = Vec::new();
            runtime.block_on(async {
                for step in &steps {
                    twins.take(&subject, step, &policies, &mut past).await;
                }
            });
            Ok(())
        })
        .unwrap();
    assert_eq!(runtime.block_on(server.keys_without_expiry()), [""; 0]);
}

fn start() -> impl Strategy<Value = u64> {
    1_600_000_000_000_000..1_900_000_000_000_000_u64
}

#[test]
fn rust_and_lua_make_equal_decisions() {
    let one = std::env::var("RL_TWIN_ALGORITHM").ok();
    let algorithms = || match &one {
        Some(name) => {
            let known = ALGORITHMS.into_iter().find(|known| known == name);
            vec![known.unwrap_or_else(|| {
                panic!("RL_TWIN_ALGORITHM={name}: expected one of {ALGORITHMS:?}")
            })]
        }
        None => ALGORITHMS.to_vec(),
    };
    let lively = prop::collection::vec(step(), STEPS_PER_TIMELINE);
    let calm = prop::collection::vec(step().prop_map(Step::calm), STEPS_PER_TIMELINE);
    let any = || policy(algorithms()).boxed();
    // Separate code decides policies that have only fixed windows, so they are generated often.
    let plain = || prop_oneof![2 => any(), 1 => fixed_windows()];
    let policies = if one.is_some() {
        [any(), any(), any()]
    } else {
        [plain().boxed(), any(), plain().boxed()]
    };
    drive(steps() / STEPS_PER_TIMELINE, (start(), policies, prop_oneof![lively, calm]));
}

/// A log reuses the positions of its entries only if many entries expire. The timelines therefore
/// have a single limit, which is sometimes raised or lowered, and twice as many calls as it grants
/// in a period.
#[test]
fn logs_that_reuse_positions_are_decided_alike() {
    let log = (any::<bool>(), 9..40_u64, 2_000..6_000_u64, 0..20_u64).prop_map(
        |(is_lease, max, millis, more)| {
            let algorithm = if is_lease { Algorithm::Concurrency } else { Algorithm::SlidingLog };
            let period = Period::from_millis(millis).unwrap();
            let log = |max| Limit::new(max, period).unwrap().with_algorithm(algorithm).unwrap();
            [max, max + more, max / 2].map(|max| Policy::new([log(max)]).unwrap())
        },
    );
    let operation = prop_oneof![
        12 => (1..3_u64).prop_map(|cost| Operation::Decide(Mode::Check, cost)),
        1 => Just(Operation::Decide(Mode::Charge, 1)),
        1 => (2..9_u64).prop_map(|cost| Operation::Decide(Mode::CheckUpTo, cost)),
        3 => (0..40_usize, 1..3_u64).prop_map(|(back, units)| Operation::Refund(back, units, RefundOf::All)),
        3 => (0..40_usize, 1..3_u64).prop_map(|(back, units)| Operation::Renew(back, units)),
    ];
    let advance = prop_oneof![
        12 => (0..250_000_i64).prop_map(Advance::By),
        1 => (0..2_i64).prop_map(Advance::ToEdge),
    ];
    let policy = prop_oneof![20 => Just(0_usize), 1 => Just(1), 1 => Just(2)];
    let step = (advance, policy, operation);
    let step = step.prop_map(|(advance, policy, operation)| Step { advance, policy, operation });
    // In this number of steps, every position of a log is reused more than once.
    const LONG: usize = 6 * STEPS_PER_TIMELINE;
    drive(steps() / LONG, (start(), log, prop::collection::vec(step, LONG)));
}

/// A log with many entries consists of several blocks. In this test, refunds and renewals remove
/// entries in any order.
#[test]
fn long_logs_are_decided_alike() {
    let log = (any::<bool>(), 400..2_000_u64, 200..700_u64).prop_map(|(is_lease, max, millis)| {
        let algorithm = if is_lease { Algorithm::Concurrency } else { Algorithm::SlidingLog };
        let period = Period::from_millis(millis).unwrap();
        let log = |max| Limit::new(max, period).unwrap().with_algorithm(algorithm).unwrap();
        // The second policy has a daily limit, too. When it denies, the log is read but not
        // charged.
        let policies = [vec![log(max)], vec![log(max), Limit::per_day(50)], vec![log(max / 2)]];
        policies.map(|limits| Policy::new(limits).unwrap())
    });
    let back = || prop_oneof![1 => 0..30_usize, 2 => 0..900_usize];
    let operation = prop_oneof![
        20 => Just(Operation::Decide(Mode::Check, 1)),
        2 => (1..4_u64).prop_map(|cost| Operation::Decide(Mode::Charge, cost)),
        2 => (1..900_u64).prop_map(|cost| Operation::Decide(Mode::Check, cost)),
        12 => (back(), 1..3_u64).prop_map(|(back, units)| Operation::Refund(back, units, RefundOf::All)),
        4 => (back(), 1..3_u64).prop_map(|(back, units)| Operation::Renew(back, units)),
    ];
    let advance = prop_oneof![
        400 => (0..700_i64).prop_map(Advance::By),
        1 => (0..400_000_i64).prop_map(Advance::By),
        2 => (0..2_i64).prop_map(Advance::ToEdge),
    ];
    let policy = prop_oneof![30 => Just(0_usize), 1 => Just(1), 1 => Just(2)];
    let step = (advance, policy, operation);
    let step = step.prop_map(|(advance, policy, operation)| Step { advance, policy, operation });
    const LONG: usize = 2_500;
    drive((steps() / LONG / 2).max(1), (start(), log, prop::collection::vec(step, LONG)));
}

/// Generates concurrent calls of a few subjects: the subject, the policy and the cost of each.
fn crowd() -> impl Strategy<Value = Vec<(usize, usize, u64)>> {
    // A cost of 0 is left out, because a call without a cost need not wait for the calls before it.
    let cost = prop_oneof![6 => Just(1_u64), 2 => 1..4_u64, 1 => 1..=u64::MAX];
    let subject = prop_oneof![3 => Just(0_usize), 2 => 0..6_usize];
    let policy = prop_oneof![6 => Just(0_usize), 1 => 1..3_usize];
    prop::collection::vec((subject, policy, cost), 1..24)
}

/// The requests of one batch are decided as if they had arrived one after the other.
#[test]
fn calls_of_one_batch_are_decided_one_after_the_other() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let server = RedisServer::start();
    let clock = Arc::new(ManualClock::default());
    let memory = MemoryStore::builder().clock(clock.clone()).build();
    // There is only one connection, so that requests are served in the order of their arrival.
    let redis = server.patient_store().connections(1).manual_clock(clock.clone());
    let redis = runtime.block_on(redis.script_shapes(usize::MAX).connect()).unwrap();
    let namespace = Namespace::default();
    // The last algorithm, `concurrency`, is left out, because permits are not batched.
    let any = || policy(ALGORITHMS[..8].to_vec()).boxed();
    let mostly_plain = || prop_oneof![1 => any(), 2 => fixed_windows()].boxed();
    let crowds = prop::collection::vec((0..2_000_000_i64, crowd()), 1..8);
    let timeline = (start(), [mostly_plain(), any(), mostly_plain()], crowds);
    let number = std::cell::Cell::new(0_u64);
    let cases = u32::try_from(steps() / 100).unwrap();
    TestRunner::new(Config { cases, max_shrink_iters: 200, ..Config::default() })
        .run(&timeline, |(start, policies, crowds)| {
            number.set(number.get() + 1);
            let who = |n: &usize| Subject::consumer(&format!("crowd-{}-{n}", number.get()));
            clock.set(Timestamp::from_micros(start));
            // These calls load the scripts. A call whose script is not loaded yet is sent twice,
            // which may change the order of arrival.
            let first = Subject::global();
            for policy in &policies {
                let parts = [Part::new(&first, policy, Cost::ONE)];
                let first = redis.decide(DecideRequest::new(&namespace, &parts, Mode::Check));
                let _ = runtime.block_on(first);
            }
            for (advance, crowd) in &crowds {
                clock.advance(std::time::Duration::from_micros(advance.unsigned_abs()));
                let decide = async |store: &dyn Store, (n, policy, cost): &(usize, usize, u64)| {
                    let (subject, policy) = (&who(n), &policies[*policy]);
                    let (mode, cost) = (Mode::Check, Cost::new(*cost));
                    let parts = [Part::new(subject, policy, cost)];
                    let request = DecideRequest::new(&namespace, &parts, mode);
                    store.decide(request).await
                };
                let (mut one_by_one, mut together) = (Vec::new(), Vec::new());
                runtime.block_on(async {
                    let all = crowd.iter().map(|call| decide(&redis, call));
                    together = futures::future::join_all(all).await;
                    for call in crowd {
                        one_by_one.push(decide(&memory, call).await);
                    }
                });
                // On Redis, the requests may share a script call. If the subject of one of them has
                // states of too many policies, the call fails for all of them.
                let is_refused_somewhere = one_by_one.iter().any(is_refused);
                for (rust, lua) in one_by_one.iter().zip(&together) {
                    if is_refused_somewhere && is_refused(lua) {
                        continue;
                    }
                    let (rust, lua) = (rust.as_ref().unwrap(), lua.as_ref().unwrap());
                    prop_assert_eq!(format!("{rust:#?}"), format!("{lua:#?}"), "{:?}", crowd);
                }
            }
            Ok(())
        })
        .unwrap();
    let calls = runtime.block_on(server.calls("evalsha"));
    assert!(calls > 0 && runtime.block_on(server.keys_without_expiry()).is_empty());
}

/// A step of a test with two stores: one with a denial cache, and one without.
#[derive(Clone, Debug)]
enum Moment {
    /// Makes a request through the store with the denial cache if `remembers` is true, else through
    /// the other store.
    Ask {
        remembers: bool,
        subject: usize,
        policy: usize,
        cost: u64,
    },
    /// Refunds units through the store with the denial cache. After a refund through the other
    /// store, a cached denial could still apply for a while.
    Refund(usize, u64),
    Reset(usize),
}

/// A cached denial denies no request that the server would allow, whatever other clients do
/// meanwhile.
#[test]
fn a_cached_denial_equals_the_decision_of_the_server() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let server = RedisServer::start();
    let clock = Arc::new(ManualClock::default());
    let memory = MemoryStore::builder().clock(clock.clone()).build();
    let store = |remembers| {
        let store = server.patient_store().manual_clock(clock.clone());
        runtime.block_on(store.local_denial(remembers).connect()).unwrap()
    };
    let (with, without) = (store(true), store(false));
    let namespace = Namespace::default();
    let ask = (any::<bool>(), 0..2_usize, 0..2_usize, prop_oneof![4 => Just(1_u64), 1 => 1..9_u64]);
    let moment = prop_oneof![
        16 => ask.prop_map(|(remembers, subject, policy, cost)| {
            Moment::Ask { remembers, subject, policy, cost }
        }),
        1 => (0..9_usize, 1..4_u64).prop_map(|(back, units)| Moment::Refund(back, units)),
        1 => (0..2_usize).prop_map(Moment::Reset),
    ];
    let advance = prop_oneof![4 => 0..60_000_u64, 1 => 0..1_500_000_u64];
    let rates: Vec<&str> = ALGORITHMS[..8].to_vec();
    let policies = [policy(rates.clone()), policy(rates)];
    let timeline = (start(), policies, prop::collection::vec((advance, moment), 60));
    let (number, local) = (std::cell::Cell::new(0_u64), std::cell::Cell::new(0_u64));
    let cases = u32::try_from(steps() / 100).unwrap();
    TestRunner::new(Config { cases, max_shrink_iters: 200, ..Config::default() })
        .run(&timeline, |(start, policies, moments)| {
            number.set(number.get() + 1);
            let who = |n: usize| Subject::consumer(&format!("denied-{}-{n}", number.get()));
            clock.set(Timestamp::from_micros(start));
            let mut past: Vec<(Subject, Decision)> = Vec::new();
            for (advance, moment) in &moments {
                clock.advance(std::time::Duration::from_micros(*advance));
                runtime.block_on(async {
                    match *moment {
                        Moment::Ask { remembers, subject, policy, cost } => {
                            let (subject, policy) = (&who(subject), &policies[policy]);
                            let (mode, cost) = (Mode::Check, Cost::new(cost));
                            let parts = [Part::new(subject, policy, cost)];
                            let request = DecideRequest::new(&namespace, &parts, mode);
                            let truth = memory.decide(request).await.unwrap();
                            let store = if remembers { &with } else { &without };
                            let answer = store.decide(request).await.unwrap();
                            assert_eq!(
                                truth.is_allowed(),
                                answer.is_allowed(),
                                "{truth:#?} {answer:#?}"
                            );
                            if answer.origin() == rl_core::Origin::LocalDeny {
                                local.set(local.get() + 1);
                                assert!(answer.retry_after() <= truth.retry_after());
                            }
                            past.push((subject.clone(), truth));
                        }
                        Moment::Refund(back, units) => {
                            let Some((subject, decision)) = past.iter().rev().nth(back) else {
                                return;
                            };
                            let Some(policy) = decision.policy() else { return };
                            let refund = Refund {
                                namespace: &namespace,
                                subject,
                                policy,
                                charged: decision.at(),
                                units: units.min(decision.granted()),
                                of: RefundOf::All,
                                uncharged: decision.uncharged(),
                            };
                            memory.settle(&[refund.into()]).await.unwrap();
                            with.settle(&[refund.into()]).await.unwrap();
                        }
                        Moment::Reset(subject) => {
                            let (subject, policy) = (&who(subject), &policies[0]);
                            let reset =
                                Reset { namespace: &namespace, subject, policy, limit: None };
                            memory.reset(&[reset]).await.unwrap();
                            with.reset(&[reset]).await.unwrap();
                        }
                    }
                });
            }
            Ok(())
        })
        .unwrap();
    assert!(local.get() > number.get(), "hardly any denial was remembered: {}", local.get());
}

/// Fault: a release in memory did not advance the time of its entry. If the clock then stepped
/// back, the next decision had an earlier time than on Redis.
#[test]
fn no_decision_precedes_a_release() {
    let places = || Policy::new(["9:concurrency:lease=1second".parse::<Limit>().unwrap()]).unwrap();
    let step = |advance, operation| Step { advance: Advance::By(advance), policy: 0, operation };
    let steps = vec![
        step(0, Operation::Decide(Mode::Check, 3)),
        step(500, Operation::Refund(0, 3, RefundOf::Permits)),
        step(-1, Operation::Decide(Mode::Check, 1)),
    ];
    let policies = [places(), places(), places()];
    drive(1, (Just(1_600_000_000_000_000), Just(policies), Just(steps)));
}

/// Fault: the Lua twin moved the end of an unused sliding window counter whenever another policy
/// was charged. The state never expired, so the subject reached the bound of other states on Redis.
#[test]
fn a_counter_of_another_policy_expires_although_its_subject_is_charged() {
    let policy =
        |limits: &[String]| Policy::new(limits.iter().map(|l| l.parse::<Limit>().unwrap()));
    let sixteen: Vec<_> = (1..=16).map(|hours| format!("9/{hours}hours")).collect();
    let policies = [
        policy(&["9/minute:sliding-window-counter".to_owned()]).unwrap(),
        policy(&sixteen).unwrap(),
        policy(&["9/30days".to_owned()]).unwrap(),
    ];
    let charge = |seconds: i64, policy| Step {
        advance: Advance::By(seconds * 1_000_000),
        policy,
        operation: Operation::Decide(Mode::Check, 1),
    };
    // The counter expires at the second minute, so the sixteen windows alone count then.
    let expires = vec![charge(0, 0), charge(61, 1), charge(60, 2)];
    // A refund leaves no unit that counts.
    let refund = Operation::Refund(0, 1, RefundOf::All);
    let refund = Step { advance: Advance::By(60_000_000), policy: 0, operation: refund };
    let refunded = vec![charge(0, 0), refund, charge(0, 1), charge(0, 2)];
    const MINUTE: u64 = 1_600_000_020_000_000;
    for steps in [expires, refunded] {
        drive(1, (Just(MINUTE), Just(policies.clone()), Just(steps)));
    }
}
