//! The measured ways to decide: our store, plain commands, scripts, and other limiters. Strings and
//! keys are created before the measurement.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use actix_extensible_rate_limit::backend::redis::RedisBackend;
use actix_extensible_rate_limit::backend::{Backend, SimpleInput};
use redis::Value;
use rl_core::store::{DecideRequest, Mode, Namespace, Part, Refund, RefundOf, Store};
use rl_core::time::{Clock, SystemClock};
use rl_core::{
    Cost, Decision, Limit, MaybeReady, Period, Policy, RedisStore, RedisStoreBuilder, StoreError,
    Subject,
};

use super::server::Server;
use super::usual::{LastArgument, Usual};
use crate::Result;

/// The number of subjects, if a measurement does not set another.
pub(super) const SUBJECTS: usize = 10_000;
/// A limit that no measurement uses up.
pub(super) const ENDLESS: u32 = 1_000_000_000;
const HOUR: Duration = Duration::from_secs(3_600);

/// A measured way to decide, or a plain command as a lower bound.
pub(super) struct Candidate {
    pub(super) name: String,
    /// The names of its commands in the server's statistics.
    pub(super) commands: &'static [&'static str],
    /// Makes a request for the subject with this number. Returns whether it is allowed.
    pub(super) allows: Box<dyn Fn(usize) -> MaybeReady<bool> + Send + Sync>,
}

impl Candidate {
    fn new(
        name: &str,
        commands: &'static [&'static str],
        allows: impl Fn(usize) -> MaybeReady<bool> + Send + Sync + 'static,
    ) -> Self {
        Self { name: name.to_owned(), commands, allows: Box::new(allows) }
    }

    /// Creates a candidate that calls our store directly.
    pub(super) fn ours(name: &str, store: RedisStore, policy: Policy) -> Self {
        let (namespace, subjects) = (Namespace::default(), subjects(SUBJECTS));
        Self::new(name, &["evalsha"], move |n| {
            let parts = [Part::new(&subjects[n], &policy, Cost::ONE)];
            let request = DecideRequest::new(&namespace, &parts, Mode::Check);
            store.decide(request).map(|decided| is_allowed(&decided))
        })
    }

    /// Creates a candidate that calls our store directly. Each allowed request releases its permit
    /// immediately.
    pub(super) fn ours_with_permits(name: &str, store: RedisStore, policy: Policy) -> Self {
        let ours = Arc::new((store, policy, Namespace::default(), subjects(SUBJECTS)));
        Self::new(name, &["evalsha"], move |n| {
            let ours = Arc::clone(&ours);
            MaybeReady::later(async move {
                let (store, policy, namespace, subjects) = &*ours;
                let subject = &subjects[n];
                let parts = [Part::new(subject, policy, Cost::ONE)];
                let decided =
                    store.decide(DecideRequest::new(namespace, &parts, Mode::Check)).await;
                let is_allowed = is_allowed(&decided);
                if let Ok(decision) = decided.as_ref()
                    && is_allowed
                {
                    let (charged, units, of) =
                        (decision.at(), decision.granted(), RefundOf::Permits);
                    let uncharged = decision.uncharged();
                    let refund =
                        Refund { namespace, subject, policy, charged, units, of, uncharged };
                    store.settle(&[refund.into()]).await.expect("the server is up");
                }
                is_allowed
            })
        })
    }

    /// Creates a candidate whose requests have several parts, each under a policy and a rule of its
    /// own. The first is of the key; a part that is named `fleet` is of all keys. If `is_nested` is
    /// true, each part is decided by its own request, as with nested limiters.
    pub(super) fn parts(
        name: &str,
        store: RedisStore,
        parts: Vec<(&'static str, Policy)>,
        is_nested: bool,
    ) -> Self {
        let rule = |name| Namespace::default().rule(name).expect("a valid name");
        let parts = parts.into_iter().map(|(name, policy)| (rule(name), policy, name == "fleet"));
        let ours =
            Arc::new((store, subjects(SUBJECTS), Subject::global(), parts.collect::<Vec<_>>()));
        Self::new(name, &["evalsha"], move |n| {
            let ours = Arc::clone(&ours);
            MaybeReady::later(async move {
                let (store, subjects, fleet, parts) = &*ours;
                let part = |(rule, policy, is_fleet): &'_ (Namespace, Policy, bool)| {
                    let subject = if *is_fleet { fleet } else { &subjects[n] };
                    (subject.clone(), policy.clone(), rule.clone())
                };
                let owned: Vec<_> = parts.iter().map(part).collect();
                let parts: Vec<Part<'_>> = owned
                    .iter()
                    .map(|(subject, policy, rule)| {
                        Part::new(subject, policy, Cost::ONE).with_namespace(rule)
                    })
                    .collect();
                let mut is_allowed_by_all = true;
                for parts in parts.chunks(if is_nested { 1 } else { parts.len() }) {
                    let request = DecideRequest::new(&owned[0].2, parts, Mode::Check);
                    is_allowed_by_all &= is_allowed(&store.decide(request).await);
                }
                is_allowed_by_all
            })
        })
    }

    /// Creates a candidate of a plain command, with the key of each subject if `has_key` is true.
    pub(super) async fn command(
        server: &Server,
        database: usize,
        name: &'static str,
        (commands, has_key): (&'static [&'static str], bool),
    ) -> Result<Self> {
        let connection = server.connect(database).await?;
        let keys = keys(&[""]);
        Ok(Self::new(name, commands, move |n| {
            let mut command = redis::cmd(name);
            if has_key {
                command.arg(&keys[n]);
            }
            let mut connection = connection.clone();
            MaybeReady::later(async move {
                command.exec_async(&mut connection).await.expect("the server is up");
                true
            })
        }))
    }

    /// Creates a candidate with one limit, decided by the script that is usually written for its
    /// algorithm. If it holds permits, each allowed request releases its permit immediately.
    pub(super) async fn usual(
        server: &Server,
        database: usize,
        usual: &Usual,
        limit: Limit,
    ) -> Result<Self> {
        let frees = usual.last == LastArgument::Holder;
        let commands: &[&str] = if frees { &["evalsha", "zrem"] } else { &["evalsha"] };
        let arguments = (usual.arguments)(limit);
        let script = (usual.name, usual.text);
        Self::script(
            server,
            database,
            script,
            keys(usual.keys),
            arguments,
            (usual.last, frees),
            commands,
        )
        .await
    }

    /// Creates a candidate with an empty script, the lower bound of every script.
    pub(super) async fn return_1(server: &Server, database: usize) -> Result<Self> {
        let script = ("a script that does nothing", "return 1");
        Self::script(
            server,
            database,
            script,
            keys(&[""]),
            Vec::new(),
            (LastArgument::None, false),
            &["evalsha"],
        )
        .await
    }

    /// Creates a candidate with the usual script of several fixed windows: a key for each of these
    /// periods in ms, and a limit of `max` units in each. With `text`, another form of the script.
    pub(super) async fn key_per_limit(
        server: &Server,
        database: usize,
        script: (&str, &str),
        max: u64,
        periods: &[u64],
    ) -> Result<Self> {
        let suffixes: Vec<String> = (0..periods.len()).map(|n| format!(":limit-{n}")).collect();
        let keys = keys(&suffixes.iter().map(String::as_str).collect::<Vec<_>>());
        let arguments = [&vec![max; periods.len()], periods].concat();
        Self::script(
            server,
            database,
            script,
            keys,
            arguments,
            (LastArgument::None, false),
            &["evalsha"],
        )
        .await
    }

    async fn script(
        server: &Server,
        database: usize,
        (name, text): (&str, &str),
        keys: Vec<Vec<String>>,
        arguments: Vec<u64>,
        (last, frees): (LastArgument, bool),
        commands: &'static [&'static str],
    ) -> Result<Self> {
        let (connection, sha) = load(server, database, text).await?;
        let holders = AtomicU64::new(0);
        Ok(Self::new(name, commands, move |n| {
            let (mut command, keys) = (redis::cmd("EVALSHA"), &keys[n]);
            let last = match last {
                LastArgument::None => None,
                LastArgument::Time => Some(SystemClock.now().as_micros() / 1_000),
                LastArgument::Holder => Some(holders.fetch_add(1, Ordering::Relaxed)),
            };
            command.arg(&sha).arg(keys.len()).arg(keys).arg(&arguments).arg(last);
            let mut release = redis::cmd("ZREM");
            release.arg(&keys[0]).arg(last);
            let mut connection = connection.clone();
            MaybeReady::later(async move {
                let reply: Value =
                    command.query_async(&mut connection).await.expect("the server is up");
                let passes = match reply {
                    Value::Array(numbers) => numbers.first() == Some(&Value::Int(1)),
                    number => number != Value::Int(0),
                };
                if passes && frees {
                    release.exec_async(&mut connection).await.expect("the server is up");
                }
                passes
            })
        }))
    }

    /// Creates a candidate with six counters, used as limitador uses them. One command reads all of
    /// them. If all limits have units left, each counter is incremented by its own script call, and
    /// one pipeline sends these calls.
    pub(super) async fn read_then_count(
        server: &Server,
        database: usize,
        max: u32,
    ) -> Result<Self> {
        let (connection, sha) = load(server, database, include_str!("lua/counter.lua")).await?;
        let keys = keys(&[":0", ":1", ":2", ":3", ":4", ":5"]);
        Ok(Self::new("MGET, then six scripts (limitador)", &["evalsha"], move |n| {
            let (mut read, mut count) = (redis::cmd("MGET"), redis::pipe());
            read.arg(&keys[n]);
            for (key, period) in keys[n].iter().zip(Period::NAMED) {
                count
                    .cmd("EVALSHA")
                    .arg(&sha)
                    .arg(1)
                    .arg(key)
                    .arg(1)
                    .arg(period.as_millis() / 1_000);
            }
            let mut connection = connection.clone();
            MaybeReady::later(async move {
                let counts = read.query_async::<Vec<Option<u64>>>(&mut connection).await;
                if counts
                    .expect("the server is up")
                    .iter()
                    .flatten()
                    .any(|count| *count >= u64::from(max))
                {
                    return false;
                }
                let counts: Vec<u64> =
                    count.query_async(&mut connection).await.expect("the server is up");
                counts.len() == 6
            })
        }))
    }

    /// Creates the candidate actix-extensible-rate-limit, with one period.
    pub(super) async fn actix_extensible(
        server: &Server,
        database: usize,
        max: u32,
    ) -> Result<Self> {
        let client = redis_0_26::Client::open(server.url(database))?;
        let backend =
            RedisBackend::builder(redis_0_26::aio::ConnectionManager::new(client).await?).build();
        Ok(Self::new("actix-extensible-rate-limit, one period", &["bitfield"], move |n| {
            let (backend, interval, key) = (backend.clone(), HOUR, id(n));
            MaybeReady::later(async move {
                let input = SimpleInput { interval, max_requests: max.into(), key };
                backend.request(input).await.expect("the server is up").0.is_allowed()
            })
        }))
    }

    /// Creates the candidate actix-limitation, with one period. It connects for each request.
    pub(super) fn actix_limitation(server: &Server, database: usize, max: u32) -> Result<Self> {
        let mut builder = actix_limitation::Limiter::builder(server.url(database));
        let limiter =
            builder.limit(max as usize).period(HOUR).build().map_err(|error| error.to_string())?;
        Ok(Self::new("actix-limitation, one period", &["incr"], move |n| {
            let limiter = limiter.clone();
            MaybeReady::later(async move { limiter.count(id(n)).await.is_ok() })
        }))
    }
}

/// Returns whether a decision of the store allows the request.
fn is_allowed(decided: &std::result::Result<Decision, StoreError>) -> bool {
    decided.as_ref().expect("the server is up").is_allowed()
}

/// Loads a script. Returns its hash, and the connection on which it is called.
async fn load(
    server: &Server,
    database: usize,
    text: &str,
) -> Result<(redis::aio::MultiplexedConnection, String)> {
    let mut connection = server.connect(database).await?;
    let sha = redis::cmd("SCRIPT").arg("LOAD").arg(text).query_async(&mut connection).await?;
    Ok((connection, sha))
}

/// Returns the keys with these suffixes of each subject.
fn keys(suffixes: &[&str]) -> Vec<Vec<String>> {
    let key = |n, suffix: &&str| format!("rl:{{{}}}{suffix}", id(n));
    (0..SUBJECTS).map(|n| suffixes.iter().map(|suffix| key(n, suffix)).collect()).collect()
}

/// Returns the id of the subject with this number. The id is part of all its keys.
pub(super) fn id(n: usize) -> String {
    format!("consumer-{n:08}")
}

/// Returns the first `count` subjects.
fn subjects(count: usize) -> Vec<Subject> {
    (0..count).map(|n| Subject::consumer(&id(n))).collect()
}

/// Returns a policy of `max` units in each of six periods.
pub(super) fn six(max: u32) -> Result<Policy> {
    let limits = Period::NAMED.map(|period| Limit::new(max.into(), period));
    Ok(Policy::new(limits.into_iter().collect::<std::result::Result<Vec<_>, _>>()?)?)
}

/// Returns our store on a database of the server.
pub(super) fn store(server: &Server, database: usize) -> RedisStoreBuilder {
    patient(RedisStore::builder(&server.url(database)))
}

/// Sets one connection, and long time-outs, because the machine may stall.
pub(super) fn patient(store: RedisStoreBuilder) -> RedisStoreBuilder {
    let patience = Duration::from_secs(20);
    store.connections(1).connection_wait(patience).response_timeout(patience)
}
