use std::collections::VecDeque;
use std::fmt;
use std::future::Future;
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rl_core::FailureKind;
use sqlx::any::{AnyArguments, AnyRow};
use sqlx::postgres::PgConnectOptions;
use sqlx::query::Query;
use sqlx::{Any, AnyConnection, Connection, Executor};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;

use super::failure::failed;
use crate::DatabaseError;

/// How long is waited for a place.
const PLACE: Duration = Duration::from_secs(5);

/// How long it may take to connect.
const CONNECT: Duration = Duration::from_secs(5);

/// How long it may take to find out whether a connection still works.
const TRY: Duration = Duration::from_secs(1);

/// How long a statement may take.
const STATEMENT: Duration = Duration::from_secs(10);

/// After how long without work a connection is tried before it is used.
const IDLE: Duration = Duration::from_secs(1);

/// How old a connection becomes: addresses change, and who answered at first may no longer lead.
const OLDEST: Duration = Duration::from_secs(1_800);

/// Where connections lead to.
pub(super) enum Target {
    /// Its only connection is the database: it is kept as long as the set.
    Memory(String),
    File(String),
    Postgres(String),
}

impl Target {
    /// A database of one of the schemes that are known.
    pub(super) fn of(url: &str) -> Option<Self> {
        if url.starts_with("postgres:") || url.starts_with("postgresql:") {
            return Some(Self::Postgres(url.to_owned()));
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

    /// Returns the address of the server, without user and password.
    fn server(&self) -> Option<String> {
        let Self::Postgres(url) = self else { return None };
        let options: PgConnectOptions = url.parse().ok()?;
        Some(format!("{}:{}", options.get_host(), options.get_port()))
    }

    async fn connect(&self) -> Result<AnyConnection, sqlx::Error> {
        let (Self::Memory(url) | Self::File(url) | Self::Postgres(url)) = self;
        let mut connection = AnyConnection::connect(url).await?;
        if let Self::File(_) = self {
            // Readers and the writer do not wait for each other, also of other processes.
            connection.execute("PRAGMA journal_mode = WAL").await?;
            connection.execute("PRAGMA synchronous = NORMAL").await?;
        }
        Ok(connection)
    }
}

impl fmt::Debug for Target {
    /// Without the URL, which may hold a password.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Memory(_) | Self::File(_) => "SQLite",
            Self::Postgres(_) => "PostgreSQL",
        })
    }
}

/// At most so many connections for one kind of work, which no other kind can take; made when they are
/// needed.
///
/// Whatever is waited for ends: no connection is tried, tidied up or closed while somebody waits for
/// it without a limit.
#[derive(Debug)]
pub(super) struct Connections {
    target: Arc<Target>,
    count: u32,
    places: Arc<Semaphore>,
    idle: Mutex<VecDeque<Work>>,
}

#[derive(Debug)]
struct Work {
    connection: AnyConnection,
    made_at: Instant,
    since: Instant,
    // What was begun on it was not ended.
    is_left: bool,
}

impl Work {
    fn on(connection: AnyConnection) -> Self {
        let now = Instant::now();
        Self { connection, made_at: now, since: now, is_left: false }
    }
}

impl Connections {
    pub(super) fn new(target: Arc<Target>, count: u32) -> Arc<Self> {
        let places = Arc::new(Semaphore::new(count as usize));
        Arc::new(Self { target, count, places, idle: Mutex::default() })
    }

    fn idle(&self) -> MutexGuard<'_, VecDeque<Work>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_memory(&self) -> bool {
        matches!(*self.target, Target::Memory(_))
    }

    /// A connection that works, for one piece of work.
    pub(super) async fn take(self: &Arc<Self>) -> Result<Lease, DatabaseError> {
        let place = within(PLACE, async { Ok(self.places.clone().acquire_owned().await) }).await?;
        // There are none after `close`.
        let place = place.map_err(|_| DatabaseError::new(FailureKind::Unavailable))?;
        let mut lease = Lease { set: self.clone(), work: None, _place: place };
        loop {
            lease.work = self.idle().pop_back();
            if lease.work.is_none() {
                let connecting = async { self.target.connect().await.map_err(failed) };
                let connected = within(CONNECT, connecting).await;
                let located = |error: DatabaseError| match self.target.server() {
                    Some(server) => error.at_connecting_to(&server),
                    None => error,
                };
                lease.work = Some(Work::on(connected.map_err(located)?));
                return Ok(lease);
            }
            if lease.works().await {
                return Ok(lease);
            }
            // The others are as old, or lost what this one has lost.
            self.idle().clear();
        }
    }

    /// Waits for those who are at work, and closes every connection.
    pub(super) async fn close(&self) {
        let _all = tokio::time::timeout(PLACE, self.places.acquire_many(self.count)).await;
        self.places.close();
        let idle = std::mem::take(&mut *self.idle());
        for idle in idle {
            let _ = tokio::time::timeout(CONNECT, idle.connection.close()).await;
        }
    }
}

/// A connection at work. It is closed unless it is [put back](Self::put_back): the work failed or was
/// cancelled, and nobody knows how it left the connection.
#[derive(Debug)]
pub(super) struct Lease {
    set: Arc<Connections>,
    work: Option<Work>,
    _place: OwnedSemaphorePermit,
}

impl Lease {
    /// The work has ended as it should: the connection is free for the next.
    pub(super) fn put_back(mut self) {
        if let Some(work) = self.work.take() {
            self.keep(Work { is_left: false, ..work });
        }
    }

    fn keep(&self, work: Work) {
        if !self.set.places.is_closed() {
            self.set.idle().push_back(Work { since: Instant::now(), ..work });
        }
    }

    /// Whether it can be used; what somebody left on it is undone.
    async fn works(&mut self) -> bool {
        let is_memory = self.set.is_memory();
        let Some(work) = &mut self.work else { return false };
        if is_memory {
            if work.is_left {
                // An error says that there is nothing to undo.
                let _ = work.connection.execute("ROLLBACK").await;
                work.is_left = false;
            }
            return true;
        }
        if work.made_at.elapsed() >= OLDEST {
            return false;
        }
        if work.since.elapsed() < IDLE {
            return true;
        }
        let trying = tokio::time::timeout(TRY, work.connection.ping()).await;
        trying.is_ok_and(|answer| answer.is_ok())
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        if let Some(work) = self.work.take()
            && self.set.is_memory()
        {
            self.keep(Work { is_left: true, ..work });
        }
    }
}

impl Deref for Lease {
    type Target = AnyConnection;

    fn deref(&self) -> &AnyConnection {
        &self.work.as_ref().expect("taken when it is put back, which ends the lease").connection
    }
}

impl DerefMut for Lease {
    fn deref_mut(&mut self) -> &mut AnyConnection {
        &mut self.work.as_mut().expect("taken when it is put back, which ends the lease").connection
    }
}

/// The end of `work`, or an error when it takes longer than `limit`.
pub(super) async fn within<T, E: From<DatabaseError>>(
    limit: Duration,
    work: impl Future<Output = Result<T, E>>,
) -> Result<T, E> {
    let late = |_| Err(DatabaseError::new(FailureKind::TimedOut).into());
    tokio::time::timeout(limit, work).await.unwrap_or_else(late)
}

/// Where a statement runs: on a connection that is taken for it alone, or on the one of some work.
///
/// A statement that takes too long is an error, and the end of its connection.
pub(super) trait Place: Send {
    fn rows(
        self,
        query: Query<'_, Any, AnyArguments>,
    ) -> impl Future<Output = Result<Vec<AnyRow>, DatabaseError>> + Send;
}

impl Place for &Arc<Connections> {
    async fn rows(self, query: Query<'_, Any, AnyArguments>) -> Result<Vec<AnyRow>, DatabaseError> {
        let mut lease = self.take().await?;
        let rows = (&mut *lease).rows(query).await?;
        lease.put_back();
        Ok(rows)
    }
}

impl Place for &mut AnyConnection {
    async fn rows(self, query: Query<'_, Any, AnyArguments>) -> Result<Vec<AnyRow>, DatabaseError> {
        within(STATEMENT, async { query.fetch_all(self).await.map_err(failed) }).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn where_connections_lead_is_shown_without_the_password() {
        for url in [
            "postgres://rl:hunter2@host/db",
            "postgres://rl:hun/hunter2@host/db",
            "sqlite://hunter2.db",
            "sqlite::memory:?hunter2",
        ] {
            let target = Target::of(url).unwrap();
            assert!(!format!("{:?}", target.server()).contains("hunter2"));
            let connections = Connections::new(Arc::new(target), 1);
            assert!(!format!("{connections:?}").contains("hunter2"), "{connections:?}");
        }
    }
}
