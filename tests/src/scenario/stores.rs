//! The stores that scenarios run on.

use std::io;
use std::sync::Arc;

use rl_core::store::redis::Layout;
use rl_core::store::{MemoryStore, RedisStore};
use rl_core::time::ManualClock;

use super::run::{Verdict, run};
use super::{Expect, Scenario, Unit, Wait};
use crate::{Bystander, RedisServer};

/// Every store and layout, and a Redis server for those that need one.
#[derive(Debug)]
pub struct Stores {
    clock: Arc<ManualClock>,
    packed: RedisStore,
    readable: RedisStore,
    server: RedisServer,
}

impl Stores {
    /// Starts the server and connects.
    ///
    /// # Errors
    ///
    /// Returns an error if there is no `redis-server` on the `PATH`, or if it does not come up.
    pub async fn start() -> io::Result<Self> {
        let server = RedisServer::try_start()?;
        let clock = Arc::new(ManualClock::default());
        let packed = RedisStore::builder(&server.url()).manual_clock(clock.clone());
        // Keys expire by the server's own time, so the windows of this layout do, too.
        let readable = RedisStore::builder(&server.url()).layout(Layout::Readable);
        Ok(Self {
            packed: packed.connect().await.map_err(io::Error::other)?,
            readable: readable.connect().await.map_err(io::Error::other)?,
            clock,
            server,
        })
    }

    /// Runs a scenario on each store, one after another.
    ///
    /// # Panics
    ///
    /// Panics if the server is lost.
    pub async fn run(&self, scenario: &Scenario) -> [(&'static str, Verdict); 3] {
        [
            ("memory", self.in_memory(scenario).await),
            ("redis-packed", self.packed(scenario).await),
            ("redis-readable", self.readable(scenario).await),
        ]
    }

    async fn in_memory(&self, scenario: &Scenario) -> Verdict {
        let store = MemoryStore::builder().clock(self.clock.clone()).build();
        run(scenario, &store, Some(&self.clock), None).await
    }

    async fn packed(&self, scenario: &Scenario) -> Verdict {
        let mut keys = self.no_keys().await;
        run(scenario, &self.packed, Some(&self.clock), Some(&mut keys)).await
    }

    async fn readable(&self, scenario: &Scenario) -> Verdict {
        if scenario.limits.is_ok()
            && let Some(why) = needs_invented_time(scenario)
        {
            return Verdict::Cannot(why.to_owned());
        }
        let mut keys = self.no_keys().await;
        run(scenario, &self.readable, None, Some(&mut keys)).await
    }

    /// Forgets what earlier scenarios left.
    async fn no_keys(&self) -> Bystander {
        let mut bystander = Bystander::new(&self.server).await;
        bystander.query::<()>("FLUSHALL").await;
        bystander
    }
}

/// Why a scenario cannot run while real time passes.
fn needs_invented_time(scenario: &Scenario) -> Option<&'static str> {
    let first = scenario.steps.first()?;
    if scenario.steps.iter().any(|step| step.at != first.at) {
        return Some("time passes in it, and windows of this layout end by the server's clock");
    }
    // A second that has just begun is rounded up to a whole one; a millisecond passes meanwhile.
    let tells_time = |expect: &Expect| {
        matches!(expect.retry_after, Some(Wait::For(1..)))
            || expect.reset_after.iter().any(|(_, reset)| *reset > 0)
    };
    if scenario.unit != Unit::Seconds && scenario.steps.iter().any(|step| tells_time(&step.expect))
    {
        return Some("it tells parts of a second, and this layout counts by the server's clock");
    }
    None
}
