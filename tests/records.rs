//! Limits in a database. The same tests run on SQLite in memory, on SQLite in a file, on PostgreSQL
//! and on MariaDB.

mod busy;
mod changes;
mod grants;
mod limits;
mod mariadb;
mod migration;
mod outage;
mod roles;
mod storage;
mod subjects;
mod subscriptions;
mod tiers;
mod usage;

use std::any::Any;
use std::sync::Arc;
use std::time::Duration;

use rl_core::source::PolicySource;
use rl_core::time::Timestamp;
use rl_core::{Policy, Subject};
use rl_records::{
    CallLimits, RecordContent, RecordSource, RecordSourceBuilder, Records, RecordsOptions,
};
use rl_tests::{MariadbServer, PostgresServer};
use sqlx::{AnyConnection, Connection, Executor};
use tempfile::TempDir;

/// The time limit for a condition that a test waits for.
const GIVE_UP: Duration = Duration::from_secs(30);

/// An interval that is longer than any test.
const NEVER: Duration = Duration::from_secs(86_400);

/// Noon on a day in 2026.
const NOON: Timestamp = Timestamp::from_secs(1_769_947_200);

const HOUR: u64 = 3_600_000_000;

/// An empty database for one test, which is deleted at the end of the test.
pub(crate) struct Database {
    pub(crate) url: String,
    // Whether all connections use the same data. In memory, each connection has data of its own.
    is_shared: bool,
    _folder: Option<TempDir>,
    _server: Option<Arc<dyn Any + Send + Sync>>,
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

    pub(crate) fn mariadb() -> Self {
        let server = MariadbServer::shared();
        Self { url: server.new_database(), is_shared: true, _folder: None, _server: Some(server) }
    }

    /// Returns one database of each kind on a server.
    fn servers() -> [Self; 2] {
        [Self::postgres(), Self::mariadb()]
    }

    /// Returns one database of each kind whose data several instances share.
    pub(crate) fn shared() -> [Self; 3] {
        let [postgres, mariadb] = Self::servers();
        [Self::file(), postgres, mariadb]
    }

    async fn connect(&self) -> Records {
        self.connect_with(|options| options).await
    }

    async fn connect_with(&self, set: impl FnOnce(RecordsOptions) -> RecordsOptions) -> Records {
        Records::connect_with(set(RecordsOptions::new(&self.url))).await.unwrap()
    }

    /// Opens a connection that bypasses the crate under test. The crate must have connected before.
    pub(crate) async fn connect_directly(&self) -> AnyConnection {
        let mut connection = AnyConnection::connect(&self.url).await.unwrap();
        if connection.backend_name() == "MySQL" {
            // The column `change` has the name of a keyword.
            let standard = "SET SESSION sql_mode = 'ANSI_QUOTES', autocommit = 1";
            connection.execute(standard).await.unwrap();
        }
        connection
    }
}

async fn on_every_database(test: impl AsyncFn(Database)) {
    test(Database::memory()).await;
    for database in Database::shared() {
        test(database).await;
    }
}

/// Returns limits of six valid numbers.
fn limits(numbers: [i64; 6]) -> CallLimits {
    CallLimits::from_numbers(numbers).unwrap()
}

/// Returns a record with a limit of `calls` per hour. The record begins at noon, and no test
/// reaches its end.
fn per_hour(consumer: &str, calls: i64) -> RecordContent {
    let (from, to) = (NOON, NOON.plus_micros(1_000_000 * HOUR));
    RecordContent::new(consumer, from, to, limits([-1, -1, calls, -1, -1, -1]))
}

/// Returns the builder of a source with a long deadline, so that the source finds changed limits
/// even on a busy machine.
fn patient(records: &Records) -> RecordSourceBuilder {
    RecordSource::builder(records).deadline(GIVE_UP)
}

async fn policy(source: &RecordSource, consumer: &str) -> Option<Policy> {
    source.policy(&Subject::consumer(consumer)).await.unwrap()
}

/// Returns the policy of a consumer as text, or `-` if it has none.
async fn policy_text(source: &RecordSource, consumer: &str) -> String {
    policy(source, consumer).await.map_or_else(|| "-".to_owned(), |policy| policy.to_string())
}

/// Waits until the policy of a consumer is `text`. Returns the time that this took.
async fn until_policy(source: &RecordSource, consumer: &str, text: &str) -> Duration {
    let began = tokio::time::Instant::now();
    let mut polls = tokio::time::interval(Duration::from_millis(2));
    loop {
        polls.tick().await;
        let found = policy_text(source, consumer).await;
        if found == text {
            return began.elapsed();
        }
        assert!(began.elapsed() < GIVE_UP, "{found} instead of {text}");
    }
}
