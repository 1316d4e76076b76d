//! Three primaries of a cluster: what a decision costs each, and what that amounts to.

use std::error::Error;
use std::net::{Ipv4Addr, TcpListener};
use std::sync::Arc;
use std::time::Duration;

use rl_core::{Policy, RedisStore};
use tokio::time::interval;

use super::contender::{Contender, SUBJECTS, limits, patient};
use super::server::{Bystander, Server};
use super::{ENDLESS, Load, admitted};
use crate::measure::{median, time_async};
use crate::table::Table;

const SHARES: [(u16, u16); 3] = [(0, 5_460), (5_461, 10_921), (10_922, 16_383)];
const LOADS: [Load; 2] = [Load::on_all(64, 12_000), Load::on_all(256, 16_000)];
const ROUNDS: usize = 5;

/// Decisions per second, on one server and on three.
pub(super) async fn measure() -> Result<Table, Box<dyn Error>> {
    let mut table = Table::new(
        "cluster: six periods, 10 000 subjects; all servers and the client share this machine",
        ["", "in flight", "thousand/s", "server µs each", "thousand/s of one core each"],
    );
    let single = Server::start()?;
    let store = patient(RedisStore::builder(&single.url(0))).connect().await?;
    let mut bystanders = vec![single.bystander().await?];
    row(&mut table, "one server", store, &mut bystanders).await?;

    let (servers, mut bystanders) = start().await?;
    let urls: Vec<String> = servers.iter().map(|server| server.url(0)).collect();
    let store = patient(RedisStore::cluster(urls)).connect().await?;
    row(&mut table, "three primaries", store, &mut bystanders).await?;
    Ok(table)
}

async fn row(
    table: &mut Table,
    name: &'static str,
    store: RedisStore,
    bystanders: &mut [Bystander],
) -> Result<(), Box<dyn Error>> {
    let policy = Policy::new(limits(ENDLESS)?)?;
    let contender = Arc::new(Contender::of_store(store, name, policy));
    // Creates the keys.
    admitted(&contender, Load::on_all(64, SUBJECTS)).await;
    for load in LOADS {
        let (mut rates, mut costs) = (Vec::new(), Vec::new());
        for _ in 0..ROUNDS {
            let before = processor_time(bystanders).await?;
            let (elapsed, passed) = time_async(admitted(&contender, load)).await;
            let spent = processor_time(bystanders).await? - before;
            rates.push(passed as f64 / elapsed.as_secs_f64());
            costs.push(spent.as_secs_f64() * 1e6 / passed as f64);
        }
        let (rate, cost) = (median(&rates), median(&costs));
        let cores = bystanders.len() as f64;
        table.row([
            name.to_owned(),
            load.in_flight.to_string(),
            format!("{:.1}", rate / 1e3),
            format!("{cost:.2}"),
            format!("{:.0}", cores * 1e3 / cost),
        ]);
    }
    Ok(())
}

async fn processor_time(bystanders: &mut [Bystander]) -> Result<Duration, Box<dyn Error>> {
    let mut sum = Duration::ZERO;
    for bystander in bystanders {
        sum += bystander.processor_time().await?;
    }
    Ok(sum)
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
