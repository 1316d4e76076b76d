//! Windows on the server's clock: how many requests each allows, and when it ends.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use rl_core::store::{Layout, Store};
use rl_core::time::{ManualClock, Timestamp};
use rl_core::{Decision, Limit, MemoryStore, RateLimiter, RetryAfter, Subject};
use rl_tests::{Bystander, RedisServer};
use tokio::time::interval;

use super::{check, limiter, store_of};

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap()
}

/// Returns the end of the window of the only limit.
fn ends(decision: &Decision) -> Timestamp {
    let limit = decision.limits().next().unwrap();
    decision.at().plus_micros(micros(limit.reset_after()))
}

/// A client sends hundreds of requests per second for six seconds, under a limit of ten per second.
///
/// Some stores round the remaining time of a window to whole seconds, so the window ends up to half
/// a second early. They would allow 120 requests. At most 70 are correct.
#[tokio::test]
async fn a_greedy_client_gets_ten_per_second_and_accurate_waits() {
    let server = RedisServer::start();
    let (packed, readable) = tokio::join!(
        greedy_client(&server, Layout::Packed, Duration::ZERO),
        // In the readable layout, the server reports remaining times in milliseconds. If the script
        // is delayed, the ends of windows are less precise.
        greedy_client(&server, Layout::Readable, Duration::from_millis(100)),
    );
    for passed in [packed, readable] {
        assert!(passed <= 70, "{passed}");
    }
}

/// Sends requests every other millisecond. Returns how many were allowed. The ends of windows may
/// vary by `precision`.
async fn greedy_client(server: &RedisServer, layout: Layout, precision: Duration) -> u64 {
    struct Window {
        ends: Timestamp,
        passed: u64,
        denied: u64,
    }

    let store = store_of(server, layout).await;
    let limiter = limiter(&store, &[Limit::per_second(10)]);
    let subject = Subject::user("greedy");
    let mut clock = Bystander::new(server).await;
    let end = clock.now().await.plus_micros(6_000_000);
    let mut windows: Vec<Window> = Vec::new();
    let mut last = None;
    let mut pace = interval(Duration::from_millis(2));
    while last.is_none_or(|last| last < end) {
        pace.tick().await;
        let decision = check(&limiter, &subject).await;
        last = Some(decision.at());
        let ends = ends(&decision);
        let before = windows.last().map(|window| window.ends);
        if before.is_none_or(|before| ends > before.plus_micros(micros(precision))) {
            let begins = Timestamp::from_micros(ends.as_micros() - 1_000_000);
            assert!(
                before.is_none_or(|before| begins.plus_micros(micros(precision)) >= before),
                "a window began {begins:?} before the last one ended {before:?}"
            );
            windows.push(Window { ends, passed: 0, denied: 0 });
        }
        let window = windows.last_mut().unwrap();
        if decision.is_allowed() {
            window.passed += 1;
        } else {
            window.denied += 1;
            let limit = decision.limits().next().unwrap();
            assert!(limit.reset_after() > Duration::ZERO);
            assert_eq!(decision.retry_after(), RetryAfter::In(limit.reset_after()));
        }
    }
    assert!(windows.iter().all(|window| window.passed <= 10));
    // Without a denied request, the client was too slow, and the test would prove nothing.
    assert!(windows.iter().any(|window| window.denied > 0));

    for _ in 0..2 {
        let denied = loop {
            let decision = check(&limiter, &subject).await;
            if !decision.is_allowed() {
                break decision;
            }
        };
        let RetryAfter::In(wait) = denied.retry_after() else { panic!("denied for a time") };
        clock.wait_until(denied.at().plus_micros(micros(wait))).await;
        assert!(check(&limiter, &subject).await.is_allowed());
    }
    windows.iter().map(|window| window.passed).sum()
}

/// Returns the numbers that a test compares with its trace: the used units, the seconds until the
/// window ends, rounded up, and the remaining units.
fn line(decision: &Decision) -> (u64, u64, u64) {
    let limit = decision.limits().next().unwrap();
    let seconds = micros(limit.reset_after()).div_ceil(1_000_000);
    (limit.used(), seconds, limit.remaining())
}

/// Makes requests at 0 s, 0.5 s, 1 s and 60 s, under a limit of a hundred per minute.
#[tokio::test]
async fn a_limit_of_a_hundred_per_minute_follows_the_trace() {
    let server = RedisServer::start();
    let clock = Arc::new(ManualClock::at(Timestamp::from_secs(1_750_000_000)));
    let memory = MemoryStore::builder().clock(clock.clone()).build();
    let redis = server.patient_store().manual_clock(clock.clone());
    let redis = redis.connect().await.unwrap();
    let stores: [Arc<dyn Store>; 2] = [Arc::new(memory), Arc::new(redis)];
    for store in stores {
        clock.set(Timestamp::from_secs(1_750_000_000));
        let limiter = RateLimiter::builder().limit(Limit::per_minute(100)).store(store);
        let limiter = limiter.deadline(super::PATIENCE).build().unwrap();
        let mut trace = Vec::new();
        for wait in [0, 500, 500, 59_000] {
            clock.advance(Duration::from_millis(wait));
            trace.push(line(&check(&limiter, &Subject::user("alice")).await));
        }
        // After half a second, 59.5 s are left. They are rounded up to 60, so that clients do not
        // retry too early.
        assert_eq!(trace, [(1, 60, 99), (2, 60, 98), (3, 59, 97), (1, 60, 99)]);
    }
}

/// Makes the same requests as the test above, but in the readable layout, where windows end on the
/// server's clock. To skip 59 seconds, the test changes the expiry of the key.
#[tokio::test]
async fn the_trace_holds_on_the_servers_clock_and_is_visible_in_the_keys() {
    let server = RedisServer::start();
    let store = store_of(&server, Layout::Readable).await;
    let limiter = limiter(&store, &[Limit::per_minute(100)]);
    let subject = Subject::consumer("consumer_123");
    let key = "consumer_123_PER_MINUTE";
    let mut operator = Bystander::new(&server).await;

    let first = check(&limiter, &subject).await;
    let mut trace = vec![first.clone()];
    for after in [500_000, 1_000_000] {
        operator.wait_until(first.at().plus_micros(after)).await;
        trace.push(check(&limiter, &subject).await);
    }
    for (decision, count) in trace.iter().zip(1..) {
        let (used, seconds, remaining) = line(decision);
        assert_eq!((used, remaining), (count, 100 - count));
        // Each request finds the same end of the window.
        let left = 60_000_000 - decision.at().micros_since(first.at());
        assert_eq!(seconds, left.div_ceil(1_000_000));
    }
    // The script reads the clock and the lifetime at the same time.
    let mut read = redis::cmd("EVAL");
    read.arg("return {redis.call('TIME'), redis.call('PTTL', KEYS[1])}").arg(1).arg(key);
    let ((seconds, micros), ttl): ((u64, u64), u64) = operator.send(&read).await;
    let now = Timestamp::from_secs(seconds).plus_micros(micros);
    let left = ends(&first).micros_since(now).div_ceil(1_000);
    assert!(ttl.abs_diff(left) <= 500, "{ttl} of {left}");
    assert_eq!(operator.query::<String>(&format!("GET {key}")).await, "3");

    operator.query::<()>(&format!("PEXPIRE {key} 20")).await;
    let end = operator.now().await.plus_micros(21_000);
    operator.wait_until(end).await;
    assert_eq!(line(&check(&limiter, &subject).await), (1, 60, 99));
    assert_eq!(operator.query::<String>(&format!("GET {key}")).await, "1");
}

/// The first call after a window opens the next one. This needs no background task.
#[tokio::test]
async fn the_first_call_after_a_window_is_number_one_of_the_next() {
    let server = RedisServer::start();
    let mut clock = Bystander::new(&server).await;
    for layout in super::LAYOUTS {
        let store = store_of(&server, layout).await;
        let limiter = limiter(&store, &[Limit::per_second(3), Limit::per_hour(9)]);
        let subject = Subject::user(&format!("{layout:?}"));
        for _ in 0..3 {
            let decision = check(&limiter, &subject).await;
            assert!(decision.is_allowed());
            clock.wait_until(ends(&decision)).await;
            let next = check(&limiter, &subject).await;
            assert_eq!(next.limits().next().unwrap().used(), 1);
            limiter.reset(&subject).await.unwrap();
        }
    }
}

/// One of several concurrent first calls opens the window. The others do not change it.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn concurrent_first_calls_open_one_window() {
    let server = RedisServer::start();
    let mut operator = Bystander::new(&server).await;
    for layout in super::LAYOUTS {
        operator.query::<()>("FLUSHALL").await;
        let store = store_of(&server, layout).await;
        let limiter = limiter(&store, &[Limit::per_minute(1_000)]);
        let subject = Subject::consumer("alice");
        let mut expiries = BTreeSet::new();
        let mut ends_seen = BTreeSet::new();
        for _ in 0..5 {
            let calls: Vec<_> = (0..50).map(|_| tokio::spawn(limiter.check(&subject, 1))).collect();
            for call in calls {
                ends_seen.insert(ends(&call.await.unwrap()));
            }
            let keys: Vec<String> = operator.query("KEYS *").await;
            expiries.insert(operator.expiry_of(&keys[0]).await);
        }
        assert_eq!(expiries.len(), 1, "{expiries:?}");
        if layout == Layout::Packed {
            assert_eq!(ends_seen.len(), 1, "{ends_seen:?}");
        }
    }
}
