//! Two bursts around the edge of an hour.

use std::error::Error;

use super::timeline::{START, SimulatedLimiter};

/// Makes 200 requests at 6:59 and 240 at 7:00 under `limit`. Returns how many of the 200 and of the
/// 240 are allowed.
pub(super) fn passed(limit: &str) -> Result<[usize; 2], Box<dyn Error>> {
    let counted = SimulatedLimiter::under(limit)?;
    Ok([(START - 60, 200), (START, 240)].map(|(second, requests)| {
        counted.set(second * 1_000);
        (0..requests).filter(|_| counted.passes()).count()
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Both bursts are also allowed at the edge of a window that began with a request at 6:00.
    #[test]
    fn a_window_that_began_at_six_allows_both_bursts() {
        let counted = SimulatedLimiter::under("240/hour").unwrap();
        counted.set((START - 3_600) * 1_000);
        assert!(counted.passes());
        counted.set((START - 60) * 1_000);
        assert_eq!((0..200).filter(|_| counted.passes()).count(), 200);
        counted.set(START * 1_000);
        assert_eq!((0..240).filter(|_| counted.passes()).count(), 240);
    }

    #[test]
    fn a_small_burst_cuts_both_bursts_off() {
        assert_eq!(passed("240/hour:gcra:burst=20").unwrap(), [20, 4]);
    }

    /// At 7:01, a sixtieth of the previous hour is outside of the sliding window. Of the 200
    /// requests of that hour, 4 therefore no longer count.
    #[test]
    fn units_of_the_counter_expire_evenly() {
        let counted = SimulatedLimiter::under("240/hour:sliding-window-counter").unwrap();
        counted.set((START - 60) * 1_000);
        assert_eq!((0..200).filter(|_| counted.passes()).count(), 200);
        counted.set((START + 60) * 1_000);
        assert_eq!((0..240).filter(|_| counted.passes()).count(), 44);
    }
}
