//! Compares each algorithm in memory with fixed windows, and with a limiter that implements only
//! that algorithm. Counts requests beyond the limits.

use super::limiters::{BY_ALGORITHM, Keys, Limiter, ours_of, ours_with_permits, uniform};
use super::{BEFORE, FEW, MANY, SLICES, block, by_threads};
use crate::Result;
use crate::algorithms::{ONE_WINDOW, Row};
use crate::measure::Race;
use crate::report::{Bound, Report, Table};

/// A limit that no block reaches, and a number of permits that no block holds at once.
const OPEN: u64 = 20_000;
const OPEN_PERMITS: u64 = 1_000;
/// The settings of the measurement of exactness: the limit, the number of subjects, and the number
/// of requests that each of two threads makes for a subject.
const PRESSED: u64 = 50;
const PRESSED_SUBJECTS: usize = 100;
const TRIES: usize = 100;

/// The subjects that are visited.
struct Visited {
    name: &'static str,
    subjects: usize,
    rounds: usize,
    /// The untimed visits of a new limiter, which create the entries of the subjects.
    first: Vec<u32>,
    /// The sequences of timed visits.
    slices: Vec<Vec<u32>>,
}

impl Visited {
    fn all(keys: &Keys, many: usize) -> [Self; 3] {
        let few = &keys.order[..FEW];
        let at_random = |seed| uniform(many, 40_000, seed);
        let visited =
            |name, subjects, rounds, first, slices| Self { name, subjects, rounds, first, slices };
        [
            visited("one subject", 1, 31, vec![0; 1_000], vec![vec![0; 10_000]]),
            visited("a thousand", FEW, 31, few.repeat(2), vec![few.repeat(16)]),
            visited(
                "a million at random",
                many,
                7,
                (0..).take(many).collect(),
                (0..).take(SLICES).map(at_random).collect(),
            ),
        ]
    }

    /// Measures the limiters.
    ///
    /// With few subjects, each block has a new limiter, so that no limit is reached and no log
    /// outgrows the caches. With a million, the entries are created only once.
    fn race(&self, keys: &Keys, rounds: usize, new: &[Box<dyn Fn() -> Limiter + '_>]) -> Race {
        let ready = |new: &dyn Fn() -> Limiter| {
            let limiter = new();
            limiter(keys, &self.first);
            limiter
        };
        let is_large = self.subjects > FEW;
        let known: Vec<Limiter> = new.iter().filter(|_| is_large).map(|new| ready(new)).collect();
        let mut race = Race::new(new.len());
        for turn in race.turns(rounds) {
            let slice = &self.slices[turn.round % self.slices.len()];
            race.record(
                turn,
                [match known.get(turn.contender) {
                    Some(limiter) => {
                        limiter(keys, &self.slices[(turn.round + 1) % self.slices.len()][..BEFORE]);
                        block(limiter, keys, slice, true)
                    }
                    None => block(&ready(&new[turn.contender]), keys, slice, true),
                }],
            );
        }
        race
    }
}

/// Creates our limiter for a row, with limits of `max`.
fn ours(row: &Row, max: u64, subjects: usize) -> Limiter {
    // The capacity is so large that no shard is full by chance.
    let capacity = (2 * subjects).max(200 * FEW);
    let policy = row.policy(if row.is_held() { max.min(OPEN_PERMITS) } else { max });
    let policy = policy.expect("each row is a policy");
    if row.is_held() { ours_with_permits(&policy, capacity) } else { ours_of(&policy, capacity) }
}

/// Makes requests on two threads under limits of [`PRESSED`]. Returns how many are allowed beyond
/// the limits.
fn too_many(row: &Row, keys: &Keys) -> Result<usize> {
    // Without permits, a request holds its unit of a concurrency limit.
    let limiter = ours_of(&row.policy(PRESSED)?, 100 * PRESSED_SUBJECTS);
    let tries = keys.order[..PRESSED_SUBJECTS].repeat(TRIES);
    Ok(by_threads(&limiter, keys, &tries).saturating_sub(PRESSED as usize * PRESSED_SUBJECTS))
}

/// Measures all rows, compared with fixed windows and with other limiters.
pub(crate) fn measure(report: &mut Report) -> Result {
    let keys = Keys::new(report.size(MANY, 2 * BEFORE));
    let visited = Visited::all(&keys, keys.order.len());
    let rows: Vec<Row> = Row::all().into_iter().chain(Row::many_windows()).collect();
    let columns = visited.iter().flat_map(|visited| {
        ["ns", "beside windows", "other, ns", "rate beside"]
            .map(|what| format!("{}: {what}", visited.name))
    });
    let head =
        [String::new()].into_iter().chain(columns).chain(["other", "too many"].map(str::to_owned));
    let mut table =
        Table::new("by algorithm, beside as many fixed windows and beside another limiter", head);
    for row in &rows {
        let reference =
            rows.iter().find(|other| other.name == row.reference()).ok_or("no reference")?;
        let other = BY_ALGORITHM.iter().find(|(name, ..)| *name == row.name);
        let mut cells = vec![row.name.into()];
        for visited in &visited {
            let ours = |row| {
                Box::new(move || ours(row, OPEN, visited.subjects)) as Box<dyn Fn() -> Limiter>
            };
            let mut limiters = vec![ours(row), ours(reference)];
            limiters.extend(
                other.map(|(_, _, new)| Box::new(|| new(OPEN as u32)) as Box<dyn Fn() -> Limiter>),
            );
            let race = visited.race(&keys, report.rounds(visited.rounds), &limiters);
            let beside_windows = race.multiple(0, 1, 0);
            cells.extend([race.median(0, 0).into(), beside_windows.into()]);
            if other.is_some() {
                cells.extend([race.median(2, 0).into(), race.multiple(2, 0, 0).into()]);
            } else {
                cells.extend(["".into(), "".into()]);
            }
            if visited.subjects == FEW
                && row.reference() == ONE_WINDOW
                && row.name != ONE_WINDOW
                && !row.is_held()
            {
                let what = format!("{}, a thousand subjects: time beside a fixed window", row.name);
                report.goal(&what, Bound::AtMost(2.5), "times", beside_windows);
            }
            let floor = match row.name {
                "GCRA" if visited.subjects == 1 => Some(0.5),
                "concurrency" if visited.subjects == FEW => Some(0.15),
                _ => None,
            };
            if let (Some(floor), Some((_, other, _))) = (floor, other) {
                let what = format!("{}, {}: rate beside {other}", row.name, visited.name);
                report.goal(&what, Bound::AtLeast(floor), "times", race.multiple(2, 0, 0));
            }
        }
        cells.extend([other.map_or("", |(_, name, _)| *name).into(), too_many(row, &keys)?.into()]);
        table.row(cells);
    }
    report.table(table);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_limiter_of_an_algorithm_allows_all_visits_under_an_open_limit() {
        let (keys, rows) = (Keys::new(FEW), Row::all());
        let visits = [0, 1].repeat(100);
        for row in &rows {
            assert_eq!(ours(row, OPEN, FEW)(&keys, &visits), visits.len(), "{}", row.name);
        }
        for (name, _, new) in &BY_ALGORITHM {
            assert!(rows.iter().any(|row| row.name == *name), "{name}");
            assert_eq!(new(OPEN as u32)(&keys, &visits), visits.len(), "{name}");
        }
    }

    #[test]
    fn no_row_of_ours_allows_a_request_beyond_its_limits() {
        let keys = Keys::new(PRESSED_SUBJECTS);
        for row in Row::all().iter().chain(&Row::many_windows()) {
            assert_eq!(too_many(row, &keys).unwrap(), 0, "{}", row.name);
        }
    }
}
