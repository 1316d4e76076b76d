//! A pool of multiplexed connections to one server.
//!
//! A task clones a connection and returns it to the pool immediately, so the commands of many
//! requests share a connection.
//!
//! The manager of `bb8-redis` sends `PING` at every check-out, and never reports a connection as
//! broken. The manager in this file sends nothing at check-out. If a connection fails, all
//! connections of its [generation](super::liveness::Generation) leave the pool.

use std::fmt;
use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;

use bb8_redis::bb8;
use tokio::runtime::Handle;

use super::backoff::Backoff;
use super::connector::{ConnectionSettings, Connector};
use super::multiplexed::Connection;
#[cfg(feature = "redis-sentinel")]
use super::sentinel::Sentinels;
use super::server::Server;
use crate::model::{FailureKind, StoreError};
use crate::store::ServerLoad;

/// The server to which a pool connects.
#[derive(Clone)]
pub(crate) enum PoolTarget {
    /// A fixed server.
    Server(Server),
    /// The primary that the sentinels currently name.
    #[cfg(feature = "redis-sentinel")]
    Sentinels(Arc<Sentinels>),
}

/// A pool of connections. Clones share the connections.
#[derive(Clone)]
pub(crate) struct Pool(Arc<PoolInner>);

struct PoolInner {
    pool: bb8::Pool<PoolManager>,
    manager: PoolManager,
}

impl Pool {
    /// Creates a pool without connections. Its connections will run in `runtime`.
    pub(crate) fn new(
        target: PoolTarget,
        settings: &Arc<ConnectionSettings>,
        runtime: &Handle,
        load: Arc<ServerLoad>,
    ) -> Self {
        let manager = PoolManager {
            target,
            connector: Connector::new(Arc::clone(settings), load),
            runtime: runtime.clone(),
            backoff: Backoff::default(),
        };
        let pool = bb8::Pool::builder()
            .max_size(settings.connections)
            .connection_timeout(settings.connection_wait)
            // Multiplexed connections are always in use, and are replaced when they fail, so
            // neither their idle time nor their age is limited.
            .idle_timeout(None)
            .max_lifetime(None)
            .error_sink(Box::new(bb8::NopErrorSink))
            .build_unchecked(manager.clone());
        Self(Arc::new(PoolInner { pool, manager }))
    }

    /// Returns the load of the server.
    pub(crate) fn load(&self) -> &Arc<ServerLoad> {
        self.0.manager.connector.load()
    }

    /// Returns a handle to a connection. The connection itself is back in the pool immediately, so
    /// that other requests can share it.
    ///
    /// # Errors
    ///
    /// Returns the reason of the last failure if no connection becomes available in time. If the
    /// server refuses the service, returns that error without waiting, because waiting would not
    /// help.
    pub(crate) async fn get(&self) -> Result<Connection, StoreError> {
        let PoolInner { pool, manager } = &*self.0;
        let mut connection = pin!(pool.get());
        let mut refusal = pin!(manager.backoff.refusal());
        let result = poll_fn(|cx| {
            // bb8 spawns its connecting tasks on the current runtime. On the runtime of a worker
            // thread, they would end with that thread, and the pool would wait for them forever.
            let _runtime = manager.runtime.enter();
            match connection.as_mut().poll(cx) {
                Poll::Ready(connection) => Poll::Ready(Ok(connection)),
                // `refusal` is polled after the pool, so that the pool tries to connect again even
                // if a recent refusal ends this call at once.
                Poll::Pending => refusal.as_mut().poll(cx).map(Err),
            }
        });
        let error = match result.await {
            Ok(Ok(connection)) => return Ok(connection.clone()),
            Ok(Err(bb8::RunError::User(error))) | Err(error) => error,
            Ok(Err(bb8::RunError::TimedOut)) => manager.backoff.last_error().unwrap_or_else(|| {
                StoreError::new(FailureKind::TimedOut)
                    .with_detail("no connection was available in time")
            }),
        };
        // Nothing can be executed without a connection.
        Err(error.before_execution())
    }

    /// Tries once to connect, without using the pool.
    pub(crate) async fn try_connect(&self) -> Result<(), StoreError> {
        self.0.pool.dedicated_connection().await.map(drop)
    }
}

/// Opens and checks the connections of the pool for bb8. Clones share the state.
#[derive(Clone)]
struct PoolManager {
    target: PoolTarget,
    connector: Connector,
    /// The runtime in which connections run.
    ///
    /// A request may come from a thread with a runtime of its own, as in actix-web. If that thread
    /// is busy, it must not delay the connections of other threads.
    runtime: Handle,
    backoff: Backoff,
}

impl PoolManager {
    /// Opens a connection within the time limit.
    async fn open(&self) -> Result<Connection, StoreError> {
        let timeout = self.connector.timeout();
        let opened = tokio::time::timeout(timeout, async {
            match &self.target {
                PoolTarget::Server(server) => self.connector.open(server).await,
                #[cfg(feature = "redis-sentinel")]
                PoolTarget::Sentinels(sentinels) => sentinels.connect(&self.connector).await,
            }
        });
        opened.await.unwrap_or_else(|_| {
            let server = match &self.target {
                PoolTarget::Server(server) => format!(" to {}", server.name()),
                #[cfg(feature = "redis-sentinel")]
                PoolTarget::Sentinels(_) => String::new(),
            };
            let detail = format!("no connection{server} within {timeout:?}");
            Err(StoreError::new(FailureKind::TimedOut).with_detail(detail))
        })
    }
}

impl bb8::ManageConnection for PoolManager {
    type Connection = Connection;
    type Error = StoreError;

    async fn connect(&self) -> Result<Connection, StoreError> {
        self.backoff.wait().await;
        let this = self.clone();
        let opened = match self.runtime.spawn(async move { this.open().await }).await {
            Ok(opened) => opened,
            // The runtime in which the store was created has shut down.
            Err(_) => Err(StoreError::new(FailureKind::Unavailable)),
        };
        self.connector.count_connect(opened.is_ok());
        self.backoff.record(opened.as_ref().err());
        if let Ok(connection) = &opened {
            connection.start_counting();
        }
        opened
    }

    async fn is_valid(&self, connection: &mut Connection) -> Result<(), StoreError> {
        if connection.is_stale() { Err(StoreError::new(FailureKind::Unavailable)) } else { Ok(()) }
    }

    fn has_broken(&self, connection: &mut Connection) -> bool {
        connection.is_stale()
    }
}

// Omits the target, which may contain a password.
impl fmt::Debug for PoolManager {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PoolManager").finish_non_exhaustive()
    }
}
