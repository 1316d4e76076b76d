//! The tables: connecting, and what every change has in common.

mod audit;
mod blocks;
mod connections;
mod consumers;
mod edit;
mod failure;
mod gate;
mod history;
mod look_ups;
mod members;
mod open;
mod put;
mod query;
mod records;
mod resources;
mod sql;
mod tiers;
mod write;

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use futures::future::BoxFuture;
use rl_core::time::{Clock, SystemClock, Timestamp};
use sqlx::Row;
use sqlx::any::AnyRow;

pub use consumers::{ConsumerPage, ConsumerQuery, ConsumerSummary};
pub(crate) use gate::{Gate, PAUSE_MICROS, Ticket, pauses};
pub(crate) use history::{Mark, Since};
pub use query::{RecordCursor, RecordPage, RecordQuery};

use crate::{Aggregation, CallLimits, DatabaseError, ZeroMeans};
use connections::Connections;

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
    // Apart, so that nobody who edits or lists keeps those waiting who want to call.
    look_ups: Arc<Connections>,
    edits: Arc<Connections>,
    reads: Arc<Connections>,
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

    /// Looks up `owner` anew after a change by this process.
    fn refresh(&self, kind: Kind, owner: &str) -> Option<BoxFuture<'static, ()>>;
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
    // Counters of a consumer were reset, or those of another subject: no limit changed.
    Reset,
    SubjectReset,
    // A request was refused because its actor does not have the role.
    Refusal,
}

impl Kind {
    const fn as_str(self) -> &'static str {
        match self {
            Self::Record => "record",
            Self::Resource => "resource",
            Self::Tier => "tier",
            Self::Consumer => "consumer",
            Self::Key => "key",
            Self::Reset => "reset",
            Self::SubjectReset => "subject_reset",
            Self::Refusal => "refusal",
        }
    }

    fn from_name(name: &str) -> Option<Self> {
        let of_limits = [Self::Record, Self::Resource, Self::Tier, Self::Consumer, Self::Key];
        let of_audit = [Self::Reset, Self::SubjectReset, Self::Refusal];
        of_limits.into_iter().chain(of_audit).find(|kind| kind.as_str() == name)
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
        let Inner { look_ups, edits, reads, .. } = &*self.inner;
        for connections in [look_ups, edits, reads] {
            connections.close().await;
        }
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

    /// The most connections at the same time. Defaults to 8; fewer than 4 are 4, and a database in
    /// memory has one.
    ///
    /// Half of them serve the look-ups of sources; changes have a quarter, and whatever else is read the
    /// rest. None of the three waits for another. A source that hears announcements of PostgreSQL or
    /// Redis has one connection more.
    pub const fn max_connections(mut self, count: u32) -> Self {
        self.max_connections = if count < 4 { 4 } else { count };
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
