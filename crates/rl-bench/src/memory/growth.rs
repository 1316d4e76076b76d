//! Measures how the cost of a decision grows with the number of subjects, up to ten million, and
//! with the number of limits.

use rl_core::{Limit, Period, Policy};

use super::limiters::{ENDLESS, Keys, Limiter, OTHERS, ours, ours_of, uniform};
use super::{BLOCK, FEW, SLICES, block};
use crate::Result;
use crate::charts::Chart;
use crate::measure::Race;
use crate::report::{Report, Table};

const SIZES: [usize; 8] = [1, 10, 100, 1_000, 10_000, 100_000, 1_000_000, 10_000_000];
/// The largest number of subjects with which six governors are measured, to save memory.
const ALL: usize = 1_000_000;
/// The bytes of memory that ten million subjects take, including their names.
const MEMORY: u64 = 9 << 30;
const ROUNDS: usize = 9;
const LIMITS: [usize; 8] = [1, 2, 3, 4, 6, 8, 12, 16];

pub(crate) fn measure(report: &mut Report) -> Result {
    let most = report.size(10 * ALL, 10 * FEW);
    let fits = |subjects: &usize| *subjects <= most && (*subjects <= ALL || available() >= MEMORY);
    let sizes: Vec<usize> = SIZES.into_iter().filter(fits).collect();
    let keys = Keys::new(sizes.iter().copied().max().unwrap_or(1));
    let columns = [
        "subjects",
        "ours, six limits",
        "governor, one limit",
        "governor, ahash, one limit",
        "six governors",
    ];
    let mut table = Table::new("ns for each decision, by the number of subjects", columns);
    for subjects in sizes {
        let mut limiters = vec![ours(ENDLESS, subjects)];
        let others = OTHERS[..if subjects <= ALL { 3 } else { 2 }].iter();
        limiters.extend(others.map(|other| (other.new)(&keys, ENDLESS, subjects)));
        let everybody: Vec<u32> = (0..).take(subjects).collect();
        for limiter in &limiters {
            limiter(&keys, &everybody);
        }
        let slices =
            (0..).take(SLICES).map(|seed| uniform(subjects, BLOCK, seed)).collect::<Vec<_>>();
        let race = race(&limiters, &keys, &slices, report.rounds(ROUNDS));
        let nanos = (0..4)
            .map(|place| if place < limiters.len() { race.median(place, 0) } else { f64::NAN });
        table.row([subjects.into()].into_iter().chain(nanos.map(Into::into)));
    }
    let chart = Chart {
        name: "subjects",
        title: "A decision in memory, by the number of subjects",
        note: "One thread, subjects at random, all requests pass.",
        unit: "ns for each decision",
        is_logarithmic: true,
    };
    report.chart(&chart, table)?;

    let mut limiters = Vec::new();
    for count in LIMITS {
        let periods = (1..=count as u64).map(|hours| Period::from_millis(hours * 3_600_000));
        let limits: Result<Vec<_>> =
            periods.map(|period| Ok(Limit::new(ENDLESS.into(), period?)?)).collect();
        limiters.push(ours_of(&Policy::new(limits?)?, 100 * FEW));
    }
    let race = race(&limiters, &keys, &[vec![0; 10_000]], report.rounds(31));
    let mut table = Table::new(
        "ns for each decision, by the number of limits",
        ["limits in the policy", "ours"],
    );
    for (place, count) in LIMITS.into_iter().enumerate() {
        table.row([count.into(), race.median(place, 0).into()]);
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

fn race(limiters: &[Limiter], keys: &Keys, slices: &[Vec<u32>], rounds: usize) -> Race {
    let mut race = Race::new(limiters.len());
    for turn in race.turns(rounds) {
        let slice = &slices[turn.round % slices.len()];
        race.record(turn, [block(&limiters[turn.contender], keys, slice, true)]);
    }
    race
}

/// Returns the available memory in bytes, or `u64::MAX` if the system does not report it.
fn available() -> u64 {
    let info = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let line = info.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
    let kilobytes = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
    kilobytes.map_or(u64::MAX, |kilobytes| kilobytes * 1_024)
}
