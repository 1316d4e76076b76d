//! Comparisons on a machine with varying load. The contenders run in one process, in short blocks
//! that take turns, so that a slow phase affects all of them.

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

/// Runs `work`. Returns the time that it took, and its result.
#[expect(clippy::disallowed_methods, reason = "measuring time is what this program is for")]
pub(crate) async fn time_async<T>(work: impl Future<Output = T>) -> (Duration, T) {
    let start = Instant::now();
    let result = work.await;
    (start.elapsed(), result)
}

/// Runs `work`, which must stay on this thread. Returns its processor time, and its result. Other
/// processes do not affect the time.
pub(crate) fn time_on_processor<T>(work: impl FnOnce() -> T) -> (Duration, T) {
    let start = processor_time(ClockId::ThreadCPUTime);
    let result = work();
    (processor_time(ClockId::ThreadCPUTime) - start, result)
}

/// Returns the processor time of all threads of this process.
pub(crate) fn process_time() -> Duration {
    processor_time(ClockId::ProcessCPUTime)
}

fn processor_time(clock: ClockId) -> Duration {
    Duration::try_from(clock_gettime(clock)).expect("it begins at 0")
}

/// Returns the number of processors.
pub(crate) fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, |count| count.get())
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
            median(drawn.collect())
        };
        let medians = sorted((0..RESAMPLES).map(|_| resample()).collect());
        let [low, high] = [0.025, 0.975].map(|q| quantile(&medians, q));
        Self { median: median(samples.to_vec()), low, high }
    }
}

impl From<f64> for Estimate {
    /// Returns an estimate of a count, which does not vary.
    fn from(count: f64) -> Self {
        Self { median: count, low: count, high: count }
    }
}

impl fmt::Display for Estimate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { median, low, high } = *self;
        match median {
            _ if low < high => write!(f, "{median:.2} [{low:.2}, {high:.2}]"),
            _ if median.is_nan() => Ok(()),
            _ if median.fract() == 0.0 || median >= 100.0 => write!(f, "{median:.0}"),
            _ if median >= 10.0 => write!(f, "{median:.1}"),
            _ => write!(f, "{median:.2}"),
        }
    }
}

/// The measured quantities of contenders that take turns: `N` quantities for each contender in each
/// round.
#[derive(Clone, Debug)]
pub(crate) struct Race<const N: usize = 1>(Vec<Vec<[f64; N]>>);

/// A turn of a contender in a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Turn {
    pub(crate) contender: usize,
    /// The number of the round. Round 0 only warms up caches, and is not recorded.
    pub(crate) round: usize,
}

impl<const N: usize> Race<N> {
    pub(crate) fn new(contenders: usize) -> Self {
        Self(vec![Vec::new(); contenders])
    }

    /// Returns the turns of all rounds. In each round every contender has two turns, in forward and
    /// in reverse order, so that a steady drift of the machine's speed cancels out.
    pub(crate) fn turns(&self, rounds: usize) -> impl Iterator<Item = Turn> + use<N> {
        let count = self.0.len();
        (0..=rounds).flat_map(move |round| {
            let order = (0..count).chain((0..count).rev());
            order.map(move |contender| Turn { contender, round })
        })
    }

    /// Runs all rounds. `measure` measures a turn.
    pub(crate) fn run(
        contenders: usize,
        rounds: usize,
        mut measure: impl FnMut(Turn) -> [f64; N],
    ) -> Self {
        let mut race = Self::new(contenders);
        for turn in race.turns(rounds) {
            race.record(turn, measure(turn));
        }
        race
    }

    /// Records the quantities of a turn. The quantities of a round are the means of both turns.
    pub(crate) fn record(&mut self, Turn { contender, round }: Turn, quantities: [f64; N]) {
        let rounds = &mut self.0[contender];
        match round.checked_sub(1) {
            None => {}
            Some(place) if place < rounds.len() => {
                let halves = rounds[place].iter_mut().zip(quantities);
                halves.for_each(|(sum, quantity)| *sum += quantity / 2.0);
            }
            Some(_) => rounds.push(quantities.map(|quantity| quantity / 2.0)),
        }
    }

    /// Returns the values of a quantity in all rounds.
    pub(crate) fn samples(&self, contender: usize, quantity: usize) -> Vec<f64> {
        self.0[contender].iter().map(|round| round[quantity]).collect()
    }

    /// Returns the median of a quantity, or NaN if nothing was measured.
    pub(crate) fn median(&self, contender: usize, quantity: usize) -> f64 {
        median(self.samples(contender, quantity))
    }

    /// Estimates the quantity of a contender as a multiple of the quantity of another one.
    pub(crate) fn multiple(&self, contender: usize, beside: usize, quantity: usize) -> Estimate {
        let samples = self.samples(contender, quantity).into_iter();
        let pairs = samples.zip(self.samples(beside, quantity));
        Estimate::of(&pairs.map(|(one, other)| one / other).collect::<Vec<_>>())
    }
}

/// Returns the median, or NaN if there are no samples.
pub(crate) fn median(samples: Vec<f64>) -> f64 {
    quantile(&sorted(samples), 0.5)
}

/// Returns the samples in ascending order.
pub(crate) fn sorted(mut samples: Vec<f64>) -> Vec<f64> {
    samples.sort_by(f64::total_cmp);
    samples
}

/// Returns a quantile, interpolated between the two nearest samples.
pub(crate) fn quantile(sorted: &[f64], q: f64) -> f64 {
    let place = q * sorted.len().saturating_sub(1) as f64;
    match (sorted.get(place.floor() as usize), sorted.get(place.ceil() as usize)) {
        (Some(below), Some(above)) => below + (above - below) * place.fract(),
        _ => f64::NAN,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_of_odd_even_and_no_samples() {
        assert_eq!(median(vec![3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(vec![4.0, 1.0, 2.0, 3.0]), 2.5);
        assert!(median(Vec::new()).is_nan());
    }

    #[test]
    fn an_interval_holds_the_median_and_no_outlier() {
        let mut samples: Vec<f64> = (0..41).map(|n| 1.0 + f64::from(n % 5) / 100.0).collect();
        samples[7] = 90.0;
        assert_eq!(Estimate::of(&samples).to_string(), "1.02 [1.01, 1.03]");
    }

    #[test]
    fn contenders_take_turns_in_both_orders_and_the_first_round_is_not_recorded() {
        let mut race = Race::new(2);
        let turns: Vec<Turn> = race.turns(2).collect();
        assert_eq!(
            turns.iter().map(|turn| turn.contender).collect::<Vec<_>>(),
            [0, 1, 1, 0].repeat(3)
        );
        for (place, turn) in turns.into_iter().enumerate() {
            race.record(turn, [(1 + turn.contender) as f64 * place as f64]);
        }
        assert_eq!((race.samples(0, 0), race.samples(1, 0)), (vec![5.5, 9.5], vec![11.0, 19.0]));
        assert_eq!(race.multiple(1, 0, 0).to_string(), "2");
    }
}
