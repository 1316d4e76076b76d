//! The counts of several processes add up to the decisions that their callers saw.

use std::collections::BTreeMap;
use std::process::Stdio;

use rl_tests::{RedisServer, free_port};
use serde_json::Value;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};

const PROCESSES: u64 = 8;
const CALLS: u64 = 5_000;

type Counts = BTreeMap<String, u64>;

/// The results of one process.
struct Worker {
    _process: Child,
    seen: Counts,
    stats: Counts,
    /// The series of `/metrics`.
    scraped: Counts,
}

fn counts(numbers: &Value) -> Counts {
    let numbers = numbers.as_object().unwrap().iter();
    numbers.map(|(series, number)| (series.clone(), number.as_u64().unwrap())).collect()
}

async fn run(url: String, closed: String) -> Worker {
    let mut process = Command::new(env!("CARGO_BIN_EXE_counting-worker"))
        .args([url, closed, CALLS.to_string()])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(process.stdout.take().unwrap()).lines();
    let line = lines.next_line().await.unwrap().expect("the process prints its results");
    let results: Value = serde_json::from_str(&line).unwrap();
    let address = results["address"].as_str().unwrap();
    let text = reqwest::get(format!("http://{address}/metrics")).await.unwrap().text().await;
    let text = text.unwrap();
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    let numbers = lines.filter_map(|line| {
        let (series, number) = line.rsplit_once(' ')?;
        Some((series.to_owned(), number.parse().ok()?))
    });
    Worker {
        scraped: numbers.collect(),
        seen: counts(&results["seen"]),
        stats: counts(&results["stats"]),
        _process: process,
    }
}

/// Adds up the numbers of all processes, for each series that `is_compared` accepts. Leaves out
/// numbers that are 0.
fn sum(
    workers: &[Worker],
    counts: impl Fn(&Worker) -> &Counts,
    is_compared: impl Fn(&str) -> bool,
) -> Counts {
    let mut sum = Counts::new();
    for (series, number) in workers.iter().flat_map(counts) {
        if *number > 0 && is_compared(series) {
            *sum.entry(series.clone()).or_default() += number;
        }
    }
    sum
}

#[tokio::test(flavor = "multi_thread")]
async fn the_counts_of_eight_processes_equal_what_their_callers_saw() {
    let redis = RedisServer::start();
    let closed = format!("redis://127.0.0.1:{}/", free_port());
    let workers: Vec<_> =
        (0..PROCESSES).map(|_| tokio::spawn(run(redis.url(), closed.clone()))).collect();
    let workers: Vec<Worker> =
        futures::future::join_all(workers).await.into_iter().map(Result::unwrap).collect();

    let is_decision = |series: &str| series.starts_with("rl_decisions_total{");
    let of_decisions = |counts: fn(&Worker) -> &Counts| sum(&workers, counts, is_decision);
    let seen = of_decisions(|worker| &worker.seen);
    assert_eq!(seen, of_decisions(|worker| &worker.stats));
    assert_eq!(seen, of_decisions(|worker| &worker.scraped));
    // One call in twenty is a charge for finished work, which does not count as a decision.
    assert_eq!(seen.values().sum::<u64>(), PROCESSES * CALLS * 19 / 20);

    let kinds = ["rl_units_total{", "rl_limit_denials_total{", "rl_rule_evaluations_total{"];
    let is_other = |series: &str| kinds.iter().any(|kind| series.starts_with(kind));
    let others = sum(&workers, |worker| &worker.seen, is_other);
    assert_eq!(others, sum(&workers, |worker| &worker.scraped, is_other));

    for origin in ["store", "leased", "local_deny", "fallback", "failed_open", "failed_closed"] {
        let origin = format!("origin=\"{origin}\"");
        assert!(seen.keys().any(|series| series.contains(&origin)), "{origin}: {seen:#?}");
    }
}
