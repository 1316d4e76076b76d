//! The cost of each algorithm in this process: the time of a decision, and the memory of a subject.

use std::error::Error;

use stats_alloc::Region;

use super::block::{FEW, block};
use super::limiters::{Keys, Limiter, Ours, OursWithPermits};
use crate::algorithms::Row;
use crate::measure::median;
use crate::table::Table;

/// The number of timed requests of each subject in a block. An untimed request before them creates
/// the subject's entry.
const VISITS: usize = 16;
/// The number of rounds of two blocks, in forward and in reverse order.
const ROUNDS: usize = 31;
/// The number of subjects over which the memory is averaged.
const SUBJECTS: usize = 100_000;
/// The number of subjects that make many requests, and the number of requests that uses up most
/// limits.
const BUSY: usize = 100;
const FULL: usize = 10_000;

/// Returns a table of the nanoseconds for each decision.
pub(super) fn speed(keys: &Keys) -> Result<Table, Box<dyn Error>> {
    let rows = Row::all();
    let mut nanos = vec![[Vec::new(), Vec::new()]; rows.len()];
    for _ in 0..ROUNDS {
        for place in (0..rows.len()).chain((0..rows.len()).rev()) {
            let [allowed, denied] = &mut nanos[place];
            allowed.push(fresh(&rows[place], keys, true)?);
            denied.push(fresh(&rows[place], keys, false)?);
        }
    }
    let mut table = Table::new(
        "ns per decision by algorithm (a thousand keys, one thread)",
        ["", "allowed", "denied"],
    );
    for (row, nanos) in rows.iter().zip(nanos) {
        let medians = nanos.map(|nanos| format!("{:.0}", median(&nanos)));
        table.row([row.name.to_owned()].into_iter().chain(medians));
    }
    Ok(table)
}

/// Returns the nanoseconds for each decision on subjects that have made one request before.
fn fresh(row: &Row, keys: &Keys, passes: bool) -> Result<f64, Box<dyn Error>> {
    let policy = if passes { row.roomy()? } else { row.tight()? };
    // The capacity is so large that no shard can be full by chance.
    let ours = Ours::under(&policy, 100 * FEW)?;
    let few = &keys.order[..FEW];
    block(&ours, keys, few, true);
    let visits = few.repeat(VISITS);
    if row.is_held && passes {
        Ok(block(&OursWithPermits::by(ours)?, keys, &visits, true))
    } else {
        Ok(block(&ours, keys, &visits, passes))
    }
}

/// Returns a table of the bytes for each subject.
pub(super) fn space(keys: &Keys) -> Result<Table, Box<dyn Error>> {
    let mut table = Table::new(
        "memory per subject by algorithm: bytes asked of the allocator by 100 000 subjects",
        ["", "after 1 request", "after 10 000 requests"],
    );
    let (all, busy) = (&keys.order[..SUBJECTS], &keys.order[..BUSY]);
    for row in Row::all() {
        let ours = Ours::under(&row.roomy()?, SUBJECTS)?;
        let first = held(|| block(&ours, keys, all, true)) / SUBJECTS as f64;
        let more = held(|| ours.count_allowed(keys, &busy.repeat(FULL - 1))) / BUSY as f64;
        let cells = [first, first + more].map(|bytes| format!("{bytes:.0}"));
        table.row([row.name.to_owned()].into_iter().chain(cells));
    }
    Ok(table)
}

/// Returns the bytes that `work` has allocated and that are still in use.
fn held<T>(work: impl FnOnce() -> T) -> f64 {
    let region = Region::new(crate::ALLOCATOR);
    work();
    let change = region.change();
    change.bytes_allocated as f64 - change.bytes_deallocated as f64
}
