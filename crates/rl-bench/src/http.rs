//! Measures what a rate limit costs a web service.
//!
//! axum and actix-web are measured with a layer that does nothing, with our limiter, and with those
//! of other crates. All servers run in this process, and take turns in serving requests.

mod on_actix;
mod on_axum;

use std::convert::Infallible;
use std::io::{self, Error, ErrorKind};
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use axum::body::Body;
use axum::http::{Request, Response};
use on_actix::Running;
use rl_core::RateLimiter;
use rl_core::key::Constant;
use rl_tower::RateLimitLayer;
use stats_alloc::Region;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::Instant;
use tower::{Layer, Service, service_fn};

use crate::Result;
use crate::algorithms::six;
use crate::measure::Race;
use crate::redis::Server as Redis;
use crate::report::{Report, Table};

/// The number of concurrent connections.
const CONNECTIONS: usize = 32;
/// The duration of a server's turn.
const SLICE: Duration = Duration::from_millis(120);
const ROUNDS: usize = 40;

/// The headers of a layer that does nothing but add them.
const LINES: [&str; 3] = ["x-rate-limit-limit", "x-rate-limit-remaining", "x-rate-limit-reset"];

/// A server, and the connections to it.
struct MeasuredServer {
    name: String,
    clients: Vec<HttpClient>,
    _running: Option<Running>,
}

impl MeasuredServer {
    async fn new(name: &str, address: &str, host: &str, running: Option<Running>) -> Result<Self> {
        let mut clients = Vec::new();
        for _ in 0..CONNECTIONS {
            clients.push(HttpClient::connect(address, host).await?);
        }
        Ok(Self { name: name.to_owned(), clients, _running: running })
    }

    /// Sends requests on all connections. Returns the seconds for each response.
    async fn take_turn(&mut self) -> Result<f64> {
        let begun = Instant::now();
        let clients = self.clients.drain(..);
        let asking: Vec<_> =
            clients.map(|client| tokio::spawn(client.ask_until(begun + SLICE))).collect();
        let mut responses = 0;
        for asked in asking {
            let asked = asked.await?.map_err(|error| format!("{}: {error}", self.name))?;
            self.clients.push(asked.0);
            responses += asked.1;
        }
        Ok(begun.elapsed().as_secs_f64() / responses as f64)
    }
}

/// A client that does as little work as possible, so that the measured time is the server's.
struct HttpClient {
    stream: TcpStream,
    request: Arc<[u8]>,
}

impl HttpClient {
    async fn connect(address: &str, host: &str) -> io::Result<Self> {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        let request = format!("GET / HTTP/1.1\r\nhost: {host}\r\n\r\n").into_bytes().into();
        Ok(Self { stream, request })
    }

    /// Sends requests until this time. Returns the number of responses.
    async fn ask_until(mut self, end: Instant) -> io::Result<(Self, usize)> {
        let mut responses = 0;
        while Instant::now() < end {
            let status = self.ask().await?;
            if status != 200 {
                return Err(Error::other(format!("status {status}, and no limit is used up")));
            }
            responses += 1;
        }
        Ok((self, responses))
    }

    /// Sends a request and returns the status of the response.
    async fn ask(&mut self) -> io::Result<u16> {
        self.stream.write_all(&self.request).await?;
        let (mut buffer, mut read) = ([0; 4_096], 0);
        loop {
            match self.stream.read(&mut buffer[read..]).await? {
                0 => return Err(Error::new(ErrorKind::InvalidData, "no complete response")),
                more => read += more,
            }
            if let Some(status) = response(&buffer[..read]) {
                return Ok(status);
            }
        }
    }
}

/// Returns the status of a response, or `None` if the response is not complete yet.
fn response(bytes: &[u8]) -> Option<u16> {
    let head = bytes.windows(4).position(|end| end == b"\r\n\r\n")? + 4;
    let text = std::str::from_utf8(&bytes[..head]).ok()?;
    let status = text.get(9..12)?.parse().ok()?;
    let length = text.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.eq_ignore_ascii_case("content-length").then(|| value.trim().parse::<usize>().ok())?
    });
    (bytes.len() >= head + length.unwrap_or(0)).then_some(status)
}

/// Measures the requests per second of all servers, and the allocations of our layer.
pub(crate) fn run(report: &mut Report) -> Result {
    allocations(report)?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(rates(report))
}

async fn rates(report: &mut Report) -> Result {
    // The places of the servers with goals, and of those that `--server` names.
    const NO_OP: usize = 0;
    const OURS: usize = 2;
    const TOWER_GOVERNOR: usize = 3;
    const ON_ACTIX: usize = 5;
    const OURS_ON_ACTIX: usize = 7;
    const GIVEN: usize = 12;
    let redis = Redis::start()?;
    let mut servers = Vec::new();
    for (name, address) in [
        ("axum, a layer that does nothing", on_axum::no_op().await?),
        ("axum, three header lines", on_axum::lines().await?),
        ("axum, ours, six periods", on_axum::ours().await?),
        ("axum, tower_governor, one", on_axum::tower_governor().await?),
        ("axum, axum-governor, one", on_axum::axum_governor().await?),
    ] {
        servers.push(MeasuredServer::new(name, &address.to_string(), "localhost", None).await?);
    }
    for (name, running) in [
        ("actix, a middleware that does nothing", on_actix::no_op()?),
        ("actix, three header lines", on_actix::lines()?),
        ("actix, ours, six periods", on_actix::ours()?),
        ("actix, actix-extensible-rate-limit, one", on_actix::extensible()?),
        ("actix, ours on Redis, six", on_actix::ours_on_redis(&redis.url(0)).await?),
        (
            "actix, actix-extensible-rate-limit on Redis, one",
            on_actix::extensible_on_redis(&redis.url(1)).await?,
        ),
        ("actix, actix-limitation on Redis, one", on_actix::limitation(&redis.url(2))?),
    ] {
        let address = running.address.to_string();
        servers.push(MeasuredServer::new(name, &address, "localhost", Some(running)).await?);
    }
    for (name, url) in &report.options.servers {
        let address = url.trim_start_matches("http://").split('/').next().unwrap_or_default();
        servers.push(MeasuredServer::new(name, address, address, None).await?);
    }
    let mut race = Race::new(servers.len());
    for turn in race.turns(report.rounds(ROUNDS)) {
        race.record(turn, [servers[turn.contender].take_turn().await?]);
    }
    let columns = ["", "thousand/s", "beside doing nothing"];
    let title = format!("requests, {CONNECTIONS} connections, each server alone at its time");
    let mut table = Table::new(&title, columns);
    for (place, server) in servers.iter().enumerate() {
        let no_op = if place < ON_ACTIX { NO_OP } else { ON_ACTIX };
        let rate = 1e-3 / race.median(place, 0);
        table.row(&server.name, [rate.into(), race.multiple(no_op, place, 0)]);
    }
    report.table(table);
    let goals = [(TOWER_GOVERNOR, OURS), (NO_OP, OURS), (ON_ACTIX, OURS_ON_ACTIX)];
    let given = (GIVEN..servers.len()).map(|place| (place, OURS_ON_ACTIX));
    for (other, ours) in goals.into_iter().chain(given) {
        let what = format!("{}: requests beside {}", servers[ours].name, servers[other].name);
        report.at_least(what, 0.97, race.multiple(other, ours, 0));
    }
    Ok(())
}

/// Counts the allocations that our layer adds to a request, whose response has the headers of six
/// periods.
fn allocations(report: &mut Report) -> Result {
    // The response has a header, as most responses do.
    let plain = service_fn(|_: Request<Body>| async {
        let response = Response::builder().header("content-type", "text/plain");
        Ok::<_, Infallible>(response.body(Body::empty()).expect("a response"))
    });
    // The numbers have four digits, as in most headers.
    let limiter = RateLimiter::builder().policy(six(9_999)?).build()?;
    let layer = RateLimitLayer::new(limiter).key(Constant);
    let added = count_allocations(layer.layer(plain)) - count_allocations(plain);
    report.at_most("allocations that the layer adds to a request", 5.0, added);
    Ok(())
}

/// Sends requests to the service. Returns the number of allocations for each request.
fn count_allocations<S, B>(mut service: S) -> f64
where
    S: Service<Request<Body>, Response = Response<B>>,
{
    const REQUESTS: u32 = 1_000;
    let mut context = Context::from_waker(Waker::noop());
    let mut ask = || {
        let is_ready = service.poll_ready(&mut context).is_ready();
        let mut request = Request::new(Body::empty());
        // The request has extensions, as in axum.
        request.extensions_mut().insert(REQUESTS);
        let answered = pin!(service.call(request)).poll(&mut context);
        assert!(is_ready && matches!(answered, Poll::Ready(Ok(_))), "nothing here waits");
    };
    // The first request creates the subject's entry. This allocation is not counted.
    ask();
    let region = Region::new(crate::ALLOCATOR);
    (0..REQUESTS).for_each(|_| ask());
    let change = region.change();
    (change.allocations + change.reallocations) as f64 / f64::from(REQUESTS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_response_ends_with_its_body() {
        let text = b"HTTP/1.1 429 Too Many Requests\r\nContent-Length: 5\r\nx: y\r\n\r\nHello";
        assert_eq!(response(text), Some(429));
        for cut in 0..text.len() {
            assert_eq!(response(&text[..cut]), None, "{cut}");
        }
        let empty = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n";
        assert_eq!(response(empty), Some(200));
    }
}
