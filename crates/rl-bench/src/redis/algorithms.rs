//! Compares each algorithm on a server with the script that is usually written for it. Measures the
//! processor time of a decision and the gain from coalescing. Counts requests beyond the limits.

use std::error::Error;
use std::sync::Arc;

use rl_core::RedisStore;
use rl_core::store::Layout;

use super::candidate::{Candidate, patient};
use super::dedicated::Dedicated;
use super::fixtures::SUBJECTS;
use super::load::{Block, Load, PRESSED, Round, SHOWN, rounds, too_many, typical};
use super::server::Server;
use crate::algorithms::{ONE_WINDOW, Row, SIX_KINDS, SIX_WINDOWS};
use crate::charts::{Bar, Bars, Chart, Plot};
use crate::goals::{Goal, Unit};
use crate::measure::Estimate;
use crate::report::Report;
use crate::table::{Cell, Table};

/// The goals about the server's time.
pub(super) const GOALS: [&str; 3] = ["E6", "E7", "E8"];

/// The number of rounds. With the round that creates the keys, each subject is visited 12 times.
const ROUNDS: usize = 5;
/// The load and the number of rounds in the comparison of coalescing with separate calls.
const COALESCED: Load = Load::on_all(256, 6_400);
const COALESCED_ROUNDS: usize = 5;
/// The gain of one and of six fixed windows when the goal was set: `rl-bench redis --goals --only
/// E9` of commit ce8cff4f, on two quiet cores (Intel Xeon, virtual). No other algorithm had a gain
/// then. Fixed windows have become faster in shared calls since, so they are measured again in the
/// table.
const GAIN_OF_WINDOWS: [f64; 2] = [2.24, 2.00];
/// The row of six windows in the readable layout.
const READABLE: &str = "six fixed windows, readable";
/// The units of a limit that no measurement uses up.
const OPEN: u64 = 10_000;

/// A row with its layout.
struct Measured {
    name: &'static str,
    row: Row,
    layout: Layout,
}

/// A way to decide under the limits of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ServerSide {
    Ours,
    /// Our store after the limits are used up.
    Denied,
    /// The script for the algorithm of the row. For six windows, the script of six keys.
    Script,
    /// The script of six keys, in the form that also returns the time. It is compared with the
    /// readable layout only.
    TimedScript,
}

impl ServerSide {
    const ALL: [Self; 4] = [Self::Ours, Self::Denied, Self::Script, Self::TimedScript];

    const fn is_script(self) -> bool {
        matches!(self, Self::Script | Self::TimedScript)
    }
}

impl Measured {
    fn all() -> Vec<Self> {
        let row = |row: Row| Self { name: row.name, row, layout: Layout::Packed };
        let mut all: Vec<Self> = Row::all().into_iter().map(row).collect();
        let readable = Row::all().into_iter().filter(|row| row.name == SIX_WINDOWS);
        all.extend(readable.map(|row| Self { name: READABLE, row, layout: Layout::Readable }));
        all
    }

    /// Creates the candidate for `side`, with limits of `max`. Returns `None` if the row is not
    /// compared with this side.
    async fn candidate(
        &self,
        server: &Server,
        database: usize,
        side: ServerSide,
        max: u64,
    ) -> Result<Option<Candidate>, Box<dyn Error>> {
        let policy = self.row.of(max)?;
        Ok(match (side, Dedicated::of(self.row.name)) {
            (ServerSide::Ours | ServerSide::Denied, _) => {
                let store = patient(RedisStore::builder(&server.url(database)).layout(self.layout));
                let store = store.local_denial(false).connect().await?;
                Some(Candidate::of_store(store, self.name, policy))
            }
            (ServerSide::Script, Some(script)) => {
                let limit = policy.limits()[0].limit();
                Some(Candidate::dedicated(server, database, script, limit).await?)
            }
            (ServerSide::Script, None) if self.row.name == SIX_WINDOWS => {
                Some(Candidate::six_keys(server, database, u32::try_from(max)?).await?)
            }
            (ServerSide::TimedScript, _) if self.name == READABLE => {
                Some(Candidate::six_keys_timed(server, database, u32::try_from(max)?).await?)
            }
            (ServerSide::Script | ServerSide::TimedScript, _) => None,
        })
    }
}

/// A comparison: the candidates of all rows, each with the name of its row and its `ServerSide`,
/// and the rounds that were measured.
struct ServerRace {
    entered: Vec<(&'static str, ServerSide)>,
    candidates: Vec<Arc<Candidate>>,
    rounds: Vec<Round>,
}

impl ServerRace {
    /// Measures those candidates of all rows for which `wanted` returns true.
    async fn run(
        server: &Server,
        all: &[Measured],
        wanted: impl Fn(&Measured, ServerSide) -> bool,
    ) -> Result<Self, Box<dyn Error>> {
        let (mut entered, mut candidates) = (Vec::new(), Vec::new());
        for measured in all {
            for side in ServerSide::ALL {
                if !wanted(measured, side) {
                    continue;
                }
                let max = if side == ServerSide::Denied { 1 } else { OPEN };
                let database = candidates.len();
                if let Some(one) = measured.candidate(server, database, side, max).await? {
                    let frees = measured.row.is_held && side != ServerSide::Denied;
                    candidates.push(Arc::new(if frees { one.releasing_permits() } else { one }));
                    entered.push((measured.name, side));
                }
            }
        }
        let load = Load::on_all(SHOWN, SUBJECTS);
        let rounds = rounds(&candidates, load, ROUNDS, &mut server.monitor().await?).await?;
        Ok(Self { entered, candidates, rounds })
    }

    fn place(&self, name: &str, side: ServerSide) -> Option<usize> {
        self.entered.iter().position(|entered| *entered == (name, side))
    }

    fn typical(&self, name: &str, side: ServerSide, of: fn(&Block) -> f64) -> Option<f64> {
        Some(typical(&self.rounds, self.place(name, side)?, of))
    }

    /// Returns the server time of our store on the row `name`, as a multiple of the server time of
    /// `side` on the row `beside`.
    fn multiple(&self, name: &str, beside: &str, side: ServerSide) -> Option<Estimate> {
        let (ours, theirs) = (self.place(name, ServerSide::Ours)?, self.place(beside, side)?);
        let sum = |blocks: &[Block; 2]| blocks[0].command + blocks[1].command;
        let ratios = self.rounds.iter().map(|round| sum(&round[ours]) / sum(&round[theirs]));
        Some(Estimate::of(&ratios.collect::<Vec<_>>()))
    }
}

/// Measures the server's time of all rows, and of the scripts with which they are compared.
pub(super) async fn speed(
    report: &mut Report,
    goals: &mut Vec<Goal>,
) -> Result<(), Box<dyn Error>> {
    let (server, all) = (Server::start()?, Measured::all());
    let is_wanted = |measured: &Measured, side| match (side, measured.name) {
        (ServerSide::Denied, _) => !report.goals_only,
        (_, SIX_KINDS | SIX_WINDOWS) if side == ServerSide::Ours => report.wants(&["E7"]),
        (_, READABLE) => report.wants(&["E8"]),
        (_, SIX_KINDS | SIX_WINDOWS) => !report.goals_only,
        _ => report.wants(&["E6"]),
    };
    let race = ServerRace::run(&server, &all, is_wanted).await?;
    for (place, (name, side)) in race.entered.iter().enumerate() {
        // A clock-aligned window may have ended in one of the rounds, and then more requests were
        // allowed. The median ignores that round.
        let passed = typical(&race.rounds, place, |block| block.admitted);
        let expected = if *side == ServerSide::Denied { 0.0 } else { 1.0 };
        assert_eq!(passed, expected, "{name}: the limits are set so");
    }
    let title = format!(
        "by algorithm: {SHOWN} in flight, {SUBJECTS} subjects; server time in µs; beside script: \
         the multiple of the script's time in its command; too many: beyond {PRESSED} for each of \
         100 subjects, asked for 100 times each"
    );
    let head = ["", "thousand/s", "command", "all", "denied", "beside script", "too many"];
    let (mut table, mut bars) = (Table::new(&title, head), Vec::new());
    for measured in &all {
        for side in [ServerSide::Ours, ServerSide::Script, ServerSide::TimedScript] {
            let Some(place) = race.place(measured.name, side) else { continue };
            let name = match side.is_script() {
                true => format!("{}: {}", measured.name, race.candidates[place].name),
                false => measured.name.to_owned(),
            };
            let show = |value: Option<f64>| value.map_or("".into(), |v| format!("{v:.2}").into());
            let ours = race.multiple(measured.name, measured.name, ServerSide::Script);
            let beside = ours.filter(|_| side == ServerSide::Ours).map_or("".into(), Cell::from);
            let denied = race.typical(measured.name, ServerSide::Denied, |b| b.command);
            // The databases with smaller numbers belong to the candidates of the race.
            let database = race.candidates.len() + place;
            let pressed = measured.candidate(&server, database, side, PRESSED.into()).await?;
            let (_, beyond) = too_many(pressed.ok_or("a side without a candidate")?).await;
            let command = race.typical(measured.name, side, |b| b.command);
            table.row::<Cell>([
                name.into(),
                show(race.typical(measured.name, side, |b| 1e-3 / b.seconds)),
                show(command),
                show(race.typical(measured.name, side, |b| b.server)),
                show(denied.filter(|_| side == ServerSide::Ours)),
                beside,
                beyond.to_string().into(),
            ]);
            let value = command.unwrap_or(f64::NAN);
            // Our bar has the name of the algorithm. The bar of a script comes next, with the name
            // of the script.
            let name = race.candidates[place].name.to_owned();
            bars.push(Bar { name, value, is_ours: side == ServerSide::Ours });
        }
    }
    report.table("redis-algorithms", table);
    if !report.goals_only {
        report.chart(chart(bars));
    }
    for measured in &all {
        goals.extend(goal(&race, measured, ServerSide::Script));
        goals.extend(goal(&race, measured, ServerSide::TimedScript));
    }
    Ok(())
}

/// Returns the goal that compares a row with a script.
fn goal(race: &ServerRace, measured: &Measured, script: ServerSide) -> Option<Goal> {
    let name = measured.name;
    let (goal, beside, side, floor, moon) = match (name, script) {
        (SIX_WINDOWS, _) => return None,
        (READABLE, script) => ("E8", READABLE, script, 1.0, 0.7),
        (_, ServerSide::TimedScript) => return None,
        (SIX_KINDS, _) => ("E7", SIX_WINDOWS, ServerSide::Ours, 2.0, 1.5),
        _ => ("E6", name, script, 1.0, 0.5),
    };
    let multiple = race.multiple(name, beside, side)?;
    let script = race.candidates[race.place(beside, side)?].name;
    let beside = if side.is_script() { script } else { beside };
    let what = format!("{name}: server time beside {beside}");
    Some(Goal::measured(goal, &what, (floor, moon, Unit::AtMost("x")), multiple))
}

fn chart(bars: Vec<Bar>) -> Chart {
    Chart {
        name: "algorithms-redis".to_owned(),
        title: "A decision on Redis, by algorithm".to_owned(),
        note: format!(
            "{SHOWN} in flight, all requests pass; grey: the script that is usually written for it."
        ),
        plot: Plot::Bars(Bars { unit: "µs of the server for each decision".to_owned(), bars }),
    }
}

/// Compares the rates with and without coalescing. The goal compares the gain from coalescing with
/// [`GAIN_OF_WINDOWS`].
pub(super) async fn coalescing(
    report: &mut Report,
    goals: &mut Vec<Goal>,
) -> Result<(), Box<dyn Error>> {
    let (server, rows) = (Server::start()?, Row::all());
    let mut candidates = Vec::new();
    for row in &rows {
        for coalesces in [true, false] {
            let store = patient(RedisStore::builder(&server.url(candidates.len())));
            let store = store.coalesce(coalesces).connect().await?;
            let one = Candidate::of_store(store, row.name, row.roomy()?);
            candidates.push(Arc::new(if row.is_held { one.releasing_permits() } else { one }));
        }
    }
    let mut monitor = server.monitor().await?;
    let rounds = rounds(&candidates, COALESCED, COALESCED_ROUNDS, &mut monitor).await?;
    let gains = |place: usize| -> Vec<f64> {
        let sum = |blocks: &[Block; 2]| blocks[0].seconds + blocks[1].seconds;
        rounds.iter().map(|round| sum(&round[2 * place + 1]) / sum(&round[2 * place])).collect()
    };
    let title = format!(
        "coalescing of {SUBJECTS} subjects: {} in flight; server: µs of its processor for a \
         decision; largest: the gain if only the server took time",
        COALESCED.in_flight
    );
    let head = [
        "",
        "thousand/s",
        "alone",
        "gain",
        "gain / gain of windows",
        "server",
        "alone",
        "largest",
        "largest / that of windows",
    ];
    let server = |place| typical(&rounds, place, |block| block.server);
    let largest = |place| server(2 * place + 1) / server(2 * place);
    let mut table = Table::new(&title, head);
    for (place, row) in rows.iter().enumerate() {
        let windows = rows.iter().position(|other| other.name == row.reference());
        let windows = windows.ok_or("no row of fixed windows")?;
        let ratios = gains(place).into_iter().zip(gains(windows)).map(|(gain, other)| gain / other);
        let beside = Estimate::of(&ratios.collect::<Vec<_>>());
        let rate = |place| format!("{:.1}", 1e-3 / typical(&rounds, place, |b| b.seconds)).into();
        let show = |value: f64| format!("{value:.2}").into();
        let gain = Estimate::of(&gains(place)).into();
        table.row::<Cell>([
            row.name.into(),
            rate(2 * place),
            rate(2 * place + 1),
            gain,
            beside.into(),
            show(server(2 * place)),
            show(server(2 * place + 1)),
            show(largest(place)),
            show(largest(place) / largest(windows)),
        ]);
        if ![ONE_WINDOW, SIX_WINDOWS].contains(&row.name) {
            let set = GAIN_OF_WINDOWS[usize::from(row.reference() == SIX_WINDOWS)];
            let shares: Vec<f64> = gains(place).into_iter().map(|gain| gain / set).collect();
            let what =
                format!("{}: gain by coalescing beside {set:.2}, the first of windows", row.name);
            goals.push(Goal::measured("E9", &what, (0.7, 0.9, Unit::Times), Estimate::of(&shares)));
        }
    }
    report.table("redis-coalescing", table);
    Ok(())
}
