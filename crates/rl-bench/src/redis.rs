//! Measures decisions on a Redis server: our store, plain commands, the usual script (a counter
//! with an expiry for each limit), and other limiters.

mod across_slots;
mod algorithms;
mod bare_refunds;
mod candidate;
mod cluster;
mod dedicated;
mod fixtures;
mod load;
mod long_logs;
mod node;
mod nodes;
mod other_limiters;
mod parts;
mod parts_call;
mod scripts;
mod server;
mod space;
mod targets;
mod working_sets;

use std::error::Error;
use std::sync::Arc;

use candidate::Candidate;
use fixtures::SUBJECTS;
use load::{Block, ENDLESS, Load, PRESSED, PRESSED_LOAD, Round, SHOWN, rounds, too_many, typical};
use rl_core::store::Layout;
pub(crate) use server::Server;

use crate::charts::{Axis, Chart, Line, Lines, Plot};
use crate::goals::Goal;
use crate::machine;
use crate::measure::Estimate;
use crate::report::Report;
use crate::table::{Cell, Table};

/// The loads, each of about 0.1 s.
const LOADS: [Load; 6] = [
    Load::on_all(1, 1_500),
    Load::on_all(4, 4_000),
    Load::on_all(16, 7_000),
    Load::on_all(64, 12_000),
    Load::on_all(256, 16_000),
    Load::on_all(1_024, 20_480),
];
/// The number of rounds for each load. In each round, every candidate has two blocks, in forward
/// and in reverse order.
const ROUNDS: usize = 7;
/// The indices of candidates in the list of `beside_others`.
const INCR: usize = 0;
const SIX_KEYS: usize = 2;
const OURS: [usize; 3] = [3, 4, 5];

/// The number of steps in the progress bar.
const STEPS: usize = LOADS.len() + 11 + nodes::STEPS;

/// Runs all measurements on Redis, prints them, and adds the goals to the report.
pub(crate) fn run(report: &mut Report) -> Result<(), Box<dyn Error>> {
    let redis = machine::program("redis-server");
    let versions = ["rl-core", "redis", "actix-extensible-rate-limit", "actix-limitation"]
        .into_iter()
        .map(machine::library)
        .chain([redis.split(" sha").next().unwrap_or_default().to_owned()])
        .chain([machine::program("rustc")])
        .collect::<Vec<_>>();
    let how = format!(
        "clients and driver on one thread (tokio, current_thread), one multiplexed connection each \
         over loopback, {SUBJECTS} subjects in turn, blocks there and back in {ROUNDS} rounds, far \
         enough apart for a subject's second to be over; medians; a ratio is the median over \
         rounds with its bootstrap interval of 95 %; above 1x we are faster"
    );
    let title = "rl-core on Redis: six periods, second to month, in each decision";
    report.begin(title, &versions, &how, STEPS);
    // All clients run on one thread, so that the server has a core of its own.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let goals = runtime.block_on(measure(report))?;
    report.end(goals);
    Ok(())
}

/// Measures the longest scripts.
pub(crate) fn scripts() -> Result<(), Box<dyn Error>> {
    scripts::run()
}

/// Runs this process as one node of a measurement. [`nodes`] has started the process.
pub(crate) fn node(words: &[&str]) -> Result<(), Box<dyn Error>> {
    node::run(words)
}

async fn measure(report: &mut Report) -> Result<Vec<Goal>, Box<dyn Error>> {
    let mut goals = targets::measure(report).await?;
    if report.wants_all() {
        beside_others(&Server::start()?, report).await?;
        report.step("numbers of limits");
        targets::by_limits(report).await?;
        report.step("working sets");
        working_sets::measure(report).await?;
        report.table("redis-algorithms-space", space::by_algorithm().await?);
    }
    report.step("parts");
    goals.extend(parts::measure(report).await?);
    report.step("algorithms");
    if report.wants(&algorithms::GOALS) {
        algorithms::speed(report, &mut goals).await?;
    }
    report.step("coalescing");
    if report.wants(&["E9"]) {
        algorithms::coalescing(report, &mut goals).await?;
    }
    report.step("long logs");
    if report.wants(&["E11"]) {
        long_logs::beside_short(report, &mut goals).await?;
    }
    if report.wants(&["R10", "R12"]) {
        goals.extend(nodes::exactness(report).await?);
    }
    if report.wants_all() {
        nodes::rates(report).await?;
    }
    report.step("a cluster");
    if report.wants(&["E10"]) {
        goals.extend(cluster::measure(report).await?);
    }
    if report.wants(&across_slots::GOALS) {
        goals.extend(across_slots::measure(report).await?);
    }
    Ok(goals)
}

async fn beside_others(server: &Server, report: &mut Report) -> Result<(), Box<dyn Error>> {
    let candidates = [
        Candidate::incr(server, 0).await?,
        Candidate::return_1(server, 1).await?,
        Candidate::six_keys(server, 2, ENDLESS).await?,
        Candidate::store(server, 3, Layout::Packed, ENDLESS).await?,
        Candidate::store(server, 4, Layout::Readable, ENDLESS).await?,
        Candidate::limiter(server, 5, ENDLESS).await?,
    ]
    .map(Arc::new);
    let mut monitor = server.monitor().await?;
    let mut results = Vec::new();
    for load in LOADS {
        report.step(&format!("{} in flight", load.in_flight));
        let rounds = rounds(&candidates, load, ROUNDS, &mut monitor).await?;
        let blocks = || rounds.iter().flatten().flatten();
        assert!(blocks().all(|block| block.admitted == 1.0), "the limits are out of reach");
        results.push(rounds);
    }
    let too_many = exactness(server, report).await?;
    let (table, chart) = rates(&candidates, &results, &too_many);
    report.table("redis-rates", table);
    report.chart(chart);
    report.table("redis-costs", costs(&candidates, &results));
    for (name, theirs) in [("redis-beside-incr", INCR), ("redis-beside-six-keys", SIX_KEYS)] {
        report.table(name, ratios(&candidates, &results, theirs));
    }
    Ok(())
}

/// Returns a table of the rates, with the requests that were allowed beyond a limit, and a chart of
/// the rates by concurrency.
fn rates(
    candidates: &[Arc<Candidate>],
    results: &[Vec<Round>],
    too_many: &[(&str, usize)],
) -> (Table, Chart) {
    let loads = LOADS.map(|load| load.in_flight.to_string());
    let header = ["in flight"].into_iter().chain(loads.iter().map(String::as_str));
    let mut table = Table::new("thousand decisions per second", header.chain(["too many"]));
    let mut lines = Vec::new();
    for (place, candidate) in candidates.iter().enumerate() {
        let rates = results.iter().map(|rounds| 1.0 / typical(rounds, place, |b| b.seconds));
        let rates: Vec<f64> = rates.collect();
        let beyond = too_many.iter().find(|(name, _)| *name == candidate.name);
        let beyond = beyond.map_or("no limit".to_owned(), |(_, count)| count.to_string());
        let cells = rates.iter().map(|rate| format!("{:.1}", 1e-3 * rate));
        table.row([candidate.name.to_owned()].into_iter().chain(cells).chain([beyond]));
        let name = match place {
            INCR => "INCR, no limit",
            SIX_KEYS => "script of six keys",
            place if place == OURS[0] => "ours, six limits",
            _ => continue,
        };
        lines.push(Line::new(name, LOADS.map(|load| load.in_flight as f64).into_iter().zip(rates)));
    }
    // Our line is the last one here, but is drawn first.
    lines.rotate_right(1);
    let chart = Chart {
        name: "in-flight".to_owned(),
        title: "Decisions on one Redis, by requests in flight".to_owned(),
        note: "One connection each, one thread for all clients, 10 000 subjects in turn."
            .to_owned(),
        plot: Plot::Lines(Lines {
            x: Axis::logarithmic("requests in flight"),
            y: Axis::logarithmic("decisions per second"),
            lines,
        }),
    };
    (table, chart)
}

fn costs(candidates: &[Arc<Candidate>], results: &[Vec<Round>]) -> Table {
    let mut table = Table::new(
        &format!("µs of processor for each decision, {SHOWN} in flight"),
        ["", "server, command", "server, all", "client, all"],
    );
    let rounds = &results[LOADS.iter().position(|load| load.in_flight == SHOWN).unwrap_or(0)];
    for (place, candidate) in candidates.iter().enumerate() {
        let micros = |of: fn(&Block) -> f64| format!("{:.2}", typical(rounds, place, of));
        let cells = [micros(|b| b.command), micros(|b| b.server), micros(|b| b.client)];
        table.row([candidate.name.to_owned()].into_iter().chain(cells));
    }
    table
}

fn ratios(candidates: &[Arc<Candidate>], results: &[Vec<Round>], theirs: usize) -> Table {
    let title = format!("ours beside {}: decisions per second", candidates[theirs].name);
    let names = OURS.map(|ours| candidates[ours].name);
    let mut table = Table::new(&title, [""].into_iter().chain(names).chain(["noise"]));
    let ratio = |rounds: &[Round], of: &dyn Fn(&Round) -> f64| {
        Cell::from(Estimate::of(&rounds.iter().map(of).collect::<Vec<_>>()))
    };
    let ours = |rounds: &[Round], of: fn(&Block) -> f64| {
        let both = |blocks: &[Block; 2]| of(&blocks[0]) + of(&blocks[1]);
        OURS.map(|ours| ratio(rounds, &|round| both(&round[theirs]) / both(&round[ours])))
    };
    for (load, rounds) in LOADS.iter().zip(results) {
        let speeds = ours(rounds, |block| block.seconds);
        // The two blocks of our own candidate are also compared with each other. Without noise,
        // their ratio is 1.
        let noise = ratio(rounds, &|round| round[OURS[0]][1].seconds / round[OURS[0]][0].seconds);
        let name = format!("{} in flight", load.in_flight);
        table.row([name.into()].into_iter().chain(speeds).chain([noise]));
    }
    let work = ours(&results.concat(), |block| block.command);
    table.row(["server, command".into()].into_iter().chain(work));
    table
}

/// Makes requests under small limits, 64 at a time, and adds a table of the allowed requests.
/// Returns for each candidate the number of requests that were allowed beyond the limits.
async fn exactness(
    server: &Server,
    report: &mut Report,
) -> Result<Vec<(&'static str, usize)>, Box<dyn Error>> {
    let mut table = Table::new(
        "exactness (64 in flight, 100 subjects, 20 in each period, 100 tries for each subject)",
        ["candidate", "allowed", "admitted", "too many"],
    );
    let mut all = Vec::new();
    for candidate in [
        Candidate::six_keys(server, 6, PRESSED).await?,
        Candidate::store(server, 7, Layout::Packed, PRESSED).await?,
        Candidate::store(server, 8, Layout::Readable, PRESSED).await?,
        Candidate::limiter(server, 9, PRESSED).await?,
    ] {
        let name = candidate.name;
        let (admitted, beyond) = too_many(candidate).await;
        let allowed = PRESSED as usize * PRESSED_LOAD.subjects;
        let numbers = [allowed, admitted, beyond].map(|number| number.to_string());
        table.row([name.to_owned()].into_iter().chain(numbers));
        all.push((name, beyond));
    }
    report.table("redis-exactness", table);
    Ok(all)
}
