//! The subjects with the most units or denials, in bounded memory.

use std::hash::{BuildHasher, RandomState};
use std::sync::{Mutex, PoisonError};

use crate::model::Subject;

/// The number of subjects that a sketch follows and reports. All are reported, because a subject
/// whose denials have just begun has a small count.
const FOLLOWED: usize = 128;

/// A subject with many units or denials, and an estimate of their number.
///
/// The true number lies between `count - error` and `count`, except for the effect of sampling. If
/// decisions come in quick succession, each thread records at most one in a millisecond, and counts
/// it for all since its last record.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct TopSubject {
    /// The subject. Its id may be personal data: show [`Subject::redacted`] to readers that may not
    /// see ids.
    pub subject: Subject,
    /// The estimated number of units or denials.
    pub count: u64,
    /// The number by which `count` may be too high.
    pub error: u64,
    /// The names of the rule and of the limit of the last denial that was recorded. The name of the
    /// rule is empty if the limiter has no rules. It is `None` for units, for a denial without a
    /// limit such as a block, and for limits that are not counted by name.
    pub denied_by: Option<(String, String)>,
}

/// Follows the subjects with the largest counts by the *space-saving* algorithm.
///
/// A new subject replaces the one with the smallest count, and inherits this count as its error.
/// Every subject with more than 1/128 of the total is therefore among those that are followed.
/// (Metwally, Agrawal, El Abbadi: *Efficient Computation of Frequent and Top-k Elements in Data
/// Streams*, 2005.)
#[derive(Debug)]
pub(crate) struct TopSubjects {
    entries: Mutex<Vec<FollowedSubject>>,
    hasher: RandomState,
}

#[derive(Debug)]
struct FollowedSubject {
    hash: u64,
    count: u64,
    error: u64,
    subject: Subject,
    /// The place of the limit that denied last.
    limit: Option<usize>,
}

impl Default for TopSubjects {
    fn default() -> Self {
        // The memory is allocated here, so that no decision allocates it.
        Self { entries: Mutex::new(Vec::with_capacity(FOLLOWED)), hasher: RandomState::new() }
    }
}

impl TopSubjects {
    /// Adds `units` to the count of `subject`, which the limit at the place `limit` has denied.
    /// Returns false and adds nothing if another thread holds the lock.
    pub(crate) fn try_add(&self, subject: &Subject, units: u64, limit: Option<usize>) -> bool {
        let hash = self.hasher.hash_one(subject);
        let Ok(mut entries) = self.entries.try_lock() else { return false };
        let known = entries.iter_mut().find(|entry| entry.hash == hash);
        if let Some(entry) = known {
            entry.count = entry.count.saturating_add(units);
            entry.limit = limit;
        } else if entries.len() < FOLLOWED {
            entries.push(FollowedSubject {
                hash,
                count: units,
                error: 0,
                subject: subject.clone(),
                limit,
            });
        } else if let Some(least) = entries.iter_mut().min_by_key(|entry| entry.count) {
            let (error, subject) = (least.count, subject.clone());
            let count = error.saturating_add(units);
            *least = FollowedSubject { hash, count, error, subject, limit };
        }
        true
    }

    /// Returns the subjects with the largest counts, the largest first. `names_of` returns the
    /// names of the rule and of the limit at a place.
    pub(crate) fn largest(
        &self,
        names_of: impl Fn(usize) -> Option<(String, String)>,
    ) -> Vec<TopSubject> {
        let entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        let mut largest: Vec<_> = entries
            .iter()
            .map(|FollowedSubject { subject, count, error, limit, .. }| TopSubject {
                subject: subject.clone(),
                count: *count,
                error: *error,
                denied_by: limit.and_then(&names_of),
            })
            .collect();
        drop(entries);
        largest.sort_by_key(|top: &TopSubject| std::cmp::Reverse(top.count));
        largest
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Limits of 2^53 units, used up 2048 times within a millisecond, have this sum.
    #[test]
    fn counts_that_do_not_fit_stay_at_the_largest_number() {
        let top = TopSubjects::default();
        let subject = |n: usize| Subject::user(&n.to_string());
        for n in 0..=FOLLOWED {
            assert!(top.try_add(&subject(n), u64::MAX, None));
            assert!(top.try_add(&subject(n), u64::MAX, None));
        }
        assert!(top.largest(|_| None).iter().all(|top| top.count == u64::MAX));
    }

    #[test]
    fn frequent_subjects_are_found_among_a_hundred_thousand_invented_ones() {
        let top = TopSubjects::default();
        for n in 0..100_000 {
            assert!(top.try_add(&Subject::consumer(&format!("invented-{n}")), 1, None));
            if n % 20 == 0 {
                assert!(top.try_add(&Subject::consumer(&format!("busy-{}", n % 60)), 5, None));
            }
        }
        let largest = top.largest(|_| None);
        assert_eq!(largest.len(), FOLLOWED);
        let mut busiest: Vec<_> =
            largest[..3].iter().map(|entry| entry.subject.id().to_string()).collect();
        busiest.sort();
        assert_eq!(busiest, ["busy-0", "busy-20", "busy-40"]);
        for TopSubject { count, error, .. } in &largest[..3] {
            assert!(*count >= 8_330 && count - error <= 8_335, "{count} with error {error}");
        }
    }
}
