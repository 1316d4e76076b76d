//! Measures what a rate limit costs a web service.
//!
//! axum and actix-web are measured without a limit, with our limiter, and with those of other
//! crates. All servers run in this process, and take turns in serving requests.

mod allocations;
mod client;
mod fixtures;
mod latency;
mod measured_server;
mod on_actix;
mod on_axum;

use std::error::Error;

use client::Client;
use measured_server::{MeasuredServer, SLICE};
use on_actix::Running;

use crate::goals::{Goal, Unit};
use crate::machine;
use crate::measure::{Estimate, median};
use crate::redis::Server as Redis;
use crate::report::Report;
use crate::table::Table;

/// The number of concurrent connections.
const CONNECTIONS: usize = 32;
/// The number of rounds. In each round every server has two turns, in forward and in reverse order.
const ROUNDS: usize = 40;

/// A limit that no measurement uses up.
const ENDLESS: u32 = 1_000_000_000;
/// The limit in the measurement of exactness. Together, the connections send more requests than it
/// allows.
const PRESSED: u32 = 100;
/// The number of requests on each connection in the measurement of exactness.
const TRIES: usize = 25;

/// The indices of servers in the list that `start` returns.
const AXUM: usize = 1;
const OURS_ON_AXUM: usize = 4;
const ACTIX: usize = 8;
const OURS_ON_ACTIX: usize = 11;

/// Runs all measurements over HTTP, prints them, and adds the goals to the report.
pub(crate) fn run(report: &mut Report) -> Result<(), Box<dyn Error>> {
    let versions = ["rl-tower", "rl-actix", "axum", "tower_governor", "axum-governor", "actix-web"]
        .into_iter()
        .chain(["actix-extensible-rate-limit", "actix-limitation"])
        .map(machine::library)
        .chain([machine::program("rustc")])
        .collect::<Vec<_>>();
    report.begin(
        "limits in front of a web service: ours of six periods for each address",
        &versions,
        "servers and clients in one process over loopback, each server alone at its time, turns \
         there and back; beside a layer or middleware that does nothing, on the same \
         framework; medians, a ratio with its bootstrap interval of 95 %",
        ROUNDS + latency::BLOCKS + 2,
    );
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let mut goals = allocations::measure()?;
    goals.extend(runtime.block_on(measure(report))?);
    report.end(goals);
    Ok(())
}

async fn measure(report: &mut Report) -> Result<Vec<Goal>, Box<dyn Error>> {
    let redis = Redis::start()?;
    let mut servers = start(&redis, ENDLESS, 0).await?;
    report.step("limits that are used up");
    press(&mut servers, &redis).await?;
    for _ in 0..ROUNDS {
        report.step("throughput");
        let there_and_back = (0..servers.len()).chain((0..servers.len()).rev());
        for place in there_and_back {
            servers[place].take_turn().await?;
        }
    }
    let paced = latency::measure(&servers, report)?;
    Ok(report_goals(&servers, &paced, report))
}

/// Starts all servers with limits of `max`. The servers on Redis use different databases, from the
/// number `database` on.
async fn start(
    redis: &Redis,
    max: u32,
    database: usize,
) -> Result<Vec<MeasuredServer>, Box<dyn Error>> {
    let url = |n| redis.url(database + n);
    let on_axum = |address| (address, None);
    let on_actix = |running: Running| (running.address, Some(running));
    let servers = [
        ("axum", AXUM, on_axum(on_axum::bare().await?)),
        ("axum, no-op layer", AXUM, on_axum(on_axum::no_op().await?)),
        ("axum, no-op layer, again", AXUM, on_axum(on_axum::no_op().await?)),
        ("axum, three header lines", AXUM, on_axum(on_axum::lines().await?)),
        ("axum, ours, six periods", AXUM, on_axum(on_axum::ours(max).await?)),
        ("axum, tower_governor, one", AXUM, on_axum(on_axum::tower_governor(max).await?)),
        ("axum, axum-governor, one", AXUM, on_axum(on_axum::axum_governor(max).await?)),
        ("actix", ACTIX, on_actix(on_actix::bare()?)),
        ("actix, no-op middleware", ACTIX, on_actix(on_actix::no_op()?)),
        ("actix, no-op middleware, again", ACTIX, on_actix(on_actix::no_op()?)),
        ("actix, three header lines", ACTIX, on_actix(on_actix::lines()?)),
        ("actix, ours, six periods", ACTIX, on_actix(on_actix::ours(max)?)),
        ("actix, actix-extensible, one", ACTIX, on_actix(on_actix::extensible(max)?)),
        (
            "actix, ours on Redis, six periods",
            ACTIX,
            on_actix(on_actix::ours_on_redis(max, &url(0)).await?),
        ),
        (
            "actix, actix-extensible on Redis, one",
            ACTIX,
            on_actix(on_actix::extensible_on_redis(max, &url(1)).await?),
        ),
        (
            "actix, actix-limitation on Redis, one",
            ACTIX,
            on_actix(on_actix::limitation(max, &url(2))?),
        ),
    ];
    let mut started = Vec::new();
    for (name, beside, (address, running)) in servers {
        let mut clients = Vec::new();
        for _ in 0..CONNECTIONS {
            clients.push(Client::connect(address).await?);
        }
        let (rates, too_many, _running) = (Vec::new(), None, running);
        started.push(MeasuredServer { name, beside, address, clients, rates, too_many, _running });
    }
    Ok(started)
}

/// Sends concurrent requests to servers with small limits. Records how many requests each server
/// allows beyond its limit.
async fn press(servers: &mut [MeasuredServer], redis: &Redis) -> Result<(), Box<dyn Error>> {
    let pressed = start(redis, PRESSED, 3).await?;
    for (server, pressed) in servers.iter_mut().zip(pressed) {
        let asking = pressed.clients.into_iter().map(|mut client| {
            tokio::spawn(async move {
                let mut passed = 0;
                for _ in 0..TRIES {
                    passed += usize::from(client.ask().await? == 200);
                }
                Ok::<_, std::io::Error>(passed)
            })
        });
        let mut passed = 0;
        for asked in asking.collect::<Vec<_>>() {
            passed += asked.await??;
        }
        if passed < CONNECTIONS * TRIES {
            server.too_many = Some(passed.saturating_sub(PRESSED as usize));
        }
    }
    Ok(())
}

fn report_goals(
    servers: &[MeasuredServer],
    paced: &latency::Latencies,
    report: &mut Report,
) -> Vec<Goal> {
    let millis = SLICE.as_millis();
    let title = format!(
        "requests ({CONNECTIONS} connections, two turns of {millis} ms in each of {ROUNDS} rounds; \
         too many: beyond {PRESSED}, of {} at once)",
        CONNECTIONS * TRIES
    );
    let head = ["server", "thousand/s", "beside no-op", "too many"];
    let mut table = Table::new(&title, head);
    let ratio = |server: &MeasuredServer| {
        // Each round measures the servers twice, the second time in reverse order. So a steady
        // drift of the machine's speed cancels out of the sum.
        let rounds = |server: &MeasuredServer| -> Vec<f64> {
            server.rates.chunks(2).map(|pair| pair.iter().sum()).collect()
        };
        let (mine, base) = (rounds(server), rounds(&servers[server.beside]));
        Estimate::of(&mine.iter().zip(base).map(|(mine, base)| mine / base).collect::<Vec<_>>())
    };
    for server in servers {
        table.row([
            server.name.into(),
            format!("{:.1}", median(&server.rates) / 1e3).into(),
            crate::table::Cell::from(ratio(server)),
            server.too_many.map_or("-".to_owned(), |count| count.to_string()).into(),
        ]);
    }
    report.table("http-throughput", table);
    report.table("http-latency", paced.table(servers));

    let mut goals = Vec::new();
    for (place, name) in [(OURS_ON_AXUM, "axum"), (OURS_ON_ACTIX, "actix")] {
        let lines = (0.97, 0.99, Unit::Times);
        let what = format!("{name}, six periods beside a no-op layer: requests");
        goals.push(Goal::measured("M9", &what, lines, ratio(&servers[place])));
        let lines = (5.0, 1.0, Unit::AtMost("µs"));
        let added = paced.added(place, servers[place].beside, 0.99);
        goals.push(Goal::measured("M9", &format!("{name}, the same: added to p99"), lines, added));
    }
    goals
}
