//! The algorithms exist twice, in Rust and in Lua: random timelines drive both, and every decision
//! must be equal, field by field.

use std::sync::Arc;

use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use rl_core::store::{
    Charge, MemoryStore, Mode, Namespace, RedisStore, Refund, RefundOf, Renewal, Reset, Store,
};
use rl_core::time::{Clock, ManualClock, Timestamp};
use rl_core::{Algorithm, Anchor, Cost, Limit, LimitSet, Period, Policy, Refill, Subject};
use rl_tests::RedisServer;

/// Random steps on each run; `RL_TWIN_STEPS` asks for more.
const STEPS: usize = 20_000;
const STEPS_PER_TIMELINE: usize = 50;

#[derive(Clone, Debug)]
struct Step {
    advance: i64,
    policy: usize,
    operation: Operation,
}

#[derive(Clone, Debug)]
enum Operation {
    Decide(Mode, u64),
    /// Some units of an earlier decision.
    Refund(usize, u64, RefundOf),
    /// The lease of some units of an earlier decision.
    Renew(usize, u64),
    /// A limit of the policy, or all.
    Reset(Option<usize>),
}

/// The algorithms that a run may mix; `RL_TWIN_ALGORITHM` asks for one alone.
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
    // A log has room for eight at first, and grows from there.
    let logged = prop_oneof![1 => 0..9_u64, 2 => 9..48_u64];
    let is_shadow = prop::bool::weighted(0.2);
    let counted = (max, period, prop::sample::select(algorithms), capacity, precision, logged);
    let limit = counted.prop_map(|(max, period, algorithm, capacity, precision, logged)| {
        let max = if is_log(algorithm) { logged } else { max };
        let limit = Limit::new(max, period).unwrap();
        let algorithm = match algorithm {
            "fixed-window" => return limit,
            "clock" => return limit.anchored(Anchor::Clock),
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
        // What does not fit together is tried with a small limit instead.
        let small = || Limit::new(max % 8, period).unwrap();
        let fits = limit.counted_by(algorithm);
        fits.or_else(|_| small().counted_by(algorithm)).unwrap_or_else(|_| small())
    });
    (limit, is_shadow).prop_map(|(limit, shadow)| if shadow { limit.in_shadow() } else { limit })
}

/// A policy of any limits that do not share a state.
fn policy(algorithms: Vec<&'static str>) -> impl Strategy<Value = Policy> {
    prop::collection::vec(limit(algorithms), 1..=7).prop_map(|limits| {
        let mut kept: Vec<Limit> = Vec::new();
        for limit in limits {
            if !kept.iter().any(|other| other.shares_state_with(limit)) {
                kept.push(limit);
            }
        }
        // Limits of one period have one name by default.
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
    // Mostly one of the last, of which something is still there.
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
        6 => 0..1_500_000_i64,
        2 => Just(0),
        2 => 0..90_000_000_i64,
        2 => 0..4_000_000_000_000_i64,
        1 => -5_000_000..0_i64,
        1 => -100_000_000_000..0_i64,
    ];
    // Mostly one policy, at times another: a change in flight, or a second service.
    let policy = prop_oneof![6 => Just(0_usize), 1 => Just(1), 1 => Just(2)];
    (advance, policy, operation).prop_map(|(advance, policy, operation)| Step {
        advance,
        policy,
        operation,
    })
}

/// What was charged, and when it was renewed last.
struct Past {
    policy: Policy,
    charged: Timestamp,
    granted: u64,
    uncharged: LimitSet,
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
        let now = self.clock.now().as_micros().saturating_add_signed(step.advance);
        self.clock.set(Timestamp::from_micros(now));
        let (policy, namespace) = (&policies[step.policy], &self.namespace);
        match step.operation {
            Operation::Decide(mode, cost) => {
                let charge = Charge { namespace, subject, policy, mode, cost: Cost::new(cost) };
                let rust = self.memory.decide(charge).await.unwrap();
                let lua = self.redis.decide(charge).await.unwrap();
                assert_eq!(format!("{rust:#?}"), format!("{lua:#?}"));
                let policy = policy.clone();
                let (charged, granted, uncharged) = (rust.at(), rust.granted(), rust.uncharged());
                past.push(Past { policy, charged, granted, uncharged });
            }
            Operation::Refund(back, units, of) => {
                let Some(past) = past.iter().rev().nth(back) else { return };
                let Past { ref policy, charged, granted, uncharged } = *past;
                let units = units.min(granted);
                let refund = Refund { namespace, subject, policy, charged, units, of, uncharged };
                self.memory.refund(refund).await.unwrap();
                self.redis.refund(refund).await.unwrap();
            }
            Operation::Renew(back, units) => {
                let Some(Past { policy, charged, granted, uncharged }) =
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
                };
                let rust = self.memory.renew(renewal).await.unwrap();
                let lua = self.redis.renew(renewal).await.unwrap();
                assert_eq!(rust, lua);
                *charged = rust.unwrap_or(*charged);
            }
            Operation::Reset(limit) => {
                let limit = limit.filter(|limit| *limit < policy.limits().len());
                let reset = Reset { namespace, subject, policy, limit };
                self.memory.reset(reset).await.unwrap();
                self.redis.reset(reset).await.unwrap();
            }
        }
    }
}

#[test]
fn rust_and_lua_decide_alike() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let server = RedisServer::start();
    let clock = Arc::new(ManualClock::default());
    let twins = Twins {
        memory: MemoryStore::builder().clock(clock.clone()).build(),
        redis: runtime
            .block_on(RedisStore::builder(&server.url()).manual_clock(clock.clone()).connect())
            .unwrap(),
        clock,
        namespace: Namespace::default(),
    };

    let steps = std::env::var("RL_TWIN_STEPS").map_or(STEPS, |steps| {
        steps.parse().unwrap_or_else(|_| panic!("RL_TWIN_STEPS={steps}: expected a number"))
    });
    let cases = u32::try_from(steps / STEPS_PER_TIMELINE).unwrap();
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
    let timeline = (
        1_600_000_000_000_000..1_900_000_000_000_000_u64,
        [policy(algorithms()), policy(algorithms()), policy(algorithms())],
        prop::collection::vec(step(), STEPS_PER_TIMELINE),
    );
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
