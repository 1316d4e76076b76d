//! Decisions and log lines when Redis is down, slow, or refuses the service.

mod cancelled;
mod configuration;
mod damage_under_load;
mod load;
pub(crate) mod log;
mod under_load;

use std::time::Duration;

use log::Log;
use rl_core::time::{Clock, SystemClock};
use rl_core::{
    Decision, FailureKind, Limit, OnFailure, Origin, RateLimiter, RateLimiterBuilder, RedisStore,
    RedisStoreBuilder, RetryAfter, Subject,
};
use rl_tests::web::GIVE_UP;
use rl_tests::{Bystander, RedisServer, connected, is_soak};
use tracing::Level;

/// Returns the longest acceptable time of a decision. In a soak test, it is the deadline and a
/// delay of the machine.
fn in_time() -> Duration {
    if is_soak() { Duration::from_millis(100 + 150) } else { Duration::from_secs(20) }
}

/// Returns the deadline of a decision. In a soak test it is the default. Otherwise it is so long
/// that a busy machine does not exceed it: the tests stop or configure the server so that it fails
/// the calls before their deadline.
fn deadline() -> Duration {
    if is_soak() { Duration::from_millis(100) } else { GIVE_UP }
}

/// A password that is part of every URL, and must not appear anywhere else.
pub(crate) const PASSWORD: &str = "hunter2-8c4f";

const ALLOWING: (Level, &str) = (Level::WARN, "undecided requests are allowed");
const REJECTING: (Level, &str) = (Level::WARN, "undecided requests are rejected");
const RECOVERED: (Level, &str) = (Level::INFO, "store recovered");

/// Creates a server that is not running yet. It has a user `rl` with all permissions and the
/// password [`PASSWORD`].
fn stopped_server() -> RedisServer {
    let password = format!(">{PASSWORD}");
    RedisServer::stopped_with(&["--user", "rl", "on", &password, "~*", "&*", "+@all"])
}

fn server() -> RedisServer {
    let mut server = stopped_server();
    server.restart();
    server
}

fn url(server: &RedisServer) -> String {
    server.url_of("rl", PASSWORD)
}

/// Returns the builder of a store without a denial cache, so that every decision needs the server.
fn without_denial_cache(url: &str) -> RedisStoreBuilder {
    RedisStore::builder(url).local_denial(false)
}

/// Returns a store without a denial cache that has opened a connection. Unless this is a soak test,
/// it waits long for replies.
async fn store_on(server: &RedisServer) -> RedisStore {
    let store = without_denial_cache(&url(server));
    connected(if is_soak() { store } else { store.response_timeout(GIVE_UP) }).await
}

/// Returns the builder of a limiter of three requests per hour.
///
/// It also allows requests during an overload. On a busy machine, this process may get too little
/// CPU time, and the limiter may then report an overload instead of an outage.
fn three_per_hour(store: RedisStore) -> RateLimiterBuilder {
    let limiter = RateLimiter::builder().limit(Limit::per_hour(3)).on_overload(OnFailure::Allow);
    limiter.deadline(deadline()).store(store)
}

/// Checks one unit, and asserts that the decision was made in time.
async fn check(limiter: &RateLimiter, subject: &str) -> Decision {
    let asked = SystemClock.now();
    let decision = limiter.check(&Subject::user(subject), 1).await;
    let took = Duration::from_micros(SystemClock.now().micros_since(asked));
    assert!(took <= in_time(), "{took:?} {decision:?}");
    decision
}

/// Makes checks until a decision has the `expected` origin.
async fn check_until(limiter: &RateLimiter, expected: impl Fn(Origin) -> bool) -> Decision {
    let asking = async {
        loop {
            let decision = check(limiter, "until").await;
            if expected(decision.origin()) {
                return decision;
            }
        }
    };
    tokio::time::timeout(GIVE_UP, asking).await.expect("the expected answer in the end")
}

/// Makes checks until this number of lines has been logged. The line about a recovery comes only
/// after a period without failures.
async fn check_until_logged(limiter: &RateLimiter, log: &Log, lines: usize) {
    let asking = async {
        while log.count() < lines {
            check(limiter, "until").await;
        }
    };
    tokio::time::timeout(GIVE_UP, asking).await.expect("the lines in the end");
}

fn is_open(origin: Origin) -> bool {
    use FailureKind::{Overloaded, TimedOut, Unavailable};
    matches!(origin, Origin::FailedOpen(Unavailable | TimedOut | Overloaded))
}

fn is_store(origin: Origin) -> bool {
    origin == Origin::Store
}

/// Asserts that the store allows exactly three of five requests.
async fn assert_limit_holds(limiter: &RateLimiter, subject: &str) {
    let mut allowed = 0;
    for _ in 0..5 {
        let decision = check(limiter, subject).await;
        assert!(is_store(decision.origin()), "{decision:?}");
        allowed += u32::from(decision.is_allowed());
    }
    assert_eq!(allowed, 3);
}

/// Restarts the server in a separate thread, so that the test can send requests meanwhile.
async fn restart(mut server: RedisServer) -> RedisServer {
    let restarted = tokio::task::spawn_blocking(move || {
        server.restart();
        server
    });
    restarted.await.unwrap()
}

#[tokio::test]
async fn an_outage_allows_requests_in_time_and_logs_two_lines() {
    let (log, _guard) = Log::capture();
    let mut server = server();
    let store = store_on(&server).await;
    let limiter = three_per_hour(store).build().unwrap();
    assert_limit_holds(&limiter, "before").await;
    log.assert_lines(&[]);

    // Eight callers send requests continuously.
    let (stop, stopped) = tokio::sync::watch::channel(false);
    let callers: Vec<_> = (0..8)
        .map(|caller| {
            let (limiter, stopped) = (limiter.clone(), stopped.clone());
            tokio::spawn(async move {
                while !*stopped.borrow() {
                    let decision = check(&limiter, &format!("caller-{caller}")).await;
                    let origin = decision.origin();
                    assert!(origin == Origin::Store || is_open(origin), "{decision:?}");
                    tokio::task::yield_now().await;
                }
            })
        })
        .collect();
    check_until(&limiter, is_store).await;
    server.stop();
    for _ in 0..10 {
        assert!(check_until(&limiter, is_open).await.is_allowed());
    }
    log.assert_lines(&[ALLOWING]);

    let _server = restart(server).await;
    check_until(&limiter, is_store).await;
    stop.send(true).unwrap();
    for caller in callers {
        caller.await.unwrap();
    }
    assert_limit_holds(&limiter, "after").await;
    log.assert_lines(&[ALLOWING, RECOVERED]);
}

/// While the breaker is open, a decision does not wait. It is faster than a decision of the store.
#[tokio::test]
async fn decisions_during_an_outage_take_microseconds() {
    const DECISIONS: u32 = 10_000;

    let server = stopped_server();
    let store = without_denial_cache(&url(&server)).connect().await.unwrap();
    let limiter = three_per_hour(store).build().unwrap();
    for _ in 0..3 {
        check(&limiter, "alice").await;
    }
    let alice = Subject::user("alice");
    let begun = SystemClock.now();
    for _ in 0..DECISIONS {
        let decision = limiter.check(&alice, 1).await;
        assert_eq!(decision.origin(), Origin::FailedOpen(FailureKind::Unavailable));
    }
    // Some of the decisions are probes, which wait for the store. So the mean time is checked, not
    // the longest one.
    let each = SystemClock.now().micros_since(begun) as f64 / f64::from(DECISIONS);
    load::print_measurement(&format!("down, breaker open: a decision takes {each:.2} µs"));
    // A decision that waited for a connection would take 75 000 µs.
    assert!(each < 1_000.0 || !is_soak(), "{each} µs");
}

#[tokio::test]
async fn a_limiter_set_to_reject_rejects_requests_during_an_outage() {
    let (log, _guard) = Log::capture();
    let mut server = server();
    let store = store_on(&server).await;
    let limiter = three_per_hour(store).on_store_failure(OnFailure::Reject).build().unwrap();
    check_until(&limiter, is_store).await;
    server.stop();
    for _ in 0..3 {
        let denied = check(&limiter, "alice").await;
        assert!(!denied.is_allowed());
        assert!(matches!(
            denied.origin(),
            Origin::FailedClosed(FailureKind::Unavailable | FailureKind::TimedOut)
        ));
        assert_eq!(denied.retry_after(), RetryAfter::In(Duration::from_secs(1)));
    }
    log.assert_lines(&[REJECTING]);

    let _server = restart(server).await;
    check_until(&limiter, is_store).await;
    assert_limit_holds(&limiter, "alice").await;
    log.assert_lines(&[REJECTING, RECOVERED]);
}

#[tokio::test]
async fn a_store_created_during_an_outage_enforces_limits_once_redis_is_up() {
    let (log, _guard) = Log::capture();
    let server = stopped_server();
    let store = without_denial_cache(&url(&server)).connect().await.unwrap();
    let limiter = three_per_hour(store).build().unwrap();
    for _ in 0..3 {
        assert!(is_open(check(&limiter, "alice").await.origin()));
    }
    let starting = (Level::WARN, "starting without the store");
    log.assert_lines(&[starting, ALLOWING]);

    let _server = restart(server).await;
    check_until(&limiter, is_store).await;
    assert_limit_holds(&limiter, "alice").await;
    log.assert_lines(&[starting, ALLOWING, RECOVERED]);
}

#[tokio::test]
async fn requests_to_a_frozen_server_end_at_the_deadline() {
    let (log, _guard) = Log::capture();
    let server = server();
    // On a busy machine, the decisions before and after the freeze take longer than 100 ms.
    let deadline = if is_soak() { deadline() } else { Duration::from_secs(3) };
    let limiter = three_per_hour(store_on(&server).await).deadline(deadline).build().unwrap();
    check_until(&limiter, is_store).await;

    server.signal("STOP");
    let callers: Vec<_> = (0..20)
        .map(|_| {
            let limiter = limiter.clone();
            tokio::spawn(async move { check(&limiter, "alice").await })
        })
        .collect();
    for caller in callers {
        assert!(is_open(caller.await.unwrap().origin()));
    }
    log.assert_lines(&[ALLOWING]);

    server.signal("CONT");
    check_until(&limiter, is_store).await;
    assert_limit_holds(&limiter, "bob").await;
    check_until_logged(&limiter, &log, 2).await;
    log.assert_lines(&[ALLOWING, RECOVERED]);
}

/// The server runs, but cannot decide for now. This counts as an outage. If it counted as a
/// configuration failure, requests would be rejected. (A full server is in `topologies::memory`.)
#[tokio::test]
async fn a_server_that_cannot_write_is_an_outage() {
    let (log, _guard) = Log::capture();
    let server = server();
    let store = store_on(&server).await;
    let limiter = three_per_hour(store).build().unwrap();
    let mut operator = Bystander::new(&server).await;
    let mut expected = Vec::new();
    for (trouble, cure) in [
        ("CONFIG SET min-replicas-to-write 1", "CONFIG SET min-replicas-to-write 0"),
        // The server becomes a replica, as in a fail-over.
        ("REPLICAOF 127.0.0.1 1", "REPLICAOF NO ONE"),
    ] {
        operator.query::<()>(trouble).await;
        let passed = check(&limiter, "alice").await;
        assert_eq!(passed.origin(), Origin::FailedOpen(FailureKind::Unavailable), "{trouble}");
        operator.query::<()>(cure).await;
        assert_limit_holds(&limiter, trouble).await;
        expected.extend([ALLOWING, RECOVERED]);
        check_until_logged(&limiter, &log, expected.len()).await;
    }
    log.assert_lines(&expected);
}

/// While the server runs an endless script, it refuses all commands, even on new connections. This
/// must count as an outage.
#[tokio::test]
async fn a_busy_server_is_an_outage_for_old_and_new_stores() {
    let (log, _guard) = Log::capture();
    let server = server();
    let store = store_on(&server).await;
    let limiter = three_per_hour(store).build().unwrap();
    check_until(&limiter, is_store).await;

    let mut operator = Bystander::new(&server).await;
    operator.query::<()>("CONFIG SET lua-time-limit 1").await;
    let mut script = redis::cmd("EVAL");
    script.arg("while true do end").arg(0);
    let mut stranger = server.connection().await;
    let endless = tokio::spawn(async move { script.query_async::<()>(&mut stranger).await });

    let is_unavailable = |origin| origin == Origin::FailedOpen(FailureKind::Unavailable);
    check_until(&limiter, is_unavailable).await;
    let late = without_denial_cache(&url(&server)).connect().await.unwrap();
    let late = three_per_hour(late).build().unwrap();
    for limiter in [&limiter, &late] {
        let passed = check(limiter, "alice").await;
        assert!(is_open(passed.origin()), "{passed:?}");
    }

    operator.query::<()>("SCRIPT KILL").await;
    assert!(endless.await.unwrap().is_err());
    for limiter in [&limiter, &late] {
        check_until(limiter, is_store).await;
    }
    log.assert_no_secret();
}

/// At level `debug` there is a line for every decision, and no line names a subject.
#[tokio::test]
async fn every_decision_is_a_debug_line_without_the_name_of_the_subject() {
    let (log, _guard) = Log::capture();
    let server = server();
    let store = store_on(&server).await;
    let limiter = three_per_hour(store).build().unwrap();
    for _ in 0..4 {
        check(&limiter, "alice@example.org").await;
    }
    let lines = log.all();
    let decided: Vec<&String> = lines
        .iter()
        .filter(|(level, line)| *level == Level::DEBUG && line.starts_with("decided "))
        .map(|(_, line)| line)
        .collect();
    assert_eq!(decided.len(), 4);
    for (line, used) in decided.iter().zip([1, 2, 3, 3]) {
        let allowed = !std::ptr::eq(*line, decided[3]);
        for field in [
            "realm=\"user\"".to_owned(),
            format!("allowed={allowed}"),
            "origin=\"store\"".to_owned(),
            "limit=\"hour\"".to_owned(),
            format!("used={used}"),
        ] {
            assert!(line.contains(&field), "{line}: {field}");
        }
    }
    let named = lines.iter().find(|(_, line)| line.contains("alice"));
    assert_eq!(named, None);
}
