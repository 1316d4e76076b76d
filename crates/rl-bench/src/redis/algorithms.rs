//! The cost of each algorithm on a server: the processor time of a decision, and the memory of a
//! subject.

use std::error::Error;
use std::sync::Arc;

use rl_core::store::Layout;

use super::candidate::Candidate;
use super::fixtures::{SUBJECTS, id};
use super::load::{Block, Load, SHOWN, count_allowed, rounds, typical};
use super::server::Server;
use crate::algorithms::Row;
use crate::table::Table;

/// The number of rounds. Including the round that creates the keys, each subject is visited 16
/// times.
const ROUNDS: usize = 7;
/// The number of requests that uses up most limits.
const FULL: usize = 10_000;

/// Returns a table of the server's processor time in µs for each decision.
pub(super) async fn speed() -> Result<Table, Box<dyn Error>> {
    let server = Server::start()?;
    let mut candidates = Vec::new();
    for row in Row::all() {
        for (policy, frees) in [(row.roomy()?, row.is_held), (row.tight()?, false)] {
            let database = candidates.len();
            let one = Candidate::without_denial_cache(&server, database, row.name, policy).await?;
            candidates.push(Arc::new(if frees { one.releasing_permits() } else { one }));
        }
    }
    let mut monitor = server.monitor().await?;
    let rounds = rounds(&candidates, Load::on_all(SHOWN, SUBJECTS), ROUNDS, &mut monitor).await?;

    let title = format!("server CPU per decision by algorithm: µs, {SHOWN} in flight");
    let columns = ["allowed: command", "all", "denied: command", "all"];
    let mut table = Table::new(&title, [""].into_iter().chain(columns));
    for (place, candidate) in candidates.iter().enumerate().step_by(2) {
        let mut cells = vec![candidate.name.to_owned()];
        for (place, passes) in [(place, 1.0), (place + 1, 0.0)] {
            // The median is used, because a window that is aligned to the clock may have ended in
            // the meantime.
            let passed = typical(&rounds, place, |block| block.admitted);
            assert_eq!(passed, passes, "{}: the limits are set so", candidate.name);
            let micros = |of: fn(&Block) -> f64| format!("{:.2}", typical(&rounds, place, of));
            cells.extend([micros(|block| block.command), micros(|block| block.server)]);
        }
        table.row(cells);
    }
    Ok(table)
}

/// Returns a table of the server's bytes for each subject.
pub(super) async fn space() -> Result<Table, Box<dyn Error>> {
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
        // The first two requests are sent one after the other. The others follow with 99 in flight.
        for (in_flight, decisions) in [(1, 1), (99, FULL - 1)] {
            count_allowed(&one, Load { in_flight, decisions, subjects: 1 }).await;
            cells.push(server.bytes(database, &id(0)).await?.to_string());
        }
        table.row(cells);
    }
    let mut cells = vec!["a sorted set, a member for each request".to_owned()];
    for requests in [1, FULL] {
        log(&server, rows.len(), requests).await?;
        cells.push(server.bytes(rows.len(), &id(0)).await?.to_string());
    }
    table.row(cells);
    Ok(table)
}

/// Writes the usual form of an exact log: a sorted set with a member for each request, ordered by
/// time in µs.
pub(super) async fn log(
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
