//! What holds while the database is away.

use std::time::Duration;

use rl_core::limiter::OnFailure;
use rl_core::source::PolicySource;
use rl_core::{FailureKind, Origin, RateLimiter, Subject};
use rl_records::{RecordSource, Records};
use rl_tests::PostgresServer;

use super::{per_hour, policy_text, until_policy};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn while_the_database_is_away_the_last_limits_hold_and_then_it_is_heard_again() {
    let mut server = PostgresServer::start();
    let records = Records::connect(&server.url()).await.unwrap();
    let record = records.create(per_hour("abc", 5), "alice").await.unwrap();
    let source = RecordSource::start(&records);
    until_policy(&source, "abc", "hour=5/hour").await;

    server.stop();
    let limiter = RateLimiter::builder().policies(source.clone());
    let limiter = limiter.on_store_failure(OnFailure::Deny).build().unwrap();
    let mut allowed = 0;
    for _ in 0..1_000 {
        let decision = limiter.check(&Subject::consumer("abc"), 1).await;
        assert_eq!(decision.origin(), Origin::Store);
        allowed += u32::from(decision.is_allowed());
    }
    assert_eq!(allowed, 5);
    let unknown = source.policy(&Subject::consumer("never seen")).await.unwrap_err();
    let kinds = [FailureKind::Unavailable, FailureKind::TimedOut];
    assert!(kinds.contains(&unknown.kind()), "{unknown}");
    assert!(!limiter.check(&Subject::consumer("never seen"), 1).await.is_allowed());
    assert!(records.update(record.id, per_hour("abc", 6), 1, "bob").await.is_err());

    server.restart();
    let changed = loop {
        // Connections of before are found broken one by one.
        match records.update(record.id, per_hour("abc", 6), 1, "bob").await {
            Ok(changed) => break changed,
            Err(rl_records::ChangeError::Database(_)) => {}
            Err(error) => panic!("{error}"),
        }
    };
    assert_eq!(changed.revision, 2);
    until_policy(&source, "abc", "hour=6/hour").await;
    until_known(&source, "never seen").await;

    // And the announcements of others.
    let other = Records::connect(&server.url()).await.unwrap();
    other.update(record.id, per_hour("abc", 7), 2, "carol").await.unwrap();
    until_policy(&source, "abc", "hour=7/hour").await;
    assert_eq!(policy_text(&source, "never seen").await, "-");
}

async fn until_known(source: &RecordSource, consumer: &str) {
    let mut looks = tokio::time::interval(Duration::from_millis(20));
    while source.policy(&Subject::consumer(consumer)).await.is_err() {
        looks.tick().await;
    }
}
