use std::sync::{Arc, Mutex};
use std::time::Duration;

use rl_core::FailureKind;
use sqlx::migrate::{MigrateError, Migration, MigrationType, Migrator};
use sqlx::{AnyConnection, Connection, Executor, Row, SqlSafeStr};
use tokio::time::Instant;

use super::connections::{Connections, Lease, Target, within};
use super::dialect::Dialect;
use super::driver_error::database_error;
use super::handle::Database;
use super::lookup_limiter::LookupLimiter;
use super::options::RecordsOptions;
use super::row::number;
use super::statement::Sql;
use crate::error::DatabaseError;

/// The maximum time to wait for a server that starts at the same time as this process.
const STARTUP: Duration = Duration::from_secs(5);

/// The time limit for creating the tables. It includes the wait for another process that creates
/// them.
const MIGRATION: Duration = Duration::from_secs(60);

/// The steps that create the tables: the version, the name and the statements of each.
const SQLITE: [(i64, &str, &str); 13] = [
    (1, "records", include_str!("../../migrations/sqlite/0001_records.sql")),
    (2, "blocks", include_str!("../../migrations/sqlite/0002_blocks.sql")),
    (3, "tiers", include_str!("../../migrations/sqlite/0003_tiers.sql")),
    (4, "audit", include_str!("../../migrations/sqlite/0004_audit.sql")),
    (5, "subscriptions", include_str!("../../migrations/sqlite/0005_subscriptions.sql")),
    (6, "limits", include_str!("../../migrations/sqlite/0006_limits.sql")),
    (7, "console_sessions", include_str!("../../migrations/sqlite/0007_console_sessions.sql")),
    (8, "usage", include_str!("../../migrations/sqlite/0008_usage.sql")),
    (9, "rules", include_str!("../../migrations/sqlite/0009_rules.sql")),
    (10, "index_of_blocks", include_str!("../../migrations/sqlite/0010_index_of_blocks.sql")),
    (11, "grants", include_str!("../../migrations/sqlite/0011_grants.sql")),
    (
        12,
        "limits_of_resources",
        include_str!("../../migrations/sqlite/0012_limits_of_resources.sql"),
    ),
    (13, "billing_day", include_str!("../../migrations/sqlite/0013_billing_day.sql")),
];
const POSTGRES: [(i64, &str, &str); 13] = [
    (1, "records", include_str!("../../migrations/postgres/0001_records.sql")),
    (2, "blocks", include_str!("../../migrations/postgres/0002_blocks.sql")),
    (3, "tiers", include_str!("../../migrations/postgres/0003_tiers.sql")),
    (4, "audit", include_str!("../../migrations/postgres/0004_audit.sql")),
    (5, "subscriptions", include_str!("../../migrations/postgres/0005_subscriptions.sql")),
    (6, "limits", include_str!("../../migrations/postgres/0006_limits.sql")),
    (7, "console_sessions", include_str!("../../migrations/postgres/0007_console_sessions.sql")),
    (8, "usage", include_str!("../../migrations/postgres/0008_usage.sql")),
    (9, "rules", include_str!("../../migrations/postgres/0009_rules.sql")),
    (10, "index_of_blocks", include_str!("../../migrations/postgres/0010_index_of_blocks.sql")),
    (11, "grants", include_str!("../../migrations/postgres/0011_grants.sql")),
    (
        12,
        "limits_of_resources",
        include_str!("../../migrations/postgres/0012_limits_of_resources.sql"),
    ),
    (13, "billing_day", include_str!("../../migrations/postgres/0013_billing_day.sql")),
];
const MYSQL: [(i64, &str, &str); 10] = [
    (1, "records", include_str!("../../migrations/mysql/0001_records.sql")),
    (2, "subscriptions", include_str!("../../migrations/mysql/0002_subscriptions.sql")),
    (3, "limits", include_str!("../../migrations/mysql/0003_limits.sql")),
    (4, "console_sessions", include_str!("../../migrations/mysql/0004_console_sessions.sql")),
    (5, "usage", include_str!("../../migrations/mysql/0005_usage.sql")),
    (6, "rules", include_str!("../../migrations/mysql/0006_rules.sql")),
    (7, "index_of_blocks", include_str!("../../migrations/mysql/0007_index_of_blocks.sql")),
    (8, "grants", include_str!("../../migrations/mysql/0008_grants.sql")),
    (9, "limits_of_resources", include_str!("../../migrations/mysql/0009_limits_of_resources.sql")),
    (10, "billing_day", include_str!("../../migrations/mysql/0010_billing_day.sql")),
];

/// Connects to a database, and creates or upgrades its tables.
pub(super) async fn open(options: RecordsOptions) -> Result<Database, DatabaseError> {
    sqlx::any::install_default_drivers();
    let unsupported = || DatabaseError::new(FailureKind::Unsupported);
    let target = Arc::new(Target::parse(&options.url).ok_or_else(unsupported)?);
    let is_memory = matches!(*target, Target::Memory(_));
    let dialect = target.dialect();
    #[cfg(feature = "redis")]
    let redis = options.redis.map(redis::Client::open).transpose().map_err(|_| {
        // The error of the driver is omitted, because it may quote the URL.
        unsupported().with_detail("the URL of the Redis for announcements is invalid")
    })?;
    let for_lookups = options.max_connections / 2;
    let for_edits = (options.max_connections - for_lookups) / 2;
    let for_reads = options.max_connections - for_lookups - for_edits;
    let pool = |count| Connections::new(target.clone(), count);
    let (lookups, edits, reads) = if is_memory {
        let all = pool(1);
        (all.clone(), all.clone(), all)
    } else {
        (pool(for_lookups), pool(for_edits), pool(for_reads))
    };
    let mut first = first_connection(&edits, dialect.is_server()).await?;
    migrate(&mut first, dialect).await?;
    first.put_back();
    Ok(Database {
        lookups,
        edits,
        reads,
        // One connection of this pool stays free for the reader of the change log.
        lookup_limiter: LookupLimiter::new(for_lookups as usize - 1),
        url: options.url,
        dialect,
        clock: options.clock,
        aggregation: options.aggregation,
        #[cfg(feature = "redis")]
        redis,
        listeners: Mutex::default(),
    })
}

/// Returns the first connection. Waits for a server that is not listening yet, at most for
/// `STARTUP`.
async fn first_connection(
    edits: &Arc<Connections>,
    is_server: bool,
) -> Result<Lease, DatabaseError> {
    let began = Instant::now();
    let mut attempts = tokio::time::interval(Duration::from_millis(100));
    loop {
        attempts.tick().await;
        match edits.take().await {
            Err(error)
                if is_server
                    && error.kind() == FailureKind::Unavailable
                    && began.elapsed() < STARTUP => {}
            result => return result,
        }
    }
}

async fn migrate(connection: &mut AnyConnection, dialect: Dialect) -> Result<(), DatabaseError> {
    let steps: &[_] = match dialect {
        Dialect::Sqlite => &SQLITE,
        Dialect::Postgres => &POSTGRES,
        Dialect::MySql => &MYSQL,
    };
    let migrations = steps.iter().map(|&(version, name, sql)| {
        Migration::new(version, name.into(), MigrationType::Simple, sql.into_sql_str(), false)
    });
    let migrations: Vec<_> = migrations.collect();
    if is_current(connection, &migrations).await {
        return Ok(());
    }
    // The migrations have their own table, because the application may keep its own in the same
    // database.
    let mut migrator = Migrator::with_migrations(migrations);
    migrator.dangerous_set_table_name("rl_migrations");
    // The migrator's own lock does not suffice: for SQLite it has none, and for PostgreSQL its lock
    // belongs to a session, which a connection pooler may share among clients. Instead, the
    // transaction below serves as the lock. If several processes start at the same time, one of
    // them migrates, and the others find the work done.
    migrator.set_locking(false);
    let work = async {
        if dialect == Dialect::MySql {
            return migrate_without_transaction(connection, &migrator).await;
        }
        let begin = if dialect == Dialect::Postgres { "BEGIN" } else { "BEGIN IMMEDIATE" };
        let mut transaction = connection.begin_with(begin).await.map_err(database_error)?;
        if dialect == Dialect::Postgres {
            let lock = "SELECT pg_advisory_xact_lock(hashtext('rl_migrations'))";
            transaction.execute(lock).await.map_err(database_error)?;
        }
        let migrated = migrator.run_direct(None, &mut *transaction, false).await;
        migrated.map_err(migration_error)?;
        transaction.commit().await.map_err(database_error)
    };
    within(MIGRATION, work).await
}

/// Creates the tables on MySQL or MariaDB, whose transactions end at the first table. The lock
/// belongs to the connection. A step that was interrupted is applied again, because its statements
/// can be repeated.
async fn migrate_without_transaction(
    connection: &mut AnyConnection,
    migrator: &Migrator,
) -> Result<(), DatabaseError> {
    // An older server ignores the collation, and would take different ids for the same.
    let query = "SELECT 0 /*!80017 + 1 */ /*M!100203 + 1 */ AS is_known";
    let is_known = Sql::new(query).on(&mut *connection).await?;
    if is_known.first().map(|row| number(row, "is_known")).transpose()? != Some(1) {
        let expected = "expected MariaDB 10.2.3 or MySQL 8.0.17, or a newer server";
        return Err(DatabaseError::new(FailureKind::Protocol).with_detail(expected));
    }
    // The caller has a time limit, so this waits until the lock is free.
    let lock = "SELECT GET_LOCK('rl_migrations', 3600)";
    connection.execute(lock).await.map_err(database_error)?;
    let interrupted = "DELETE FROM rl_migrations WHERE success = FALSE";
    // This fails if the table does not exist yet. Any other failure also stops the migrator.
    let _ = connection.execute(interrupted).await;
    migrator.run_direct(None, &mut *connection, false).await.map_err(migration_error)?;
    Sql::new("SELECT RELEASE_LOCK('rl_migrations')").on(connection).await?;
    Ok(())
}

fn migration_error(error: MigrateError) -> DatabaseError {
    match error {
        MigrateError::Execute(error) | MigrateError::ExecuteMigration(error, _) => {
            database_error(error)
        }
        error => DatabaseError::new(FailureKind::Corrupt).with_source(error),
    }
}

/// Returns whether all migrations were applied. If so, the role needs no right to create tables.
async fn is_current(connection: &mut AnyConnection, migrations: &[Migration]) -> bool {
    let query = "SELECT version, checksum FROM rl_migrations WHERE success ORDER BY version";
    let Ok(rows) = Sql::new(query).on(connection).await else { return false };
    let done = |row: &sqlx::any::AnyRow| Some((row.try_get(0).ok()?, row.try_get(1).ok()?));
    let done: Option<Vec<(i64, Vec<u8>)>> = rows.iter().map(done).collect();
    let wanted = migrations.iter().map(|step| (step.version, step.checksum.to_vec()));
    done.is_some_and(|done| done == wanted.collect::<Vec<_>>())
}
