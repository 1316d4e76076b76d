//! The servers of a cluster: the pools of each primary, and the map from slots to primaries.
//!
//! A server that does not hold a slot rejects the command without executing it, and names the
//! server that holds the slot. The command is then sent to that server. A command that may have
//! been executed is never sent again.
//!
//! This client is written by hand, because the cluster client of the `redis` crate resends a
//! command whose connection was lost, and so may charge twice. Its limit of retries includes
//! redirects, so resending cannot be turned off.

mod slots;

use std::collections::HashMap;
use std::future::poll_fn;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::task::Poll;
use std::time::Duration;

use redis::RedisError;
use slots::SlotMap;
use tokio::runtime::Handle;
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::backoff::delay;
use super::command::Command;
use super::connector::ConnectionSettings;
use super::multiplexed::Connection;
use super::pool::{Pool, PoolTarget};
use super::server::{Address, Login, Server};
use crate::model::{FailureKind, StoreError};
use crate::stats::RedisCounts;
use crate::store::redis::encoding::placement::slot_of;
use crate::store::redis::error::{ConnectError, classify};
use crate::store::{ServerGroup, ServerLoad};

/// The number of redirects that a command follows before it fails.
const MAX_REDIRECTS: usize = 16;

/// The delay before a command is sent again while its slot is being migrated.
const MIGRATION_DELAY: Duration = Duration::from_millis(2);

/// The maximum number of these delays for one command: one second in total. The deadline of a
/// decision usually ends the wait earlier.
const MAX_MIGRATION_DELAYS: usize = 500;

/// The first delay between two refreshes of the slot map. A random part of up to one half is
/// subtracted from each delay.
const SHORTEST_REFRESH_DELAY: Duration = Duration::from_millis(50);

/// The longest delay between two refreshes while a server in the map cannot be reached.
const LONGEST_REFRESH_DELAY: Duration = Duration::from_millis(200);

/// The number of servers that are asked for the map at the same time. There are several, because
/// some may be unreachable.
const CONCURRENT_MAP_QUERIES: usize = 3;

/// A cluster. Clones share the connections and the map.
#[derive(Clone)]
pub(crate) struct Cluster(Arc<ClusterInner>);

struct ClusterInner {
    /// A server with the login and transport that all servers share. Its address is replaced for
    /// each server.
    template: Server,
    /// The addresses in the URLs that the service was given.
    seeds: Vec<Address>,
    settings: Arc<ConnectionSettings>,
    /// The settings of connections on which servers are asked for the map.
    map_settings: Arc<ConnectionSettings>,
    /// The runtime in which connections live.
    runtime: Handle,
    slots: RwLock<SlotMap>,
    pools: Mutex<HashMap<Address, ServerPools>>,
    /// The loads of the primaries.
    primaries: Arc<ServerGroup>,
    /// The load of the slots whose server is not known.
    unknown: Arc<ServerLoad>,
    /// Whether a task is refreshing the map.
    is_refreshing: AtomicBool,
    /// Notified after every refresh.
    refreshed: Notify,
    /// The error of the last refresh, if only an operator can fix its cause.
    refusal: Mutex<Option<(FailureKind, String)>>,
    /// Counts refreshes, so that each refresh begins with another server.
    rotation: AtomicUsize,
}

/// The connections to one server.
#[derive(Clone)]
struct ServerPools {
    scripts: Pool,
    /// The connection on which the server is asked for the map. It is not one of `scripts`, where
    /// each reply shows that the server executes scripts.
    map: Pool,
}

impl Cluster {
    /// Creates a cluster without connections. Its connections will run in the current runtime.
    pub(crate) fn new(
        urls: &[String],
        login: &Login,
        settings: &Arc<ConnectionSettings>,
    ) -> Result<Self, ConnectError> {
        let invalid = |why| Err(ConnectError::Servers { why });
        let servers: Result<Vec<_>, _> =
            urls.iter().map(|url| Server::from_url(url, login)).collect();
        let servers = servers?;
        let Some(template) = servers.first().cloned() else {
            return invalid("no server of the cluster: expected at least one URL");
        };
        if !servers.iter().all(|server| server.has_login_of(&template)) {
            return invalid("the URLs of a cluster differ in more than host and port");
        }
        if template.database() != 0 {
            return invalid("a cluster has database 0 only");
        }
        let seeds: Option<Vec<_>> = servers.iter().map(Server::address).collect();
        let Some(seeds) = seeds else {
            return invalid("a cluster cannot be reached through a socket file");
        };
        let runtime = Handle::current();
        Ok(Self(Arc::new(ClusterInner {
            template,
            seeds,
            settings: Arc::clone(settings),
            map_settings: Arc::new(settings.without_scripts()),
            runtime: runtime.clone(),
            slots: RwLock::default(),
            pools: Mutex::default(),
            primaries: Arc::default(),
            unknown: Arc::new(ServerLoad::unconnected(&runtime)),
            is_refreshing: AtomicBool::new(false),
            refreshed: Notify::new(),
            refusal: Mutex::default(),
            rotation: AtomicUsize::new(0),
        })))
    }

    /// Returns the cluster's name in log lines. It includes the address of the first seed.
    pub(crate) fn label(&self) -> String {
        let first = self.0.seeds.first();
        let first = first.map(|Address { host, port }| format!(" {host}:{port}"));
        format!("redis cluster{}", first.unwrap_or_default())
    }

    /// Tries once to read the map and to connect to every primary.
    pub(crate) async fn try_connect(&self) -> Result<(), StoreError> {
        self.refresh().await?;
        let mut attempts = JoinSet::new();
        for address in self.primaries() {
            let pool = self.pool(&address);
            attempts.spawn(async move { pool.try_connect().await });
        }
        attempts.join_all().await.into_iter().collect()
    }

    /// Sends a command to the server that holds its keys, and returns the reply of its script.
    /// Waits while only some of the keys have been migrated.
    pub(crate) async fn send(&self, command: &Command) -> Result<Vec<u8>, StoreError> {
        for _ in 0..MAX_MIGRATION_DELAYS {
            if let Some(reply) = self.try_send(command).await? {
                return Ok(reply);
            }
            sleep(MIGRATION_DELAY).await;
        }
        self.start_refresh();
        Err(unavailable("the slot of the subject was not migrated in time"))
    }

    /// Sends a command to the server that holds its keys, and returns the reply of its script.
    /// Returns `None` if only some of the keys have been migrated; nothing was executed then.
    pub(crate) async fn try_send(&self, command: &Command) -> Result<Option<Vec<u8>>, StoreError> {
        // The guard refreshes the map of slots even if this future is dropped at the deadline of
        // the decision.
        let refresh = RefreshOnDrop(self);
        let result = self.send_to_owner(command).await;
        // A corrupt state belongs to one subject, and gives no reason to refresh the map.
        if result.as_ref().err().is_none_or(|error| error.kind() == FailureKind::Corrupt) {
            refresh.cancel();
        }
        result
    }

    /// Sends a command to the owner of its slot, and follows redirects.
    async fn send_to_owner(&self, command: &Command) -> Result<Option<Vec<u8>>, StoreError> {
        let slot = slot_of(command.first_key());
        let mut address = self.owner(slot).await?;
        let mut is_asking = false;
        for _ in 0..MAX_REDIRECTS {
            let mut connection = if is_asking {
                self.pool(&address).get().await?.with_asking()
            } else {
                self.connect_to_owner(slot, &mut address).await?
            };
            let error = match connection.execute(command).await {
                Ok(reply) => return Ok(Some(reply)),
                Err(error) => error,
            };
            // A redirect means that nothing was executed, so the command may be sent to the other
            // server.
            let Some(redirect) = Redirect::from_error(&error, &address) else {
                return Err(classify(error));
            };
            RedisCounts::add(&self.0.settings.counts.redirects, 1);
            match redirect {
                Redirect::Moved(owner) => {
                    self.set_owner(slot, &owner);
                    self.start_refresh();
                    address = owner;
                    is_asking = false;
                }
                Redirect::Ask(importer) => {
                    address = importer;
                    is_asking = true;
                }
                Redirect::TryAgain => return Ok(None),
            }
        }
        Err(unavailable("the servers of the cluster redirected the call too often"))
    }

    /// Starts a task that refreshes the map until every server in it can be reached. Does nothing
    /// if such a task is already running.
    ///
    /// Requests cannot do this: while the circuit breaker is open, there are none, and the recovery
    /// of the cluster would not be noticed.
    fn start_refresh(&self) {
        if self.0.is_refreshing.swap(true, Ordering::AcqRel) {
            return;
        }
        let inner = Arc::downgrade(&self.0);
        self.0.runtime.spawn(async move {
            let mut refreshes = 0;
            // The upgrade fails once the store has been dropped, which ends the task.
            while let Some(this) = inner.upgrade().map(Self) {
                refreshes += 1;
                let result = this.refresh().await;
                let refusal = result.as_ref().err().filter(|error| error.kind().is_configuration());
                *this.lock_refusal() = refusal.map(|error| (error.kind(), error.to_string()));
                this.0.refreshed.notify_waiters();
                let is_complete = result.is_ok() && this.can_reach_all().await;
                sleep(delay(refreshes, SHORTEST_REFRESH_DELAY, LONGEST_REFRESH_DELAY)).await;
                if is_complete {
                    this.0.is_refreshing.store(false, Ordering::Release);
                    return;
                }
            }
        });
    }

    /// Connects to every primary. Returns whether all of them were reached within
    /// [`LONGEST_REFRESH_DELAY`]. A longer wait for a failed primary would delay the next refresh.
    /// The pools continue to connect in the background.
    async fn can_reach_all(&self) -> bool {
        let mut attempts = JoinSet::new();
        for address in self.primaries() {
            let pool = self.pool(&address);
            attempts.spawn(async move { timeout(LONGEST_REFRESH_DELAY, pool.get()).await });
        }
        let results = attempts.join_all().await;
        results.into_iter().all(|result| matches!(result, Ok(Ok(_))))
    }

    /// Asks the servers for the map, a few at a time, until one replies.
    async fn refresh(&self) -> Result<(), StoreError> {
        let mut servers = self.primaries();
        servers.extend(self.0.seeds.iter().cloned());
        servers.sort_unstable();
        servers.dedup();
        // Each refresh begins with another server. One server may be cut off from the others, and
        // not know that a replica has been promoted.
        let rotation = self.0.rotation.fetch_add(1, Ordering::Relaxed) % servers.len();
        servers.rotate_left(rotation);
        let mut failure = None;
        for group in servers.chunks(CONCURRENT_MAP_QUERIES) {
            let mut queries = JoinSet::new();
            for address in group {
                let pool = self.pools(address).map;
                let host = address.host.clone();
                let longest = self.0.settings.connect_timeout;
                queries.spawn(async move {
                    let query = timeout(longest, query_slots(&pool, &host)).await;
                    query.unwrap_or_else(|_| Err(StoreError::new(FailureKind::TimedOut)))
                });
            }
            while let Some(reply) = queries.join_next().await {
                match reply {
                    Ok(Ok(slots)) => {
                        self.adopt(slots);
                        return Ok(());
                    }
                    Ok(Err(error)) if failure.is_none() || error.kind().is_configuration() => {
                        failure = Some(error);
                    }
                    _ => {}
                }
            }
        }
        Err(failure.unwrap_or_else(|| unavailable("no server of the cluster replied")))
    }

    /// Replaces the map. Drops the pools of servers that are neither in the map nor in the URLs,
    /// and creates pools for new servers.
    fn adopt(&self, slots: SlotMap) {
        let primaries = slots.servers().to_vec();
        *self.0.slots.write().unwrap_or_else(PoisonError::into_inner) = slots;
        self.lock_pools()
            .retain(|address, _| primaries.contains(address) || self.0.seeds.contains(address));
        let mut loads = Vec::new();
        for address in primaries {
            let pool = self.pool(&address);
            loads.push(Arc::downgrade(pool.load().replies()));
            // Opens a connection to a new server before the first request to it.
            self.0.runtime.spawn(async move { pool.get().await.map(drop) });
        }
        self.0.primaries.set(loads);
    }

    /// Returns the servers that hold slots.
    fn primaries(&self) -> Vec<Address> {
        self.read_slots(|slots| slots.servers().to_vec())
    }

    /// Records that `owner` holds a slot.
    fn set_owner(&self, slot: u16, owner: &Address) {
        self.0.slots.write().unwrap_or_else(PoisonError::into_inner).set_owner(slot, owner);
    }

    fn read_slots<T>(&self, read: impl FnOnce(&SlotMap) -> T) -> T {
        read(&self.0.slots.read().unwrap_or_else(PoisonError::into_inner))
    }

    fn lock_pools(&self) -> MutexGuard<'_, HashMap<Address, ServerPools>> {
        self.0.pools.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock_refusal(&self) -> MutexGuard<'_, Option<(FailureKind, String)>> {
        self.0.refusal.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the pool for script calls to a server, and creates it if there is none.
    fn pool(&self, address: &Address) -> Pool {
        self.pools(address).scripts
    }

    /// Returns the pools of a server, and creates them if there are none.
    fn pools(&self, address: &Address) -> ServerPools {
        if let Some(pools) = self.lock_pools().get(address) {
            return pools.clone();
        }
        let ClusterInner { template, settings, map_settings, runtime, primaries, .. } = &*self.0;
        let pool = |settings, load| {
            let target = PoolTarget::Server(template.with_address(address));
            Pool::new(target, settings, runtime, Arc::new(load))
        };
        let scripts = pool(settings, ServerLoad::in_group(primaries, runtime));
        let map = pool(map_settings, ServerLoad::unconnected(runtime));
        let pools = ServerPools { scripts, map };
        self.lock_pools().entry(address.clone()).or_insert(pools).clone()
    }

    /// Returns the load of the server that holds a slot.
    pub(crate) fn load_of(&self, slot: u16) -> Arc<ServerLoad> {
        let owner = self.read_slots(|slots| slots.owner(slot));
        match owner {
            Some(owner) => Arc::clone(self.pool(&owner).load()),
            None => Arc::clone(&self.0.unknown),
        }
    }

    /// Returns a connection to the owner of a slot. If another server becomes the owner in the
    /// meantime, replaces `address` and waits for a connection to that server.
    async fn connect_to_owner(
        &self,
        slot: u16,
        address: &mut Address,
    ) -> Result<Connection, StoreError> {
        loop {
            let pool = self.pool(address);
            let connected = {
                let (mut connection, mut next) =
                    (pin!(pool.get()), pin!(self.next_owner(slot, address)));
                poll_fn(|cx| match connection.as_mut().poll(cx) {
                    Poll::Ready(connection) => Poll::Ready(Ok(connection)),
                    Poll::Pending => next.as_mut().poll(cx).map(Err),
                })
                .await
            };
            match connected {
                Ok(connection) => return connection,
                Err(owner) => *address = owner,
            }
        }
    }

    /// Waits until the map names an owner of the slot other than `current`.
    ///
    /// Refreshes the map if `current` has no connection for a while. That server may have failed
    /// before any command noticed it, and its replica may be promoted while this command still
    /// waits for a connection.
    async fn next_owner(&self, slot: u16, current: &Address) -> Address {
        loop {
            let refreshed = self.0.refreshed.notified();
            if let Some(owner) = self.read_slots(|slots| slots.owner(slot))
                && owner != *current
            {
                return owner;
            }
            if timeout(SHORTEST_REFRESH_DELAY, refreshed).await.is_err() {
                self.start_refresh();
            }
        }
    }

    /// Returns the server that holds a slot. If the map names none, waits for a refresh.
    async fn owner(&self, slot: u16) -> Result<Address, StoreError> {
        let lookup = || self.read_slots(|slots| slots.owner(slot));
        if let Some(owner) = lookup() {
            return Ok(owner);
        }
        let refreshed = self.0.refreshed.notified();
        self.start_refresh();
        let _ = timeout(self.0.settings.connection_wait, refreshed).await;
        lookup().ok_or_else(|| {
            self.lock_refusal().as_ref().map_or_else(
                || unavailable("no server of the cluster is known to hold the slot"),
                |(kind, detail)| {
                    StoreError::new(*kind).with_detail(detail.clone()).before_execution()
                },
            )
        })
    }
}

/// Starts a refresh of the slot map when it is dropped, unless `cancel` is called. If a command is
/// not served, its slot may have a new owner.
struct RefreshOnDrop<'a>(&'a Cluster);

impl RefreshOnDrop<'_> {
    /// Drops this guard without a refresh.
    fn cancel(self) {
        std::mem::forget(self);
    }
}

impl Drop for RefreshOnDrop<'_> {
    fn drop(&mut self) {
        self.0.start_refresh();
    }
}

/// The reply of a server that did not execute a command.
enum Redirect {
    /// `MOVED`: another server holds the slot.
    Moved(Address),
    /// `ASK`: the slot is being migrated, and another server already has the key.
    Ask(Address),
    /// `TRYAGAIN`: the slot is being migrated, and only some of the keys have been moved so far.
    TryAgain,
}

impl Redirect {
    /// Returns the redirect of an error reply of `server`.
    fn from_error(error: &RedisError, server: &Address) -> Option<Self> {
        // An address without a host means the host of the server that replied.
        let target = || Address::parse(error.redirect_node()?.0, &server.host);
        match error.code()? {
            "MOVED" => Some(Self::Moved(target()?)),
            "ASK" => Some(Self::Ask(target()?)),
            "TRYAGAIN" => Some(Self::TryAgain),
            _ => None,
        }
    }
}

/// Asks the server on `host` for its map.
async fn query_slots(pool: &Pool, host: &str) -> Result<SlotMap, StoreError> {
    let mut connection = pool.get().await?;
    let mut command = redis::cmd("CLUSTER");
    command.arg("SLOTS");
    let reply: redis::Value = connection.query(&command).await.map_err(classify)?;
    SlotMap::parse(&reply, host).ok_or_else(|| {
        StoreError::new(FailureKind::Protocol).with_detail("unexpected reply to CLUSTER SLOTS")
    })
}

/// Waits for `time` between two attempts. A cluster does not notify its clients of changes, so the
/// client has to poll.
#[expect(clippy::disallowed_methods, reason = "there is no event to wait for")]
async fn sleep(time: Duration) {
    tokio::time::sleep(time).await;
}

/// Returns the error of a command that no server has executed.
fn unavailable(why: &'static str) -> StoreError {
    StoreError::new(FailureKind::Unavailable).with_detail(why).before_execution()
}
