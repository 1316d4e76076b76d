//! The limits and rules that a limiter counts by name. Their number is bounded.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

use crate::policy::NamedLimit;
use crate::store::Namespace;

/// The number of names in a chunk.
pub(super) const CHUNK: usize = 32;

/// The number of chunks.
pub(super) const CHUNKS: usize = 32;

/// The largest number of names.
const MAX_NAMES: usize = CHUNK * CHUNKS;

/// The number of slots in the hash table that finds the place of a name, a power of two. It is
/// twice the largest number of names, so that look-ups stay short.
const INDEX: usize = 2 * MAX_NAMES;

/// The bits of a slot that contain a place. The other 53 bits are those of the hash.
const PLACE_BITS: u64 = INDEX as u64 - 1;

/// The place of all limits beyond the bound.
pub(super) const OTHER_LIMITS: usize = 0;

/// The place of all rules beyond the bound.
pub(super) const OTHER_RULES: usize = 1;

/// The number of places that belong to no name.
pub(super) const RESERVED: usize = 2;

/// A rule, or a limit of a rule or of the limiter itself.
#[derive(Clone, Debug)]
pub(super) struct CountedName {
    /// The namespace of the rule; `None` without rules.
    pub(super) rule: Option<Namespace>,
    /// The limit; `None` for the rule itself.
    pub(super) limit: Option<NamedLimit>,
}

/// The names in the order in which they were first counted. Names are added, and never removed, so
/// look-ups take no lock.
#[derive(Debug)]
pub(super) struct CounterNames {
    /// A hash table with open addressing. A slot contains the upper bits of the hash of a name, and
    /// the place of the name plus one; or 0 if it is free.
    ///
    /// The bits of the hash identify the name, so that a look-up reads nothing but the slot. Two of
    /// the names would share their counts with a probability of 10^-10.
    index: Box<[AtomicU64; INDEX]>,
    chunks: [OnceLock<Box<[OnceLock<CountedName>; CHUNK]>>; CHUNKS],
    /// The number of names. Names are added under this lock.
    count: Mutex<usize>,
}

impl CounterNames {
    /// Returns the place of a limit. A name that is counted for the first time gets the next place,
    /// or `OTHER_LIMITS` if there are too many names.
    pub(super) fn place_of_limit(&self, rule: Option<&Namespace>, limit: &NamedLimit) -> usize {
        self.place(rule, Some(limit)).unwrap_or(OTHER_LIMITS)
    }

    /// Returns the place of a rule.
    pub(super) fn place_of_rule(&self, rule: &Namespace) -> usize {
        self.place(Some(rule), None).unwrap_or(OTHER_RULES)
    }

    /// Returns the name at `place`; `None` for the common places.
    pub(super) fn name(&self, place: usize) -> Option<&CountedName> {
        self.chunks.get(place / CHUNK)?.get()?[place % CHUNK].get()
    }

    /// Returns the places that have names.
    pub(super) fn places(&self) -> std::ops::Range<usize> {
        RESERVED..RESERVED.max(*self.count.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn place(&self, rule: Option<&Namespace>, limit: Option<&NamedLimit>) -> Option<usize> {
        let hash = hash(rule, limit);
        match self.find(hash) {
            Ok(place) => Some(place),
            Err(_) => self.add(hash, rule, limit),
        }
    }

    /// Returns the place of the name with this hash, or as an error the position in the index at
    /// which the name is to be added.
    fn find(&self, hash: u64) -> Result<usize, usize> {
        let mut position = hash as usize % INDEX;
        loop {
            // With `Acquire`, a thread that reads a place also sees its name.
            let slot = self.index[position].load(Ordering::Acquire);
            if slot == 0 {
                return Err(position);
            }
            if (slot ^ hash) & !PLACE_BITS == 0 {
                return Ok((slot & PLACE_BITS) as usize - 1);
            }
            position = (position + 1) % INDEX;
        }
    }

    #[cold]
    fn add(
        &self,
        hash: u64,
        rule: Option<&Namespace>,
        limit: Option<&NamedLimit>,
    ) -> Option<usize> {
        let mut count = self.count.lock().unwrap_or_else(PoisonError::into_inner);
        let position = match self.find(hash) {
            Ok(place) => return Some(place),
            Err(position) => position,
        };
        let place = (*count).max(RESERVED);
        let chunk = self.chunks.get(place / CHUNK)?;
        let chunk = chunk.get_or_init(|| Box::new(std::array::from_fn(|_| OnceLock::new())));
        let name = CountedName { rule: rule.cloned(), limit: limit.cloned() };
        let _ = chunk[place % CHUNK].set(name);
        *count = place + 1;
        let slot = hash & !PLACE_BITS | *count as u64;
        self.index[position].store(slot, Ordering::Release);
        Some(place)
    }
}

impl Default for CounterNames {
    fn default() -> Self {
        Self {
            index: Box::new(std::array::from_fn(|_| AtomicU64::new(0))),
            chunks: Default::default(),
            count: Mutex::default(),
        }
    }
}

/// Returns the hash of a rule, of a limit, or of the limit of a rule. The place of a name in the
/// index follows from the lower bits.
fn hash(rule: Option<&Namespace>, limit: Option<&NamedLimit>) -> u64 {
    rule.map_or(0, |rule| rule.digest()[0]) ^ limit.map_or(0, NamedLimit::name_hash)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Limit;
    use crate::policy::Policy;

    fn named(name: &str) -> NamedLimit {
        let policy = Policy::builder().named(name, Limit::per_hour(1)).build().unwrap();
        policy.limits()[0].clone()
    }

    #[test]
    fn a_name_keeps_its_place_and_names_beyond_the_bound_share_one() {
        let names = CounterNames::default();
        let rule: Namespace = "rule".parse().unwrap();
        let place = |n: usize| names.place_of_limit(None, &named(&format!("limit-{n}")));
        let places: Vec<usize> = (0..MAX_NAMES + 100).map(place).collect();
        let own = MAX_NAMES - RESERVED;
        assert_eq!(places[..own], (RESERVED..MAX_NAMES).collect::<Vec<_>>());
        assert!(places[own..].iter().all(|place| *place == OTHER_LIMITS));
        assert_eq!((0..MAX_NAMES + 100).map(place).collect::<Vec<_>>(), places);
        assert_eq!(names.place_of_rule(&rule), OTHER_RULES);
        assert_eq!(names.places(), RESERVED..MAX_NAMES);
    }

    #[test]
    fn a_rule_its_limits_and_the_limits_of_another_rule_have_different_places() {
        let names = CounterNames::default();
        let [one, other] = ["one", "other"].map(|name| name.parse::<Namespace>().unwrap());
        let limit = named("hour");
        let places = [
            names.place_of_limit(None, &limit),
            names.place_of_limit(Some(&one), &limit),
            names.place_of_limit(Some(&other), &limit),
            names.place_of_rule(&one),
        ];
        assert_eq!(places, [2, 3, 4, 5]);
        assert_eq!(names.place_of_limit(Some(&one), &named("hour")), 3);
    }
}
