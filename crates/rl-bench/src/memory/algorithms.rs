//! Compares each algorithm in memory with fixed windows, and with a limiter that implements only
//! that algorithm. Counts requests beyond the limits.

use super::limiters::{BY_ALGORITHM, Keys, Limiter, ours_of, ours_with_permits, uniform};
use super::{BEFORE, FEW, MANY, SLICES, block, by_threads};
use crate::Result;
use crate::algorithms::{CONCURRENCY, ONE_WINDOW, Row};
use crate::measure::Race;
use crate::report::{Report, Table};

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
    fn all(keys: &Keys) -> [Self; 3] {
        let (few, many) = (&keys.order[..FEW], keys.order.len());
        let at_random = (0..).take(SLICES).map(|seed| uniform(many, 40_000, seed)).collect();
        let visited =
            |name, subjects, rounds, first, slices| Self { name, subjects, rounds, first, slices };
        [
            visited("one subject", 1, 15, vec![0; 1_000], vec![vec![0; 10_000]]),
            visited("a thousand", FEW, 15, few.repeat(2), vec![few.repeat(16)]),
            visited("a million at random", many, 5, (0..).take(many).collect(), at_random),
        ]
    }

    /// Measures the limiters.
    ///
    /// With few subjects, each block has a new limiter, so that no limit is reached and no log
    /// outgrows the caches. With a million, the entries are created only once.
    fn race(&self, keys: &Keys, rounds: usize, new: &[Box<dyn Fn() -> Limiter + '_>]) -> Race {
        let ready = |contender: usize| {
            let limiter = new[contender]();
            limiter(keys, &self.first);
            limiter
        };
        let is_large = self.subjects > FEW;
        let known: Vec<Limiter> = (0..if is_large { new.len() } else { 0 }).map(ready).collect();
        let slice = |round: usize| &self.slices[round % self.slices.len()];
        Race::run(new.len(), rounds, |turn| match known.get(turn.contender) {
            Some(limiter) => {
                limiter(keys, &slice(turn.round + 1)[..BEFORE]);
                [block(limiter, keys, slice(turn.round), true)]
            }
            None => [block(&ready(turn.contender), keys, slice(turn.round), true)],
        })
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
    let (visited, rows) = (Visited::all(&keys), Row::all());
    let columns = visited
        .iter()
        .flat_map(|visited| ["ns", "other, ns"].map(|what| format!("{}: {what}", visited.name)));
    let columns = [String::new()].into_iter().chain(columns).chain(["too many".to_owned()]);
    let mut table = Table::new("by algorithm, and another limiter of the algorithm", columns);
    for row in &rows {
        let other = BY_ALGORITHM.iter().find(|(name, ..)| *name == row.name);
        let mut cells = Vec::new();
        for visited in &visited {
            let ours = |row| {
                Box::new(move || ours(row, OPEN, visited.subjects)) as Box<dyn Fn() -> Limiter>
            };
            let mut limiters = vec![ours(row)];
            if let Some((_, _, new)) = other {
                limiters.push(Box::new(|| new(OPEN as u32)));
            }
            let is_beside_window = visited.subjects == FEW && row.limits.len() == 1;
            if is_beside_window && row.name != ONE_WINDOW {
                limiters.push(ours(&rows[0]));
            }
            let race = visited.race(&keys, report.rounds(visited.rounds), &limiters);
            let beside = other.map(|(_, other, _)| (*other, race.multiple(1, 0, 0)));
            cells.extend([race.median(0, 0), beside.map_or(f64::NAN, |_| race.median(1, 0))]);
            let what = format!("{}, {}", row.name, visited.name);
            match (row.name, visited.subjects, beside) {
                ("GCRA", 1, Some((other, rate))) => {
                    report.at_least(format!("{what}: rate beside {other}"), 0.5, rate);
                }
                (CONCURRENCY, FEW, Some((other, rate))) => {
                    report.at_least(format!("{what}: rate beside {other}"), 0.15, rate);
                }
                (name, FEW, _) if row.limits.len() == 1 && name != ONE_WINDOW => {
                    let what = format!("{what}: time beside a fixed window");
                    report.at_most(what, 2.5, race.multiple(0, limiters.len() - 1, 0));
                }
                _ => {}
            }
        }
        let name =
            other.map_or(row.name.to_owned(), |(_, other, _)| format!("{}, {other}", row.name));
        table.row(name, cells.into_iter().chain([too_many(row, &keys)? as f64]));
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
        for row in Row::all() {
            assert_eq!(too_many(&row, &keys).unwrap(), 0, "{}", row.name);
        }
    }
}
