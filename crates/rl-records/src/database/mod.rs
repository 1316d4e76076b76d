//! The tables: connecting, and what every change has in common.

mod consumers;
mod failure;
mod gate;
mod history;
mod members;
mod open;
mod put;
mod query;
mod records;
mod resources;
mod sql;
mod tiers;

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use rl_core::time::{Clock, SystemClock, Timestamp};
use sqlx::any::AnyRow;
use sqlx::{Any, AnyPool, Row, Transaction};

pub use consumers::{ConsumerPage, ConsumerQuery, ConsumerSummary};
pub(crate) use gate::{Gate, PAUSE_MICROS, Ticket, pauses};
pub(crate) use history::Since;
pub use query::{RecordCursor, RecordPage, RecordQuery};

use crate::{Aggregation, CallLimits, DatabaseError, ZeroMeans};
use failure::failed;

/// The PostgreSQL channel, and with a prefix that of Redis, on which changes are announced.
pub(crate) const CHANNEL: &str = "rl_records";

/// The limits in a database: dated records per consumer, and limits of resources.
///
/// A cheap handle: clones share the connections.
#[derive(Clone)]
pub struct Records {
    inner: Arc<Inner>,
}

struct Inner {
    pool: AnyPool,
    gate: Arc<Gate>,
    url: String,
    is_postgres: bool,
    clock: Arc<dyn Clock>,
    aggregation: Aggregation,
    #[cfg(feature = "redis")]
    redis: Option<redis::Client>,
    // The caches of this process, which learn of a change before the call that makes it returns.
    listeners: Mutex<Vec<Weak<dyn Listener>>>,
}

/// Is told of changes.
pub(crate) trait Listener: Send + Sync {
    fn changed(&self, kind: Kind, owner: &str);
}

/// What a change is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Record,
    Resource,
    Tier,
    // Which tier a consumer, or a key, is in.
    Consumer,
    Key,
}

impl Kind {
    const fn as_str(self) -> &'static str {
        match self {
            Self::Record => "record",
            Self::Resource => "resource",
            Self::Tier => "tier",
            Self::Consumer => "consumer",
            Self::Key => "key",
        }
    }

    fn from_name(name: &str) -> Option<Self> {
        let all = [Self::Record, Self::Resource, Self::Tier, Self::Consumer, Self::Key];
        all.into_iter().find(|kind| kind.as_str() == name)
    }
}

impl Records {
    /// Connects to `sqlite::memory:`, `sqlite://file` or `postgres://…`, and brings the tables up to
    /// date.
    ///
    /// # Errors
    ///
    /// Returns an error if the URL names no such database, if it does not answer, or if the tables
    /// cannot be made.
    pub async fn connect(url: &str) -> Result<Self, DatabaseError> {
        Self::builder(url).connect().await
    }

    /// A connection with settings of its own.
    pub fn builder(url: &str) -> RecordsBuilder {
        RecordsBuilder {
            url: url.to_owned(),
            clock: Arc::new(SystemClock),
            aggregation: Aggregation::default(),
            max_connections: 8,
            #[cfg(feature = "redis")]
            redis: None,
        }
    }

    /// How records become limits.
    #[must_use]
    pub fn aggregation(&self) -> Aggregation {
        self.inner.aggregation
    }

    /// Closes every connection; later calls are answered with an error.
    pub async fn close(&self) {
        self.inner.pool.close().await;
    }

    pub(crate) fn clock(&self) -> &Arc<dyn Clock> {
        &self.inner.clock
    }

    /// Through which look-ups go.
    pub(crate) fn gate(&self) -> &Arc<Gate> {
        &self.inner.gate
    }

    /// Where PostgreSQL announces changes.
    pub(crate) fn postgres_url(&self) -> Option<&str> {
        self.inner.is_postgres.then_some(&*self.inner.url)
    }

    #[cfg(feature = "redis")]
    pub(crate) fn redis(&self) -> Option<&redis::Client> {
        self.inner.redis.as_ref()
    }

    pub(crate) fn tell(&self, listener: Weak<dyn Listener>) {
        let mut listeners = self.listeners();
        listeners.retain(|listener| listener.strong_count() > 0);
        listeners.push(listener);
    }

    fn listeners(&self) -> std::sync::MutexGuard<'_, Vec<Weak<dyn Listener>>> {
        self.inner.listeners.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins a change and gives it its number.
    ///
    /// The first statement takes the row that all changes take, so that they happen one after the
    /// other: what the transaction reads afterwards is what it changes.
    async fn begin(&self) -> Result<(Transaction<'static, Any>, i64), DatabaseError> {
        let mut transaction = self.inner.pool.begin().await.map_err(failed)?;
        let row = sqlx::query("UPDATE rl_changes SET change = change + 1 RETURNING change")
            .fetch_one(&mut *transaction)
            .await
            .map_err(failed)?;
        Ok((transaction, row.try_get(0).map_err(failed)?))
    }

    /// Commits the change, and announces it to whoever keeps limits of `owner`.
    async fn commit(
        &self,
        mut transaction: Transaction<'static, Any>,
        kind: Kind,
        owner: &str,
    ) -> Result<(), DatabaseError> {
        if self.inner.is_postgres {
            // Delivered when the transaction is committed, and not if it is not. It says that there
            // is something to read, not what: an id may be longer than a payload.
            sqlx::query("SELECT pg_notify($1, '')")
                .bind(CHANNEL)
                .execute(&mut *transaction)
                .await
                .map_err(failed)?;
        }
        transaction.commit().await.map_err(failed)?;
        let listeners: Vec<_> = self.listeners().iter().filter_map(Weak::upgrade).collect();
        for listener in listeners {
            listener.changed(kind, owner);
        }
        #[cfg(feature = "redis")]
        self.publish();
        Ok(())
    }

    /// Announces on Redis. Nobody waits for it: who does not hear it looks for changes anyway.
    #[cfg(feature = "redis")]
    fn publish(&self) {
        let Some(client) = self.inner.redis.clone() else { return };
        tokio::spawn(async move {
            let announced = async {
                let mut connection = client.get_multiplexed_async_connection().await?;
                redis::cmd("PUBLISH").arg(CHANNEL).arg("").query_async::<()>(&mut connection).await
            };
            if let Err(why) = announced.await {
                tracing::debug!(target: "rl_records", kind = ?why.kind(), "a change is not announced on Redis");
            }
        });
    }
}

impl fmt::Debug for Records {
    /// Without the URL, which may hold a password.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let database = if self.inner.is_postgres { "PostgreSQL" } else { "SQLite" };
        f.debug_struct("Records")
            .field("database", &database)
            .field("aggregation", &self.inner.aggregation)
            .finish_non_exhaustive()
    }
}

/// Settings of [`Records`].
#[must_use]
pub struct RecordsBuilder {
    url: String,
    clock: Arc<dyn Clock>,
    aggregation: Aggregation,
    max_connections: u32,
    #[cfg(feature = "redis")]
    redis: Option<String>,
}

impl RecordsBuilder {
    /// What holds for a consumer without any active record. Defaults to no limit in any period.
    pub const fn defaults(mut self, limits: CallLimits) -> Self {
        self.aggregation.defaults = limits;
        self
    }

    /// What a limit of 0 means when no active record has more. Defaults to
    /// [`ZeroMeans::Blocked`].
    pub const fn zero_means(mut self, meaning: ZeroMeans) -> Self {
        self.aggregation.zero_means = meaning;
        self
    }

    /// Where the time is read. Defaults to the clock of the system.
    pub fn clock(mut self, clock: impl Clock) -> Self {
        self.clock = Arc::new(clock);
        self
    }

    /// The most connections at the same time. Defaults to 8; a database in memory has one.
    pub const fn max_connections(mut self, count: u32) -> Self {
        self.max_connections = if count == 0 { 1 } else { count };
        self
    }

    /// A Redis on which changes are announced to other instances. PostgreSQL does that by itself.
    #[cfg(feature = "redis")]
    #[cfg_attr(docsrs, doc(cfg(feature = "redis")))]
    pub fn announce_on_redis(mut self, url: &str) -> Self {
        self.redis = Some(url.to_owned());
        self
    }
}

impl fmt::Debug for RecordsBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RecordsBuilder")
            .field("aggregation", &self.aggregation)
            .field("max_connections", &self.max_connections)
            .finish_non_exhaustive()
    }
}

fn time_of(row: &AnyRow, column: &str) -> Result<Timestamp, sqlx::Error> {
    let micros: i64 = row.try_get(column)?;
    Ok(Timestamp::from_micros(micros.try_into().unwrap_or_default()))
}

/// A time as the tables hold it.
fn micros(time: Timestamp) -> i64 {
    i64::try_from(time.as_micros()).unwrap_or(i64::MAX)
}
