//! The memory that subjects take, and the allocations of decisions on known subjects.

use std::error::Error;
use std::hint::black_box;

use stats_alloc::Region;

use super::block::{MANY, WARM_BLOCK, block, endless};
use super::limiters::{ENDLESS, Governors, Keys, Limiter, Ours};
use crate::algorithms::Row;
use crate::goals::{Goal, Unit};
use crate::report::Report;
use crate::table::Table;

/// The number of subjects over which the memory is averaged.
const SUBJECTS: usize = 100_000;
/// The number of busy subjects, and the number of requests that each of them makes. These requests
/// use up most limits.
const BUSY: usize = 100;
const FULL: usize = 10_000;

/// Measures the memory of a million subjects, and the allocations of decisions on known subjects.
pub(super) fn measure(
    keys: &Keys,
    report: &mut Report,
    goals: &mut Vec<Goal>,
) -> Result<(), Box<dyn Error>> {
    let ours = endless(MANY)?;
    // This order differs from the order of later visits. Otherwise a table in insertion order would
    // be read from front to back.
    let numbers: Vec<u32> = (0..).take(MANY).collect();
    let mut table = Table::new(
        "memory (bytes allocated for a million subjects)",
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

/// Returns a table of the bytes for each subject.
pub(super) fn by_algorithm(keys: &Keys) -> Result<Table, Box<dyn Error>> {
    let mut table = Table::new(
        "memory per subject by algorithm: bytes allocated for 100 000 subjects",
        ["", "after 1 request", "after 10 000 requests"],
    );
    let (all, busy) = (&keys.order[..SUBJECTS], &keys.order[..BUSY]);
    for row in Row::all().into_iter().chain(Row::many_windows()) {
        let ours = Ours::under(&row.roomy()?, SUBJECTS)?;
        let first = held(|| block(&ours, keys, all, true)) / SUBJECTS as f64;
        let more = held(|| ours.count_allowed(keys, &busy.repeat(FULL - 1))) / BUSY as f64;
        let cells = [first, first + more].map(|bytes| format!("{bytes:.0}"));
        table.row([row.name.to_owned()].into_iter().chain(cells));
    }
    Ok(table)
}

/// Runs `work`. Returns the bytes that it has allocated and not freed.
fn held<T>(work: impl FnOnce() -> T) -> f64 {
    let region = Region::new(crate::ALLOCATOR);
    work();
    let change = region.change();
    change.bytes_allocated as f64 - change.bytes_deallocated as f64
}
