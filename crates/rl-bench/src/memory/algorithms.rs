//! Compares each algorithm in memory with fixed windows, and with crates that implement only that
//! algorithm. Measures the time of a decision, and counts requests beyond the limits.

use std::error::Error;

use super::block::block;
use super::limiters::Keys;
use super::other_limiters::Peer;
use super::sides::{AT_RANDOM_BEFORE, PRESSED, PRESSED_SUBJECTS, Side, TRIES, Visited};
use crate::algorithms::{ONE_WINDOW, Row, SIX_KINDS, SIX_WINDOWS};
use crate::charts::{Bar, Bars, Chart, Plot};
use crate::goals::{Goal, Unit};
use crate::measure::{Estimate, median};
use crate::report::Report;
use crate::table::{Cell, Table};

/// The goals that are measured here.
pub(super) const GOALS: [&str; 5] = ["E1", "E2", "E3", "E4", "E5"];

/// The limiters of other crates. Each has the name of the row to which its algorithm belongs.
const PEERS: [(&str, Peer); 10] = [
    (ONE_WINDOW, Peer::ActixExtensible),
    ("GCRA", Peer::Governor),
    ("GCRA", Peer::FastGovernor),
    ("GCRA", Peer::ThrottleCrab),
    ("token bucket", Peer::Bucket),
    ("sliding window counter", Peer::WindowCounter),
    ("sliding window, 60 buckets", Peer::Trypema),
    ("sliding log", Peer::Log),
    ("concurrency", Peer::Semaphore),
    ("concurrency", Peer::Leases),
];

/// The form in which a goal compares our time with the time of another limiter.
#[derive(Clone, Copy, Debug)]
enum Reading {
    /// The factor by which our limiter is faster.
    Faster,
    /// Our time as a multiple of the time of the other limiter.
    Multiple,
    /// The ns that each limit beyond six adds to a policy with this number of limits.
    Each(usize),
}

impl Reading {
    fn estimate(self, ours: &[f64], theirs: &[f64]) -> Estimate {
        let read = |(ours, theirs): (&f64, &f64)| match self {
            Self::Faster => theirs / ours,
            Self::Multiple => ours / theirs,
            Self::Each(limits) => (ours - theirs) / (limits - 6) as f64,
        };
        Estimate::of(&ours.iter().zip(theirs).map(read).collect::<Vec<_>>())
    }

    const fn unit(self) -> Unit {
        match self {
            Self::Faster => Unit::Times,
            Self::Multiple => Unit::AtMost("x"),
            Self::Each(_) => Unit::AtMost("ns each"),
        }
    }
}

/// A goal that compares a row with another limiter.
#[derive(Clone, Copy, Debug)]
struct RowGoal {
    name: &'static str,
    row: &'static str,
    beside: Side,
    visited: Visited,
    reading: Reading,
    floor: f64,
    moon: f64,
}

impl RowGoal {
    /// Returns all goals about `rows`.
    fn all(rows: &[Row]) -> Vec<Self> {
        use Reading::{Each, Faster, Multiple};
        use Visited::{Million, One, Thousand};
        let goal = |name, row, beside, visited, reading, floor, moon| Self {
            name,
            row,
            beside,
            visited,
            reading,
            floor,
            moon,
        };
        let [governor, semaphore, leases] =
            [Peer::Governor, Peer::Semaphore, Peer::Leases].map(Side::Peer);
        let (one, six) = (Side::Ours(ONE_WINDOW), Side::Ours(SIX_WINDOWS));
        let mut goals = vec![
            goal("E1", "GCRA", governor, One, Faster, 0.7, 1.2),
            goal("E1", "GCRA", governor, Million, Faster, 0.8, 1.2),
            goal("E3", SIX_KINDS, six, Thousand, Multiple, 3.0, 1.8),
            goal("E5", "concurrency", semaphore, Thousand, Faster, 0.7, 1.2),
            goal("E5", "concurrency", leases, Thousand, Faster, 0.7, 1.2),
        ];
        for Row { name, limits, is_held } in rows {
            match limits.len() {
                1 if *name != ONE_WINDOW && !is_held => {
                    goals.push(goal("E2", name, one, Thousand, Multiple, 1.6, 1.2));
                }
                count if count > 6 => {
                    goals.push(goal("E4", name, six, One, Each(count), 10.0, 4.0));
                }
                _ => {}
            }
        }
        goals
    }

    fn measured(&self, race: &Race) -> Goal {
        let Self { name, row, beside, visited, reading, floor, moon } = *self;
        let beside_name = match beside {
            Side::Ours(name) | Side::Denied(name) => name,
            Side::Peer(peer) => peer.name(),
        };
        let what = format!("{row} beside {beside_name}, {}", visited.name());
        let measured = reading.estimate(race.nanos(Side::Ours(row)), race.nanos(beside));
        Goal::measured(name, &what, (floor, moon, reading.unit()), measured)
    }
}

/// The limiters of a comparison. Each has one value for each round: the ns of a decision.
struct Race(Vec<(Side, Vec<f64>)>);

impl Race {
    /// Runs rounds in which each limiter has two blocks, in forward and in reverse order.
    ///
    /// With a few subjects, each block has a new limiter, so that no limit is reached and no log
    /// outgrows the caches. With a million subjects, the entries are created only once.
    fn run(
        rows: &[Row],
        keys: &Keys,
        visited: Visited,
        sides: &[Side],
    ) -> Result<Self, Box<dyn Error>> {
        let (before, slices) = visited.visits(keys);
        let ready = |side: &Side| side.ready(rows, keys, visited, &before);
        let mut known = Vec::new();
        if visited == Visited::Million {
            known = sides.iter().map(ready).collect::<Result<_, _>>()?;
        }
        let mut nanos = vec![Vec::new(); sides.len()];
        for round in 0..=visited.rounds() {
            let slice = &slices[round % slices.len()];
            let mut sums = vec![0.0; sides.len()];
            for place in (0..sides.len()).chain((0..sides.len()).rev()) {
                let passes = sides[place].is_allowed();
                sums[place] += match known.get(place) {
                    Some(limiter) => {
                        // The other limiters have displaced the data of this one from the processor
                        // caches. Untimed visits load some of it again.
                        let other = &slices[(round + 1) % slices.len()][..AT_RANDOM_BEFORE];
                        limiter.count_allowed(keys, other);
                        block(&**limiter, keys, slice, passes)
                    }
                    None => block(&*ready(&sides[place])?, keys, slice, passes),
                };
            }
            // The first round warms up the caches.
            if round > 0 {
                nanos.iter_mut().zip(sums).for_each(|(nanos, sum)| nanos.push(sum / 2.0));
            }
        }
        Ok(Self(sides.iter().copied().zip(nanos).collect()))
    }

    fn nanos(&self, side: Side) -> &[f64] {
        self.0.iter().find(|(other, _)| *other == side).map_or(&[], |(_, nanos)| nanos)
    }
}

/// The number of steps that the progress bar shows.
pub(super) const STEPS: usize = Visited::ALL.len();

/// Measures all rows, compared with fixed windows and with other limiters.
pub(super) fn speed(
    keys: &Keys,
    report: &mut Report,
    goals: &mut Vec<Goal>,
) -> Result<(), Box<dyn Error>> {
    let rows: Vec<Row> = Row::all().into_iter().chain(Row::many_windows()).collect();
    let mut wanted = RowGoal::all(&rows);
    wanted.retain(|goal| report.wants(&[goal.name]));
    for visited in Visited::ALL {
        report.step(visited.name());
        let title = format!(
            "by algorithm, {}: ns for each decision of one thread; beside fixed: the multiple of \
             one fixed window's time, or of six for several limits; too many: beyond {PRESSED} for \
             each of {PRESSED_SUBJECTS} subjects, asked for {} times each by two threads",
            visited.name(),
            2 * TRIES,
        );
        let head = ["", "ns", "denied", "beside fixed", "ours is faster by", "too many"];
        let (mut table, mut bars) = (Table::new(&title, head), Vec::new());
        for row in &rows {
            let of_row: Vec<RowGoal> = wanted
                .iter()
                .filter(|goal| goal.row == row.name && goal.visited == visited)
                .copied()
                .collect();
            let mut sides = sides(row, report.goals_only.then_some(&of_row[..]));
            // Denials need entries of their own. It takes long to create a million of them, so
            // denials are not measured with a million subjects.
            sides.retain(|side| visited != Visited::Million || side.is_allowed());
            if sides.len() > 1 {
                let race = Race::run(&rows, keys, visited, &sides)?;
                goals.extend(of_row.iter().map(|goal| goal.measured(&race)));
                add(&mut table, &mut bars, &rows, keys, row, &race)?;
            }
        }
        if !bars.is_empty() {
            report.table(visited.table(), table);
        }
        if visited == Visited::Thousand && !report.goals_only {
            report.chart(chart(bars));
        }
    }
    Ok(())
}

/// Returns the limiters that a row compares, ours first. With `goals`, returns ours and only those
/// other limiters that the goals mention.
fn sides(row: &Row, goals: Option<&[RowGoal]>) -> Vec<Side> {
    let peers = PEERS.into_iter().filter(|(name, _)| *name == row.name);
    let mut others = vec![Side::Denied(row.name)];
    others.extend(Some(Side::Ours(row.reference())).filter(|_| row.reference() != row.name));
    others.extend(peers.map(|(_, peer)| Side::Peer(peer)));
    if let Some(goals) = goals {
        others.retain(|side| goals.iter().any(|goal| goal.beside == *side));
    }
    [Side::Ours(row.name)].into_iter().chain(others).collect()
}

/// Adds the lines and the bars of a row.
fn add(
    table: &mut Table,
    bars: &mut Vec<Bar>,
    rows: &[Row],
    keys: &Keys,
    row: &Row,
    race: &Race,
) -> Result<(), Box<dyn Error>> {
    let ours = Side::Ours(row.name);
    let none = || Cell::from("");
    let median_of = |side| match race.nanos(side) {
        [] => none(),
        nanos => format!("{:.0}", median(nanos)).into(),
    };
    let fixed = match race.nanos(Side::Ours(row.reference())) {
        [] => none(),
        fixed => Reading::Multiple.estimate(race.nanos(ours), fixed).into(),
    };
    let mut line = |name: &str, side: Side, cells: [Cell; 3]| -> Result<(), Box<dyn Error>> {
        let too_many = side.too_many(rows, keys)?.to_string();
        let cells = [name.into(), median_of(side)].into_iter().chain(cells);
        table.row(cells.chain([too_many.into()]));
        let value = median(race.nanos(side));
        // Our bar has the name of the algorithm. Next come the bars of other limiters for this
        // algorithm, under their own names.
        let name = if let Side::Peer(peer) = side { peer.name() } else { name };
        bars.push(Bar { name: name.to_owned(), value, is_ours: side == ours });
        Ok(())
    };
    line(row.name, ours, [median_of(Side::Denied(row.name)), fixed, none()])?;
    for (side, nanos) in &race.0 {
        if let Side::Peer(peer) = side {
            let faster = Reading::Faster.estimate(race.nanos(ours), nanos);
            let name = format!("{}: {}", row.name, peer.name());
            line(&name, *side, [none(), none(), faster.into()])?;
        }
    }
    Ok(())
}

fn chart(bars: Vec<Bar>) -> Chart {
    Chart {
        name: "algorithms-memory".to_owned(),
        title: "A decision in memory, by algorithm".to_owned(),
        note: "A thousand subjects, one thread, all requests pass; grey: limiters for that \
               algorithm alone."
            .to_owned(),
        plot: Plot::Bars(Bars { unit: "ns for each decision".to_owned(), bars }),
    }
}

#[cfg(test)]
mod tests {
    use super::super::block::FEW;
    use super::*;

    fn rows() -> Vec<Row> {
        Row::all().into_iter().chain(Row::many_windows()).collect()
    }

    #[test]
    fn every_goal_compares_sides_that_are_measured() {
        let rows = rows();
        for goal in RowGoal::all(&rows) {
            let row = rows.iter().find(|row| row.name == goal.row).unwrap();
            assert!(sides(row, None).contains(&goal.beside), "{goal:?}");
            assert_eq!(sides(row, Some(&[goal])).len(), 2, "{goal:?}");
        }
        assert!(GOALS.iter().all(|name| RowGoal::all(&rows).iter().any(|goal| goal.name == *name)));
    }

    #[test]
    fn every_row_allows_all_visits_and_denies_all_after_its_limits_are_used_up() {
        let (keys, rows) = (Keys::new(FEW), rows());
        let (before, visits) = (&[0, 1][..], [0, 1].repeat(100));
        let sides = rows.iter().flat_map(|row| sides(row, None));
        for side in sides {
            let limiter = side.ready(&rows, &keys, Visited::Thousand, before).unwrap();
            let expected = if side.is_allowed() { visits.len() } else { 0 };
            assert_eq!(limiter.count_allowed(&keys, &visits), expected, "{side:?}");
        }
    }

    #[test]
    fn no_row_of_ours_allows_a_request_beyond_its_limits() {
        let (keys, rows) = (Keys::new(PRESSED_SUBJECTS), rows());
        for row in &rows {
            assert_eq!(Side::Ours(row.name).too_many(&rows, &keys).unwrap(), 0, "{}", row.name);
        }
    }
}
