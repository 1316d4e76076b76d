//! The limiters that are compared for each algorithm, and the subjects that they visit.

use std::error::Error;

use super::block::{FEW, MANY, count_allowed_by_threads};
use super::limiters::{Keys, Limiter, Ours, OursWithPermits};
use super::other_limiters::Peer;
use crate::algorithms::Row;
use crate::workload::uniform;

/// A limit that no block reaches, and a number of permits that no block holds at once.
const OPEN: u32 = 20_000;
const OPEN_PERMITS: u32 = 1_000;
/// With one subject: its visits in a block, and its untimed visits before the block.
const ALONE: usize = 10_000;
const ALONE_BEFORE: usize = 1_000;
/// With a thousand subjects: the visits of each in a block, and its untimed visits before the
/// block.
const EACH: usize = 16;
const EACH_BEFORE: usize = 2;
/// With a million subjects: the number of visits in a block, of untimed visits before the block,
/// and of different sequences of visits.
const AT_RANDOM: usize = 40_000;
pub(super) const AT_RANDOM_BEFORE: usize = 25_000;
const SLICES: usize = 8;
/// The settings of the measurement of exactness: the limit, the number of subjects, and the number
/// of requests that each of two threads makes for a subject.
pub(super) const PRESSED: u32 = 50;
pub(super) const PRESSED_SUBJECTS: usize = 100;
pub(super) const TRIES: usize = 100;

/// The subjects that are visited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Visited {
    One,
    Thousand,
    Million,
}

impl Visited {
    pub(super) const ALL: [Self; 3] = [Self::One, Self::Thousand, Self::Million];

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::One => "one subject",
            Self::Thousand => "a thousand subjects",
            Self::Million => "a million subjects at random",
        }
    }

    pub(super) const fn table(self) -> &'static str {
        match self {
            Self::One => "memory-algorithms-one",
            Self::Thousand => "memory-algorithms",
            Self::Million => "memory-algorithms-million",
        }
    }

    pub(super) const fn rounds(self) -> usize {
        match self {
            Self::One | Self::Thousand => 31,
            Self::Million => 7,
        }
    }

    /// Returns the capacity of a store. It is so large that no shard is full by chance.
    const fn capacity(self) -> usize {
        match self {
            Self::One | Self::Thousand => 100 * FEW,
            Self::Million => MANY,
        }
    }

    /// Returns the untimed visits, which create the entries of the subjects, and the sequences of
    /// timed visits.
    pub(super) fn visits(self, keys: &Keys) -> (Vec<u32>, Vec<Vec<u32>>) {
        let few = &keys.order[..FEW];
        match self {
            Self::One => (vec![0; ALONE_BEFORE], vec![vec![0; ALONE]]),
            Self::Thousand => (few.repeat(EACH_BEFORE), vec![few.repeat(EACH)]),
            Self::Million => {
                let slice = |seed| uniform(MANY, AT_RANDOM, seed);
                ((0..).take(MANY).collect(), (0..).take(SLICES).map(slice).collect())
            }
        }
    }
}

/// A limiter of a comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    /// Our limiter on the limits of the row with this name.
    Ours(&'static str),
    /// Our limiter on the same limits after they are used up.
    Denied(&'static str),
    Peer(Peer),
}

impl Side {
    /// Creates the limiter. If `releases` is true, a request releases its permit when it ends.
    fn limiter(
        self,
        rows: &[Row],
        capacity: usize,
        max: u32,
        releases: bool,
    ) -> Result<Box<dyn Limiter>, Box<dyn Error>> {
        let (Self::Ours(name) | Self::Denied(name)) = self else {
            let Self::Peer(peer) = self else { unreachable!("all sides are named") };
            return peer.limiter(capacity, max, releases);
        };
        let row = rows.iter().find(|row| row.name == name).ok_or("no such row")?;
        let max = if row.is_held { max.min(OPEN_PERMITS) } else { max };
        let ours = Ours::under(&row.of(max.into())?, capacity)?;
        Ok(if row.is_held && releases {
            Box::new(OursWithPermits::by(ours)?)
        } else {
            Box::new(ours)
        })
    }

    /// Creates the limiter, with entries for the subjects.
    pub(super) fn ready(
        self,
        rows: &[Row],
        keys: &Keys,
        visited: Visited,
        before: &[u32],
    ) -> Result<Box<dyn Limiter>, Box<dyn Error>> {
        let (max, releases) = if self.is_allowed() { (OPEN, true) } else { (1, false) };
        let limiter = self.limiter(rows, visited.capacity(), max, releases)?;
        limiter.count_allowed(keys, before);
        Ok(limiter)
    }

    pub(super) const fn is_allowed(self) -> bool {
        !matches!(self, Self::Denied(_))
    }

    /// Makes requests on two threads under small limits. Returns how many are allowed beyond the
    /// limits.
    pub(super) fn too_many(self, rows: &[Row], keys: &Keys) -> Result<usize, Box<dyn Error>> {
        let limiter = self.limiter(rows, 100 * PRESSED_SUBJECTS, PRESSED, false)?;
        let tries = keys.order[..PRESSED_SUBJECTS].repeat(TRIES);
        let admitted = count_allowed_by_threads(&*limiter, keys, &[&tries, &tries]);
        Ok(admitted.saturating_sub(PRESSED as usize * PRESSED_SUBJECTS))
    }
}
