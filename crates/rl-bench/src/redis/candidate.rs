//! The candidates of the comparison: ways to decide with Redis, and plain commands, which are lower
//! bounds.
//!
//! Each candidate uses redis-rs with one multiplexed connection, and has its own database. Keys and
//! subjects are created before the measurement.

use std::error::Error;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use redis::Value;
use redis::aio::MultiplexedConnection;
use rl_core::store::{DecideRequest, Layout, Mode, Namespace, Part, Refund, RefundOf, Store};
use rl_core::time::{Clock, SystemClock};
use rl_core::{
    Cost, Decision, Limit, MaybeReady, OnFailure, Period, Policy, RateLimiter, RedisStore,
    RedisStoreBuilder, Subject,
};

use super::dedicated::{Dedicated, LastArgument};
use super::fixtures::{self, SUBJECTS, id, limits, subjects};
use super::other_limiters::OtherLimiter;
use super::parts_call::PartsCall;
use super::server::Server;

/// The usual script, with a key for each limit.
const SIX_KEYS: &str = include_str!("six_keys.lua");

/// A measured way to decide, or a plain command as a lower bound.
pub(super) struct Candidate {
    pub(super) name: &'static str,
    /// The names of its commands in the server's statistics.
    pub(super) commands: &'static [&'static str],
    kind: Kind,
    /// The order in which subjects are visited. If it is empty, they are visited in turn.
    order: Vec<u32>,
}

enum Kind {
    Command(Command),
    Store(StoreCall),
    Parts(PartsCall),
    Limiter(RateLimiter, Vec<Subject>),
    OtherLimiter(OtherLimiter),
    Function(Decide),
}

/// Makes a request for the subject with this number. Returns whether it is allowed.
pub(super) type Decide =
    Box<dyn Fn(usize) -> Pin<Box<dyn Future<Output = bool> + Send>> + Send + Sync>;

/// A command and its keys for each subject.
struct Command {
    connection: MultiplexedConnection,
    head: Vec<String>,
    keys: Vec<Vec<String>>,
    tail: Vec<u64>,
    last: LastArgument,
    holders: AtomicU64,
    /// Whether an allowed request releases its permit immediately, by a second command.
    frees: bool,
}

/// The command that calls a script.
const EVALSHA: &[&str] = &["evalsha"];

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
        let connection = server.connect(database).await?;
        let command = Command::new(connection, vec!["INCR".to_owned()], keys(&[""], SUBJECTS));
        Ok(Self::command("INCR", &["incr"], command))
    }

    /// Creates the candidate `PING`, a bare round trip.
    pub(super) async fn ping(server: &Server) -> Result<Self, Box<dyn Error>> {
        let connection = server.connect(0).await?;
        let keys = vec![Vec::new(); SUBJECTS];
        Ok(Self::command(
            "PING",
            &["ping"],
            Command::new(connection, vec!["PING".to_owned()], keys),
        ))
    }

    const fn command(
        name: &'static str,
        commands: &'static [&'static str],
        command: Command,
    ) -> Self {
        Self { name, commands, kind: Kind::Command(command), order: Vec::new() }
    }

    /// Creates a candidate with one limit, decided by the script that is written for its algorithm.
    pub(super) async fn dedicated(
        server: &Server,
        database: usize,
        script: &Dedicated,
        limit: Limit,
    ) -> Result<Self, Box<dyn Error>> {
        let Dedicated { name, text, keys: suffixes, arguments, last, .. } = script;
        let (keys, tail) = (keys(suffixes, SUBJECTS), arguments(limit));
        let command = Command::script(server, database, text, keys, tail).await?;
        Ok(Self::command(name, EVALSHA, Command { last: *last, ..command }))
    }

    /// Creates a candidate from another library.
    pub(super) const fn peer(
        name: &'static str,
        commands: &'static [&'static str],
        peer: OtherLimiter,
    ) -> Self {
        Self { name, commands, kind: Kind::OtherLimiter(peer), order: Vec::new() }
    }

    /// Creates a candidate with an empty script, the lower bound of every script.
    pub(super) async fn return_1(server: &Server, database: usize) -> Result<Self, Box<dyn Error>> {
        let keys = keys(&[""], SUBJECTS);
        let command = Command::script(server, database, "return 1", keys, Vec::new()).await?;
        Ok(Self::command("EVALSHA return 1", EVALSHA, command))
    }

    /// Creates a candidate with the usual script for six periods: a key for each of them, and a
    /// limit of `max` units in each.
    pub(super) async fn six_keys(
        server: &Server,
        database: usize,
        max: u32,
    ) -> Result<Self, Box<dyn Error>> {
        Self::key_per_limit(server, database, max, &Period::NAMED.map(Period::as_millis)).await
    }

    /// Creates a candidate with the usual script for six periods, in a form that also returns the
    /// server's time in µs.
    pub(super) async fn six_keys_timed(
        server: &Server,
        database: usize,
        max: u32,
    ) -> Result<Self, Box<dyn Error>> {
        let periods = Period::NAMED.map(Period::as_millis);
        // A client needs the time to know when the windows end.
        let time =
            "local time = redis.call('TIME')\nreply[#reply + 1] = time[1] * 1000000 + time[2]";
        let text = SIX_KEYS.replace("return reply", &format!("{time}\nreturn reply"));
        let script = Self::script_of_keys(server, database, &text, max, &periods).await?;
        Ok(Self { name: "six-key script with the time", ..script })
    }

    /// Creates a candidate with the usual script for these periods, in ms.
    pub(super) async fn key_per_limit(
        server: &Server,
        database: usize,
        max: u32,
        periods: &[u64],
    ) -> Result<Self, Box<dyn Error>> {
        Self::script_of_keys(server, database, SIX_KEYS, max, periods).await
    }

    /// Creates a candidate with this script, which has a key for each period. Periods are in ms.
    async fn script_of_keys(
        server: &Server,
        database: usize,
        text: &str,
        max: u32,
        periods: &[u64],
    ) -> Result<Self, Box<dyn Error>> {
        let suffixes: Vec<String> = (0..periods.len()).map(|n| format!(":limit-{n}")).collect();
        let keys = keys(&suffixes.iter().map(String::as_str).collect::<Vec<_>>(), SUBJECTS);
        let tail = [&vec![max.into(); periods.len()], periods].concat();
        let command = Command::script(server, database, text, keys, tail).await?;
        Ok(Self::command("six-key script", EVALSHA, command))
    }

    /// Creates a candidate that calls our store directly, with limits for six periods.
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

    /// Creates a candidate that calls our store directly, with this policy.
    pub(super) async fn policy(
        server: &Server,
        database: usize,
        layout: Layout,
        name: &'static str,
        policy: Policy,
    ) -> Result<Self, Box<dyn Error>> {
        Ok(Self::of_store(connect(server, database, layout).await?, name, policy))
    }

    /// Creates a candidate of the given store.
    pub(super) fn of_store(store: RedisStore, name: &'static str, policy: Policy) -> Self {
        let (namespace, subjects) = (Namespace::default(), subjects(SUBJECTS));
        let kind = Kind::Store(StoreCall { store, namespace, policy, subjects, frees: false });
        Self { name, commands: EVALSHA, kind, order: Vec::new() }
    }

    /// Creates a candidate whose requests have several parts.
    pub(super) const fn of_parts(name: &'static str, call: PartsCall) -> Self {
        Self { name, commands: EVALSHA, kind: Kind::Parts(call), order: Vec::new() }
    }

    /// Makes each allowed request release its permit immediately. Used for concurrency limits.
    pub(super) fn releasing_permits(mut self) -> Self {
        match &mut self.kind {
            Kind::Store(stored) => stored.frees = true,
            Kind::Command(command) => {
                command.frees = true;
                self.commands = &["evalsha", "zrem"];
            }
            _ => unreachable!("they hold no permits"),
        }
        self
    }

    /// Creates a candidate that calls a function, which calls scripts.
    pub(super) fn of_function(name: &'static str, decide: Decide) -> Self {
        Self { name, commands: EVALSHA, kind: Kind::Function(decide), order: Vec::new() }
    }

    /// Sets the number of subjects, and the order in which they are visited.
    pub(super) fn with_order(mut self, subjects: usize, order: Vec<u32>) -> Self {
        match &mut self.kind {
            Kind::Command(command) => command.keys = keys(&[""], subjects),
            Kind::Store(stored) => stored.subjects = fixtures::subjects(subjects),
            _ => unreachable!("their subjects are fixed"),
        }
        Self { order, ..self }
    }

    /// Creates a candidate that calls our limiter, as applications do.
    pub(super) async fn limiter(
        server: &Server,
        database: usize,
        max: u32,
    ) -> Result<Self, Box<dyn Error>> {
        let mut limiter = RateLimiter::builder()
            .store(connect(server, database, Layout::Packed).await?)
            // The deadline is long, so that no request fails if the machine stalls.
            .deadline(Duration::from_secs(20))
            .on_store_failure(OnFailure::Reject);
        for limit in limits(max)? {
            limiter = limiter.limit(limit);
        }
        let kind = Kind::Limiter(limiter.build()?, subjects(SUBJECTS));
        let name = "ours, packed, in a limiter";
        Ok(Self { name, commands: EVALSHA, kind, order: Vec::new() })
    }

    /// Makes a request for the subject. Returns whether it is allowed.
    pub(super) async fn allows(&self, subject: usize) -> bool {
        let subject = self.order.get(subject).map_or(subject, |number| *number as usize);
        match &self.kind {
            Kind::Command(command) => command.send(subject).await,
            Kind::OtherLimiter(peer) => peer.allows(subject).await,
            Kind::Limiter(limiter, subjects) => match limiter.check(&subjects[subject], 1) {
                MaybeReady::Ready(Some(ref decision)) => is_allowed(decision),
                later => is_allowed(&later.await),
            },
            Kind::Parts(call) => call.allows(subject).await,
            Kind::Function(decide) => decide(subject).await,
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
        // A result that is ready is used in place. Awaiting it would move it four times.
        let mut answer = store.decide(request);
        if let MaybeReady::Boxed(later) = &mut answer {
            answer = MaybeReady::ready(later.await);
        }
        let MaybeReady::Ready(Some(Ok(decision))) = &answer else { panic!("the server is up") };
        if self.frees && decision.is_allowed() {
            let (charged, units) = (decision.at(), decision.granted());
            let (of, uncharged) = (RefundOf::Permits, decision.uncharged());
            let refund = Refund { namespace, subject, policy, charged, units, of, uncharged };
            store.settle(&[refund.into()]).await.expect("the server is up");
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
    const fn new(
        connection: MultiplexedConnection,
        head: Vec<String>,
        keys: Vec<Vec<String>>,
    ) -> Self {
        let (holders, last) = (AtomicU64::new(0), LastArgument::None);
        Self { connection, head, keys, tail: Vec::new(), last, holders, frees: false }
    }

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
        Ok(Self { tail, ..Self::new(connection, vec!["EVALSHA".to_owned(), sha, count], keys) })
    }

    async fn send(&self, subject: usize) -> bool {
        let (mut command, keys) = (redis::Cmd::new(), &self.keys[subject]);
        let last = match self.last {
            LastArgument::None => None,
            LastArgument::Time => Some(SystemClock.now().as_micros() / 1_000),
            LastArgument::Holder => Some(self.holders.fetch_add(1, Ordering::Relaxed)),
        };
        command.arg(&self.head).arg(keys).arg(&self.tail).arg(last);
        let reply: Value =
            command.query_async(&mut self.connection.clone()).await.expect("the server is up");
        let passes = match reply {
            Value::Array(numbers) => numbers.first() == Some(&Value::Int(1)),
            number => number != Value::Int(0),
        };
        if passes && self.frees {
            let mut release = redis::cmd("ZREM");
            release.arg(&keys[0]).arg(last);
            let released = release.exec_async(&mut self.connection.clone()).await;
            released.expect("the server is up");
        }
        passes
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
