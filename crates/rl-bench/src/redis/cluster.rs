//! What one server carries, and three primaries of a cluster: what a decision costs each, and what that
//! amounts to.
//!
//! All servers share the cores of this machine, so that three cannot decide three times as many here.
//! What shows that they would is the processor time of a decision: if it stays what it is on one
//! server, each primary more, on a core of its own, carries as much again. On a cluster every subject
//! travels alone, so that is what three primaries are held against.

use std::error::Error;
use std::net::{Ipv4Addr, TcpListener};
use std::sync::Arc;
use std::time::Duration;

use rl_core::{Policy, RedisStore};
use tokio::time::interval;

use super::contender::{Contender, limits, patient};
use super::server::{Bystander, Server};
use super::{ENDLESS, Load, admitted};
use crate::measure::{Estimate, median, time_async};
use crate::report::Report;
use crate::table::{Cell, Table};

const SHARES: [(u16, u16); 3] = [(0, 5_460), (5_461, 10_921), (10_922, 16_383)];
const LOADS: [Load; 2] = [Load::on_all(64, 12_000), Load::on_all(256, 16_000)];
const ROUNDS: usize = 9;
/// For how many primaries the arithmetic is printed.
const PRIMARIES: [usize; 3] = [3, 6, 12];
/// What of a core may be in use, so that answers do not wait.
const BUSY: f64 = 0.7;

/// Servers, somebody who asks each how it is, and our store on them.
struct Setting {
    name: &'static str,
    contender: Arc<Contender>,
    bystanders: Vec<Bystander>,
    _servers: Vec<Server>,
}

/// Thousands of decisions per second, and µs of all servers for each.
type Samples = (Vec<f64>, Vec<f64>);

/// Decisions per second, on one server and on three.
pub(super) async fn measure(report: &mut Report) -> Result<(), Box<dyn Error>> {
    let mut settings =
        [one("one server", true).await?, one("one, subjects alone", false).await?, three().await?];
    let mut table = Table::new(
        "cluster: six periods, 10 000 subjects; all servers and the client share this machine",
        [
            "",
            "in flight",
            "thousand/s here",
            "server µs each",
            "beside one, alone",
            "a core each, thousand/s",
        ],
    );
    let mut of_a_core = [f64::NAN; 3];
    for load in LOADS {
        let samples = rounds(&mut settings, load).await?;
        let (_, alone) = &samples[1];
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
                format!("{:.0}", setting.bystanders.len() as f64 * 1e3 / cost).into(),
            ]);
        }
    }
    report.table("redis-cluster", table);

    let title = "capacity, 256 in flight: primaries × what a core of one carries (arithmetic)";
    let free = format!("thousand/s, {:.0} % of each core", BUSY * 100.0);
    let mut table = Table::new(title, ["", "thousand/s", &free]);
    let mut row = |name: String, most: f64| {
        let cells = [most, most * BUSY].map(|rate| format!("{rate:.0}"));
        table.row([name].into_iter().chain(cells));
    };
    row("one server".to_owned(), of_a_core[0]);
    for primaries in PRIMARIES {
        row(format!("{primaries} primaries"), of_a_core[2] * primaries as f64);
    }
    report.table("redis-capacity", table);
    Ok(())
}

/// Rounds in which each setting has two blocks, there and back.
async fn rounds(settings: &mut [Setting; 3], load: Load) -> Result<[Samples; 3], Box<dyn Error>> {
    let mut samples: [Samples; 3] = Default::default();
    for round in 0..=ROUNDS {
        let mut sums = [(0.0, 0.0); 3];
        for place in [0, 1, 2, 2, 1, 0] {
            let setting = &mut settings[place];
            let before = processor_time(&mut setting.bystanders).await?;
            let (elapsed, passed) = time_async(admitted(&setting.contender, load)).await;
            let spent = processor_time(&mut setting.bystanders).await? - before;
            sums[place].0 += passed as f64 / elapsed.as_secs_f64() / 2e3;
            sums[place].1 += spent.as_secs_f64() * 1e6 / passed as f64 / 2.0;
        }
        // The first creates the keys.
        if round > 0 {
            for ((rates, costs), (rate, cost)) in samples.iter_mut().zip(sums) {
                rates.push(rate);
                costs.push(cost);
            }
        }
    }
    Ok(samples)
}

async fn processor_time(bystanders: &mut [Bystander]) -> Result<Duration, Box<dyn Error>> {
    let mut sum = Duration::ZERO;
    for bystander in bystanders {
        sum += bystander.processor_time().await?;
    }
    Ok(sum)
}

fn contender(store: RedisStore, name: &'static str) -> Result<Arc<Contender>, Box<dyn Error>> {
    Ok(Arc::new(Contender::of_store(store, name, Policy::new(limits(ENDLESS)?)?)))
}

async fn one(name: &'static str, coalesces: bool) -> Result<Setting, Box<dyn Error>> {
    let server = Server::start()?;
    let store = patient(RedisStore::builder(&server.url(0))).coalesce(coalesces).connect().await?;
    let (contender, bystanders) = (contender(store, name)?, vec![server.bystander().await?]);
    Ok(Setting { name, contender, bystanders, _servers: vec![server] })
}

async fn three() -> Result<Setting, Box<dyn Error>> {
    let name = "three primaries";
    let (servers, bystanders) = start().await?;
    let urls: Vec<String> = servers.iter().map(|server| server.url(0)).collect();
    let store = patient(RedisStore::cluster(urls)).connect().await?;
    Ok(Setting { name, contender: contender(store, name)?, bystanders, _servers: servers })
}

/// Servers that have found each other.
async fn start() -> Result<(Vec<Server>, Vec<Bystander>), Box<dyn Error>> {
    let (mut servers, mut bystanders, mut buses) = (Vec::new(), Vec::new(), Vec::new());
    for _ in SHARES {
        let bus = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port();
        let port = bus.to_string();
        let server = Server::start_with(&["--cluster-enabled", "yes", "--cluster-port", &port])?;
        bystanders.push(server.bystander().await?);
        servers.push(server);
        buses.push(bus);
    }
    for (number, (from, to)) in SHARES.into_iter().enumerate() {
        let one = &mut bystanders[number];
        one.ask(&format!("CLUSTER SET-CONFIG-EPOCH {}", number + 1)).await?;
        one.ask(&format!("CLUSTER ADDSLOTSRANGE {from} {to}")).await?;
    }
    let mut ticks = interval(Duration::from_millis(100));
    for round in 0..300 {
        if round % 20 == 0 {
            for (server, bus) in servers.iter().zip(&buses).skip(1) {
                let meet = format!("CLUSTER MEET 127.0.0.1 {} {bus}", server.port());
                bystanders[0].ask(&meet).await?;
            }
        }
        let mut whole = 0;
        for bystander in &mut bystanders {
            let info = bystander.ask("CLUSTER INFO").await?;
            let knows_all = info.contains("cluster_known_nodes:3");
            whole += usize::from(knows_all && info.contains("cluster_state:ok"));
        }
        if whole == servers.len() {
            return Ok((servers, bystanders));
        }
        ticks.tick().await;
    }
    Err("the servers of the cluster do not find each other".into())
}
