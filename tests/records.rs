//! Limits in a database: one suite, on SQLite in memory and in a file, and on PostgreSQL.

mod busy;
mod changes;
mod limits;
mod outage;
mod roles;
mod storage;
mod tiers;

use std::sync::Arc;
use std::time::Duration;

use rl_core::source::PolicySource;
use rl_core::time::Timestamp;
use rl_core::{Policy, Subject};
use rl_records::{
    CallLimits, RecordContent, RecordSource, RecordSourceBuilder, Records, RecordsBuilder,
};
use rl_tests::PostgresServer;
use sqlx::{AnyConnection, Connection};
use tempfile::TempDir;

/// A condition that does not come about by then never will.
const GIVE_UP: Duration = Duration::from_secs(30);

/// Nothing happens by itself for so long.
const NEVER: Duration = Duration::from_secs(86_400);

/// Noon of a day long ago.
const NOON: Timestamp = Timestamp::from_secs(1_769_947_200);

const HOUR: u64 = 3_600_000_000;

/// An empty database, that is gone at the end of the test.
pub(crate) struct Database {
    pub(crate) url: String,
    // Whether a second connection finds what the first one wrote.
    is_shared: bool,
    _folder: Option<TempDir>,
    _server: Option<Arc<PostgresServer>>,
}

impl Database {
    pub(crate) fn memory() -> Self {
        let url = "sqlite::memory:".to_owned();
        Self { url, is_shared: false, _folder: None, _server: None }
    }

    pub(crate) fn file() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let url = format!("sqlite://{}/limits.db", folder.path().display());
        Self { url, is_shared: true, _folder: Some(folder), _server: None }
    }

    pub(crate) fn postgres() -> Self {
        let server = PostgresServer::shared();
        Self { url: server.new_database(), is_shared: true, _folder: None, _server: Some(server) }
    }

    fn builder(&self) -> RecordsBuilder {
        Records::builder(&self.url)
    }

    async fn connect(&self) -> Records {
        self.builder().connect().await.unwrap()
    }

    /// Opens an unrelated connection, after the first of the store.
    async fn somebody(&self) -> AnyConnection {
        AnyConnection::connect(&self.url).await.unwrap()
    }
}

async fn on_every_database(test: impl AsyncFn(Database)) {
    for database in [Database::memory(), Database::file(), Database::postgres()] {
        test(database).await;
    }
}

/// The six numbers that tests use when they are about something else.
fn limits(numbers: [i64; 6]) -> CallLimits {
    CallLimits::from_numbers(numbers).unwrap()
}

/// Creates a record with this number of calls per hour, from long ago to far in the future.
fn per_hour(consumer: &str, calls: i64) -> RecordContent {
    let (from, to) = (NOON, NOON.plus_micros(1_000_000 * HOUR));
    RecordContent::new(consumer, from, to, limits([-1, -1, calls, -1, -1, -1]))
}

/// A source that waits as long as a busy machine takes.
fn patient(records: &Records) -> RecordSourceBuilder {
    RecordSource::builder(records).deadline(GIVE_UP)
}

async fn policy(source: &RecordSource, consumer: &str) -> Option<Policy> {
    source.policy(&Subject::consumer(consumer)).await.unwrap()
}

/// The limits of a consumer as text; `-` if there is none.
async fn policy_text(source: &RecordSource, consumer: &str) -> String {
    policy(source, consumer).await.map_or_else(|| "-".to_owned(), |policy| policy.to_string())
}

/// Waits until the source returns these limits, and returns the time that it took.
async fn until_policy(source: &RecordSource, consumer: &str, text: &str) -> Duration {
    let began = tokio::time::Instant::now();
    let mut looks = tokio::time::interval(Duration::from_millis(2));
    loop {
        looks.tick().await;
        let found = policy_text(source, consumer).await;
        if found == text {
            return began.elapsed();
        }
        assert!(began.elapsed() < GIVE_UP, "{found} and not {text}");
    }
}
