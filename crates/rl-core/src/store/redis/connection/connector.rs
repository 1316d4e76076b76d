//! Opens connections: logs in, loads the scripts, and checks the eviction policy.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use super::liveness::{Generation, Liveness};
use super::multiplexed::Connection;
use super::server::Server;
use super::stream::ReplyMeter;
use crate::model::StoreError;
use crate::observe;
use crate::stats::RedisCounts;
use crate::store::ServerLoad;
use crate::store::redis::error::classify;
use crate::store::redis::scripts::Script;

/// The settings of connections: how to open them, and when they count as failed.
pub(crate) struct ConnectionSettings {
    /// The scripts that are loaded into each server.
    pub(crate) scripts: Vec<&'static Script>,
    /// The maximum number of connections in a pool.
    pub(crate) connections: u32,
    /// The longest time that a decision waits for a connection.
    pub(crate) connection_wait: Duration,
    /// The longest time that opening a connection may take.
    pub(crate) connect_timeout: Duration,
    /// The longest time without a reply before a connection counts as failed.
    ///
    /// Without this limit, the operating system would take a quarter of an hour to notice that a
    /// server has disappeared.
    pub(crate) response_timeout: Duration,
    /// Whether the warning about the eviction policy has been logged.
    pub(crate) has_warned_of_eviction: AtomicBool,
    /// The counts of the store.
    pub(crate) counts: Arc<RedisCounts>,
}

#[cfg(feature = "redis-cluster")]
impl ConnectionSettings {
    /// Returns the settings of a single connection on which no scripts are called.
    pub(super) fn without_scripts(&self) -> Self {
        let Self { connection_wait, connect_timeout, response_timeout, .. } = *self;
        Self {
            scripts: Vec::new(),
            connections: 1,
            connection_wait,
            connect_timeout,
            response_timeout,
            // The connections on which scripts are called show the eviction policy.
            has_warned_of_eviction: AtomicBool::new(true),
            counts: Arc::clone(&self.counts),
        }
    }
}

/// Opens the connections of one pool. Clones share the [`Generation`] of these connections.
#[derive(Clone)]
pub(crate) struct Connector {
    settings: Arc<ConnectionSettings>,
    /// The load of the server.
    load: Arc<ServerLoad>,
    generation: Generation,
    /// The number of the last generation in which the server's eviction policy was checked, plus
    /// one; 0 before the first check.
    inspected: Arc<AtomicU64>,
}

impl Connector {
    /// Creates a connector with a generation of its own.
    pub(super) fn new(settings: Arc<ConnectionSettings>, load: Arc<ServerLoad>) -> Self {
        Self { settings, load, generation: Generation::default(), inspected: Arc::default() }
    }

    /// Returns the load of the server.
    pub(super) const fn load(&self) -> &Arc<ServerLoad> {
        &self.load
    }

    /// Returns the longest time that opening a connection may take.
    pub(super) fn timeout(&self) -> Duration {
        self.settings.connect_timeout
    }

    /// Counts an attempt to open a connection.
    pub(super) fn count_connect(&self, is_open: bool) {
        let counts = &self.settings.counts;
        let count = if is_open { &counts.connects } else { &counts.failed_connects };
        RedisCounts::add(count, 1);
    }

    /// Returns the generation of the connections.
    #[cfg(feature = "redis-sentinel")]
    pub(super) const fn generation(&self) -> &Generation {
        &self.generation
    }

    /// Opens a connection to `server` and loads the scripts. Its replies are not counted
    /// until [`Connection::start_counting`] is called.
    pub(super) async fn open(&self, server: &Server) -> Result<Connection, StoreError> {
        let generation = self.generation.current();
        let with_server = |error: StoreError| error.at_connecting_to(&server.name());
        let meter = ReplyMeter::new(&self.load);
        let connected = server.connect(Some(Arc::clone(&meter))).await;
        let (connection, driver) = connected.map_err(with_server)?;
        let response_timeout = self.settings.response_timeout;
        let (generations, load) = (self.generation.clone(), Arc::clone(&self.load));
        let liveness = Arc::new(Liveness::new(generation, generations, load, response_timeout));
        let weak_liveness = Arc::downgrade(&liveness);
        tokio::spawn(async move {
            driver.await;
            // A server or a proxy may close an idle connection. It is marked as failed, so that the
            // pool replaces it before a decision is sent to it. If no handle is left, this process
            // has closed the connection itself, and nothing has failed.
            if let Some(liveness) = weak_liveness.upgrade() {
                liveness.fail();
            }
        });
        let mut connection = Connection::new(connection, liveness, Arc::clone(&meter));
        let loaded = connection.load_scripts(&self.settings.scripts).await;
        loaded.map_err(|error| with_server(classify(error)))?;
        // The eviction policy is checked once in each generation, because a new generation may lead
        // to another server.
        if self.inspected.fetch_max(generation + 1, Ordering::AcqRel) <= generation {
            self.warn_of_eviction(&mut connection, server).await;
        }
        Ok(connection)
    }

    /// Logs a warning, once for each store, if the server may evict counters.
    ///
    /// A client whose counters are evicted gets its whole limit again, so eviction weakens the
    /// limits.
    async fn warn_of_eviction(&self, connection: &mut Connection, server: &Server) {
        let has_warned = &self.settings.has_warned_of_eviction;
        if has_warned.load(Ordering::Relaxed) {
            return;
        }
        if let Some(policy) = eviction_policy(connection).await
            && !has_warned.swap(true, Ordering::Relaxed)
        {
            observe::can_evict(&format!("redis {}", server.name()), &policy);
        }
    }
}

/// Returns the server's eviction policy, if the server has a memory limit and the policy deletes
/// keys.
///
/// Returns `None` too if the user may run neither `INFO` nor `CONFIG`.
async fn eviction_policy(connection: &mut Connection) -> Option<String> {
    let mut info = redis::cmd("INFO");
    info.arg("memory");
    let memory: Vec<(String, String)> = match connection.query::<String>(&info).await {
        Ok(info) => {
            let fields = info.lines().filter_map(|line| line.split_once(':'));
            fields.map(|(name, value)| (name.replace('_', "-"), value.to_owned())).collect()
        }
        Err(_) => {
            let mut config = redis::cmd("CONFIG");
            config.arg("GET").arg("maxmemory*");
            connection.query(&config).await.ok()?
        }
    };
    let value = |name: &str| Some(memory.iter().find(|(field, _)| field == name)?.1.trim());
    let policy = value("maxmemory-policy")?;
    let is_limited = value("maxmemory").is_some_and(|limit| limit != "0");
    (is_limited && policy != "noeviction").then(|| policy.to_owned())
}
