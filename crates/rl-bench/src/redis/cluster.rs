//! Compares the decisions per second of one server with those of a cluster with three primaries.
//!
//! All servers share the cores of this machine, so three primaries cannot decide three times as
//! many requests here. Therefore the processor time of a decision is measured. If it is the same as
//! on one server, each further primary on its own core adds the same rate.
//!
//! Without slot groups, a call to a cluster contains only one subject. So the cluster is also
//! compared with one server whose calls contain one subject.
//!
//! Servers that take turns on a core find its caches filled by others, so each decision takes more
//! processor time than on a core of its own. A control measures by how much: three servers without
//! a cluster decide at once, beside one of them alone. A cluster of one primary, which has all
//! slots, has no such cost.

use std::error::Error;
use std::net::{Ipv4Addr, TcpListener};
use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use rl_core::{Policy, RedisStore};
use tokio::time::interval;

use super::candidate::{Candidate, patient};
use super::fixtures::limits;
use super::load::{ENDLESS, Load, count_allowed};
use super::server::{Monitor, Server};
use crate::goals::{Goal, Unit};
use crate::measure::{Estimate, median, time_async};
use crate::report::Report;
use crate::table::{Cell, Table};

/// The number of slots of a cluster.
const SLOTS: usize = 16_384;
/// The number of primaries of the clusters, except for one.
pub(super) const THREE: usize = 3;
const LOADS: [Load; 2] = [Load::on_all(64, 12_000), Load::on_all(256, 16_000)];
const ROUNDS: usize = 9;
/// The load on each server of the control: a third of the last of `LOADS`.
const THIRD: Load = Load::on_all(85, 5_355);
/// The numbers of primaries for which the rate is projected.
const PRIMARIES: [usize; 3] = [3, 6, 12];
/// The clusters that are measured, with the number of primaries and of slot groups.
/// Without groups, each subject has its own slot.
const CLUSTERS: [(&str, usize, Option<u32>); 5] = [
    ("three primaries", THREE, None),
    ("three, 6 groups", THREE, Some(6)),
    ("three, 12 groups", THREE, Some(12)),
    ("three, 48 groups", THREE, Some(48)),
    ("one primary, 12 groups", 1, Some(12)),
];
/// The indices of deployments in the list that `measure` builds.
const ONE: usize = 0;
const ALONE: usize = 1;
/// The indices of the deployments that the goals measure.
const GROUPED: usize = 4;
const ONE_PRIMARY: usize = 6;
/// A server may use this share of its core. Above it, replies have to wait.
const BUSY: f64 = 0.7;

/// Servers, connections that monitor them, and our store on them.
struct Deployment {
    name: &'static str,
    candidate: Arc<Candidate>,
    monitors: Vec<Monitor>,
    _servers: Vec<Server>,
}

/// Thousands of decisions per second, and the processor time of all servers in µs for each
/// decision.
type Samples = (Vec<f64>, Vec<f64>);

/// Measures the decisions per second on one server and on three. The goals compare the rates that
/// these servers would reach if each had its own core.
pub(super) async fn measure(report: &mut Report) -> Result<[Goal; 2], Box<dyn Error>> {
    let mut settings = vec![one("one server", true).await?];
    settings.push(one("one, subjects alone", false).await?);
    for (name, primaries, groups) in CLUSTERS {
        settings.push(cluster(name, primaries, groups).await?);
    }
    let mut table = Table::new(
        "cluster: six periods, 10 000 subjects; all servers and the client share this machine",
        [
            "",
            "in flight",
            "thousand/s here",
            "server µs each",
            "relative to one server",
            "a core each, thousand/s",
        ],
    );
    let mut of_a_core = vec![f64::NAN; settings.len()];
    let mut capacities = [Estimate::of(&[f64::NAN]); 2];
    // The goal concerns only the load with the most requests in flight.
    let loads = if report.goals_only { &LOADS[LOADS.len() - 1..] } else { &LOADS[..] };
    for load in loads.iter().copied() {
        let samples = rounds(&mut settings, load).await?;
        let (_, alone) = &samples[ALONE];
        capacities = [GROUPED, ONE_PRIMARY].map(|cluster| {
            let pairs = samples[ONE].1.iter().zip(&samples[cluster].1);
            let ratios = pairs.map(|(one, primary)| THREE as f64 * one / primary);
            Estimate::of(&ratios.collect::<Vec<_>>())
        });
        for (place, (setting, (rates, costs))) in settings.iter().zip(&samples).enumerate() {
            let cost = median(costs);
            let ratios: Vec<f64> = costs.iter().zip(alone).map(|(mine, one)| mine / one).collect();
            of_a_core[place] = 1e3 / cost;
            table.row::<Cell>([
                setting.name.into(),
                load.in_flight.to_string().into(),
                format!("{:.1}", median(rates)).into(),
                format!("{cost:.2}").into(),
                Estimate::of(&ratios).into(),
                format!("{:.0}", setting.monitors.len() as f64 * 1e3 / cost).into(),
            ]);
        }
    }
    report.table("redis-cluster", table);
    drop(settings);

    let title = "control, no cluster: server time while three servers decide at once";
    let mut table = Table::new(title, ["85 requests in flight on each", "relative to one alone"]);
    table.row::<Cell>(["three servers".into(), sharing().await?.into()]);
    report.table("redis-cluster-control", table);

    let title = "capacity, 256 in flight: primaries × what a core of one carries (arithmetic)";
    let free = format!("thousand/s, {:.0} % of each core", BUSY * 100.0);
    let mut table = Table::new(title, ["", "thousand/s", &free]);
    let mut row = |name: String, most: f64| {
        let cells = [most, most * BUSY].map(|rate| format!("{rate:.0}"));
        table.row([name].into_iter().chain(cells));
    };
    row("one server".to_owned(), of_a_core[ONE]);
    for primaries in PRIMARIES {
        let without = of_a_core[ALONE + 1] * primaries as f64;
        row(format!("{primaries} primaries"), without);
        let name = format!("{primaries} primaries, {} groups", 4 * primaries);
        row(name, of_a_core[GROUPED] * primaries as f64);
    }
    report.table("redis-capacity", table);
    let whats = [
        "three primaries with 12 groups beside one server: capacity from server time, 256 in flight",
        "… from the server time of one primary with 12 groups, on a core of its own",
    ];
    let goal = |(what, capacity)| Goal::measured("E10", what, (2.2, 2.8, Unit::Times), capacity);
    Ok(std::array::from_fn(|place| goal((whats[place], capacities[place]))))
}

/// Runs rounds in which each deployment has two blocks, in forward and in reverse order.
async fn rounds(settings: &mut [Deployment], load: Load) -> Result<Vec<Samples>, Box<dyn Error>> {
    let count = settings.len();
    let mut samples = vec![Samples::default(); count];
    for round in 0..=ROUNDS {
        let mut sums = vec![(0.0, 0.0); count];
        for place in (0..count).chain((0..count).rev()) {
            let (rate, cost) = block(&mut settings[place..=place], load).await?;
            sums[place].0 += rate / 2.0;
            sums[place].1 += cost / 2.0;
        }
        // The first round only creates the keys.
        if round > 0 {
            for ((rates, costs), (rate, cost)) in samples.iter_mut().zip(sums) {
                rates.push(rate);
                costs.push(cost);
            }
        }
    }
    Ok(samples)
}

/// Runs the control: the server time of a decision while three servers decide at once, as a
/// multiple of the server time while one of them decides alone.
async fn sharing() -> Result<Estimate, Box<dyn Error>> {
    let mut servers = Vec::new();
    for _ in 0..THREE {
        servers.push(one("one of three servers", true).await?);
    }
    let mut ratios = Vec::new();
    for round in 0..=ROUNDS {
        let mut sums = [0.0; 2];
        for (place, count) in [(0, 1), (1, THREE), (1, THREE), (0, 1)] {
            sums[place] += block(&mut servers[..count], THIRD).await?.1;
        }
        // The first round only creates the keys.
        if round > 0 {
            ratios.push(sums[1] / sums[0]);
        }
    }
    Ok(Estimate::of(&ratios))
}

/// Runs the load on each of these deployments at once. Returns thousands of decisions per second,
/// and the processor time of all servers in µs for each decision.
async fn block(settings: &mut [Deployment], load: Load) -> Result<(f64, f64), Box<dyn Error>> {
    let before = processor_time(settings).await?;
    let blocks = settings.iter().map(|setting| count_allowed(&setting.candidate, load));
    let (elapsed, counts) = time_async(join_all(blocks)).await;
    let spent = processor_time(settings).await? - before;
    let count = counts.into_iter().sum::<usize>() as f64;
    Ok((count / elapsed.as_secs_f64() / 1e3, spent.as_secs_f64() * 1e6 / count))
}

async fn processor_time(settings: &mut [Deployment]) -> Result<Duration, Box<dyn Error>> {
    let mut sum = Duration::ZERO;
    for monitor in settings.iter_mut().flat_map(|setting| &mut setting.monitors) {
        sum += monitor.processor_time().await?;
    }
    Ok(sum)
}

fn candidate(store: RedisStore, name: &'static str) -> Result<Arc<Candidate>, Box<dyn Error>> {
    Ok(Arc::new(Candidate::of_store(store, name, Policy::new(limits(ENDLESS)?)?)))
}

async fn one(name: &'static str, coalesces: bool) -> Result<Deployment, Box<dyn Error>> {
    let server = Server::start()?;
    let store = patient(RedisStore::builder(&server.url(0))).coalesce(coalesces).connect().await?;
    let (candidate, monitors) = (candidate(store, name)?, vec![server.monitor().await?]);
    Ok(Deployment { name, candidate, monitors, _servers: vec![server] })
}

async fn cluster(
    name: &'static str,
    primaries: usize,
    groups: Option<u32>,
) -> Result<Deployment, Box<dyn Error>> {
    let (servers, monitors) = start(primaries).await?;
    let urls: Vec<String> = servers.iter().map(|server| server.url(0)).collect();
    let mut store = patient(RedisStore::cluster(urls));
    if let Some(groups) = groups {
        store = store.slot_groups(groups);
    }
    let store = store.connect().await?;
    Ok(Deployment { name, candidate: candidate(store, name)?, monitors, _servers: servers })
}

/// Starts the servers of a cluster, and waits until they are connected.
pub(super) async fn start(primaries: usize) -> Result<(Vec<Server>, Vec<Monitor>), Box<dyn Error>> {
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
        let to = next - 1;
        one.ask(&format!("CLUSTER SET-CONFIG-EPOCH {}", number + 1)).await?;
        one.ask(&format!("CLUSTER ADDSLOTSRANGE {from} {to}")).await?;
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
            let knows_all = info.contains(&format!("cluster_known_nodes:{}", primaries));
            whole += usize::from(knows_all && info.contains("cluster_state:ok"));
        }
        if whole == servers.len() {
            return Ok((servers, monitors));
        }
        ticks.tick().await;
    }
    Err("the servers of the cluster do not find each other".into())
}
