//! The sequences of keys that the measurements visit, and the share of visits that must be denied.

use fastrand::Rng;

/// The bit that marks the visits that must be denied, because the limit of their key is used up.
pub(crate) const USED_UP: u32 = 1 << 31;

/// The exponent of the Zipf distribution.
pub(crate) const ZIPF: f64 = 0.99;

/// The share of denied requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mix {
    Allowed,
    Half,
    Denied,
}

impl Mix {
    pub(crate) const ALL: [Self; 3] = [Self::Allowed, Self::Half, Self::Denied];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Allowed => "allowed",
            Self::Half => "half denied",
            Self::Denied => "denied",
        }
    }

    /// Marks the visits that must be denied: a random share of `visits`.
    pub(crate) fn of(self, visits: &[u32]) -> Vec<u32> {
        let mut rng = Rng::with_seed(4);
        let used_up = |rng: &mut Rng| match self {
            Self::Allowed => false,
            Self::Half => rng.bool(),
            Self::Denied => true,
        };
        visits.iter().map(|key| if used_up(&mut rng) { key | USED_UP } else { *key }).collect()
    }
}

/// Returns how many of the visits must be allowed.
pub(crate) fn count_to_allow(visits: &[u32]) -> usize {
    visits.iter().filter(|key| *key & USED_UP == 0).count()
}

/// Returns `count` visits of the keys below `keys`, uniformly distributed.
pub(crate) fn uniform(keys: usize, count: usize, seed: u64) -> Vec<u32> {
    let mut rng = Rng::with_seed(seed);
    (0..count).map(|_| rng.u32(..keys as u32)).collect()
}

/// Returns `count` visits of `keys`. The probability of the n-th key is proportional to `1 /
/// n^exponent`.
pub(crate) fn zipf(keys: &[u32], exponent: f64, count: usize, seed: u64) -> Vec<u32> {
    let mut sum = 0.0;
    let sums: Vec<f64> = (1..=keys.len())
        .map(|rank| {
            sum += (rank as f64).powf(-exponent);
            sum
        })
        .collect();
    let mut rng = Rng::with_seed(seed);
    let rank = |drawn: f64| sums.partition_point(|sum| *sum <= drawn).min(keys.len() - 1);
    (0..count).map(|_| keys[rank(rng.f64() * sum)]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_zipf_workload_has_the_frequencies_of_its_formula() {
        const COUNT: usize = 200_000;
        let keys: Vec<u32> = (0..1_000).rev().collect();
        let visits = zipf(&keys, 0.99, COUNT, 1);
        let sum: f64 = (1..=1_000).map(|rank| f64::from(rank).powf(-0.99)).sum();
        for rank in [1_u32, 2, 10, 100] {
            let expected = COUNT as f64 * f64::from(rank).powf(-0.99) / sum;
            let came = visits.iter().filter(|key| **key == 1_000 - rank).count() as f64;
            // The frequency is within five standard deviations.
            assert!((came - expected).abs() < 5.0 * expected.sqrt(), "{rank}: {came}, {expected}");
        }
    }

    #[test]
    fn a_uniform_workload_visits_all_keys() {
        let mut visits = uniform(100, 10_000, 1);
        visits.sort_unstable();
        visits.dedup();
        assert_eq!(visits, (0..100).collect::<Vec<_>>());
    }

    #[test]
    fn a_mix_marks_denied_visits_and_keeps_the_keys() {
        let visits = uniform(100, 10_000, 1);
        for (mix, part) in [(Mix::Allowed, 1.0), (Mix::Half, 0.5), (Mix::Denied, 0.0)] {
            let mixed = mix.of(&visits);
            assert!(mixed.iter().zip(&visits).all(|(mixed, key)| mixed & !USED_UP == *key));
            let passing = count_to_allow(&mixed) as f64 / 10_000.0;
            assert!((passing - part).abs() < 0.05, "{mix:?}: {passing}");
        }
    }
}
