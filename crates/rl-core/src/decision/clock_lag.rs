//! How far the clock of a store is behind the time of a decision.

use std::time::Duration;

use crate::time::Timestamp;

/// The time by which the clock of a store was behind the time of a decision.
///
/// No decision is made before the last change of its subject. If the clock has stepped back since
/// then, no time passes for the subject until the clock reaches the last change again. Waits
/// include this time.
///
/// It is stored in whole milliseconds, rounded up, so that it takes the space that a decision has
/// left. A lag of more than 49 days is stored as 49 days.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ClockLag(u32);

impl ClockLag {
    pub(crate) const NONE: Self = Self(0);

    /// The largest difference in µs that is no lag. Several processors, or two decisions in one
    /// microsecond, cause smaller ones.
    pub(crate) const TOLERANCE_MICROS: u64 = 1_000;

    /// Returns the lag of a `clock` behind a decision at `at`.
    pub(crate) const fn new(at: Timestamp, clock: Timestamp) -> Self {
        let micros = at.as_micros().saturating_sub(clock.as_micros());
        if micros > Self::TOLERANCE_MICROS { Self::from_micros(micros) } else { Self::NONE }
    }

    #[cold]
    const fn from_micros(micros: u64) -> Self {
        let millis = micros.div_ceil(1_000);
        Self(if millis > u32::MAX as u64 { u32::MAX } else { millis as u32 })
    }

    const fn as_micros(self) -> u64 {
        self.0 as u64 * 1_000
    }

    /// Returns the lag after `micros` microseconds on the clock, and those of them that pass after
    /// the lag has ended.
    #[cfg(feature = "redis")]
    pub(super) const fn after(self, micros: u64) -> (Self, u64) {
        match self.as_micros().checked_sub(micros) {
            _ if self.0 == 0 => (self, micros),
            Some(left) => (Self::from_micros(left), 0),
            None => (Self::NONE, micros - self.as_micros()),
        }
    }

    pub(super) const fn duration(self) -> Duration {
        Duration::from_micros(self.as_micros())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lag_is_rounded_up_to_milliseconds_and_ends_as_the_clock_runs() {
        let lag = |micros: u64| ClockLag::new(Timestamp::from_micros(5_000_000 + micros), five());
        assert_eq!([0, 1_000, 1_001, 2_000].map(|micros| lag(micros).0), [0, 0, 2, 2]);
        assert_eq!(ClockLag::new(five(), Timestamp::from_secs(6)), ClockLag::NONE);
        assert_eq!(ClockLag::new(Timestamp::from_micros(u64::MAX), Timestamp::EPOCH).0, u32::MAX);
        #[cfg(feature = "redis")]
        {
            assert_eq!(lag(9_000).after(1_500), (ClockLag(8), 0));
            assert_eq!(lag(9_000).after(9_000), (ClockLag::NONE, 0));
            assert_eq!(lag(9_000).after(9_700), (ClockLag::NONE, 700));
            assert_eq!(ClockLag::NONE.after(700), (ClockLag::NONE, 700));
        }
    }

    fn five() -> Timestamp {
        Timestamp::from_secs(5)
    }
}
