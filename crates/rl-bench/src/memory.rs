//! Decisions in this process. Our limiter with six periods is compared with other limiters, which
//! have one or six periods.

mod algorithms;
mod growth;
mod limiters;

use std::thread;

pub(crate) use algorithms::measure as algorithms;
pub(crate) use growth::measure as growth;
use limiters::{
    EXTENSIBLE, GOVERNOR, Keys, LIMITADOR, Limiter, OTHERS, SIX_GOVERNORS, ours, ours_of,
    parts as of_parts, uniform, zipf,
};
use rl_core::Period;
use stats_alloc::Region;

use crate::Result;
use crate::algorithms::{ENDLESS, policy};
use crate::measure::{Race, time, time_on_processor};
use crate::report::{Report, Table};

/// A number of keys that does not fit into the processor's caches.
const MANY: usize = 1_000_000;
/// A number of keys that fits into the caches.
const FEW: usize = 1_000;
/// The number of visits in a block.
const BLOCK: usize = 50_000;
/// The number of different sequences of visits. Each round uses one of them.
const SLICES: usize = 8;
/// The number of untimed visits before a block of many keys. The other limiters have displaced the
/// data of this one from the processor caches.
const BEFORE: usize = 25_000;
const ROUNDS: usize = 11;
/// The limit of subjects whose visits must be denied. It is not 1, because throttlecrab allows all
/// requests with a burst of 1.
const SCARCE: u32 = 2;

/// Makes the visits. Returns the nanoseconds for each. If `passes` is true, all visits must be
/// allowed, and otherwise all must be denied.
fn block(limiter: &Limiter, keys: &Keys, visits: &[u32], passes: bool) -> f64 {
    let (elapsed, allowed) = time_on_processor(|| limiter(keys, visits));
    assert_eq!(allowed, if passes { visits.len() } else { 0 }, "the limits are set so");
    elapsed.as_secs_f64() * 1e9 / visits.len() as f64
}

/// Compares our limiter for six periods with all other limiters.
pub(crate) fn others(report: &mut Report) -> Result {
    let keys = Keys::new(report.size(MANY, 10 * FEW));
    let many = keys.order.len();
    let random = |subjects| (0..).take(SLICES).map(|seed| uniform(subjects, BLOCK, seed)).collect();
    let zipf = (0..).take(SLICES).map(|seed| zipf(&keys.order, BLOCK, seed)).collect();
    let one = || vec![vec![0; BLOCK]];
    // A name, the maximum, the number of subjects, and the sequences of visits.
    let cases: [(&str, u32, usize, Vec<Vec<u32>>); 6] = [
        ("one subject", ENDLESS, 1, one()),
        ("one, denied", SCARCE, 1, one()),
        ("one, two threads", ENDLESS, 1, one()),
        ("10 000 at random", ENDLESS, 10 * FEW, random(10 * FEW)),
        ("a million, Zipf 0.99", ENDLESS, many, zipf),
        ("a million at random", ENDLESS, many, random(many)),
    ];
    let mut races = Vec::new();
    for (name, max, subjects, slices) in &cases {
        let (subjects, passes) = (*subjects, *max == ENDLESS);
        let mut limiters = vec![(Some(ours(*max, subjects)), 1)];
        limiters.extend(OTHERS.iter().map(|other| {
            let is_measured = subjects <= other.subjects;
            (is_measured.then(|| (other.new)(&keys, *max, subjects)), other.slowness)
        }));
        let everybody: Vec<u32> = (0..).take(subjects).collect();
        for limiter in limiters.iter().filter_map(|(limiter, _)| limiter.as_ref()) {
            // These visits create the entries, or use up the limit.
            for _ in 0..if passes { 1 } else { SCARCE } {
                limiter(&keys, &everybody);
            }
        }
        races.push(Race::run(limiters.len(), report.rounds(ROUNDS), |turn| {
            let (Some(limiter), slowness) = &limiters[turn.contender] else { return [f64::NAN] };
            let slice = |round: usize| &slices[round % slices.len()][..BLOCK / slowness];
            let visits = slice(turn.round);
            if subjects > 10 * FEW {
                limiter(&keys, &slice(turn.round + 1)[..BEFORE.min(visits.len())]);
            }
            if *name == "one, two threads" {
                let (elapsed, _) = time(|| by_threads(limiter, &keys, visits));
                return [elapsed.as_secs_f64() * 1e9 / visits.len() as f64];
            }
            [block(limiter, &keys, visits, passes)]
        }));
    }
    let columns = cases.iter().map(|(name, ..)| *name);
    let columns = ["ns for each decision of a thread"].into_iter().chain(columns);
    let mut table = Table::new("ours beside other limiters", columns);
    let names = ["ours, six periods"].into_iter().chain(OTHERS.iter().map(|other| other.name));
    for (place, name) in names.enumerate() {
        table.row(name, races.iter().map(|race| race.median(place, 0)));
    }
    report.table(table);
    for (other, case, floor) in [
        (GOVERNOR, 0, 0.75),
        (GOVERNOR, 5, 0.9),
        (SIX_GOVERNORS, 0, 5.0),
        (EXTENSIBLE, 0, 1.5),
        (LIMITADOR, 0, 10.0),
    ] {
        let what = format!("six periods, {}: rate beside {}", cases[case].0, OTHERS[other].name);
        report.at_least(what, floor, races[case].multiple(1 + other, 0, 0));
    }
    Ok(())
}

/// Makes the visits on two threads at the same time. Returns how many are allowed.
fn by_threads(limiter: &Limiter, keys: &Keys, visits: &[u32]) -> usize {
    thread::scope(|scope| {
        let threads = [(); 2].map(|()| scope.spawn(|| limiter(keys, visits)));
        threads.map(|thread| thread.join().expect("deciding does not panic")).iter().sum()
    })
}

/// Measures the bytes of a subject, and the allocations of decisions on known subjects.
pub(crate) fn space(report: &mut Report) -> Result {
    let keys = Keys::new(report.size(MANY, 10 * FEW));
    let count = keys.order.len();
    // This order differs from the order of later visits. Otherwise a table in insertion order would
    // be read from front to back.
    let numbers: Vec<u32> = (0..).take(count).collect();
    let gcra = policy(["90000000/hour:gcra"])?;
    let other = |place: usize| (OTHERS[place].new)(&keys, ENDLESS, count);
    let mut table = Table::new(&format!("bytes of a subject, of {count}"), ["", "bytes"]);
    let cases: [(&str, &dyn Fn() -> Limiter, f64); 4] = [
        ("ours, six periods", &|| ours(ENDLESS, count), 112.0),
        ("ours, one GCRA", &|| ours_of(&gcra, 2 * count), 256.0),
        (OTHERS[GOVERNOR].name, &|| other(GOVERNOR), f64::INFINITY),
        (OTHERS[SIX_GOVERNORS].name, &|| other(SIX_GOVERNORS), f64::INFINITY),
    ];
    for (name, new, most) in cases {
        let region = Region::new(crate::ALLOCATOR);
        let limiter = new();
        block(&limiter, &keys, &numbers, true);
        let change = region.change();
        let bytes = change.bytes_allocated.saturating_sub(change.bytes_deallocated);
        let bytes = bytes as f64 / count as f64;
        table.row(name, [bytes]);
        if most.is_finite() {
            report.at_most(format!("{name}: bytes of a subject"), most, bytes);
        }
    }
    report.table(table);
    for (name, limiter, visits, most) in [
        ("six periods, allowed", ours(ENDLESS, count), &numbers[..], 0.0),
        ("six periods, denied", ours(SCARCE, count), &[0; FEW], 0.0),
        ("three parts, allowed", of_parts(3)?, &numbers[..FEW], 1.0),
    ] {
        for _ in 0..=SCARCE {
            limiter(&keys, visits);
        }
        let region = Region::new(crate::ALLOCATOR);
        limiter(&keys, visits);
        let change = region.change();
        let each = (change.allocations + change.reallocations) as f64 / visits.len() as f64;
        report.at_most(format!("{name}: allocations on known subjects"), most, each);
    }
    Ok(())
}

/// Compares requests of three parts, one of them with six limits, with requests of one part with
/// six limits.
pub(crate) fn parts(report: &mut Report) -> Result {
    let keys = Keys::new(FEW);
    let visits: Vec<u32> = (0..).take(FEW).cycle().take(BLOCK).collect();
    let limiters = [of_parts(1)?, of_parts(3)?];
    let race = race(&limiters, &keys, &[visits], report.rounds(31));
    let mut table = Table::new("requests of several parts", ["six limits in one part", "ns"]);
    for (place, name) in ["one part", "three parts"].into_iter().enumerate() {
        table.row(name, [race.median(place, 0)]);
    }
    report.table(table);
    report.at_most("three parts: time beside one part", 3.5, race.multiple(1, 0, 0));
    Ok(())
}

/// Measures the limiters, which must allow all visits. Each round makes one of the `slices`.
fn race(limiters: &[Limiter], keys: &Keys, slices: &[Vec<u32>], rounds: usize) -> Race {
    Race::run(limiters.len(), rounds, |turn| {
        [block(&limiters[turn.contender], keys, &slices[turn.round % slices.len()], true)]
    })
}

/// Floods a store that has room for a million subjects with ten million invented ones. Measures the
/// cost and the memory, and checks that a denied subject is not evicted.
pub(crate) fn flood(report: &mut Report) -> Result {
    const ROUND: usize = 100_000;
    let capacity = report.size(MANY, ROUND);
    let mut max = [ENDLESS; 6];
    max[2] = 3;
    let limits = max.into_iter().zip(Period::NAMED).map(|(max, period)| format!("{max}/{period}"));
    let flooded = ours_of(&policy(limits)?, capacity);
    let quiet = ours(ENDLESS, capacity);
    let invent =
        |from: usize| Keys::named((from..from + ROUND).map(|n| format!("invented-{n:09}")));
    let numbers: Vec<u32> = (0..).take(ROUND).collect();
    let victim = Keys::named(["victim".to_owned()].into_iter());
    while flooded(&victim, &[0]) == 1 {}
    // The stores are filled before anything is measured.
    for from in (0..2 * capacity).step_by(ROUND) {
        flooded(&invent(100 * MANY + from), &numbers);
    }
    let known = Keys::new(capacity);
    quiet(&known, &known.order);
    let (before, mut freed, mut blocks) = (resident(), 0, 0);
    let race = Race::run(2, 10 * capacity / (2 * ROUND), |turn| {
        let visited = &known.order[blocks * ROUND % capacity..][..ROUND];
        let (limiter, subjects) = match turn.contender {
            0 => (&flooded, invent(blocks * ROUND)),
            _ => (&quiet, Keys::named(visited.iter().map(Keys::name))),
        };
        let (elapsed, _) = time_on_processor(|| limiter(&subjects, &numbers));
        freed += flooded(&victim, &[0]);
        blocks += 1;
        [elapsed.as_secs_f64() * 1e9 / ROUND as f64]
    });
    let growth = (resident() as f64 / before as f64 - 1.0).max(0.0) * 100.0;
    let mut table = Table::new("a flood of invented subjects", ["", "ns"]);
    table.row("invented, each takes another's place", [race.median(0, 0)]);
    table.row("known, all fit", [race.median(1, 0)]);
    report.table(table);
    report.at_most("a flood: percent of memory beyond that of a full store", 10.0, growth);
    report.at_most("a flood: times that a denied subject passes", 0.0, freed as f64);
    report.at_least("a flood: rate beside none", 0.5, race.multiple(1, 0, 0));
    Ok(())
}

/// Returns the bytes of memory that the process uses.
fn resident() -> u64 {
    let pages = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages = pages.split_whitespace().nth(1).and_then(|pages| pages.parse::<u64>().ok());
    pages.unwrap_or_default() * 4_096
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_limiter_allows_what_its_limit_permits_and_denies_the_rest() {
        let keys = Keys::new(FEW);
        let visits = [[0; 10], [1; 10]].concat();
        for other in &OTHERS {
            let allowed = |max| (other.new)(&keys, max, FEW)(&keys, &visits);
            assert_eq!(allowed(ENDLESS), 20, "{}", other.name);
            let subjects = other.subjects.min(2);
            assert_eq!(allowed(SCARCE), subjects * SCARCE as usize, "{}", other.name);
        }
        assert_eq!(ours(SCARCE, FEW)(&keys, &visits), 2 * SCARCE as usize);
        assert_eq!(of_parts(3).unwrap()(&keys, &visits), 20);
    }
}
