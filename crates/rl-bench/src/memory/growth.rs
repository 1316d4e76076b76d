//! Measures how the cost of a decision grows with the number of subjects, up to ten million.

use std::error::Error;

use super::block::block;
use super::limiters::{ENDLESS, Governors, Keys, Limiter, Ours};
use super::other_limiters::FastGovernor;
use crate::charts::{Axis, Chart, Line, Lines, Plot};
use crate::measure::median;
use crate::report::Report;
use crate::table::Table;
use crate::workload::uniform;

const SIZES: [usize; 8] = [1, 10, 100, 1_000, 10_000, 100_000, 1_000_000, 10_000_000];
/// The largest number of subjects with which all limiters are measured. With more subjects, only
/// one limiter of each kind is measured, to save memory.
const ALL: usize = 1_000_000;
/// The bytes of memory that ten million subjects take, including their names.
const MEMORY: u64 = 9 << 30;
const BLOCK: usize = 50_000;
const SLICES: usize = 8;
const ROUNDS: usize = 9;

pub(super) const STEPS: usize = SIZES.len();

pub(super) fn measure(report: &mut Report) -> Result<(), Box<dyn Error>> {
    let mut table = Table::new(
        "by the number of subjects: ns for each decision that passes, one thread, at random",
        ["subjects", "ours, six", "ours, again", "governor, one", "with ahash", "six governors"],
    );
    let mut points: [Vec<(f64, f64)>; 5] = Default::default();
    let fits = |subjects: usize| subjects <= ALL || available() >= MEMORY;
    let sizes = SIZES.into_iter().filter(|size| fits(*size)).collect::<Vec<_>>();
    let keys = Keys::new(sizes.iter().copied().max().unwrap_or(1));
    for subjects in SIZES {
        report.step(&format!("{subjects} subjects"));
        if !sizes.contains(&subjects) {
            table.row([subjects.to_string(), "too little memory here".to_owned()]);
            continue;
        }
        let mut row = vec![subjects.to_string()];
        for (points, nanos) in points.iter_mut().zip(of(&keys, subjects)?) {
            row.push(nanos.map_or("-".to_owned(), |nanos| format!("{nanos:.0}")));
            points.extend(nanos.map(|nanos| (subjects as f64, nanos)));
        }
        table.row(row);
    }
    report.table("memory-by-subjects", table);
    report.chart(chart(points));
    Ok(())
}

/// Measures the limiters on this number of subjects. Returns the median nanoseconds of a decision
/// for each limiter, or `None` if the limiter is not measured at this size.
fn of(keys: &Keys, subjects: usize) -> Result<[Option<f64>; 5], Box<dyn Error>> {
    let again = || -> Result<Box<dyn Limiter>, Box<dyn Error>> {
        Ok(Box::new(Ours::six(ENDLESS, subjects)?))
    };
    let is_all = subjects <= ALL;
    let all: [Option<Box<dyn Limiter>>; 5] = [
        Some(again()?),
        is_all.then(again).transpose()?,
        Some(Box::new(Governors::one(ENDLESS))),
        Some(Box::new(FastGovernor::new(ENDLESS))),
        is_all.then(|| Box::new(Governors::six([ENDLESS; 6])) as Box<dyn Limiter>),
    ];
    let everybody: Vec<u32> = (0..).take(subjects).collect();
    for limiter in all.iter().flatten() {
        block(&**limiter, keys, &everybody, true);
    }
    let slices: Vec<Vec<u32>> =
        (0..).take(SLICES).map(|seed| uniform(subjects, BLOCK, seed)).collect();
    let mut nanos: [Vec<f64>; 5] = Default::default();
    for round in 0..=ROUNDS {
        for place in (0..all.len()).chain((0..all.len()).rev()) {
            let Some(limiter) = &all[place] else { continue };
            let each = block(&**limiter, keys, &slices[round % SLICES], true);
            // The first round only warms up the caches.
            if round > 0 {
                nanos[place].push(each);
            }
        }
    }
    Ok(nanos.map(|nanos| (!nanos.is_empty()).then(|| median(&nanos))))
}

fn chart([ours, _, one, fast, six]: [Vec<(f64, f64)>; 5]) -> Chart {
    Chart {
        name: "subjects".to_owned(),
        title: "A decision in memory, by the number of subjects".to_owned(),
        note: "One thread, subjects at random, all requests pass.".to_owned(),
        plot: Plot::Lines(Lines {
            x: Axis::logarithmic("subjects"),
            y: Axis::logarithmic("ns for each decision"),
            lines: vec![
                Line::new("ours, six limits", ours),
                Line::new("governor, one limit", one),
                Line::new("governor, ahash, one limit", fast),
                Line::new("six governors", six),
            ],
        }),
    }
}

/// Returns the available memory in bytes, or `u64::MAX` if the system does not report it.
fn available() -> u64 {
    let info = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let line = info.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
    let kilobytes = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
    kilobytes.map_or(u64::MAX, |kilobytes| kilobytes * 1_024)
}
