use std::collections::{HashMap, VecDeque};

use rl_core::Subject;
use rl_core::stats::{LimiterStats, TopSubject};
use rl_core::time::Timestamp;
use serde::Deserialize;
use utoipa::ToSchema;

/// The time between two stored lists, in microseconds.
const STEP: u64 = 60_000_000;

/// The number of subjects in a list.
const LISTED: usize = 32;

const HOUR: u64 = 3_600_000_000;

/// The number by which subjects are ordered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Ranking {
    /// The denials.
    #[default]
    Denied,
    /// The granted units.
    Used,
}

impl Ranking {
    /// Returns the name of the ranking in the API.
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Denied => "denied",
            Self::Used => "used",
        }
    }

    fn of(self, stats: &LimiterStats) -> &[TopSubject] {
        let top = match self {
            Self::Denied => &stats.top_denied,
            Self::Used => &stats.top_used,
        };
        &top[..top.len().min(LISTED)]
    }
}

/// A subject with many denials or units.
#[derive(Clone, Debug)]
pub(crate) struct TopEntry {
    pub(crate) subject: Subject,
    /// The estimated number of denials or units since the limiter was built.
    pub(crate) count: u64,
    /// The number by which `count` may be too high.
    pub(crate) error: u64,
    /// The estimated number of denials or units in the last hour.
    pub(crate) last_hour: u64,
    /// The names of the rule and of the limit of the last recorded denial.
    pub(crate) denied_by: Option<(String, String)>,
}

/// The lists of top subjects of the last hour, one for each minute.
#[derive(Debug)]
pub(super) struct TopHistory(pub(super) VecDeque<TopCounts>);

/// The counts of the top subjects at a time.
#[derive(Debug)]
pub(super) struct TopCounts {
    at: Timestamp,
    pub(super) denied: Vec<(Subject, u64)>,
    pub(super) used: Vec<(Subject, u64)>,
}

impl TopCounts {
    fn new(at: Timestamp, stats: &LimiterStats) -> Self {
        let counts = |top: &[TopSubject]| {
            top.iter().map(|entry| (entry.subject.clone(), entry.count)).collect()
        };
        Self {
            at,
            denied: counts(Ranking::Denied.of(stats)),
            used: counts(Ranking::Used.of(stats)),
        }
    }
}

impl TopHistory {
    pub(super) fn new(now: Timestamp, stats: &LimiterStats) -> Self {
        Self(VecDeque::from([TopCounts::new(now, stats)]))
    }

    /// Stores the list of this minute, and drops the lists that the last hour does not need.
    pub(super) fn update(&mut self, now: Timestamp, stats: &LimiterStats) {
        if self.0.back().is_none_or(|last| now.micros_since(last.at) >= STEP) {
            self.0.push_back(TopCounts::new(now, stats));
        }
        // Removes all lists that are at least an hour old, except the newest of them.
        while self.0.get(1).is_some_and(|second| now.micros_since(second.at) >= HOUR) {
            self.0.pop_front();
        }
    }

    /// Returns the top subjects, with their counts of the last hour.
    ///
    /// For a subject that the list of an hour ago does not contain, the count of the last hour is
    /// the whole count less the `error`. A part of it may be older.
    pub(super) fn entries(
        &self,
        ranking: Ranking,
        now: Timestamp,
        stats: &LimiterStats,
    ) -> Vec<TopEntry> {
        let earlier = self.0.iter().take_while(|one| now.micros_since(one.at) >= HOUR).last();
        let earlier = earlier.or(self.0.front()).map(|counts| match ranking {
            Ranking::Denied => &counts.denied,
            Ranking::Used => &counts.used,
        });
        let earlier: HashMap<&Subject, u64> =
            earlier.into_iter().flatten().map(|(subject, count)| (subject, *count)).collect();
        let entry = |TopSubject { subject, count, error, denied_by, .. }: &TopSubject| TopEntry {
            denied_by: denied_by.clone(),
            subject: subject.clone(),
            count: *count,
            error: *error,
            last_hour: count.saturating_sub(earlier.get(subject).copied().unwrap_or(*error)),
        };
        ranking.of(stats).iter().map(entry).collect()
    }
}

#[cfg(test)]
mod tests {
    use rl_core::{Limit, RateLimiter};

    use super::*;

    #[tokio::test]
    async fn the_count_of_the_last_hour_omits_earlier_denials() {
        let limiter = RateLimiter::builder().limit(Limit::per_day(1)).build().unwrap();
        let send = async |requests: u64| {
            for _ in 0..requests {
                limiter.check(&Subject::consumer("abc"), 1).await;
            }
            limiter.stats()
        };
        let at = |minutes: u64| Timestamp::from_secs(1_769_947_200 + 60 * minutes);
        let mut top = TopHistory::new(at(0), &send(0).await);
        let stats = send(5).await;
        let all = stats.top_denied[0].count;
        top.update(at(1), &stats);
        assert_eq!(top.entries(Ranking::Denied, at(1), &stats)[0].last_hour, all);
        for minute in 2..=60 {
            top.update(at(minute), &stats);
        }
        assert_eq!(top.entries(Ranking::Denied, at(60), &stats)[0].last_hour, all);
        top.update(at(61), &stats);
        let entry = &top.entries(Ranking::Denied, at(61), &stats)[0];
        assert_eq!((entry.count, entry.last_hour), (all, 0));
        assert!(top.0.len() <= 62);
    }
}
