use std::collections::HashMap;

use rl_core::Subject;
use rl_core::stats::{LimiterStats, TopSubject};
use rl_core::time::Timestamp;

/// The length of a step in microseconds.
pub(crate) const STEP: u64 = 10_000_000;

/// The number of steps: ten minutes.
pub(crate) const STEPS: usize = 60;

/// The number of subjects that the limiter reports, and that are kept.
const MOST: usize = 128;

/// A subject that was denied in the last ten minutes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DeniedSubject {
    pub(crate) subject: Subject,
    /// The names of the rule and of the limit of the last denial; `None` for a block.
    pub(crate) denied_by: Option<(String, String)>,
    /// The time of the first denial that followed a minute without any.
    pub(crate) since: Timestamp,
    /// The time of the last denial.
    pub(crate) last: Timestamp,
    /// The estimated denials in each step of ten seconds, the present one last.
    pub(crate) steps: Vec<u64>,
}

impl DeniedSubject {
    /// Returns the denials of the last minute.
    ///
    /// The present step has only begun, so this covers up to ten seconds more.
    pub(crate) fn last_minute(&self) -> u64 {
        self.steps.iter().rev().take(7).sum()
    }

    /// Moves the denials by `steps` into the past.
    pub(crate) fn shift(&mut self, steps: u64) {
        let steps = usize::try_from(steps).unwrap_or(STEPS).min(STEPS);
        self.steps.drain(..steps);
        self.steps.resize(STEPS, 0);
    }
}

/// The subjects that were denied in the last ten minutes.
#[derive(Debug)]
pub(super) struct DeniedSubjects {
    found: Vec<DeniedSubject>,
    /// The number of the present step.
    step: u64,
    /// The denials of each subject until the last update.
    counts: HashMap<Subject, u64>,
    /// The largest number of denials of a subject without an entry in `counts`.
    floor: u64,
}

impl DeniedSubjects {
    pub(super) fn new(now: Timestamp, stats: &LimiterStats) -> Self {
        let mut denied =
            Self { found: Vec::new(), step: 0, counts: HashMap::new(), floor: u64::MAX };
        denied.update(now, stats);
        denied
    }

    /// Adds the denials until `now`.
    ///
    /// A subject of which only a part of the denials is certainly new is counted with this part.
    pub(super) fn update(&mut self, now: Timestamp, stats: &LimiterStats) {
        let step = now.as_micros() / STEP;
        for subject in &mut self.found {
            subject.shift(step.saturating_sub(self.step));
        }
        self.step = step;
        for top in &stats.top_denied {
            let earlier = self.counts.get(&top.subject).copied();
            let earlier = earlier.unwrap_or_else(|| top.error.max(self.floor));
            let denied = top.count.saturating_sub(earlier);
            if denied > 0 {
                self.add(now, top, denied);
            }
        }
        self.counts = stats.top_denied.iter().map(|top| (top.subject.clone(), top.count)).collect();
        self.floor = match stats.top_denied.last() {
            Some(least) if stats.top_denied.len() >= MOST => least.count,
            _ => 0,
        };
        self.found.retain(|subject| subject.steps.iter().any(|denied| *denied > 0));
        self.found.sort_by_key(|subject| std::cmp::Reverse(subject.last));
        self.found.truncate(MOST);
    }

    fn add(&mut self, now: Timestamp, top: &TopSubject, denied: u64) {
        let known = self.found.iter().position(|known| known.subject == top.subject);
        let index = known.unwrap_or_else(|| {
            self.found.push(DeniedSubject {
                subject: top.subject.clone(),
                denied_by: None,
                since: now,
                last: now,
                steps: vec![0; STEPS],
            });
            self.found.len() - 1
        });
        let subject = &mut self.found[index];
        if now.micros_since(subject.last) > 60_000_000 {
            subject.since = now;
        }
        subject.last = now;
        subject.denied_by.clone_from(&top.denied_by);
        subject.steps[STEPS - 1] += denied;
    }

    /// Returns the subjects that were denied in the last minute, those with the most denials
    /// first.
    pub(super) fn of_last_minute(&self) -> Vec<DeniedSubject> {
        let denied = self.found.iter().filter(|subject| subject.last_minute() > 0);
        let mut denied: Vec<_> = denied.cloned().collect();
        denied.sort_by_key(|subject| std::cmp::Reverse(subject.last_minute()));
        denied
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use rl_core::time::ManualClock;
    use rl_core::{Limit, MemoryStore, RateLimiter};

    use super::*;

    fn at(seconds: u64) -> Timestamp {
        Timestamp::from_secs(1_769_947_200 + seconds)
    }

    /// Returns the subject, since when it is denied, and its denials in the last minute.
    fn seen(denied: &DeniedSubjects) -> Vec<(String, Timestamp, u64)> {
        let found = denied.of_last_minute().into_iter();
        found.map(|one| (one.subject.id().to_string(), one.since, one.last_minute())).collect()
    }

    #[tokio::test]
    async fn a_subject_is_listed_for_a_minute_after_its_last_denial() {
        // A limiter records the subject of one decision in a millisecond.
        let clock = Arc::new(ManualClock::at(at(0)));
        let store = MemoryStore::builder().clock(clock.clone()).build();
        let limiter = RateLimiter::builder().limit(Limit::per_day(1)).store(store).build().unwrap();
        let deny = async |id: &str| {
            for _ in 0..2 {
                clock.advance(Duration::from_millis(2));
                limiter.check(&Subject::consumer(id), 1).await;
            }
            limiter.stats()
        };
        let before = deny("early").await;
        let mut denied = DeniedSubjects::new(at(0), &before);
        assert_eq!(seen(&denied), [], "denials before the start are not new");

        denied.update(at(5), &deny("abc").await);
        assert_eq!(seen(&denied), [("abc".to_owned(), at(5), 1)]);
        assert_eq!(denied.of_last_minute()[0].denied_by, Some((String::new(), "day".to_owned())));
        for (seconds, expected) in [(60, 1), (70, 0)] {
            denied.update(at(seconds), &limiter.stats());
            assert_eq!(seen(&denied).len(), expected, "{seconds} s");
        }
        denied.update(at(599), &limiter.stats());
        assert_eq!(denied.found.len(), 1);
        denied.update(at(600), &limiter.stats());
        assert_eq!(denied.found, [], "it is forgotten after ten minutes");
    }
}
