//! Side-by-side measurements of this workspace and other rate limiters.
//!
//! Compare only the ratios within one run. Absolute times differ between machines, and between
//! hours on one machine. The pictures do not depend on the machine.
//!
//! These limiters are not compared:
//!
//! | limiter | reason |
//! |---|---|
//! | actix-governor | its licence, GPL-3.0, does not permit a dependency; `--server` measures a service with it |
//! | tower-rate-limiter | it requires a newer compiler than this workspace |
//! | limitador on Redis | it links the system's TLS library; the benchmark sends its commands through our client instead |
//! | trypema on Redis | it requires Redis 7.2 or newer |
//! | redis-cell (`CL.THROTTLE`) | it is a server module; a GCRA script represents it |

#![expect(clippy::print_stdout, reason = "a program that prints results")]

mod algorithms;
mod charts;
mod http;
mod measure;
mod memory;
mod overload;
mod pictures;
mod redis;
mod report;
mod rules;
mod server;
mod svg;

use std::error::Error;
use std::process::ExitCode;

use report::Report;
use stats_alloc::{INSTRUMENTED_SYSTEM, StatsAlloc};

/// The system's allocator, which also counts allocations.
#[global_allocator]
static ALLOCATOR: &StatsAlloc<std::alloc::System> = &INSTRUMENTED_SYSTEM;

type Result<T = ()> = std::result::Result<T, Box<dyn Error>>;

/// A measurement: its name, its description, and the function that runs it.
type Measurement = (&'static str, &'static str, fn(&mut Report) -> Result);

#[rustfmt::skip]
const MEASUREMENTS: [Measurement; 19] = [
    ("memory-others", "decisions in this process beside other limiters", memory::others),
    ("memory-space", "bytes of a subject, and allocations of a decision", memory::space),
    ("memory-algorithms", "each algorithm beside a limiter for it alone", memory::algorithms),
    ("memory-parts", "requests of three parts beside one part", memory::parts),
    ("memory-flood", "ten million invented subjects in a full store", memory::flood),
    ("memory-growth", "the cost by the number of subjects and of limits", memory::growth),
    ("http", "a limit on axum and actix-web beside none and other limiters", http::run),
    ("rules", "requests through axum under 10, 1 000 and 10 000 rules", rules::run),
    ("redis-others", "a server beside plain commands and other limiters", redis::others),
    ("redis-shortcuts", "one hot subject, cached denials and leases", redis::shortcuts),
    ("redis-space", "bytes of a subject on a server", redis::space),
    ("redis-algorithms", "each algorithm beside the usual script", redis::algorithms),
    ("redis-limits", "the cost by the number of limits", redis::limits),
    ("redis-parts", "several parts on a server and on a cluster", redis::parts),
    ("redis-cluster", "a cluster of three primaries beside one server", redis::cluster),
    ("redis-nodes", "several processes, also with cut connections", redis::nodes),
    ("scripts", "the longest scripts, and long logs in memory", redis::scripts),
    ("server", "the decision server beside other services for Envoy", server::run),
    ("overload", "a flood beyond capacity, one address denied", overload::run),
];

const USAGE: &str = "\
usage: cargo run --release -p rl-bench -- NAME... [--short] [--charts] [--json FILE] [--server NAME=URL]
       cargo run -p rl-bench -- pictures

  --short            measures one round of fewer subjects, to try a command
  --charts           also draws the charts into crates/rl-core/docs/charts
  --json FILE        also writes tables and goals to a file
  --server NAME=URL  http also measures this service, such as one with actix-governor

  pictures draws the decisions of each algorithm into crates/rl-core/docs/pictures. A NAME is `all`,
  or the beginning of one or several of these:";

/// The options of a run.
#[derive(Debug, Default)]
struct Options {
    names: Vec<String>,
    is_short: bool,
    draws_charts: bool,
    json: Option<String>,
    servers: Vec<(String, String)>,
}

impl Options {
    fn parse(mut words: impl Iterator<Item = String>) -> std::result::Result<Self, String> {
        let mut options = Self::default();
        while let Some(word) = words.next() {
            let mut value = || words.next().ok_or(format!("{word} needs a value"));
            match word.as_str() {
                "--short" => options.is_short = true,
                "--charts" => options.draws_charts = true,
                "--json" => options.json = Some(value()?),
                "--server" => {
                    let server = value()?;
                    let (name, url) = server.split_once('=').ok_or("--server needs NAME=URL")?;
                    options.servers.push((name.to_owned(), url.to_owned()));
                }
                name => options.names.push(name.to_owned()),
            }
        }
        let is_unknown = |name: &&String| !MEASUREMENTS.iter().any(|one| selects(name, one.0));
        match options.names.iter().find(is_unknown) {
            Some(name) => Err(format!("unknown measurement {name:?}")),
            None if options.names.is_empty() => Err("name a measurement".to_owned()),
            None => Ok(options),
        }
    }

    fn measures(&self, measurement: &str) -> bool {
        self.names.iter().any(|name| selects(name, measurement))
    }
}

fn selects(name: &str, measurement: &str) -> bool {
    name == "all" || measurement.starts_with(name)
}

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let done = match words.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["pictures"] => pictures::run(),
        // `redis-nodes` starts processes with these arguments.
        ["node", url, settings] => redis::node(url, settings),
        // `server` starts processes with these arguments.
        ["serve", settings] => server::serve(settings),
        _ => match Options::parse(words.into_iter()) {
            Ok(options) => measure(options),
            Err(why) => {
                eprintln!("{why}\n\n{USAGE}");
                MEASUREMENTS.iter().for_each(|(name, what, _)| eprintln!("  {name:17}  {what}"));
                return ExitCode::from(2);
            }
        },
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn measure(options: Options) -> Result {
    let mut report = Report::begin(options);
    let measured = MEASUREMENTS.iter().try_for_each(|(name, what, run)| {
        if !report.options.measures(name) {
            return Ok(());
        }
        println!("{name}: {what}\n");
        run(&mut report).map_err(|error| format!("{name}: {error}").into())
    });
    // The results are written even after a failure.
    report.end()?;
    measured
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(words: &str) -> std::result::Result<Options, String> {
        Options::parse(words.split_whitespace().map(str::to_owned))
    }

    #[test]
    fn options_come_in_any_order() {
        let options =
            parse("--charts memory --server peer=http://127.0.0.1:1/ --json run.json").unwrap();
        assert!(options.draws_charts && !options.is_short);
        assert_eq!(options.json.as_deref(), Some("run.json"));
        assert_eq!(options.servers, [("peer".to_owned(), "http://127.0.0.1:1/".to_owned())]);
        let error = |words| parse(words).unwrap_err();
        assert_eq!(error("--json"), "--json needs a value");
        assert_eq!(error("memory twice"), "unknown measurement \"twice\"");
        assert_eq!(error("--short"), "name a measurement");
    }

    #[test]
    fn a_name_selects_all_measurements_that_begin_with_it() {
        let selected = |words| {
            let options = parse(words).unwrap();
            MEASUREMENTS.iter().filter(|(name, ..)| options.measures(name)).count()
        };
        assert_eq!([selected("all"), selected("redis"), selected("redis-s")], [19, 8, 2]);
        assert_eq!([selected("memory-space rules"), selected("scripts")], [2, 1]);
    }
}
