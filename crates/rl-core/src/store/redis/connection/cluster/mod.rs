//! The servers of a cluster, and which of them holds a key.
//!
//! A pool for each primary. A server that does not hold a key says so before anything happens, and
//! where to go instead: the command follows. A command that may have been executed is never sent
//! again, whoever asks for it.

mod slots;

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::Duration;

use redis::RedisError;
use tokio::runtime::Handle;
use tokio::sync::Notify;
use tokio::task::JoinSet;

use super::backoff::pause;
use super::command::Command;
use super::pool::{Pool, Settings, Upstream};
use super::server::{Address, Login, Server};
use crate::model::FailureKind;
use crate::model::StoreError;
use crate::store::redis::ConnectError;
use crate::store::redis::error::classify;
use slots::{Slots, slot_of};

/// How often a command is sent elsewhere before it counts as failed.
const MAX_REDIRECTS: usize = 16;

/// How long a command waits while the keys of its subject are on their way to another server.
const ON_THE_WAY: Duration = Duration::from_millis(2);

/// How often it does: for a second. Whoever has a deadline gives up before.
const MAX_WAITS: usize = 500;

/// The shortest time between two looks at the map of the cluster.
const LOOK_AGAIN: Duration = Duration::from_millis(50);

/// The longest time between them while one of its servers cannot be reached.
const LONGEST_PAUSE: Duration = Duration::from_millis(200);

/// How many servers are asked for the map at once: one of them may be gone.
const ASKED_AT_ONCE: usize = 3;

/// A cluster. A cheap handle.
#[derive(Clone)]
pub(crate) struct Cluster(Arc<Inner>);

struct Inner {
    // How to log in, wherever.
    pattern: Server,
    seeds: Vec<Address>,
    settings: Arc<Settings>,
    runtime: Handle,
    slots: RwLock<Slots>,
    pools: Mutex<HashMap<Address, Pool>>,
    looking: AtomicBool,
    looked: Notify,
    // Why the last look at the map failed, if that lasts until somebody mends it.
    refusal: Mutex<Option<(FailureKind, String)>>,
    turn: AtomicUsize,
}

impl Cluster {
    /// Connections will live in the runtime that this is called in.
    pub(crate) fn new(
        urls: &[String],
        login: &Login,
        settings: &Arc<Settings>,
    ) -> Result<Self, ConnectError> {
        let refused = |why| Err(ConnectError::Servers { why });
        let servers: Result<Vec<_>, _> =
            urls.iter().map(|url| Server::at_url(url, login)).collect();
        let servers = servers?;
        let Some(pattern) = servers.first().cloned() else {
            return refused("no server of the cluster: expected at least one URL");
        };
        if !servers.iter().all(|server| server.is_like(&pattern)) {
            return refused("the URLs of a cluster differ in more than host and port");
        }
        if pattern.database() != 0 {
            return refused("a cluster has database 0 only");
        }
        let seeds: Option<Vec<_>> = servers.iter().map(Server::address).collect();
        let Some(seeds) = seeds else {
            return refused("a cluster is not reached by a socket file");
        };
        Ok(Self(Arc::new(Inner {
            pattern,
            seeds,
            settings: Arc::clone(settings),
            runtime: Handle::current(),
            slots: RwLock::default(),
            pools: Mutex::default(),
            looking: AtomicBool::new(false),
            looked: Notify::new(),
            refusal: Mutex::default(),
            turn: AtomicUsize::new(0),
        })))
    }

    /// Returns the name of the cluster and its first seed, for the log.
    pub(crate) fn label(&self) -> String {
        let first = self.0.seeds.first();
        let first = first.map(|Address { host, port }| format!(" {host}:{port}"));
        format!("redis cluster{}", first.unwrap_or_default())
    }

    /// Looks at the map and connects to every primary.
    pub(crate) async fn probe(&self) -> Result<(), StoreError> {
        self.look().await?;
        let mut opening = JoinSet::new();
        for address in self.read_slots(Slots::owners) {
            let pool = self.pool(&address);
            opening.spawn(async move { pool.probe().await });
        }
        let opened = opening.join_all().await;
        opened.into_iter().collect()
    }

    /// Sends a command to the server that holds its keys; returns what a script replied.
    pub(crate) async fn send(&self, command: &Command) -> Result<Vec<u8>, StoreError> {
        let slot = slot_of(command.first_key());
        let mut address = self.owner(slot).await?;
        let mut is_asking = false;
        // Whoever gives up waiting has not been served either.
        let unserved = LookAgain(self);
        let (mut redirects, mut waits) = (0, 0);
        while redirects < MAX_REDIRECTS && waits < MAX_WAITS {
            let mut connection = self.pool(&address).get().await?;
            if is_asking {
                connection = connection.asking();
            }
            let failure = match command.run(&mut connection).await {
                Ok(reply) => {
                    std::mem::forget(unserved);
                    return Ok(reply);
                }
                Err(failure) => failure,
            };
            // All of these are said before anything has happened.
            match Redirection::of(&failure, &address) {
                Some(Redirection::Moved(to)) => {
                    self.0.slots.write().unwrap_or_else(PoisonError::into_inner).set(slot, &to);
                    self.look_soon();
                    (address, is_asking, redirects) = (to, false, redirects + 1);
                }
                Some(Redirection::Ask(to)) => {
                    (address, is_asking, redirects) = (to, true, redirects + 1);
                }
                Some(Redirection::TryAgain) => {
                    sleep(ON_THE_WAY).await;
                    (redirects, waits) = (0, waits + 1);
                    (address, is_asking) = (self.owner(slot).await?, false);
                }
                None => {
                    let error = classify(failure);
                    if error.kind() == FailureKind::Corrupt {
                        // The subject's own trouble.
                        std::mem::forget(unserved);
                    }
                    return Err(error);
                }
            }
        }
        Err(unavailable(if waits < MAX_WAITS {
            "the servers of the cluster send us in circles"
        } else {
            "some keys of the subject are on another server of the cluster, for too long"
        }))
    }

    /// The server that holds a slot, as far as is known.
    async fn owner(&self, slot: u16) -> Result<Address, StoreError> {
        let known = || self.read_slots(|slots| slots.owner(slot));
        if let Some(owner) = known() {
            return Ok(owner);
        }
        let looked = self.0.looked.notified();
        self.look_soon();
        let _ = tokio::time::timeout(self.0.settings.wait, looked).await;
        known().ok_or_else(|| {
            self.lock_refusal().as_ref().map_or_else(
                || unavailable("no server of the cluster is known to hold the key"),
                |(kind, detail)| StoreError::new(*kind).with_detail(detail.clone()),
            )
        })
    }

    fn lock_refusal(&self) -> MutexGuard<'_, Option<(FailureKind, String)>> {
        self.0.refusal.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Looks at the map in the background, unless somebody does already, until every server in it
    /// can be reached. Whoever keeps requests away from a store that fails would otherwise keep it
    /// from learning that it need not fail any more.
    fn look_soon(&self) {
        if self.0.looking.swap(true, Ordering::AcqRel) {
            return;
        }
        let inner = Arc::downgrade(&self.0);
        self.0.runtime.spawn(async move {
            // The store may be gone meanwhile.
            let mut looks = 0;
            while let Some(this) = inner.upgrade().map(Self) {
                looks += 1;
                let looked = this.look().await;
                let refusal = looked.as_ref().err().filter(|error| error.kind().is_configuration());
                *this.lock_refusal() = refusal.map(|error| (error.kind(), error.to_string()));
                let is_whole = looked.is_ok() && this.reaches_all().await;
                this.0.looked.notify_waiters();
                sleep(pause(looks, LOOK_AGAIN, LONGEST_PAUSE)).await;
                if is_whole {
                    this.0.looking.store(false, Ordering::Release);
                    return;
                }
            }
        });
    }

    async fn reaches_all(&self) -> bool {
        let mut opening = JoinSet::new();
        for address in self.read_slots(Slots::owners) {
            let pool = self.pool(&address);
            let wait = self.0.settings.connect_timeout;
            opening.spawn(async move { tokio::time::timeout(wait, pool.get()).await });
        }
        let opened = opening.join_all().await;
        opened.into_iter().all(|opened| matches!(opened, Ok(Ok(_))))
    }

    /// Asks servers for the map, a few at a time, until one answers.
    async fn look(&self) -> Result<(), StoreError> {
        let mut servers = self.read_slots(Slots::owners);
        servers.extend(self.0.seeds.iter().cloned());
        servers.sort_unstable();
        servers.dedup();
        // Each time with another one first: a server may be cut off from the others.
        let turn = self.0.turn.fetch_add(1, Ordering::Relaxed) % servers.len();
        servers.rotate_left(turn);
        let mut failure = None;
        for some in servers.chunks(ASKED_AT_ONCE) {
            let mut asking = JoinSet::new();
            for address in some {
                let (pool, address) = (self.pool(address), address.clone());
                let timeout = self.0.settings.connect_timeout;
                asking.spawn(async move {
                    let asked = tokio::time::timeout(timeout, ask(&pool, &address)).await;
                    asked.unwrap_or_else(|_| Err(StoreError::new(FailureKind::TimedOut)))
                });
            }
            while let Some(answer) = asking.join_next().await {
                match answer {
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
        Err(failure.unwrap_or_else(|| unavailable("no server of the cluster answers")))
    }

    /// Takes over a map; connects to servers that are new in it, and forgets others.
    fn adopt(&self, slots: Slots) {
        let owners = slots.owners();
        *self.0.slots.write().unwrap_or_else(PoisonError::into_inner) = slots;
        self.lock_pools()
            .retain(|address, _| owners.contains(address) || self.0.seeds.contains(address));
        for address in owners {
            let is_new = !self.lock_pools().contains_key(&address);
            if is_new {
                let pool = self.pool(&address);
                self.0.runtime.spawn(async move { pool.get().await.map(drop) });
            }
        }
    }

    fn read_slots<T>(&self, read: impl FnOnce(&Slots) -> T) -> T {
        read(&self.0.slots.read().unwrap_or_else(PoisonError::into_inner))
    }

    fn lock_pools(&self) -> MutexGuard<'_, HashMap<Address, Pool>> {
        self.0.pools.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The connections to a server.
    fn pool(&self, address: &Address) -> Pool {
        if let Some(pool) = self.lock_pools().get(address) {
            return pool.clone();
        }
        let upstream = Upstream::Server(self.0.pattern.at(address));
        let pool = Pool::new(upstream, &self.0.settings, &self.0.runtime);
        self.lock_pools().entry(address.clone()).or_insert(pool).clone()
    }
}

/// Looks at the map when it is dropped: it may be that another server has taken over.
struct LookAgain<'a>(&'a Cluster);

impl Drop for LookAgain<'_> {
    fn drop(&mut self) {
        self.0.look_soon();
    }
}

/// What a server that cannot serve a command says instead.
enum Redirection {
    /// Another holds the slot.
    Moved(Address),
    /// Another has the key already, for this once.
    Ask(Address),
    /// The keys of the subject are on their way, one by one.
    TryAgain,
}

impl Redirection {
    /// `asked` is who said so: an address without a host is on the same one.
    fn of(failure: &RedisError, asked: &Address) -> Option<Self> {
        let to = || Address::parse(failure.redirect_node()?.0, &asked.host);
        match failure.code()? {
            "MOVED" => Some(Self::Moved(to()?)),
            "ASK" => Some(Self::Ask(to()?)),
            "TRYAGAIN" => Some(Self::TryAgain),
            _ => None,
        }
    }
}

/// The map, as a server knows it.
async fn ask(pool: &Pool, address: &Address) -> Result<Slots, StoreError> {
    let mut connection = pool.get().await?;
    let mut command = redis::cmd("CLUSTER");
    command.arg("SLOTS");
    let answer: redis::Value = connection.query(&command).await.map_err(classify)?;
    Slots::read(&answer, &address.host).ok_or_else(|| {
        StoreError::new(FailureKind::Protocol).with_detail("no answer to CLUSTER SLOTS")
    })
}

/// A cluster tells nobody when it has changed.
#[expect(clippy::disallowed_methods, reason = "there is no event to wait for")]
async fn sleep(time: Duration) {
    tokio::time::sleep(time).await;
}

fn unavailable(why: &'static str) -> StoreError {
    StoreError::new(FailureKind::Unavailable).with_detail(why)
}
