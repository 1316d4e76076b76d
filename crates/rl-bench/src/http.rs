//! What a limit costs a web service: axum without one, with ours, and with tower_governor, all three
//! served by this process and asked in turns.

use std::error::Error;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::routing::get;
use http_body_util::{BodyExt, Empty};
use hyper::body::Bytes;
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper::{Request, StatusCode};
use hyper_util::rt::TokioIo;
use rl_core::{Limit, Period, Policy, RateLimiter};
use rl_tower::RateLimitLayer;
use tokio::net::{TcpListener, TcpStream};
use tokio::time::Instant;
use tower_governor::GovernorLayer;
use tower_governor::governor::GovernorConfigBuilder;
use tower_governor::key_extractor::PeerIpKeyExtractor;

use crate::goals::{self, Goal, Unit};
use crate::machine;
use crate::measure::{Estimate, median};
use crate::progress::Progress;
use crate::table::Table;

/// Connections that ask at the same time.
const CONNECTIONS: usize = 32;
/// One turn of a server.
const SLICE: Duration = Duration::from_millis(250);
/// Rounds in which each server has two turns, there and back.
const ROUNDS: usize = 40;

/// Never used up, and the most that governor takes in a second.
const ENDLESS: u32 = 1_000_000_000;

/// A server under its name, and those who ask it.
struct Server {
    name: &'static str,
    address: SocketAddr,
    clients: Vec<SendRequest<Empty<Bytes>>>,
    /// Of each turn: answers in a second, and the time below which 99 of 100 answers came, in µs.
    turns: Vec<(f64, f64)>,
}

/// Measures, prints, and returns what was promised.
pub(crate) fn run() -> Result<Vec<Goal>, Box<dyn Error>> {
    println!("rl-tower on axum: six periods for each address\n");
    println!("machine   {}", machine::cores());
    println!(
        "versions  {}, {}, {}, {}\n",
        machine::library("axum"),
        machine::library("tower_governor"),
        machine::program("rustc"),
        machine::profile()
    );
    tokio::runtime::Builder::new_multi_thread().enable_all().build()?.block_on(measure())
}

async fn measure() -> Result<Vec<Goal>, Box<dyn Error>> {
    let plain = || Router::new().route("/", get(|| async { "Hello" }));
    let periods = Period::NAMED.map(|period| Limit::new(ENDLESS.into(), period));
    let policy = Policy::new(periods.into_iter().collect::<Result<Vec<_>, _>>()?)?;
    let ours = RateLimiter::builder().policies(policy).build()?;
    let theirs = GovernorConfigBuilder::default()
        .per_nanosecond(1)
        .burst_size(ENDLESS)
        .key_extractor(PeerIpKeyExtractor)
        .use_headers()
        .finish()
        .ok_or("a rate and a burst above 0")?;
    let mut servers = vec![
        Server::start("no limit", plain()).await?,
        Server::start("no limit, again", plain()).await?,
        Server::start("ours, six periods", plain().layer(RateLimitLayer::new(ours))).await?,
        Server::start(
            "tower_governor, one period",
            plain().layer(GovernorLayer::new(Arc::new(theirs))),
        )
        .await?,
    ];
    let progress = Progress::of(ROUNDS);
    for _ in 0..ROUNDS {
        let there_and_back = (0..servers.len()).chain((0..servers.len()).rev());
        for place in there_and_back {
            servers[place].take_turn().await?;
        }
        progress.tick();
    }
    drop(progress);
    Ok(tell(&servers))
}

fn tell(servers: &[Server]) -> Vec<Goal> {
    let mut table = Table::new(
        "requests in turns (32 connections, 2 turns of 250 ms in each of 40 rounds)",
        ["server", "a second", "beside no limit", "p99 µs", "more than no limit"],
    );
    let bare = &servers[0];
    let mut goals = Vec::new();
    for server in servers {
        let pairs = server.turns.iter().zip(&bare.turns);
        let (ratios, added): (Vec<f64>, Vec<f64>) =
            pairs.map(|(mine, theirs)| (mine.0 / theirs.0, mine.1 - theirs.1)).unzip();
        let (throughput, added) = (Estimate::of(&ratios), Estimate::of(&added));
        let of = |part: fn(&(f64, f64)) -> f64| {
            median(&server.turns.iter().map(part).collect::<Vec<_>>())
        };
        table.row([
            server.name.to_owned(),
            format!("{:.0}", of(|turn| turn.0)),
            throughput.to_string(),
            format!("{:.0}", of(|turn| turn.1)),
            format!("{:.1}", added.median),
        ]);
        if server.name.starts_with("ours") {
            let lines = (0.97, 0.99, Unit::Times);
            let what = "axum with six periods beside none: requests";
            goals.push(Goal::measured("M9", what, lines, throughput));
            let lines = (5.0, 1.0, Unit::AtMost("µs"));
            goals.push(Goal::measured("M9", "the same: added to p99", lines, added));
        }
    }
    println!("{table}\n{}", goals::table(&goals));
    goals
}

impl Server {
    async fn start(name: &'static str, router: Router) -> Result<Self, Box<dyn Error>> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let service = router.into_make_service_with_connect_info::<SocketAddr>();
        // It ends with the runtime.
        tokio::spawn(async move { axum::serve(listener, service).await });
        let mut clients = Vec::new();
        for _ in 0..CONNECTIONS {
            let stream = TcpStream::connect(address).await?;
            stream.set_nodelay(true)?;
            let (client, connection) = handshake(TokioIo::new(stream)).await?;
            tokio::spawn(connection);
            clients.push(client);
        }
        Ok(Self { name, address, clients, turns: Vec::new() })
    }

    async fn take_turn(&mut self) -> Result<(), Box<dyn Error>> {
        let (begun, host) = (Instant::now(), self.address.to_string());
        let asking = self.clients.drain(..).map(|client| tokio::spawn(ask(client, host.clone())));
        let mut waits = Vec::new();
        for asked in asking.collect::<Vec<_>>() {
            let (client, waited) = asked.await?.map_err(|error| error.to_string())?;
            self.clients.push(client);
            waits.extend(waited);
        }
        let rate = waits.len() as f64 / begun.elapsed().as_secs_f64();
        waits.sort_by(f64::total_cmp);
        self.turns.push((rate, waits[waits.len() * 99 / 100]));
        Ok(())
    }
}

/// Asks until the turn has ended. Returns how long each answer took, in µs.
async fn ask(
    mut client: SendRequest<Empty<Bytes>>,
    host: String,
) -> Result<(SendRequest<Empty<Bytes>>, Vec<f64>), hyper::Error> {
    let (end, mut waits) = (Instant::now() + SLICE, Vec::new());
    loop {
        let begun = Instant::now();
        if begun >= end {
            return Ok((client, waits));
        }
        let mut request = Request::new(Empty::new());
        let host = host.parse().expect("an address can stand in a header");
        request.headers_mut().insert(hyper::header::HOST, host);
        client.ready().await?;
        let answer = client.send_request(request).await?;
        assert_eq!(answer.status(), StatusCode::OK, "the limits are set so");
        answer.into_body().collect().await?;
        waits.push(begun.elapsed().as_secs_f64() * 1e6);
    }
}
