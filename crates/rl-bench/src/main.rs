//! Side-by-side measurements of rl-core and what else there is.
//!
//! ```text
//! cargo run --release -p rl-bench -- memory
//! cargo run --release -p rl-bench -- http
//! cargo run --release -p rl-bench -- redis
//! cargo run --release -p rl-bench -- all --json goals.json
//! cargo run --release -p rl-bench -- outage
//! cargo run --release -p rl-bench -- records
//! cargo run -p rl-bench -- pictures
//! ```
//!
//! What counts are ratios taken in one run: absolute times differ from machine to machine, and on
//! one machine from hour to hour. What the pictures show does not depend on the machine.

#![expect(clippy::print_stdout, reason = "its output is what it is run for")]

mod algorithms;
mod goals;
mod http;
mod machine;
mod measure;
mod memory;
mod outage;
mod pictures;
mod progress;
mod records;
mod redis;
mod report;
mod table;

use std::process::ExitCode;

use stats_alloc::{INSTRUMENTED_SYSTEM, StatsAlloc};

/// The system's allocator, counting.
#[global_allocator]
static ALLOCATOR: &StatsAlloc<std::alloc::System> = &INSTRUMENTED_SYSTEM;

const USAGE: &str = "\
usage: cargo run --release -p rl-bench -- memory|http|redis|all|outage|records|pictures [--json FILE]

  memory    decisions in this process, beside other limiters, the price of each algorithm, and what of
            the goals is reached
  http      what a limit costs a service on axum, beside none and beside tower_governor
  redis     decisions on a Redis server of its own, beside plain commands and the usual script, and
            the price of each algorithm
  outage    what requests wait for while Redis is down
  all       memory, http and redis, and the goals of all in one table
  records   look-ups and pages of 300 000 records of 100 000 consumers on SQLite
  pictures  draws what each algorithm admits into crates/rl-core/docs/pictures, and prints how
            much of two bursts passes

  --json FILE   writes the goals of memory, http, redis or all to a file, too";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let mut words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let file = match words[..] {
        [_, "--json", file] => Some(file),
        [.., "--json"] => return refuse("--json wants the name of a file"),
        _ => None,
    };
    words.truncate(if file.is_some() { 1 } else { words.len() });
    let goals = |goals: Vec<goals::Goal>| file.map_or(Ok(()), |file| report::write(&goals, file));
    let result = match words[..] {
        [] => return refuse("which measurement?"),
        [_, extra, ..] => return refuse(&format!("{extra:?} is one word too many")),
        ["memory"] => memory::run().and_then(goals),
        ["redis"] => redis::run().and_then(goals),
        ["http"] => http::run().and_then(goals),
        ["all"] => report::all().and_then(goals),
        ["outage"] => outage::run(),
        ["records"] => records::run(),
        ["pictures"] => pictures::run(),
        [unknown] => return refuse(&format!("there is no measurement {unknown:?}")),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn refuse(why: &str) -> ExitCode {
    eprintln!("{why}\n\n{USAGE}");
    ExitCode::from(2)
}
