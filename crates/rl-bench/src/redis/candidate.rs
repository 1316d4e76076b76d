//! The measured ways to decide: our store, plain commands, scripts, and other limiters. Strings and
//! keys are created before the measurement.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use actix_extensible_rate_limit::backend::redis::RedisBackend;
use actix_extensible_rate_limit::backend::{Backend, SimpleInput};
use redis::Value;
use redis::aio::MultiplexedConnection;
use rl_core::store::{DecideRequest, Mode, Namespace, Part, Refund, RefundOf, Store};
use rl_core::time::{Clock, SystemClock};
use rl_core::{
    Cost, Decision, MaybeReady, Period, Policy, RedisStore, RedisStoreBuilder, StoreError, Subject,
};

use super::server::Server;
use super::usual::{LastArgument, Script};
use crate::Result;

/// The number of subjects, if a measurement does not set another.
pub(super) const SUBJECTS: usize = 10_000;
const HOUR: Duration = Duration::from_secs(3_600);

/// A measured way to decide, or a plain command as a lower bound.
pub(super) struct Candidate {
    pub(super) name: String,
    /// The names of its commands in the server's statistics.
    pub(super) commands: Vec<&'static str>,
    /// Makes a request for the subject with this number. Returns whether it is allowed.
    pub(super) allows: Box<dyn Fn(usize) -> MaybeReady<bool> + Send + Sync>,
}

impl Candidate {
    fn new(
        name: &str,
        commands: &[&'static str],
        allows: impl Fn(usize) -> MaybeReady<bool> + Send + Sync + 'static,
    ) -> Self {
        Self { name: name.to_owned(), commands: commands.to_vec(), allows: Box::new(allows) }
    }

    /// Creates a candidate that calls our store directly.
    pub(super) fn ours(name: &str, store: RedisStore, policy: Policy) -> Self {
        let (namespace, subjects) = (Namespace::default(), subjects());
        Self::new(name, &["evalsha"], move |n| {
            let parts = [Part::new(&subjects[n], &policy, Cost::ONE)];
            let request = DecideRequest::new(&namespace, &parts, Mode::Check);
            store.decide(request).map(|decided| is_allowed(&decided))
        })
    }

    /// Creates a candidate that calls our store directly. Each allowed request releases its permit
    /// immediately.
    pub(super) fn ours_with_permits(name: &str, store: RedisStore, policy: Policy) -> Self {
        let ours = Arc::new((store, policy, Namespace::default(), subjects()));
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
                    let (charged, units) = (decision.at(), decision.granted());
                    let (uncharged, of) = (decision.uncharged(), RefundOf::Permits);
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
        let ours = Arc::new((store, subjects(), Subject::global(), parts.collect::<Vec<_>>()));
        Self::new(name, &["evalsha"], move |n| {
            let ours = Arc::clone(&ours);
            MaybeReady::later(async move {
                let (store, subjects, fleet, rules) = &*ours;
                let mut parts = Vec::new();
                for (rule, policy, is_fleet) in rules {
                    let subject = if *is_fleet { fleet } else { &subjects[n] };
                    parts.push(Part::new(subject, policy, Cost::ONE).with_namespace(rule));
                }
                let mut is_allowed_by_all = true;
                for parts in parts.chunks(if is_nested { 1 } else { parts.len() }) {
                    let request = DecideRequest::new(&rules[0].0, parts, Mode::Check);
                    is_allowed_by_all &= is_allowed(&store.decide(request).await);
                }
                is_allowed_by_all
            })
        })
    }

    /// Creates a candidate of a plain command, with the key of each subject if `has_key` is true.
    pub(super) async fn command(
        server: &Server,
        name: &'static str,
        has_key: bool,
    ) -> Result<Self> {
        let connection = Server::connect(&server.next_url()).await?;
        let keys = keys(&[String::new()]);
        Ok(Self::new(name, &[name], move |n| {
            let (mut command, mut connection) = (redis::cmd(name), connection.clone());
            command.arg(has_key.then(|| &keys[n]));
            MaybeReady::later(async move {
                command.exec_async(&mut connection).await.expect("the server is up");
                true
            })
        }))
    }

    /// Creates a candidate of a script. If it holds permits, each allowed request releases its
    /// permit immediately.
    pub(super) async fn script(server: &Server, script: Script) -> Result<Self> {
        let Script { name, text, keys: suffixes, arguments, last } = script;
        let (connection, sha) = load(&server.next_url(), text).await?;
        let (keys, holders) = (keys(&suffixes), AtomicU64::new(0));
        let frees = last == LastArgument::Holder;
        Ok(Self::new(name, if frees { &["evalsha", "zrem"] } else { &["evalsha"] }, move |n| {
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
                let reply = command.query_async(&mut connection).await.expect("the server is up");
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

    /// Creates a candidate with six counters, used as limitador uses them.
    pub(super) async fn read_then_count(server: &Server, max: u32) -> Result<Self> {
        let counters = ReadThenCount::connect(&server.next_url(), max).await?;
        let keys = keys(&[0, 1, 2, 3, 4, 5].map(|n| format!(":{n}")));
        Ok(Self::new("MGET, then six scripts (limitador)", &["evalsha"], move |n| {
            MaybeReady::later(counters.allow(&keys[n], &Period::NAMED))
        }))
    }

    /// Creates the candidate actix-extensible-rate-limit, with one period.
    pub(super) async fn actix_extensible(server: &Server, max: u32) -> Result<Self> {
        let client = redis_0_26::Client::open(server.next_url())?;
        let connection = redis_0_26::aio::ConnectionManager::new(client).await?;
        let backend = RedisBackend::builder(connection).build();
        Ok(Self::new("actix-extensible-rate-limit, one period", &["bitfield"], move |n| {
            let (backend, interval, key) = (backend.clone(), HOUR, id(n));
            MaybeReady::later(async move {
                let input = SimpleInput { interval, max_requests: max.into(), key };
                backend.request(input).await.expect("the server is up").0.is_allowed()
            })
        }))
    }

    /// Creates the candidate actix-limitation, with one period. It connects for each request.
    pub(super) fn actix_limitation(server: &Server, max: u32) -> Result<Self> {
        let mut limiter = actix_limitation::Limiter::builder(server.next_url());
        let limiter = limiter.limit(max as usize).period(HOUR).build();
        let limiter = limiter.map_err(|error| error.to_string())?;
        Ok(Self::new("actix-limitation, one period", &["incr"], move |n| {
            let limiter = limiter.clone();
            MaybeReady::later(async move { limiter.count(id(n)).await.is_ok() })
        }))
    }
}

/// Counters as limitador uses them. One command reads all of them. If all limits have units left,
/// each counter is incremented by its own script call, and one pipeline sends these calls.
pub(crate) struct ReadThenCount {
    connection: MultiplexedConnection,
    sha: String,
    max: u64,
}

impl ReadThenCount {
    /// Connects to a server, and loads the script.
    pub(crate) async fn connect(url: &str, max: u32) -> Result<Self> {
        let (connection, sha) = load(url, include_str!("lua/counter.lua")).await?;
        Ok(Self { connection, sha, max: max.into() })
    }

    /// Makes a request with a counter for each key. The periods of the counters repeat.
    pub(crate) fn allow(
        &self,
        keys: &[String],
        periods: &[Period],
    ) -> impl Future<Output = bool> + Send + 'static {
        let (mut read, mut count) = (redis::cmd("MGET"), redis::pipe());
        read.arg(keys);
        for (key, period) in keys.iter().zip(periods.iter().cycle()) {
            let seconds = period.as_millis() / 1_000;
            count.cmd("EVALSHA").arg(&self.sha).arg(1).arg(key).arg(1).arg(seconds);
        }
        let (mut connection, max, counters) = (self.connection.clone(), self.max, keys.len());
        async move {
            let counts = read.query_async::<Vec<Option<u64>>>(&mut connection).await;
            let counts = counts.expect("the server is up");
            if counts.into_iter().flatten().any(|count| count >= max) {
                return false;
            }
            let counts = count.query_async::<Vec<u64>>(&mut connection).await;
            counts.expect("the server is up").len() == counters
        }
    }
}

/// Returns whether a decision of the store allows the request.
fn is_allowed(decided: &std::result::Result<Decision, StoreError>) -> bool {
    decided.as_ref().expect("the server is up").is_allowed()
}

/// Loads a script. Returns its hash, and the connection on which it is called.
async fn load(url: &str, text: &str) -> Result<(MultiplexedConnection, String)> {
    let mut connection = Server::connect(url).await?;
    let sha = redis::cmd("SCRIPT").arg("LOAD").arg(text).query_async(&mut connection).await?;
    Ok((connection, sha))
}

/// Returns the keys with these suffixes of each subject.
fn keys(suffixes: &[String]) -> Vec<Vec<String>> {
    let key = |n, suffix: &String| format!("rl:{{{}}}{suffix}", id(n));
    (0..SUBJECTS).map(|n| suffixes.iter().map(|suffix| key(n, suffix)).collect()).collect()
}

/// Returns the id of the subject with this number. The id is part of all its keys.
pub(super) fn id(n: usize) -> String {
    format!("consumer-{n:08}")
}

fn subjects() -> Vec<Subject> {
    (0..SUBJECTS).map(|n| Subject::consumer(&id(n))).collect()
}

/// Returns our store on a database that is not used yet.
pub(super) fn store(server: &Server) -> RedisStoreBuilder {
    patient(RedisStore::builder(&server.next_url()))
}

/// Sets one connection, and long time-outs, because the machine may stall.
pub(super) fn patient(store: RedisStoreBuilder) -> RedisStoreBuilder {
    let patience = Duration::from_secs(20);
    store.connections(1).connection_wait(patience).response_timeout(patience)
}
