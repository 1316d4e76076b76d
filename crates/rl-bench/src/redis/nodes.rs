//! Several instances of a service that share one server, each in its own process.
//!
//! The first measurement cuts connections, flushes scripts and shifts clocks, and counts the
//! requests that are allowed beyond the limits. The second one measures the decisions per second
//! without such faults.

use std::error::Error;
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{Child, ChildStdout, Command};
use tokio::time::{MissedTickBehavior, interval, timeout};

use super::load::ENDLESS;
use super::node::{NodeResult, NodeSettings};
use super::server::{Monitor, Server};
use crate::charts::{self, Axis, Chart, Line, Plot};
use crate::goals::{Goal, Unit};
use crate::measure::median;
use crate::report::Report;
use crate::table::Table;

/// The settings of the store in one measurement.
#[derive(Clone, Copy)]
struct NodeOptions {
    name: &'static str,
    coalesces: bool,
    remembers_denials: bool,
    lease: u32,
}

const OPTIONS: [NodeOptions; 4] = [
    NodeOptions {
        name: "each call by itself",
        coalesces: false,
        remembers_denials: false,
        lease: 0,
    },
    NodeOptions {
        name: "calls in flight together",
        coalesces: true,
        remembers_denials: false,
        lease: 0,
    },
    NodeOptions {
        name: "and denials remembered",
        coalesces: true,
        remembers_denials: true,
        lease: 0,
    },
    NodeOptions { name: "leases of 100", coalesces: true, remembers_denials: true, lease: 100 },
];
const NODES: [usize; 4] = [1, 2, 4, 8];
/// The limit of each subject.
const MAX: u32 = 2_000;
const SUBJECTS: usize = 4;
/// The number of requests of all nodes: four times the number that the limits allow.
const ASKED: usize = 4 * MAX as usize * SUBJECTS;
/// The number of concurrent tasks in each node.
const TASKS: usize = 16;
/// The time between two cuts of all connections, and the maximum number of cuts.
const CUT: Duration = Duration::from_millis(20);
const CUTS: usize = 50;
/// The clock offsets of the nodes, in seconds. The first node has the first offset, and after the
/// last offset the list begins again.
const CLOCKS: [i64; 3] = [5, -5, 0];
/// The number of rounds in the measurement of the rate. Each round measures all settings with all
/// numbers of nodes.
const ROUNDS: usize = 3;
const BUSY_SUBJECTS: usize = 100;
const BUSY_CALLS: usize = 48_000;
/// With leases, the number of calls is multiplied by this factor, so that each node takes several
/// leases for each subject.
const LEASED_TIMES: usize = 10;
/// The maximum number of attempts to start a node.
const STARTS: usize = 5;
/// The time after which a node is considered stuck.
const PATIENCE: Duration = Duration::from_secs(120);

pub(super) const STEPS: usize = OPTIONS.len() * (NODES.len() - 1) + ROUNDS;

pub(super) async fn exactness(report: &mut Report) -> Result<Vec<Goal>, Box<dyn Error>> {
    let can_be_off = Command::new("faketime").arg("--version").output().await.is_ok();
    let clocks = if can_be_off {
        "clocks 5 s ahead and behind"
    } else {
        "faketime is missing: clocks are right"
    };
    let title = format!(
        "nodes in trouble, each a process: {SUBJECTS} subjects, {MAX} for each, {} asked for; \
         all connections cut, scripts forgotten; {clocks}",
        ASKED / SUBJECTS
    );
    let head = ["", "nodes", "cuts", "calls failed", "allowed", "admitted", "too many", "unused %"];
    let mut table = Table::new(&title, head);
    let (mut worst, mut worst_leased) = (0, 0);
    for options in OPTIONS {
        for nodes in NODES.into_iter().skip(1) {
            report.step(&format!("{nodes} nodes in trouble"));
            let settings = options.settings(MAX, SUBJECTS, ASKED / (nodes * TASKS));
            let (outcome, cuts) = run(settings, nodes, can_be_off, CUTS).await?;
            let allowed = u64::from(MAX) * SUBJECTS as u64;
            let admitted: u64 = outcome.admitted.iter().sum();
            let too_many: u64 =
                outcome.admitted.iter().map(|count| count.saturating_sub(MAX.into())).sum();
            let unused = allowed.saturating_sub(admitted) as f64 * 100.0 / allowed as f64;
            table.row([
                options.name.to_owned(),
                nodes.to_string(),
                cuts.to_string(),
                outcome.failed.to_string(),
                allowed.to_string(),
                admitted.to_string(),
                too_many.to_string(),
                format!("{unused:.1}"),
            ]);
            let worst = if options.lease > 0 { &mut worst_leased } else { &mut worst };
            *worst = too_many.max(*worst);
        }
    }
    report.table("redis-nodes-exactness", table);
    let none = (0.0, 0.0, Unit::AtMost(""));
    let what = "2 to 8 nodes in trouble: admitted beyond the limits";
    Ok(vec![
        Goal::counted("R10", &format!("leases, {what}"), none, worst_leased as f64),
        Goal::counted("R12", what, none, worst as f64),
    ])
}

pub(super) async fn rates(report: &mut Report) -> Result<(), Box<dyn Error>> {
    let mut seconds = vec![vec![Vec::new(); NODES.len()]; OPTIONS.len()];
    for _ in 0..ROUNDS {
        report.step("nodes at work");
        for (options, seconds) in OPTIONS.iter().zip(&mut seconds) {
            for (nodes, seconds) in NODES.into_iter().zip(seconds) {
                let settings = options.settings(
                    ENDLESS,
                    BUSY_SUBJECTS,
                    options.busy_calls() / (nodes * TASKS),
                );
                let (outcome, _) = run(settings, nodes, false, 0).await?;
                assert_eq!(outcome.failed, 0, "nothing happens to the server");
                seconds.push(outcome.seconds);
            }
        }
    }
    let title = format!(
        "nodes at work, each a process with {TASKS} in flight: thousand decisions per second of \
         {BUSY_SUBJECTS} subjects, all pass"
    );
    let columns = NODES.map(|nodes| nodes.to_string());
    let head = ["nodes"].into_iter().chain(columns.iter().map(String::as_str));
    let mut table = Table::new(&title, head);
    let mut lines = Vec::new();
    for (options, seconds) in OPTIONS.iter().zip(&seconds) {
        // The measured limits deny nothing, so the denial cache alone has no effect.
        if options.remembers_denials && options.lease == 0 {
            continue;
        }
        let rates = seconds.iter().map(|seconds| options.busy_calls() as f64 / median(seconds));
        let rates: Vec<f64> = rates.collect();
        let cells = rates.iter().map(|rate| format!("{:.1}", rate / 1e3));
        table.row([options.name.to_owned()].into_iter().chain(cells));
        let nodes = NODES.map(|nodes| nodes as f64);
        lines.push(Line::new(options.name, nodes.into_iter().zip(rates)));
    }
    report.table("redis-nodes-rates", table);
    report.chart(Chart {
        name: "nodes".to_owned(),
        title: "Decisions on one Redis, by the number of nodes".to_owned(),
        note: format!(
            "Each node a process with {TASKS} in flight, {BUSY_SUBJECTS} subjects, four limits, all \
             requests pass; one machine."
        ),
        plot: Plot::Lines(charts::Lines {
            x: Axis::logarithmic("nodes"),
            y: Axis::logarithmic("decisions per second"),
            lines,
        }),
    });
    Ok(())
}

impl NodeOptions {
    /// Returns the number of calls in the measurement of the rate, summed over all nodes.
    const fn busy_calls(self) -> usize {
        if self.lease > 0 { BUSY_CALLS * LEASED_TIMES } else { BUSY_CALLS }
    }

    const fn settings(self, max: u32, subjects: usize, calls: usize) -> NodeSettings {
        let Self { coalesces, remembers_denials, lease, .. } = self;
        NodeSettings { max, subjects, tasks: TASKS, calls, lease, coalesces, remembers_denials }
    }
}

/// Runs all nodes, and cuts their connections up to `cuts` times. Returns their combined results
/// with the time of the slowest node, and the number of cuts that were made.
async fn run(
    settings: NodeSettings,
    nodes: usize,
    are_clocks_off: bool,
    cuts: usize,
) -> Result<(NodeResult, usize), Box<dyn Error>> {
    let server = Server::start()?;
    let monitor = server.monitor().await?;
    let mut running = Vec::new();
    for number in 0..nodes {
        let clock = if are_clocks_off { CLOCKS[number % CLOCKS.len()] } else { 0 };
        running.push(Node::start(&server, settings, clock).await?);
    }
    for node in &mut running {
        node.go().await?;
    }
    let made = Arc::new(AtomicUsize::new(0));
    let trouble = tokio::spawn(trouble(monitor, cuts, Arc::clone(&made)));
    let mut all = NodeResult { admitted: vec![0; settings.subjects], ..NodeResult::default() };
    for node in &mut running {
        let NodeResult { seconds, failed, admitted } = node.line().await?.parse()?;
        all.seconds = all.seconds.max(seconds);
        all.failed += failed;
        all.admitted.iter_mut().zip(admitted).for_each(|(sum, count)| *sum += count);
    }
    trouble.abort();
    Ok((all, made.load(Ordering::Relaxed)))
}

/// Cuts all connections and flushes the scripts, repeatedly.
async fn trouble(mut monitor: Monitor, cuts: usize, made: Arc<AtomicUsize>) {
    let mut ticks = interval(CUT);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    ticks.tick().await;
    for cut in 0..cuts {
        ticks.tick().await;
        if cut % 2 == 0 {
            let _ = monitor.ask("SCRIPT FLUSH").await;
        }
        if monitor.kill_connections().await.is_ok() {
            made.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// A process that runs a node.
struct Node {
    process: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Node {
    /// Starts a node, and waits until it is connected. Its clock differs by `clock` seconds.
    ///
    /// faketime creates a semaphore that is named after the process id. If a process has left such
    /// a semaphore behind, faketime does not start under the same id again. Another attempt gets
    /// another id.
    async fn start(
        server: &Server,
        settings: NodeSettings,
        clock: i64,
    ) -> Result<Self, Box<dyn Error>> {
        for _ in 1..STARTS {
            if let Ok(node) = Self::start_once(server, settings, clock).await {
                return Ok(node);
            }
        }
        Self::start_once(server, settings, clock).await
    }

    async fn start_once(
        server: &Server,
        settings: NodeSettings,
        clock: i64,
    ) -> Result<Self, Box<dyn Error>> {
        let program = std::env::current_exe()?;
        let mut command = match clock {
            0 => Command::new(program),
            _ => {
                let mut command = Command::new("faketime");
                // Time-outs use the monotonic clock, so that clock must stay correct.
                command.env("FAKETIME_DONT_FAKE_MONOTONIC", "1");
                command.args(["-f", &format!("{clock:+}s")]).arg(program);
                command
            }
        };
        command.args(["node", &server.url(0)]).args(settings.to_string().split(' '));
        let mut process =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).kill_on_drop(true).spawn()?;
        let lines = BufReader::new(process.stdout.take().ok_or("its output is piped")?).lines();
        let mut node = Self { process, lines };
        let ready = node.line().await?;
        ready.strip_prefix("ready ").ok_or_else(|| format!("a node is not ready: {ready:?}"))?;
        Ok(node)
    }

    async fn go(&mut self) -> Result<(), Box<dyn Error>> {
        let input = self.process.stdin.as_mut().ok_or("its input is piped")?;
        Ok(input.write_all(b"go\n").await?)
    }

    /// Returns the next line that the node prints.
    async fn line(&mut self) -> Result<String, Box<dyn Error>> {
        let line = timeout(PATIENCE, self.lines.next_line()).await??;
        Ok(line.ok_or("a node ended without a line")?)
    }
}
