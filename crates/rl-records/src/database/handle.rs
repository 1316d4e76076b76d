use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use futures::future::BoxFuture;
use rl_core::time::{Clock, Timestamp};

use super::connections::Connections;
use super::dialect::Dialect;
use super::kind::Kind;
use super::lookup_limiter::LookupLimiter;
use crate::active::Aggregation;

/// The name of the channel for announcements of changes, on PostgreSQL and on Redis.
pub(crate) const CHANNEL: &str = "rl_records";

/// The default interval at which sources poll the change log.
const POLL_EVERY: Duration = Duration::from_millis(500);

/// The default interval on MySQL and MariaDB, which cannot announce a change.
const POLL_EVERY_UNANNOUNCED: Duration = Duration::from_millis(200);

/// A cache that is notified of changes.
pub(crate) trait Listener: Send + Sync {
    /// Marks the values of `owner` as changed.
    fn changed(&self, kind: Kind, owner: &str);

    /// Returns a future that looks up the values of `owner` after a change by this process. Returns
    /// `None` if the change affects no value, or if the database may not be read now.
    fn refresh(&self, kind: Kind, owner: &str) -> Option<BoxFuture<'static, ()>>;
}

/// A database: its connections, its settings, and the caches of this process.
pub(crate) struct Database {
    // Look-ups have a pool of their own, so that edits and lists never delay them.
    pub(super) lookups: Arc<Connections>,
    pub(super) edits: Arc<Connections>,
    pub(super) reads: Arc<Connections>,
    pub(super) lookup_limiter: Arc<LookupLimiter>,
    pub(super) url: String,
    pub(super) dialect: Dialect,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) aggregation: Aggregation,
    #[cfg(feature = "redis")]
    pub(super) redis: Option<redis::Client>,
    // Every call that makes a change notifies these listeners before it returns.
    pub(super) listeners: Mutex<Vec<Weak<dyn Listener>>>,
}

impl Database {
    /// Closes every connection. Later calls return an error.
    pub(super) async fn close(&self) {
        for connections in [&self.lookups, &self.edits, &self.reads] {
            connections.close().await;
        }
    }

    pub(crate) fn now(&self) -> Timestamp {
        self.clock.now()
    }

    pub(crate) const fn clock(&self) -> &Arc<dyn Clock> {
        &self.clock
    }

    pub(crate) const fn aggregation(&self) -> &Aggregation {
        &self.aggregation
    }

    pub(crate) const fn lookup_limiter(&self) -> &Arc<LookupLimiter> {
        &self.lookup_limiter
    }

    /// Returns the URL of a database on PostgreSQL, whose server announces changes. Returns `None`
    /// for other databases.
    pub(crate) fn postgres_url(&self) -> Option<&str> {
        (self.dialect == Dialect::Postgres).then_some(&*self.url)
    }

    /// Returns the default interval at which sources poll the change log. It is shorter if nothing
    /// else reports changes by other instances on a server.
    pub(crate) const fn poll_every(&self) -> Duration {
        #[cfg(feature = "redis")]
        if self.redis.is_some() {
            return POLL_EVERY;
        }
        match self.dialect {
            Dialect::MySql => POLL_EVERY_UNANNOUNCED,
            Dialect::Sqlite | Dialect::Postgres => POLL_EVERY,
        }
    }

    #[cfg(feature = "redis")]
    pub(crate) const fn redis(&self) -> Option<&redis::Client> {
        self.redis.as_ref()
    }

    /// Registers `listener`, which is notified of changes until it is dropped.
    pub(crate) fn add_listener(&self, listener: Weak<dyn Listener>) {
        let mut listeners = self.listeners();
        listeners.retain(|listener| listener.strong_count() > 0);
        listeners.push(listener);
    }

    /// Notifies the caches of this process of a change, and announces the change on Redis. Returns
    /// those caches.
    pub(super) fn announce(&self, kind: Kind, owner: &str) -> Vec<Arc<dyn Listener>> {
        let listeners: Vec<_> = self.listeners().iter().filter_map(Weak::upgrade).collect();
        for listener in &listeners {
            listener.changed(kind, owner);
        }
        #[cfg(feature = "redis")]
        self.publish();
        listeners
    }

    /// Announces a change on Redis in the background. Instances that miss the announcement find the
    /// change by polling.
    #[cfg(feature = "redis")]
    fn publish(&self) {
        let Some(client) = self.redis.clone() else { return };
        tokio::spawn(async move {
            let announced = async {
                let mut connection = client.get_multiplexed_async_connection().await?;
                redis::cmd("PUBLISH").arg(CHANNEL).arg("").query_async::<()>(&mut connection).await
            };
            if let Err(error) = announced.await {
                let kind = error.kind();
                tracing::debug!(target: "rl_records", ?kind, "change not announced on Redis");
            }
        });
    }

    fn listeners(&self) -> MutexGuard<'_, Vec<Weak<dyn Listener>>> {
        self.listeners.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Database {
    /// Omits the URL, which may contain a password.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Database")
            .field("database", &self.dialect.name())
            .field("aggregation", &self.aggregation)
            .finish_non_exhaustive()
    }
}
