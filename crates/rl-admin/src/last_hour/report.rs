use std::collections::BTreeMap;
use std::sync::Arc;

use rl_core::stats::LimiterStats;
use rl_core::time::Timestamp;

use super::sample::{LimitPath, Sample};
use super::top::TopEntry;

/// The last hour of a limiter.
#[derive(Clone, Debug)]
pub(crate) struct HourReport {
    /// The time an hour ago.
    pub(crate) start: Timestamp,
    pub(crate) now: Timestamp,
    /// The time at which sampling started, even if that is more than an hour ago: the start of the
    /// process, or the last time at which the clock stepped back.
    pub(crate) begun: Timestamp,
    /// Whether sampling started because the clock stepped back.
    pub(crate) has_stepped_back: bool,
    /// The counts now.
    pub(crate) stats: LimiterStats,
    /// The samples, the earliest first.
    pub(crate) samples: Vec<Sample>,
    /// The upper bounds of [`Sample::times`] in seconds.
    pub(crate) bounds: Vec<f64>,
    pub(crate) top_denied: Vec<TopEntry>,
    pub(crate) top_used: Vec<TopEntry>,
}

/// The denials of one limit in the last hour.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LimitSums {
    pub(crate) path: Arc<LimitPath>,
    pub(crate) over: u64,
    pub(crate) shadow_over: u64,
}

impl HourReport {
    /// Returns whether sampling started within the last hour.
    pub(crate) fn is_partial(&self) -> bool {
        self.begun > self.start
    }

    /// Returns the sum of `number` over all samples.
    pub(crate) fn sum(&self, number: impl Fn(&Sample) -> u64) -> u64 {
        self.samples.iter().map(number).sum()
    }

    /// Returns the quantile `q` of the times of store calls in the hour, in seconds. If the store
    /// is in memory, these are the times of decisions. Returns `None` if none was timed.
    pub(crate) fn quantile(&self, q: f64) -> Option<f64> {
        quantile(&self.bounds, &self.times(), q)
    }

    /// Returns how many store calls, or decisions in memory, were timed in the hour.
    pub(crate) fn timed(&self) -> u64 {
        self.times().iter().sum()
    }

    fn times(&self) -> Vec<u64> {
        add_times(&self.samples)
    }

    /// Returns the denials of the hour by limit, the largest number first.
    pub(crate) fn denials(&self) -> Vec<LimitSums> {
        let mut sums = BTreeMap::<&Arc<LimitPath>, (u64, u64)>::new();
        for denials in self.samples.iter().flat_map(|sample| &sample.denials) {
            let (over, shadow_over) = sums.entry(&denials.path).or_default();
            *over += denials.over;
            *shadow_over += denials.shadow_over;
        }
        let sum = |(path, (over, shadow_over)): (&Arc<LimitPath>, (u64, u64))| LimitSums {
            path: path.clone(),
            over,
            shadow_over,
        };
        let mut denials: Vec<LimitSums> = sums.into_iter().map(sum).collect();
        denials.sort_by_key(|sums| std::cmp::Reverse((sums.over, sums.shadow_over)));
        denials
    }

    /// Groups the samples into spans of `micros`, which end at multiples of `micros`. Returns the
    /// start and the samples of each span.
    pub(crate) fn by_span(&self, micros: u64) -> Vec<(Timestamp, Vec<&Sample>)> {
        let mut spans = BTreeMap::<u64, Vec<&Sample>>::new();
        for sample in &self.samples {
            let span = sample.end.as_micros().saturating_sub(1) / micros;
            spans.entry(span).or_default().push(sample);
        }
        let start = |span: u64| Timestamp::from_micros(span * micros);
        spans.into_iter().map(|(span, samples)| (start(span), samples)).collect()
    }
}

/// Adds up the buckets of samples.
pub(crate) fn add_times<'a>(samples: impl IntoIterator<Item = &'a Sample>) -> Vec<u64> {
    let mut sums = Vec::new();
    for sample in samples {
        sums.resize(sums.len().max(sample.times.len()), 0);
        for (sum, count) in sums.iter_mut().zip(&sample.times) {
            *sum += count;
        }
    }
    sums
}

/// Returns a quantile of times that are counted in buckets, or `None` if nothing was counted.
///
/// The position within a bucket is interpolated, as Prometheus does. For the last bucket, which has
/// no upper bound, the result is its lower bound.
pub(crate) fn quantile(bounds: &[f64], counts: &[u64], q: f64) -> Option<f64> {
    let total: u64 = counts.iter().sum();
    if total == 0 {
        return None;
    }
    let rank = q * total as f64;
    let mut below = 0;
    for (place, count) in counts.iter().enumerate() {
        let lower = if place == 0 { 0.0 } else { bounds[place - 1] };
        if *count > 0 && (below + count) as f64 >= rank {
            let Some(upper) = bounds.get(place) else { return Some(lower) };
            let share = (rank - below as f64) / *count as f64;
            return Some(lower + (upper - lower) * share.clamp(0.0, 1.0));
        }
        below += count;
    }
    bounds.last().copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_interpolated_within_their_bucket() {
        let bounds = [0.001, 0.002, 0.004];
        assert_eq!(quantile(&bounds, &[0, 0, 0, 0], 0.5), None);
        assert_eq!(quantile(&bounds, &[0, 10, 0, 0], 0.5), Some(0.0015));
        assert_eq!(quantile(&bounds, &[50, 49, 1, 0], 0.99), Some(0.002));
        assert_eq!(quantile(&bounds, &[0, 0, 0, 7], 0.5), Some(0.004));
    }
}
