//! The minimum load that a local Redis must handle. The results of `rl-bench` are at least ten
//! times better. Waits for a busy processor are not counted. A busy machine also slows down what
//! runs, so there are several attempts, and one of them must succeed.

use std::time::Duration;

use rl_core::{Limit, Origin, Period, RateLimiter, Subject};
use rl_tests::{Bystander, RedisServer, processor_wait};
use tokio::time::Instant;

/// The number of attempts to reach a bound.
const TRIES: usize = 20;

/// Returns a limiter with six periods whose limits are never reached.
async fn limiter(server: &RedisServer) -> RateLimiter {
    let limits = Period::NAMED.map(|period| Limit::new(1_000_000_000, period).unwrap());
    let store = server.patient_store().connect().await.unwrap();
    let limiter = RateLimiter::builder().store(store).deadline(Duration::from_secs(20));
    limits.into_iter().fold(limiter, |limiter, limit| limiter.limit(limit)).build().unwrap()
}

/// The time that a test takes, without the time for which its thread or the server waited for a
/// processor. On a busy machine, these waits are longer than the work.
struct Stopwatch<'a> {
    server: &'a RedisServer,
    begun: Instant,
    waited: Duration,
}

impl<'a> Stopwatch<'a> {
    fn start(server: &'a RedisServer) -> Self {
        Self { server, begun: Instant::now(), waited: Self::waited(server) }
    }

    fn waited(server: &RedisServer) -> Duration {
        let waits = [processor_wait("thread-self"), server.processor_wait()];
        waits.into_iter().flatten().sum()
    }

    fn elapsed(&self) -> Duration {
        self.begun.elapsed().saturating_sub(Self::waited(self.server) - self.waited)
    }
}

/// Makes decisions with concurrent callers, each on its own subjects.
async fn decide(limiter: &RateLimiter, callers: usize, each: usize) {
    let callers: Vec<_> = (0..callers)
        .map(|caller| {
            let limiter = limiter.clone();
            tokio::spawn(async move {
                for call in 0..each {
                    let subject = Subject::user(&format!("{caller}-{}", call % 10));
                    let decision = limiter.check(&subject, 1).await;
                    assert_eq!(decision.origin(), Origin::Store);
                    assert!(decision.is_allowed());
                }
            })
        })
        .collect();
    for caller in callers {
        caller.await.unwrap();
    }
}

#[tokio::test]
async fn a_decision_on_a_local_redis_adds_less_than_a_millisecond() {
    let server = RedisServer::start();
    let limiter = limiter(&server).await;
    let mut means = Vec::new();
    for _ in 0..TRIES {
        let watch = Stopwatch::start(&server);
        for _ in 0..200 {
            assert!(limiter.check(&Subject::user("alice"), 1).await.is_allowed());
        }
        means.push(watch.elapsed() / 200);
        if means.last() < Some(&Duration::from_millis(1)) {
            return;
        }
    }
    panic!("expected a mean below a millisecond once, got {means:?}");
}

/// A decision may take at most 20 µs of the server's processor time.
#[tokio::test]
async fn a_core_of_redis_carries_fifty_thousand_decisions_a_second() {
    const CALLERS: usize = 64;
    const EACH: usize = 150;

    let server = RedisServer::start();
    let limiter = limiter(&server).await;
    decide(&limiter, CALLERS, EACH).await;
    let mut operator = Bystander::new(&server).await;
    let mut rates = Vec::new();
    for _ in 0..TRIES {
        let before = processor_time(&mut operator).await;
        decide(&limiter, CALLERS, EACH).await;
        let spent = processor_time(&mut operator).await - before;
        assert!(spent > 0.0, "the server did nothing");
        rates.push((CALLERS * EACH) as f64 / spent);
        if rates.last() > Some(&50_000.0) {
            return;
        }
    }
    panic!("expected 50 000 decisions for a second of the server's processor, got {rates:?}");
}

/// Returns the processor time of the server since its start, in seconds.
async fn processor_time(operator: &mut Bystander) -> f64 {
    let info: String = operator.query("INFO cpu").await;
    let seconds = |kind: &str| -> f64 {
        let line = info.lines().find_map(|line| line.strip_prefix(kind)?.strip_prefix(':'));
        line.unwrap().parse().unwrap()
    };
    seconds("used_cpu_user") + seconds("used_cpu_sys")
}

#[tokio::test]
async fn one_caller_ten_and_a_hundred_are_served_faster_than_the_seed_served_them() {
    let server = RedisServer::start();
    let limiter = limiter(&server).await;
    for (callers, each, seed) in [(1, 250, 250.0), (10, 100, 2_000.0), (100, 25, 5_000.0)] {
        let mut rates = Vec::new();
        let beats_it = loop {
            let watch = Stopwatch::start(&server);
            decide(&limiter, callers, each).await;
            rates.push((callers * each) as f64 / watch.elapsed().as_secs_f64());
            if rates.last() > Some(&seed) || rates.len() == TRIES {
                break rates.last() > Some(&seed);
            }
        };
        assert!(beats_it, "{callers} callers: expected more than {seed} a second, got {rates:?}");
    }
}
