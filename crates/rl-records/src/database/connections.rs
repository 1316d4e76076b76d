use std::collections::VecDeque;
use std::fmt;
use std::future::Future;
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rl_core::FailureKind;
use sqlx::any::{AnyArguments, AnyRow};
use sqlx::mysql::MySqlConnectOptions;
use sqlx::postgres::PgConnectOptions;
use sqlx::query::Query;
use sqlx::{Any, AnyConnection, Connection, Executor};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;

use super::dialect::Dialect;
use super::driver_error::database_error;
use crate::error::DatabaseError;

/// The longest wait for a free connection.
const WAIT: Duration = Duration::from_secs(5);

/// The time limit for connecting.
const CONNECT: Duration = Duration::from_secs(5);

/// The time limit for a ping.
const PING: Duration = Duration::from_secs(1);

/// The time limit for a statement.
const STATEMENT: Duration = Duration::from_secs(10);

/// The idle time after which a connection is pinged before it is used.
const IDLE: Duration = Duration::from_secs(1);

/// The maximum age of a connection. After a fail-over, an old connection may lead to a server that
/// no longer accepts writes.
const MAX_AGE: Duration = Duration::from_secs(1_800);

/// The database to which connections are opened.
pub(super) enum Target {
    /// A database in memory. It exists only as long as its single connection, which must never be
    /// closed.
    Memory(String),
    File(String),
    Postgres(String),
    MySql(String),
}

impl Target {
    /// Reads a URL, if its scheme is known.
    pub(super) fn parse(url: &str) -> Option<Self> {
        if url.starts_with("postgres:") || url.starts_with("postgresql:") {
            return Some(Self::Postgres(url.to_owned()));
        }
        if url.starts_with("mysql:") || url.starts_with("mariadb:") {
            return Some(Self::MySql(url.to_owned()));
        }
        if !url.starts_with("sqlite:") {
            return None;
        }
        if url.contains(":memory:") || url.contains("mode=memory") {
            return Some(Self::Memory(url.to_owned()));
        }
        let separator = if url.contains('?') { '&' } else { '?' };
        let has_mode = url.contains("mode=");
        let url = if has_mode { url.to_owned() } else { format!("{url}{separator}mode=rwc") };
        Some(Self::File(url))
    }

    pub(super) const fn dialect(&self) -> Dialect {
        match self {
            Self::Memory(_) | Self::File(_) => Dialect::Sqlite,
            Self::Postgres(_) => Dialect::Postgres,
            Self::MySql(_) => Dialect::MySql,
        }
    }

    /// Returns the address of the server, without user and password. Returns `None` for SQLite.
    fn server(&self) -> Option<String> {
        match self {
            Self::Memory(_) | Self::File(_) => None,
            Self::Postgres(url) => {
                let options: PgConnectOptions = url.parse().ok()?;
                Some(format!("{}:{}", options.get_host(), options.get_port()))
            }
            Self::MySql(url) => {
                let options: MySqlConnectOptions = url.parse().ok()?;
                Some(match options.get_socket() {
                    Some(socket) => socket.display().to_string(),
                    None => format!("{}:{}", options.get_host(), options.get_port()),
                })
            }
        }
    }

    async fn connect(&self) -> Result<AnyConnection, sqlx::Error> {
        let (Self::Memory(url) | Self::File(url) | Self::Postgres(url) | Self::MySql(url)) = self;
        let mut connection = AnyConnection::connect(url).await?;
        if let Self::File(_) = self {
            // With a write-ahead log, readers and a writer do not block each other, not even in
            // different processes.
            connection.execute("PRAGMA journal_mode = WAL").await?;
            connection.execute("PRAGMA synchronous = NORMAL").await?;
        }
        if let Some(session) = self.dialect().session() {
            connection.execute(session).await?;
        }
        Ok(connection)
    }
}

impl fmt::Debug for Target {
    /// Omits the URL, which may contain a password.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.dialect().name())
    }
}

/// A pool of connections for one kind of work. Connections are opened on demand.
///
/// Every wait has a time limit: for a free connection, for connecting, for a ping, and for a
/// statement.
#[derive(Debug)]
pub(super) struct Connections {
    target: Arc<Target>,
    count: u32,
    free: Arc<Semaphore>,
    idle: Mutex<VecDeque<Pooled>>,
}

#[derive(Debug)]
struct Pooled {
    connection: AnyConnection,
    made_at: Instant,
    idle_since: Instant,
    // Whether a transaction may be open on the connection.
    is_dirty: bool,
}

impl Pooled {
    fn new(connection: AnyConnection) -> Self {
        let now = Instant::now();
        Self { connection, made_at: now, idle_since: now, is_dirty: false }
    }
}

impl Connections {
    pub(super) fn new(target: Arc<Target>, count: u32) -> Arc<Self> {
        let free = Arc::new(Semaphore::new(count as usize));
        Arc::new(Self { target, count, free, idle: Mutex::default() })
    }

    fn idle(&self) -> MutexGuard<'_, VecDeque<Pooled>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_memory(&self) -> bool {
        matches!(*self.target, Target::Memory(_))
    }

    /// Takes a working connection from the pool, or connects.
    pub(super) async fn take(self: &Arc<Self>) -> Result<Lease, DatabaseError> {
        let permit = within(WAIT, async { Ok(self.free.clone().acquire_owned().await) }).await?;
        // This fails only after `close` has closed the semaphore.
        let permit = permit.map_err(|_| DatabaseError::new(FailureKind::Unavailable))?;
        let mut lease = Lease { pool: self.clone(), pooled: None, _permit: permit };
        loop {
            lease.pooled = self.idle().pop_back();
            if lease.pooled.is_none() {
                let connecting = async { self.target.connect().await.map_err(database_error) };
                let connected = within(CONNECT, connecting).await;
                let located = |error: DatabaseError| match self.target.server() {
                    Some(server) => error.while_connecting_to(&server),
                    None => error,
                };
                lease.pooled = Some(Pooled::new(connected.map_err(located)?));
                return Ok(lease);
            }
            if lease.is_usable().await {
                return Ok(lease);
            }
            // The connection is too old, or no longer works. The other idle connections are
            // probably in the same state, so they are dropped too.
            self.idle().clear();
        }
    }

    /// Closes the pool, after a wait of at most `WAIT` for connections in use. A connection that is
    /// still in use then is closed when its [`Lease`] ends.
    pub(super) async fn close(&self) {
        let _all = tokio::time::timeout(WAIT, self.free.acquire_many(self.count)).await;
        self.free.close();
        let idle = std::mem::take(&mut *self.idle());
        for idle in idle {
            let _ = tokio::time::timeout(CONNECT, idle.connection.close()).await;
        }
    }
}

/// A connection in use.
///
/// Dropping it closes the connection, because its state is unknown after work that failed or was
/// cancelled. [`put_back`](Self::put_back) returns the connection to the pool instead.
#[derive(Debug)]
pub(super) struct Lease {
    pool: Arc<Connections>,
    pooled: Option<Pooled>,
    _permit: OwnedSemaphorePermit,
}

impl Lease {
    /// Returns the connection to the pool, after work that succeeded.
    pub(super) fn put_back(mut self) {
        if let Some(pooled) = self.pooled.take() {
            self.keep(Pooled { is_dirty: false, ..pooled });
        }
    }

    fn keep(&self, pooled: Pooled) {
        if !self.pool.free.is_closed() {
            self.pool.idle().push_back(Pooled { idle_since: Instant::now(), ..pooled });
        }
    }

    /// Returns whether the connection works. Rolls back a transaction if one is still open on it.
    async fn is_usable(&mut self) -> bool {
        let is_memory = self.pool.is_memory();
        let Some(pooled) = &mut self.pooled else { return false };
        if is_memory {
            if pooled.is_dirty {
                // This fails if no transaction is open, which is no problem.
                let _ = pooled.connection.execute("ROLLBACK").await;
                pooled.is_dirty = false;
            }
            return true;
        }
        if pooled.made_at.elapsed() >= MAX_AGE {
            return false;
        }
        if pooled.idle_since.elapsed() < IDLE {
            return true;
        }
        let ping = tokio::time::timeout(PING, pooled.connection.ping()).await;
        ping.is_ok_and(|answer| answer.is_ok())
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        if let Some(pooled) = self.pooled.take()
            && self.pool.is_memory()
        {
            self.keep(Pooled { is_dirty: true, ..pooled });
        }
    }
}

impl Deref for Lease {
    type Target = AnyConnection;

    fn deref(&self) -> &AnyConnection {
        &self.pooled.as_ref().expect("present until the lease ends").connection
    }
}

impl DerefMut for Lease {
    fn deref_mut(&mut self) -> &mut AnyConnection {
        &mut self.pooled.as_mut().expect("present until the lease ends").connection
    }
}

/// Runs `work` with a time limit.
///
/// # Errors
///
/// Returns [`FailureKind::TimedOut`] if `work` takes longer than `limit`.
pub(super) async fn within<T, E: From<DatabaseError>>(
    limit: Duration,
    work: impl Future<Output = Result<T, E>>,
) -> Result<T, E> {
    let late = |_| Err(DatabaseError::new(FailureKind::TimedOut).into());
    tokio::time::timeout(limit, work).await.unwrap_or_else(late)
}

/// Runs a statement, either on a connection from a pool or on a leased connection.
pub(super) trait Runner: Send {
    /// Returns the dialect of the database that runs the statement.
    fn dialect(&self) -> Dialect;

    /// Runs a statement and returns its rows.
    ///
    /// If the statement exceeds its time limit, this returns an error, and the connection must be
    /// closed.
    fn rows(
        self,
        query: Query<'_, Any, AnyArguments>,
    ) -> impl Future<Output = Result<Vec<AnyRow>, DatabaseError>> + Send;
}

impl Runner for &Arc<Connections> {
    fn dialect(&self) -> Dialect {
        self.target.dialect()
    }

    async fn rows(self, query: Query<'_, Any, AnyArguments>) -> Result<Vec<AnyRow>, DatabaseError> {
        let mut lease = self.take().await?;
        let rows = (&mut *lease).rows(query).await?;
        lease.put_back();
        Ok(rows)
    }
}

impl Runner for &mut AnyConnection {
    fn dialect(&self) -> Dialect {
        Dialect::of(self)
    }

    async fn rows(self, query: Query<'_, Any, AnyArguments>) -> Result<Vec<AnyRow>, DatabaseError> {
        within(STATEMENT, async { query.fetch_all(self).await.map_err(database_error) }).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_target_of_connections_is_shown_without_the_password() {
        for url in [
            "postgres://rl:hunter2@host/db",
            "postgres://rl:hun/hunter2@host/db",
            "mysql://rl:hunter2@host/db",
            "mariadb://rl:hun/hunter2@host/db",
            "sqlite://hunter2.db",
            "sqlite::memory:?hunter2",
        ] {
            let target = Target::parse(url).unwrap();
            assert!(!format!("{:?}", target.server()).contains("hunter2"));
            let connections = Connections::new(Arc::new(target), 1);
            assert!(!format!("{connections:?}").contains("hunter2"), "{connections:?}");
        }
    }
}
