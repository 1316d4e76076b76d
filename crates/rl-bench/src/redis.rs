//! Decisions on a Redis server: ours beside plain commands and beside the usual script.

mod algorithms;
mod cluster;
mod contender;
mod long_log;
mod nodes;
mod peers;
mod server;
mod targets;

use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use contender::{Contender, SUBJECTS};
use rl_core::store::redis::Layout;
use server::{Bystander, Server};

use crate::goals::{self, Goal};
use crate::machine;
use crate::measure::{Estimate, median, time_async};
use crate::table::Table;

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
const LOADS: [Load; 5] = [
    Load::on_all(1, 1_500),
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

pub(crate) fn run() -> Result<Vec<Goal>, Box<dyn Error>> {
    // One thread for all clients: the other core is the server's.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(measure())
}

async fn measure() -> Result<Vec<Goal>, Box<dyn Error>> {
    introduce();
    let mut goals = targets::measure().await?;
    beside_others(&Server::start()?).await?;
    println!("{}", targets::by_limits().await?);
    println!("{}", algorithms::speed().await?);
    println!("{}", long_log::speed().await?);
    println!("{}", algorithms::space().await?);
    goals.extend(nodes::measure().await?);
    println!("{}", cluster::measure().await?);
    println!("{}", goals::table(&goals));
    Ok(goals)
}

fn introduce() {
    println!("rl-core on Redis: six periods, second to month, in each decision\n");
    println!("machine   {}", machine::cores());
    println!(
        "versions  {}, {}, {}, {}, {}",
        machine::library("rl-core"),
        machine::library("redis"),
        machine::program("redis-server").split(" sha").next().unwrap_or_default(),
        machine::program("rustc"),
        machine::profile()
    );
    println!(
        "measured  clients and driver on one thread (tokio, current_thread), one multiplexed \
         connection each over\n          loopback, {SUBJECTS} subjects in turn, blocks there and \
         back in {ROUNDS} rounds, far enough apart for a\n          subject's second to be over; \
         medians; a ratio is the median over rounds with its bootstrap interval\n          of \
         95 %; above 1x we are faster\n"
    );
}

async fn beside_others(server: &Server) -> Result<(), Box<dyn Error>> {
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
        let rounds = rounds(&contenders, load, ROUNDS, &mut bystander).await?;
        let blocks = || rounds.iter().flatten().flatten();
        assert!(blocks().all(|block| block.admitted == 1.0), "the limits are out of reach");
        results.push(rounds);
    }
    println!("{}\n{}", rates(&contenders, &results), costs(&contenders, &results));
    for theirs in [INCR, SIX_KEYS] {
        println!("{}", ratios(&contenders, &results, theirs));
    }
    println!("{}", exactness(server).await?);
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

fn rates(contenders: &[Arc<Contender>], results: &[Vec<Round>]) -> Table {
    let loads = LOADS.map(|load| load.in_flight.to_string());
    let header = ["in flight"].into_iter().chain(loads.iter().map(String::as_str));
    let mut table = Table::new("thousand decisions per second", header);
    for (place, contender) in contenders.iter().enumerate() {
        let rate = |rounds: &Vec<Round>| {
            format!("{:.1}", 1e-3 / typical(rounds, place, |block| block.seconds))
        };
        table.row([contender.name.to_owned()].into_iter().chain(results.iter().map(rate)));
    }
    table
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
        Estimate::of(&rounds.iter().map(of).collect::<Vec<_>>()).to_string()
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
        table.row([name].into_iter().chain(speeds).chain([noise]));
    }
    let work = ours(&results.concat(), |block| block.command);
    table.row(["server, command".to_owned()].into_iter().chain(work));
    table
}

/// How many pass small limits that 64 requests press against at once, beside how many may.
async fn exactness(server: &Server) -> Result<Table, Box<dyn Error>> {
    const EACH: u32 = 20;
    const KEYS: usize = 100;
    let mut table = Table::new(
        "exactness (64 in flight, 100 subjects, 20 in each period, 100 tries for each subject)",
        ["contender", "allowed", "admitted", "too many"],
    );
    for contender in [
        Contender::six_keys(server, 6, EACH).await?,
        Contender::store(server, 7, Layout::Packed, EACH).await?,
        Contender::store(server, 8, Layout::Readable, EACH).await?,
        Contender::limiter(server, 9, EACH).await?,
    ] {
        let name = contender.name.to_owned();
        let load = Load { in_flight: 64, decisions: 100 * KEYS, subjects: KEYS };
        let admitted = admitted(&Arc::new(contender), load).await;
        let allowed = EACH as usize * KEYS;
        let numbers = [allowed, admitted, admitted.saturating_sub(allowed)];
        table.row([name].into_iter().chain(numbers.map(|number| number.to_string())));
    }
    Ok(table)
}
