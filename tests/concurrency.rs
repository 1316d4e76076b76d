//! Many concurrent clients: exactly as many requests are allowed as the limit permits, whether the
//! clients share a process or not.
//!
//! In most tests, ten clients send a request at the same time under a limit of five. A limiter that
//! reads the count and raises it in two steps would allow all ten.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Barrier};
use std::time::Duration;

use rl_core::store::Layout;
use rl_core::time::{Clock, ManualClock, SystemClock, Timestamp};
use rl_core::{Decision, Limit, MaybeReady, MemoryStore, Origin, RateLimiter, RedisStore, Subject};
use rl_tests::{Bystander, RedisServer};

const CLIENTS: usize = 10;
const LIMIT: u32 = 5;
const ROUNDS: usize = 200;

/// A timeout longer than any pause of a busy machine, so that no decision is made without the
/// store.
const PATIENCE: Duration = Duration::from_secs(30);

fn subject(round: usize) -> Subject {
    Subject::user(&format!("round-{round}"))
}

/// Returns the decision of a limiter in memory. Such a decision is ready immediately.
fn at_once(decision: MaybeReady<Decision>) -> Decision {
    match decision {
        MaybeReady::Ready(Some(decision)) => decision,
        other => panic!("expected an answer at once, got {other:?}"),
    }
}

#[test]
fn exactly_five_of_ten_concurrent_threads_pass_in_memory() {
    let limiter = RateLimiter::builder().limit(Limit::per_hour(LIMIT)).build().unwrap();
    let start = Barrier::new(CLIENTS);
    let allowed: Vec<AtomicU64> = (0..ROUNDS).map(|_| AtomicU64::new(0)).collect();
    std::thread::scope(|scope| {
        for _ in 0..CLIENTS {
            scope.spawn(|| {
                for (round, allowed) in allowed.iter().enumerate() {
                    let subject = subject(round);
                    start.wait();
                    let decision = at_once(limiter.check(&subject, 1));
                    allowed.fetch_add(u64::from(decision.is_allowed()), Ordering::Relaxed);
                }
            });
        }
    });
    let allowed: Vec<u64> = allowed.into_iter().map(AtomicU64::into_inner).collect();
    assert_eq!(allowed, [u64::from(LIMIT); ROUNDS]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn exactly_five_of_ten_concurrent_tasks_pass_in_memory() {
    ten_tasks_at_once(MemoryStore::new()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn exactly_five_of_ten_concurrent_tasks_pass_on_redis_in_the_packed_layout() {
    let server = RedisServer::start();
    let store = RedisStore::builder(&server.url()).local_denial(false).connection_wait(PATIENCE);
    ten_tasks_at_once(store.connect().await.unwrap()).await;
    assert_eq!(server.keys_without_expiry().await, [""; 0]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn exactly_five_of_ten_concurrent_tasks_pass_on_redis_in_the_readable_layout() {
    let server = RedisServer::start();
    let store = RedisStore::builder(&server.url())
        .local_denial(false)
        .layout(Layout::Readable)
        .connection_wait(PATIENCE);
    ten_tasks_at_once(store.connect().await.unwrap()).await;
    assert_eq!(server.keys_without_expiry().await, [""; 0]);
}

async fn ten_tasks_at_once(store: impl rl_core::store::Store) {
    let limiter = RateLimiter::builder()
        .limit(Limit::per_hour(LIMIT))
        .store(store)
        .deadline(PATIENCE)
        .build()
        .unwrap();
    for round in 0..ROUNDS {
        let start = Arc::new(tokio::sync::Barrier::new(CLIENTS));
        let clients: Vec<_> = (0..CLIENTS)
            .map(|_| {
                let (limiter, start, subject) = (limiter.clone(), start.clone(), subject(round));
                tokio::spawn(async move {
                    start.wait().await;
                    limiter.check(&subject, 1).await
                })
            })
            .collect();
        let mut allowed = 0;
        for client in clients {
            let decision = client.await.unwrap();
            assert_eq!(decision.origin(), Origin::Store);
            allowed += u32::from(decision.is_allowed());
        }
        assert_eq!(allowed, LIMIT, "round {round}");
    }
}

/// Another process, with its own limiter.
struct Contender {
    process: Child,
    // The standard input of the process. When it is closed, the process ends.
    input: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
    /// The time at which the process was ready, in seconds on its own clock.
    clock: i64,
}

impl Contender {
    fn start(server: &RedisServer, limit: &str) -> Self {
        Self::run(Command::new(env!("CARGO_BIN_EXE_contender")).args([&server.url(), limit]))
    }

    /// Starts a process whose system clock is wrong by this number of seconds.
    fn start_with_clock_error(server: &RedisServer, limit: &str, seconds: i64) -> Self {
        let mut command = Command::new("faketime");
        // Only the wall clock is shifted. Time limits use the monotonic clock, which must stay
        // correct.
        command.env("FAKETIME_DONT_FAKE_MONOTONIC", "1").args(["-f", &format!("{seconds:+}s")]);
        let contender = env!("CARGO_BIN_EXE_contender");
        Self::run(command.args([contender, &server.url(), limit]))
    }

    fn run(command: &mut Command) -> Self {
        let mut process = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut contender = Self {
            input: process.stdin.take(),
            answers: BufReader::new(process.stdout.take().unwrap()),
            process,
            clock: 0,
        };
        let ready = contender.answer();
        contender.clock = ready.strip_prefix("ready ").unwrap().parse().unwrap();
        contender
    }

    fn call(&mut self, round: usize, calls: usize) {
        writeln!(self.input.as_ref().unwrap(), "round-{round} {calls}").unwrap();
    }

    /// Reads the next line of the process. Returns an empty text if the process has ended.
    fn answer(&mut self) -> String {
        let mut line = String::new();
        self.answers.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }
}

impl Drop for Contender {
    fn drop(&mut self) {
        // The process ends by itself when its input is closed. If it were killed under faketime, it
        // would leave a semaphore behind, and the next process with the same id could not start.
        drop(self.input.take());
        let _ = self.process.wait();
    }
}

#[test]
fn exactly_five_of_ten_clients_in_four_processes_pass_on_redis() {
    let server = RedisServer::start();
    let mut contenders: Vec<Contender> =
        (0..4).map(|_| Contender::start(&server, "5/hour")).collect();
    for round in 0..ROUNDS {
        for (contender, calls) in contenders.iter_mut().zip([3, 3, 2, 2]) {
            contender.call(round, calls);
        }
        let answers: Vec<String> = contenders.iter_mut().map(Contender::answer).collect();
        let allowed = answers.iter().map(|answer| answer.parse::<u32>().unwrap());
        assert_eq!(allowed.sum::<u32>(), LIMIT, "round {round}: {answers:?}");
    }
}

fn seconds_now() -> i64 {
    i64::try_from(SystemClock.now().as_micros() / 1_000_000).unwrap()
}

/// The server's clock decides. If clients used their own clocks, a client that is far ahead would
/// find full buckets and ended windows in each round.
#[test]
fn clients_with_different_clocks_share_the_clock_of_the_server() {
    let server = RedisServer::start();
    for limit in ["5/hour", "5/hour:sliding-log", "5/hour:gcra:burst=5", "5/hour:token-bucket"] {
        let clocks = [0, -5, 5, -7_200, 7_200];
        let begun = seconds_now();
        let mut contenders =
            clocks.map(|off| Contender::start_with_clock_error(&server, limit, off));
        let started = begun..=seconds_now();
        for (contender, off) in contenders.iter().zip(clocks) {
            assert!(started.contains(&(contender.clock - off)), "{off} s: {}", contender.clock);
        }
        let mut allowed = 0;
        for contender in &mut contenders {
            contender.call(0, 3);
            allowed += contender.answer().parse::<u32>().unwrap();
        }
        assert_eq!(allowed, 5, "{limit}");
    }
}

/// Many threads make requests under six limits. Some are allowed, some are denied, and some are
/// refunded. No limit may lose a unit or count it twice.
#[test]
fn totals_of_six_limits_are_exact_under_many_threads() {
    const THREADS: usize = 8;
    const CALLS: usize = 2_000;
    const SUBJECTS: usize = 3;

    // The clock is stopped, because otherwise the window of one second could end during the test.
    let clock = Arc::new(ManualClock::at(Timestamp::from_secs(1_750_000_000)));
    let limiter = RateLimiter::builder()
        .limit(Limit::per_second(10_000))
        .limit(Limit::per_minute(4_000))
        .limit(Limit::per_hour(3_000))
        .limit(Limit::per_day(10_000))
        .limit(Limit::per_week(10_000))
        .limit(Limit::per_month(10_000))
        .store(MemoryStore::builder().clock(clock).build())
        .build()
        .unwrap();
    let subjects: Vec<Subject> = (0..SUBJECTS).map(subject).collect();
    let in_use: Vec<AtomicU64> = subjects.iter().map(|_| AtomicU64::new(0)).collect();
    let denied = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                for call in 0..CALLS {
                    let (subject, in_use) = (&subjects[call % SUBJECTS], &in_use[call % SUBJECTS]);
                    let decision = at_once(limiter.check(subject, 1));
                    in_use.fetch_add(decision.granted(), Ordering::Relaxed);
                    denied.fetch_add(u64::from(!decision.is_allowed()), Ordering::Relaxed);
                    // Every seventh call refunds its granted units.
                    if call % 7 == 0 && decision.is_allowed() {
                        let MaybeReady::Ready(Some(Ok(()))) =
                            limiter.request(subject).refund(&decision, &[1])
                        else {
                            panic!("a refund in memory is done at once")
                        };
                        in_use.fetch_sub(1, Ordering::Relaxed);
                    }
                }
            });
        }
    });
    for (subject, in_use) in subjects.iter().zip(in_use) {
        let MaybeReady::Ready(Some(Ok(usage))) = limiter.usage(subject) else {
            panic!("usage in memory is known at once")
        };
        let used: Vec<u64> = usage.limits().map(|limit| limit.used()).collect();
        assert_eq!(used, [in_use.into_inner(); 6]);
        assert!(used[0] <= 3_000, "{used:?}");
    }
    // If nothing was denied, the test has not covered the code for denials.
    assert!(denied.into_inner() > 0);
}

/// A process renews the leases of the permits that it holds. After it is killed, the permits are
/// free when their leases end.
#[tokio::test]
async fn permits_of_a_process_that_dies_are_free_when_their_lease_ends() {
    // The process renews its leases well before they end, even on a busy machine.
    const LEASE: Duration = Duration::from_secs(3);

    let server = RedisServer::start();
    let mut bystander = Bystander::new(&server).await;
    let mut holder = Contender::start(&server, "5:concurrency:lease=3s");
    holder.call(0, 9);
    assert_eq!(holder.answer(), "5");

    let store = RedisStore::builder(&server.url())
        .local_denial(false)
        .connection_wait(PATIENCE)
        .connect()
        .await;
    let limit: Limit = "5:concurrency:lease=3s".parse().unwrap();
    let limiter = RateLimiter::builder().limit(limit).store(store.unwrap()).deadline(PATIENCE);
    let limiter = limiter.build().unwrap();
    let later =
        |time: Timestamp, by: Duration| time.plus_micros(by.as_micros().try_into().unwrap());
    let two_leases = later(bystander.now().await, 2 * LEASE);
    let mut pace = tokio::time::interval(Duration::from_millis(5));
    while bystander.now().await < two_leases {
        pace.tick().await;
        let decision = limiter.check(&subject(0), 1).await;
        assert!(!decision.is_allowed(), "the holder lives: {decision:?}");
    }
    drop(holder);
    let lease_ends = later(bystander.now().await, LEASE);
    bystander.wait_until(lease_ends).await;
    let permit = limiter.acquire(&subject(0), 5).await;
    assert!(permit.decision().is_allowed(), "{:?}", permit.decision());
}
