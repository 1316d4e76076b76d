//! Runs scenario files on every store and layout that can run them: `scenarios [--cluster] FILE…`.
//!
//! With `--cluster`, a cluster of three primaries is one of the stores.
//!
//! Prints a line for each scenario and store, and the number of each result. Exits with status 1 if
//! a scenario failed, and with status 2 if no scenario could be run.

#![expect(clippy::print_stdout, reason = "prints its result")]

use std::path::Path;
use std::process::ExitCode;

use rl_tests::scenario::{Scenario, Stores, Verdict, read};

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    match scenarios().await {
        Ok(0) => ExitCode::SUCCESS,
        Ok(_) => ExitCode::from(1),
        Err(why) => {
            eprintln!("{why}");
            ExitCode::from(2)
        }
    }
}

/// Runs the files from the command line. Returns how many scenarios failed.
async fn scenarios() -> Result<usize, Box<dyn std::error::Error>> {
    let mut files: Vec<_> = std::env::args_os().skip(1).collect();
    let has_cluster = files.first().is_some_and(|first| first == "--cluster");
    if has_cluster {
        files.remove(0);
    }
    if files.is_empty() {
        return Err("usage: scenarios [--cluster] FILE…".into());
    }
    // All files are read first, so that a mistake in the last file is reported before any scenario
    // runs.
    let mut scenarios: Vec<Scenario> = Vec::new();
    for file in &files {
        scenarios.extend(read(Path::new(file))?);
    }

    let mut stores = Stores::start().await?;
    if has_cluster {
        stores = stores.with_cluster().await?;
    }
    let (mut passed, mut failed, mut cannot) = (0, 0, 0);
    for scenario in &scenarios {
        for (store, verdict) in stores.run(scenario).await {
            println!("{} {store} {verdict}", scenario.id);
            match verdict {
                Verdict::Passed => passed += 1,
                Verdict::Failed { .. } => failed += 1,
                Verdict::Cannot(_) => cannot += 1,
            }
        }
    }
    println!("{passed} passed, {failed} failed, {cannot} cannot");
    Ok(failed)
}
