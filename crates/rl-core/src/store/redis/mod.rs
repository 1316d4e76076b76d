//! Counters on Redis, shared by every instance of a service.
//!
//! * **One script call for each decision**, one round trip: the script reads the server's clock,
//!   evaluates all limits and charges all of them or none. Clients' clocks do not matter.
//! * **Two layouts**. [`Layout::Packed`] keeps all limits of a subject in one key, and the entries
//!   of each sliding log or concurrency limit in another.
//!   [`Layout::Readable`] keeps a decimal counter for each named period, for people with
//!   `redis-cli` and for services that follow the same format.
//! * **Every key has an expiry**, on every path. A counter that lost its expiry is given one by the
//!   next request that would charge it; [`RedisStore::healed`] counts what was found.
//! * **Connections** are multiplexed: the commands of many requests travel together. A connection
//!   that fails leaves the pool at once. A command that may have been executed is never sent again.
//! * **One server, sentinels or a cluster**, over TLS or not: [`RedisStore::connect`],
//!   `RedisStore::sentinel`, `RedisStore::cluster`, each with a feature of its own.
//! * A service **starts when Redis is down** and enforces its limits when Redis comes up.
//! * Connections live in the tokio runtime in which the store is made, and work while it does: make
//!   it in the main function, not in a worker.
//!
//! `crates/rl-core/docs/REDIS.md` describes connections, keys, scripts and permissions.
//!
//! # Example
//!
//! ```no_run
//! use rl_core::{Limit, RateLimiter, RedisStore};
//!
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let store = RedisStore::connect("redis://127.0.0.1/").await?;
//! let limiter = RateLimiter::builder()
//!     .limit(Limit::per_second(10))
//!     .limit(Limit::per_day(5_000))
//!     .store(store)
//!     .build()?;
//! # Ok(()) }
//! ```

mod backoff;
mod builder;
#[cfg(feature = "redis-cluster")]
mod cluster;
mod codec;
mod command;
mod connect_error;
mod connection;
mod error;
mod eviction;
mod keyspace;
mod layout;
mod route;
mod script;
#[cfg(feature = "redis-sentinel")]
mod sentinel;
mod server;
#[cfg(feature = "redis-cluster")]
mod slots;
#[cfg(feature = "redis-tls")]
mod tls;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

pub use builder::RedisStoreBuilder;
use builder::Servers;
use codec::Reply;
use command::{Command, Commands};
pub use connect_error::ConnectError;
pub use layout::Layout;
use route::Route;
pub use script::Script;
#[cfg(feature = "redis-tls")]
#[cfg_attr(docsrs, doc(cfg(feature = "redis-tls")))]
pub use tls::Tls;

use super::{Charge, Refund, Renewal, Reset, Store, StoreError, StoreFuture};
use crate::model::Outcomes;
use crate::time::Timestamp;
#[cfg(feature = "conformance")]
use crate::time::{Clock, ManualClock};
use crate::{Decision, Eventual, algorithm, observe};

/// Counters on Redis. The [module](self) says what it guarantees.
///
/// A cheap handle: clones share the connections.
#[derive(Clone)]
pub struct RedisStore {
    inner: Arc<Inner>,
}

struct Inner {
    route: Route,
    commands: Commands,
    healed: AtomicU64,
    #[cfg(feature = "conformance")]
    clock: Option<Arc<ManualClock>>,
}

impl RedisStore {
    /// A store on the server at `url`: `redis://[user:password@]host[:port][/database]`, or with
    /// `rediss://`, over TLS (feature `redis-tls`).
    ///
    /// A server that cannot be reached is no error: the limiter's failure policy stands in until
    /// it comes up.
    ///
    /// # Errors
    ///
    /// Returns an error if `url` is not such a URL, or if the server refuses the credentials.
    pub async fn connect(url: &str) -> Result<Self, ConnectError> {
        Self::builder(url).connect().await
    }

    /// A store on the server at `url`, made step by step.
    pub fn builder(url: &str) -> RedisStoreBuilder {
        RedisStoreBuilder::new(Servers::One(url.to_owned()))
    }

    /// A store on the primary that the sentinels at these URLs call `name`, made step by step.
    ///
    /// Connections follow a fail-over by themselves. The URLs say how to log in to the sentinels,
    /// [`user`](RedisStoreBuilder::user) and [`password`](RedisStoreBuilder::password) how to log in
    /// to the servers. With `rediss://`, the servers are reached over TLS as well.
    ///
    /// ```no_run
    /// # use rl_core::RedisStore;
    /// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// let sentinels = ["redis://10.0.0.1:26379/", "redis://10.0.0.2:26379/", "redis://10.0.0.3:26379/"];
    /// let store = RedisStore::sentinel(sentinels, "limits").password("of the servers").connect().await?;
    /// # Ok(()) }
    /// ```
    #[cfg(feature = "redis-sentinel")]
    #[cfg_attr(docsrs, doc(cfg(feature = "redis-sentinel")))]
    pub fn sentinel<U: AsRef<str>>(
        urls: impl IntoIterator<Item = U>,
        name: &str,
    ) -> RedisStoreBuilder {
        let urls = urls.into_iter().map(|url| url.as_ref().to_owned()).collect();
        RedisStoreBuilder::new(Servers::Sentinels { urls, name: name.to_owned() })
    }

    /// A store on the cluster that has servers at these URLs, made step by step. The others are
    /// found by asking these.
    ///
    /// All keys of a subject are on one server; subjects spread over all. Commands follow slots that
    /// move to other servers, and replicas that are promoted.
    ///
    /// ```no_run
    /// # use rl_core::RedisStore;
    /// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// let store = RedisStore::cluster(["redis://10.0.0.1/", "redis://10.0.0.2/"]).connect().await?;
    /// # Ok(()) }
    /// ```
    #[cfg(feature = "redis-cluster")]
    #[cfg_attr(docsrs, doc(cfg(feature = "redis-cluster")))]
    pub fn cluster<U: AsRef<str>>(urls: impl IntoIterator<Item = U>) -> RedisStoreBuilder {
        let urls = urls.into_iter().map(|url| url.as_ref().to_owned()).collect();
        RedisStoreBuilder::new(Servers::Cluster(urls))
    }

    /// The scripts of a layout, for operators who load them ahead of the service.
    pub fn scripts(layout: Layout) -> impl Iterator<Item = &'static Script> {
        script::of(layout).into_iter()
    }

    /// How many counters without expiry were found and given one since the store was made.
    ///
    /// In the packed layout a request that passes writes a new expiry in any case; only a denial
    /// looks whether there was one.
    #[must_use]
    pub fn healed(&self) -> u64 {
        self.inner.healed.load(Ordering::Relaxed)
    }

    /// Sends a command; returns what a script replied.
    async fn send(&self, command: Command) -> Result<Vec<u8>, StoreError> {
        #[cfg(feature = "conformance")]
        let command = match &self.inner.clock {
            Some(clock) => command.at(clock.now()),
            None => command,
        };
        self.inner.route.send(&command).await
    }

    /// Sends what has no answer but that it was done.
    fn carry_out(&self, command: Result<Command, StoreError>) -> StoreFuture<()> {
        match command {
            Ok(command) => {
                let this = self.clone();
                Eventual::later(async move { this.send(command).await.map(drop) })
            }
            Err(error) => Eventual::ready(Err(error)),
        }
    }
}

impl Store for RedisStore {
    fn decide(&self, charge: Charge<'_>) -> StoreFuture<Decision> {
        let command = match self.inner.commands.decide(&charge) {
            Ok(command) => command,
            Err(error) => return Eventual::ready(Err(error)),
        };
        let (this, policy, mode, cost) =
            (self.clone(), charge.policy.clone(), charge.mode, charge.cost);
        Eventual::later(async move {
            let reply = this.send(command).await?;
            let Reply { healed, uncharged, taken, now, states } = Reply::read(&reply, &policy)?;
            if healed > 0 {
                this.inner.healed.fetch_add(healed, Ordering::Relaxed);
                observe::healed(healed);
            }
            let limits = policy.limits().iter().zip(&states);
            let outcomes = limits.enumerate().map(|(place, (limit, state))| {
                let needed = algorithm::needed(mode, cost, taken, uncharged.contains(place));
                algorithm::replied_outcome(limit.limit(), state, now, needed)
            });
            let outcomes: Outcomes = outcomes.collect();
            Ok(Decision::of(policy, cost, taken, now, outcomes))
        })
    }

    fn refund(&self, refund: Refund<'_>) -> StoreFuture<()> {
        if refund.is_empty() {
            return Eventual::ready(Ok(()));
        }
        self.carry_out(self.inner.commands.refund(&refund))
    }

    fn renew(&self, renewal: Renewal<'_>) -> StoreFuture<Option<Timestamp>> {
        if renewal.is_empty() {
            return Eventual::ready(Ok(Some(renewal.charged)));
        }
        match self.inner.commands.renew(&renewal) {
            Ok(command) => {
                let this = self.clone();
                Eventual::later(async move { codec::read_renewed(&this.send(command).await?) })
            }
            Err(error) => Eventual::ready(Err(error)),
        }
    }

    fn reset(&self, reset: Reset<'_>) -> StoreFuture<()> {
        self.carry_out(self.inner.commands.reset(&reset))
    }
}

impl fmt::Debug for RedisStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisStore")
            .field("layout", &self.inner.commands.layout)
            .finish_non_exhaustive()
    }
}
