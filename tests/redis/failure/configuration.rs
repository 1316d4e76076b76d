//! Configuration failures: requests are rejected, and the log contains the reason.

use std::time::Duration;

use rl_core::store::ConnectError;
use rl_core::{FailureKind, Origin, RedisStore, Subject};
use rl_tests::Bystander;
use tracing::Level;

use super::log::Log;
use super::{
    GIVE_UP, PASSWORD, RECOVERED, assert_limit_holds, check, check_until, check_until_logged,
    is_store, server, store_on, three_per_hour, url,
};

const REFUSED: (Level, &str) = (Level::ERROR, "kind=\"refused\"");

#[tokio::test]
async fn a_wrong_password_fails_the_connect() {
    let (log, _guard) = Log::capture();
    let server = server();
    for url in
        [server.url_of("rl", &format!("{PASSWORD}-wrong")), server.url_of("unknown", PASSWORD)]
    {
        let error = RedisStore::connect(&url).await.unwrap_err();
        assert!(matches!(error, ConnectError::Refused(_)), "{error:?}");
        assert!(error.to_string().contains("credentials"), "{error}");
        assert_shows_no_secret(&error);
    }
    server.query::<()>("ACL SETUSER default off").await;
    let error = RedisStore::connect(&server.url()).await.unwrap_err();
    assert!(matches!(error, ConnectError::Refused(_)), "{error:?}");
    assert!(error.to_string().contains("credentials"), "{error}");
    log.assert_lines(&[]);
}

#[tokio::test]
async fn a_missing_or_forbidden_database_fails_the_connect() {
    let server = server();
    let error = RedisStore::connect(&format!("{}99", url(&server))).await.unwrap_err();
    assert!(matches!(error, ConnectError::Refused(_)), "{error:?}");
    assert!(error.to_string().contains("no database of the number"), "{error}");
    assert_shows_no_secret(&error);

    RedisStore::connect(&format!("{}1", url(&server))).await.unwrap();
    server.query::<()>("ACL SETUSER rl -select").await;
    let error = RedisStore::connect(&format!("{}1", url(&server))).await.unwrap_err();
    let ConnectError::Refused(refused) = &error else { panic!("{error:?}") };
    assert_eq!(refused.kind(), FailureKind::Refused);
    assert!(error.to_string().contains("may not select"), "{error}");
    assert_shows_no_secret(&error);
}

fn assert_shows_no_secret(error: &(dyn std::error::Error + 'static)) {
    let mut next = Some(error);
    while let Some(error) = next {
        let shown = format!("{error} {error:?}");
        assert!(!shown.contains(PASSWORD), "{shown}");
        next = error.source();
    }
}

#[tokio::test]
async fn a_revoked_permission_rejects_requests_and_logs_an_error() {
    let (log, _guard) = Log::capture();
    let server = server();
    let store = store_on(&server).await;
    let limiter = three_per_hour(store).build().unwrap();
    check_until(&limiter, is_store).await;

    // To run a script, a user needs the permission for `evalsha`, and for the commands in the
    // script, such as `get`.
    let mut expected = Vec::new();
    for permission in ["get", "evalsha"] {
        let (take, give) =
            (format!("ACL SETUSER rl -{permission}"), format!("ACL SETUSER rl +{permission}"));
        server.query::<()>(&take).await;
        for _ in 0..3 {
            let denied = check(&limiter, permission).await;
            assert!(is_refused(denied.origin()), "-{permission}: {denied:?}");
        }
        server.query::<()>(&give).await;
        assert_limit_holds(&limiter, permission).await;
        expected.extend([REFUSED, RECOVERED]);
        check_until_logged(&limiter, &log, expected.len()).await;
    }
    log.assert_lines(&expected);
}

/// If the server refuses the connection, requests are rejected immediately, even if they may wait
/// long for an unreachable server.
#[tokio::test]
async fn no_request_waits_for_a_refused_connection() {
    let server = server();
    let patience = Duration::from_secs(600);
    let store = RedisStore::builder(&url(&server)).connection_wait(patience);
    let limiter = three_per_hour(store.connect().await.unwrap()).deadline(patience);
    let limiter = limiter.build().unwrap();

    let mut operator = Bystander::new(&server).await;
    operator.query::<()>("ACL SETUSER rl resetpass >another").await;
    operator.query::<()>("CLIENT KILL USER rl").await;
    let refused = async {
        let mut refusals = 0;
        while refusals < 100 {
            let decision = limiter.check(&Subject::user("alice"), 1).await;
            refusals += usize::from(is_refused(decision.origin()));
        }
    };
    tokio::time::timeout(GIVE_UP, refused).await.expect("refusals at once");
    operator.query::<()>(&format!("ACL SETUSER rl resetpass >{PASSWORD}")).await;
    let mended = async {
        while limiter.check(&Subject::user("alice"), 1).await.origin() != Origin::Store {}
    };
    tokio::time::timeout(GIVE_UP, mended).await.expect("a decision by the store");
}

fn is_refused(origin: Origin) -> bool {
    origin == Origin::FailedClosed(FailureKind::Refused)
}

#[tokio::test]
async fn a_changed_password_rejects_requests_and_logs_an_error() {
    let (log, _guard) = Log::capture();
    let server = server();
    let store = store_on(&server).await;
    let limiter = three_per_hour(store).build().unwrap();
    check_until(&limiter, is_store).await;

    let mut operator = Bystander::new(&server).await;
    operator.query::<()>("ACL SETUSER rl resetpass >another").await;
    operator.query::<()>("CLIENT KILL USER rl").await;
    // The first requests may find a closed connection, which counts as an outage. Later requests
    // are rejected, because the server refuses the password.
    check_until(&limiter, is_refused).await;
    for _ in 0..3 {
        let callers: Vec<_> = (0..20)
            .map(|_| {
                let limiter = limiter.clone();
                tokio::spawn(async move { check(&limiter, "alice").await })
            })
            .collect();
        for caller in callers {
            let denied = caller.await.unwrap();
            assert!(is_refused(denied.origin()), "{denied:?}");
        }
    }
    let lines = log.lines();
    let errors = lines.iter().filter(|(level, _)| *level == Level::ERROR);
    assert_eq!(errors.count(), 1, "{lines:#?}");

    let mend = format!("ACL SETUSER rl resetpass >{PASSWORD}");
    operator.query::<()>(&mend).await;
    check_until(&limiter, is_store).await;
    assert_limit_holds(&limiter, "alice").await;
    log.assert_no_secret();
}
