//! Decisions in this process. Our limiter with six periods is compared with other limiters, which
//! have one or six periods.

mod algorithms;
mod growth;
mod limiters;

use std::thread;

pub(crate) use algorithms::measure as algorithms;
pub(crate) use growth::measure as growth;
use limiters::{
    ENDLESS, Keys, Limiter, OTHERS, ours, ours_of, parts as of_parts, policy_of_six, uniform, zipf,
};
use rl_core::Policy;
use stats_alloc::Region;

use crate::Result;
use crate::measure::{Estimate, Race, time, time_on_processor};
use crate::report::{Bound, Report, Table};

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
    const COLUMNS: [&str; 6] = [
        "one subject",
        "one, denied",
        "one, two threads",
        "10 000 at random",
        "a million, Zipf 0.99",
        "a million at random",
    ];
    let keys = Keys::new(report.size(MANY, 10 * FEW));
    let many = keys.order.len();
    let slices = |subjects| (0..).take(SLICES).map(|seed| uniform(subjects, BLOCK, seed)).collect();
    let one = || vec![vec![0; BLOCK]];
    let zipf = (0..).take(SLICES).map(|seed| zipf(&keys.order, BLOCK, seed)).collect();
    let visits: [(usize, Vec<Vec<u32>>); 6] = [
        (1, one()),
        (1, one()),
        (1, one()),
        (10 * FEW, slices(10 * FEW)),
        (many, zipf),
        (many, slices(many)),
    ];
    let mut races = Vec::new();
    for (column, (subjects, slices)) in visits.iter().enumerate() {
        let (is_denied, threads) = (column == 1, if column == 2 { 2 } else { 1 });
        let max = if is_denied { SCARCE } else { ENDLESS };
        let mut limiters = vec![Some(ours(max, *subjects))];
        limiters.extend(OTHERS.iter().map(|other| {
            (*subjects <= other.subjects).then(|| (other.new)(&keys, max, *subjects))
        }));
        let everybody: Vec<u32> = (0..).take(*subjects).collect();
        for limiter in limiters.iter().flatten() {
            // These visits create the entries, or use up the limit.
            for _ in 0..if is_denied { SCARCE } else { 1 } {
                limiter(&keys, &everybody);
            }
        }
        let mut race = Race::new(limiters.len());
        for turn in race.turns(report.rounds(ROUNDS)) {
            let Some(limiter) = &limiters[turn.contender] else { continue };
            let length =
                BLOCK / turn.contender.checked_sub(1).map_or(1, |place| OTHERS[place].slowness);
            let slice = &slices[turn.round % slices.len()][..length];
            if *subjects > 10 * FEW {
                limiter(&keys, &slices[(turn.round + 1) % slices.len()][..BEFORE.min(length)]);
            }
            race.record(
                turn,
                [match threads {
                    1 => block(limiter, &keys, slice, !is_denied),
                    _ => {
                        1e9 / length as f64
                            * time(|| by_threads(limiter, &keys, slice)).0.as_secs_f64()
                    }
                }],
            );
        }
        races.push(race);
    }
    let columns = ["ns for each decision of a thread"].into_iter().chain(COLUMNS);
    let mut table = Table::new("ours beside other limiters", columns.chain(["ours is faster by"]));
    let names = ["ours, six periods"].into_iter().chain(OTHERS.iter().map(|other| other.name));
    for (place, name) in names.enumerate() {
        let nanos = races.iter().map(|race| race.median(place, 0).into());
        let ratio = [races[0].multiple(place, 0, 0).into()];
        table.row([name.into()].into_iter().chain(nanos).chain(ratio));
    }
    report.table(table);
    for (name, column, floor) in [
        ("governor, one", 0, 0.75),
        ("governor, one", 5, 0.9),
        ("six governors", 0, 5.0),
        ("actix-extensible-rate-limit, one", 0, 1.5),
        ("limitador, six periods", 0, 10.0),
    ] {
        let place =
            1 + OTHERS.iter().position(|other| other.name == name).ok_or("no such limiter")?;
        let what = format!("six periods, {}: rate beside {name}", COLUMNS[column]);
        report.goal(&what, Bound::AtLeast(floor), "times", races[column].multiple(place, 0, 0));
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
    let other = |name: &str| {
        let other = OTHERS.iter().find(|other| other.name == name).expect("it is listed");
        (other.new)(&keys, ENDLESS, count)
    };
    let mut table = Table::new(&format!("bytes of a subject, of {count}"), ["", "bytes"]);
    let gcra = Policy::new(["90000000/hour:gcra".parse()?])?;
    type Case<'a> = (&'a str, &'a dyn Fn() -> Limiter, Option<f64>);
    let cases: [Case<'_>; 4] = [
        ("ours, six periods", &|| ours(ENDLESS, count), Some(112.0)),
        ("ours, one GCRA", &|| ours_of(&gcra, 2 * count), Some(256.0)),
        ("governor, one", &|| other("governor, one"), None),
        ("six governors", &|| other("six governors"), None),
    ];
    for (name, new, bound) in cases {
        let region = Region::new(crate::ALLOCATOR);
        let limiter = new();
        block(&limiter, &keys, &numbers, true);
        let change = region.change();
        let bytes =
            change.bytes_allocated.saturating_sub(change.bytes_deallocated) as f64 / count as f64;
        table.row([name.into(), bytes.into()]);
        if let Some(bound) = bound {
            report.goal(
                &format!("{name}: bytes of a subject"),
                Bound::AtMost(bound),
                "bytes",
                Estimate::exact(bytes),
            );
        }
    }
    report.table(table);
    let mut table = Table::new("allocations on known subjects", ["", "for each decision"]);
    for (name, limiter, visits, bound) in [
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
        table.row([name.into(), each.into()]);
        report.goal(
            &format!("{name}: allocations"),
            Bound::AtMost(bound),
            "",
            Estimate::exact(each),
        );
    }
    report.table(table);
    Ok(())
}

/// Compares requests of three parts, one of them with six limits, with requests of one part with
/// six limits, and these with requests of a plain subject.
pub(crate) fn parts(report: &mut Report) -> Result {
    let keys = Keys::new(FEW);
    let visits: Vec<u32> = (0..).take(FEW).cycle().take(BLOCK).collect();
    let limiters = [
        ("a subject", ours(ENDLESS, 100 * FEW)),
        ("one part", of_parts(1)?),
        ("three parts", of_parts(3)?),
    ];
    let mut race = Race::new(limiters.len());
    for turn in race.turns(report.rounds(31)) {
        race.record(turn, [block(&limiters[turn.contender].1, &keys, &visits, true)]);
    }
    let mut table =
        Table::new("requests of several parts", ["six limits each", "ns", "beside one part"]);
    for (place, (name, _)) in limiters.iter().enumerate() {
        table.row([
            (*name).into(),
            race.median(place, 0).into(),
            race.multiple(place, 1, 0).into(),
        ]);
    }
    report.table(table);
    report.goal(
        "three parts: time beside one part",
        Bound::AtMost(3.5),
        "times",
        race.multiple(2, 1, 0),
    );
    Ok(())
}

/// Floods a store that has room for a million subjects with ten million invented ones. Measures the
/// cost and the memory, and checks that a denied subject is not evicted.
pub(crate) fn flood(report: &mut Report) -> Result {
    const ROUND: usize = 100_000;
    let capacity = report.size(MANY, ROUND);
    let mut max = [ENDLESS; 6];
    max[2] = 3;
    let flooded = ours_of(&policy_of_six(max)?, capacity);
    let quiet = ours(ENDLESS, capacity);
    let invent = |from: usize, count: usize| {
        Keys::named((from..from + count).map(|n| format!("invented-{n:09}")))
    };
    let numbers: Vec<u32> = (0..).take(ROUND).collect();
    let victim = Keys::named(["victim".to_owned()].into_iter());
    while flooded(&victim, &[0]) == 1 {}
    // The stores are filled before anything is measured.
    for from in (0..2 * capacity).step_by(ROUND) {
        flooded(&invent(100 * MANY + from, ROUND), &numbers);
    }
    let known = Keys::new(capacity);
    quiet(&known, &known.order);
    let (before, mut freed, mut race) = (resident(), 0, Race::new(2));
    for (place, turn) in race.turns(10 * capacity / (2 * ROUND)).enumerate() {
        let (limiter, subjects) = match turn.contender {
            0 => (&flooded, invent(place * ROUND, ROUND)),
            _ => (
                &quiet,
                Keys::named(
                    known.order[place * ROUND % capacity..][..ROUND].iter().map(Keys::name),
                ),
            ),
        };
        let (elapsed, _) = time_on_processor(|| limiter(&subjects, &numbers));
        race.record(turn, [elapsed.as_secs_f64() * 1e9 / ROUND as f64]);
        freed += flooded(&victim, &[0]);
    }
    let growth = (resident() as f64 / before as f64 - 1.0).max(0.0) * 100.0;
    let mut table = Table::new("a flood of invented subjects", ["", "ns"]);
    for (place, name) in
        ["invented, each takes another's place", "known, all fit"].into_iter().enumerate()
    {
        table.row([name.into(), race.median(place, 0).into()]);
    }
    report.table(table);
    let count = |value| Estimate::exact(value);
    report.goal(
        "a flood: memory beyond that of a full store",
        Bound::AtMost(10.0),
        "%",
        count(growth),
    );
    report.goal(
        "a flood: a denied subject passes",
        Bound::AtMost(0.0),
        "times",
        count(freed as f64),
    );
    report.goal("a flood: rate beside none", Bound::AtLeast(0.5), "times", race.multiple(1, 0, 0));
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
    use std::iter::repeat_n;

    use super::*;

    #[test]
    fn every_limiter_allows_what_its_limit_permits_and_denies_the_rest() {
        let keys = Keys::new(FEW);
        let visits: Vec<u32> = repeat_n(0, 10).chain(repeat_n(1, 10)).collect();
        for other in &OTHERS {
            let allowed = |max| (other.new)(&keys, max, FEW)(&keys, &visits);
            assert_eq!(allowed(ENDLESS), 20, "{}", other.name);
            let subjects = if other.subjects == 1 { 1 } else { 2 };
            assert_eq!(allowed(SCARCE), subjects * SCARCE as usize, "{}", other.name);
        }
        assert_eq!(ours(SCARCE, FEW)(&keys, &visits), 2 * SCARCE as usize);
        assert_eq!(of_parts(3).unwrap()(&keys, &visits), 20);
    }
}
