//! Refunds. If a reset or a loss has removed a charge, its refund returns nothing. A metered load
//! reaches the rate of its limit.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use rl_core::store::{DecideRequest, Mode, Namespace, Part, Refund, RefundOf, Reset, Store};
use rl_core::time::{Clock, ManualClock, Timestamp};
use rl_core::{Algorithm, Cost, Decision, Limit, MemoryStore, Policy, RedisStore, Refill, Subject};
use rl_tests::{Bystander, RedisServer};

const LIMITS: [&str; 9] = [
    "100/day",
    "100/day:clock",
    "100/day:sliding-window:precision=hour",
    "100/day:sliding-window-counter",
    "100/day:token-bucket",
    "100/day:token-bucket:refill=interval",
    "100/day:gcra",
    "100/day:sliding-log",
    "100:concurrency:lease=1h",
];

/// A minute past midnight.
const START: Timestamp = Timestamp::from_secs(1_769_904_060);

/// The ways in which counts are lost.
#[derive(Clone, Copy, Debug)]
enum Loss {
    ResetOfAll,
    ResetOfTheLimit,
    Eviction,
    LostKeys,
}

struct Tested {
    store: Arc<dyn Store>,
    clock: Arc<ManualClock>,
    policy: Policy,
    subject: Subject,
    namespace: Namespace,
}

impl Tested {
    async fn on_redis(server: &RedisServer, limit: &str, subject: &str) -> Self {
        let clock = Arc::new(ManualClock::at(START));
        let store =
            RedisStore::builder(&server.url()).small_log_pages().manual_clock(clock.clone());
        let store = store.connection_wait(Duration::from_secs(20)).local_denial(false);
        Self::new(Arc::new(store.connect().await.unwrap()), clock, limit, subject)
    }

    /// Creates a store with a capacity of one subject in each of its shards.
    fn in_memory(limit: &str) -> Self {
        let clock = Arc::new(ManualClock::at(START));
        let store = MemoryStore::builder().capacity(64).clock(clock.clone()).build();
        Self::new(Arc::new(store), clock, limit, "alice")
    }

    fn new(store: Arc<dyn Store>, clock: Arc<ManualClock>, limit: &str, subject: &str) -> Self {
        let policy = Policy::new([limit.parse().unwrap()]).unwrap();
        let (subject, namespace) = (Subject::user(subject), Namespace::default());
        Self { store, clock, policy, subject, namespace }
    }

    async fn decide_for(&self, subject: &Subject, mode: Mode, cost: u64) -> Decision {
        let Self { namespace, policy, .. } = self;
        let cost = Cost::new(cost);
        self.store
            .decide(DecideRequest::new(namespace, &[Part::new(subject, policy, cost)], mode))
            .await
            .unwrap()
    }

    async fn check(&self, cost: u64) -> Decision {
        self.decide_for(&self.subject, Mode::Check, cost).await
    }

    async fn used(&self) -> u64 {
        let peek = self.decide_for(&self.subject, Mode::Peek, 0).await;
        peek.limits().next().unwrap().used()
    }

    async fn refund(&self, charged: &Decision, units: u64) {
        let Self { namespace, subject, policy, .. } = self;
        let (charged, uncharged, of) = (charged.at(), charged.uncharged(), RefundOf::All);
        let refund = Refund { namespace, subject, policy, charged, units, of, uncharged };
        self.store.settle(&[refund.into()]).await.unwrap();
    }

    async fn lose(&self, loss: Loss, operator: Option<&mut Bystander>) {
        let Self { namespace, subject, policy, .. } = self;
        let reset = |limit| Reset { namespace, subject, policy, limit };
        match loss {
            Loss::ResetOfAll => self.store.reset(&[reset(None)]).await.unwrap(),
            Loss::ResetOfTheLimit => self.store.reset(&[reset(Some(0))]).await.unwrap(),
            Loss::Eviction => {
                for invented in 0.. {
                    // The store evicts the subject that has used the smallest part of its limit,
                    // and never a denied one. So each invented subject uses more than the 80 units
                    // of the tested one, but less than the limit.
                    self.decide_for(&Subject::user(&invented.to_string()), Mode::Check, 90).await;
                    if self.used().await == 0 {
                        break;
                    }
                }
            }
            Loss::LostKeys => operator.unwrap().query("FLUSHALL").await,
        }
    }

    /// Charges 80 of 100 units, loses them, and charges 100 units. Then asserts that a refund of
    /// the first 80 units returns nothing.
    async fn assert_nothing_comes_back(
        &self,
        loss: Loss,
        micros: u64,
        operator: Option<&mut Bystander>,
    ) {
        let what = format!("{}, {loss:?}, {micros} µs apart", self.policy);
        let first = self.check(80).await;
        assert!(first.is_allowed(), "{what}");
        self.clock.advance(Duration::from_micros(micros));
        self.lose(loss, operator).await;
        self.clock.advance(Duration::from_micros(micros));
        assert!(self.check(100).await.is_allowed(), "{what}: the loss gives all of the limit back");
        self.refund(&first, 80).await;
        assert_eq!(self.used().await, 100, "{what}");
        assert!(!self.check(1).await.is_allowed(), "{what}: it was not charged to these counts");
    }
}

#[tokio::test]
async fn a_refund_after_a_reset_returns_nothing_under_any_algorithm() {
    let server = RedisServer::start();
    for (place, limit) in LIMITS.into_iter().enumerate() {
        for loss in [Loss::ResetOfAll, Loss::ResetOfTheLimit] {
            // The time from the charge to the loss, and from the loss to the next charge.
            for micros in [0, 1, 1_000_000] {
                let subject = format!("{place}-{loss:?}-{micros}");
                let on_redis = Tested::on_redis(&server, limit, &subject).await;
                on_redis.assert_nothing_comes_back(loss, micros, None).await;
                Tested::in_memory(limit).assert_nothing_comes_back(loss, micros, None).await;
            }
        }
    }
}

#[tokio::test]
async fn a_refund_after_an_eviction_from_memory_returns_nothing_under_any_algorithm() {
    for limit in LIMITS {
        for micros in [0, 1, 1_000_000] {
            Tested::in_memory(limit).assert_nothing_comes_back(Loss::Eviction, micros, None).await;
        }
    }
}

#[tokio::test]
async fn a_refund_after_the_loss_of_keys_on_redis_returns_nothing_under_any_algorithm() {
    let server = RedisServer::start();
    let mut operator = Bystander::new(&server).await;
    for limit in LIMITS {
        let tested = Tested::on_redis(&server, limit, "alice").await;
        tested.assert_nothing_comes_back(Loss::LostKeys, 1, Some(&mut operator)).await;
        operator.query::<()>("FLUSHALL").await;
    }
}

/// Runs `steps` steps of 10 ms. In each step, sends requests until one is denied. Each request
/// reserves 100 units, uses 20, and refunds 80 after 200 ms. Returns the number of units used.
async fn used_by_a_metered_load(tested: &Tested, steps: u64) -> u64 {
    let mut in_flight: VecDeque<(u64, Decision)> = VecDeque::new();
    let mut used = 0;
    for step in 0..steps {
        while in_flight.front().is_some_and(|(begun, _)| begun + 20 <= step) {
            let (_, decision) = in_flight.pop_front().unwrap();
            tested.refund(&decision, 80).await;
            used += 20;
        }
        loop {
            let decision = tested.check(100).await;
            if !decision.is_allowed() {
                break;
            }
            in_flight.push_back((step, decision));
        }
        tested.clock.advance(Duration::from_millis(10));
    }
    used
}

/// Fault: a metered load reached only 220 of 1 000 units per second, because a refund discarded
/// units that had accrued meanwhile.
#[tokio::test]
async fn a_metered_load_reaches_the_rate_of_its_limit_under_every_algorithm() {
    let server = RedisServer::start();
    let limits = [
        "1000/second",
        "1000/second:clock",
        "1000/second:sliding-window:precision=10ms",
        "1000/second:sliding-window-counter",
        "1000/second:token-bucket",
        "1000/second:token-bucket:refill=interval",
        "1000/second:gcra",
        "1000/second:sliding-log",
    ];
    for limit in limits {
        let on_redis = Tested::on_redis(&server, limit, limit).await;
        for (tested, seconds) in [(Tested::in_memory(limit), 60), (on_redis, 6)] {
            let used = used_by_a_metered_load(&tested, seconds * 100).await;
            let least = reached(tested.policy.limits()[0].limit(), seconds);
            assert!(used >= least, "{limit}: {used} units in {seconds} s, expected {least}");
            assert!(used <= (seconds + 1) * 1_000, "{limit}: {used} units in {seconds} s");
        }
    }
}

/// Returns the minimum number of units that `used_by_a_metered_load` must return for a load of
/// `seconds`. ALGORITHMS.md has the formulas.
///
/// Under GCRA and an evenly refilled bucket, the load reaches the rate of the limit. Under the
/// other algorithms, reserved units count until they are settled.
///
/// Let R be the reserved units, U the used units, and d the time from the charge to the refund. The
/// load uses rate × U / (U + (R − U) × d / period). A rest of the limit that is too small for a
/// whole request stays unused.
///
/// Two effects reduce the result. A unit of a sliding window counts for up to one precision longer
/// than its period. The load has no settled units before its first refund, and its last reservation
/// is settled too late.
fn reached(limit: Limit, seconds: u64) -> u64 {
    const RESERVED: f64 = 100.0;
    const USED: f64 = 20.0;
    const SETTLED_AFTER: f64 = 0.2;
    let (max, period) = (limit.max() as f64, limit.period().as_micros() as f64 / 1e6);
    let of_rate = |counted_for: f64, fitting: f64| {
        fitting / counted_for * USED / (USED + (RESERVED - USED) * SETTLED_AFTER / counted_for)
    };
    // A request reserves `RESERVED` units. Once fewer units remain, they stay unused.
    let fitting = max - RESERVED;
    let rate = match limit.algorithm() {
        Algorithm::TokenBucket { refill: Refill::Greedy, .. } | Algorithm::Gcra { .. } => {
            max / period
        }
        Algorithm::SlidingWindow { precision } => {
            of_rate(period + precision.as_micros() as f64 / 1e6, fitting)
        }
        // A bucket that is refilled by interval is full again at the end of each interval, like a
        // fixed window.
        _ => of_rate(period, fitting),
    };
    (rate * (seconds as f64 - SETTLED_AFTER - 0.01) - RESERVED).max(0.0) as u64
}

/// Makes random reservations, and refunds parts of them in any order. In every span, the difference
/// between granted and refunded units is at most what the limit grants in that span.
#[tokio::test]
async fn a_metered_load_never_gets_more_than_its_limit_in_any_span() {
    let limits = [
        "50/second",
        "50/second:clock",
        "50/second:sliding-window:precision=100ms",
        "50/second:sliding-window-counter",
        "50/second:token-bucket:capacity=30",
        "50/second:token-bucket:capacity=80:refill=interval",
        "50/second:gcra:burst=30",
        "50/second:sliding-log",
    ];
    for limit in limits {
        let tested = Tested::in_memory(limit);
        let limit = tested.policy.limits()[0].limit();
        let mut random = 1_u64;
        let mut number = |below: u64| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (random >> 33) % below
        };
        let (mut open, mut changes) = (BTreeMap::<u64, (Decision, u64)>::new(), VecDeque::new());
        let mut refunded = 0;
        for id in 0..4_000 {
            let pause = [0, 3_000, 30_000, 120_000][number(4) as usize];
            tested.clock.advance(Duration::from_micros(number(pause + 1)));
            let now = tested.clock.now().as_micros();
            if number(3) == 0 && !open.is_empty() {
                let place = open.keys().nth(number(open.len() as u64) as usize).copied().unwrap();
                let (decision, units) = open.remove(&place).unwrap();
                let before = tested.used().await;
                let returned = number(units + 1);
                tested.refund(&decision, returned).await;
                // The refund may have reduced the used units by less than `returned`.
                let given = before - tested.used().await;
                assert!(given <= returned, "{limit}");
                refunded += given;
                changes.push_back((now, -i64::try_from(given).unwrap()));
            } else {
                let cost = 1 + number(25);
                let decision = tested.check(cost).await;
                if decision.is_allowed() {
                    open.insert(id, (decision, cost));
                    changes.push_back((now, i64::try_from(cost).unwrap()));
                }
            }
            changes.retain(|(time, _)| time + 1_000_000 > now);
            let mut net = 0;
            for (time, units) in changes.iter().rev() {
                net += units;
                let most = granted_in(limit, now - time);
                assert!(net <= most, "{limit}: {net} in {} µs, expected {most}", now - time);
            }
        }
        assert!(refunded > 1_000, "{limit}: {refunded}");
    }
}

/// Returns the maximum number of units that a limit grants in a span of a second or less.
fn granted_in(limit: Limit, micros: u64) -> i64 {
    let accrued = (micros * limit.max()).div_ceil(limit.period().as_micros());
    let most = match limit.algorithm() {
        Algorithm::TokenBucket { capacity, refill: Refill::Greedy } => capacity + accrued,
        Algorithm::TokenBucket { capacity, .. } => capacity + limit.max(),
        Algorithm::Gcra { burst } => burst + accrued,
        Algorithm::SlidingLog | Algorithm::SlidingWindow { .. } | Algorithm::Concurrency => {
            limit.max()
        }
        _ => 2 * limit.max(),
    };
    i64::try_from(most).unwrap()
}
