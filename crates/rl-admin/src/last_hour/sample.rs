use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use rl_core::stats::{Histogram, LimiterStats, OTHER_NAME, StoreStats};
use rl_core::time::Timestamp;

/// The number of limits whose denials a sample contains by name. The denials of all other limits
/// are added up.
const NAMED: usize = 31;

/// The differences of the counts between two times.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Sample {
    pub(crate) start: Timestamp,
    pub(crate) end: Timestamp,
    pub(crate) allowed: u64,
    /// The denied requests, without those that the failure policy rejected.
    pub(crate) denied: u64,
    /// The denials of limits in shadow. A request that two limits would deny counts twice.
    pub(crate) shadow: u64,
    pub(crate) fallback: u64,
    pub(crate) failed_open: u64,
    pub(crate) failed_closed: u64,
    pub(crate) store_failures: u64,
    /// Whether the circuit breaker was open at the beginning or at the end of the sample.
    pub(crate) is_breaker_open: bool,
    /// The counts of the buckets of [`times`].
    pub(crate) times: Vec<u64>,
    /// The limits that denied requests, those with the most denials first.
    pub(crate) denials: Vec<LimitDenials>,
}

/// The names of a limit and of its rule. The rule is empty if the limiter has no rules.
#[derive(Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct LimitPath {
    pub(crate) rule: String,
    pub(crate) limit: String,
}

/// The denials of one limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LimitDenials {
    pub(crate) path: Arc<LimitPath>,
    pub(crate) over: u64,
    pub(crate) shadow_over: u64,
}

/// Returns the histogram of the times of store calls, or of decisions if the store is in memory.
pub(crate) const fn times(stats: &LimiterStats) -> &Histogram {
    match stats.store {
        StoreStats::Memory(_) => &stats.decision_seconds,
        _ => &stats.store_seconds,
    }
}

/// The names of limits, each stored once for all samples. The set stays small, because a limiter
/// counts only a bounded number of names.
#[derive(Debug, Default)]
pub(crate) struct LimitPaths(pub(super) HashSet<Arc<LimitPath>>);

impl LimitPaths {
    fn get(&mut self, rule: &str, limit: &str) -> Arc<LimitPath> {
        let path = LimitPath { rule: rule.to_owned(), limit: limit.to_owned() };
        if let Some(known) = self.0.get(&path) {
            return known.clone();
        }
        let path = Arc::new(path);
        self.0.insert(path.clone());
        path
    }
}

impl Sample {
    /// Creates the sample from `start`, with the counts `before`, to `end`, with the counts
    /// `after`.
    pub(crate) fn between(
        (start, before): (Timestamp, &LimiterStats),
        (end, after): (Timestamp, &LimiterStats),
        paths: &mut LimitPaths,
    ) -> Self {
        let decided = |is_counted: fn(bool, &str) -> bool| {
            let sum = |stats: &LimiterStats| {
                let all = stats.decisions.iter();
                let counted = all.filter(|one| is_counted(one.is_allowed, one.origin));
                counted.map(|one| one.count).sum::<u64>()
            };
            sum(after).saturating_sub(sum(before))
        };
        let failures = |stats: &LimiterStats| -> u64 {
            stats.store_failures.iter().map(|failures| failures.count).sum()
        };
        let (times_before, times_after) = (&times(before).counts, &times(after).counts);
        let earlier = times_before.iter().copied().chain(std::iter::repeat(0));
        let denials = denials(before, after, paths);
        Self {
            start,
            end,
            allowed: decided(|is_allowed, _| is_allowed),
            denied: decided(|is_allowed, origin| !is_allowed && origin != "failed_closed"),
            shadow: denials.iter().map(|denials| denials.shadow_over).sum(),
            fallback: decided(|_, origin| origin == "fallback"),
            failed_open: decided(|_, origin| origin == "failed_open"),
            failed_closed: decided(|_, origin| origin == "failed_closed"),
            store_failures: failures(after).saturating_sub(failures(before)),
            is_breaker_open: !(before.is_breaker_closed && after.is_breaker_closed),
            times: times_after
                .iter()
                .zip(earlier)
                .map(|(after, before)| after.saturating_sub(before))
                .collect(),
            denials: bounded(denials, paths),
        }
    }

    /// Returns the length in seconds.
    pub(crate) fn seconds(&self) -> f64 {
        self.end.as_micros().saturating_sub(self.start.as_micros()) as f64 / 1e6
    }
}

fn denials(
    before: &LimiterStats,
    after: &LimiterStats,
    paths: &mut LimitPaths,
) -> Vec<LimitDenials> {
    let earlier: HashMap<(&str, &str), (u64, u64)> = before
        .limits
        .iter()
        .map(|limit| ((&*limit.rule, &*limit.name), (limit.over, limit.shadow_over)))
        .collect();
    let mut denials: Vec<LimitDenials> = after
        .limits
        .iter()
        .filter_map(|limit| {
            let key = (&*limit.rule, &*limit.name);
            let (over, shadow_over) = earlier.get(&key).copied().unwrap_or_default();
            let over = limit.over.saturating_sub(over);
            let shadow_over = limit.shadow_over.saturating_sub(shadow_over);
            let path = (over + shadow_over > 0).then(|| paths.get(key.0, key.1))?;
            Some(LimitDenials { path, over, shadow_over })
        })
        .collect();
    denials.sort_by_key(|denials| std::cmp::Reverse(denials.over + denials.shadow_over));
    denials
}

/// Adds up the denials of all limits after the first [`NAMED`].
fn bounded(mut denials: Vec<LimitDenials>, paths: &mut LimitPaths) -> Vec<LimitDenials> {
    if denials.len() > NAMED + 1 {
        let others = denials.split_off(NAMED);
        denials.push(LimitDenials {
            path: paths.get(OTHER_NAME, OTHER_NAME),
            over: others.iter().map(|denials| denials.over).sum(),
            shadow_over: others.iter().map(|denials| denials.shadow_over).sum(),
        });
    }
    // Otherwise each of 400 samples would keep the capacity for all limits that denied a request.
    denials.shrink_to_fit();
    denials
}
