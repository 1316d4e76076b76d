//! The memory that subjects take on a server.

use std::error::Error;
use std::sync::Arc;

use rl_core::store::Layout;
use rl_core::{Limit, Policy};

use super::candidate::Candidate;
use super::fixtures::id;
use super::load::{ENDLESS, Load, count_allowed};
use super::server::Server;
use crate::algorithms::Row;
use crate::goals::{Goal, Unit};
use crate::report::Report;
use crate::table::Table;

/// A number of requests that uses up most limits.
const FULL: usize = 10_000;

/// Measures the server's bytes for each subject, including the table of expiries.
pub(super) async fn measure(report: &mut Report) -> Result<Vec<Goal>, Box<dyn Error>> {
    const SUBJECTS: usize = 8_192;
    let load = Load { in_flight: 64, decisions: SUBJECTS, subjects: SUBJECTS };
    let server = Server::start()?;
    let mut monitor = server.monitor().await?;
    let of = async |limits: [&str; 6], database| {
        let limits = limits.map(|limit| limit.parse::<Limit>());
        let limits = limits.into_iter().collect::<Result<Vec<_>, _>>()?;
        Candidate::policy(&server, database, Layout::Packed, "", Policy::new(limits)?).await
    };
    let candidates = [
        ("six keys", Candidate::six_keys(&server, 1, ENDLESS).await?),
        ("ours, fixed windows", of(FIXED, 2).await?),
        ("ours, sliding window counters", of(COUNTERS, 3).await?),
        ("ours, GCRA", of(GCRA, 4).await?),
    ];
    let mut table = Table::new("memory of six limits", ["", "bytes for each subject"]);
    let mut bytes = Vec::new();
    // The first requests make the server allocate memory for its own purposes, so they are not
    // measured.
    count_allowed(&Arc::new(of(FIXED, 5).await?), load).await;
    for (name, candidate) in candidates {
        let before = monitor.memory().await?;
        count_allowed(&Arc::new(candidate), load).await;
        let each = (monitor.memory().await? - before) / SUBJECTS as f64;
        table.row([name.to_owned(), format!("{each:.0}")]);
        bytes.push(each);
    }
    report.table("redis-space", table);
    let times = |floor, moon| (floor, moon, Unit::Times);
    Ok(vec![
        Goal::counted(
            "R11",
            "bytes of six keys to ours, fixed",
            times(3.5, 4.3),
            bytes[0] / bytes[1],
        ),
        Goal::counted(
            "R11",
            "twelve keys to ours, counters",
            times(6.0, 8.0),
            2.0 * bytes[0] / bytes[2],
        ),
        log_space(&server).await?,
    ])
}

const FIXED: [&str; 6] = ["9/minute", "9/hour", "9/day", "9/week", "9/month", "9/second"];
const COUNTERS: [&str; 6] = [
    "9/minute:sliding-window-counter",
    "9/hour:sliding-window-counter",
    "9/day:sliding-window-counter",
    "9/week:sliding-window-counter",
    "9/month:sliding-window-counter",
    "9/second:sliding-window-counter",
];
const GCRA: [&str; 6] =
    ["9/minute:gcra", "9/hour:gcra", "9/day:gcra", "9/week:gcra", "9/month:gcra", "9/second:gcra"];

/// Compares the memory of a log of 10 000 requests under six limits with that of six sorted sets.
async fn log_space(server: &Server) -> Result<Goal, Box<dyn Error>> {
    let limits = ["minute", "hour", "day", "week", "month", "second"]
        .map(|period| format!("{FULL}/{period}:sliding-log").parse::<Limit>());
    let limits = limits.into_iter().collect::<Result<Vec<_>, _>>()?;
    let policy = Policy::new(limits)?;
    let one = Candidate::policy(server, 8, Layout::Packed, "", policy).await?;
    count_allowed(&Arc::new(one), Load { in_flight: 50, decisions: FULL, subjects: 1 }).await;
    let ours = server.bytes(8, &id(0)).await? as f64;
    sorted_set(server, 9, FULL).await?;
    let theirs = 6.0 * server.bytes(9, &id(0)).await? as f64;
    let what = "bytes of six sorted sets to our logs";
    Ok(Goal::counted("R11", what, (10.0, 25.0, Unit::Times), theirs / ours))
}

/// Returns a table of the server's bytes for each subject.
pub(super) async fn by_algorithm() -> Result<Table, Box<dyn Error>> {
    let server = Server::start()?;
    let mut table = Table::new(
        "memory per subject by algorithm: bytes (MEMORY USAGE of all keys of a subject)",
        ["", "after 1 request", "after 10 000 requests"],
    );
    let rows = Row::all();
    for (database, row) in rows.iter().enumerate() {
        let policy = row.roomy()?;
        let one = Candidate::policy(&server, database, Layout::Packed, row.name, policy).await?;
        let one = Arc::new(one);
        let mut cells = vec![row.name.to_owned()];
        // The first request is sent alone. The others are sent with 99 in flight.
        for (in_flight, decisions) in [(1, 1), (99, FULL - 1)] {
            count_allowed(&one, Load { in_flight, decisions, subjects: 1 }).await;
            cells.push(server.bytes(database, &id(0)).await?.to_string());
        }
        table.row(cells);
    }
    let mut cells = vec!["a sorted set, a member for each request".to_owned()];
    for requests in [1, FULL] {
        sorted_set(&server, rows.len(), requests).await?;
        cells.push(server.bytes(rows.len(), &id(0)).await?.to_string());
    }
    table.row(cells);
    Ok(table)
}

/// Writes the usual form of an exact log: a sorted set with a member for each request, ordered by
/// time in µs.
async fn sorted_set(
    server: &Server,
    database: usize,
    requests: usize,
) -> Result<(), Box<dyn Error>> {
    const START: u64 = 1_769_886_000_000_000;
    let mut connection = server.connect(database).await?;
    let mut add = redis::cmd("ZADD");
    add.arg(format!("rl:{{{}}}", id(0)));
    for time in (START..).step_by(1_000).take(requests) {
        add.arg(time).arg(time);
    }
    Ok(add.query_async(&mut connection).await?)
}
