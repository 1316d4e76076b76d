//! Compares each algorithm on a server with the script that is usually written for it. Measures the
//! server's time of a decision and the gain of batches. Counts requests beyond the limits.

use std::sync::Arc;

use rl_core::Period;
use rl_core::store::Layout;

use super::candidate::{Candidate, SUBJECTS, store};
use super::load::{ALLOWED, COMMAND, Load, PRESSED, SHOWN, rounds, too_many};
use super::server::Server;
use super::usual::{SIX_KEYS, SIX_KEYS_TIMED, Usual};
use crate::Result;
use crate::algorithms::{Row, SIX_KINDS, SIX_WINDOWS};
use crate::report::{Bound, Report, Table};

/// The number of rounds. With the round that creates the keys, each subject is visited 12 times.
const ROUNDS: usize = 5;
/// The units of a limit that no measurement uses up.
const OPEN: u64 = 10_000;
/// Creates the candidate of our store for a row.
async fn ours(
    server: &Server,
    database: usize,
    row: &Row,
    max: u64,
    layout: Layout,
) -> Result<Candidate> {
    let store = store(server, database).layout(layout).local_denial(false).connect().await?;
    let policy = row.policy(max)?;
    // Under a small limit, permits are held, so that the limit is used up.
    let frees = row.is_held() && max == OPEN;
    let new = if frees { Candidate::ours_with_permits } else { Candidate::ours };
    Ok(new(row.name, store, policy))
}

/// Creates the candidate of the usual script for a row, if there is one.
async fn usual(
    server: &Server,
    database: usize,
    row: &Row,
    layout: Layout,
) -> Result<Option<Candidate>> {
    let periods = Period::NAMED.map(Period::as_millis);
    let script = if layout == Layout::Readable { SIX_KEYS_TIMED } else { SIX_KEYS };
    Ok(match Usual::of(row.name) {
        Some(script) => Some(
            Candidate::usual(server, database, script, row.policy(OPEN)?.limits()[0].limit())
                .await?,
        ),
        None if row.name == SIX_WINDOWS => {
            Some(Candidate::key_per_limit(server, database, script, OPEN, &periods).await?)
        }
        None => None,
    })
}

/// Measures the server's time of all rows, and of the scripts with which they are compared.
pub(super) async fn server_time(report: &mut Report) -> Result {
    let server = Server::start()?;
    let mut rows: Vec<(Row, Layout)> =
        Row::all().into_iter().map(|row| (row, Layout::Packed)).collect();
    let readable = Row::all().into_iter().find(|row| row.name == SIX_WINDOWS);
    rows.extend(readable.map(|row| (row, Layout::Readable)));
    // For each row: our store, our store when the limits are used up, and the script.
    let (mut candidates, mut places) = (Vec::new(), Vec::new());
    for (row, layout) in &rows {
        let place = candidates.len();
        candidates.push(Arc::new(ours(&server, place, row, OPEN, *layout).await?));
        candidates.push(Arc::new(ours(&server, place + 1, row, 1, *layout).await?));
        let usual = usual(&server, place + 2, row, *layout).await?;
        places.push((place, usual.is_some()));
        candidates.extend(usual.map(Arc::new));
    }
    let load = Load::on_all(SHOWN, SUBJECTS);
    let race =
        rounds(&candidates, load, report.rounds(ROUNDS), &mut [server.monitor().await?]).await?;
    let columns =
        ["", "allowed", "denied", "usual script", "ours, of its time", "too many", "script"];
    let title = format!(
        "µs of the server for each decision, by its statistics, {SHOWN} in flight, {SUBJECTS} subjects"
    );
    let mut table = Table::new(&title, columns);
    let six = rows.iter().position(|(row, _)| row.name == SIX_WINDOWS).ok_or("no row of six")?;
    for ((row, layout), (place, has_script)) in rows.iter().zip(&places) {
        // A clock-aligned window may end in a round, and then more requests are allowed. The median
        // ignores that round.
        assert_eq!(
            [0, 1].map(|more| race.median(place + more, ALLOWED)),
            [1.0, 0.0],
            "{}",
            row.name
        );
        let is_readable = *layout == Layout::Readable;
        let name = if is_readable {
            format!("{}, readable layout", row.name)
        } else {
            row.name.to_owned()
        };
        // The databases with smaller numbers belong to the candidates of the race.
        let pressed = ours(&server, candidates.len() + place, row, PRESSED.into(), *layout).await?;
        let multiple = has_script.then(|| race.multiple(*place, place + 2, COMMAND));
        let usual = if *has_script { race.median(place + 2, COMMAND) } else { f64::NAN };
        table.row([
            name.as_str().into(),
            race.median(*place, COMMAND).into(),
            race.median(place + 1, COMMAND).into(),
            usual.into(),
            multiple.map_or("".into(), Into::into),
            too_many(pressed).await.into(),
            if *has_script { candidates[place + 2].name.as_str().into() } else { "".into() },
        ]);
        if let (Some(multiple), false) = (multiple, row.name == SIX_WINDOWS) {
            report.goal(
                &format!("{name}: server time beside its usual script"),
                Bound::AtMost(1.0),
                "times",
                multiple,
            );
        }
        if row.name == SIX_KINDS {
            let multiple = race.multiple(*place, places[six].0, COMMAND);
            report.goal(
                &format!("{name}: server time beside {SIX_WINDOWS}"),
                Bound::AtMost(2.0),
                "times",
                multiple,
            );
        }
    }
    report.table(table);
    Ok(())
}
