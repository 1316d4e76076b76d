//! What a long sliding log costs a server: a decision looks for entries in it, and writes one.

use std::error::Error;
use std::sync::Arc;

use rl_core::{Limit, Policy};

use super::contender::{Contender, id};
use super::server::Server;
use super::{Load, SHOWN, admitted, rounds, typical};
use crate::table::Table;

/// Entries of each log before it is measured; 512 more come to those that grow.
const ENTRIES: usize = 10_000;
const LOGS: usize = 100;
const LOAD: Load = Load { in_flight: SHOWN, decisions: 3_200, subjects: LOGS };
const ROUNDS: usize = 7;
/// What the logs grow under, and what they have used up.
const LIMITS: [(&str, &str, f64); 2] =
    [("allowed", "100000/hour:sliding-log", 1.0), ("denied", "10000/hour:sliding-log", 0.0)];

/// µs of the server for each decision.
pub(super) async fn speed() -> Result<Table, Box<dyn Error>> {
    let server = Server::start()?;
    let mut contenders = Vec::new();
    for (database, (name, limit, _)) in LIMITS.into_iter().enumerate() {
        contenders.push(filled(&server, database, name, limit.parse()?).await?);
    }
    let mut bystander = server.bystander().await?;
    let rounds = rounds(&contenders, LOAD, ROUNDS, &mut bystander).await?;

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

/// Somebody whose logs are long: one that was filled by requests, and copies of it.
async fn filled(
    server: &Server,
    database: usize,
    name: &'static str,
    limit: Limit,
) -> Result<Arc<Contender>, Box<dyn Error>> {
    let policy = Policy::new([limit])?;
    let one = Arc::new(Contender::asking(server, database, name, policy).await?);
    let fill = Load { in_flight: 100, decisions: ENTRIES, subjects: 1 };
    assert_eq!(admitted(&one, fill).await, ENTRIES, "{name}: there is room for all");
    server.copy(database, &id(0), (1..LOGS).map(id)).await?;
    Ok(one)
}
