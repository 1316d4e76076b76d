//! Measures how the cost of a decision grows with the number of subjects, up to ten million, and
//! with the number of limits.

use super::limiters::{GOVERNOR, Keys, OTHERS, SIX_GOVERNORS, ours, ours_of, uniform};
use super::{BLOCK, FEW, MANY, SLICES, race};
use crate::Result;
use crate::algorithms::{ENDLESS, policy};
use crate::charts::Chart;
use crate::report::{Report, Table};

const SIZES: [usize; 8] = [1, 10, 100, 1_000, 10_000, 100_000, 1_000_000, 10_000_000];
/// The bytes of memory that ten million subjects take, including their names.
const MEMORY: u64 = 9 << 30;
const LIMITS: [usize; 8] = [1, 2, 3, 4, 6, 8, 12, 16];

pub(crate) fn measure(report: &mut Report) -> Result {
    let most = report.size(10 * MANY, 10 * FEW);
    let fits = |subjects: &usize| *subjects <= most && (*subjects <= MANY || available() >= MEMORY);
    let sizes: Vec<usize> = SIZES.into_iter().filter(fits).collect();
    let keys = Keys::new(sizes.iter().copied().max().unwrap_or(1));
    let others = &OTHERS[GOVERNOR..=SIX_GOVERNORS];
    let mut table = Table::new(
        "ns for each decision, by the number of subjects",
        [
            "subjects",
            "ours, six limits",
            "governor, one limit",
            "governor, ahash, one limit",
            "six governors",
        ],
    );
    for subjects in sizes {
        let mut limiters = vec![ours(ENDLESS, subjects)];
        // Six governors of more subjects would take too much memory.
        let measured = others.len() - usize::from(subjects > MANY);
        let new = others[..measured].iter().map(|other| (other.new)(&keys, ENDLESS, subjects));
        limiters.extend(new);
        let everybody: Vec<u32> = (0..).take(subjects).collect();
        for limiter in &limiters {
            limiter(&keys, &everybody);
        }
        let slices: Vec<_> =
            (0..).take(SLICES).map(|seed| uniform(subjects, BLOCK, seed)).collect();
        let race = race(&limiters, &keys, &slices, report.rounds(9));
        let nanos = |place| if place <= measured { race.median(place, 0) } else { f64::NAN };
        table.row(subjects, (0..=others.len()).map(nanos));
    }
    let chart = Chart {
        name: "subjects",
        title: "A decision in memory, by the number of subjects",
        note: "One thread, subjects at random, all requests pass.",
        unit: "ns for each decision",
        is_logarithmic: true,
    };
    report.chart(&chart, table)?;

    let limits = |count: usize| policy((1..=count).map(|hours| format!("{ENDLESS}/{hours}h")));
    let new = |count| Ok(ours_of(&limits(count)?, 100 * FEW));
    let limiters = LIMITS.into_iter().map(new).collect::<Result<Vec<_>>>()?;
    let race = race(&limiters, &keys, &[vec![0; 10_000]], report.rounds(31));
    let columns = ["limits in the policy", "ours"];
    let mut table = Table::new("ns for each decision, by the number of limits", columns);
    for (place, count) in LIMITS.into_iter().enumerate() {
        table.row(count, [race.median(place, 0)]);
    }
    let chart = Chart {
        name: "limits-memory",
        title: "A decision in memory, by the number of limits",
        note: "Fixed windows of one subject, one thread, all requests pass.",
        unit: "ns for each decision",
        is_logarithmic: false,
    };
    report.chart(&chart, table)
}

/// Returns the available memory in bytes, or `u64::MAX` if the system does not report it.
fn available() -> u64 {
    let info = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let line = info.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
    let kilobytes = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
    kilobytes.map_or(u64::MAX, |kilobytes| kilobytes * 1_024)
}
