//! The services that are measured. Each runs in a process of one thread, so that it and the client
//! have a processor each, and do not share the counters of allocations.

use std::convert::Infallible;
use std::fmt::Write as _;
use std::future::pending;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::http::{Request, Response};
use futures::future::{BoxFuture, FutureExt};
use limitador::limit::{Context as Values, Expression, Limit, Namespace};
use rl_core::time::{Clock, SystemClock};
use rl_core::{MaybeReady, Period};
use rl_server::grpc::messages::{Code, RateLimitRequest, RateLimitResponse};
use rl_server::{Server, Source};
use serde::{Deserialize, Serialize};
use tonic::body::Body;
use tonic::server::{Grpc, NamedService};
use tonic::transport::server::TcpIncoming;
use tonic_prost::ProstCodec;
use tower::{Service, service_fn};

use crate::Result;
use crate::redis::{ReadThenCount, Server as Redis};

pub(super) const DOMAIN: &str = "bench";

/// The limiter that decides the requests of a service.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) enum Kind {
    /// Allows each request.
    NoOp,
    Ours,
    /// limitador in memory, or its commands on Redis.
    Limitador,
    /// The commands of Envoy's own service on Redis. They also charge a request that is denied.
    Envoy,
}

/// The settings of a service.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct ServiceSettings {
    pub(super) kind: Kind,
    /// The number of rules. The rule with number `n` counts the values of `key-n`.
    pub(super) rules: usize,
    /// The number of limits of each rule, at most six.
    pub(super) limits: usize,
    /// The units of each limit.
    pub(super) max: u32,
    /// The URL of the store; `None` for counters in memory.
    pub(super) redis: Option<String>,
}

impl ServiceSettings {
    /// Starts the service. Returns its address, and a future that serves it.
    pub(super) async fn start(&self) -> Result<(SocketAddr, BoxFuture<'static, Result>)> {
        let (periods, max) = (&Period::NAMED[Period::NAMED.len() - self.limits..], self.max);
        let decide: Box<Decide> = match (self.kind, &self.redis) {
            (Kind::Ours, _) => return self.ours(periods).await,
            (Kind::NoOp, _) => Box::new(|_| MaybeReady::ready(true)),
            (Kind::Limitador, None) => self.limitador(periods)?,
            (Kind::Limitador, Some(url)) => {
                let counters = ReadThenCount::connect(url, max).await?;
                Box::new(move |request| {
                    let keys = keys(&request, periods, |_| 0);
                    MaybeReady::later(counters.allow(&keys, periods))
                })
            }
            (Kind::Envoy, url) => {
                let url = url.as_ref().ok_or("Envoy's service counts on Redis only")?;
                let connection = Redis::connect(url).await?;
                Box::new(move |request| {
                    let now = SystemClock.now().as_micros() / 1_000_000;
                    let keys = keys(&request, periods, |seconds| now / seconds * seconds);
                    let mut count = redis::pipe();
                    for (key, period) in keys.iter().zip(periods.iter().cycle()) {
                        count.cmd("INCRBY").arg(key).arg(1);
                        count.cmd("EXPIRE").arg(key).arg(period.as_millis() / 1_000).ignore();
                    }
                    let mut connection = connection.clone();
                    MaybeReady::later(async move {
                        let counts = count.query_async::<Vec<u32>>(&mut connection).await;
                        counts.expect("the server is up").into_iter().all(|count| count <= max)
                    })
                })
            }
        };
        let incoming = TcpIncoming::bind((Ipv4Addr::LOCALHOST, 0).into())?;
        let incoming = incoming.with_nodelay(Some(true));
        let address = incoming.local_addr()?;
        let server = tonic::transport::Server::builder().add_service(Minimal(decide.into()));
        Ok((address, async { Ok(server.serve_with_incoming(incoming).await?) }.boxed()))
    }

    /// Starts our server with a rule file.
    async fn ours(&self, periods: &[Period]) -> Result<(SocketAddr, BoxFuture<'static, Result>)> {
        // The machine may stall, and a request without a decision must not count as allowed.
        let mut text = "server: { listen: \"127.0.0.1:0\", grpc: \"127.0.0.1:0\", deadline: 20s, \
                        on_store_failure: reject }\n"
            .to_owned();
        if let Some(url) = &self.redis {
            writeln!(text, "store: {url}")?;
        }
        let limits: Vec<_> =
            periods.iter().map(|period| format!("{}/{period}", self.max)).collect();
        let limits = limits.join(", ");
        writeln!(text, "domains:\n  {DOMAIN}:")?;
        for n in 0..self.rules {
            writeln!(text, "    rule-{n}: {{ descriptor: key-{n}, limits: [{limits}] }}")?;
        }
        let folder = tempfile::tempdir()?;
        let file = folder.path().join("limits.yaml");
        std::fs::write(&file, text)?;
        let server = Server::start(&Source::RuleFile(file), |_| None).await?;
        let address = server.grpc_addr();
        // The server serves as long as it exists.
        let serving = async move {
            let _running = (server, folder);
            pending().await
        };
        Ok((address, serving.boxed()))
    }

    /// Returns limitador, called as its own service calls it.
    fn limitador(&self, periods: &[Period]) -> Result<Box<Decide>> {
        // The capacity is so large that no counter is evicted.
        let limiter = limitador::RateLimiter::new(1_000_000);
        for n in 0..self.rules {
            for period in periods {
                let key = Expression::parse(format!("descriptors[{n}]['key-{n}']"))?;
                let seconds = period.as_millis() / 1_000;
                limiter.add_limit(Limit::new(DOMAIN, self.max.into(), seconds, [], [key]));
            }
        }
        Ok(Box::new(move |request| {
            let values = request.descriptors.into_iter().map(|descriptor| {
                descriptor
                    .entries
                    .into_iter()
                    .map(|entry| (text(entry.key), text(entry.value)))
                    .collect()
            });
            let mut context = Values::default();
            context.list_binding("descriptors".to_owned(), values.collect());
            let namespace = Namespace::from(request.domain);
            let checked = limiter.check_rate_limited_and_update(&namespace, &context, 1);
            MaybeReady::ready(!checked.expect("its store is in memory").limited)
        }))
    }
}

/// Returns the key of each descriptor and period. `window` returns the beginning of a window, from its
/// length in seconds.
fn keys(
    request: &RateLimitRequest,
    periods: &[Period],
    window: impl Fn(u64) -> u64,
) -> Vec<String> {
    let mut keys = Vec::new();
    for entry in request.descriptors.iter().flat_map(|descriptor| &descriptor.entries) {
        let (key, value) = (text(entry.key.clone()), text(entry.value.clone()));
        for period in periods {
            let seconds = period.as_millis() / 1_000;
            let window = window(seconds);
            keys.push(format!("{}_{key}_{value}_{seconds}_{window}", request.domain));
        }
    }
    keys
}

type Decide = dyn Fn(RateLimitRequest) -> MaybeReady<bool> + Send + Sync;

/// A service of tonic that only says whether a request is allowed.
#[derive(Clone)]
struct Minimal(Arc<Decide>);

impl NamedService for Minimal {
    const NAME: &'static str = "envoy.service.ratelimit.v3.RateLimitService";
}

impl Service<Request<Body>> for Minimal {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<'static, std::result::Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<std::result::Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let decide = Arc::clone(&self.0);
        let answer = service_fn(move |request: tonic::Request<RateLimitRequest>| {
            let decided = decide(request.into_inner());
            async move {
                let code = if decided.await { Code::Ok } else { Code::OverLimit };
                Ok(tonic::Response::new(RateLimitResponse {
                    overall_code: code.into(),
                    ..RateLimitResponse::default()
                }))
            }
        });
        async { Ok(Grpc::new(ProstCodec::default()).unary(answer, request).await) }.boxed()
    }
}

/// Returns a text of the client, which sends UTF-8.
fn text(bytes: Vec<u8>) -> String {
    String::from_utf8(bytes).expect("the client sends UTF-8")
}
