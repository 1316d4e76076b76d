//! Histograms with fixed buckets.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// The number of bounds of a [`TimeHistogram`].
const BOUNDS: usize = 16;

/// The bounds of the buckets for the times of decisions and store calls, in nanoseconds: 100 ns to
/// 1 s.
pub(crate) const CALL_BOUNDS: [u64; BOUNDS] = [
    100,
    1_000,
    10_000,
    50_000,
    100_000,
    250_000,
    500_000,
    1_000_000,
    2_500_000,
    5_000_000,
    10_000_000,
    25_000_000,
    50_000_000,
    100_000_000,
    250_000_000,
    1_000_000_000,
];

/// The bounds of the buckets for the times that requests wait or hold permits, in nanoseconds: 1 ms
/// to 10 minutes.
pub(crate) const REQUEST_BOUNDS: [u64; BOUNDS] = [
    1_000_000,
    5_000_000,
    10_000_000,
    25_000_000,
    50_000_000,
    100_000_000,
    250_000_000,
    500_000_000,
    1_000_000_000,
    2_500_000_000,
    5_000_000_000,
    10_000_000_000,
    30_000_000_000,
    60_000_000_000,
    300_000_000_000,
    600_000_000_000,
];

/// Numbers that were recorded, counted by size.
///
/// # Examples
///
/// ```
/// use rl_core::{Limit, RateLimiter, Subject};
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let limiter = RateLimiter::builder().limit(Limit::per_minute(100)).build()?;
/// for _ in 0..2 {
///     limiter.check(&Subject::global(), 1).await;
/// }
/// let times = limiter.stats().decision_seconds;
/// assert_eq!(times.count(), 1, "a thread times one decision in a millisecond, after the first one");
/// # Ok(()) }
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct Histogram {
    /// The upper bounds of the buckets in ascending order, without the last bucket, which has none.
    pub bounds: Vec<f64>,
    /// The count of each bucket: one for each bound, and one for the numbers above all bounds. A
    /// number is in the first bucket whose bound is at least the number.
    pub counts: Vec<u64>,
    /// The sum of all numbers.
    pub sum: f64,
}

impl Histogram {
    /// Creates a histogram from the counts of its buckets.
    pub(crate) const fn new(bounds: Vec<f64>, counts: Vec<u64>, sum: f64) -> Self {
        Self { bounds, counts, sum }
    }

    /// Returns how many numbers were recorded.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// Returns each bound with the count of all numbers up to this bound. The last bound is
    /// infinity.
    pub fn cumulative(&self) -> impl Iterator<Item = (f64, u64)> {
        let bounds = self.bounds.iter().copied().chain([f64::INFINITY]);
        bounds.zip(&self.counts).scan(0, |sum, (bound, count)| {
            *sum += count;
            Some((bound, *sum))
        })
    }
}

/// Counts times by their length.
#[derive(Debug)]
pub(crate) struct TimeHistogram {
    bounds: &'static [u64; BOUNDS],
    counts: [AtomicU64; BOUNDS + 1],
    /// The sum in nanoseconds.
    sum: AtomicU64,
}

impl Default for TimeHistogram {
    fn default() -> Self {
        Self::new(&CALL_BOUNDS)
    }
}

impl TimeHistogram {
    /// Creates an empty histogram with these bounds in nanoseconds.
    pub(crate) fn new(bounds: &'static [u64; BOUNDS]) -> Self {
        Self { bounds, counts: Default::default(), sum: AtomicU64::new(0) }
    }

    /// Records a time.
    pub(crate) fn record(&self, time: Duration) {
        let nanos = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        let bucket = self.bounds.partition_point(|bound| *bound < nanos);
        self.counts[bucket].fetch_add(1, Ordering::Relaxed);
        self.sum.fetch_add(nanos, Ordering::Relaxed);
    }

    /// Adds up `all` histograms, which have the same bounds, and converts nanoseconds to seconds.
    pub(crate) fn seconds<'a>(all: impl IntoIterator<Item = &'a Self>) -> Histogram {
        let (mut bounds, mut counts, mut sum) = (&CALL_BOUNDS, vec![0; BOUNDS + 1], 0_u64);
        for one in all {
            bounds = one.bounds;
            sum = sum.wrapping_add(one.sum.load(Ordering::Relaxed));
            for (count, of_one) in counts.iter_mut().zip(&one.counts) {
                *count += of_one.load(Ordering::Relaxed);
            }
        }
        let seconds = |nanos: u64| nanos as f64 / 1e9;
        Histogram::new(bounds.iter().copied().map(seconds).collect(), counts, seconds(sum))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_counted_in_the_first_bucket_that_holds_it() {
        let times = TimeHistogram::default();
        let recorded = [0, 100, 101, 1_000_000_000, 1_000_000_001];
        recorded.into_iter().for_each(|nanos| times.record(Duration::from_nanos(nanos)));
        let histogram = TimeHistogram::seconds([&times]);
        let last = histogram.counts.len() - 1;
        let counted = |bucket: usize| histogram.counts[bucket];
        assert_eq!((counted(0), counted(1), counted(last - 1), counted(last)), (2, 1, 1, 1));
        assert_eq!(histogram.count(), 5);
        assert!((histogram.sum - 2.000_000_202).abs() < 1e-12, "{}", histogram.sum);
        let cumulative: Vec<_> = histogram.cumulative().collect();
        assert_eq!((cumulative[0], cumulative[last]), ((1e-7, 2), (f64::INFINITY, 5)));
    }

    #[test]
    fn bounds_ascend() {
        for bounds in [CALL_BOUNDS, REQUEST_BOUNDS] {
            assert!(bounds.is_sorted());
        }
    }
}
