//! Finds the primary through Redis Sentinel.
//!
//! The sentinels are asked for the primary before each new connection, so after a fail-over,
//! reconnecting reaches the new primary.
//!
//! An old primary may accept commands for some seconds more, during a planned fail-over or while it
//! is cut off from the sentinels. Its counts are lost afterwards.
//!
//! The sentinels are therefore also polled while connections work. Connections to a server that
//! they no longer name are dropped.
//!
//! This client is written by hand, because the Sentinel client of the `redis` crate does not poll:
//! it asks for the primary only when it opens a connection.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use tokio::task::JoinSet;

use super::connector::Connector;
use super::multiplexed::Connection;
use super::server::{Address, Login, Server};
use crate::model::{FailureKind, StoreError};
use crate::store::redis::error::{ConnectError, classify};

/// The interval at which the sentinels are polled. They are also asked at this interval while a
/// connection is being opened, because they may name another server by then.
const POLL_INTERVAL: Duration = Duration::from_millis(200);

/// The time to wait for the other sentinels after the first reply. Another one may know of a newer
/// fail-over.
const GRACE_PERIOD: Duration = Duration::from_millis(50);

/// The sentinels of one primary.
pub(crate) struct Sentinels {
    sentinels: Vec<Arc<Sentinel>>,
    /// A server with the login and transport for the primary, whichever server that is. The address
    /// is replaced by that of the current primary.
    template: Server,
    /// The address to which connections are opened.
    current: Mutex<Option<Address>>,
    is_monitored: AtomicBool,
}

impl Sentinels {
    /// Creates the sentinels at these URLs.
    ///
    /// The URLs contain the login to the sentinels. `login` is the login to the primary.
    pub(crate) fn new(urls: &[String], name: &str, login: &Login) -> Result<Self, ConnectError> {
        let sentinel_login = Login {
            #[cfg(feature = "redis-tls")]
            tls: login.tls.clone(),
            ..Login::default()
        };
        let servers: Result<Vec<_>, _> =
            urls.iter().map(|url| Server::from_url(url, &sentinel_login)).collect();
        let servers = servers?;
        let invalid = |why| Err(ConnectError::Servers { why });
        let Some(first) = servers.first() else {
            return invalid("no sentinel: expected at least one URL");
        };
        if servers.iter().any(|server| server.is_tls() != first.is_tls()) {
            return invalid(
                "the sentinels' URLs mix redis:// and rediss://: expected the one that the servers use",
            );
        }
        if servers.iter().any(|server| server.database() != 0) {
            return invalid(
                "a sentinel has no databases: set the database of the servers with `database`",
            );
        }
        let template = first.with_login(login);
        let sentinel = |server| {
            let connection = tokio::sync::Mutex::default();
            Arc::new(Sentinel { server, primary_name: name.to_owned(), connection })
        };
        Ok(Self {
            sentinels: servers.into_iter().map(sentinel).collect(),
            template,
            current: Mutex::default(),
            is_monitored: AtomicBool::new(false),
        })
    }

    /// Opens a connection to the primary.
    pub(super) async fn connect(
        self: &Arc<Self>,
        connector: &Connector,
    ) -> Result<Connection, StoreError> {
        let mut opening = JoinSet::new();
        let mut target = None;
        loop {
            let named = self.find_primary().await?;
            if target.as_ref() != Some(&named) {
                // Abandon the attempt to connect to the previous target, which the sentinels no
                // longer name.
                opening.abort_all();
                opening = JoinSet::new();
                let server = self.template.with_address(&named);
                let connector = connector.clone();
                opening.spawn(async move { open_to_primary(&server, &connector).await });
                target = Some(named);
            }
            // While the server does not respond, ask the sentinels again at intervals: they may
            // have replaced it by another server.
            match tokio::time::timeout(POLL_INTERVAL, opening.join_next()).await {
                Ok(Some(Ok(opened))) => {
                    let connection = opened?;
                    self.monitor(connector);
                    let previous = std::mem::replace(&mut *self.lock_current(), target.clone());
                    if previous.is_none() || previous == target {
                        return Ok(connection);
                    }
                    // All connections of a generation lead to one server. This connection was
                    // opened in the generation of the previous server, so it is dropped and opened
                    // again.
                    connector.generation().advance();
                    target = None;
                }
                Ok(_) => return Err(StoreError::new(FailureKind::Unavailable)),
                Err(_) => {}
            }
        }
    }

    /// Asks all sentinels. Returns the primary named by the one that knows the newest fail-over,
    /// among those that reply in time.
    async fn find_primary(&self) -> Result<Address, StoreError> {
        let mut queries = JoinSet::new();
        for sentinel in &self.sentinels {
            let sentinel = Arc::clone(sentinel);
            queries.spawn(async move { sentinel.primary().await });
        }
        let mut best: Option<NamedPrimary> = None;
        let mut failure = None;
        loop {
            let reply = match &best {
                None => queries.join_next().await,
                Some(_) => {
                    let next = tokio::time::timeout(GRACE_PERIOD, queries.join_next()).await;
                    next.unwrap_or(None)
                }
            };
            match reply {
                Some(Ok(Ok(named))) => best = best.max(Some(named)),
                Some(Ok(Err(error))) => failure = Some(more_lasting(failure, error)),
                // The runtime is shutting down.
                Some(Err(_)) => {}
                None => break,
            }
        }
        let no_reply = || failure.unwrap_or_else(|| StoreError::new(FailureKind::Unavailable));
        best.map(|named| named.address).ok_or_else(no_reply)
    }

    /// Starts a task that polls the sentinels until the store is dropped.
    ///
    /// If they name another primary, the task ends the generation of the connections. The task is
    /// started only once.
    #[expect(clippy::disallowed_methods, reason = "there is no event to wait for")]
    fn monitor(self: &Arc<Self>, connector: &Connector) {
        if self.is_monitored.swap(true, Ordering::AcqRel) {
            return;
        }
        let sentinels = Arc::downgrade(self);
        let generation = connector.generation().clone();
        tokio::spawn(async move {
            loop {
                // Sentinels announce a new primary only to subscribers. A message that is sent
                // while the subscriber reconnects is lost, so the sentinels are polled.
                tokio::time::sleep(POLL_INTERVAL).await;
                let Some(this) = sentinels.upgrade() else { return };
                // While no sentinel replies, the connections are kept.
                let found = tokio::time::timeout(POLL_INTERVAL, this.find_primary()).await;
                let Ok(Ok(named)) = found else { continue };
                let mut current = this.lock_current();
                if current.as_ref().is_some_and(|current| *current != named) {
                    // The address is cleared, so that later polls do not end the generation again.
                    // The next connection sets it.
                    *current = None;
                    generation.advance();
                }
            }
        });
    }

    fn lock_current(&self) -> MutexGuard<'_, Option<Address>> {
        self.current.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A sentinel, and a connection to it while the connection works.
struct Sentinel {
    server: Server,
    primary_name: String,
    connection: tokio::sync::Mutex<Option<MultiplexedConnection>>,
}

impl Sentinel {
    /// Asks the sentinel for the primary.
    async fn primary(&self) -> Result<NamedPrimary, StoreError> {
        // Only one query runs at a time. Otherwise connections to a sentinel that hangs would pile
        // up.
        let mut cached = self.connection.lock().await;
        let mut connection = match cached.take() {
            Some(connection) => connection,
            None => {
                let (connection, driver) = self.server.connect(None).await?;
                tokio::spawn(driver);
                connection
            }
        };
        let named = query_primary(&mut connection, &self.primary_name).await?;
        *cached = Some(connection);
        Ok(named)
    }
}

/// The primary that a sentinel names. The `Ord` of the type puts the newest fail-over last.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct NamedPrimary {
    /// The number of the last fail-over that the sentinel knows to be complete.
    config_epoch: u64,
    /// Whether a fail-over is still in progress, and the sentinel already names the new primary.
    is_failing_over: bool,
    address: Address,
}

/// Asks a sentinel for the primary called `name`.
async fn query_primary(
    connection: &mut MultiplexedConnection,
    name: &str,
) -> Result<NamedPrimary, StoreError> {
    let mut command = redis::cmd("SENTINEL");
    command.arg("GET-MASTER-ADDR-BY-NAME").arg(name);
    let named: Option<(String, u16)> = command.query_async(connection).await.map_err(classify)?;
    let (host, port) = named.ok_or_else(|| {
        StoreError::new(FailureKind::Protocol)
            .with_detail("a sentinel does not know a primary of this name")
    })?;
    let mut command = redis::cmd("SENTINEL");
    command.arg("MASTER").arg(name);
    let fields: HashMap<String, String> =
        command.query_async(connection).await.map_err(classify)?;
    let field = |name: &str| fields.get(name).map_or("", String::as_str);
    Ok(NamedPrimary {
        config_epoch: field("config-epoch").parse().unwrap_or(0),
        is_failing_over: field("ip") != host || field("port") != port.to_string(),
        address: Address { host, port },
    })
}

/// Returns the error to report. A configuration failure takes precedence over a failure that ends
/// without intervention.
fn more_lasting(first: Option<StoreError>, second: StoreError) -> StoreError {
    match first {
        Some(first) if first.kind().is_configuration() => first,
        _ => second,
    }
}

/// Opens a connection, and fails if the server is not a primary.
async fn open_to_primary(server: &Server, connector: &Connector) -> Result<Connection, StoreError> {
    let mut connection = connector.open(server).await?;
    if connection.is_primary().await {
        return Ok(connection);
    }
    Err(StoreError::new(FailureKind::Unavailable)
        .with_detail("the server that the sentinels name is not a primary yet"))
}
