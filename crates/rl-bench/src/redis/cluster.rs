//! Compares the decisions of a cluster of three primaries with those of one server, and requests of
//! several parts with requests of one part.
//!
//! All servers share the cores of this machine, so three primaries cannot decide three times as
//! many requests here. Therefore the processor time of a decision is measured: if it is the same as
//! on one server, each further primary on its own core adds the same rate.

use std::net::{Ipv4Addr, TcpListener};
use std::sync::Arc;
use std::time::Duration;

use rl_core::store::{DecideRequest, Mode, Namespace, Part, Store};
use rl_core::{Cost, RedisStore, Subject};
use tokio::time::interval;

use super::candidate::{Candidate, patient, store};
use super::load::{CALLS, Load, SECONDS, SERVER, SHOWN, block, rounds};
use super::server::{Monitor, Server};
use crate::Result;
use crate::algorithms::{ENDLESS, policy, six};
use crate::measure::{Estimate, Race};
use crate::report::{Report, Table};

/// The number of slots of a cluster.
const SLOTS: usize = 16_384;
const THREE: usize = 3;

/// Measures the processor time of a decision on one server and on a cluster.
pub(super) async fn capacity(report: &mut Report) -> Result {
    const LOAD: Load = Load::on_all(256, 16_000);
    let one = Server::start()?;
    let (servers, cluster_monitors) = start(THREE).await?;
    let ours =
        |name, store| -> Result<_> { Ok(Arc::new(Candidate::ours(name, store, six(ENDLESS)?))) };
    let cluster = || patient(RedisStore::cluster(urls(&servers)));
    let groups = cluster().prefix("groups").slot_groups(12);
    let candidates = [
        ours("one server", store(&one).connect().await?)?,
        ours("three primaries", cluster().connect().await?)?,
        ours("three primaries, 12 slot groups", groups.connect().await?)?,
    ];
    let mut monitors = [vec![one.monitor().await?], cluster_monitors];
    let mut race = Race::new(candidates.len());
    for turn in race.turns(report.rounds(9)) {
        let monitors = &mut monitors[usize::from(turn.contender > 0)];
        race.record(turn, block(&candidates[turn.contender], LOAD, monitors).await?);
    }
    let columns = [
        "six periods, 256 in flight",
        "thousand/s here",
        "server µs",
        "thousand/s with a core each",
        "beside one server here",
    ];
    let mut table = Table::new("a cluster, whose servers and client share this machine", columns);
    for (place, candidate) in candidates.iter().enumerate() {
        let primaries = if place == 0 { 1 } else { THREE } as f64;
        let (rate, micros) = (1e-3 / race.median(place, SECONDS), race.median(place, SERVER));
        let cells = [rate, micros, primaries * 1e3 / micros].map(Into::into);
        table.row(&candidate.name, cells.into_iter().chain([race.multiple(0, place, SECONDS)]));
    }
    report.table(table);
    let of_one = race.samples(0, SERVER).into_iter().zip(race.samples(2, SERVER));
    let ratios: Vec<f64> = of_one.map(|(one, grouped)| THREE as f64 * one / grouped).collect();
    let what = "three primaries with 12 groups beside one server: capacity by server time";
    report.at_least(what, 2.2, Estimate::of(&ratios));
    Ok(())
}

/// Compares requests of several parts with requests of one part, on one server and on a cluster.
pub(super) async fn parts(report: &mut Report) -> Result {
    on_one_server(report).await?;
    on_a_cluster(report).await
}

async fn on_one_server(report: &mut Report) -> Result {
    const LOADS: [Load; 2] = [Load::on_all(1, 1_500), Load::on_all(SHOWN, 12_000)];
    let server = Server::start()?;
    let one = policy([format!("{ENDLESS}/minute")])?;
    let (key, address, fleet) = (("key", six(ENDLESS)?), ("address", one.clone()), ("fleet", one));
    let two = vec![key.clone(), fleet.clone()];
    let mut candidates = Vec::new();
    for (name, parts, is_nested) in [
        ("key", vec![key.clone()], false),
        ("key and fleet", two.clone(), false),
        ("key, then fleet", two, true),
        ("key, address and fleet", vec![key, address, fleet], false),
    ] {
        let store = store(&server).connect().await?;
        candidates.push(Arc::new(Candidate::parts(name, store, parts, is_nested)));
    }
    let columns = ["", "in flight", "thousand/s", "server µs", "calls each"];
    let mut table = Table::new("requests of several parts on one server", columns);
    let mut monitors = [server.monitor().await?];
    for (load, floor) in LOADS.into_iter().zip([1.7, 1.2]) {
        let race = rounds(&candidates, load, report.rounds(7), &mut monitors).await?;
        for (place, candidate) in candidates.iter().enumerate() {
            let rate = 1e-3 / race.median(place, SECONDS);
            let [server, calls] = [SERVER, CALLS].map(|quantity| race.median(place, quantity));
            table.row(&candidate.name, [load.in_flight as f64, rate, server, calls]);
        }
        let what = format!("two parts, {} in flight: rate beside two limiters", load.in_flight);
        report.at_least(what, floor, race.multiple(2, 1, SECONDS));
        if load.in_flight == 1 {
            let multiple = race.multiple(3, 0, SERVER);
            report.at_most("three parts: server time beside one", 2.2, multiple);
        }
    }
    report.table(table);
    Ok(())
}

/// Measures the time and the calls of a key and the fleet, whose counters are in different slots.
async fn on_a_cluster(report: &mut Report) -> Result {
    const MAX: u64 = 1_000_000;
    let (servers, mut monitors) = start(THREE).await?;
    let hour = policy([format!("{MAX}/hour")])?;
    // Units of GCRA are not leased, so each request calls the server of its key.
    let gcra = policy([format!("{MAX}/hour:gcra")])?;
    let store = async |prefix, lease| {
        let store = patient(RedisStore::cluster(urls(&servers))).prefix(prefix);
        store.local_denial(false).lease(lease).connect().await
    };
    let scarce = store("scarce", 0).await?;
    let (all, rule) = (Subject::global(), Namespace::default().rule("fleet")?);
    let charge = [Part::new(&all, &hour, Cost::new(MAX * 6 / 10)).with_namespace(&rule)];
    scarce.decide(DecideRequest::new(&rule, &charge, Mode::Charge)).await?;
    let (key, fleet) = (("key", hour.clone()), ("fleet", hour));
    let two = || vec![key.clone(), fleet.clone()];
    let candidates = [
        ("one part", store("one", 0).await?, vec![key.clone()]),
        ("key and fleet, both below 50 %", store("plenty", 0).await?, two()),
        ("key and fleet, fleet at 60 %", scarce, two()),
        (
            "key and leased fleet",
            store("leased", 10_000).await?,
            vec![("key", gcra), fleet.clone()],
        ),
    ]
    .map(|(name, store, parts)| Arc::new(Candidate::parts(name, store, parts, false)));
    let load = Load { in_flight: 1, decisions: 500, subjects: 500 };
    let race = rounds(&candidates, load, report.rounds(7), &mut monitors).await?;
    let columns = ["allowed requests, one at a time", "calls", "µs"];
    let mut table = Table::new("a key and the fleet on a cluster of three primaries", columns);
    for (place, candidate) in candidates.iter().enumerate() {
        table.row(&candidate.name, [race.median(place, CALLS), 1e6 * race.median(place, SECONDS)]);
    }
    report.table(table);
    for (place, ceiling) in [(1, 2.5), (2, 2.5), (3, 1.5)] {
        let what = format!("{}: time beside one part", candidates[place].name);
        report.at_most(what, ceiling, race.multiple(place, 0, SECONDS));
    }
    Ok(())
}

fn urls(servers: &[Server]) -> Vec<String> {
    servers.iter().map(|server| server.url(0)).collect()
}

/// Starts the servers of a cluster, and waits until they are connected.
async fn start(primaries: usize) -> Result<(Vec<Server>, Vec<Monitor>)> {
    let (mut servers, mut monitors, mut buses) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..primaries {
        let bus = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port();
        let port = bus.to_string();
        let server = Server::start_with(&["--cluster-enabled", "yes", "--cluster-port", &port])?;
        monitors.push(server.monitor().await?);
        servers.push(server);
        buses.push(bus);
    }
    for (number, one) in monitors.iter_mut().enumerate() {
        let [from, next] = [number, number + 1].map(|number| SLOTS * number / primaries);
        one.ask(&format!("CLUSTER SET-CONFIG-EPOCH {}", number + 1)).await?;
        one.ask(&format!("CLUSTER ADDSLOTSRANGE {from} {}", next - 1)).await?;
    }
    let mut ticks = interval(Duration::from_millis(100));
    for round in 0..300 {
        if round % 20 == 0 {
            for (server, bus) in servers.iter().zip(&buses).skip(1) {
                let meet = format!("CLUSTER MEET 127.0.0.1 {} {bus}", server.port());
                monitors[0].ask(&meet).await?;
            }
        }
        let mut whole = 0;
        for monitor in &mut monitors {
            let info = monitor.ask("CLUSTER INFO").await?;
            let knows_all = info.contains(&format!("cluster_known_nodes:{primaries}"));
            whole += usize::from(knows_all && info.contains("cluster_state:ok"));
        }
        if whole == servers.len() {
            return Ok((servers, monitors));
        }
        ticks.tick().await;
    }
    Err("the servers of the cluster do not find each other".into())
}
