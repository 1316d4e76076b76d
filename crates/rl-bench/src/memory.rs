//! Decisions in this process: six periods of ours beside one and six limiters of governor.

mod algorithms;
mod cases;
mod contender;
mod flood;
mod peers;

use std::error::Error;
use std::hint::black_box;
use std::thread;

use contender::{Contender, ENDLESS, Governors, Keys, Ours};
use rl_core::Period;
use stats_alloc::Region;

use crate::goals::{self, Goal, Unit};
use crate::machine;
use crate::measure::{Comparison, compare, time};
use crate::progress::Progress;
use crate::table::Table;

/// Keys of the measurements out of cache.
const MANY: usize = 1_000_000;
/// Keys of the measurements in cache that are not of one key.
const FEW: usize = 1_000;
/// Decisions of a block in cache, for each thread.
const WARM_BLOCK: usize = 100_000;
/// Decisions of a block out of cache: when a key comes again, the caches have forgotten it.
const COLD_BLOCK: usize = MANY / 4;
/// Rounds of four blocks.
const WARM_ROUNDS: usize = 31;
const COLD_ROUNDS: usize = 11;

/// Measurements, and the blocks of the flood.
const STEPS: usize = 11 + 100;

/// Measures all of it, prints it, and returns what was promised.
pub(crate) fn run() -> Result<Vec<Goal>, Box<dyn Error>> {
    println!("rl-core in memory: six periods, second to month, in each decision\n");
    println!("machine   {}", machine::cores());
    println!(
        "versions  {}, {}, {}, {}",
        machine::library("rl-core"),
        machine::library("governor"),
        machine::program("rustc"),
        machine::profile()
    );
    println!(
        "measured  in one process without a runtime, one thread unless said, blocks in the order \
         ours, theirs,\n          theirs, ours; ns for each decision of a thread are medians, a \
         ratio is the median over rounds with its\n          bootstrap interval of 95 %; above 1x \
         we are faster; keys are built beforehand on both sides\n"
    );
    let progress = Progress::of(STEPS);
    let step = |what: &str| {
        progress.tick();
        progress.say(what);
    };
    let keys = Keys::new(MANY);
    let mut speed = Table::new("speed", ["case", "ours ns", "theirs ns", "ours is faster by"]);
    let mut goals = Vec::new();
    step("decisions that pass");
    allowed(&keys, &mut speed, &mut goals)?;
    step("denials");
    denied(&keys, &mut speed)?;
    cases::denial(&keys, &mut goals)?;
    step("other limiters");
    cases::peers(&keys, &mut speed, &mut goals)?;
    step("working sets");
    cases::working_sets(&keys, &mut speed)?;
    step("a hot key");
    cases::hot_key(&keys, &mut speed, &mut goals)?;
    step("a million keys");
    let mut space = Table::new(
        "memory (bytes asked of the allocator by a million keys)",
        ["contender", "bytes for each key"],
    );
    let known = out_of_cache(&keys, &mut speed, &mut space, &mut goals)?;
    step("numbers of limits");
    let counts = cases::counts(&keys)?;
    step("allocations, exactness, logs");
    let allocations = allocations(&known, &keys, &mut goals)?;
    let exactness = exactness(&keys)?;
    drop(known);
    cases::logs(&mut goals)?;
    step("algorithms");
    let (by_algorithm, space_by_algorithm) = (algorithms::speed(&keys)?, algorithms::space(&keys)?);
    step("instructions");
    goals.push(cases::instructions());
    step("a flood");
    let flood = flood::run(&keys, &mut goals, &progress)?;
    let noise = cases::noise(&keys)?;
    drop(progress);

    println!("noise     ours beside ours: {noise}\n");
    println!("{speed}\n{space}\n{counts}\n{allocations}\n{exactness}\n{flood}");
    println!("{by_algorithm}\n{space_by_algorithm}");
    goals.sort_by_key(|goal| goal.name[1..].parse::<u32>().unwrap_or_default());
    println!("{}", goals::table(&goals));
    Ok(goals)
}

/// Ours under six periods of which nothing is ever used up.
fn endless(subjects: usize) -> Result<Ours, Box<dyn Error>> {
    Ours::new([ENDLESS; 6], subjects)
}

/// Nanoseconds for each of `visits`, which all pass or all do not.
fn block(contender: &dyn Contender, keys: &Keys, visits: &[u32], passes: bool) -> f64 {
    let (elapsed, admitted) = time(|| contender.admitted(keys, visits));
    assert_eq!(admitted, if passes { visits.len() } else { 0 }, "the limits are set so");
    elapsed.as_secs_f64() * 1e9 / visits.len() as f64
}

/// How many of `visits` pass when two threads make them all, at the same time.
fn admitted_twice(contender: &dyn Contender, keys: &Keys, visits: [&[u32]; 2]) -> usize {
    thread::scope(|scope| {
        let threads = visits.map(|visits| scope.spawn(|| contender.admitted(keys, visits)));
        threads.map(|thread| thread.join().expect("deciding does not panic")).iter().sum()
    })
}

fn allowed(keys: &Keys, table: &mut Table, goals: &mut Vec<Goal>) -> Result<(), Box<dyn Error>> {
    let endless = [ENDLESS; 6];
    let (ours, again) = (Ours::new(endless, MANY)?, Ours::new(endless, MANY)?);
    let one = Governors::one(ENDLESS, Period::SECOND);
    let six = Governors::six(endless);
    let rows: [(&str, &dyn Contender); 3] =
        [("ours: the noise", &again), ("one governor", &one), ("six governors", &six)];

    let visits = [0; WARM_BLOCK];
    for (name, theirs) in rows {
        let side = |side: &dyn Contender| block(side, keys, &visits, true);
        let compared = compare(WARM_ROUNDS, |_| side(&ours), |_| side(theirs));
        let goal = |floor, moon, goal| {
            let what = format!("six periods, one key, beside {name}");
            Goal::measured(goal, &what, (floor, moon, Unit::Times), compared.ratio)
        };
        match name {
            "six governors" => goals.push(goal(5.0, 10.0, "M1")),
            "one governor" => goals.push(goal(1.0, 1.5, "M2")),
            _ => {}
        }
        table.row(cells(&format!("one key, {name}"), compared));
    }

    // Nobody waits for a key of the other thread, only for what the limiter shares among keys.
    let (first, second) = keys.order[..2 * FEW].split_at(FEW);
    let visits = [first, second].map(|keys| keys.repeat(WARM_BLOCK / FEW));
    for (name, theirs) in rows {
        let side = |side: &dyn Contender| {
            let (elapsed, _) = time(|| admitted_twice(side, keys, [&visits[0], &visits[1]]));
            elapsed.as_secs_f64() * 1e9 / WARM_BLOCK as f64
        };
        let compared = compare(WARM_ROUNDS, |_| side(&ours), |_| side(theirs));
        table.row(cells(&format!("two threads, a thousand keys each, {name}"), compared));
    }
    Ok(())
}

fn denied(keys: &Keys, table: &mut Table) -> Result<(), Box<dyn Error>> {
    let mut month_is_full = [ENDLESS; 6];
    month_is_full[5] = 1;
    let ours = Ours::new(month_is_full, MANY)?;
    block(&ours, keys, &[0], true);
    let rows: [(&str, &dyn Contender); 3] = [
        ("one governor", &Governors::one(1, Period::MONTH)),
        ("six governors, by the first", &Governors::six(month_is_full).longest_first()),
        ("six governors, by the last", &Governors::six(month_is_full)),
    ];
    for (name, theirs) in rows {
        block(theirs, keys, &[0], true);
        let side = |side: &dyn Contender| block(side, keys, &[0; WARM_BLOCK], false);
        let compared = compare(WARM_ROUNDS, |_| side(&ours), |_| side(theirs));
        table.row(cells(&format!("one key, denied, {name}"), compared));
    }
    Ok(())
}

/// Returns ours, which knows all keys by then.
fn out_of_cache(
    keys: &Keys,
    speed: &mut Table,
    space: &mut Table,
    goals: &mut Vec<Goal>,
) -> Result<Ours, Box<dyn Error>> {
    let endless = [ENDLESS; 6];
    let (ours, again) = (Ours::new(endless, MANY)?, Ours::new(endless, MANY)?);
    let one = Governors::one(ENDLESS, Period::SECOND);
    let six = Governors::six(endless);
    // Not in the order of the visits: a table that keeps the order of its entries would be read
    // from front to back.
    let numbers: Vec<u32> = (0..).take(MANY).collect();
    let mut fill = |name: &str, contender: &dyn Contender| {
        let region = Region::new(crate::ALLOCATOR);
        block(contender, keys, &numbers, true);
        let change = region.change();
        let held = change.bytes_allocated.saturating_sub(change.bytes_deallocated);
        space.row([name.to_owned(), (held / MANY).to_string()]);
        held as f64 / MANY as f64
    };
    let bytes = fill("ours, six periods", &ours);
    let lines = (96.0, 72.0, Unit::AtMost("bytes"));
    goals.push(Goal::counted("M8", "six periods, bytes for each of a million keys", lines, bytes));
    fill("one governor", &one);
    fill("six governors", &six);
    block(&again, keys, &numbers, true);

    let slices: Vec<&[u32]> = keys.order.chunks_exact(COLD_BLOCK).collect();
    let rows: [(&str, &dyn Contender); 3] =
        [("ours: the noise", &again), ("one governor", &one), ("six governors", &six)];
    for (name, theirs) in rows {
        let side = |side: &dyn Contender, n| block(side, keys, slices[n % slices.len()], true);
        let compared = compare(COLD_ROUNDS, |n| side(&ours, n), |n| side(theirs, n));
        if name == "one governor" {
            let what = "six periods, a million keys, beside one governor";
            goals.push(Goal::measured("M2", what, (1.0, 2.0, Unit::Times), compared.ratio));
        }
        speed.row(cells(&format!("a million keys, {name}"), compared));
    }
    Ok(ours)
}

fn cells(case: &str, Comparison { ours, theirs, ratio }: Comparison) -> [String; 4] {
    [case.to_owned(), format!("{ours:.0}"), format!("{theirs:.0}"), ratio.to_string()]
}

/// How often the allocator is asked while known subjects are decided.
fn allocations(known: &Ours, keys: &Keys, goals: &mut Vec<Goal>) -> Result<Table, Box<dyn Error>> {
    let exhausted = Ours::new([1; 6], MANY)?;
    block(&exhausted, keys, &[0], true);
    let mut table = Table::new("allocations", ["case", "for each decision"]);
    for (case, ours, visits) in [
        ("ours, a million known keys, allowed", known, &keys.order[..]),
        ("ours, one known key, denied", &exhausted, &[0; WARM_BLOCK]),
    ] {
        let region = Region::new(crate::ALLOCATOR);
        black_box(ours.admitted(keys, visits));
        let change = region.change();
        let count = (change.allocations + change.reallocations) as f64 / visits.len() as f64;
        let what = format!("{case}: allocations for each decision");
        goals.push(Goal::counted("M6", &what, (0.0, 0.0, Unit::AtMost("")), count));
        table.row([case.to_owned(), count.to_string()]);
    }
    Ok(table)
}

/// How many pass small limits that two threads press against at once, beside how many may.
fn exactness(keys: &Keys) -> Result<Table, Box<dyn Error>> {
    const EACH: u32 = 50;
    let mut table = Table::new(
        "exactness (two threads on the same keys, 50 in each period, 200 tries for each key)",
        ["contender", "keys", "allowed", "admitted", "too many"],
    );
    for count in [1, FEW] {
        let tries = keys.order[..count].repeat(100);
        let contenders: [(&str, &dyn Contender); 3] = [
            ("ours, six periods", &Ours::new([EACH; 6], MANY)?),
            ("one governor, month", &Governors::one(EACH, Period::MONTH)),
            ("six governors", &Governors::six([EACH; 6])),
        ];
        for (name, contender) in contenders {
            let admitted = admitted_twice(contender, keys, [&tries, &tries]);
            let allowed = EACH as usize * count;
            let too_many = admitted.saturating_sub(allowed);
            let numbers = [count, allowed, admitted, too_many].map(|number| number.to_string());
            table.row([name.to_owned()].into_iter().chain(numbers));
        }
    }
    Ok(table)
}
