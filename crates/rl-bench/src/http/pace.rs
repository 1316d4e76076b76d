//! How long an answer takes at a steady rate that no server here is busy with.
//!
//! A thread asks at times that are fixed beforehand, the servers in turn, for so short a time each
//! that what slows the machine down slows all of them. The wait counts from the time at which the
//! request was due. Where an answer takes longer than the pause, the next request is due at once: what
//! one server delays is not told of another.

use std::error::Error;
use std::hint::spin_loop;
use std::time::{Duration, Instant};

use super::Server;
use super::client::LoneClient;
use crate::measure::{Estimate, median, quantile, sorted};
use crate::report::Report;
use crate::table::Table;

/// Between two requests, to whatever server.
const PAUSE: Duration = Duration::from_micros(250);
/// Requests to a server before the next one has its turn. The caches know it after the first of them,
/// which are too few to be seen at p99.
const TURN: usize = 200;
/// Requests to each server in a block, and blocks.
const REQUESTS: usize = 2 * TURN;
pub(super) const BLOCKS: usize = 25;

/// For each server and block the waits in µs, in ascending order.
pub(super) struct Paced(Vec<Vec<Vec<f64>>>);

#[expect(clippy::disallowed_methods, reason = "measuring time is what this program is for")]
pub(super) fn measure(servers: &[Server], report: &Report) -> Result<Paced, Box<dyn Error>> {
    let mut clients = Vec::new();
    for server in servers {
        clients.push(LoneClient::connect(server.address)?);
    }
    let mut paced = vec![Vec::new(); servers.len()];
    for block in 0..=BLOCKS {
        report.step("latency");
        let mut waits = vec![Vec::with_capacity(REQUESTS); servers.len()];
        let mut due = Instant::now();
        for place in (0..clients.len()).chain((0..clients.len()).rev()) {
            for _ in 0..TURN {
                due = (due + PAUSE).max(Instant::now());
                while Instant::now() < due {
                    spin_loop();
                }
                let status = clients[place].ask()?;
                if status != 200 {
                    let name = servers[place].name;
                    return Err(format!("{name} answered {status} instead of 200").into());
                }
                waits[place].push(due.elapsed().as_secs_f64() * 1e6);
            }
        }
        // The first warms everything up.
        if block > 0 {
            for (paced, waits) in paced.iter_mut().zip(waits) {
                paced.push(sorted(&waits));
            }
        }
    }
    Ok(Paced(paced))
}

impl Paced {
    /// What a quantile is beyond that of another server: the median of the blocks.
    pub(super) fn added(&self, place: usize, beside: usize, q: f64) -> Estimate {
        let blocks = self.0[place].iter().zip(&self.0[beside]);
        let added = blocks.map(|(mine, base)| quantile(mine, q) - quantile(base, q));
        Estimate::of(&added.collect::<Vec<_>>())
    }

    pub(super) fn table(&self, servers: &[Server]) -> Table {
        let rate = 1.0 / PAUSE.as_secs_f64();
        let title = format!(
            "µs for an answer, {rate:.0} requests a second in all, {REQUESTS} of each server in \
             each of {BLOCKS} blocks"
        );
        let head = ["server", "p50", "p99", "p99.9", "p50 added", "p99 added", "95 %"];
        let mut table = Table::new(&title, head);
        for (place, server) in servers.iter().enumerate() {
            let all = sorted(&self.0[place].concat());
            let of = |q| format!("{:.1}", quantile(&all, q));
            let [half, most] = [0.5, 0.99].map(|q| self.added(place, server.beside, q));
            let typical = |q| {
                let blocks = self.0[place].iter().map(|block| quantile(block, q));
                format!("{:.1}", median(&blocks.collect::<Vec<_>>()))
            };
            table.row([
                server.name.to_owned(),
                typical(0.5),
                typical(0.99),
                of(0.999),
                format!("{:.1}", half.median),
                format!("{:.1}", most.median),
                format!("{:.1}..{:.1}", most.low, most.high),
            ]);
        }
        table
    }
}
