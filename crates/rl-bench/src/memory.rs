//! Decisions in this process: our limiter for six periods, compared with others for one period and
//! for six.

mod algorithms;
mod block;
mod cases;
mod flood;
mod growth;
mod limiters;
mod long_logs;
mod matrix;
mod other_limiters;
mod primitives;

use std::error::Error;
use std::hint::black_box;

use block::{MANY, WARM_BLOCK, block, endless};
use limiters::{ENDLESS, Governors, Keys, Limiter, Ours};
pub(crate) use long_logs::speed as long_logs;
use stats_alloc::Region;

use crate::goals::{Goal, Unit};
use crate::machine;
use crate::report::Report;
use crate::table::Table;

/// The number of steps in the progress bar: the measurements, and the blocks of the flood.
const STEPS: usize = 6 + matrix::STEPS + growth::STEPS + 100;

/// Runs all measurements in memory, prints them, and adds the goals to the report.
pub(crate) fn run(report: &mut Report) -> Result<(), Box<dyn Error>> {
    let versions =
        ["rl-core", "governor", "actix-extensible-rate-limit", "throttlecrab", "trypema"]
            .into_iter()
            .chain(["limitador", "burster"])
            .map(machine::library)
            .chain([machine::program("rustc")])
            .collect::<Vec<_>>();
    report.begin(
        "rl-core in memory: six periods, second to month, in each decision",
        &versions,
        "in one process without a runtime, in blocks that take turns, in forward and in reverse order; \
         ns for each decision of a thread are medians, by processor time for one thread and by wall \
         time for several; a ratio is the median over rounds with its bootstrap interval of 95 %, and \
         above 1x we are faster; keys are created beforehand for all limiters; too many: requests \
         allowed beyond the limits",
        STEPS,
    );
    let keys = Keys::new(MANY);
    let mut goals = Vec::new();
    if !report.goals_only {
        report.step("primitive operations");
        report.table("memory-floors", primitives::measure(&keys));
    }
    matrix::measure(&keys, report, &mut goals)?;
    if !report.goals_only {
        report.step("exactness");
        report.table("memory-exactness", matrix::exactness(&keys)?);
    }
    report.step("denials and numbers of limits");
    cases::denial(&keys, &mut goals)?;
    if !report.goals_only {
        cases::counts(&keys, report)?;
    }
    report.step("memory of a million subjects");
    space(&keys, report, &mut goals)?;
    report.step("logs, algorithms");
    cases::logs(&mut goals)?;
    if !report.goals_only {
        report.table("memory-algorithms", algorithms::speed(&keys)?);
        report.table("memory-algorithms-space", algorithms::space(&keys)?);
        report.table("memory-long-logs", long_logs()?);
    }
    report.step("instructions");
    goals.push(cases::instructions());
    let flood = flood::run(&keys, &mut goals, report)?;
    report.table("memory-flood", flood);
    drop(keys);
    if !report.goals_only {
        growth::measure(report)?;
    }
    report.end(goals);
    Ok(())
}

/// Measures the memory of a million subjects, and the allocations of decisions on known subjects.
fn space(keys: &Keys, report: &mut Report, goals: &mut Vec<Goal>) -> Result<(), Box<dyn Error>> {
    let ours = endless(MANY)?;
    // This order differs from the order of later visits. Otherwise a table in insertion order would
    // be read from front to back.
    let numbers: Vec<u32> = (0..).take(MANY).collect();
    let mut table = Table::new(
        "memory (bytes asked of the allocator by a million subjects)",
        ["limiter", "bytes for each"],
    );
    let mut fill = |name: &str, limiter: &dyn Limiter| {
        let region = Region::new(crate::ALLOCATOR);
        block(limiter, keys, &numbers, true);
        let change = region.change();
        let held = change.bytes_allocated.saturating_sub(change.bytes_deallocated);
        table.row([name.to_owned(), (held / MANY).to_string()]);
        held as f64 / MANY as f64
    };
    let bytes = fill("ours, six periods", &ours);
    fill("governor, one", &Governors::one(ENDLESS));
    fill("six governors", &Governors::six([ENDLESS; 6]));
    let lines = (96.0, 72.0, Unit::AtMost("bytes"));
    let what = "six periods, bytes for each of a million subjects";
    goals.push(Goal::counted("M8", what, lines, bytes));
    report.table("memory-space", table);
    report.table("memory-allocations", allocations(&ours, keys, goals)?);
    Ok(())
}

/// Returns a table of the allocations of decisions on known subjects.
fn allocations(known: &Ours, keys: &Keys, goals: &mut Vec<Goal>) -> Result<Table, Box<dyn Error>> {
    let exhausted = Ours::new([1; 6], MANY)?;
    block(&exhausted, keys, &[0], true);
    let mut table = Table::new("allocations", ["case", "for each decision"]);
    for (case, ours, visits) in [
        ("ours, a million known keys, allowed", known, &keys.order[..]),
        ("ours, one known key, denied", &exhausted, &[0; WARM_BLOCK]),
    ] {
        let region = Region::new(crate::ALLOCATOR);
        black_box(ours.count_allowed(keys, visits));
        let change = region.change();
        let count = (change.allocations + change.reallocations) as f64 / visits.len() as f64;
        let what = format!("{case}: allocations for each decision");
        goals.push(Goal::counted("M6", &what, (0.0, 0.0, Unit::AtMost("")), count));
        table.row([case.to_owned(), count.to_string()]);
    }
    Ok(table)
}
