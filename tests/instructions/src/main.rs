//! Repeats one operation a given number of times, so that callgrind can count its instructions.
//!
//! ```text
//! valgrind --tool=callgrind '--toggle-collect=rl_instructions::counted*' rl-instructions allowed 1000
//! valgrind --tool=callgrind '--toggle-collect=rl_instructions::counted*' rl-instructions decide 1000 5000/hour:gcra
//! ```
//!
//! `decide` and `acquire` take the limits of the policy as further arguments.

mod http;
mod on_actix;
mod on_axum;
mod parts;
mod steady_clock;

use std::hint::black_box;
use std::process::ExitCode;

use rl_core::observe::Observer;
use rl_core::{
    Limit, MaybeReady, MemoryStore, Period, Policy, RateLimiter, RateLimiterBuilder, Subject,
};

use steady_clock::SteadyClock;

/// A limit that is never used up.
const ENDLESS: u64 = 1_000_000_000;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [operation, times, given @ ..] = &arguments[..] else {
        return refuse("usage: rl-instructions OPERATION TIMES [LIMIT]...");
    };
    let Ok(times) = times.parse() else { return refuse("TIMES must be a number") };
    let (limits, cost) = match operation.as_str() {
        "decide" | "acquire" => (given.to_vec(), 1),
        "allowed" | "axum" | "axum-plain" | "axum-lines" => (six(""), 1),
        "observed" | "observing" | "logged" => (six(""), 1),
        "actix" | "actix-plain" | "actix-lines" => (six(""), 1),
        "newcomer" => (with_a_small_hour(), 1),
        "http-allowed" => (vec!["5000/hour".to_owned()], 1),
        "denied" | "axum-denied" => (used_up_for_a_month(), 1),
        "too-much" => (six(""), ENDLESS + 1),
        "clock" => (six(":clock"), 1),
        "one" => (vec![format!("{ENDLESS}/hour")], 1),
        "gcra" => (six(":gcra:burst=900000"), 1),
        "counter" => (six(":sliding-window-counter"), 1),
        "log" => (vec!["100000/hour:sliding-log".to_owned()], 1),
        "http-denied" => (vec!["1/hour".to_owned()], 1),
        "one-part" | "three-parts" => (six(""), 1),
        "three-parts-denied" => (used_up_for_a_month(), 1),
        "three-parts-gcra" => (six(":gcra:burst=900000"), 1),
        _ => return refuse("unknown operation"),
    };
    let endless = format!("{ENDLESS}/minute");
    let limits = limits.iter().map(|limit| limit.parse::<Limit>().expect("a limit"));
    let policy = Policy::new(limits).expect("a policy");
    match operation.as_str() {
        "acquire" => acquire(&limiter(policy), times),
        "newcomer" => flood(policy, times),
        "observed" => decide(&observed(policy, ()), cost, times),
        "observing" => decide(&observed(policy, EachDecision), cost, times),
        "logged" => {
            log_to_nowhere();
            decide(&limiter(policy), cost, times);
        }
        "one-part" => parts::decide(&policy, &endless, 1, times),
        "three-parts" | "three-parts-denied" => parts::decide(&policy, &endless, 3, times),
        "three-parts-gcra" => parts::decide(&policy, "90000/minute:gcra", 3, times),
        "http-allowed" | "http-denied" => http::send(limiter(policy), times),
        "axum" | "axum-denied" => on_axum::send(Around::Limiter(limiter(policy)), times),
        "axum-plain" => on_axum::send(Around::Nothing, times),
        "axum-lines" => on_axum::send(Around::Lines, times),
        "actix" => on_actix::send(Around::Limiter(limiter(policy)), times),
        "actix-plain" => on_actix::send(Around::Nothing, times),
        "actix-lines" => on_actix::send(Around::Lines, times),
        _ => decide(&limiter(policy), cost, times),
    }
    ExitCode::SUCCESS
}

/// The layer or middleware around a service.
enum Around {
    Nothing,
    /// A layer that only adds three header lines.
    Lines,
    Limiter(RateLimiter),
}

fn decide(limiter: &RateLimiter, cost: u64, times: u64) {
    let subject = Subject::consumer("consumer-00000001");
    // The first two calls create what all repetitions reuse: the entry of the subject, the clock,
    // and the policy handles that the thread recycles.
    for cost in [1, cost] {
        drop(black_box(limiter.check(&subject, cost)));
    }
    counted(|| {
        for _ in 0..times {
            let answer = limiter.check(black_box(&subject), cost);
            assert!(
                matches!(black_box(&answer), MaybeReady::Ready(Some(_))),
                "a decision in memory is ready at once"
            );
        }
    });
}

/// Acquires a permit and drops it. Outside a runtime, no task renews its lease.
fn acquire(limiter: &RateLimiter, times: u64) {
    let subject = Subject::consumer("consumer-00000001");
    let once = || {
        let answer = limiter.acquire(black_box(&subject), 1);
        let MaybeReady::Ready(Some(permit)) = answer else {
            unreachable!("memory is ready at once")
        };
        assert!(black_box(permit).decision().is_allowed(), "each permit is released");
    };
    once();
    counted(|| (0..times).for_each(|_| once()));
}

/// Makes a decision for each of many new subjects. The store is full, so each of them evicts
/// another subject.
fn flood(policy: Policy, times: u64) {
    const CAPACITY: u64 = 6_400;

    let clock = SteadyClock::new();
    let store = MemoryStore::builder().capacity(CAPACITY as usize).clock(clock.clone()).build();
    let limiter = RateLimiter::builder().policy(policy).store(store).clock(clock);
    let limiter = limiter.build().expect("a limiter");
    let newcomers = |from: u64, count: u64| -> Vec<Subject> {
        (from..from + count).map(|n| Subject::consumer(&format!("consumer-{n:08}"))).collect()
    };
    // Some shards fill earlier than others. After twice as many subjects as the capacity, every
    // shard is full.
    for subject in newcomers(0, 2 * CAPACITY) {
        drop(black_box(limiter.check(&subject, 1)));
    }
    let newcomers = newcomers(2 * CAPACITY, times);
    counted(|| {
        for subject in &newcomers {
            let answer = limiter.check(black_box(subject), 1);
            assert!(
                matches!(black_box(&answer), MaybeReady::Ready(Some(_))),
                "a decision in memory is ready at once"
            );
        }
    });
}

fn limiter(policy: Policy) -> RateLimiter {
    builder(policy).build().expect("a limiter")
}

/// Returns the builder of a limiter with clocks that do not depend on how long the program takes.
fn builder(policy: Policy) -> RateLimiterBuilder {
    let clock = SteadyClock::new();
    let store = MemoryStore::builder().clock(clock.clone()).build();
    RateLimiter::builder().policy(policy).store(store).clock(clock)
}

/// An observer that receives each decision, and does nothing with it.
#[derive(Debug)]
struct EachDecision;

impl Observer for EachDecision {}

fn observed(policy: Policy, observer: impl Observer) -> RateLimiter {
    builder(policy).observer(observer).build().expect("a limiter")
}

/// Formats the log lines of decisions, and drops the text.
fn log_to_nowhere() {
    tracing_subscriber::fmt()
        .with_max_level(tracing_subscriber::filter::LevelFilter::DEBUG)
        .with_writer(std::io::sink)
        .init();
}

/// Runs `work`. callgrind counts only the instructions inside this function.
#[inline(never)]
fn counted(work: impl FnOnce()) {
    work();
}

fn six(algorithm: &str) -> Vec<String> {
    Period::NAMED.iter().map(|period| format!("{ENDLESS}/{period}{algorithm}")).collect()
}

/// Returns six limits. The limit per month allows one unit, which the warm-up uses.
fn used_up_for_a_month() -> Vec<String> {
    let mut limits = six("");
    limits[5] = "1/month".to_owned();
    limits
}

/// Returns six limits. One unit is a third of the limit per hour, so that evictions compare used
/// fractions that are not zero.
fn with_a_small_hour() -> Vec<String> {
    let mut limits = six("");
    limits[2] = "3/hour".to_owned();
    limits
}

fn refuse(why: &str) -> ExitCode {
    eprintln!("{why}");
    ExitCode::from(2)
}
