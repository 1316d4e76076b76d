use std::time::Duration;

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
