//! Other limiters on Redis: published libraries, and the commands of limitador, which are sent
//! through our client.

use std::error::Error;
use std::time::Duration;

use actix_extensible_rate_limit::backend::redis::RedisBackend;
use actix_extensible_rate_limit::backend::{Backend, SimpleInput};
use redis::aio::MultiplexedConnection;
use rl_core::Period;

use super::fixtures::{SUBJECTS, id};
use super::server::Server;

/// A limiter of another library.
pub(super) enum OtherLimiter {
    /// One period, with a transaction of three commands.
    ActixExtensible(RedisBackend, u32, Vec<String>),
    /// One period, with a new connection for each request.
    ActixLimitation(Box<actix_limitation::Limiter>, Vec<String>),
    /// Six counters, used as limitador uses them. One command reads all of them. If all limits have
    /// units left, each counter is incremented by its own script call, and one pipeline sends these
    /// calls.
    ReadThenCount {
        connection: MultiplexedConnection,
        sha: String,
        max: u32,
        keys: Vec<Vec<String>>,
    },
}

const HOUR: Duration = Duration::from_secs(3_600);

fn ids() -> Vec<String> {
    (0..SUBJECTS).map(id).collect()
}

impl OtherLimiter {
    pub(super) async fn actix_extensible(
        server: &Server,
        database: usize,
        max: u32,
    ) -> Result<Self, Box<dyn Error>> {
        let client = redis_0_26::Client::open(server.url(database))?;
        let connection = redis_0_26::aio::ConnectionManager::new(client).await?;
        Ok(Self::ActixExtensible(RedisBackend::builder(connection).build(), max, ids()))
    }

    pub(super) fn actix_limitation(
        server: &Server,
        database: usize,
        max: u32,
    ) -> Result<Self, Box<dyn Error>> {
        let mut builder = actix_limitation::Limiter::builder(server.url(database));
        let limiter = builder.limit(max as usize).period(HOUR).build();
        let limiter = limiter.map_err(|error| error.to_string())?;
        Ok(Self::ActixLimitation(Box::new(limiter), ids()))
    }

    pub(super) async fn read_then_count(
        server: &Server,
        database: usize,
        max: u32,
    ) -> Result<Self, Box<dyn Error>> {
        let mut connection = server.connect(database).await?;
        let mut load = redis::cmd("SCRIPT");
        load.arg("LOAD").arg(include_str!("counter.lua"));
        let sha = load.query_async(&mut connection).await?;
        let keys = |id: String| (0..6).map(|n| format!("rl:{{{id}}}:{n}")).collect();
        let keys = ids().into_iter().map(keys).collect();
        Ok(Self::ReadThenCount { connection, sha, max, keys })
    }

    /// Makes a request for the subject. Returns whether it is allowed.
    pub(super) async fn allows(&self, subject: usize) -> bool {
        match self {
            Self::ActixExtensible(backend, max, keys) => {
                let input = SimpleInput {
                    interval: HOUR,
                    max_requests: (*max).into(),
                    key: keys[subject].clone(),
                };
                let (decision, ..) = backend.request(input).await.expect("the server is up");
                decision.is_allowed()
            }
            Self::ActixLimitation(limiter, keys) => {
                limiter.count(keys[subject].clone()).await.is_ok()
            }
            Self::ReadThenCount { connection, sha, max, keys } => {
                let (mut connection, keys) = (connection.clone(), &keys[subject]);
                let mut read = redis::cmd("MGET");
                let counts: Vec<Option<u64>> =
                    read.arg(keys).query_async(&mut connection).await.expect("the server is up");
                if counts.iter().flatten().any(|count| *count >= u64::from(*max)) {
                    return false;
                }
                let mut count = redis::pipe();
                for (key, period) in keys.iter().zip(Period::NAMED) {
                    let seconds = period.as_millis() / 1_000;
                    count.cmd("EVALSHA").arg(sha).arg(1).arg(key).arg(1).arg(seconds);
                }
                let counts: Vec<u64> =
                    count.query_async(&mut connection).await.expect("the server is up");
                counts.len() == 6
            }
        }
    }
}
