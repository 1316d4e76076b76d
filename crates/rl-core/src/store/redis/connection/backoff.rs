//! Pauses between attempts, for servers that are in trouble as it is.

use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

/// How long to wait after so many failures in a row: the first pause, doubled with each further one up
/// to the longest, of which chance takes off up to a half. The instances of a service must not come
/// back in step.
pub(crate) fn pause(failures: u32, first: Duration, longest: Duration) -> Duration {
    let doubled = first.saturating_mul(1 << failures.saturating_sub(1).min(16));
    let whole = doubled.min(longest);
    let chance = RandomState::new().hash_one(failures) % 1_001;
    whole / 2 + whole.mul_f64(chance as f64 / 2_000.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_are_doubled_and_never_in_step() {
        let (first, longest) = (Duration::from_millis(25), Duration::from_millis(200));
        for (failures, whole) in [(1, 25), (2, 50), (3, 100), (4, 200), (5, 200), (u32::MAX, 200)] {
            let whole = Duration::from_millis(whole);
            let pauses: Vec<_> = (0..64).map(|_| pause(failures, first, longest)).collect();
            assert!(pauses.iter().all(|pause| (whole / 2..=whole).contains(pause)), "{pauses:?}");
            assert!(pauses.iter().any(|pause| *pause != pauses[0]));
        }
    }
}
