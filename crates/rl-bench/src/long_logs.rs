//! The full logs and full semaphores on which both stores are measured. Each kind has a short and a
//! long form.

use rl_core::store::RefundOf;

use crate::goals::{Goal, Unit};
use crate::measure::{Estimate, median};
use crate::table::{Cell, Table};

/// The number of entries of a short log.
pub(crate) const SHORT: usize = 10;

/// A limit that keeps an entry for each request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LogKind {
    name: &'static str,
    /// The text form of the limit without its number of units.
    rest: &'static str,
    /// The number of entries of a long log: the maximum that a limit accepts.
    pub(crate) long: usize,
    pub(crate) refund_of: RefundOf,
    operations: [&'static str; OPERATIONS],
}

/// The number of measured operations. Their order is: refund entries of a full log, fill the log
/// again, deny further requests, and read the state.
pub(crate) const OPERATIONS: usize = 4;

pub(crate) const KINDS: [LogKind; 2] = [
    LogKind {
        name: "log",
        rest: "/hour:sliding-log",
        long: 100_000,
        refund_of: RefundOf::All,
        operations: ["refund", "request", "denied request", "peek"],
    },
    LogKind {
        name: "semaphore",
        rest: ":concurrency:lease=1h",
        long: 10_000,
        refund_of: RefundOf::Permits,
        operations: ["release", "acquire", "denied request", "peek"],
    },
];

impl LogKind {
    /// Returns the text form of a limit of `entries` units.
    pub(crate) fn limit(self, entries: usize) -> String {
        format!("{entries}{}", self.rest)
    }
}

/// For each operation, its times in all rounds: first on short logs, then on long ones.
pub(crate) type Times = [(Vec<f64>, Vec<f64>); OPERATIONS];

/// Adds a goal and a row of the table for each operation.
pub(crate) fn compare(
    kind: LogKind,
    store: &str,
    times: Times,
    table: &mut Table,
    goals: &mut Vec<Goal>,
) {
    for (operation, (short, long)) in kind.operations.into_iter().zip(times) {
        let what = format!("{store}: {operation}, {} of {} beside {SHORT}", kind.name, kind.long);
        let name = format!("{}: {operation}", kind.name);
        let ratio = show(&name, &short, &long, table);
        goals.push(Goal::measured("E11", &what, (1.5, 1.2, Unit::AtMost("x")), ratio));
    }
}

/// Adds a row for an operation to the table. Returns the factor by which the operation takes longer
/// on long logs.
pub(crate) fn show(name: &str, short: &[f64], long: &[f64], table: &mut Table) -> Estimate {
    let ratios: Vec<f64> = long.iter().zip(short).map(|(long, short)| long / short).collect();
    let ratio = Estimate::of(&ratios);
    let medians = [short, long].map(|times| Cell::from(format!("{:.2}", median(times))));
    table.row([Cell::from(name)].into_iter().chain(medians).chain([ratio.into()]));
    ratio
}
