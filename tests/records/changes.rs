//! A change of one instance on another.

use std::time::Duration;

use rl_records::Records;
use rl_tests::RedisServer;

use super::{Database, NEVER, on_every_database, patient, per_hour, policy_text, until_policy};

/// What a busy machine may add to the stated second; alone it takes half of that.
const SLACK: Duration = Duration::from_secs(2);

/// Creates, changes and deletes on one; tells how long the other takes to follow.
async fn follow(one: &Records, other: &rl_records::RecordSource) -> Duration {
    assert_eq!(policy_text(other, "abc").await, "-");
    let record = one.create(per_hour("abc", 5), "alice").await.unwrap();
    let mut longest = until_policy(other, "abc", "hour=5/hour").await;
    for calls in 6..10 {
        let revision = calls - 5;
        one.update(record.id, per_hour("abc", calls), revision, "alice").await.unwrap();
        longest = longest.max(until_policy(other, "abc", &format!("hour={calls}/hour")).await);
    }
    one.delete(record.id, 5, "alice").await.unwrap();
    longest.max(until_policy(other, "abc", "-").await)
}

#[tokio::test]
async fn a_change_binds_the_next_request_of_the_same_process() {
    on_every_database(async |database: Database| {
        let records = database.connect().await;
        // Nothing but the change itself tells it.
        let source = patient(&records).poll_every(NEVER).start();
        assert_eq!(policy_text(&source, "abc").await, "-");
        let mut record = records.create(per_hour("abc", 1), "alice").await.unwrap();
        for calls in 2..30 {
            let content = per_hour("abc", calls);
            record = records.update(record.id, content, record.revision, "alice").await.unwrap();
            assert_eq!(policy_text(&source, "abc").await, format!("hour={calls}/hour"));
        }
    })
    .await;
}

#[tokio::test]
async fn a_change_reaches_other_instances_within_the_second_that_is_stated() {
    for database in [Database::file(), Database::postgres()] {
        let (one, other) = (database.connect().await, database.connect().await);
        let longest = follow(&one, &patient(&other).start()).await;
        assert!(longest < Duration::from_secs(1) + SLACK, "{longest:?}");
    }
}

#[tokio::test]
async fn postgresql_announces_changes() {
    let database = Database::postgres();
    let (one, other) = (database.connect().await, database.connect().await);
    follow(&one, &patient(&other).poll_every(NEVER).start()).await;
}

#[tokio::test]
async fn redis_announces_changes() {
    let redis = RedisServer::start();
    let database = Database::file();
    let connect = async || {
        let builder = database.builder().announce_on_redis(&redis.url());
        builder.connect().await.unwrap()
    };
    let (one, other) = (connect().await, connect().await);
    follow(&one, &patient(&other).poll_every(NEVER).start()).await;
}

/// More changes than are told one by one, while the other instance did not look.
#[tokio::test]
async fn an_instance_that_is_far_behind_looks_everything_up() {
    let database = Database::file();
    let (one, other) = (database.connect().await, database.connect().await);
    let source = patient(&other).start();
    until_policy(&source, "abc", "-").await;
    let mut record = one.create(per_hour("busy", 1), "alice").await.unwrap();
    one.create(per_hour("abc", 5), "alice").await.unwrap();
    for calls in 0..1_100 {
        let content = per_hour("busy", calls);
        record = one.update(record.id, content, record.revision, "alice").await.unwrap();
    }
    until_policy(&source, "abc", "hour=5/hour").await;
    until_policy(&source, "busy", "hour=1099/hour").await;
}
