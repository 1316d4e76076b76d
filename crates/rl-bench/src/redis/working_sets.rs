//! One subject, ten thousand, a million, and a million of which some come often.

use std::error::Error;
use std::sync::Arc;

use rl_core::store::redis::Layout;

use super::contender::Contender;
use super::server::Server;
use super::{Block, ENDLESS, Load, SHOWN, admitted, rounds, typical};
use crate::measure::Estimate;
use crate::report::Report;
use crate::table::{Cell, Table};
use crate::visits::{ZIPF, uniform, zipf};

const MILLION: usize = 1_000_000;
/// Visits of a block.
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
        let mut bystander = server.bystander().await?;
        let pair = [
            Contender::store(&server, 0, Layout::Packed, ENDLESS).await?,
            Contender::incr(&server, 1).await?,
        ];
        // Everybody is known before anybody is measured.
        let mut ready = Vec::new();
        for contender in pair {
            let contender = Arc::new(contender.visiting(subjects, Vec::new()));
            admitted(&contender, Load { in_flight: 256, decisions: subjects, subjects }).await;
            let contender = Arc::into_inner(contender).ok_or("nobody else has it")?;
            ready.push(Arc::new(contender.visiting(subjects, order.clone())));
        }
        let load = Load { in_flight: SHOWN, decisions: VISITS, subjects: VISITS };
        let rounds = rounds(&ready, load, ROUNDS, &mut bystander).await?;
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
