//! Who is compared: all through redis-rs, over one multiplexed connection each, each in a database
//! of its own. Keys and subjects are built beforehand; what is done with them is done in each call.

use std::error::Error;
use std::time::Duration;

use redis::Value;
use redis::aio::MultiplexedConnection;
use rl_core::limiter::OnFailure;
use rl_core::store::redis::{Layout, RedisStoreBuilder};
use rl_core::store::{DecideRequest, Mode, Namespace, Part, Refund, RefundOf, Store};
use rl_core::{
    Cost, Decision, Limit, MaybeReady, Period, Policy, RateLimiter, RedisStore, Subject,
};

use super::peers::Peer;
use super::server::Server;

/// How many subjects there are.
pub(super) const SUBJECTS: usize = 10_000;

/// What decides, or does the least that something has to.
pub(super) struct Contender {
    pub(super) name: &'static str,
    /// What the server calls the command that does it.
    pub(super) command: &'static str,
    way: Way,
    /// Whom it is asked for, one after the other; all in turn, if empty.
    order: Vec<u32>,
}

enum Way {
    Command(Command),
    Store(Stored),
    Limiter(RateLimiter, Vec<Subject>),
    Peer(Peer),
}

/// A command that is the same for all subjects but for its keys.
struct Command {
    connection: MultiplexedConnection,
    head: Vec<String>,
    keys: Vec<Vec<String>>,
    tail: Vec<u64>,
}

/// Our store, and what it is asked.
struct Stored {
    store: RedisStore,
    namespace: Namespace,
    policy: Policy,
    subjects: Vec<Subject>,
    /// Whether a request that passes frees its place.
    frees: bool,
}

impl Contender {
    /// `INCR` of one key: no limit, no window, no expiry.
    pub(super) async fn incr(server: &Server, database: usize) -> Result<Self, Box<dyn Error>> {
        let command = Command {
            connection: server.connect(database).await?,
            head: vec!["INCR".to_owned()],
            keys: keys(&[""], SUBJECTS),
            tail: Vec::new(),
        };
        Ok(Self { name: "INCR", command: "incr", way: Way::Command(command), order: Vec::new() })
    }

    /// A command that does nothing: the round trip alone.
    pub(super) async fn ping(server: &Server) -> Result<Self, Box<dyn Error>> {
        let command = Command {
            connection: server.connect(0).await?,
            head: vec!["PING".to_owned()],
            keys: vec![Vec::new(); SUBJECTS],
            tail: Vec::new(),
        };
        Ok(Self { name: "PING", command: "ping", way: Way::Command(command), order: Vec::new() })
    }

    /// One limit in a script, by the generic cell rate algorithm.
    pub(super) async fn gcra(
        server: &Server,
        database: usize,
        max: u32,
    ) -> Result<Self, Box<dyn Error>> {
        // So much in a month, and at once.
        let pause = 1_000 * Period::MONTH.as_millis() / u64::from(max);
        let (text, tail) = (include_str!("gcra.lua"), vec![pause, pause * u64::from(max)]);
        let command = Command::script(server, database, text, keys(&[""], SUBJECTS), tail).await?;
        Ok(Self {
            name: "GCRA script, one limit",
            command: "evalsha",
            way: Way::Command(command),
            order: Vec::new(),
        })
    }

    /// A library of others, or what it does.
    pub(super) fn peer(name: &'static str, command: &'static str, peer: Peer) -> Self {
        Self { name, command, way: Way::Peer(peer), order: Vec::new() }
    }

    /// The least that a script costs.
    pub(super) async fn return_1(server: &Server, database: usize) -> Result<Self, Box<dyn Error>> {
        let keys = keys(&[""], SUBJECTS);
        let command = Command::script(server, database, "return 1", keys, Vec::new()).await?;
        Ok(Self {
            name: "EVALSHA return 1",
            command: "evalsha",
            way: Way::Command(command),
            order: Vec::new(),
        })
    }

    /// Six periods, at most `max` in each, the usual way.
    pub(super) async fn six_keys(
        server: &Server,
        database: usize,
        max: u32,
    ) -> Result<Self, Box<dyn Error>> {
        Self::a_key_each(server, database, max, &Period::NAMED.map(Period::as_millis)).await
    }

    /// The usual way, of as many limits as there are periods, in ms.
    pub(super) async fn a_key_each(
        server: &Server,
        database: usize,
        max: u32,
        periods: &[u64],
    ) -> Result<Self, Box<dyn Error>> {
        let text = include_str!("six_keys.lua");
        let suffixes: Vec<String> = (0..periods.len()).map(|n| format!(":limit-{n}")).collect();
        let keys = keys(&suffixes.iter().map(String::as_str).collect::<Vec<_>>(), SUBJECTS);
        let tail = [&vec![max.into(); periods.len()], periods].concat();
        let command = Command::script(server, database, text, keys, tail).await?;
        Ok(Self {
            name: "six-key script",
            command: "evalsha",
            way: Way::Command(command),
            order: Vec::new(),
        })
    }

    /// Our store, without the limiter around it.
    pub(super) async fn store(
        server: &Server,
        database: usize,
        layout: Layout,
        max: u32,
    ) -> Result<Self, Box<dyn Error>> {
        let name = match layout {
            Layout::Packed => "ours, packed",
            Layout::Readable => "ours, readable",
        };
        let policy = Policy::new(limits(max)?)?;
        Self::policy(server, database, layout, name, policy).await
    }

    /// Our store with limits of any kind, without the limiter around it.
    pub(super) async fn policy(
        server: &Server,
        database: usize,
        layout: Layout,
        name: &'static str,
        policy: Policy,
    ) -> Result<Self, Box<dyn Error>> {
        Ok(Self::of_store(connect(server, database, layout).await?, name, policy))
    }

    /// Our store, which asks the server for denials that it knows as well.
    pub(super) async fn asking(
        server: &Server,
        database: usize,
        name: &'static str,
        policy: Policy,
    ) -> Result<Self, Box<dyn Error>> {
        let store = patient(RedisStore::builder(&server.url(database))).local_denial(false);
        Ok(Self::of_store(store.connect().await?, name, policy))
    }

    /// Our store, made elsewhere.
    pub(super) fn of_store(store: RedisStore, name: &'static str, policy: Policy) -> Self {
        let (namespace, subjects) = (Namespace::default(), subjects(SUBJECTS));
        let way = Way::Store(Stored { store, namespace, policy, subjects, frees: false });
        Self { name, command: "evalsha", way, order: Vec::new() }
    }

    /// The same, and a request that passes frees its place under concurrency limits.
    pub(super) fn freeing(mut self) -> Self {
        if let Way::Store(stored) = &mut self.way {
            stored.frees = true;
        }
        self
    }

    /// The same for so many subjects, who are asked for in this order.
    pub(super) fn visiting(mut self, subjects: usize, order: Vec<u32>) -> Self {
        match &mut self.way {
            Way::Command(command) => command.keys = keys(&[""], subjects),
            Way::Store(stored) => stored.subjects = self::subjects(subjects),
            Way::Limiter(..) | Way::Peer(..) => unreachable!("nobody asks them for more"),
        }
        Self { order, ..self }
    }

    /// All of ours, as an application calls it.
    pub(super) async fn limiter(
        server: &Server,
        database: usize,
        max: u32,
    ) -> Result<Self, Box<dyn Error>> {
        let mut limiter = RateLimiter::builder()
            .store(connect(server, database, Layout::Packed).await?)
            // What is measured is the price, on a machine that may stall.
            .deadline(Duration::from_secs(20))
            .on_store_failure(OnFailure::Reject);
        for limit in limits(max)? {
            limiter = limiter.limit(limit);
        }
        let way = Way::Limiter(limiter.build()?, subjects(SUBJECTS));
        Ok(Self { name: "ours, packed, in a limiter", command: "evalsha", way, order: Vec::new() })
    }

    /// Whether the subject with this number passes.
    pub(super) async fn admits(&self, subject: usize) -> bool {
        let subject = self.order.get(subject).map_or(subject, |number| *number as usize);
        match &self.way {
            Way::Command(command) => command.send(subject).await,
            Way::Peer(peer) => peer.admits(subject).await,
            Way::Limiter(limiter, subjects) => match limiter.check(&subjects[subject], 1) {
                MaybeReady::Ready(Some(ref decision)) => is_allowed(decision),
                later => is_allowed(&later.await),
            },
            Way::Store(stored) => stored.admits(&stored.subjects[subject]).await,
        }
    }
}

impl Stored {
    async fn admits(&self, subject: &Subject) -> bool {
        let Self { store, namespace, policy, .. } = self;
        let (mode, cost) = (Mode::Check, Cost::ONE);
        let parts = [Part::new(subject, policy, cost)];
        let request = DecideRequest::new(namespace, &parts, mode);
        // What is there at once is read where it is, as in memory: whoever awaits it moves it four times.
        let mut answer = store.decide(request);
        if let MaybeReady::Boxed(later) = &mut answer {
            answer = MaybeReady::ready(later.await);
        }
        let MaybeReady::Ready(Some(Ok(decision))) = &answer else { panic!("the server is up") };
        if self.frees && decision.is_allowed() {
            let (charged, units) = (decision.at(), decision.granted());
            let (of, uncharged) = (RefundOf::Permits, decision.uncharged());
            let refund = Refund { namespace, subject, policy, charged, units, of, uncharged };
            store.refund(refund).await.expect("the server is up");
        }
        is_allowed(decision)
    }
}

/// Whether a decision of the store's lets pass.
fn is_allowed(decision: &Decision) -> bool {
    assert!(decision.policy().is_some(), "{:?}: nobody stands in for the store", decision.origin());
    decision.is_allowed()
}

impl Command {
    async fn script(
        server: &Server,
        database: usize,
        text: &str,
        keys: Vec<Vec<String>>,
        tail: Vec<u64>,
    ) -> Result<Self, Box<dyn Error>> {
        let mut connection = server.connect(database).await?;
        let mut load = redis::cmd("SCRIPT");
        let sha: String = load.arg("LOAD").arg(text).query_async(&mut connection).await?;
        let count = keys.first().map_or(0, Vec::len).to_string();
        Ok(Self { connection, head: vec!["EVALSHA".to_owned(), sha, count], keys, tail })
    }

    async fn send(&self, subject: usize) -> bool {
        let mut command = redis::Cmd::new();
        command.arg(&self.head).arg(&self.keys[subject]).arg(&self.tail);
        let reply: Value =
            command.query_async(&mut self.connection.clone()).await.expect("the server is up");
        match reply {
            Value::Array(numbers) => numbers.first() == Some(&Value::Int(1)),
            number => number != Value::Int(0),
        }
    }
}

fn keys(suffixes: &[&str], subjects: usize) -> Vec<Vec<String>> {
    let key = |n, suffix: &&str| format!("rl:{{{}}}{suffix}", id(n));
    let keys = |n| suffixes.iter().map(|suffix| key(n, suffix)).collect();
    (0..subjects).map(keys).collect()
}

fn subjects(count: usize) -> Vec<Subject> {
    (0..count).map(|n| Subject::consumer(&id(n))).collect()
}

/// What the subject with this number is called, in every key.
pub(super) fn id(n: usize) -> String {
    format!("consumer-{n:08}")
}

pub(super) fn limits(max: u32) -> Result<Vec<Limit>, Box<dyn Error>> {
    let limit = |period| Ok(Limit::new(max.into(), period)?);
    Period::NAMED.into_iter().map(limit).collect()
}

async fn connect(
    server: &Server,
    database: usize,
    layout: Layout,
) -> Result<RedisStore, Box<dyn Error>> {
    Ok(patient(RedisStore::builder(&server.url(database)).layout(layout)).connect().await?)
}

/// One connection, and all the time that a machine may stall.
pub(super) fn patient(store: RedisStoreBuilder) -> RedisStoreBuilder {
    let patience = Duration::from_secs(20);
    store.connections(1).connection_wait(patience).response_timeout(patience)
}
