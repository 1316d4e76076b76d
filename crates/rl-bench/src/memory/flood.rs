//! Floods a store that has room for a million subjects with ten million invented ones. Measures the
//! cost and the memory, and checks that a denied subject is not evicted.

use std::error::Error;

use rl_core::{Limit, Policy, Subject};

use super::block::endless;
use super::limiters::{Keys, Limiter, Ours};
use crate::goals::{Goal, Unit};
use crate::measure::{Estimate, time_on_processor};
use crate::report::Report;
use crate::table::Table;

const CAPACITY: usize = 1_000_000;
const INVENTED: usize = 10_000_000;
/// The number of decisions between two readings of the clock.
const BLOCK: usize = 100_000;

/// A denied subject, which the flood must not evict.
const VICTIM: &str = "victim";

pub(super) fn run(
    keys: &Keys,
    goals: &mut Vec<Goal>,
    report: &Report,
) -> Result<Table, Box<dyn Error>> {
    let policy = Policy::new([
        Limit::per_second(1_000_000),
        Limit::per_minute(1_000_000),
        Limit::per_hour(3),
        Limit::per_day(1_000_000),
        Limit::per_week(1_000_000),
        Limit::per_month(1_000_000),
    ])?;
    let (ours, quiet) = (Ours::with_room(&policy, CAPACITY)?, endless(CAPACITY)?);
    let victim = || ours.allows_subject(&Subject::consumer(VICTIM));
    while victim() {}

    let invent = |from: usize| {
        let (elapsed, ()) = time_on_processor(|| {
            for n in from..from + BLOCK {
                ours.allows_subject(&Subject::consumer(&format!("invented-{n:09}")));
            }
        });
        elapsed.as_secs_f64() * 1e9 / BLOCK as f64
    };
    // The store is filled before anything is measured.
    for block in 0..2 * CAPACITY / BLOCK {
        invent(INVENTED + block * BLOCK);
    }
    quiet.count_allowed(keys, &keys.order);
    let (before, mut freed) = (resident(), 0_u32);
    let (mut costs, mut ratios) = ([Vec::new(), Vec::new()], Vec::new());
    for block in 0..INVENTED / BLOCK {
        let flooded = invent(block * BLOCK);
        freed += u32::from(victim());
        // For comparison, the same number of known subjects is visited. Their ids are formatted
        // here too, like those of invented subjects.
        let visits = &keys.order[block * BLOCK % CAPACITY..][..BLOCK];
        let (elapsed, _) = time_on_processor(|| {
            for key in visits {
                quiet.allows_subject(&Subject::consumer(&format!("consumer-{key:08}")));
            }
        });
        let known = elapsed.as_secs_f64() * 1e9 / BLOCK as f64;
        costs[0].push(flooded);
        costs[1].push(known);
        ratios.push(known / flooded);
        report.step("a flood");
    }
    let growth = (resident() as f64 - before as f64) * 100.0 / before as f64;
    let throughput = Estimate::of(&ratios);
    goals.push(Goal::counted(
        "M10",
        "a flood: memory of the process beyond that of a full store",
        (10.0, 2.0, Unit::AtMost("%")),
        growth.max(0.0),
    ));
    goals.push(Goal::counted(
        "M10",
        "a flood: an exhausted subject passes early",
        (0.0, 0.0, Unit::AtMost("times")),
        freed.into(),
    ));
    let lines = (0.5, 0.8, Unit::Times);
    goals.push(Goal::measured("M10", "a flood: throughput beside none", lines, throughput));
    let mut table = Table::new(
        "flood (a store for a million, ten million invented subjects, named as they come)",
        ["case", "ns"],
    );
    let [flooded, known] = costs.map(|nanos| format!("{:.0}", crate::measure::median(&nanos)));
    table.row(["invented, each takes another's place".to_owned(), flooded]);
    table.row(["known, a million".to_owned(), known]);
    Ok(table)
}

/// Returns the bytes of memory that the process uses.
fn resident() -> u64 {
    let pages = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages = pages.split_whitespace().nth(1).and_then(|pages| pages.parse::<u64>().ok());
    pages.unwrap_or_default() * 4_096
}
