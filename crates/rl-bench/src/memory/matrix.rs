//! Compares all limiters for several working sets, shares of denied requests, and numbers of
//! threads.

use std::error::Error;

use super::block::{count_allowed_by_threads, threads};
use super::limiters::{Governors, Keys, Limiter, Mixed, Ours, SCARCE};
use super::other_limiters::{
    BareLock, DirectGovernor, Extensible, FastGovernor, Limitador, ThrottleCrab, Trypema,
};
use crate::charts::{Bar, Bars, Chart, Plot};
use crate::goals::{Goal, Unit};
use crate::measure::{Estimate, median, time, time_on_processor};
use crate::report::Report;
use crate::table::{Cell, Table};
use crate::workload::{Mix, ZIPF, count_to_allow, uniform, zipf};

/// The maximum number of visits in a block, for each thread.
const BLOCK: usize = 50_000;
/// The number of different sequences of visits. Each block uses one of them.
const SLICES: usize = 8;
const ROUNDS: usize = 11;
/// From this number of subjects on, the limiters evict each other's data from the processor caches.
/// Untimed visits then precede each block, and there are fewer rounds.
const LARGE: usize = 100_000;
const BEFORE: usize = 25_000;
const LARGE_ROUNDS: usize = 7;

/// A working set: its subjects, and different sequences of visits to them.
struct KeySet {
    name: &'static str,
    subjects: usize,
    slices: Vec<Vec<u32>>,
}

/// A limiter with its name.
struct MeasuredLimiter {
    name: &'static str,
    /// The number of visits that each thread makes in a block. It is smaller for slow limiters.
    block: usize,
    limiter: Box<dyn Limiter>,
}

/// The results of a limiter in one cell of the matrix.
struct CellResult {
    nanos: Vec<f64>,
    too_many: usize,
}

/// The number of steps in the progress bar.
pub(super) const STEPS: usize = 4;

/// The goals that are measured here.
pub(super) const GOALS: [&str; 5] = ["M1", "M2", "M3", "M4", "M12"];

pub(super) fn measure(
    keys: &Keys,
    report: &mut Report,
    goals: &mut Vec<Goal>,
) -> Result<(), Box<dyn Error>> {
    let slices = |subjects| (0..).take(SLICES).map(|n| uniform(subjects, BLOCK, n)).collect();
    let sets = [
        ("memory-one", KeySet { name: "one subject", subjects: 1, slices: vec![vec![0; BLOCK]] }),
        (
            "memory-10k",
            KeySet { name: "10 000 subjects at random", subjects: 10_000, slices: slices(10_000) },
        ),
        (
            "memory-zipf",
            KeySet {
                name: "a million subjects, Zipf 0.99",
                subjects: keys.order.len(),
                slices: (0..).take(SLICES).map(|n| zipf(&keys.order, ZIPF, BLOCK, n)).collect(),
            },
        ),
        (
            "memory-million",
            KeySet {
                name: "a million subjects at random",
                subjects: keys.order.len(),
                slices: slices(keys.order.len()),
            },
        ),
    ];
    let mut known: (usize, Vec<MeasuredLimiter>) = (0, Vec::new());
    for (name, set) in sets {
        report.step(set.name);
        if known.0 != set.subjects {
            // The previous limiters are freed before more memory is allocated.
            known.1.clear();
            known = (set.subjects, limiters(keys, set.subjects)?);
        }
        let table = cells(keys, &set, &known.1, report, goals);
        report.table(name, table);
    }
    Ok(())
}

/// Creates the limiters that are compared, with entries for `all` subjects. Our limiter comes
/// first, and again last: the difference between the two is the noise.
fn limiters(keys: &Keys, all: usize) -> Result<Vec<MeasuredLimiter>, Box<dyn Error>> {
    let limiter = |name, limiter| MeasuredLimiter { name, block: BLOCK, limiter };
    let slow = |name, limiter, times| MeasuredLimiter { name, block: BLOCK / times, limiter };
    let ours = || Mixed::of(|max| Ours::six(max, all));
    let one = || Mixed::of(|max| Ours::one(max, all));
    let mut limiters = vec![
        limiter("ours, six periods", Box::new(ours()?)),
        limiter("ours, one period", Box::new(one()?)),
        limiter("governor, one", Box::new(Mixed::of(|max| Ok(Governors::one(max)))?)),
        limiter("governor with ahash, one", Box::new(Mixed::of(|max| Ok(FastGovernor::new(max)))?)),
        slow("six governors", Box::new(Mixed::of(|max| Ok(Governors::six([max; 6])))?), 5),
        limiter("actix-extensible, one", Box::new(Mixed::of(|max| Ok(Extensible::new(max)))?)),
        limiter(
            "throttlecrab in a lock, one",
            Box::new(Mixed::of(|max| Ok(ThrottleCrab::new(max, all)))?),
        ),
        limiter("trypema, one", Box::new(Mixed::of(Trypema::new)?)),
    ];
    if all <= 10_000 {
        // limitador needs a map of values for each subject. With more subjects, these maps would
        // take too much memory.
        let limitador = |max| Ok(Limitador::six(max, keys, all));
        limiters.push(slow("limitador, six periods", Box::new(Mixed::of(limitador)?), 50));
    }
    if all == 1 {
        let direct = Mixed::of(|max| Ok(DirectGovernor::new(max)))?;
        limiters.push(limiter("governor without keys, one", Box::new(direct)));
        let lock = Mixed::of(|max| Ok(BareLock::new(max)))?;
        limiters.push(limiter("a lock and one number", Box::new(lock)));
    }
    limiters.push(limiter("ours, again: the noise", Box::new(ours()?)));

    // These visits create the entries of all subjects. Then they use up the small limits of the
    // subjects whose requests must be denied.
    let everybody: Vec<u32> = (0..).take(all).collect();
    let used_up = Mix::Denied.of(&everybody);
    for limiter in &limiters {
        limiter.limiter.count_allowed(keys, &everybody);
        for _ in 0..SCARCE {
            limiter.limiter.count_allowed(keys, &used_up);
        }
    }
    Ok(limiters)
}

fn cells(
    keys: &Keys,
    set: &KeySet,
    limiters: &[MeasuredLimiter],
    report: &mut Report,
    goals: &mut Vec<Goal>,
) -> Table {
    let columns = threads().flat_map(|count| {
        let threads = if count == 1 { "thread" } else { "threads" };
        [format!("{count} {threads}, ns"), "ours is faster by".to_owned()]
    });
    let columns: Vec<String> = columns.collect();
    let title = format!("{}: ns for each decision of a thread", set.name);
    let head = ["limiter", "mix"].into_iter().chain(columns.iter().map(String::as_str));
    let mut table = Table::new(&title, head.chain(["too many"]));
    // No goal concerns denied requests.
    let mixes = if report.goals_only { &Mix::ALL[..1] } else { &Mix::ALL[..] };
    for &mix in mixes {
        let by_threads: Vec<Vec<CellResult>> =
            threads().map(|threads| compete(keys, set, limiters, mix, threads)).collect();
        for (place, limiter) in limiters.iter().enumerate() {
            let mut row: Vec<Cell> = vec![limiter.name.into(), mix.name().into()];
            for outcomes in &by_threads {
                row.push(format!("{:.0}", median(&outcomes[place].nanos)).into());
                row.push(faster(outcomes, place).into());
            }
            let too_many = by_threads.iter().map(|outcomes| outcomes[place].too_many);
            row.push(too_many.sum::<usize>().to_string().into());
            table.row(row);
        }
        if mix == Mix::Allowed {
            promised(set, limiters, &by_threads, goals);
        }
        if mix == Mix::Allowed && set.subjects == 1 {
            report.chart(bars(limiters, &by_threads[0]));
        }
    }
    table
}

/// Returns the factor by which our limiter is faster than the one at `place`.
fn faster(outcomes: &[CellResult], place: usize) -> Estimate {
    let pairs = outcomes[place].nanos.iter().zip(&outcomes[0].nanos);
    Estimate::of(&pairs.map(|(theirs, ours)| theirs / ours).collect::<Vec<_>>())
}

/// Runs rounds in which each limiter has two blocks, in forward and in reverse order. The result of
/// a round is the mean of both blocks.
fn compete(
    keys: &Keys,
    set: &KeySet,
    limiters: &[MeasuredLimiter],
    mix: Mix,
    threads: usize,
) -> Vec<CellResult> {
    let slices: Vec<Vec<u32>> = set.slices.iter().map(|slice| mix.of(slice)).collect();
    let is_large = set.subjects >= LARGE;
    let rounds = if is_large { LARGE_ROUNDS } else { ROUNDS };
    let block = |limiter: &MeasuredLimiter, round: usize| {
        if is_large {
            let other = &slices[(round * threads + threads) % slices.len()];
            let before = &other[..BEFORE.min(limiter.block)];
            count_allowed_by_threads(&*limiter.limiter, keys, &vec![before; threads]);
        }
        let visits: Vec<&[u32]> = (0..threads)
            .map(|thread| &slices[(round * threads + thread) % slices.len()][..limiter.block])
            .collect();
        let work = || count_allowed_by_threads(&*limiter.limiter, keys, &visits);
        let (elapsed, admitted) = if threads == 1 { time_on_processor(work) } else { time(work) };
        let may: usize = visits.iter().map(|visits| count_to_allow(visits)).sum();
        (elapsed.as_secs_f64() * 1e9 / limiter.block as f64, admitted.saturating_sub(may))
    };
    let mut outcomes: Vec<CellResult> =
        limiters.iter().map(|_| CellResult { nanos: Vec::new(), too_many: 0 }).collect();
    for round in 0..=rounds {
        let mut sums = vec![0.0; limiters.len()];
        for place in (0..limiters.len()).chain((0..limiters.len()).rev()) {
            let (nanos, too_many) = block(&limiters[place], round);
            sums[place] += nanos / 2.0;
            outcomes[place].too_many += too_many;
        }
        // The first round only warms up caches and branch predictors.
        if round > 0 {
            outcomes.iter_mut().zip(sums).for_each(|(outcome, nanos)| outcome.nanos.push(nanos));
        }
    }
    outcomes
}

/// Adds the goals for the speed of allowed requests on this working set, if it has any.
fn promised(
    set: &KeySet,
    limiters: &[MeasuredLimiter],
    by_threads: &[Vec<CellResult>],
    goals: &mut Vec<Goal>,
) {
    let mut promise = |goal, what: &str, threads: usize, theirs: &str, floor, moon| {
        let place = limiters.iter().position(|limiter| limiter.name == theirs);
        let outcomes = by_threads.get(threads - 1);
        if let (Some(place), Some(outcomes)) = (place, outcomes) {
            let lines = (floor, moon, Unit::Times);
            goals.push(Goal::measured(goal, what, lines, faster(outcomes, place)));
        }
    };
    match set.name {
        "one subject" => {
            let what = "six periods, one subject, beside six governors";
            promise("M1", what, 1, "six governors", 5.0, 10.0);
            let what = "six periods, one subject, beside one governor";
            promise("M2", what, 1, "governor, one", 1.0, 1.5);
            let what = "six periods, one subject, beside one of actix-extensible";
            promise("M3", what, 1, "actix-extensible, one", 1.5, 3.0);
            let what = "six periods, one subject, beside six of limitador";
            promise("M4", what, 1, "limitador, six periods", 10.0, 30.0);
            let what = "six periods, one subject, two threads, beside governor without keys";
            promise("M12", what, 2, "governor without keys, one", 1.0, 4.0);
        }
        "a million subjects at random" => {
            let what = "six periods, a million subjects, beside one governor";
            promise("M2", what, 1, "governor, one", 1.0, 2.0);
        }
        _ => {}
    }
}

/// Returns a chart of all limiters on one subject.
fn bars(limiters: &[MeasuredLimiter], outcomes: &[CellResult]) -> Chart {
    let named =
        limiters.iter().zip(outcomes).filter(|(limiter, _)| !limiter.name.contains("again"));
    let mut bars: Vec<Bar> = named
        .map(|(limiter, outcome)| Bar {
            name: limiter.name.to_owned(),
            value: median(&outcome.nanos),
            is_ours: limiter.name.starts_with("ours"),
        })
        .collect();
    bars.sort_by(|one, other| one.value.total_cmp(&other.value));
    Chart {
        name: "memory".to_owned(),
        title: "A decision in memory".to_owned(),
        note: "One subject, one thread, all requests pass; how many limits each decides on stands \
               in its name."
            .to_owned(),
        plot: Plot::Bars(Bars { unit: "ns for each decision".to_owned(), bars }),
    }
}

/// Returns a table for small limits and several threads: how many requests were allowed, and how
/// many the limits permit.
pub(super) fn exactness(keys: &Keys) -> Result<Table, Box<dyn Error>> {
    const EACH: u32 = 50;
    const SUBJECTS: usize = 1_000;
    let mut table = Table::new(
        "exactness (two threads on the same subjects, 50 for each, 200 tries for each)",
        ["limiter", "subjects", "allowed", "admitted", "too many"],
    );
    for count in [1, SUBJECTS] {
        let tries = keys.order[..count].repeat(100);
        let limitador = Limitador::six(EACH, keys, keys.order.len().min(10 * SUBJECTS));
        let few: Vec<u32> = (0..).take(count).collect();
        let limiters: [(&str, &dyn Limiter); 8] = [
            ("ours, six periods", &Ours::six(EACH, keys.order.len())?),
            ("governor, one", &Governors::one(EACH)),
            ("governor with ahash, one", &FastGovernor::new(EACH)),
            ("six governors", &Governors::six([EACH; 6])),
            ("actix-extensible, one", &Extensible::new(EACH)),
            ("throttlecrab in a lock, one", &ThrottleCrab::new(EACH, SUBJECTS)),
            ("trypema, one", &Trypema::new(EACH)?),
            ("limitador, six periods", &limitador),
        ];
        for (name, limiter) in limiters {
            let tries = if name.starts_with("limitador") { &few.repeat(100) } else { &tries };
            let admitted = count_allowed_by_threads(limiter, keys, &[tries, tries]);
            let allowed = EACH as usize * count;
            let too_many = admitted.saturating_sub(allowed);
            let numbers = [count, allowed, admitted, too_many].map(|number| number.to_string());
            table.row([name.to_owned()].into_iter().chain(numbers));
        }
    }
    Ok(table)
}
