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
use rl_core::{Cost, Limit, Period, Policy, RedisStore, RedisStoreBuilder, Subject};
use tokio::time::interval;

use super::candidate::{Candidate, ENDLESS, patient, six, store};
use super::load::{CALLS, CLIENT, Load, Rounds, SECONDS, SERVER, SHOWN, block, rounds};
use super::server::{Monitor, Server};
use crate::Result;
use crate::measure::{Estimate, Race};
use crate::report::{Bound, Report, Table};

/// The number of slots of a cluster.
const SLOTS: usize = 16_384;
const THREE: usize = 3;

/// Measures the processor time of a decision on one server and on a cluster.
pub(super) async fn capacity(report: &mut Report) -> Result {
    const LOAD: Load = Load::on_all(256, 16_000);
    let one = Server::start()?;
    let (servers, cluster_monitors) = start(THREE).await?;
    let ours = |name, store| -> Result<Arc<Candidate>> {
        Ok(Arc::new(Candidate::ours(name, store, six(ENDLESS)?)))
    };
    let cluster = || patient(RedisStore::cluster(urls(&servers)));
    let candidates = [
        ours("one server", store(&one, 0).connect().await?)?,
        ours("three primaries", cluster().connect().await?)?,
        ours(
            "three primaries, 12 slot groups",
            cluster().prefix("groups").slot_groups(12).connect().await?,
        )?,
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
        let (primaries, micros) =
            (if place == 0 { 1 } else { THREE } as f64, race.median(place, SERVER));
        table.row([
            candidate.name.as_str().into(),
            (1e-3 / race.median(place, SECONDS)).into(),
            micros.into(),
            (primaries * 1e3 / micros).into(),
            race.multiple(0, place, SECONDS).into(),
        ]);
    }
    report.table(table);
    let of_one = race.samples(0, SERVER).into_iter().zip(race.samples(2, SERVER));
    let ratios: Vec<f64> = of_one.map(|(one, grouped)| THREE as f64 * one / grouped).collect();
    let what = "three primaries with 12 groups beside one server: capacity by server time";
    report.goal(what, Bound::AtLeast(2.2), "times", Estimate::of(&ratios));
    Ok(())
}

/// Compares requests of several parts with requests of one part, on one server and on a cluster.
pub(super) async fn parts(report: &mut Report) -> Result {
    on_one_server(report).await?;
    on_a_cluster(report).await
}

async fn on_one_server(report: &mut Report) -> Result {
    const LOADS: [Load; 3] =
        [Load::on_all(1, 1_500), Load::on_all(SHOWN, 12_000), Load::on_all(256, 16_000)];
    let [key_alone, two_parts, nested, three] = [0, 1, 2, 3];
    let server = Server::start()?;
    let one = || Policy::new([Limit::per_minute(ENDLESS)]);
    let (key, address, fleet) = (("key", six(ENDLESS)?), ("address", one()?), ("fleet", one()?));
    let of_parts = async |database, name, parts, is_nested| -> Result<Arc<Candidate>> {
        let store = store(&server, database).connect().await?;
        Ok(Arc::new(Candidate::parts(name, store, parts, is_nested)))
    };
    let two = || vec![key.clone(), fleet.clone()];
    let candidates = [
        of_parts(0, "key", vec![key.clone()], false).await?,
        of_parts(1, "key and fleet", two(), false).await?,
        of_parts(2, "key, then fleet", two(), true).await?,
        of_parts(3, "key, address and fleet", vec![key.clone(), address, fleet.clone()], false)
            .await?,
    ];
    let columns = ["", "in flight", "thousand/s", "server µs", "client µs", "calls each"];
    let mut table = Table::new("requests of several parts on one server", columns);
    let mut by_load: Vec<Rounds> = Vec::new();
    for load in LOADS {
        let rounds =
            rounds(&candidates, load, report.rounds(7), &mut [server.monitor().await?]).await?;
        for (place, candidate) in candidates.iter().enumerate() {
            let rate = 1e-3 / rounds.median(place, SECONDS);
            let costs =
                [SERVER, CLIENT, CALLS].map(|quantity| rounds.median(place, quantity).into());
            table.row(
                [candidate.name.as_str().into(), load.in_flight.into(), rate.into()]
                    .into_iter()
                    .chain(costs),
            );
        }
        by_load.push(rounds);
    }
    report.table(table);
    let [alone, some, many] = &by_load[..] else { unreachable!("one for each load") };
    let times = "times";
    report.goal(
        "with a fleet, 256 in flight: rate beside none",
        Bound::AtLeast(0.7),
        times,
        many.multiple(key_alone, two_parts, SECONDS),
    );
    report.goal(
        "two parts, one at a time: rate beside two limiters",
        Bound::AtLeast(1.7),
        times,
        alone.multiple(nested, two_parts, SECONDS),
    );
    report.goal(
        "two parts, 64 in flight: rate beside two limiters",
        Bound::AtLeast(1.2),
        times,
        some.multiple(nested, two_parts, SECONDS),
    );
    report.goal(
        "three parts: server time beside one",
        Bound::AtMost(2.2),
        times,
        alone.multiple(three, key_alone, SERVER),
    );
    Ok(())
}

/// Measures the time and the calls of a key and the fleet, whose counters are in different slots.
async fn on_a_cluster(report: &mut Report) -> Result {
    const MAX: u64 = 1_000_000;
    let (servers, mut monitors) = start(THREE).await?;
    let hour = || -> Result<Policy> { Ok(Policy::new([Limit::new(MAX, Period::HOUR)?])?) };
    let store = async |prefix, configure: fn(RedisStoreBuilder) -> RedisStoreBuilder| {
        let store = patient(RedisStore::cluster(urls(&servers))).prefix(prefix).local_denial(false);
        configure(store).connect().await
    };
    let two = || -> Result<_> { Ok(vec![("key", hour()?), ("fleet", hour()?)]) };
    let scarce = store("scarce", |store| store).await?;
    let (fleet, rule, policy) = (Subject::global(), Namespace::default().rule("fleet")?, hour()?);
    let charge = [Part::new(&fleet, &policy, Cost::new(MAX * 6 / 10)).with_namespace(&rule)];
    scarce.decide(DecideRequest::new(&rule, &charge, Mode::Charge)).await?;
    let leased = store("leased", |store| store.lease(10_000)).await?;
    // Units of GCRA are not leased, so each request calls the server of its key.
    let gcra = Policy::new([format!("{MAX}/hour:gcra").parse()?])?;
    let candidates = [
        Candidate::parts(
            "one part",
            store("one", |store| store).await?,
            vec![("key", hour()?)],
            false,
        ),
        Candidate::parts(
            "key and fleet, both below 50 %",
            store("plenty", |store| store).await?,
            two()?,
            false,
        ),
        Candidate::parts("key and fleet, fleet at 60 %", scarce, two()?, false),
        Candidate::parts(
            "key and leased fleet",
            leased,
            vec![("key", gcra), ("fleet", hour()?)],
            false,
        ),
    ]
    .map(Arc::new);
    let load = Load { in_flight: 1, decisions: 500, subjects: 500 };
    let race = rounds(&candidates, load, report.rounds(7), &mut monitors).await?;
    let columns = ["allowed requests, one at a time", "calls", "µs", "beside one part"];
    let mut table = Table::new("a key and the fleet on a cluster of three primaries", columns);
    for (place, (candidate, bound)) in
        candidates.iter().zip([None, None, Some(2.5), Some(1.5)]).enumerate()
    {
        let beside = race.multiple(place, 0, SECONDS);
        let micros = 1e6 * race.median(place, SECONDS);
        table.row([
            candidate.name.as_str().into(),
            race.median(place, CALLS).into(),
            micros.into(),
            beside.into(),
        ]);
        if let Some(bound) = bound {
            report.goal(
                &format!("{}: time beside one part", candidate.name),
                Bound::AtMost(bound),
                "times",
                beside,
            );
        }
    }
    report.table(table);
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
