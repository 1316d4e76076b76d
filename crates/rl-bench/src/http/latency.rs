//! Measures latency at a constant rate that leaves every server idle most of the time.
//!
//! A thread sends requests at fixed times. The servers have short turns, so that a slow phase of
//! the machine affects all of them.
//!
//! The latency of a request is measured from the time at which it was due. If a response takes
//! longer than the pause, the next request is due when the response has arrived. So a slow response
//! does not add to the latencies of the responses after it.

use std::error::Error;
use std::hint::spin_loop;
use std::time::{Duration, Instant};

use super::client::LoneClient;
use super::measured_server::MeasuredServer;
use crate::measure::{Estimate, median, quantile, sorted};
use crate::report::Report;
use crate::table::Table;

/// The pause between two requests, whichever server they are sent to.
const PAUSE: Duration = Duration::from_micros(250);
/// The number of requests in a turn of a server. The first of them warm up the caches; they are too
/// few to affect the 99th percentile.
const TURN: usize = 200;
/// The number of requests to each server in a block.
const REQUESTS: usize = 2 * TURN;
pub(super) const BLOCKS: usize = 25;

/// The latencies of each server and block in µs, in ascending order.
pub(super) struct Latencies(Vec<Vec<Vec<f64>>>);

#[expect(clippy::disallowed_methods, reason = "measuring time is what this program is for")]
pub(super) fn measure(
    servers: &[MeasuredServer],
    report: &Report,
) -> Result<Latencies, Box<dyn Error>> {
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
        // The first block only warms up the caches.
        if block > 0 {
            for (paced, waits) in paced.iter_mut().zip(waits) {
                paced.push(sorted(&waits));
            }
        }
    }
    Ok(Latencies(paced))
}

impl Latencies {
    /// Returns by how much the quantile `q` is higher for the server `place` than for the server
    /// `beside`: the median of the differences in all blocks.
    pub(super) fn added(&self, place: usize, beside: usize, q: f64) -> Estimate {
        let blocks = self.0[place].iter().zip(&self.0[beside]);
        let added = blocks.map(|(mine, base)| quantile(mine, q) - quantile(base, q));
        Estimate::of(&added.collect::<Vec<_>>())
    }

    pub(super) fn table(&self, servers: &[MeasuredServer]) -> Table {
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
