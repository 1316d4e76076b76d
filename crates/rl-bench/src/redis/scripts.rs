//! Measures the longest time that one script blocks a Redis server, under the heaviest policies
//! that the builder accepts.
//!
//! The measurement sets the clock, so that half of a log expires between two calls. `SLOWLOG`
//! reports the duration of each script in whole µs of wall time, which includes stalls of the
//! machine.
//!
//! A control script with constant work therefore runs after each sample. It reads no key, so its
//! slowest calls show the effect of stalls alone.

mod bench;
mod cases;

use std::error::Error;

use bench::{MANY_SAMPLES, SAMPLES};

use crate::machine;
use crate::table::Table;

/// Measures all cases and prints them.
pub(crate) fn run() -> Result<(), Box<dyn Error>> {
    println!("the longest scripts under the heaviest policies: µs of the server for each call\n");
    println!("machine   {}", machine::cores());
    println!("versions  {}, {}", machine::program("redis-server"), machine::profile());
    println!(
        "measured  SLOWLOG of EVALSHA, {MANY_SAMPLES} samples each, {SAMPLES} of copies, no first call of a script"
    );
    println!("control   a script of constant work without keys, run after each sample\n");
    println!("{}", crate::memory::long_logs()?);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let columns = [
            "operation",
            "fastest",
            "median",
            "p99",
            "worst",
            "control: median",
            "p99",
            "worst",
            "of 1 ms and more",
        ];
        let mut table = Table::new("server time of one script: µs", columns);
        let measured = cases::all(&mut table).await;
        // The rows that were measured before a failure are printed too.
        println!("{table}");
        measured
    })
}
