//! The effects of a change by one instance on other instances.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use rl_core::observe::{Event, EventKind, Observer};
use rl_records::{Record, Records, RecordsOptions};
use rl_tests::web::eventually;
use rl_tests::{Bystander, RedisServer, is_soak};
use sqlx::Executor;
use tokio::time::Instant;

use super::{
    Database, GIVE_UP, NEVER, on_every_database, patient, per_hour, policy_text, until_policy,
};

/// The time that a soak test accepts beyond the documented delay of one second.
const SLACK: Duration = Duration::from_millis(500);

/// Creates, changes and deletes a record on one instance. Returns the longest delay after which the
/// other instance noticed a change.
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
async fn a_change_applies_to_the_next_request_of_the_same_process() {
    on_every_database(async |database: Database| {
        let records = database.connect().await;
        // There is no polling, so the source can learn of a change only from the instance that
        // makes it.
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
async fn a_change_reaches_other_instances_within_a_second() {
    for database in Database::shared() {
        let (one, other) = (database.connect().await, database.connect().await);
        let longest = follow(&one, &patient(&other).start()).await;
        assert!(longest < Duration::from_secs(1) + SLACK || !is_soak(), "{longest:?}");
    }
}

/// Records the numbers of changes that a source has read.
#[derive(Debug, Default)]
struct Changes(Mutex<Vec<Option<usize>>>);

impl Observer for Changes {
    fn observe(&self, event: &Event<'_>) {
        if let EventKind::PoliciesChanged { changes, .. } = event.kind {
            assert_eq!(event.location.store, "records");
            self.0.lock().unwrap().push(changes);
        }
    }
}

#[tokio::test]
async fn each_observer_gets_the_changes_that_a_source_has_read() {
    let database = Database::file();
    let (one, other) = (database.connect().await, database.connect().await);
    let observers = [(); 2].map(|()| Arc::new(Changes::default()));
    let [first, second] = observers.clone();
    follow(&one, &patient(&other).observer(first).observer(second).start()).await;
    for observer in observers {
        let read = std::mem::take(&mut *observer.0.lock().unwrap());
        let known: usize = read.iter().flatten().sum();
        assert!((5..=6).contains(&known) && read.len() <= 6, "six changes were made: {read:?}");
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
    for database in [Database::file(), Database::mariadb()] {
        let connect =
            async || database.connect_with(|options| options.announce_on_redis(&redis.url())).await;
        let (one, other) = (connect().await, connect().await);
        follow(&one, &patient(&other).poll_every(NEVER).start()).await;
    }
}

/// A poll reads a limited number of changes. The other instance has missed more changes than that.
#[tokio::test]
async fn an_instance_that_is_far_behind_looks_up_everything_again() {
    let redis = RedisServer::start();
    let database = Database::file();
    let loud =
        async || database.connect_with(|options| options.announce_on_redis(&redis.url())).await;
    let (quiet, loud, other) = (database.connect().await, loud().await, loud().await);
    let source = patient(&other).poll_every(NEVER).start();
    assert_eq!(policy_text(&source, "abc").await, "-");
    let mut record = quiet.create(per_hour("busy", 1), "alice").await.unwrap();
    quiet.create(per_hour("abc", 5), "alice").await.unwrap();
    for calls in 0..1_100 {
        let content = per_hour("busy", calls);
        record = quiet.update(record.id, content, record.revision, "alice").await.unwrap();
    }
    // The source does not poll at intervals, so it has not noticed the changes above. This change
    // is announced, and the announcement triggers a poll.
    loud.create(per_hour("else", 1), "alice").await.unwrap();
    until_policy(&source, "abc", "hour=5/hour").await;
    until_policy(&source, "busy", "hour=1099/hour").await;
}

/// Fault: a look-up had read a change that no poll had read yet. The database lost the change, so
/// the log did not show it, and the limits of the lost change applied on.
#[tokio::test]
async fn limits_of_a_lost_change_that_only_a_look_up_has_read_are_looked_up_again() {
    let redis = RedisServer::start();
    let mut announcer = Bystander::new(&redis).await;
    for after in ["", "the same number"] {
        let database = Database::file();
        let announced = |options: RecordsOptions| options.announce_on_redis(&redis.url());
        let (one, other) = (database.connect().await, database.connect_with(announced).await);
        let record = one.create(per_hour("abc", 5), "alice").await.unwrap();
        let source = patient(&other).poll_every(NEVER).start();
        eventually(async || source.stats().lag.is_some()).await;
        one.update(record.id, per_hour("abc", 6), 1, "alice").await.unwrap();
        assert_eq!(policy_text(&source, "abc").await, "hour=6/hour");

        let lost = "BEGIN; \
                    DELETE FROM rl_history WHERE \"change\" = 2; \
                    UPDATE rl_changes SET \"change\" = 1; \
                    UPDATE rl_records SET revision = 1, limits = '5/hour'; \
                    COMMIT";
        database.connect_directly().await.execute(lost).await.unwrap();
        if !after.is_empty() {
            one.create(per_hour("else", 1), "alice").await.unwrap();
        }
        let lag = source.stats().lag.unwrap();
        announcer.query::<()>("PUBLISH rl_records changed").await;
        eventually(async || source.stats().lag.unwrap() < lag).await;
        assert_eq!(policy_text(&source, "abc").await, "hour=5/hour", "{after}");
    }
}

/// Fault: after a fail-over to a lagging replica, a new change got the number of a lost one, so no
/// instance noticed the new change.
#[tokio::test]
async fn limits_are_looked_up_again_after_the_database_went_back() {
    for database in Database::shared() {
        let (one, other) = (database.connect().await, database.connect().await);
        let source = patient(&other).start();
        let record = one.create(per_hour("abc", 5), "alice").await.unwrap();
        until_policy(&source, "abc", "hour=5/hour").await;
        one.update(record.id, per_hour("abc", 6), 1, "alice").await.unwrap();
        until_policy(&source, "abc", "hour=6/hour").await;

        let lost = "BEGIN; \
                    DELETE FROM rl_history WHERE \"change\" = 2; \
                    UPDATE rl_changes SET \"change\" = 1; \
                    UPDATE rl_records SET revision = 1, limits = '5/hour'; \
                    COMMIT";
        let mut other_program = database.connect_directly().await;
        other_program.execute(lost).await.unwrap();
        until_policy(&source, "abc", "hour=5/hour").await;
        one.update(record.id, per_hour("abc", 6), 1, "alice").await.unwrap();
        until_policy(&source, "abc", "hour=6/hour").await;

        // Between two polls, the database goes back to an earlier state, and then reaches the same
        // number of changes with other contents.
        let replaced = "BEGIN; \
                        UPDATE rl_history SET changed_at = changed_at + 1 WHERE \"change\" = 2; \
                        UPDATE rl_records SET limits = '7/hour'; \
                        COMMIT";
        other_program.execute(replaced).await.unwrap();
        until_policy(&source, "abc", "hour=7/hour").await;

        // Another program deletes the whole history.
        other_program.execute("DELETE FROM rl_history").await.unwrap();
        one.update(record.id, per_hour("abc", 8), 2, "alice").await.unwrap();
        until_policy(&source, "abc", "hour=8/hour").await;
        other_program.execute("DELETE FROM rl_history").await.unwrap();
        until_policy(&source, "abc", "hour=8/hour").await;
    }
}

/// Polls a future a limited number of times, and then drops it.
struct Polls<F> {
    future: Pin<Box<F>>,
    left: usize,
}

impl<F: Future> Future for Polls<F> {
    type Output = Option<F::Output>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let Some(left) = self.left.checked_sub(1) else { return Poll::Ready(None) };
        self.left = left;
        self.future.as_mut().poll(cx).map(Some)
    }
}

/// Fault: if the caller was cancelled during the commit, the change was committed but not
/// announced.
#[tokio::test]
async fn a_change_applies_even_if_its_caller_is_cancelled_during_the_commit() {
    let calls = |record: &Record| record.content.limits.as_slice()[0].max().cast_signed();
    let records = Database::memory().connect().await;
    // There is no polling, so the source can learn of a change only from the instance that makes
    // it.
    let source = patient(&records).poll_every(NEVER).start();
    let mut record = records.create(per_hour("abc", 1), "alice").await.unwrap();
    let (mut left, mut made, begun) = (1, 0, Instant::now());
    loop {
        let mut ended = 0;
        // The future is not always polled equally often before its commit. So each number of polls
        // is tried several times.
        for _ in 0..20 {
            assert_eq!(policy_text(&source, "abc").await, format!("hour={}/hour", calls(&record)));
            let next = calls(&record) + 1;
            let update = records.update(record.id, per_hour("abc", next), record.revision, "bob");
            let updated = Polls { future: Box::pin(update), left }.await;
            record = records.read(record.id).await.unwrap().unwrap();
            ended += usize::from(updated.is_some());
            made += usize::from(updated.is_none() && calls(&record) == next);
        }
        // On a busy machine, the database may commit between two polls. The search then starts
        // again.
        match (ended, made) {
            (20, 0) if begun.elapsed() < GIVE_UP => left = 1,
            (20, _) => break,
            _ => left += 1,
        }
    }
    assert!(made > 0, "no caller was cancelled during a commit");
    assert_eq!(policy_text(&source, "abc").await, format!("hour={}/hour", calls(&record)));
}
