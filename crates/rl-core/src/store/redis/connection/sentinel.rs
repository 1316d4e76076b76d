//! The primary that sentinels name: it is looked for anew with each connection, so that a fail-over
//! is no more than a connection that fails.
//!
//! A primary that is replaced while it works goes on working for some seconds, as a planned
//! fail-over does it, or as long as it is cut off from the sentinels. What it counts then is lost. So
//! the sentinels are also asked while all is well, and connections to a server that is no longer
//! named are left.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use tokio::task::JoinSet;

use super::pool::{Connection, Manager};
use super::server::{Address, Login, Server};
use crate::model::FailureKind;
use crate::model::StoreError;
use crate::store::redis::ConnectError;
use crate::store::redis::error::classify;

/// How often the sentinels are asked whether the primary is still the same, and again while a
/// server that they named does not answer.
const ASK_AGAIN: Duration = Duration::from_millis(200);

/// How long the others have once one sentinel has answered: one of them may know more.
const GRACE: Duration = Duration::from_millis(50);

/// Sentinels, and the primary that they watch.
pub(crate) struct Sentinels {
    sentinels: Vec<Arc<Sentinel>>,
    // How to log in to what they name.
    primary: Server,
    // Where connections lead.
    current: Mutex<Option<Address>>,
    is_watched: AtomicBool,
}

/// A sentinel, and a connection to it while it works.
struct Sentinel {
    server: Server,
    name: String,
    connection: tokio::sync::Mutex<Option<MultiplexedConnection>>,
}

/// The primary by a sentinel, and how new that is: answers are compared by the rank first.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Named {
    rank: Rank,
    address: Address,
}

/// The number of the last fail-over that the sentinel knows to be done, and whether it leads
/// another that has gone far enough to name its result.
type Rank = (u64, bool);

impl Sentinels {
    /// The URLs say how to log in to the sentinels, `login` how to log in to the servers.
    pub(crate) fn new(urls: &[String], name: &str, login: &Login) -> Result<Self, ConnectError> {
        let to_sentinels = Login {
            #[cfg(feature = "redis-tls")]
            tls: login.tls.clone(),
            ..Login::default()
        };
        let servers: Result<Vec<_>, _> =
            urls.iter().map(|url| Server::at_url(url, &to_sentinels)).collect();
        let servers = servers?;
        let Some(first) = servers.first() else {
            return Err(ConnectError::Servers { why: "no sentinel: expected at least one URL" });
        };
        if servers.iter().any(|server| server.is_tls() != first.is_tls()) {
            let why =
                "the sentinels' URLs mix redis:// and rediss://: the servers use what they do";
            return Err(ConnectError::Servers { why });
        }
        if servers.iter().any(|server| server.database() != 0) {
            let why = "a sentinel has no databases: set that of the servers with `database`";
            return Err(ConnectError::Servers { why });
        }
        let primary = first.with_login(login);
        let sentinel = |server| {
            let connection = tokio::sync::Mutex::default();
            Arc::new(Sentinel { server, name: name.to_owned(), connection })
        };
        Ok(Self {
            sentinels: servers.into_iter().map(sentinel).collect(),
            primary,
            current: Mutex::default(),
            is_watched: AtomicBool::new(false),
        })
    }

    /// The primary, by the sentinel that knows most.
    async fn ask(&self) -> Result<Address, StoreError> {
        let mut asking = JoinSet::new();
        for sentinel in &self.sentinels {
            let sentinel = Arc::clone(sentinel);
            asking.spawn(async move { sentinel.ask().await });
        }
        let mut best: Option<Named> = None;
        let mut failure = None;
        loop {
            let answer = match &best {
                None => asking.join_next().await,
                Some(_) => tokio::time::timeout(GRACE, asking.join_next()).await.unwrap_or(None),
            };
            match answer {
                Some(Ok(Ok(named))) => best = best.max(Some(named)),
                Some(Ok(Err(error))) => failure = Some(worse(failure, error)),
                // The runtime is ending.
                Some(Err(_)) => {}
                None => break,
            }
        }
        let none = || failure.unwrap_or_else(|| StoreError::new(FailureKind::Unavailable));
        best.map(|named| named.address).ok_or_else(none)
    }

    /// A connection to the primary.
    pub(crate) async fn connect(
        self: &Arc<Self>,
        manager: &Manager,
    ) -> Result<Connection, StoreError> {
        let mut opening = JoinSet::new();
        let mut tried = None;
        loop {
            let address = self.ask().await?;
            if tried.as_ref() != Some(&address) {
                // What was named before is out of the running.
                opening.abort_all();
                opening = JoinSet::new();
                let (server, manager) = (self.primary.at(&address), manager.clone());
                opening.spawn(async move { open_to_primary(&server, &manager).await });
                tried = Some(address);
            }
            // A server that hangs may be replaced meanwhile.
            match tokio::time::timeout(ASK_AGAIN, opening.join_next()).await {
                Ok(Some(Ok(opened))) => {
                    let connection = opened?;
                    self.watch(manager);
                    let before = std::mem::replace(&mut *self.lock_current(), tried.clone());
                    if before.is_none() || before == tried {
                        return Ok(connection);
                    }
                    // Connections of one age lead to one server: this one would be of the old age.
                    manager.generation().fetch_add(1, Ordering::AcqRel);
                    tried = None;
                }
                Ok(_) => return Err(StoreError::new(FailureKind::Unavailable)),
                Err(_) => {}
            }
        }
    }

    fn lock_current(&self) -> MutexGuard<'_, Option<Address>> {
        self.current.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Asks on, until the store is gone, whether the primary is still the same; ends the connections
    /// if it is not.
    #[expect(clippy::disallowed_methods, reason = "there is no event to wait for")]
    fn watch(self: &Arc<Self>, manager: &Manager) {
        if self.is_watched.swap(true, Ordering::AcqRel) {
            return;
        }
        let (this, generation) = (Arc::downgrade(self), manager.generation());
        tokio::spawn(async move {
            loop {
                tokio::time::sleep(ASK_AGAIN).await;
                let Some(this) = this.upgrade() else { return };
                // Sentinels that do not answer do not change anything.
                let Ok(Ok(named)) = tokio::time::timeout(ASK_AGAIN, this.ask()).await else {
                    continue;
                };
                let mut current = this.lock_current();
                if current.as_ref().is_some_and(|current| *current != named) {
                    // Once: the next connection sets it.
                    *current = None;
                    generation.fetch_add(1, Ordering::AcqRel);
                }
            }
        });
    }
}

impl Sentinel {
    async fn ask(&self) -> Result<Named, StoreError> {
        // One at a time, or a sentinel that hangs collects connections.
        let mut kept = self.connection.lock().await;
        let mut connection = match kept.take() {
            Some(connection) => connection,
            None => self.server.connect().await?,
        };
        let named = ask(&mut connection, &self.name).await?;
        *kept = Some(connection);
        Ok(named)
    }
}

/// The primary, as a sentinel knows it.
async fn ask(connection: &mut MultiplexedConnection, name: &str) -> Result<Named, StoreError> {
    let mut command = redis::cmd("SENTINEL");
    command.arg("GET-MASTER-ADDR-BY-NAME").arg(name);
    let named: Option<(String, u16)> = command.query_async(connection).await.map_err(classify)?;
    let (host, port) = named.ok_or_else(|| {
        StoreError::new(FailureKind::Protocol).with_detail("a sentinel knows no such primary")
    })?;
    let mut command = redis::cmd("SENTINEL");
    command.arg("MASTER").arg(name);
    let facts: HashMap<String, String> = command.query_async(connection).await.map_err(classify)?;
    let fact = |fact: &str| facts.get(fact).map_or("", String::as_str);
    let epoch = fact("config-epoch").parse().unwrap_or(0);
    let is_ahead = fact("ip") != host || fact("port") != port.to_string();
    Ok(Named { rank: (epoch, is_ahead), address: Address { host, port } })
}

/// Of two, the one that lasts until somebody mends it.
fn worse(one: Option<StoreError>, other: StoreError) -> StoreError {
    match one {
        Some(one) if one.kind().is_configuration() => one,
        _ => other,
    }
}

async fn open_to_primary(server: &Server, manager: &Manager) -> Result<Connection, StoreError> {
    let mut connection = manager.open_to(server).await?;
    if connection.is_primary().await {
        return Ok(connection);
    }
    let kind = FailureKind::Unavailable;
    Err(StoreError::new(kind).with_detail("the server that the sentinels name is no primary yet"))
}
