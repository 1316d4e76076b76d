//! Several instances of a service that share one server, each in its own process.
//!
//! The first measurement cuts connections, flushes scripts and shifts clocks, and counts the
//! requests that are allowed beyond the limits. The second one measures the decisions per second
//! without such faults.

use std::io::stdin;
use std::ops::Range;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use rl_core::store::{DecideRequest, Mode, Namespace, Part, Store};
use rl_core::{Cost, Period, Policy, RedisStore, Subject};
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{Child, ChildStdout, Command};
use tokio::time::{MissedTickBehavior, interval, timeout};

use super::server::{Monitor, Server};
use crate::Result;
use crate::algorithms::{ENDLESS, policy};
use crate::charts::Chart;
use crate::measure::{Race, time_async};
use crate::report::{Report, Table};

/// Whether calls share batches, whether denials are cached, and the units of a lease, or 0.
type StoreSettings = (bool, bool, u32);

const SETTINGS: [(&str, StoreSettings); 4] = [
    ("each call by itself", (false, false, 0)),
    ("calls in flight together", (true, false, 0)),
    ("and denials remembered", (true, true, 0)),
    ("leases of 100", (true, true, 100)),
];
const NODES: [usize; 4] = [1, 2, 4, 8];
/// The number of concurrent tasks in each node.
const TASKS: usize = 16;
/// The limit of each subject, while connections are cut.
const MAX: u32 = 2_000;
const SUBJECTS: usize = 4;
/// The time between two cuts of all connections, and the maximum number of cuts.
const CUT: Duration = Duration::from_millis(20);
const CUTS: usize = 50;
/// The clock offsets of the nodes, in seconds.
const CLOCKS: [i64; 3] = [5, -5, 0];
/// The number of requests of all nodes while the rate is measured. With leases there are ten times
/// as many, so that each node takes several leases for each subject.
const BUSY_CALLS: usize = 48_000;
const BUSY_SUBJECTS: usize = 100;
/// The time after which a node is considered stuck.
const PATIENCE: Duration = Duration::from_secs(120);

/// The settings of a node.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct NodeSettings {
    /// The limit of each subject, in every period of at least an hour.
    max: u32,
    subjects: usize,
    /// The number of calls of each task.
    calls: usize,
    store: StoreSettings,
}

/// The result that a node reports.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct NodeResult {
    seconds: f64,
    /// The number of calls without a decision.
    failed: usize,
    /// The number of allowed units of each subject.
    allowed: Vec<u64>,
}

/// Counts the requests that are allowed beyond the limits while connections are cut.
pub(super) async fn exactness(report: &mut Report) -> Result {
    let are_clocks_off = Command::new("faketime").arg("--version").output().await.is_ok();
    let clocks = if are_clocks_off {
        "clocks 5 s ahead and behind"
    } else {
        "faketime is missing: clocks are right"
    };
    let asked = 4 * MAX as usize * SUBJECTS;
    let title = format!("nodes whose connections are cut and scripts forgotten; {clocks}");
    let columns = ["", "nodes", "calls failed", "requests", "limits", "allowed", "too many"];
    let mut table = Table::new(&title, columns);
    let mut worst = 0;
    for (name, store) in SETTINGS {
        for nodes in NODES.into_iter().skip(1) {
            let calls = asked / (nodes * TASKS);
            let settings = NodeSettings { max: MAX, subjects: SUBJECTS, calls, store };
            let result = run(settings, nodes, are_clocks_off, CUTS).await?;
            let beyond = result.allowed.iter().map(|count| count.saturating_sub(MAX.into()));
            let (too_many, allowed) = (beyond.sum::<u64>(), result.allowed.iter().sum::<u64>());
            let counts = [nodes, result.failed, asked, MAX as usize * SUBJECTS];
            let counts = counts.map(|count| count as f64).into_iter();
            table.row(name, counts.chain([allowed as f64, too_many as f64]));
            worst = too_many.max(worst);
        }
    }
    report.table(table);
    let what = "2 to 8 nodes with cut connections: allowed beyond the limits";
    report.at_most(what, 0.0, worst as f64);
    Ok(())
}

/// Measures the decisions per second of several nodes.
pub(super) async fn rates(report: &mut Report) -> Result {
    // The measured limits deny nothing, so the denial cache alone has no effect.
    let settings = [SETTINGS[0], SETTINGS[1], SETTINGS[3]];
    let mut race = Race::new(settings.len() * NODES.len());
    for turn in race.turns(report.rounds(2)) {
        let nodes = NODES[turn.contender % NODES.len()];
        let (_, store) = settings[turn.contender / NODES.len()];
        let all_calls = if store.2 > 0 { 10 * BUSY_CALLS } else { BUSY_CALLS };
        let calls = all_calls / (nodes * TASKS);
        let settings = NodeSettings { max: ENDLESS, subjects: BUSY_SUBJECTS, calls, store };
        let result = run(settings, nodes, false, 0).await?;
        assert_eq!(result.failed, 0, "nothing happens to the server");
        race.record(turn, [result.seconds / all_calls as f64]);
    }
    let columns = ["nodes"].into_iter().chain(settings.map(|(name, _)| name));
    let mut table = Table::new("decisions per second of several nodes", columns);
    for (number, nodes) in NODES.into_iter().enumerate() {
        let place = |setting: usize| setting * NODES.len() + number;
        table.row(nodes, [0, 1, 2].map(|setting| 1.0 / race.median(place(setting), 0)));
    }
    let chart = Chart {
        name: "nodes",
        title: "Decisions on one Redis, by the number of nodes",
        note: "Each node a process with 16 in flight, 100 subjects, four limits, all requests pass; one machine.",
        unit: "decisions per second",
        is_logarithmic: true,
    };
    report.chart(&chart, table)
}

/// Runs all nodes, and cuts their connections up to `cuts` times. Returns their combined results
/// with the time of the slowest node.
async fn run(
    settings: NodeSettings,
    nodes: usize,
    are_clocks_off: bool,
    cuts: usize,
) -> Result<NodeResult> {
    let server = Server::start()?;
    let monitor = server.monitor().await?;
    let mut running = Vec::new();
    for number in 0..nodes {
        let clock = if are_clocks_off { CLOCKS[number % CLOCKS.len()] } else { 0 };
        running.push(Node::start(&server, settings, clock).await?);
    }
    for node in &mut running {
        let input = node.process.stdin.as_mut().ok_or("its input is piped")?;
        input.write_all(b"go\n").await?;
    }
    let faults = tokio::spawn(cut(monitor, cuts));
    let mut all = NodeResult { allowed: vec![0; settings.subjects], ..NodeResult::default() };
    for node in &mut running {
        all.add(serde_json::from_str(&node.line().await?)?);
    }
    faults.abort();
    Ok(all)
}

impl NodeResult {
    /// Adds the result of another node or task.
    fn add(&mut self, other: Self) {
        self.seconds = self.seconds.max(other.seconds);
        self.failed += other.failed;
        self.allowed.iter_mut().zip(other.allowed).for_each(|(sum, count)| *sum += count);
    }
}

/// Cuts all connections and flushes the scripts, repeatedly.
async fn cut(mut monitor: Monitor, cuts: usize) {
    let mut ticks = interval(CUT);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    ticks.tick().await;
    for cut in 0..cuts {
        ticks.tick().await;
        if cut % 2 == 0 {
            let _ = monitor.ask("SCRIPT FLUSH").await;
        }
        let _ = monitor.kill_connections().await;
    }
}

/// A process that runs a node.
struct Node {
    process: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Node {
    /// Starts a node, and waits until it is connected. Its clock differs by `clock` seconds.
    async fn start(server: &Server, settings: NodeSettings, clock: i64) -> Result<Self> {
        let program = std::env::current_exe()?;
        let mut command =
            Command::new(if clock == 0 { program.as_os_str() } else { "faketime".as_ref() });
        if clock != 0 {
            // Time-outs use the monotonic clock, so that clock must stay correct.
            command.env("FAKETIME_DONT_FAKE_MONOTONIC", "1");
            command.args(["-f", &format!("{clock:+}s")]).arg(&program);
        }
        command.args(["node", &server.url(0), &serde_json::to_string(&settings)?]);
        let mut process =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).kill_on_drop(true).spawn()?;
        let lines = BufReader::new(process.stdout.take().ok_or("its output is piped")?).lines();
        let mut node = Self { process, lines };
        let line = node.line().await?;
        if line == "ready" { Ok(node) } else { Err(format!("a node says {line:?}").into()) }
    }

    /// Returns the next line that the node prints.
    async fn line(&mut self) -> Result<String> {
        let line = timeout(PATIENCE, self.lines.next_line()).await??;
        Ok(line.ok_or("a node ended without a line")?)
    }
}

/// Runs this process as a node. Once it is connected, it prints `ready`. It then waits for a line,
/// makes its requests, and prints the result.
pub(crate) fn node(url: &str, settings: &str) -> Result {
    let settings: NodeSettings = serde_json::from_str(settings)?;
    super::run(async {
        let (coalesces, caches_denials, lease) = settings.store;
        let store = RedisStore::builder(url).connections(2).lease(lease);
        let store = store.coalesce(coalesces).local_denial(caches_denials);
        // The wait is long, so that no call fails because the machine is busy.
        let store = store.connection_wait(Duration::from_secs(5)).connect().await?;
        println!("ready");
        stdin().read_line(&mut String::new())?;
        println!("{}", serde_json::to_string(&work(store, settings).await?)?);
        Ok(())
    })
}

async fn work(store: RedisStore, settings: NodeSettings) -> Result<NodeResult> {
    // Shorter windows could end during the run.
    let periods = Period::NAMED.into_iter().filter(|period| *period > Period::MINUTE);
    let policy = policy(periods.map(|period| format!("{}/{period}", settings.max)))?;
    let subjects = (0..settings.subjects).map(|n| Subject::user(&n.to_string()));
    let shared = Arc::new((store, policy, subjects.collect::<Vec<_>>()));
    let mut all = NodeResult { allowed: vec![0; settings.subjects], ..NodeResult::default() };
    let (elapsed, results) = time_async(async {
        let tasks = (0..TASKS)
            .map(|first| tokio::spawn(ask(Arc::clone(&shared), first..first + settings.calls)));
        join_all(tasks.collect::<Vec<_>>()).await
    })
    .await;
    for result in results {
        all.add(result?);
    }
    Ok(NodeResult { seconds: elapsed.as_secs_f64(), ..all })
}

/// Makes requests for each subject in turn.
async fn ask(shared: Arc<(RedisStore, Policy, Vec<Subject>)>, calls: Range<usize>) -> NodeResult {
    let (store, policy, subjects) = &*shared;
    let (namespace, mut result) = (Namespace::default(), NodeResult::default());
    result.allowed = vec![0; subjects.len()];
    for call in calls {
        let place = call % subjects.len();
        let parts = [Part::new(&subjects[place], policy, Cost::ONE)];
        match store.decide(DecideRequest::new(&namespace, &parts, Mode::Check)).await {
            Ok(decision) => result.allowed[place] += decision.granted(),
            Err(_) => result.failed += 1,
        }
        // Cached denials are decided without waiting. Without a yield, the other tasks would not
        // run.
        tokio::task::yield_now().await;
    }
    result
}
