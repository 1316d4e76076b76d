//! The sums in memory, until they are written.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use rl_core::Subject;

use crate::database::UsageKey;
use crate::day::Day;
use crate::record::record_id;
use crate::usage::UsageCounts;

/// The number of maps, each with a lock of its own.
const SHARDS: usize = 16;

/// Adds counts up for each subject, rule and day.
///
/// Beyond the maximum number of entries or of rows of a day, and for subjects that the tables cannot
/// identify, counts are added to an entry without a subject. So no call is lost.
#[derive(Debug)]
pub(super) struct Sums {
    shards: [Mutex<HashMap<Subject, Vec<SumOfDay>>>; SHARDS],
    hasher: RandomState,
    /// The entries that are not written yet, also those of [`Unwritten`].
    entries: AtomicUsize,
    max_entries: usize,
    max_rows_per_day: usize,
}

#[derive(Debug)]
struct SumOfDay {
    day: Day,
    rule: Option<Box<str>>,
    counts: UsageCounts,
}

/// Sums that were taken from memory, and are not written yet.
pub(super) type Unwritten = BTreeMap<UsageKey, UsageCounts>;

/// The hashes of the rows of the latest day.
#[derive(Debug, Default)]
pub(super) struct RowsOfDay {
    day: Option<Day>,
    hashes: HashSet<u64>,
}

impl RowsOfDay {
    /// Registers the row with this hash. Returns false if the day has `max` other rows already.
    /// Rows of days before the latest one are few, and always allowed.
    fn allow(&mut self, day: Day, hash: u64, max: usize) -> bool {
        if self.day.is_none_or(|latest| day > latest) {
            *self = Self { day: Some(day), hashes: HashSet::new() };
        }
        if self.day != Some(day) || self.hashes.contains(&hash) {
            return true;
        }
        self.hashes.len() < max && self.hashes.insert(hash)
    }
}

impl Sums {
    pub(super) fn new(max_entries: usize, max_rows_per_day: usize) -> Self {
        Self {
            shards: std::array::from_fn(|_| Mutex::default()),
            hasher: RandomState::new(),
            entries: AtomicUsize::new(0),
            max_entries,
            max_rows_per_day,
        }
    }

    /// Adds counts of a subject under a rule.
    pub(super) fn add(&self, subject: &Subject, rule: Option<&str>, day: Day, counts: UsageCounts) {
        let subject = subject.owner();
        if !self.try_add(subject, rule, day, counts, false) {
            let others = Subject::new(subject.realm().clone(), "");
            self.try_add(&others, rule, day, counts, true);
        }
    }

    /// Adds counts. Returns false if that needs a new entry, and the maximum is reached. An entry
    /// without a subject may always be created: there is one for each realm, rule and day.
    fn try_add(
        &self,
        subject: &Subject,
        rule: Option<&str>,
        day: Day,
        counts: UsageCounts,
        is_of_others: bool,
    ) -> bool {
        let mut shard = self.shard(subject);
        let is_same = |entry: &&mut SumOfDay| entry.day == day && entry.rule.as_deref() == rule;
        let entries = shard.get_mut(subject);
        if let Some(entry) = entries.and_then(|entries| entries.iter_mut().find(is_same)) {
            entry.counts += counts;
            return true;
        }
        let may_exist = is_of_others
            || self.entries.load(Ordering::Relaxed) < self.max_entries
                && record_id(subject).is_some();
        if may_exist {
            self.entries.fetch_add(1, Ordering::Relaxed);
            let entry = SumOfDay { day, rule: rule.map(Into::into), counts };
            shard.entry(subject.clone()).or_default().push(entry);
        }
        may_exist
    }

    /// Moves all sums to `unwritten`.
    pub(super) fn take(&self, unwritten: &mut Unwritten, rows: &mut RowsOfDay) {
        for shard in &self.shards {
            let taken = std::mem::take(&mut *lock(shard));
            for (subject, entries) in taken {
                let id = record_id(&subject).unwrap_or_default();
                for SumOfDay { day, rule, counts } in entries {
                    let hash = self.hasher.hash_one((&subject, &rule));
                    let has_row = id.is_empty() || rows.allow(day, hash, self.max_rows_per_day);
                    let key = UsageKey {
                        realm: subject.realm().as_str().to_owned(),
                        subject: if has_row { id.to_string() } else { String::new() },
                        day,
                        rule: rule.map(String::from).unwrap_or_default(),
                    };
                    let entries_before = unwritten.len();
                    *unwritten.entry(key).or_default() += counts;
                    if unwritten.len() == entries_before {
                        self.written(1);
                    }
                }
            }
        }
    }

    /// Records that entries were written or joined with others, so that new ones may be created.
    pub(super) fn written(&self, entries: usize) {
        self.entries.fetch_sub(entries, Ordering::Relaxed);
    }

    fn shard(&self, subject: &Subject) -> MutexGuard<'_, HashMap<Subject, Vec<SumOfDay>>> {
        let hash = self.hasher.hash_one(subject);
        lock(&self.shards[(hash % SHARDS as u64) as usize])
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
