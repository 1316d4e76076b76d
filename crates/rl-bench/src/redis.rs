//! Decisions on a Redis server: ours beside plain commands and beside the usual script.

mod algorithms;
mod cluster;
mod contender;
mod long_log;
mod node;
mod nodes;
mod peers;
mod refunds;
mod scripts;
mod server;
mod targets;
mod working_sets;

use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use contender::{Contender, SUBJECTS};
use rl_core::store::redis::Layout;
use server::Bystander;
pub(crate) use server::Server;

use crate::charts::{Axis, Chart, Line, Lines, Plot};
use crate::goals::Goal;
use crate::machine;
use crate::measure::{Estimate, median, time_async};
use crate::report::Report;
use crate::table::{Cell, Table};

/// What is done in a block.
#[derive(Clone, Copy, Debug)]
struct Load {
    /// Requests at once.
    in_flight: usize,
    /// Requests in all.
    decisions: usize,
    /// Whom they are for, in turn.
    subjects: usize,
}

impl Load {
    const fn on_all(in_flight: usize, decisions: usize) -> Self {
        Self { in_flight, decisions, subjects: SUBJECTS }
    }
}

/// About 0.1 s of work each.
const LOADS: [Load; 6] = [
    Load::on_all(1, 1_500),
    Load::on_all(4, 4_000),
    Load::on_all(16, 7_000),
    Load::on_all(64, 12_000),
    Load::on_all(256, 16_000),
    Load::on_all(1_024, 20_480),
];
/// Rounds for each load; in each, everybody has two blocks, there and back.
const ROUNDS: usize = 7;
/// The load at which the processor time of a decision is shown.
const SHOWN: usize = 64;
/// Places among the contenders.
const INCR: usize = 0;
const SIX_KEYS: usize = 2;
const OURS: [usize; 3] = [3, 4, 5];
/// More than is ever asked for.
const ENDLESS: u32 = 1_000_000_000;

/// The measurements of this file and what the others count.
const STEPS: usize = LOADS.len() + 10 + nodes::STEPS;

/// Measures all of it, prints it, and keeps what was promised.
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
    // One thread for all clients: the other core is the server's.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let goals = runtime.block_on(measure(report))?;
    report.end(goals);
    Ok(())
}

/// Measures the longest scripts.
pub(crate) fn scripts() -> Result<(), Box<dyn Error>> {
    scripts::run()
}

/// What a process does that [`nodes`] has started.
pub(crate) fn node(words: &[&str]) -> Result<(), Box<dyn Error>> {
    node::run(words)
}

async fn measure(report: &mut Report) -> Result<Vec<Goal>, Box<dyn Error>> {
    let mut goals = targets::measure(report).await?;
    if report.goals_only {
        goals.extend(nodes::exactness(report).await?);
        return Ok(goals);
    }
    beside_others(&Server::start()?, report).await?;
    report.step("numbers of limits");
    targets::by_limits(report).await?;
    report.step("working sets");
    working_sets::measure(report).await?;
    report.step("algorithms");
    report.table("redis-algorithms", algorithms::speed().await?);
    report.table("redis-long-log", long_log::speed().await?);
    report.table("redis-refunds", refunds::speed().await?);
    report.table("redis-algorithms-space", algorithms::space().await?);
    goals.extend(nodes::measure(report).await?);
    report.step("a cluster");
    cluster::measure(report).await?;
    Ok(goals)
}

async fn beside_others(server: &Server, report: &mut Report) -> Result<(), Box<dyn Error>> {
    let contenders = [
        Contender::incr(server, 0).await?,
        Contender::return_1(server, 1).await?,
        Contender::six_keys(server, 2, ENDLESS).await?,
        Contender::store(server, 3, Layout::Packed, ENDLESS).await?,
        Contender::store(server, 4, Layout::Readable, ENDLESS).await?,
        Contender::limiter(server, 5, ENDLESS).await?,
    ]
    .map(Arc::new);
    let mut bystander = server.bystander().await?;
    let mut results = Vec::new();
    for load in LOADS {
        report.step(&format!("{} in flight", load.in_flight));
        let rounds = rounds(&contenders, load, ROUNDS, &mut bystander).await?;
        let blocks = || rounds.iter().flatten().flatten();
        assert!(blocks().all(|block| block.admitted == 1.0), "the limits are out of reach");
        results.push(rounds);
    }
    let too_many = exactness(server, report).await?;
    let (table, chart) = rates(&contenders, &results, &too_many);
    report.table("redis-rates", table);
    report.chart(chart);
    report.table("redis-costs", costs(&contenders, &results));
    for (name, theirs) in [("redis-beside-incr", INCR), ("redis-beside-six-keys", SIX_KEYS)] {
        report.table(name, ratios(&contenders, &results, theirs));
    }
    Ok(())
}

/// What one block of decisions cost, for each decision.
#[derive(Clone, Copy, Debug)]
struct Block {
    /// Seconds from the first to the last, over their number.
    seconds: f64,
    /// µs of the server in the command itself, by its own account.
    command: f64,
    /// Calls of that command.
    calls: f64,
    /// µs of the server's processor in all.
    server: f64,
    /// µs of our processor in all.
    client: f64,
    /// The part that passed.
    admitted: f64,
}

/// The blocks of each contender, there and back.
type Round = Vec<[Block; 2]>;

async fn rounds(
    contenders: &[Arc<Contender>],
    load: Load,
    count: usize,
    bystander: &mut Bystander,
) -> Result<Vec<Round>, Box<dyn Error>> {
    let mut rounds = Vec::new();
    for _ in 0..=count {
        let (mut there, mut back) = (Vec::new(), Vec::new());
        for contender in contenders {
            there.push(block(contender, load, bystander).await?);
        }
        for contender in contenders.iter().rev() {
            back.push(block(contender, load, bystander).await?);
        }
        back.reverse();
        rounds.push(there.into_iter().zip(back).map(|(there, back)| [there, back]).collect());
    }
    // The first creates the keys.
    Ok(rounds.split_off(1))
}

async fn block(
    contender: &Arc<Contender>,
    load: Load,
    bystander: &mut Bystander,
) -> Result<Block, Box<dyn Error>> {
    bystander.forget_commands().await?;
    let (server, client) = (bystander.processor_time().await?, client_time()?);
    let (elapsed, admitted) = time_async(admitted(contender, load)).await;
    let client = client_time()? - client;
    let server = bystander.processor_time().await? - server;
    let made = (load.decisions / load.in_flight * load.in_flight) as f64;
    let each = |total: Duration| total.as_secs_f64() * 1e6 / made;
    let (calls, command) = bystander.command(contender.command).await?;
    Ok(Block {
        seconds: elapsed.as_secs_f64() / made,
        command: command / made,
        calls: calls / made,
        server: each(server),
        client: each(client),
        admitted: admitted as f64 / made,
    })
}

/// How many of the load's requests pass.
async fn admitted(contender: &Arc<Contender>, load: Load) -> usize {
    let Load { in_flight, decisions, subjects } = load;
    let task = |first: usize| {
        let contender = Arc::clone(contender);
        tokio::spawn(async move {
            let mut admitted = 0;
            for n in 0..decisions / in_flight {
                let subject = (first + n * in_flight) % subjects;
                admitted += usize::from(contender.admits(subject).await);
            }
            admitted
        })
    };
    let tasks: Vec<_> = (0..in_flight).map(task).collect();
    let mut admitted = 0;
    for task in tasks {
        admitted += task.await.expect("deciding does not panic");
    }
    admitted
}

/// The processor time of this thread, on which all clients run, since it started.
fn client_time() -> Result<Duration, Box<dyn Error>> {
    let stat = std::fs::read_to_string("/proc/thread-self/schedstat")?;
    let nanos = stat.split(' ').next().ok_or("an empty schedstat")?;
    Ok(Duration::from_nanos(nanos.parse()?))
}

/// The median of something over all blocks of a contender.
fn typical(rounds: &[Round], contender: usize, of: impl Fn(&Block) -> f64) -> f64 {
    median(&rounds.iter().flat_map(|round| &round[contender]).map(of).collect::<Vec<_>>())
}

/// The table has beside each row how many passed beyond a limit, the chart how ours and others grow.
fn rates(
    contenders: &[Arc<Contender>],
    results: &[Vec<Round>],
    too_many: &[(&str, usize)],
) -> (Table, Chart) {
    let loads = LOADS.map(|load| load.in_flight.to_string());
    let header = ["in flight"].into_iter().chain(loads.iter().map(String::as_str));
    let mut table = Table::new("thousand decisions per second", header.chain(["too many"]));
    let mut lines = Vec::new();
    for (place, contender) in contenders.iter().enumerate() {
        let rates = results.iter().map(|rounds| 1.0 / typical(rounds, place, |b| b.seconds));
        let rates: Vec<f64> = rates.collect();
        let beyond = too_many.iter().find(|(name, _)| *name == contender.name);
        let beyond = beyond.map_or("no limit".to_owned(), |(_, count)| count.to_string());
        let cells = rates.iter().map(|rate| format!("{:.1}", 1e-3 * rate));
        table.row([contender.name.to_owned()].into_iter().chain(cells).chain([beyond]));
        let name = match place {
            INCR => "INCR, no limit",
            SIX_KEYS => "script of six keys",
            place if place == OURS[0] => "ours, six limits",
            _ => continue,
        };
        lines.push(Line::new(name, LOADS.map(|load| load.in_flight as f64).into_iter().zip(rates)));
    }
    // Ours is drawn as the first.
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

fn costs(contenders: &[Arc<Contender>], results: &[Vec<Round>]) -> Table {
    let mut table = Table::new(
        &format!("µs of processor for each decision, {SHOWN} in flight"),
        ["", "server, command", "server, all", "client, all"],
    );
    let rounds = &results[LOADS.iter().position(|load| load.in_flight == SHOWN).unwrap_or(0)];
    for (place, contender) in contenders.iter().enumerate() {
        let micros = |of: fn(&Block) -> f64| format!("{:.2}", typical(rounds, place, of));
        let cells = [micros(|b| b.command), micros(|b| b.server), micros(|b| b.client)];
        table.row([contender.name.to_owned()].into_iter().chain(cells));
    }
    table
}

fn ratios(contenders: &[Arc<Contender>], results: &[Vec<Round>], theirs: usize) -> Table {
    let title = format!("ours beside {}: decisions per second", contenders[theirs].name);
    let names = OURS.map(|ours| contenders[ours].name);
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
        // Who is compared with himself should come out at 1.
        let noise = ratio(rounds, &|round| round[OURS[0]][1].seconds / round[OURS[0]][0].seconds);
        let name = format!("{} in flight", load.in_flight);
        table.row([name.into()].into_iter().chain(speeds).chain([noise]));
    }
    let work = ours(&results.concat(), |block| block.command);
    table.row(["server, command".into()].into_iter().chain(work));
    table
}

/// What each subject may, when a limit is pressed, how many there are, and how often each is tried.
const PRESSED: u32 = 20;
const PRESSED_LOAD: Load = Load { in_flight: 64, decisions: 10_000, subjects: 100 };

/// How many pass beyond limits that many requests press against at once.
async fn too_many(contender: Contender) -> (usize, usize) {
    let allowed = PRESSED as usize * PRESSED_LOAD.subjects;
    let admitted = admitted(&Arc::new(contender), PRESSED_LOAD).await;
    (admitted, admitted.saturating_sub(allowed))
}

/// How many pass small limits that 64 requests press against at once, beside how many may.
async fn exactness(
    server: &Server,
    report: &mut Report,
) -> Result<Vec<(&'static str, usize)>, Box<dyn Error>> {
    let mut table = Table::new(
        "exactness (64 in flight, 100 subjects, 20 in each period, 100 tries for each subject)",
        ["contender", "allowed", "admitted", "too many"],
    );
    let mut all = Vec::new();
    for contender in [
        Contender::six_keys(server, 6, PRESSED).await?,
        Contender::store(server, 7, Layout::Packed, PRESSED).await?,
        Contender::store(server, 8, Layout::Readable, PRESSED).await?,
        Contender::limiter(server, 9, PRESSED).await?,
    ] {
        let name = contender.name;
        let (admitted, beyond) = too_many(contender).await;
        let allowed = PRESSED as usize * PRESSED_LOAD.subjects;
        let numbers = [allowed, admitted, beyond].map(|number| number.to_string());
        table.row([name.to_owned()].into_iter().chain(numbers));
        all.push((name, beyond));
    }
    report.table("redis-exactness", table);
    Ok(all)
}
