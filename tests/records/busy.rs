//! Separate connections for look-ups, changes and other reads.

use std::time::Duration;

use rl_records::ChangeError;
use sqlx::{Executor, Row};

use super::{Database, GIVE_UP, on_every_database, patient, per_hour, policy_text};

/// Fault: eight edits that waited for a lock held all connections, so look-ups had to wait too.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn edits_that_wait_for_a_lock_delay_no_look_up() {
    let on_postgres = "SELECT count(*) FROM pg_stat_activity \
                       WHERE wait_event_type = 'Lock' AND datname = current_database()";
    let on_mariadb = "SELECT count(*) FROM information_schema.processlist \
                      WHERE db = database() AND info LIKE 'UPDATE rl_changes%'";
    for (database, waiting) in Database::servers().into_iter().zip([on_postgres, on_mariadb]) {
        edits_wait_for_a_lock(&database, waiting).await;
    }
}

/// Begins edits while another transaction holds a lock. `waiting` selects the number of transactions
/// that wait for a lock.
async fn edits_wait_for_a_lock(database: &Database, waiting: &'static str) {
    let records = database.connect().await;
    let record = records.create(per_hour("abc", 5), "alice").await.unwrap();
    let source = patient(&records).start();
    let mut other = database.connect_directly().await;
    let mut observer = database.connect_directly().await;
    other.execute("BEGIN; SELECT * FROM rl_changes FOR UPDATE").await.unwrap();
    let edits: Vec<_> = (0..8)
        .map(|number| {
            let records = records.clone();
            let content = per_hour("abc", number);
            tokio::spawn(async move { records.update(record.id, content, 1, "bob").await })
        })
        .collect();
    let until_some_wait = async {
        let mut looks = tokio::time::interval(Duration::from_millis(2));
        while observer.fetch_one(waiting).await.unwrap().get::<i64, _>(0) == 0 {
            looks.tick().await;
        }
    };
    tokio::time::timeout(GIVE_UP, until_some_wait).await.unwrap();

    assert_eq!(policy_text(&source, "abc").await, "hour=5/hour");
    assert_eq!(records.read(record.id).await.unwrap().unwrap().revision, 1);
    // The lock is released only after the edits have ended. So each of them ends with an error.
    let ended = async {
        for edit in edits {
            let error = edit.await.unwrap().unwrap_err();
            assert!(matches!(error, ChangeError::Database(_)), "{error}");
        }
    };
    tokio::time::timeout(GIVE_UP, ended).await.unwrap();
    other.execute("ROLLBACK").await.unwrap();
    records.update(record.id, per_hour("abc", 9), 1, "bob").await.unwrap();
    assert_eq!(policy_text(&source, "abc").await, "hour=9/hour");
}

/// A cancelled caller must not keep a connection.
#[tokio::test]
async fn cancelled_work_releases_its_connection() {
    on_every_database(async |database: Database| {
        let records = database.connect().await;
        let record = records.create(per_hour("abc", 5), "alice").await.unwrap();
        for _ in 0..50 {
            let never = Duration::ZERO;
            let _ = tokio::time::timeout(never, records.read(record.id)).await;
            let update = records.update(record.id, per_hour("abc", 6), 9, "bob");
            let _ = tokio::time::timeout(never, update).await;
        }
        let record = records.update(record.id, per_hour("abc", 6), 1, "bob").await.unwrap();
        assert_eq!(records.read(record.id).await.unwrap(), Some(record));
    })
    .await;
}
