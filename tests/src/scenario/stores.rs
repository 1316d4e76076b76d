//! The stores on which scenarios run.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use rl_core::store::Layout;
use rl_core::time::ManualClock;
use rl_core::{MemoryStore, RedisStore};

use super::Scenario;
use super::run::{Verdict, run};
use crate::{Bystander, RedisCluster, RedisServer};

/// Every store and layout, with a Redis server for those that need one.
#[derive(Debug)]
pub struct Stores {
    clock: Arc<ManualClock>,
    packed: RedisStore,
    readable: RedisStore,
    server: RedisServer,
    cluster: Option<(RedisStore, RedisCluster)>,
}

impl Stores {
    /// Starts the server and connects.
    ///
    /// # Errors
    ///
    /// Returns an error if `redis-server` is not on the `PATH`, or does not start.
    pub async fn start() -> io::Result<Self> {
        let server = RedisServer::try_start()?;
        let clock = Arc::new(ManualClock::default());
        let packed = server.patient_store().manual_clock(clock.clone());
        let readable = server.patient_store().layout(Layout::Readable);
        let readable = readable.manual_clock(clock.clone());
        Ok(Self {
            packed: packed.connect().await.map_err(io::Error::other)?,
            readable: readable.connect().await.map_err(io::Error::other)?,
            clock,
            server,
            cluster: None,
        })
    }

    /// Starts a cluster of three primaries in addition. Each subject has its own slot on it.
    ///
    /// # Errors
    ///
    /// Returns an error if the servers do not start.
    pub async fn with_cluster(mut self) -> io::Result<Self> {
        let cluster = RedisCluster::start().await;
        // On a busy machine, connections and the status of parts take longer than the defaults.
        let patience = Duration::from_secs(60);
        let store = RedisStore::cluster(cluster.urls()).connection_wait(patience);
        let store = store.response_timeout(patience).status_wait(patience);
        let store = store.manual_clock(self.clock.clone()).connect().await;
        self.cluster = Some((store.map_err(io::Error::other)?, cluster));
        Ok(self)
    }

    /// Runs a scenario on each store that supports it, one after another.
    ///
    /// The readable layout supports only fixed windows. It does not store the time of the last
    /// change. If the clock steps back, its windows therefore last longer.
    ///
    /// # Panics
    ///
    /// Panics if the connection to the server is lost.
    pub async fn run(&self, scenario: &Scenario) -> Vec<(&'static str, Verdict)> {
        let verdicts = [
            ("memory", self.in_memory(scenario).await),
            ("redis-packed", self.packed(scenario).await),
            ("redis-readable", self.readable(scenario).await),
            ("redis-cluster", self.on_cluster(scenario).await),
        ];
        let verdicts = verdicts.into_iter();
        verdicts.filter_map(|(store, verdict)| Some((store, verdict?))).collect()
    }

    async fn in_memory(&self, scenario: &Scenario) -> Option<Verdict> {
        let store = MemoryStore::builder().clock(self.clock.clone()).build();
        run(scenario, &store, &self.clock, None).await
    }

    async fn packed(&self, scenario: &Scenario) -> Option<Verdict> {
        let mut keys = self.no_keys().await;
        run(scenario, &self.packed, &self.clock, Some(&mut keys)).await
    }

    async fn readable(&self, scenario: &Scenario) -> Option<Verdict> {
        if !scenario.steps.is_sorted_by_key(|step| step.at) {
            return None;
        }
        let mut keys = self.no_keys().await;
        run(scenario, &self.readable, &self.clock, Some(&mut keys)).await
    }

    async fn on_cluster(&self, scenario: &Scenario) -> Option<Verdict> {
        let (store, cluster) = self.cluster.as_ref()?;
        for server in &cluster.servers[..3] {
            server.query::<()>("FLUSHALL").await;
        }
        run(scenario, store, &self.clock, None).await
    }

    /// Deletes the keys of earlier scenarios.
    async fn no_keys(&self) -> Bystander {
        let mut bystander = Bystander::new(&self.server).await;
        bystander.query::<()>("FLUSHALL").await;
        bystander
    }
}
