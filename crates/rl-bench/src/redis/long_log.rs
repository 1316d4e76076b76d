//! The server's cost of a long sliding log, which each decision searches and extends by one entry.

use std::error::Error;
use std::sync::Arc;

use rl_core::{Limit, Policy};

use super::candidate::Candidate;
use super::fixtures::id;
use super::load::{Load, SHOWN, count_allowed, rounds, typical};
use super::server::Server;
use crate::table::Table;

/// The number of entries in each log before the measurement. Logs that grow get 512 more.
const ENTRIES: usize = 10_000;
const LOGS: usize = 100;
const LOAD: Load = Load { in_flight: SHOWN, decisions: 3_200, subjects: LOGS };
const ROUNDS: usize = 7;
/// The limits of the logs, and the units that are used.
const LIMITS: [(&str, &str, f64); 2] =
    [("allowed", "100000/hour:sliding-log", 1.0), ("denied", "10000/hour:sliding-log", 0.0)];

/// Returns a table of the server's processor time in µs for each decision.
pub(super) async fn speed() -> Result<Table, Box<dyn Error>> {
    let server = Server::start()?;
    let mut candidates = Vec::new();
    for (database, (name, limit, _)) in LIMITS.into_iter().enumerate() {
        candidates.push(filled(&server, database, name, limit.parse()?).await?);
    }
    let mut monitor = server.monitor().await?;
    let rounds = rounds(&candidates, LOAD, ROUNDS, &mut monitor).await?;

    let title =
        format!("server CPU per decision of a log of 10 000 entries: µs, {SHOWN} in flight");
    let mut table = Table::new(&title, ["", "command", "all"]);
    for (place, (name, _, passes)) in LIMITS.into_iter().enumerate() {
        let passed = typical(&rounds, place, |block| block.admitted);
        assert_eq!(passed, passes, "{name}: the limits are set so");
        let micros =
            [typical(&rounds, place, |b| b.command), typical(&rounds, place, |b| b.server)];
        let cells = micros.map(|micros| format!("{micros:.2}"));
        table.row([name.to_owned()].into_iter().chain(cells));
    }
    Ok(table)
}

/// Creates a candidate with long logs. One log is filled by requests, and the others are copies of
/// it.
async fn filled(
    server: &Server,
    database: usize,
    name: &'static str,
    limit: Limit,
) -> Result<Arc<Candidate>, Box<dyn Error>> {
    let policy = Policy::new([limit])?;
    let one = Arc::new(Candidate::without_denial_cache(server, database, name, policy).await?);
    let fill = Load { in_flight: 100, decisions: ENTRIES, subjects: 1 };
    assert_eq!(count_allowed(&one, fill).await, ENTRIES, "{name}: there is room for all");
    server.copy(database, &id(0), (1..LOGS).map(id)).await?;
    Ok(one)
}
