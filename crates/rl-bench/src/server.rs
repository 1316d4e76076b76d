//! Measures the decision server beside limitador, and beside the commands that limitador and Envoy's
//! own service send to Redis. Those run behind a minimal server of tonic.

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

/// A service with its name, and the least multiple of its rate that the first service must reach.
type Contender<'a> = (&'a str, ServiceSettings, Option<f64>);

/// Measures all services. The client has one thread.
pub(crate) fn run(report: &mut Report) -> Result {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let redis = Redis::start()?;
        let url = || Some(redis.next_url());
        let of = |kind, rules, limits, redis| ServiceSettings {
            kind,
            rules,
            limits,
            max: ENDLESS,
            redis,
        };
        let no_op = of(Kind::NoOp, 1, 1, None);
        let doing_nothing = || ("a service that does nothing", no_op.clone(), None);
        for (what, rules, limits, floor) in
            [("one rule of one limit", 1, 1, 1.2), ("three rules of six limits", 3, 6, 3.0)]
        {
            let limitador = of(Kind::Limitador, rules, limits, None);
            let ours = ("ours", of(Kind::Ours, rules, limits, None), None);
            let contenders = [ours, doing_nothing(), ("limitador", limitador, Some(floor))];
            rates(report, what, rules, &contenders).await?;
        }
        for (what, limits, floors) in [
            ("Redis, three rules of one limit", 1, [None, None]),
            ("Redis, three rules of six limits", 6, [Some(1.5), Some(0.8)]),
        ] {
            let limitador = of(Kind::Limitador, 3, limits, url());
            let contenders = [
                ("ours", of(Kind::Ours, 3, limits, url()), None),
                doing_nothing(),
                ("limitador's commands", limitador, floors[0]),
                ("Envoy's commands, not atomic", of(Kind::Envoy, 3, limits, url()), floors[1]),
            ];
            rates(report, what, 3, &contenders).await?;
        }
        let rules = |count| of(Kind::Ours, count, 1, None);
        let few = ("10 rules", rules(10), Some(0.67));
        rates(report, "many rules", 1, &[("10 000 rules", rules(10_000), None), few]).await?;
        latencies(report, [no_op.clone(), rules(1)]).await
    })
}

/// Compares the rates of services. A call has this number of descriptors.
async fn rates(
    report: &mut Report,
    what: &str,
    descriptors: usize,
    contenders: &[Contender<'_>],
) -> Result {
    let mut servers = Vec::new();
    for (_, settings, _) in contenders {
        servers.push(ServerProcess::start(settings, descriptors).await?);
    }
    let mut race = Race::new(servers.len());
    for turn in race.turns(report.rounds(ROUNDS)) {
        race.record(turn, servers[turn.contender].take_turn().await?);
    }
    let title = format!("the server, {what}: {} calls in flight", CONNECTIONS * STREAMS);
    let columns = ["", "thousand/s", "µs of its processor", "rate of the first beside it"];
    let mut table = Table::new(&title, columns);
    for (place, (name, _, floor)) in contenders.iter().enumerate() {
        let (rate, micros) = (race.median(place, SECONDS), race.median(place, PROCESSOR));
        let beside = race.multiple(place, 0, SECONDS);
        table.row(name, [(1e-3 / rate).into(), (1e6 * micros).into(), beside]);
        if let Some(floor) = floor {
            report.at_least(format!("server, {what}: rate beside {name}"), *floor, beside);
        }
    }
    report.table(table);
    Ok(())
}

/// Measures the time of single calls beside a service that does nothing.
async fn latencies(report: &mut Report, services: [ServiceSettings; 2]) -> Result {
    let mut servers = Vec::new();
    for settings in services {
        servers.push(ServerProcess::start(&settings, 1).await?);
    }
    let mut race = Race::new(servers.len());
    for turn in race.turns(report.rounds(2 * ROUNDS)) {
        let micros = servers[turn.contender].latencies().await?;
        race.record(turn, [0.5, 0.99].map(|q| quantile(&micros, q)));
    }
    let columns = ["", "a service that does nothing", "ours", "added"];
    let mut table = Table::new("the server, one call at a time: µs", columns);
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

/// A process that runs a service, and the connections to it.
struct ServerProcess {
    connections: Vec<Connection>,
    calls: Arc<[Bytes]>,
    process: Child,
}

impl ServerProcess {
    /// Starts a service. Its calls have this number of descriptors.
    async fn start(settings: &ServiceSettings, descriptors: usize) -> Result<Self> {
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
        Ok(Self { connections, calls, process })
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
    let entry = |key| Entry::new(&format!("key-{key}"), &value);
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
        for (kind, is_on_redis) in [
            (Kind::Ours, false),
            (Kind::Ours, true),
            (Kind::Limitador, false),
            (Kind::Limitador, true),
            (Kind::Envoy, true),
        ] {
            let url = is_on_redis.then(|| redis.next_url());
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
