//! Connections: one pool of multiplexed ones, from which every task clones what it needs and gives
//! the slot back at once, so that the commands of many requests travel together.
//!
//! The manager of `bb8-redis` sends `PING` at every check-out and never reports a connection as broken. This
//! one costs nothing at check-out, and a failed connection makes all of its age leave the pool: they
//! led to the same server. One that owes an answer for too long has failed as well.

use std::fmt;
use std::future::poll_fn;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Poll;
use std::time::Duration;

use super::failure::Failure;
use super::liveness::{Life, Waiting};
use bb8_redis::bb8;
use redis::aio::{ConnectionLike, MultiplexedConnection};
use redis::{FromRedisValue, RedisResult, Value};
use tokio::runtime::Handle;
use tokio::sync::Notify;
use tokio::time::Instant;

use super::eviction;
#[cfg(feature = "redis-sentinel")]
use super::sentinel::Sentinels;
use super::server::Server;
use crate::model::FailureKind;
use crate::model::StoreError;
use crate::store::redis::error::{self, classify};
use crate::store::redis::script::Script;

/// How connections are made, and when they count as failed.
pub(crate) struct Settings {
    pub(crate) scripts: Vec<&'static Script>,
    /// How many connections a pool holds at most.
    pub(crate) connections: u32,
    /// The longest a decision waits for a connection.
    pub(crate) wait: Duration,
    /// The longest that making a connection may take.
    pub(crate) connect_timeout: Duration,
    /// How long a connection may owe an answer before it counts as failed.
    ///
    /// A server that is gone without a word ends no connection; the operating system takes a
    /// quarter of an hour to find out.
    pub(crate) silence: Duration,
    /// That one of the servers can evict counters has been said.
    pub(crate) has_warned_of_eviction: AtomicBool,
}

/// Makes connections for the pool. Clones share what they know.
#[derive(Clone)]
pub(crate) struct Manager {
    upstream: Upstream,
    settings: Arc<Settings>,
    // Where connections live. A request may come from a thread with a runtime of its own, as in
    // actix-web; when that thread is busy, nobody else should have to wait for it.
    runtime: Handle,
    // Raised when a connection fails; connections made before that are not handed out again.
    generation: Arc<AtomicU64>,
    // The last age of which a server has been looked at, and one.
    looked_at: Arc<AtomicU64>,
    // Why the last attempt to connect failed, as long as none succeeds: the pool itself only says that it
    // waited too long.
    last_failure: Arc<Mutex<Option<Failure>>>,
    // Told of every attempt that fails.
    failed: Arc<Notify>,
}

/// What a pool's connections lead to.
#[derive(Clone)]
pub(crate) enum Upstream {
    Server(Server),
    #[cfg(feature = "redis-sentinel")]
    Sentinels(Arc<Sentinels>),
}

impl Manager {
    fn new(upstream: Upstream, settings: Arc<Settings>, runtime: Handle) -> Self {
        let (generation, looked_at, last_failure, failed) = Default::default();
        Self { upstream, settings, runtime, generation, looked_at, last_failure, failed }
    }

    /// A new connection that knows the scripts.
    async fn open(&self) -> Result<Connection, StoreError> {
        let patience = self.settings.connect_timeout;
        let opened = tokio::time::timeout(patience, async {
            match &self.upstream {
                Upstream::Server(server) => self.open_to(server).await,
                #[cfg(feature = "redis-sentinel")]
                Upstream::Sentinels(sentinels) => sentinels.connect(self).await,
            }
        });
        let late = || {
            let to = match &self.upstream {
                Upstream::Server(server) => format!(" to {}", server.name()),
                #[cfg(feature = "redis-sentinel")]
                Upstream::Sentinels(_) => String::new(),
            };
            let detail = format!("no connection{to} within {patience:?}");
            StoreError::new(FailureKind::TimedOut).with_detail(detail)
        };
        opened.await.unwrap_or_else(|_| Err(late()))
    }

    /// A new connection to this server.
    pub(crate) async fn open_to(&self, server: &Server) -> Result<Connection, StoreError> {
        let generation = self.generation.load(Ordering::Acquire);
        let located = |error: StoreError| error.at_connecting_to(&server.name());
        let connection = server.connect().await.map_err(located)?;
        let silence = self.settings.silence;
        let life = Arc::new(Life::new(generation, Arc::clone(&self.generation), silence));
        let mut connection = Connection {
            connection,
            life,
            #[cfg(feature = "redis-cluster")]
            is_asking: false,
        };
        let greeted = connection.greet(&self.settings.scripts).await.map_err(classify);
        greeted.map_err(located)?;
        // The first of each age, which may lead to another server than the last.
        if self.looked_at.fetch_max(generation + 1, Ordering::AcqRel) <= generation {
            eviction::warn_of(&mut connection, server, &self.settings.has_warned_of_eviction).await;
        }
        Ok(connection)
    }

    /// The age of the connections: who raises it ends them all.
    #[cfg(feature = "redis-sentinel")]
    pub(crate) fn generation(&self) -> Arc<AtomicU64> {
        Arc::clone(&self.generation)
    }

    /// Why the last attempt to connect failed, if it did. All who wait learn of it: to the one who
    /// did not, a wrong password would look like an outage, which may open the gate.
    pub(crate) fn last_failure(&self) -> Option<StoreError> {
        self.lock_failure().as_ref().map(Failure::error)
    }

    /// That the server does not let us in: nobody has to wait for what it has just refused.
    async fn refusal(&self) -> StoreError {
        loop {
            // Registered before the look, so that nothing is missed in between.
            let failed = self.failed.notified();
            let refusal = self.lock_failure().as_ref().and_then(Failure::refusal);
            match refusal {
                Some(refusal) => return refusal,
                None => failed.await,
            }
        }
    }

    /// Waits until the next attempt is due, which is at once unless the last one failed.
    async fn pause(&self) {
        loop {
            let next = self.lock_failure().as_ref().map(Failure::next);
            match next {
                // Another attempt may fail meanwhile.
                Some(next) if next > Instant::now() => tokio::time::sleep_until(next).await,
                _ => return,
            }
        }
    }

    fn lock_failure(&self) -> MutexGuard<'_, Option<Failure>> {
        self.last_failure.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl bb8::ManageConnection for Manager {
    type Connection = Connection;
    type Error = StoreError;

    async fn connect(&self) -> Result<Connection, StoreError> {
        self.pause().await;
        let this = self.clone();
        let opened = match self.runtime.spawn(async move { this.open().await }).await {
            Ok(opened) => opened,
            // The runtime in which the store was made has ended.
            Err(_) => Err(StoreError::new(FailureKind::Unavailable)),
        };
        {
            let mut failure = self.lock_failure();
            *failure = opened.as_ref().err().map(|error| Failure::after(failure.as_ref(), error));
        }
        self.failed.notify_waiters();
        opened
    }

    async fn is_valid(&self, connection: &mut Connection) -> Result<(), StoreError> {
        if connection.is_stale() { Err(StoreError::new(FailureKind::Unavailable)) } else { Ok(()) }
    }

    fn has_broken(&self, connection: &mut Connection) -> bool {
        connection.is_stale()
    }
}

// Shows nothing of the servers: what leads there may hold a password.
impl fmt::Debug for Manager {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Manager").finish_non_exhaustive()
    }
}

/// A handle on a connection that many tasks share.
#[derive(Clone)]
pub(crate) struct Connection {
    connection: MultiplexedConnection,
    life: Arc<Life>,
    #[cfg(feature = "redis-cluster")]
    is_asking: bool,
}

impl Connection {
    /// Sends one command and waits for its reply.
    pub(crate) async fn query<T: FromRedisValue>(
        &mut self,
        command: &redis::Cmd,
    ) -> RedisResult<T> {
        let life = Arc::clone(&self.life);
        let waiting = Waiting::begin(&life);
        let reply = self.exchange(command).await;
        life.heard();
        drop(waiting);
        let reply = reply.and_then(Value::extract_error);
        if let Err(error) = &reply
            && (error.is_unrecoverable_error() || error::is_demoted(error))
        {
            life.fail();
        }
        Ok(T::from_redis_value(reply?)?)
    }

    async fn exchange(&mut self, command: &redis::Cmd) -> RedisResult<Value> {
        #[cfg(feature = "redis-cluster")]
        if self.is_asking {
            let mut pair = redis::pipe();
            pair.cmd("ASKING").add_command(command.clone());
            // Of the two replies, the second.
            let mut replies = self.connection.req_packed_commands(&pair, 1, 1).await?;
            return Ok(replies.pop().unwrap_or(Value::Nil));
        }
        self.connection.req_packed_command(command).await
    }

    /// The same connection, for keys that another server still holds by the map.
    #[cfg(feature = "redis-cluster")]
    pub(crate) fn asking(mut self) -> Self {
        self.is_asking = true;
        self
    }

    /// Whether the server says that it is a primary. One that does not say is believed.
    #[cfg(feature = "redis-sentinel")]
    pub(crate) async fn is_primary(&mut self) -> bool {
        // Needs no permission beyond what every client needs. Redis 5 does not know it.
        let hello: RedisResult<Vec<Value>> = self.query(&redis::cmd("HELLO")).await;
        let role = |words: Vec<Value>| {
            let words: Vec<Option<String>> =
                words.into_iter().map(|word| redis::from_redis_value(word).ok()).collect();
            let place = words.iter().position(|word| word.as_deref() == Some("role"))?;
            words.get(place + 1)?.clone()
        };
        hello.ok().and_then(role).is_none_or(|role| role == "master")
    }

    /// Loads the scripts.
    async fn greet(&mut self, scripts: &[&'static Script]) -> RedisResult<()> {
        // A user who may not do this can run scripts that an operator has loaded.
        let unless_forbidden = |answer: RedisResult<()>| match answer {
            Err(error) if !error::is_forbidden(&error) => Err(error),
            _ => Ok(()),
        };
        // First, because a server that has not let us in closes the connection on a long command,
        // without saying why.
        unless_forbidden(self.query(&redis::cmd("PING")).await)?;
        let mut load = redis::pipe();
        for script in scripts {
            load.cmd("SCRIPT").arg("LOAD").arg(script.text()).ignore();
        }
        unless_forbidden(load.query_async(&mut self.connection).await)
    }

    fn is_stale(&self) -> bool {
        self.life.is_stale()
    }
}

/// A pool that fails early: waiting for a connection is part of the decision's deadline.
#[derive(Clone)]
pub(crate) struct Pool(Arc<PoolInner>);

struct PoolInner {
    pool: bb8::Pool<Manager>,
    manager: Manager,
}

impl Pool {
    /// Connections will live in this runtime.
    pub(crate) fn new(upstream: Upstream, settings: &Arc<Settings>, runtime: &Handle) -> Self {
        let manager = Manager::new(upstream, Arc::clone(settings), runtime.clone());
        let pool = bb8::Pool::builder()
            .max_size(settings.connections)
            .connection_timeout(settings.wait)
            // Multiplexed connections are used all the time, and replaced when they fail.
            .idle_timeout(None)
            .max_lifetime(None)
            .error_sink(Box::new(bb8::NopErrorSink))
            .build_unchecked(manager.clone());
        Self(Arc::new(PoolInner { pool, manager }))
    }

    /// A handle on a connection; the slot in the pool is given back already.
    pub(crate) async fn get(&self) -> Result<Connection, StoreError> {
        let PoolInner { pool, manager } = &*self.0;
        let (mut connection, mut refusal) = (pin!(pool.get()), pin!(manager.refusal()));
        let connection = poll_fn(|cx| {
            // The pool connects in tasks of the runtime it is polled in, and waits for ever for those
            // that end with it.
            let _home = manager.runtime.enter();
            match connection.as_mut().poll(cx) {
                Poll::Ready(connection) => Poll::Ready(Ok(connection)),
                // Asked second: where there is no connection, one is being made by now.
                Poll::Pending => refusal.as_mut().poll(cx).map(Err),
            }
        });
        match connection.await? {
            Ok(connection) => Ok(connection.clone()),
            Err(bb8::RunError::User(error)) => Err(error),
            Err(bb8::RunError::TimedOut) => Err(manager.last_failure().unwrap_or_else(|| {
                let detail = "no connection was free or made in time";
                StoreError::new(FailureKind::TimedOut).with_detail(detail)
            })),
        }
    }

    /// Tries once to connect, outside the pool.
    pub(crate) async fn probe(&self) -> Result<(), StoreError> {
        self.0.pool.dedicated_connection().await.map(drop)
    }
}
