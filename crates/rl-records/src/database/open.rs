use std::sync::{Arc, Mutex};
use std::time::Duration;

use rl_core::FailureKind;
use sqlx::any::AnyPoolOptions;
use sqlx::migrate::{Migration, MigrationType, Migrator};
use sqlx::{AnyPool, Executor, SqlSafeStr};

use super::failure::failed;
use super::{Gate, Inner, Records, RecordsBuilder};
use crate::DatabaseError;

/// How long a call waits for a connection.
const ACQUIRE: Duration = Duration::from_secs(5);

const SQLITE: [(&str, &str); 3] = [
    ("records", include_str!("../../migrations/sqlite/0001_records.sql")),
    ("blocks", include_str!("../../migrations/sqlite/0002_blocks.sql")),
    ("tiers", include_str!("../../migrations/sqlite/0003_tiers.sql")),
];
const POSTGRES: [(&str, &str); 3] = [
    ("records", include_str!("../../migrations/postgres/0001_records.sql")),
    ("blocks", include_str!("../../migrations/postgres/0002_blocks.sql")),
    ("tiers", include_str!("../../migrations/postgres/0003_tiers.sql")),
];

impl RecordsBuilder {
    /// Connects and brings the tables up to date.
    ///
    /// # Errors
    ///
    /// As [`Records::connect`].
    pub async fn connect(self) -> Result<Records, DatabaseError> {
        sqlx::any::install_default_drivers();
        let url = self.url;
        let is_postgres = url.starts_with("postgres:") || url.starts_with("postgresql:");
        if !is_postgres && !url.starts_with("sqlite:") {
            return Err(DatabaseError::new(FailureKind::Unsupported));
        }
        #[cfg(feature = "redis")]
        let redis = match self.redis.map(redis::Client::open).transpose() {
            Ok(redis) => redis,
            // Without its source, which may show the URL.
            Err(_) => return Err(DatabaseError::new(FailureKind::Protocol)),
        };
        let pool = if is_postgres {
            let options = AnyPoolOptions::new().max_connections(self.max_connections);
            options.acquire_timeout(ACQUIRE).connect(&url).await.map_err(failed)?
        } else {
            open_sqlite(&url, self.max_connections).await?
        };
        migrate(&pool, is_postgres).await?;
        let gate = Gate::new(self.max_connections.saturating_sub(2) as usize);
        let inner = Inner {
            pool,
            gate,
            url,
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

async fn open_sqlite(url: &str, max_connections: u32) -> Result<AnyPool, DatabaseError> {
    let is_in_memory = url.contains(":memory:") || url.contains("mode=memory");
    let options = AnyPoolOptions::new().acquire_timeout(ACQUIRE);
    if is_in_memory {
        // Every connection would be a database of its own, and end with it.
        let options = options.max_connections(1).idle_timeout(None).max_lifetime(None);
        return options.connect(url).await.map_err(failed);
    }
    let options = options.max_connections(max_connections).after_connect(|connection, _| {
        Box::pin(async move {
            // Readers and the writer do not wait for each other, also of other processes.
            connection.execute("PRAGMA journal_mode = WAL").await?;
            connection.execute("PRAGMA synchronous = NORMAL").await?;
            Ok(())
        })
    });
    let has_mode = url.contains("mode=");
    let separator = if url.contains('?') { '&' } else { '?' };
    let url = if has_mode { url.to_owned() } else { format!("{url}{separator}mode=rwc") };
    options.connect(&url).await.map_err(failed)
}

async fn migrate(pool: &AnyPool, is_postgres: bool) -> Result<(), DatabaseError> {
    let steps = if is_postgres { POSTGRES } else { SQLITE };
    let migrations = (1..).zip(steps).map(|(version, (name, sql))| {
        Migration::new(version, name.into(), MigrationType::Simple, sql.into_sql_str(), false)
    });
    // A table of our own: the application may keep its migrations in the same database.
    let mut migrator = Migrator::with_migrations(migrations.collect());
    migrator.dangerous_set_table_name("rl_migrations");
    let first = migrator.run(pool).await;
    // SQLite has no lock around migrations: of two processes that start at the same time one fails,
    // and finds the tables made when it looks again.
    let result = if is_postgres || first.is_ok() { first } else { migrator.run(pool).await };
    result.map_err(|error| match error {
        sqlx::migrate::MigrateError::Execute(error) => failed(error),
        error => DatabaseError::new(FailureKind::Corrupt).with_source(error),
    })
}
