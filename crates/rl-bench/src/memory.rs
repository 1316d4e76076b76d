//! Decisions in this process. Our limiter with six periods is compared with other limiters, which
//! have one or six periods.

mod algorithms;
mod block;
mod cases;
mod flood;
mod growth;
mod limiters;
mod long_logs;
mod matrix;
mod other_limiters;
mod parts;
mod primitives;
mod sides;
mod space;

use std::error::Error;

use block::MANY;
use limiters::Keys;
pub(crate) use long_logs::speed as long_logs;

use crate::machine;
use crate::report::Report;

/// The number of steps in the progress bar: the measurements, and the blocks of the flood.
const STEPS: usize = 7 + matrix::STEPS + algorithms::STEPS + growth::STEPS + 100;

/// Runs all measurements in memory, prints them, and adds the goals to the report.
pub(crate) fn run(report: &mut Report) -> Result<(), Box<dyn Error>> {
    let versions =
        ["rl-core", "governor", "actix-extensible-rate-limit", "throttlecrab", "trypema"]
            .into_iter()
            .chain(["limitador", "burster"])
            .map(machine::library)
            .chain([machine::program("rustc")])
            .collect::<Vec<_>>();
    report.begin(
        "rl-core in memory: six periods, second to month, in each decision",
        &versions,
        "in one process without a runtime, in blocks that take turns, in forward and in reverse order; \
         ns for each decision of a thread are medians, by processor time for one thread and by wall \
         time for several; a ratio is the median over rounds with its bootstrap interval of 95 %, and \
         above 1x we are faster; keys are created beforehand for all limiters; too many: requests \
         allowed beyond the limits",
        STEPS,
    );
    let keys = Keys::new(MANY);
    let mut goals = Vec::new();
    if report.wants_all() {
        report.step("primitive operations");
        report.table("memory-floors", primitives::measure(&keys));
    }
    if report.wants(&matrix::GOALS) {
        matrix::measure(&keys, report, &mut goals)?;
    }
    if report.wants_all() {
        report.step("exactness");
        report.table("memory-exactness", matrix::exactness(&keys)?);
    }
    report.step("denials and numbers of limits");
    if report.wants(&["M5"]) {
        cases::denial(&keys, &mut goals)?;
    }
    if report.wants_all() {
        cases::counts(&keys, report)?;
    }
    report.step("requests of several parts");
    if report.wants(&["M13"]) {
        parts::measure(&keys, &mut goals)?;
    }
    report.step("memory of a million subjects");
    if report.wants(&["M6", "M8"]) {
        space::measure(&keys, report, &mut goals)?;
    }
    if report.wants_all() {
        report.table("memory-algorithms-space", space::by_algorithm(&keys)?);
    }
    report.step("logs");
    if report.wants(&["M11"]) {
        cases::logs(&mut goals)?;
    }
    if report.wants(&["E11"]) {
        long_logs::beside_short(report, &mut goals)?;
    }
    if report.wants_all() {
        report.table("memory-long-logs", long_logs()?);
    }
    report.step("instructions");
    if report.wants(&["M7"]) {
        goals.push(cases::instructions());
    }
    if report.wants(&["M10"]) {
        let flood = flood::run(&keys, &mut goals, report)?;
        report.table("memory-flood", flood);
    }
    if report.wants(&algorithms::GOALS) {
        algorithms::speed(&keys, report, &mut goals)?;
    }
    drop(keys);
    if report.wants_all() {
        growth::measure(report)?;
    }
    report.end(goals);
    Ok(())
}
