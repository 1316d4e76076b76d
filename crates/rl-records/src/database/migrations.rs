use std::sync::{Arc, Mutex};
use std::time::Duration;

use rl_core::FailureKind;
use sqlx::migrate::{MigrateError, Migration, MigrationType, Migrator};
use sqlx::{AnyConnection, Connection, Executor, Row, SqlSafeStr};
use tokio::time::Instant;

use super::connections::{Connections, Lease, Target, within};
use super::failure::failed;
use super::sql::Statement;
use super::{Gate, Inner, Records, RecordsBuilder};
use crate::DatabaseError;

/// How long it is tried to reach a PostgreSQL that starts at the same time.
const STARTING: Duration = Duration::from_secs(5);

/// How long it may take to make the tables, also by another process that starts at the same time.
const MIGRATING: Duration = Duration::from_secs(60);

const SQLITE: [(&str, &str); 4] = [
    ("records", include_str!("../../migrations/sqlite/0001_records.sql")),
    ("blocks", include_str!("../../migrations/sqlite/0002_blocks.sql")),
    ("tiers", include_str!("../../migrations/sqlite/0003_tiers.sql")),
    ("audit", include_str!("../../migrations/sqlite/0004_audit.sql")),
];
const POSTGRES: [(&str, &str); 4] = [
    ("records", include_str!("../../migrations/postgres/0001_records.sql")),
    ("blocks", include_str!("../../migrations/postgres/0002_blocks.sql")),
    ("tiers", include_str!("../../migrations/postgres/0003_tiers.sql")),
    ("audit", include_str!("../../migrations/postgres/0004_audit.sql")),
];

impl RecordsBuilder {
    /// Connects and brings the tables up to date.
    ///
    /// # Errors
    ///
    /// As [`Records::connect`].
    pub async fn connect(self) -> Result<Records, DatabaseError> {
        sqlx::any::install_default_drivers();
        let unknown = || DatabaseError::new(FailureKind::Unsupported);
        let target = Arc::new(Target::of(&self.url).ok_or_else(unknown)?);
        #[cfg(feature = "redis")]
        let redis = match self.redis.map(redis::Client::open).transpose() {
            Ok(redis) => redis,
            // Without its source, which may show the URL.
            Err(_) => {
                let error = DatabaseError::new(FailureKind::Unsupported);
                return Err(
                    error.with_detail("the URL of the Redis for announcements cannot be read")
                );
            }
        };
        let (is_memory, is_postgres) =
            (matches!(*target, Target::Memory(_)), matches!(*target, Target::Postgres(_)));
        let at_once = self.max_connections / 2;
        let set = |count| Connections::new(target.clone(), count);
        let (look_ups, edits, reads) = if is_memory {
            let all = set(1);
            (all.clone(), all.clone(), all)
        } else {
            let edits = (self.max_connections - at_once) / 2;
            (set(at_once), set(edits), set(self.max_connections - at_once - edits))
        };
        let mut first = first(&edits, is_postgres).await?;
        migrate(&mut first, is_postgres).await?;
        first.put_back();
        let inner = Inner {
            look_ups,
            edits,
            reads,
            // One is left to those who look for changes.
            gate: Gate::new(at_once as usize - 1),
            url: self.url,
            is_postgres,
            clock: self.clock,
            aggregation: self.aggregation,
            #[cfg(feature = "redis")]
            redis,
            listeners: Mutex::default(),
        };
        Ok(Records { inner: Arc::new(inner) })
    }
}

/// The first connection; a server that does not listen yet is waited for.
async fn first(edits: &Arc<Connections>, is_server: bool) -> Result<Lease, DatabaseError> {
    let began = Instant::now();
    let mut attempts = tokio::time::interval(Duration::from_millis(100));
    loop {
        attempts.tick().await;
        match edits.take().await {
            Err(error)
                if is_server
                    && error.kind() == FailureKind::Unavailable
                    && began.elapsed() < STARTING => {}
            result => return result,
        }
    }
}

async fn migrate(connection: &mut AnyConnection, is_postgres: bool) -> Result<(), DatabaseError> {
    let steps = if is_postgres { POSTGRES } else { SQLITE };
    let migrations = (1..).zip(steps).map(|(version, (name, sql))| {
        Migration::new(version, name.into(), MigrationType::Simple, sql.into_sql_str(), false)
    });
    let migrations: Vec<_> = migrations.collect();
    if is_current(connection, &migrations).await {
        return Ok(());
    }
    // A table of our own: the application may keep its migrations in the same database.
    let mut migrator = Migrator::with_migrations(migrations);
    migrator.dangerous_set_table_name("rl_migrations");
    // Of processes that start at the same time one does it, and the others find it done: SQLite has no
    // lock of its own for that, and that of the migrator is of a session, which a pooler may share.
    migrator.set_locking(false);
    let work = async {
        let begin = if is_postgres { "BEGIN" } else { "BEGIN IMMEDIATE" };
        let mut transaction = connection.begin_with(begin).await.map_err(failed)?;
        if is_postgres {
            let lock = "SELECT pg_advisory_xact_lock(hashtext('rl_migrations'))";
            transaction.execute(lock).await.map_err(failed)?;
        }
        let migrated = migrator.run_direct(None, &mut *transaction, false).await;
        migrated.map_err(|error| match error {
            MigrateError::Execute(error) | MigrateError::ExecuteMigration(error, _) => {
                failed(error)
            }
            error => DatabaseError::new(FailureKind::Corrupt).with_source(error),
        })?;
        transaction.commit().await.map_err(failed)
    };
    within(MIGRATING, work).await
}

/// Whether every table is there as it should be: then nothing is written, and a role that may not make
/// tables is enough.
async fn is_current(connection: &mut AnyConnection, migrations: &[Migration]) -> bool {
    let query = "SELECT version, checksum FROM rl_migrations WHERE success ORDER BY version";
    let Ok(rows) = sqlx::query(query).on(connection).await else { return false };
    let done = |row: &sqlx::any::AnyRow| Some((row.try_get(0).ok()?, row.try_get(1).ok()?));
    let done: Option<Vec<(i64, Vec<u8>)>> = rows.iter().map(done).collect();
    let wanted = migrations.iter().map(|step| (step.version, step.checksum.to_vec()));
    done.is_some_and(|done| done == wanted.collect::<Vec<_>>())
}
