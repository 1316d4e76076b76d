//! Side-by-side measurements of rl-core and what else there is.
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
//! cargo run --release -p rl-bench -- scripts
//! cargo run -p rl-bench -- pictures
//! ```
//!
//! What counts are ratios taken in one run: absolute times differ from machine to machine, and on
//! one machine from hour to hour. What the pictures show does not depend on the machine.
//!
//! Who is not compared, and why:
//!
//! | | |
//! |---|---|
//! | actix-governor | GPL-3.0: nothing of it may become part of this workspace |
//! | tower-rate-limiter | needs a newer compiler than the workspace is built with |
//! | limitador on Redis | links the system's TLS library; its commands are sent through our client instead |
//! | trypema on Redis | needs a server of 7.2 or newer |
//! | redis-cell (`CL.THROTTLE`) | a module of the server; one GCRA script stands for it |

#![expect(clippy::print_stdout, reason = "its output is what it is run for")]

mod algorithms;
mod charts;
mod goals;
mod http;
mod machine;
mod measure;
mod memory;
mod outage;
mod overload;
mod pictures;
mod progress;
mod records;
mod redis;
mod report;
mod table;
mod visits;

use std::error::Error;
use std::process::ExitCode;

use report::Report;
use stats_alloc::{INSTRUMENTED_SYSTEM, StatsAlloc};

/// The system's allocator, counting.
#[global_allocator]
static ALLOCATOR: &StatsAlloc<std::alloc::System> = &INSTRUMENTED_SYSTEM;

const USAGE: &str = "\
usage: cargo run --release -p rl-bench -- memory|http|redis|all [--goals] [--json FILE] [--charts]
       cargo run --release -p rl-bench -- outage|overload|records|scripts|pictures
       cargo run -p rl-bench -- charts FILE

  memory    decisions in this process, beside other limiters, the price of each algorithm, and what of
            the goals is reached
  http      what a limit costs a service on axum and on actix-web, beside none and beside others
  redis     decisions on a Redis server of its own, beside plain commands, the usual script and other
            limiters; on several nodes, whose connections are cut; on a cluster
  all       memory, http and redis, and the goals of all in one table
  outage    what requests wait for while Redis is down
  overload  what a flood of invented subjects beyond capacity does, while one address is denied
  records   look-ups and pages of 300 000 records of 100 000 consumers on SQLite
  scripts   the longest that one script keeps a Redis server from others, under the heaviest policies
  pictures  draws what each algorithm admits into crates/rl-core/docs/pictures, and prints how
            much of two bursts passes
  charts    draws what --json has written into crates/rl-core/docs/charts

  --goals       measures what the goals of memory and redis need, and nothing else
  --json FILE   writes goals, tables and charts to a file, too
  --charts      draws the charts of this run, too";

/// What is to be done with what a run finds.
#[derive(Debug, Default, PartialEq, Eq)]
struct Options {
    json: Option<String>,
    charts: bool,
    goals_only: bool,
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let done = match words[..] {
        [] => return refuse("which measurement?"),
        ["outage"] => outage::run(),
        ["overload"] => overload::run(),
        ["records"] => records::run(),
        ["scripts"] => redis::scripts(),
        ["pictures"] => pictures::run(),
        ["charts", file] => charts::draw_from(file),
        ["charts"] => return refuse("charts wants the name of a file that --json has written"),
        // One of the processes that `redis` starts.
        ["node", ref words @ ..] => redis::node(words),
        [name @ ("memory" | "http" | "redis" | "all"), ref words @ ..] => match options(words) {
            Ok(options) => measure(name, &options),
            Err(why) => return refuse(&why),
        },
        ["outage" | "overload" | "records" | "scripts" | "pictures", extra, ..]
        | ["charts", _, extra, ..] => {
            return refuse(&format!("{extra:?} is one word too many"));
        }
        [unknown, ..] => return refuse(&format!("there is no measurement {unknown:?}")),
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
                let file = words.next().ok_or("--json wants the name of a file")?;
                options.json = Some((*file).to_owned());
            }
            "--charts" => options.charts = true,
            "--goals" => options.goals_only = true,
            extra => return Err(format!("{extra:?} is one word too many")),
        }
    }
    Ok(options)
}

fn measure(name: &str, options: &Options) -> Result<(), Box<dyn Error>> {
    let mut report = Report::new();
    report.goals_only = options.goals_only;
    let measured = match name {
        "memory" => memory::run(&mut report),
        "http" => http::run(&mut report),
        "redis" => redis::run(&mut report),
        _ => all(&mut report),
    };
    // What was found before something failed is worth its minutes.
    if let Some(file) = &options.json {
        report.write(file)?;
    }
    measured?;
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
        let wanted = Options { json: Some("run.json".to_owned()), charts: true, goals_only: false };
        assert_eq!(options(&["--charts", "--json", "run.json"]).as_ref(), Ok(&wanted));
        assert_eq!(options(&["--json", "run.json", "--charts"]).as_ref(), Ok(&wanted));
        assert_eq!(options(&[]), Ok(Options::default()));
        assert_eq!(options(&["--json"]), Err("--json wants the name of a file".to_owned()));
        assert_eq!(options(&["twice"]), Err("\"twice\" is one word too many".to_owned()));
    }
}
