//! Working sets: one subject, ten thousand, a million, and a million that are visited by Zipf's
//! law.

use std::error::Error;
use std::sync::Arc;

use rl_core::store::Layout;

use super::candidate::Candidate;
use super::load::{Block, ENDLESS, Load, SHOWN, count_allowed, rounds, typical};
use super::server::Server;
use crate::measure::Estimate;
use crate::report::Report;
use crate::table::{Cell, Table};
use crate::workload::{ZIPF, uniform, zipf};

const MILLION: usize = 1_000_000;
/// The number of visits in a block.
const VISITS: usize = 12_000;
const ROUNDS: usize = 5;

pub(super) async fn measure(report: &mut Report) -> Result<(), Box<dyn Error>> {
    let everybody: Vec<u32> = (0..).take(MILLION).collect();
    let sets = [
        ("one", 1, vec![0; VISITS]),
        ("10 000 at random", 10_000, uniform(10_000, VISITS, 1)),
        ("a million, Zipf 0.99", MILLION, zipf(&everybody, ZIPF, VISITS, 1)),
        ("a million at random", MILLION, uniform(MILLION, VISITS, 1)),
    ];
    let title = format!("by working set: {SHOWN} in flight, six periods");
    let head = ["subjects", "thousand/s", "INCR thousand/s", "beside INCR", "server µs, command"];
    let mut table = Table::new(&title, head);
    for (name, subjects, order) in sets {
        let server = Server::start()?;
        let mut monitor = server.monitor().await?;
        let pair = [
            Candidate::store(&server, 0, Layout::Packed, ENDLESS).await?,
            Candidate::incr(&server, 1).await?,
        ];
        // The keys of all subjects are created before anything is measured.
        let mut ready = Vec::new();
        for candidate in pair {
            let candidate = Arc::new(candidate.with_order(subjects, Vec::new()));
            count_allowed(&candidate, Load { in_flight: 256, decisions: subjects, subjects }).await;
            let candidate = Arc::into_inner(candidate).ok_or("the candidate is still shared")?;
            ready.push(Arc::new(candidate.with_order(subjects, order.clone())));
        }
        let load = Load { in_flight: SHOWN, decisions: VISITS, subjects: VISITS };
        let rounds = rounds(&ready, load, ROUNDS, &mut monitor).await?;
        let rate = |place| 1e-3 / typical(&rounds, place, |block| block.seconds);
        let sum = |blocks: &[Block; 2]| blocks[0].seconds + blocks[1].seconds;
        let ratios = rounds.iter().map(|round| sum(&round[1]) / sum(&round[0]));
        table.row::<Cell>([
            name.into(),
            format!("{:.1}", rate(0)).into(),
            format!("{:.1}", rate(1)).into(),
            Estimate::of(&ratios.collect::<Vec<_>>()).into(),
            format!("{:.2}", typical(&rounds, 0, |block| block.command)).into(),
        ]);
    }
    report.table("redis-working-sets", table);
    Ok(())
}
