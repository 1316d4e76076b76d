//! Compares each algorithm on a server with the script that is usually written for it. Measures the
//! server's time of a decision. Counts requests beyond the limits.

use std::sync::Arc;

use rl_core::Period;
use rl_core::store::Layout;

use super::candidate::{Candidate, SUBJECTS, store};
use super::load::{ALLOWED, COMMAND, Load, PRESSED, SHOWN, rounds, too_many};
use super::server::Server;
use super::usual::Script;
use crate::Result;
use crate::algorithms::{Row, SIX_KINDS, SIX_WINDOWS};
use crate::report::{Report, Table};

/// The number of rounds. With the round that creates the keys, each subject is visited 12 times.
const ROUNDS: usize = 5;
/// The units of a limit that no measurement uses up.
const OPEN: u64 = 10_000;

/// Creates the candidate of our store for a row.
async fn ours(server: &Server, row: &Row, max: u64, layout: Layout) -> Result<Candidate> {
    let store = store(server).layout(layout).local_denial(false).connect().await?;
    // Under a small limit, permits are held, so that the limit is used up.
    let frees = row.is_held() && max == OPEN;
    let new = if frees { Candidate::ours_with_permits } else { Candidate::ours };
    Ok(new(row.name, store, row.policy(max)?))
}

/// Returns the usual script for a row, if there is one.
fn usual(row: &Row, layout: Layout) -> Result<Option<Script>> {
    let periods = Period::NAMED.map(Period::as_millis);
    Ok(match (row.name, layout) {
        (SIX_WINDOWS, Layout::Readable) => Some(Script::six_keys_timed(OPEN, &periods)),
        (SIX_WINDOWS, _) => Some(Script::six_keys(OPEN, &periods)),
        (name, _) => Script::of_algorithm(name, row.policy(OPEN)?.limits()[0].limit()),
    })
}

/// Measures the server's time of all rows, and of the scripts with which they are compared.
pub(super) async fn server_time(report: &mut Report) -> Result {
    let server = Server::start()?;
    let rows: Vec<Row> = Row::all().into_iter().filter(|row| row.limits.len() <= 6).collect();
    let six = rows.iter().position(|row| row.name == SIX_WINDOWS).ok_or("no row of six")?;
    let readable = (&rows[six], Layout::Readable);
    let rows: Vec<_> = rows.iter().map(|row| (row, Layout::Packed)).chain([readable]).collect();
    // For each row: our store, our store when the limits are used up, and the script.
    let (mut candidates, mut places) = (Vec::new(), Vec::new());
    for (row, layout) in &rows {
        let usual = usual(row, *layout)?;
        places.push((candidates.len(), usual.is_some()));
        for max in [OPEN, 1] {
            candidates.push(Arc::new(ours(&server, row, max, *layout).await?));
        }
        if let Some(script) = usual {
            candidates.push(Arc::new(Candidate::script(&server, script).await?));
        }
    }
    let (load, mut monitors) = (Load::on_all(SHOWN, SUBJECTS), [server.monitor().await?]);
    let race = rounds(&candidates, load, report.rounds(ROUNDS), &mut monitors).await?;
    let title = format!(
        "µs of the server for each decision, by its statistics, {SHOWN} in flight, {SUBJECTS} subjects"
    );
    let columns = ["", "allowed", "denied", "usual script", "ours, of its time", "too many"];
    let mut table = Table::new(&title, columns);
    for ((row, layout), (place, has_script)) in rows.iter().zip(&places) {
        // A clock-aligned window may end in a round, and then more requests are allowed. The median
        // ignores that round.
        let allowed = [0, 1].map(|more| race.median(place + more, ALLOWED));
        assert_eq!(allowed, [1.0, 0.0], "{}", row.name);
        let [open, denied] = [0, 1].map(|more| race.median(place + more, COMMAND));
        let too_many = too_many(ours(&server, row, PRESSED.into(), *layout).await?).await as f64;
        let mut name = row.name.to_owned();
        if *layout == Layout::Readable {
            name += ", readable layout";
        }
        if *has_script {
            let usual = race.median(place + 2, COMMAND);
            let multiple = race.multiple(*place, place + 2, COMMAND);
            let of_script = format!("{name}, {}", candidates[place + 2].name);
            let cells = [open, denied, usual].map(Into::into);
            table.row(&of_script, cells.into_iter().chain([multiple, too_many.into()]));
            if row.name != SIX_WINDOWS {
                report.at_most(format!("server time: {name} beside its script"), 1.0, multiple);
            }
        } else {
            table.row(&name, [open, denied, f64::NAN, f64::NAN, too_many]);
        }
        if row.name == SIX_KINDS {
            let multiple = race.multiple(*place, places[six].0, COMMAND);
            report.at_most(format!("server time: {name} beside {SIX_WINDOWS}"), 2.0, multiple);
        }
    }
    report.table(table);
    Ok(())
}
