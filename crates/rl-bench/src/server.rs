//! Measures the decision server beside limitador and the algorithm of Envoy's own service. These
//! run behind a minimal server of tonic.

mod services;

use std::net::SocketAddr;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Bytes;
use axum::http::Request;
use h2::client::SendRequest;
use prost::Message;
use rl_server::grpc::messages::{Entry, RateLimitDescriptor, RateLimitRequest};
use services::{DOMAIN, Kind, ServiceSettings};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::net::TcpStream;
use tokio::process::{Child, Command};
use tokio::time::Instant;

use crate::Result;
use crate::algorithms::ENDLESS;
use crate::measure::{Estimate, Race, quantile, sorted, time_async};
use crate::redis::Server as Redis;
use crate::report::{Report, Table};

/// The connections of the client, as of a gateway, and the calls in flight on each.
const CONNECTIONS: usize = 4;
const STREAMS: usize = 16;
const ADDRESSES: usize = 10_000;
/// The duration of a server's turn, and its calls while latencies are measured.
const SLICE: Duration = Duration::from_millis(200);
const CALLS: usize = 2_000;
const ROUNDS: usize = 15;
/// The quantities of a turn, for each call: the seconds, and the seconds of the server's processor.
const SECONDS: usize = 0;
const PROCESSOR: usize = 1;

/// Runs this process as a service. Prints its address.
pub(crate) fn serve(settings: &str) -> Result {
    let settings: ServiceSettings = serde_json::from_str(settings)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let (address, serving) = settings.start().await?;
        println!("{address}");
        serving.await
    })
}

/// Measures all services. The client has one thread.
pub(crate) fn run(report: &mut Report) -> Result {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let redis = Redis::start()?;
        let url = |database| Some(redis.url(database));
        let [others, on_redis] = [
            &[("limitador", Kind::Limitador, 1.2)][..],
            &[("limitador's commands", Kind::Limitador, 1.5), ("Envoy's", Kind::Envoy, 0.8)],
        ];
        rates(report, "one rule of one limit", (1, 1), &|_| None, others).await?;
        let others = [("limitador", Kind::Limitador, 3.0)];
        rates(report, "three rules of six limits", (3, 6), &|_| None, &others).await?;
        rates(report, "Redis, three rules of one limit", (3, 1), &url, on_redis).await?;
        rates(report, "Redis, three rules of six limits", (3, 6), &url, on_redis).await?;
        latencies(report).await?;
        many_rules(report).await
    })
}

/// Compares our server with one that does nothing, and with others. Each of these has the least
/// multiple of its rate that ours must reach.
async fn rates(
    report: &mut Report,
    what: &str,
    (rules, limits): (usize, usize),
    redis: &dyn Fn(usize) -> Option<String>,
    others: &[(&str, Kind, f64)],
) -> Result {
    const OURS: usize = 1;
    let first = [("a service that does nothing", Kind::NoOp), ("ours", Kind::Ours)];
    let others_named = others.iter().map(|(name, kind, _)| (*name, *kind));
    let mut servers = Vec::new();
    for (place, (name, kind)) in first.into_iter().chain(others_named).enumerate() {
        // A database for each, and for each number of limits.
        let redis = redis(4 * limits + place);
        let settings = ServiceSettings { kind, rules, limits, max: ENDLESS, redis };
        servers.push(ServerProcess::start(name, &settings, rules).await?);
    }
    let race = race(report, &mut servers).await?;
    let title = format!("the server, {what}: {} calls in flight", CONNECTIONS * STREAMS);
    let mut table = Table::new(&title, ["", "thousand/s", "µs of its processor", "ours beside it"]);
    for (place, server) in servers.iter().enumerate() {
        let [rate, micros] =
            [1e-3 / race.median(place, SECONDS), 1e6 * race.median(place, PROCESSOR)];
        table.row(&server.name, [rate.into(), micros.into(), race.multiple(place, OURS, SECONDS)]);
    }
    report.table(table);
    for (place, (name, _, floor)) in others.iter().enumerate() {
        let goal = format!("server, {what}: calls beside {name}");
        report.at_least(goal, *floor, race.multiple(place + 2, OURS, SECONDS));
    }
    Ok(())
}

/// Measures the time of single calls beside a service that does nothing.
async fn latencies(report: &mut Report) -> Result {
    let mut servers = Vec::new();
    for kind in [Kind::NoOp, Kind::Ours] {
        let settings = ServiceSettings { kind, rules: 1, limits: 1, max: ENDLESS, redis: None };
        servers.push(ServerProcess::start("", &settings, 1).await?);
    }
    let mut race = Race::new(servers.len());
    for turn in race.turns(report.rounds(2 * ROUNDS)) {
        let micros = servers[turn.contender].latencies().await?;
        race.record(turn, [0.5, 0.99].map(|q| quantile(&micros, q)));
    }
    let mut table =
        Table::new("the server, one call at a time: µs", ["", "does nothing", "ours", "added"]);
    for (place, (name, most)) in [("p50", 15.0), ("p99", 60.0)].into_iter().enumerate() {
        let [no_op, ours] = [0, 1].map(|contender| race.samples(contender, place));
        let added = ours.iter().zip(&no_op).map(|(ours, no_op)| ours - no_op);
        let added = Estimate::of(&added.collect::<Vec<_>>());
        table.row(name, [Estimate::of(&no_op), Estimate::of(&ours), added]);
        report.at_most(format!("server, one call at a time: added µs, {name}"), most, added);
    }
    report.table(table);
    Ok(())
}

/// Compares calls under many rules, of which one matches, with calls under few.
async fn many_rules(report: &mut Report) -> Result {
    let mut servers = Vec::new();
    for rules in [10, 10_000] {
        let settings =
            ServiceSettings { kind: Kind::Ours, rules, limits: 1, max: ENDLESS, redis: None };
        servers.push(ServerProcess::start(&rules.to_string(), &settings, 1).await?);
    }
    let race = race(report, &mut servers).await?;
    let mut table = Table::new("the server, by the number of rules", ["rules", "thousand/s"]);
    for (place, server) in servers.iter().enumerate() {
        table.row(&server.name, [1e-3 / race.median(place, SECONDS)]);
    }
    report.table(table);
    let what = "server, 10 000 rules: time of a call beside 10";
    report.at_most(what, 1.5, race.multiple(1, 0, SECONDS));
    Ok(())
}

/// Sends calls to the servers in turns.
async fn race(report: &Report, servers: &mut [ServerProcess]) -> Result<Race<2>> {
    let mut race = Race::new(servers.len());
    for turn in race.turns(report.rounds(ROUNDS)) {
        race.record(turn, servers[turn.contender].take_turn().await?);
    }
    Ok(race)
}

/// A process that runs a service, and the connections to it.
struct ServerProcess {
    name: String,
    connections: Vec<Connection>,
    calls: Arc<[Bytes]>,
    process: Child,
}

impl ServerProcess {
    /// Starts a service. Its calls have this number of descriptors.
    async fn start(name: &str, settings: &ServiceSettings, descriptors: usize) -> Result<Self> {
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["serve", &serde_json::to_string(settings)?]);
        let mut process = command.stdout(Stdio::piped()).kill_on_drop(true).spawn()?;
        let output = BufReader::new(process.stdout.take().ok_or("its output is piped")?);
        let address = output.lines().next_line().await?.ok_or("a service ended at its start")?;
        let mut connections = Vec::new();
        for _ in 0..CONNECTIONS {
            connections.push(Connection::open(address.parse()?).await?);
        }
        let calls = (0..ADDRESSES).map(|n| call(descriptors, n)).collect();
        Ok(Self { name: name.to_owned(), connections, calls, process })
    }

    /// Makes calls on all connections. Returns the quantities of a call.
    async fn take_turn(&self) -> Result<[f64; 2]> {
        let (begun, processor) = (Instant::now(), self.processor_time()?);
        let tasks = (0..CONNECTIONS * STREAMS).map(|task| {
            let connection = self.connections[task % CONNECTIONS].clone();
            let calls = Arc::clone(&self.calls);
            // The tasks begin at different addresses.
            let first = task * ADDRESSES / (CONNECTIONS * STREAMS);
            tokio::spawn(async move {
                let mut count = 0;
                while begun.elapsed() < SLICE {
                    let call = &calls[(first + count) % ADDRESSES];
                    assert!(connection.call(call).await?, "no limit is used up");
                    count += 1;
                }
                Ok::<_, h2::Error>(count)
            })
        });
        let mut calls = 0;
        for task in tasks.collect::<Vec<_>>() {
            calls += task.await??;
        }
        let processor = self.processor_time()? - processor;
        Ok([begun.elapsed().as_secs_f64(), processor].map(|seconds| seconds / calls as f64))
    }

    /// Makes one call after the other. Returns the times in µs, in ascending order.
    async fn latencies(&self) -> Result<Vec<f64>> {
        let mut micros = Vec::new();
        for call in self.calls.iter().cycle().take(CALLS) {
            let (taken, is_allowed) = time_async(self.connections[0].call(call)).await;
            assert!(is_allowed?, "no limit is used up");
            micros.push(taken.as_secs_f64() * 1e6);
        }
        Ok(sorted(micros))
    }

    /// Returns the processor time of the service's thread, in seconds.
    fn processor_time(&self) -> Result<f64> {
        let id = self.process.id().ok_or("the service has ended")?;
        let nanos = std::fs::read_to_string(format!("/proc/{id}/schedstat"))?;
        Ok(nanos.split(' ').next().unwrap_or_default().parse::<f64>()? * 1e-9)
    }
}

/// A connection of a client that does as little work as possible.
#[derive(Clone)]
struct Connection {
    client: SendRequest<Bytes>,
    request: Request<()>,
}

impl Connection {
    async fn open(address: SocketAddr) -> Result<Self> {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        let (client, connection) = h2::client::handshake(stream).await?;
        tokio::spawn(connection);
        let path = "envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";
        let request = Request::post(format!("http://{address}/{path}"));
        let request = request.header("content-type", "application/grpc").header("te", "trailers");
        Ok(Self { client, request: request.body(())? })
    }

    /// Makes a call. Returns whether it is allowed.
    async fn call(&self, message: &Bytes) -> std::result::Result<bool, h2::Error> {
        let mut client = self.client.clone().ready().await?;
        let (response, mut body) = client.send_request(self.request.clone(), false)?;
        body.send_data(message.clone(), true)?;
        let mut body = response.await?.into_body();
        let mut is_allowed = false;
        while let Some(data) = body.data().await {
            let data = data?;
            // The response begins with its overall code: tag 1, and 1 for OK.
            is_allowed |= data.get(5..7) == Some(&[8, 1]);
            body.flow_control().release_capacity(data.len())?;
        }
        body.trailers().await?;
        Ok(is_allowed)
    }
}

/// Returns the frame of a call with this number of descriptors, each about the address with number
/// `n`.
fn call(descriptors: usize, n: usize) -> Bytes {
    let value = format!("10.1.{}.{}", n / 256, n % 256);
    let entry = |key| Entry { key: format!("key-{key}"), value: value.clone() };
    let descriptor = |key| RateLimitDescriptor { entries: vec![entry(key)], ..Default::default() };
    let descriptors = (0..descriptors).map(descriptor).collect();
    let message = RateLimitRequest { domain: DOMAIN.to_owned(), descriptors, hits_addend: 0 };
    let message = message.encode_to_vec();
    // A byte for the compression, and the length.
    let length = u32::try_from(message.len()).expect("a short message").to_be_bytes();
    [&[0][..], &length, &message].concat().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn every_service_denies_the_request_beyond_a_limit() {
        let redis = Redis::start().unwrap();
        for (database, (kind, is_on_redis)) in [
            (Kind::Ours, false),
            (Kind::Ours, true),
            (Kind::Limitador, false),
            (Kind::Limitador, true),
            (Kind::Envoy, true),
        ]
        .into_iter()
        .enumerate()
        {
            let url = is_on_redis.then(|| redis.url(database));
            let settings = ServiceSettings { kind, rules: 3, limits: 6, max: 1, redis: url };
            let (address, serving) = settings.start().await.unwrap();
            let asking = async {
                let connection = Connection::open(address).await.unwrap();
                let mut answers = Vec::new();
                for n in [0, 1, 0] {
                    answers.push(connection.call(&call(3, n)).await.unwrap());
                }
                answers
            };
            tokio::select! {
                ended = serving => panic!("{kind:?}: {ended:?}"),
                answers = asking => assert_eq!(answers, [true, true, false], "{kind:?}"),
            }
        }
    }
}
