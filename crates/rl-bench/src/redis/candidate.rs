//! The candidates of the comparison: ways to decide with Redis, and plain commands as lower bounds.
//!
//! Each candidate uses redis-rs with one multiplexed connection, and has a database of its own.
//! Keys and subjects are created before the measurement.

use std::error::Error;
use std::time::Duration;

use redis::Value;
use redis::aio::MultiplexedConnection;
use rl_core::store::{DecideRequest, Layout, Mode, Namespace, Part, Refund, RefundOf, Store};
use rl_core::{
    Cost, Decision, MaybeReady, OnFailure, Period, Policy, RateLimiter, RedisStore,
    RedisStoreBuilder, Subject,
};

use super::fixtures::{self, SUBJECTS, id, limits, subjects};
use super::other_limiters::OtherLimiter;
use super::server::Server;

/// A way to decide that is measured, or a command as a lower bound.
pub(super) struct Candidate {
    pub(super) name: &'static str,
    /// The name of the command in the server's statistics.
    pub(super) command: &'static str,
    kind: Kind,
    /// The order in which subjects are visited. If it is empty, they are visited in turn.
    order: Vec<u32>,
}

enum Kind {
    Command(Command),
    Store(StoreCall),
    Limiter(RateLimiter, Vec<Subject>),
    OtherLimiter(OtherLimiter),
}

/// A command that differs between subjects only in its keys.
struct Command {
    connection: MultiplexedConnection,
    head: Vec<String>,
    keys: Vec<Vec<String>>,
    tail: Vec<u64>,
}

/// Our store, and the decision that is requested.
struct StoreCall {
    store: RedisStore,
    namespace: Namespace,
    policy: Policy,
    subjects: Vec<Subject>,
    /// Whether an allowed request releases its permit immediately.
    frees: bool,
}

impl Candidate {
    /// Creates the candidate `INCR`: no limit, no window, no expiry.
    pub(super) async fn incr(server: &Server, database: usize) -> Result<Self, Box<dyn Error>> {
        let command = Command {
            connection: server.connect(database).await?,
            head: vec!["INCR".to_owned()],
            keys: keys(&[""], SUBJECTS),
            tail: Vec::new(),
        };
        Ok(Self { name: "INCR", command: "incr", kind: Kind::Command(command), order: Vec::new() })
    }

    /// Creates the candidate `PING`, which is only a round trip.
    pub(super) async fn ping(server: &Server) -> Result<Self, Box<dyn Error>> {
        let command = Command {
            connection: server.connect(0).await?,
            head: vec!["PING".to_owned()],
            keys: vec![Vec::new(); SUBJECTS],
            tail: Vec::new(),
        };
        Ok(Self { name: "PING", command: "ping", kind: Kind::Command(command), order: Vec::new() })
    }

    /// Creates a candidate with one limit, decided by a script of the generic cell rate algorithm.
    pub(super) async fn gcra(
        server: &Server,
        database: usize,
        max: u32,
    ) -> Result<Self, Box<dyn Error>> {
        // The limit is `max` units in a month, and `max` units at once.
        let pause = 1_000 * Period::MONTH.as_millis() / u64::from(max);
        let (text, tail) = (include_str!("gcra.lua"), vec![pause, pause * u64::from(max)]);
        let command = Command::script(server, database, text, keys(&[""], SUBJECTS), tail).await?;
        Ok(Self {
            name: "GCRA script, one limit",
            command: "evalsha",
            kind: Kind::Command(command),
            order: Vec::new(),
        })
    }

    /// Creates a candidate from another library.
    pub(super) fn peer(name: &'static str, command: &'static str, peer: OtherLimiter) -> Self {
        Self { name, command, kind: Kind::OtherLimiter(peer), order: Vec::new() }
    }

    /// Creates a candidate with an empty script, the lower bound of every script.
    pub(super) async fn return_1(server: &Server, database: usize) -> Result<Self, Box<dyn Error>> {
        let keys = keys(&[""], SUBJECTS);
        let command = Command::script(server, database, "return 1", keys, Vec::new()).await?;
        Ok(Self {
            name: "EVALSHA return 1",
            command: "evalsha",
            kind: Kind::Command(command),
            order: Vec::new(),
        })
    }

    /// Creates the usual script, with a key for each of six periods and a limit of `max` units in
    /// each.
    pub(super) async fn six_keys(
        server: &Server,
        database: usize,
        max: u32,
    ) -> Result<Self, Box<dyn Error>> {
        Self::key_per_limit(server, database, max, &Period::NAMED.map(Period::as_millis)).await
    }

    /// Creates the usual script for any periods, in ms.
    pub(super) async fn key_per_limit(
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
            kind: Kind::Command(command),
            order: Vec::new(),
        })
    }

    /// Creates a candidate of our store for six periods, called without a limiter.
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

    /// Creates a candidate of our store with any policy, called without a limiter.
    pub(super) async fn policy(
        server: &Server,
        database: usize,
        layout: Layout,
        name: &'static str,
        policy: Policy,
    ) -> Result<Self, Box<dyn Error>> {
        Ok(Self::of_store(connect(server, database, layout).await?, name, policy))
    }

    /// Creates a candidate of our store without the denial cache.
    pub(super) async fn without_denial_cache(
        server: &Server,
        database: usize,
        name: &'static str,
        policy: Policy,
    ) -> Result<Self, Box<dyn Error>> {
        let store = patient(RedisStore::builder(&server.url(database))).local_denial(false);
        Ok(Self::of_store(store.connect().await?, name, policy))
    }

    /// Creates a candidate of the given store.
    pub(super) fn of_store(store: RedisStore, name: &'static str, policy: Policy) -> Self {
        let (namespace, subjects) = (Namespace::default(), subjects(SUBJECTS));
        let kind = Kind::Store(StoreCall { store, namespace, policy, subjects, frees: false });
        Self { name, command: "evalsha", kind, order: Vec::new() }
    }

    /// Makes each allowed request release its permit, for concurrency limits.
    pub(super) fn releasing_permits(mut self) -> Self {
        if let Kind::Store(stored) = &mut self.kind {
            stored.frees = true;
        }
        self
    }

    /// Sets the number of subjects, and the order in which they are visited.
    pub(super) fn with_order(mut self, subjects: usize, order: Vec<u32>) -> Self {
        match &mut self.kind {
            Kind::Command(command) => command.keys = keys(&[""], subjects),
            Kind::Store(stored) => stored.subjects = fixtures::subjects(subjects),
            Kind::Limiter(..) | Kind::OtherLimiter(..) => unreachable!("their subjects are fixed"),
        }
        Self { order, ..self }
    }

    /// Creates a candidate of our limiter, which is called as an application calls it.
    pub(super) async fn limiter(
        server: &Server,
        database: usize,
        max: u32,
    ) -> Result<Self, Box<dyn Error>> {
        let mut limiter = RateLimiter::builder()
            .store(connect(server, database, Layout::Packed).await?)
            // Only the cost is measured. The deadline is long, because the machine may stall.
            .deadline(Duration::from_secs(20))
            .on_store_failure(OnFailure::Reject);
        for limit in limits(max)? {
            limiter = limiter.limit(limit);
        }
        let kind = Kind::Limiter(limiter.build()?, subjects(SUBJECTS));
        Ok(Self { name: "ours, packed, in a limiter", command: "evalsha", kind, order: Vec::new() })
    }

    /// Returns whether a request of the subject is allowed.
    pub(super) async fn allows(&self, subject: usize) -> bool {
        let subject = self.order.get(subject).map_or(subject, |number| *number as usize);
        match &self.kind {
            Kind::Command(command) => command.send(subject).await,
            Kind::OtherLimiter(peer) => peer.allows(subject).await,
            Kind::Limiter(limiter, subjects) => match limiter.check(&subjects[subject], 1) {
                MaybeReady::Ready(Some(ref decision)) => is_allowed(decision),
                later => is_allowed(&later.await),
            },
            Kind::Store(stored) => stored.allows(&stored.subjects[subject]).await,
        }
    }
}

impl StoreCall {
    async fn allows(&self, subject: &Subject) -> bool {
        let Self { store, namespace, policy, .. } = self;
        let (mode, cost) = (Mode::Check, Cost::ONE);
        let parts = [Part::new(subject, policy, cost)];
        let request = DecideRequest::new(namespace, &parts, mode);
        // A result that is ready is read in place, because awaiting it would move it four times.
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

/// Returns whether a decision of the store allows the request.
fn is_allowed(decision: &Decision) -> bool {
    assert!(decision.policy().is_some(), "{:?}: only the store decides", decision.origin());
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

async fn connect(
    server: &Server,
    database: usize,
    layout: Layout,
) -> Result<RedisStore, Box<dyn Error>> {
    Ok(patient(RedisStore::builder(&server.url(database)).layout(layout)).connect().await?)
}

/// Sets one connection, and long time-outs, because the machine may stall.
pub(super) fn patient(store: RedisStoreBuilder) -> RedisStoreBuilder {
    let patience = Duration::from_secs(20);
    store.connections(1).connection_wait(patience).response_timeout(patience)
}
