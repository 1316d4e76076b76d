//! Time as the limiter sees it: whole microseconds since the Unix epoch, read from a [`Clock`].
//!
//! # Example
//!
//! ```
//! use rl_core::time::{Clock, ManualClock, Timestamp};
//! use std::time::Duration;
//!
//! let clock = ManualClock::at(Timestamp::from_secs(1_700_000_000));
//! clock.advance(Duration::from_millis(250));
//! assert_eq!(clock.now().as_micros(), 1_700_000_000_250_000);
//! ```

mod calendar;
mod clock;
mod system_clock;

use std::time::Duration;

pub(crate) use calendar::calendar_month;
pub use clock::{Clock, ManualClock, TokioClock};
#[cfg(feature = "redis")]
pub(crate) use system_clock::Counter;
pub use system_clock::SystemClock;

/// An instant: whole microseconds since 1970-01-01T00:00Z.
///
/// The unit suits the scripts on Redis. A number in Lua is a double, which holds integers exactly
/// up to 2^53. That suffices for microseconds until the year 2255, but not for nanoseconds. All
/// arithmetic saturates.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp(u64);

impl Timestamp {
    /// 1970-01-01T00:00Z.
    pub const EPOCH: Self = Self(0);

    /// Creates the instant `micros` microseconds after the epoch.
    #[must_use]
    pub const fn from_micros(micros: u64) -> Self {
        Self(micros)
    }

    /// Creates the instant `secs` seconds after the epoch.
    #[must_use]
    pub const fn from_secs(secs: u64) -> Self {
        Self(secs.saturating_mul(1_000_000))
    }

    /// Returns the microseconds since the epoch.
    #[must_use]
    pub const fn as_micros(self) -> u64 {
        self.0
    }

    /// Returns the seconds since the epoch, rounded up, so that a client that waits until this
    /// second is never too early.
    #[must_use]
    pub const fn as_secs_ceil(self) -> u64 {
        self.0.div_ceil(1_000_000)
    }

    /// Returns the instant `micros` microseconds later.
    #[must_use]
    pub const fn plus_micros(self, micros: u64) -> Self {
        Self(self.0.saturating_add(micros))
    }

    /// Returns the microseconds from `earlier` to this instant; 0 if `earlier` is not earlier.
    #[must_use]
    pub const fn micros_since(self, earlier: Self) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}

impl From<Duration> for Timestamp {
    /// Creates the instant this long after the epoch.
    fn from(since_epoch: Duration) -> Self {
        Self(u64::try_from(since_epoch.as_micros()).unwrap_or(u64::MAX))
    }
}
