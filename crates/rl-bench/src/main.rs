//! Side-by-side measurements of rl-core and other rate limiters.
//!
//! ```text
//! cargo run --release -p rl-bench -- memory
//! cargo run --release -p rl-bench -- http
//! cargo run --release -p rl-bench -- redis
//! cargo run --release -p rl-bench -- all --json run.json --charts
//! cargo run --release -p rl-bench -- charts run.json
//! cargo run --release -p rl-bench -- outage
//! cargo run --release -p rl-bench -- overload
//! cargo run --release -p rl-bench -- records
//! cargo run --release -p rl-bench -- rules
//! cargo run --release -p rl-bench -- scripts
//! cargo run -p rl-bench -- pictures
//! ```
//!
//! Compare only the ratios within one run. Absolute times differ between machines, and between
//! hours on one machine. The pictures do not depend on the machine.
//!
//! These limiters are not compared:
//!
//! | limiter | reason |
//! |---|---|
//! | actix-governor | its licence, GPL-3.0, does not permit a dependency |
//! | tower-rate-limiter | it requires a newer compiler than this workspace |
//! | limitador on Redis | it links the system's TLS library; the benchmark sends its commands through our client instead |
//! | trypema on Redis | it requires Redis 7.2 or newer |
//! | redis-cell (`CL.THROTTLE`) | it is a server module; a GCRA script represents it |

#![expect(clippy::print_stdout, reason = "a program that prints results")]

mod algorithms;
mod charts;
mod goals;
mod http;
mod long_logs;
mod machine;
mod measure;
mod memory;
mod metrics;
mod outage;
mod overload;
mod pictures;
mod progress;
mod records;
mod redis;
mod report;
mod rules;
mod table;
mod workload;

use std::error::Error;
use std::process::ExitCode;

use report::Report;
use stats_alloc::{INSTRUMENTED_SYSTEM, StatsAlloc};

/// The system's allocator, which also counts allocations.
#[global_allocator]
static ALLOCATOR: &StatsAlloc<std::alloc::System> = &INSTRUMENTED_SYSTEM;

const USAGE: &str = "\
usage: cargo run --release -p rl-bench -- memory|http|redis|all [--goals] [--only GOALS] [--json FILE] [--charts]
       cargo run --release -p rl-bench -- outage|overload|records|rules|metrics|scripts|pictures
       cargo run -p rl-bench -- charts FILE

  memory    measures decisions in this process, beside other limiters, and the cost of each algorithm
  http      measures the cost of a limit on axum and on actix-web, beside none and beside other limiters
  redis     measures decisions on a Redis server, beside plain commands, the usual script and other
            limiters; on several nodes whose connections are cut; and on a cluster
  all       runs memory, http and redis, and prints the goals of all in one table
  outage    measures the latency of requests while Redis is down
  overload  measures a flood of invented subjects beyond capacity, while one address is denied
  records   measures look-ups and pages of 300 000 records of 100 000 consumers on SQLite
  rules     measures requests through axum under 10, 1 000 and 10 000 rules, and the creation of these rules
  metrics   measures a page of /metrics with 500 limits
  scripts   measures the longest time that one script blocks a Redis server, under the heaviest policies
  pictures  draws the decisions of each algorithm into crates/rl-core/docs/pictures, and prints how many
            requests of two bursts are allowed
  charts    draws the charts of a file that --json has written into crates/rl-core/docs/charts

  --goals       runs only the measurements of the goals of memory and redis
  --only GOALS  runs only the measurements of these goals of memory or redis, such as E1,E2
  --json FILE   also writes goals, tables and charts to a file
  --charts      also draws the charts of this run";

/// The options of a measurement.
#[derive(Debug, Default, PartialEq, Eq)]
struct Options {
    json: Option<String>,
    charts: bool,
    goals_only: bool,
    only: Vec<String>,
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let done = match words[..] {
        [] => return refuse("name a measurement"),
        ["outage"] => outage::run(),
        ["overload"] => overload::run(),
        ["records"] => records::run(),
        ["rules"] => rules::run(),
        ["metrics"] => metrics::run(),
        ["scripts"] => redis::scripts(),
        ["pictures"] => pictures::run(),
        ["charts", file] => charts::draw_from(file),
        ["charts"] => return refuse("charts needs the name of a file that --json has written"),
        // The benchmark `redis` starts processes with these arguments.
        ["node", ref words @ ..] => redis::node(words),
        [name @ ("memory" | "http" | "redis" | "all"), ref words @ ..] => match options(words) {
            Ok(options) => measure(name, &options),
            Err(why) => return refuse(&why),
        },
        [
            "outage" | "overload" | "records" | "rules" | "metrics" | "scripts" | "pictures",
            extra,
            ..,
        ]
        | ["charts", _, extra, ..] => {
            return refuse(&format!("unexpected argument {extra:?}"));
        }
        [unknown, ..] => return refuse(&format!("unknown measurement {unknown:?}")),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn options(words: &[&str]) -> Result<Options, String> {
    let (mut options, mut words) = (Options::default(), words.iter());
    while let Some(word) = words.next() {
        match *word {
            "--json" => {
                let file = words.next().ok_or("--json needs the name of a file")?;
                options.json = Some((*file).to_owned());
            }
            "--charts" => options.charts = true,
            "--goals" => options.goals_only = true,
            "--only" => {
                let names = words.next().ok_or("--only needs the names of goals")?;
                options.only = names.split(',').map(str::to_owned).collect();
            }
            extra => return Err(format!("unexpected argument {extra:?}")),
        }
    }
    Ok(options)
}

fn measure(name: &str, options: &Options) -> Result<(), Box<dyn Error>> {
    let mut report = Report::new();
    report.goals_only = options.goals_only;
    report.only.clone_from(&options.only);
    let measured = match name {
        "memory" => memory::run(&mut report),
        "http" => http::run(&mut report),
        "redis" => redis::run(&mut report),
        _ => all(&mut report),
    };
    // The results are written even after a failure.
    if let Some(file) = &options.json {
        report.write(file)?;
    }
    measured?;
    if let [unknown, ..] = report.unmeasured()[..] {
        return Err(format!("{name} measures no goal {unknown:?}").into());
    }
    if options.charts { charts::draw(report.charts()) } else { Ok(()) }
}

fn all(report: &mut Report) -> Result<(), Box<dyn Error>> {
    memory::run(report)?;
    http::run(report)?;
    redis::run(report)?;
    report.print_goals();
    Ok(())
}

fn refuse(why: &str) -> ExitCode {
    eprintln!("{why}\n\n{USAGE}");
    ExitCode::from(2)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_come_in_any_order() {
        let wanted =
            Options { json: Some("run.json".to_owned()), charts: true, ..Options::default() };
        assert_eq!(options(&["--charts", "--json", "run.json"]).as_ref(), Ok(&wanted));
        assert_eq!(options(&["--json", "run.json", "--charts"]).as_ref(), Ok(&wanted));
        assert_eq!(options(&[]), Ok(Options::default()));
        let goals = options(&["--goals", "--only", "E1,M2"]).unwrap();
        assert_eq!((goals.goals_only, goals.only), (true, vec!["E1".into(), "M2".into()]));
        assert_eq!(options(&["--json"]), Err("--json needs the name of a file".to_owned()));
        assert_eq!(options(&["twice"]), Err("unexpected argument \"twice\"".to_owned()));
    }
}
