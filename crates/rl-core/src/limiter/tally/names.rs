//! The limits and rules that a limiter counts by name. Their number is bounded.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

use crate::policy::NamedLimit;
use crate::store::Namespace;

/// The number of names in a chunk.
pub(super) const CHUNK: usize = 32;

/// The number of chunks.
pub(super) const CHUNKS: usize = 32;

/// The largest number of names.
const MAX_NAMES: usize = CHUNK * CHUNKS;

/// The number of slots in the hash table that finds the place of a name, a power of two. It is twice
/// the largest number of names, so that look-ups stay short.
const INDEX: usize = 2 * MAX_NAMES;

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
#[derive(Debug, Default)]
pub(super) struct CounterNames {
    /// A hash table with open addressing. Each slot contains the place of a name, plus one, or 0 if
    /// it is free.
    index: OnceLock<Box<[AtomicU32]>>,
    chunks: [OnceLock<Box<[OnceLock<CountedName>; CHUNK]>>; CHUNKS],
    /// The number of names. Names are added under this lock.
    count: Mutex<usize>,
}

impl CounterNames {
    /// Returns the place of a limit. A name that is counted for the first time gets the next place,
    /// or `OTHER_LIMITS` if there are too many names.
    #[inline]
    pub(super) fn place_of_limit(&self, rule: Option<&Namespace>, limit: &NamedLimit) -> usize {
        self.place(rule, Some(limit)).unwrap_or(OTHER_LIMITS)
    }

    /// Returns the place of a rule.
    #[inline(always)]
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

    #[inline(always)]
    fn place(&self, rule: Option<&Namespace>, limit: Option<&NamedLimit>) -> Option<usize> {
        let begin = hash(rule, limit);
        match self.find(begin, rule, limit) {
            Ok(place) => Some(place),
            Err(_) => self.add(begin, rule, limit),
        }
    }

    /// Searches the index from `begin`. Returns the place of a name, or as an error the position in
    /// the index at which the name is to be added.
    #[inline(always)]
    fn find(
        &self,
        begin: usize,
        rule: Option<&Namespace>,
        limit: Option<&NamedLimit>,
    ) -> Result<usize, usize> {
        let index = self.index.get_or_init(new_index);
        let mut position = begin % INDEX;
        loop {
            // With `Acquire`, a thread that reads a place also sees its name.
            let place = index[position].load(Ordering::Acquire) as usize;
            if place == 0 {
                return Err(position);
            }
            if self.name(place - 1).is_some_and(|name| name.is(rule, limit)) {
                return Ok(place - 1);
            }
            position = (position + 1) % INDEX;
        }
    }

    #[cold]
    fn add(
        &self,
        begin: usize,
        rule: Option<&Namespace>,
        limit: Option<&NamedLimit>,
    ) -> Option<usize> {
        let mut count = self.count.lock().unwrap_or_else(PoisonError::into_inner);
        let position = match self.find(begin, rule, limit) {
            Ok(place) => return Some(place),
            Err(position) => position,
        };
        let place = (*count).max(RESERVED);
        let chunk = self.chunks.get(place / CHUNK)?;
        let chunk = chunk.get_or_init(|| Box::new(std::array::from_fn(|_| OnceLock::new())));
        let name = CountedName { rule: rule.cloned(), limit: limit.cloned() };
        let _ = chunk[place % CHUNK].set(name);
        *count = place + 1;
        if let Some(index) = self.index.get() {
            index[position].store(*count as u32, Ordering::Release);
        }
        Some(place)
    }
}

impl CountedName {
    #[inline]
    fn is(&self, rule: Option<&Namespace>, limit: Option<&NamedLimit>) -> bool {
        self.rule.as_ref() == rule
            && self.limit.as_ref().map(NamedLimit::name) == limit.map(NamedLimit::name)
    }
}

#[cold]
fn new_index() -> Box<[AtomicU32]> {
    (0..INDEX).map(|_| AtomicU32::new(0)).collect()
}

#[inline]
fn hash(rule: Option<&Namespace>, limit: Option<&NamedLimit>) -> usize {
    let of_rule = rule.map_or(0, |rule| rule.digest()[0]);
    let of_limit = limit.map_or(0, NamedLimit::name_hash);
    (of_rule ^ of_limit) as usize
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
