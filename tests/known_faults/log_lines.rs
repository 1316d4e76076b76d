//! Log lines and error texts name the limiter, the store, the subject and the cause.

use std::time::Duration;

use rl_core::store::Store;
use rl_core::{FailureKind, Limit, Origin, RateLimiter, RedisStore, RedisStoreBuilder, Subject};
use rl_tests::{Bystander, RedisServer, free_port};

use super::GIVE_UP;
use super::scripted_store::ScriptedStore;
use crate::redis::failure::PASSWORD;
use crate::redis::failure::log::Log;

/// The longest wait for a connection. It is long enough for a busy machine, and for a system
/// without a name server to give up.
const WAIT: Duration = Duration::from_secs(20);

fn builder(url: &str) -> RedisStoreBuilder {
    RedisStore::builder(url).connection_wait(WAIT).connect_timeout(WAIT).local_denial(false)
}

fn limiter(store: RedisStore) -> RateLimiter {
    let limiter = RateLimiter::builder().limit(Limit::per_hour(2)).store(store).namespace("api");
    // The wait for a connection ends before the deadline, so that the log line contains the error
    // of the connection and not that of the deadline.
    limiter.deadline(GIVE_UP).build().unwrap()
}

/// Fault: the log line about an unreachable server named neither the host nor the port. It did not
/// say that the host name could not be resolved.
#[tokio::test]
async fn a_server_that_cannot_be_reached_is_named_by_host_and_port_and_without_the_login() {
    let port = free_port();
    for (address, why) in [
        (format!("127.0.0.1:{port}"), "the connection was refused"),
        ("no-such-host.invalid:6379".to_owned(), "the host name cannot be resolved (DNS)"),
    ] {
        let (log, _guard) = Log::capture();
        let store = builder(&format!("redis://limiter-user:{PASSWORD}@{address}/")).connect().await;
        let store = store.unwrap();
        assert_eq!(store.report().label, format!("redis {address}"));
        let decision = limiter(store).check(&Subject::user("alice"), 1).await;
        assert_eq!(decision.origin(), Origin::FailedOpen(FailureKind::Unavailable));
        let lines = log.lines();
        let [(_, start), (_, failing)] = &lines[..] else { panic!("{lines:#?}") };
        let cause = format!("cause=\"could not connect to {address}: {why}\"");
        assert!(
            start.starts_with("starting without the store") && start.contains(&cause),
            "{start}"
        );
        assert!(failing.starts_with("store failing limiter=\"api\""), "{failing}");
        assert!(failing.contains(&cause), "{failing}");
        assert!(!failing.contains("limiter-user"), "{failing}");
        log.assert_no_secret();
    }
}

/// Fault: error texts said twice that the store did not respond, or that it refused the call.
#[tokio::test]
async fn an_error_text_names_its_cause_once() {
    let server = RedisServer::start();
    let url = server.url().replace("redis://", &format!("redis://unknown-user:{PASSWORD}@"));
    let error = builder(&url).connect().await.unwrap_err().to_string();
    assert_eq!(error.matches("the store").count(), 1, "{error}");
    assert!(error.starts_with("the store refused the credentials"), "{error}");
    assert!(error.ends_with(": authentication failed"), "{error}");
    assert!(error.contains(": could not connect to 127.0.0.1:"), "{error}");
    assert!(!error.contains(PASSWORD) && !error.contains("unknown-user"), "{error}");
}

/// Fault: the log line about a damaged value named neither the key nor the subject, and said that
/// all requests were rejected.
#[tokio::test]
async fn a_damaged_value_is_logged_with_its_subject_when_found_and_when_recovered() {
    let server = RedisServer::start();
    let limiter = limiter(builder(&server.url()).connect().await.unwrap());
    let [alice, bob] = ["alice", "bob"].map(Subject::user);
    limiter.check(&alice, 1).await;
    let mut operator = Bystander::new(&server).await;
    let keys: Vec<String> = operator.query("KEYS *").await;
    operator.query::<()>(&format!("SET {} garbage PX 100000", keys[0])).await;

    let (log, _guard) = Log::capture();
    for _ in 0..100 {
        let corrupt = Origin::FailedClosed(FailureKind::Corrupt);
        assert_eq!(limiter.check(&alice, 1).await.origin(), corrupt);
        assert_eq!(limiter.check(&bob, 1).await.origin(), Origin::Store);
    }
    operator.query::<()>(&format!("DEL {}", keys[0])).await;
    assert!(limiter.check(&alice, 1).await.is_allowed());
    let lines = log.lines();
    let [(_, found), (_, well)] = &lines[..] else { panic!("{lines:#?}") };
    let tag = alice.redacted().to_string();
    assert!(found.starts_with("stored value damaged limiter=\"api\" store=\"redis "), "{found}");
    assert!(found.contains("requests of this subject are rejected"), "{found}");
    assert!(well.starts_with("stored value recovered") && well.contains("requests=100"), "{well}");
    assert!(found.contains(&tag) && well.contains(&tag), "{lines:#?}");
}

/// Fault: each counter without an expiry caused a log line.
#[tokio::test]
async fn counters_without_expiry_are_logged_once_however_many_there_are() {
    let server = RedisServer::start();
    let limiter = limiter(builder(&server.url()).connect().await.unwrap());
    let mut operator = Bystander::new(&server).await;
    let (log, _guard) = Log::capture();
    for number in 0..50 {
        let subject = Subject::user(&number.to_string());
        while limiter.check(&subject, 1).await.is_allowed() {}
        for key in operator.query::<Vec<String>>("KEYS *").await {
            operator.query::<bool>(&format!("PERSIST {key}")).await;
        }
        assert!(!limiter.check(&subject, 1).await.is_allowed());
    }
    let lines = log.lines();
    let [(_, line)] = &lines[..] else { panic!("{lines:#?}") };
    assert!(line.starts_with("counters without expiry found"), "{line}");
}

/// Fault: after one late reply, the log said that all requests were allowed without limits.
#[tokio::test(start_paused = true)]
async fn a_store_failure_is_logged_once_with_its_consequence_for_undecided_requests() {
    let (log, _guard) = Log::capture();
    let limiter = RateLimiter::builder().limit(Limit::per_hour(2)).store(ScriptedStore::default());
    let limiter = limiter.build().unwrap();
    for _ in 0..10 {
        limiter.check(&Subject::user("alice"), 1).await;
    }
    let lines = log.lines();
    assert_eq!(lines.len(), 1, "{lines:#?}");
    let (_, line) = &lines[0];
    assert!(line.starts_with("store failing") && line.contains("kind=\"timed_out\""), "{line}");
    assert!(line.contains("undecided requests are allowed without limits"), "{line}");
}
