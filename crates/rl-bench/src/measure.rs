//! Comparisons on a machine with varying load. Both candidates run in one process, in short blocks
//! that alternate, so that a slow phase affects both.

use std::fmt;
use std::time::{Duration, Instant};

use fastrand::Rng;
use rustix::time::{ClockId, clock_gettime};
use serde::Serialize;

/// The number of bootstrap resamples. It is so large that the ends of a confidence interval are
/// stable to two digits.
const RESAMPLES: usize = 2_000;

/// Runs `work`. Returns the time that it took, and its result.
#[expect(clippy::disallowed_methods, reason = "measuring time is what this program is for")]
pub(crate) fn time<T>(work: impl FnOnce() -> T) -> (Duration, T) {
    let start = Instant::now();
    let result = work();
    (start.elapsed(), result)
}

/// Runs `work`, which must stay on this thread. Returns its processor time, and its result. Other
/// processes do not affect the time.
pub(crate) fn time_on_processor<T>(work: impl FnOnce() -> T) -> (Duration, T) {
    let start = processor_time();
    let result = work();
    (processor_time() - start, result)
}

/// Returns the processor time of this thread.
fn processor_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::try_from(time).expect("it begins at 0")
}

/// Returns the processor time of all threads of this process.
pub(crate) fn process_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::try_from(time).expect("it begins at 0")
}

/// Runs `work`. Returns the time that it took, and its result.
#[expect(clippy::disallowed_methods, reason = "measuring time is what this program is for")]
pub(crate) async fn time_async<T>(work: impl Future<Output = T>) -> (Duration, T) {
    let start = Instant::now();
    let result = work.await;
    (start.elapsed(), result)
}

/// Returns the median, or NaN if there are no samples.
pub(crate) fn median(samples: &[f64]) -> f64 {
    quantile(&sorted(samples), 0.5)
}

/// A median, with the interval that contains the true median in 95 of 100 runs.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Estimate {
    pub(crate) median: f64,
    pub(crate) low: f64,
    pub(crate) high: f64,
}

impl Estimate {
    /// Estimates the median of `samples`. The interval is found by bootstrapping: it is the spread
    /// of the medians of random resamples.
    pub(crate) fn of(samples: &[f64]) -> Self {
        let mut rng = Rng::with_seed(1);
        let mut resample = || -> f64 {
            let drawn = samples.iter().map(|_| samples[rng.usize(..samples.len())]);
            median(&drawn.collect::<Vec<_>>())
        };
        let medians = sorted(&(0..RESAMPLES).map(|_| resample()).collect::<Vec<_>>());
        Self {
            median: median(samples),
            low: quantile(&medians, 0.025),
            high: quantile(&medians, 0.975),
        }
    }
}

impl fmt::Display for Estimate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { median, low, high } = self;
        write!(f, "{median:.2}x [{low:.2}, {high:.2}]")
    }
}

/// Runs rounds with both candidates. Returns the factor by which ours is faster.
///
/// Each round has four blocks: ours, theirs, theirs, ours. A block receives the number of its slice
/// of the work, and returns the nanoseconds for each decision. Both candidates do every slice once.
pub(crate) fn compare(
    rounds: usize,
    ours: impl FnMut(usize) -> f64,
    theirs: impl FnMut(usize) -> f64,
) -> Estimate {
    let measured = in_turns(rounds, ours, theirs);
    let ratios: Vec<f64> = measured.iter().map(|(ours, theirs)| theirs / ours).collect();
    Estimate::of(&ratios)
}

/// Runs rounds with both candidates, as [`compare`] does. Returns the nanoseconds for each decision
/// of ours and of theirs in each round.
fn in_turns(
    rounds: usize,
    mut ours: impl FnMut(usize) -> f64,
    mut theirs: impl FnMut(usize) -> f64,
) -> Vec<(f64, f64)> {
    let mut round = |n: usize| {
        let (first, second) = (2 * n, 2 * n + 1);
        let (a, b) = (ours(first), theirs(first));
        let (c, d) = (theirs(second), ours(second));
        ((a + d) / 2.0, (b + c) / 2.0)
    };
    round(rounds); // This round only warms up caches and branch predictors.
    (0..rounds).map(round).collect()
}

/// Returns the 99th percentile, or NaN if there are no samples.
pub(crate) fn p99(samples: &[f64]) -> f64 {
    quantile(&sorted(samples), 0.99)
}

/// Returns the samples in ascending order.
pub(crate) fn sorted(samples: &[f64]) -> Vec<f64> {
    let mut sorted = samples.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted
}

/// Returns a quantile, interpolated between the two nearest samples.
pub(crate) fn quantile(sorted: &[f64], q: f64) -> f64 {
    let place = q * sorted.len().saturating_sub(1) as f64;
    let (below, above) = (place.floor() as usize, place.ceil() as usize);
    match (sorted.get(below), sorted.get(above)) {
        (Some(below), Some(above)) => below + (above - below) * place.fract(),
        _ => f64::NAN,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_waiting_thread_takes_no_processor_time() {
        let (wait, (elapsed, ())) = time(|| {
            time_on_processor(|| {
                let (_keep, never) = std::sync::mpsc::channel::<()>();
                assert!(never.recv_timeout(Duration::from_millis(50)).is_err());
            })
        });
        assert!(elapsed < wait / 2, "{elapsed:?} of {wait:?}");
        let (elapsed, sum) =
            time_on_processor(|| (0..1_000_000_u64).map(std::hint::black_box).sum::<u64>());
        assert!(sum > 0 && elapsed > Duration::ZERO);
    }

    #[test]
    fn medians_of_odd_even_and_no_samples() {
        assert_eq!(median(&[3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), 2.5);
        assert!(median(&[]).is_nan());
    }

    #[test]
    fn an_interval_holds_the_median_and_no_outlier() {
        let mut samples: Vec<f64> = (0..41).map(|n| 1.0 + f64::from(n % 5) / 100.0).collect();
        samples[7] = 90.0;
        assert_eq!(Estimate::of(&samples).to_string(), "1.02x [1.01, 1.03]");
    }

    #[test]
    fn sides_take_turns_and_do_the_same_slices() {
        let log = std::cell::RefCell::new(Vec::new());
        let block = |side: char, nanos: f64| {
            let log = &log;
            move |slice| {
                log.borrow_mut().push((side, slice));
                nanos
            }
        };
        let compared = compare(1, block('a', 10.0), block('b', 25.0));
        assert_eq!(compared.to_string(), "2.50x [2.50, 2.50]");
        let measured = log.borrow()[4..].to_vec();
        assert_eq!(measured, [('a', 0), ('b', 0), ('b', 1), ('a', 1)]);
    }
}
