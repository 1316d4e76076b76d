//! The guarantees of every algorithm, on every store that supports it.

mod properties;

use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use proptest::prelude::*;
use rl_core::store::{DecideRequest, Mode, Namespace, Part, Store};
use rl_core::time::{Clock, ManualClock, Timestamp};
use rl_core::{Cost, Decision, Limit, MemoryStore, Policy, RetryAfter, Subject};
use rl_tests::{Bystander, RedisServer};

/// A limit of each kind. Where the algorithm has a rate, the units per second are not a whole
/// number.
const LIMITS: [&str; 10] = [
    "7/minute",
    "7/minute:clock",
    "7/minute:clock:offset=13s",
    "7/minute:sliding-window:precision=7s",
    "7/minute:sliding-window-counter",
    "7/minute:token-bucket:capacity=5",
    "7/minute:token-bucket:capacity=20:refill=interval",
    "7/minute:gcra:burst=5",
    "7/minute:sliding-log",
    "7:concurrency:lease=minute",
];

/// Seven in the evening, minus one second.
const START: u64 = 1_769_886_000 - 1;

/// A store on a manual clock, with one subject and one limit.
struct Tested {
    store: Arc<dyn Store>,
    clock: Arc<ManualClock>,
    policy: Policy,
    subject: Subject,
    namespace: Namespace,
}

impl Tested {
    fn new(store: Arc<dyn Store>, clock: Arc<ManualClock>, limit: &str) -> Self {
        let policy = Policy::new([limit.parse().unwrap()]).unwrap();
        let (subject, namespace) = (Subject::consumer(limit), Namespace::default());
        Self { store, clock, policy, subject, namespace }
    }

    async fn decide(&self, mode: Mode, cost: u64) -> Decision {
        let Self { policy, subject, namespace, .. } = self;
        let cost = Cost::new(cost);
        self.store
            .decide(DecideRequest::new(namespace, &[Part::new(subject, policy, cost)], mode))
            .await
            .unwrap()
    }

    async fn passes(&self) -> bool {
        self.decide(Mode::Check, 1).await.is_allowed()
    }

    /// Makes requests of one unit until one is denied. Returns the number of allowed requests.
    async fn exhaust(&self) -> u64 {
        let mut passed = 0;
        while self.passes().await {
            passed += 1;
        }
        passed
    }

    async fn wait(&self, cost: u64) -> Duration {
        match self.decide(Mode::Peek, cost).await.retry_after() {
            RetryAfter::In(wait) => wait,
            other => panic!("{other:?}"),
        }
    }
}

/// Runs a test for every limit on every store. Each run has its own clock.
async fn each<F: Future<Output = ()>>(limits: &[&str], test: impl Fn(Tested) -> F) {
    let server = RedisServer::start();
    for text in limits {
        for on_redis in [false, true] {
            let clock = Arc::new(ManualClock::at(Timestamp::from_secs(START)));
            let store: Arc<dyn Store> = if on_redis {
                let store = server.patient_store().manual_clock(clock.clone());
                Arc::new(store.connect().await.unwrap())
            } else {
                Arc::new(MemoryStore::builder().clock(clock.clone()).build())
            };
            test(Tested::new(store, clock, text)).await;
        }
    }
    assert_eq!(Bystander::new(&server).await.keys_without_expiry().await, [""; 0]);
}

#[tokio::test]
async fn a_wait_is_exact_to_the_microsecond_under_every_algorithm() {
    each(&LIMITS, |tested| async move {
        // Units are used at two different times, so that they do not all expire at the same time.
        tested.decide(Mode::Check, 3).await;
        tested.clock.advance(Duration::from_micros(9_123_457));
        tested.exhaust().await;
        for cost in [1, 4] {
            let wait = tested.wait(cost).await;
            let now = tested.clock.now();
            tested.clock.advance(wait - Duration::from_micros(1));
            let early = tested.decide(Mode::Peek, cost).await;
            assert!(!early.is_allowed(), "{early:?}");
            tested.clock.advance(Duration::from_micros(1));
            let then = tested.decide(Mode::Peek, cost).await;
            assert!(then.is_allowed(), "{then:?}");
            tested.clock.set(now);
        }
    })
    .await;
}

#[tokio::test]
async fn a_denial_charges_nothing_under_every_algorithm() {
    each(&LIMITS, |tested| async move {
        tested.exhaust().await;
        let wait = tested.wait(1).await;
        for _ in 0..20 {
            assert!(!tested.passes().await);
        }
        assert_eq!(tested.wait(1).await, wait);
        tested.clock.advance(wait);
        assert!(tested.passes().await);
    })
    .await;
}

#[tokio::test]
async fn a_clock_that_steps_back_grants_nothing_under_any_algorithm() {
    each(&LIMITS, |tested| async move {
        tested.exhaust().await;
        for back in [1, 60, 3_600, 86_400] {
            tested.clock.set(Timestamp::from_secs(START - back));
            assert!(!tested.passes().await, "{back} s back: {}", tested.policy);
        }
    })
    .await;
}

#[tokio::test]
async fn all_used_units_become_available_again_and_no_more_under_every_algorithm() {
    each(&LIMITS, |tested| async move {
        let capacity = tested.policy.limits()[0].limit().capacity();
        assert_eq!(tested.exhaust().await, capacity, "{}", tested.policy);
        let decision = tested.decide(Mode::Peek, 0).await;
        let reset = decision.limits().next().unwrap().reset_after();
        tested.clock.advance(reset);
        let idle = tested.decide(Mode::Peek, 0).await;
        assert_eq!(idle.limits().next().unwrap().used(), 0, "{idle:?}");
        tested.clock.advance(Duration::from_secs(86_400));
        assert_eq!(tested.exhaust().await, capacity, "{}", tested.policy);
    })
    .await;
}

/// For a limit of 240 per hour, 200 calls come at 6:59 and 240 at 7:00. A clock-aligned window
/// allows 440 in two minutes; sliding algorithms do not.
#[tokio::test]
async fn only_a_window_on_the_clock_grants_two_bursts_at_its_edge() {
    let limits = [
        ("240/hour:clock", 440),
        ("240/hour:sliding-window:precision=minute", 240),
        ("240/hour:sliding-log", 240),
        // At 7:01, 200 × 59 / 60 units of the previous hour still count, rounded down.
        ("240/hour:sliding-window-counter", 200 + 240 - 196),
    ];
    for (limit, expected) in limits {
        each(&[limit], |tested| async move {
            tested.clock.set(Timestamp::from_secs(START - 59));
            let mut passed = tested.decide(Mode::CheckUpTo, 200).await.granted();
            tested.clock.set(Timestamp::from_secs(START + 61));
            passed += tested.decide(Mode::CheckUpTo, 240).await.granted();
            assert_eq!(passed, expected, "{limit}");
        })
        .await;
    }
}

/// A limit with a memory store of its own. Several limits may share a clock.
struct InMemory {
    store: MemoryStore<Arc<ManualClock>>,
    policy: Policy,
}

impl InMemory {
    fn new(limit: &str, clock: &Arc<ManualClock>) -> Self {
        let policy = Policy::new([limit.parse().unwrap()]).unwrap();
        Self { store: MemoryStore::builder().clock(clock.clone()).build(), policy }
    }

    fn decide(&self, mode: Mode, cost: u64) -> Decision {
        let (namespace, subject) = (&Namespace::default(), &Subject::user("alice"));
        let parts = [Part::new(subject, &self.policy, Cost::new(cost))];
        let request = DecideRequest::new(namespace, &parts, mode);
        self.store.decide(request).now_or_never().expect("it is in memory").unwrap()
    }

    fn used(&self) -> u64 {
        self.decide(Mode::Peek, 0).limits().next().unwrap().used()
    }
}

proptest! {
    /// A sliding window allows a request only if an exact log of the same period allows it. It
    /// denies a request only if a log with a period longer by one bucket denies it.
    #[test]
    fn a_sliding_window_is_a_log_but_for_one_bucket(
        max in 1..30_u64, period in 1..60_u64, precision in 1..60_u64,
        calls in prop::collection::vec((0..8_000_u64, 1..6_u64), 1..150),
    ) {
        let clock = Arc::new(ManualClock::at(Timestamp::from_secs(START)));
        let precision = precision.min(period);
        let window = format!("{max}/{period}ms:sliding-window:precision={precision}ms");
        let window = InMemory::new(&window, &clock);
        let exact = InMemory::new(&format!("{max}/{period}ms:sliding-log"), &clock);
        let longer = InMemory::new(&format!("{max}/{}ms:sliding-log", period + precision), &clock);
        for (advance, cost) in calls {
            clock.advance(Duration::from_micros(advance));
            if window.decide(Mode::Check, cost).is_allowed() {
                prop_assert!(exact.decide(Mode::Check, cost).is_allowed());
                longer.decide(Mode::Charge, cost);
            } else {
                prop_assert!(!longer.decide(Mode::Peek, cost).is_allowed());
            }
        }
    }

    /// A counter allows a request only if an exact log with twice the limit allows it. It denies a
    /// request only if an exact log with twice the period denies it.
    #[test]
    fn a_sliding_window_counter_stays_within_its_error(
        max in 1..30_u64, period in 1..60_u64,
        calls in prop::collection::vec((0..8_000_u64, 1..6_u64), 1..150),
    ) {
        let clock = Arc::new(ManualClock::at(Timestamp::from_secs(START)));
        let counter = InMemory::new(&format!("{max}/{period}ms:sliding-window-counter"), &clock);
        let twice = InMemory::new(&format!("{}/{period}ms:sliding-log", 2 * max), &clock);
        let longer = InMemory::new(&format!("{max}/{}ms:sliding-log", 2 * period), &clock);
        for (advance, cost) in calls {
            clock.advance(Duration::from_micros(advance));
            if counter.decide(Mode::Check, cost).is_allowed() {
                prop_assert!(twice.decide(Mode::Check, cost).is_allowed());
                longer.decide(Mode::Charge, cost);
            } else {
                prop_assert!(!longer.decide(Mode::Peek, cost).is_allowed());
            }
        }
    }

    /// For calls at equal intervals, the count differs from that of an exact log by at most one.
    #[test]
    fn a_sliding_window_counter_is_right_for_steady_traffic(
        period in 1..60_u64, interval in 300..20_000_u64, looks in prop::collection::vec(0..300_u64, 200),
    ) {
        let clock = Arc::new(ManualClock::at(Timestamp::from_secs(START)));
        let counter = format!("1000/{period}ms:sliding-window-counter");
        let (counter, exact) = (
            InMemory::new(&counter, &clock),
            InMemory::new(&format!("1000/{period}ms:sliding-log"), &clock),
        );
        let start = clock.now();
        for look in looks {
            prop_assert!(counter.decide(Mode::Check, 1).is_allowed());
            prop_assert!(exact.decide(Mode::Check, 1).is_allowed());
            clock.advance(Duration::from_micros(look));
            if clock.now().micros_since(start) > 2_000 * period {
                let (estimate, count) = (counter.used(), exact.used());
                prop_assert!(estimate.abs_diff(count) <= 1, "{estimate}, {count}");
            }
            clock.advance(Duration::from_micros(interval - look));
        }
    }
}
