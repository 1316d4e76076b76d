//! Everybody beside everybody: over working sets, parts that are denied, and threads.

use std::error::Error;

use super::contender::{Contender, Governors, Keys, Mixed, Ours, SCARCE};
use super::peers::{
    BareLock, DirectGovernor, Extensible, FastGovernor, Limitador, ThrottleCrab, Trypema,
};
use super::{admitted_by_all, threads};
use crate::charts::{Bar, Bars, Chart, Plot};
use crate::goals::{Goal, Unit};
use crate::measure::{Estimate, median, time, time_on_processor};
use crate::report::Report;
use crate::table::{Cell, Table};
use crate::visits::{Mix, ZIPF, may_pass, uniform, zipf};

/// The most visits of a block for each thread.
const BLOCK: usize = 50_000;
/// Blocks that come to other keys, where there are more keys than visits.
const SLICES: usize = 8;
const ROUNDS: usize = 11;
/// Where everybody has so many subjects, the others have taken the caches meanwhile: visits before those
/// that are timed, for each thread, and rounds of which there are fewer instead.
const LARGE: usize = 100_000;
const BEFORE: usize = 25_000;
const LARGE_ROUNDS: usize = 7;

/// Subjects under a name, and how they come.
struct Set {
    name: &'static str,
    subjects: usize,
    slices: Vec<Vec<u32>>,
}

/// Somebody in a cell of the matrix.
struct Rival {
    name: &'static str,
    /// Visits of a block for each thread: fewer of those that are slow.
    block: usize,
    contender: Box<dyn Contender>,
}

/// What came of a rival in a cell.
struct Outcome {
    nanos: Vec<f64>,
    too_many: usize,
}

/// How many steps it takes.
pub(super) const STEPS: usize = 4;

pub(super) fn measure(
    keys: &Keys,
    report: &mut Report,
    goals: &mut Vec<Goal>,
) -> Result<(), Box<dyn Error>> {
    let slices = |subjects| (0..).take(SLICES).map(|n| uniform(subjects, BLOCK, n)).collect();
    let sets = [
        ("memory-one", Set { name: "one subject", subjects: 1, slices: vec![vec![0; BLOCK]] }),
        (
            "memory-10k",
            Set { name: "10 000 subjects at random", subjects: 10_000, slices: slices(10_000) },
        ),
        (
            "memory-zipf",
            Set {
                name: "a million subjects, Zipf 0.99",
                subjects: keys.order.len(),
                slices: (0..).take(SLICES).map(|n| zipf(&keys.order, ZIPF, BLOCK, n)).collect(),
            },
        ),
        (
            "memory-million",
            Set {
                name: "a million subjects at random",
                subjects: keys.order.len(),
                slices: slices(keys.order.len()),
            },
        ),
    ];
    let mut known: (usize, Vec<Rival>) = (0, Vec::new());
    for (name, set) in sets {
        report.step(set.name);
        if known.0 != set.subjects {
            // What nobody asks any longer gives its memory back before more is taken.
            known.1.clear();
            known = (set.subjects, rivals(keys, set.subjects)?);
        }
        let table = cells(keys, &set, &known.1, report, goals);
        report.table(name, table);
    }
    Ok(())
}

/// Those who are compared on so many subjects, and know them: ours first, and once more at the end, which
/// is the noise.
fn rivals(keys: &Keys, all: usize) -> Result<Vec<Rival>, Box<dyn Error>> {
    let rival = |name, contender| Rival { name, block: BLOCK, contender };
    let slow = |name, contender, times| Rival { name, block: BLOCK / times, contender };
    let ours = || Mixed::of(|max| Ours::six(max, all));
    let one = || Mixed::of(|max| Ours::one(max, all));
    let mut rivals = vec![
        rival("ours, six periods", Box::new(ours()?)),
        rival("ours, one period", Box::new(one()?)),
        rival("governor, one", Box::new(Mixed::of(|max| Ok(Governors::one(max)))?)),
        rival("governor with ahash, one", Box::new(Mixed::of(|max| Ok(FastGovernor::new(max)))?)),
        slow("six governors", Box::new(Mixed::of(|max| Ok(Governors::six([max; 6])))?), 5),
        rival("actix-extensible, one", Box::new(Mixed::of(|max| Ok(Extensible::new(max)))?)),
        rival(
            "throttlecrab in a lock, one",
            Box::new(Mixed::of(|max| Ok(ThrottleCrab::new(max, all)))?),
        ),
        rival("trypema, one", Box::new(Mixed::of(Trypema::new)?)),
    ];
    if all <= 10_000 {
        // What it is told of each subject takes too much memory for more.
        let limitador = |max| Ok(Limitador::six(max, keys, all));
        rivals.push(slow("limitador, six periods", Box::new(Mixed::of(limitador)?), 50));
    }
    if all == 1 {
        let direct = Mixed::of(|max| Ok(DirectGovernor::new(max)))?;
        rivals.push(rival("governor without keys, one", Box::new(direct)));
        let lock = Mixed::of(|max| Ok(BareLock::new(max)))?;
        rivals.push(rival("a lock and one number", Box::new(lock)));
    }
    rivals.push(rival("ours, again: the noise", Box::new(ours()?)));

    // Creates what is kept of everybody, and uses up what is to be used up.
    let everybody: Vec<u32> = (0..).take(all).collect();
    let used_up = Mix::Denied.of(&everybody);
    for rival in &rivals {
        rival.contender.admitted(keys, &everybody);
        for _ in 0..SCARCE {
            rival.contender.admitted(keys, &used_up);
        }
    }
    Ok(rivals)
}

fn cells(
    keys: &Keys,
    set: &Set,
    rivals: &[Rival],
    report: &mut Report,
    goals: &mut Vec<Goal>,
) -> Table {
    let columns = threads().flat_map(|count| {
        let threads = if count == 1 { "thread" } else { "threads" };
        [format!("{count} {threads}, ns"), "ours is faster by".to_owned()]
    });
    let columns: Vec<String> = columns.collect();
    let title = format!("{}: ns for each decision of a thread", set.name);
    let head = ["contender", "mix"].into_iter().chain(columns.iter().map(String::as_str));
    let mut table = Table::new(&title, head.chain(["too many"]));
    // No goal is about denied requests.
    let mixes = if report.goals_only { &Mix::ALL[..1] } else { &Mix::ALL[..] };
    for &mix in mixes {
        let by_threads: Vec<Vec<Outcome>> =
            threads().map(|threads| compete(keys, set, rivals, mix, threads)).collect();
        for (place, rival) in rivals.iter().enumerate() {
            let mut row: Vec<Cell> = vec![rival.name.into(), mix.name().into()];
            for outcomes in &by_threads {
                row.push(format!("{:.0}", median(&outcomes[place].nanos)).into());
                row.push(faster(outcomes, place).into());
            }
            let too_many = by_threads.iter().map(|outcomes| outcomes[place].too_many);
            row.push(too_many.sum::<usize>().to_string().into());
            table.row(row);
        }
        if mix == Mix::Allowed {
            promised(set, rivals, &by_threads, goals);
        }
        if mix == Mix::Allowed && set.subjects == 1 {
            report.chart(bars(rivals, &by_threads[0]));
        }
    }
    table
}

/// How many times as fast as the one at this place the first is.
fn faster(outcomes: &[Outcome], place: usize) -> Estimate {
    let pairs = outcomes[place].nanos.iter().zip(&outcomes[0].nanos);
    Estimate::of(&pairs.map(|(theirs, ours)| theirs / ours).collect::<Vec<_>>())
}

/// Rounds in which everybody has two blocks, there and back. What a round says of somebody is the
/// mean of both.
fn compete(keys: &Keys, set: &Set, rivals: &[Rival], mix: Mix, threads: usize) -> Vec<Outcome> {
    let slices: Vec<Vec<u32>> = set.slices.iter().map(|slice| mix.of(slice)).collect();
    let is_large = set.subjects >= LARGE;
    let rounds = if is_large { LARGE_ROUNDS } else { ROUNDS };
    let block = |rival: &Rival, round: usize| {
        if is_large {
            let other = &slices[(round * threads + threads) % slices.len()];
            let before = &other[..BEFORE.min(rival.block)];
            admitted_by_all(&*rival.contender, keys, &vec![before; threads]);
        }
        let visits: Vec<&[u32]> = (0..threads)
            .map(|thread| &slices[(round * threads + thread) % slices.len()][..rival.block])
            .collect();
        let work = || admitted_by_all(&*rival.contender, keys, &visits);
        let (elapsed, admitted) = if threads == 1 { time_on_processor(work) } else { time(work) };
        let may: usize = visits.iter().map(|visits| may_pass(visits)).sum();
        (elapsed.as_secs_f64() * 1e9 / rival.block as f64, admitted.saturating_sub(may))
    };
    let mut outcomes: Vec<Outcome> =
        rivals.iter().map(|_| Outcome { nanos: Vec::new(), too_many: 0 }).collect();
    for round in 0..=rounds {
        let mut sums = vec![0.0; rivals.len()];
        for place in (0..rivals.len()).chain((0..rivals.len()).rev()) {
            let (nanos, too_many) = block(&rivals[place], round);
            sums[place] += nanos / 2.0;
            outcomes[place].too_many += too_many;
        }
        // The first warms caches and branch predictors up.
        if round > 0 {
            outcomes.iter_mut().zip(sums).for_each(|(outcome, nanos)| outcome.nanos.push(nanos));
        }
    }
    outcomes
}

/// What is promised of requests that pass.
fn promised(set: &Set, rivals: &[Rival], by_threads: &[Vec<Outcome>], goals: &mut Vec<Goal>) {
    let mut promise = |goal, what: &str, threads: usize, theirs: &str, floor, moon| {
        let place = rivals.iter().position(|rival| rival.name == theirs);
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

/// Ours beside others, on one subject.
fn bars(rivals: &[Rival], outcomes: &[Outcome]) -> Chart {
    let named = rivals.iter().zip(outcomes).filter(|(rival, _)| !rival.name.contains("again"));
    let mut bars: Vec<Bar> = named
        .map(|(rival, outcome)| Bar {
            name: rival.name.to_owned(),
            value: median(&outcome.nanos),
            is_ours: rival.name.starts_with("ours"),
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

/// How many pass small limits that threads press against at once, beside how many may.
pub(super) fn exactness(keys: &Keys) -> Result<Table, Box<dyn Error>> {
    const EACH: u32 = 50;
    const SUBJECTS: usize = 1_000;
    let mut table = Table::new(
        "exactness (two threads on the same subjects, 50 for each, 200 tries for each)",
        ["contender", "subjects", "allowed", "admitted", "too many"],
    );
    for count in [1, SUBJECTS] {
        let tries = keys.order[..count].repeat(100);
        let limitador = Limitador::six(EACH, keys, keys.order.len().min(10 * SUBJECTS));
        let few: Vec<u32> = (0..).take(count).collect();
        let contenders: [(&str, &dyn Contender); 8] = [
            ("ours, six periods", &Ours::six(EACH, keys.order.len())?),
            ("governor, one", &Governors::one(EACH)),
            ("governor with ahash, one", &FastGovernor::new(EACH)),
            ("six governors", &Governors::six([EACH; 6])),
            ("actix-extensible, one", &Extensible::new(EACH)),
            ("throttlecrab in a lock, one", &ThrottleCrab::new(EACH, SUBJECTS)),
            ("trypema, one", &Trypema::new(EACH)?),
            ("limitador, six periods", &limitador),
        ];
        for (name, contender) in contenders {
            let tries = if name.starts_with("limitador") { &few.repeat(100) } else { &tries };
            let admitted = admitted_by_all(contender, keys, &[tries, tries]);
            let allowed = EACH as usize * count;
            let too_many = admitted.saturating_sub(allowed);
            let numbers = [count, allowed, admitted, too_many].map(|number| number.to_string());
            table.row([name.to_owned()].into_iter().chain(numbers));
        }
    }
    Ok(table)
}
