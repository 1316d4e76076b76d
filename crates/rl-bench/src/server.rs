//! Measures calls of the rate limit service of Envoy beside limitador behind the same gRPC server.
//!
//! Each server runs in a thread of its own, and takes turns with the others in deciding the calls of
//! one client.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, mpsc};
use std::task::{Context, Poll};
use std::thread;
use std::time::{Duration, Instant};

use axum::http::{Request, Response};
use limitador::limit::{Context as Values, Expression, Limit as LimitadorLimit};
use rl_core::adapter::HttpLimiter;
use rl_core::rules::Rules;
use rl_core::{RateLimiter, RedisStore};
use rl_server::DecisionService;
use rl_server::domains::{DomainRule, Domains, compile};
use rl_server::grpc::EnvoyService;
use rl_server::grpc::messages::{
    Code, Entry, RateLimitDescriptor, RateLimitRequest, RateLimitResponse,
};
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tonic::body::Body;
use tonic::client::Grpc;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::server::NamedService;
use tonic::transport::{Channel, Endpoint, Server};
use tonic_prost::ProstCodec;
use tower::Service;

use crate::Result;
use crate::algorithms::ENDLESS;
use crate::measure::{Race, quantile, sorted, time_on_processor};
use crate::redis::Server as Redis;
use crate::report::{Report, Table};

const DOMAIN: &str = "bench";
const METHOD: &str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";
/// The duration of a server's turn.
const SLICE: Duration = Duration::from_millis(150);
/// The calls in flight.
const IN_FLIGHT: usize = 64;
/// The keys of the descriptors of a call, each of which has a rule.
const KEYS: [&str; 3] = ["remote_address", "user", "tenant"];
/// The periods of the limits of a rule, in seconds.
const PERIODS: [(u64, &str); 6] = [
    (1, "second"),
    (60, "minute"),
    (3_600, "hour"),
    (86_400, "day"),
    (604_800, "week"),
    (2_592_000, "month"),
];

/// Measures the calls per second, the time of a call, and the growth with the number of rules.
pub(crate) fn run(report: &mut Report) -> Result {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(measure(report))?;
    growth(report)
}

async fn measure(report: &mut Report) -> Result {
    let redis = Redis::start()?;
    let ours = |rules, periods| start(move || Ok(Answer::Ours(service(rules, periods, None)?)));
    let others = |rules, periods| start(move || Ok(Answer::Limitador(limitador(rules, periods)?)));
    let url = redis.url(0);
    let on_redis = start_async(move |runtime| {
        let store = runtime.block_on(RedisStore::connect(&url))?;
        Ok(Answer::Ours(service(3, 6, Some(store))?))
    });
    let servers = [
        ("no decision", start(|| Ok(Answer::Nothing))?, 1),
        ("ours, a rule of one limit", ours(1, 1)?, 1),
        ("limitador, a rule of one limit", others(1, 1)?, 1),
        ("ours, three rules of six limits", ours(3, 6)?, 3),
        ("limitador, three rules of six limits", others(3, 6)?, 3),
        ("ours on Redis, three rules of six limits", on_redis?, 3),
    ];
    let mut clients = Vec::new();
    for (name, address, descriptors) in servers {
        clients.push((name, Client::connect(address, descriptors).await?));
    }
    let mut race = Race::<3>::new(clients.len());
    for turn in race.turns(report.rounds(21)) {
        let client = &clients[turn.contender].1;
        let rate = client.rate().await?;
        let times = client.times().await?;
        race.record(turn, [1.0 / rate, quantile(&times, 0.5), quantile(&times, 0.99)]);
    }
    let mut table = Table::new(
        "calls of Envoy's rate limit service, one server thread and one client thread",
        ["", "thousand/s, 64 in flight", "µs one at a time, median", "… 99 %"],
    );
    for (place, (name, _)) in clients.iter().enumerate() {
        let per_second = 1e-3 / race.median(place, 0);
        table.row(*name, [per_second, race.median(place, 1), race.median(place, 2)]);
    }
    report.table(table);
    report.at_least("one limit: calls beside limitador", 1.2, race.multiple(2, 1, 0));
    report.at_least(
        "three rules of six limits: calls beside limitador",
        3.0,
        race.multiple(4, 3, 0),
    );
    let added = |quantity| race.median(1, quantity) - race.median(0, quantity);
    report.at_most("µs that one limit adds to a call, median", 15.0, added(1));
    report.at_most("µs that one limit adds to a call, 99 %", 60.0, added(2));
    Ok(())
}

/// Measures the processor time of a decision under many rules of a domain, of which one matches.
fn growth(report: &mut Report) -> Result {
    const RULES: [usize; 2] = [10, 10_000];
    const REQUESTS: u32 = 200;
    let runtime = tokio::runtime::Builder::new_current_thread().build()?;
    let services = RULES.map(|count| {
        let rules = (0..count).map(|number| {
            let descriptor = vec![format!("path=/t{number}"), KEYS[0].to_owned()];
            let limits = vec![format!("{ENDLESS}/hour")];
            (format!("rule-{number}"), DomainRule { descriptor, limits, ..DomainRule::default() })
        });
        let domains = Domains::from([(DOMAIN.to_owned(), rules.collect())]);
        decision_service(&domains, None)
    });
    let services = services.into_iter().collect::<Result<Vec<_>>>()?;
    let entries = [("path", "/t7"), (KEYS[0], "192.0.2.1")]
        .map(|(key, value)| Entry { key: key.to_owned(), value: value.to_owned() });
    let descriptor =
        RateLimitDescriptor { entries: entries.into(), ..RateLimitDescriptor::default() };
    let request =
        RateLimitRequest { domain: DOMAIN.into(), descriptors: vec![descriptor], hits_addend: 1 };
    let race = Race::run(RULES.len(), report.rounds(41), |turn| {
        let service = EnvoyService::new(services[turn.contender].clone());
        let (taken, ()) = time_on_processor(|| {
            runtime.block_on(async {
                for _ in 0..REQUESTS {
                    let answer = service.should_rate_limit(request.clone()).await;
                    let answer = answer.expect("a valid request");
                    assert!(answer.statuses[0].current_limit.is_some(), "a rule matches");
                }
            });
        });
        [taken.as_secs_f64() * 1e6 / f64::from(REQUESTS)]
    });
    report.at_most("10 000 rules of a domain: time beside 10", 1.5, race.multiple(1, 0, 0));
    Ok(())
}

/// Creates our service with this number of rules, each with this number of limits.
fn service(rules: usize, periods: usize, store: Option<RedisStore>) -> Result<EnvoyService> {
    let rules = KEYS[..rules].iter().map(|key| {
        let limits = PERIODS[..periods].iter().map(|(_, period)| format!("{ENDLESS}/{period}"));
        let rule = DomainRule {
            descriptor: vec![(*key).to_owned()],
            limits: limits.collect(),
            ..DomainRule::default()
        };
        ((*key).to_owned(), rule)
    });
    let domains = Domains::from([(DOMAIN.to_owned(), rules.collect())]);
    Ok(EnvoyService::new(decision_service(&domains, store)?))
}

fn decision_service(domains: &Domains, store: Option<RedisStore>) -> Result<DecisionService> {
    let limiter = RateLimiter::builder().rules(compile(domains, Rules::new())?);
    let limiter = match store {
        Some(store) => limiter.store(store),
        None => limiter,
    };
    Ok(DecisionService::new(HttpLimiter::new(limiter.build()?)))
}

/// Creates limitador with this number of rules, each with this number of limits.
fn limitador(rules: usize, periods: usize) -> Result<Arc<limitador::RateLimiter>> {
    let limiter = limitador::RateLimiter::new(100_000);
    for (place, key) in KEYS[..rules].iter().enumerate() {
        for (seconds, _) in &PERIODS[..periods] {
            let variable = Expression::parse(format!("descriptors[{place}].{key}"))?;
            let max = u64::from(ENDLESS);
            limiter.add_limit(LimitadorLimit::new(DOMAIN, max, *seconds, [], [variable]));
        }
    }
    Ok(Arc::new(limiter))
}

/// How a server finds the response to a call.
#[derive(Clone)]
enum Answer {
    Nothing,
    Ours(EnvoyService),
    Limitador(Arc<limitador::RateLimiter>),
}

impl Answer {
    async fn to(
        &self,
        request: RateLimitRequest,
    ) -> std::result::Result<RateLimitResponse, tonic::Status> {
        let is_limited = match self {
            Self::Nothing => false,
            Self::Ours(service) => return service.should_rate_limit(request).await,
            Self::Limitador(limiter) => {
                let mut values = Values::default();
                let descriptors = request.descriptors.into_iter().map(|descriptor| {
                    descriptor.entries.into_iter().map(|entry| (entry.key, entry.value)).collect()
                });
                values.list_binding("descriptors".into(), descriptors.collect());
                let namespace = DOMAIN.into();
                let result = limiter.check_rate_limited_and_update(&namespace, &values, 1);
                result.map_err(|error| tonic::Status::internal(error.to_string()))?.limited
            }
        };
        let code = if is_limited { Code::OverLimit } else { Code::Ok };
        Ok(RateLimitResponse { overall_code: code.into(), ..RateLimitResponse::default() })
    }
}

impl NamedService for Answer {
    const NAME: &'static str = EnvoyService::NAME;
}

impl Service<Request<Body>> for Answer {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future =
        Pin<Box<dyn Future<Output = std::result::Result<Response<Body>, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<std::result::Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        // Ours has its own server around it, as the product does.
        if let Self::Ours(service) = self {
            return service.call(request);
        }
        let this = self.clone();
        Box::pin(async move {
            let call = tower::service_fn(move |request: tonic::Request<RateLimitRequest>| {
                let this = this.clone();
                async move { this.to(request.into_inner()).await.map(tonic::Response::new) }
            });
            Ok(tonic::server::Grpc::new(ProstCodec::default()).unary(call, request).await)
        })
    }
}

/// Starts a server in a thread of its own. Returns its address.
fn start(answer: impl FnOnce() -> Result<Answer> + Send + 'static) -> Result<SocketAddr> {
    start_async(move |_| answer())
}

fn start_async(
    answer: impl FnOnce(&tokio::runtime::Runtime) -> Result<Answer> + Send + 'static,
) -> Result<SocketAddr> {
    let (sender, address) = mpsc::channel();
    thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.expect("a runtime");
        let answer = answer(&runtime).expect("the server starts");
        runtime.block_on(async move {
            let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
            sender.send(listener.local_addr().expect("it is bound")).expect("the client waits");
            let incoming =
                tonic::transport::server::TcpIncoming::from(listener).with_nodelay(Some(true));
            let server = Server::builder().add_service(answer);
            server.serve_with_incoming(incoming).await.expect("the server runs until the end");
        });
    });
    Ok(address.recv()?)
}

/// A client of a server.
struct Client {
    channel: Channel,
    request: RateLimitRequest,
}

impl Client {
    async fn connect(address: SocketAddr, descriptors: usize) -> Result<Self> {
        let channel = Endpoint::from_shared(format!("http://{address}"))?.connect().await?;
        let descriptors = KEYS[..descriptors].iter().map(|key| RateLimitDescriptor {
            entries: vec![Entry { key: (*key).to_owned(), value: "192.0.2.1".into() }],
            ..RateLimitDescriptor::default()
        });
        let request = RateLimitRequest {
            domain: DOMAIN.into(),
            descriptors: descriptors.collect(),
            hits_addend: 1,
        };
        Ok(Self { channel, request })
    }

    /// Returns the calls per second with [`IN_FLIGHT`] calls in flight.
    async fn rate(&self) -> Result<f64> {
        let begun = Instant::now();
        let mut calls = JoinSet::new();
        for _ in 0..IN_FLIGHT {
            let (mut grpc, request) = (Grpc::new(self.channel.clone()), self.request.clone());
            calls.spawn(async move {
                let mut count = 0;
                while begun.elapsed() < SLICE {
                    call(&mut grpc, &request).await;
                    count += 1;
                }
                count
            });
        }
        let count: u32 = calls.join_all().await.into_iter().sum();
        Ok(f64::from(count) / begun.elapsed().as_secs_f64())
    }

    /// Returns the microseconds of single calls, in order.
    async fn times(&self) -> Result<Vec<f64>> {
        let mut grpc = Grpc::new(self.channel.clone());
        let (begun, mut times) = (Instant::now(), Vec::new());
        while begun.elapsed() < SLICE {
            let sent = Instant::now();
            call(&mut grpc, &self.request).await;
            times.push(sent.elapsed().as_secs_f64() * 1e6);
        }
        Ok(sorted(times))
    }
}

async fn call(grpc: &mut Grpc<Channel>, request: &RateLimitRequest) {
    grpc.ready().await.expect("the server runs");
    let path = PathAndQuery::from_static(METHOD);
    let codec = ProstCodec::<RateLimitRequest, RateLimitResponse>::default();
    let answer = grpc.unary(tonic::Request::new(request.clone()), path, codec).await;
    let code = answer.expect("a response").into_inner().overall_code();
    assert_eq!(code, Code::Ok, "no limit is used up");
}
