use std::fmt;

use super::Period;

/// The largest number of units a limit may allow: integers up to here are exact in a Lua double.
pub const MAX_UNITS: u64 = (1 << 53) - 1;

/// Where a fixed window begins.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Anchor {
    /// With the first request that is charged; the window lives one period from there.
    #[default]
    FirstRequest,
    /// At multiples of the period on the clock, in UTC. 12:00:03 belongs to the minute 12:00:00.
    /// Periods of whole weeks begin on Monday; [`Period::MONTH`] is the calendar month. Other
    /// periods count from 1970-01-01T00:00.
    Clock,
}

/// How a limit counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Algorithm {
    /// Counts what is used in a window, and forgets it when the window ends.
    FixedWindow {
        /// Where the window begins.
        anchor: Anchor,
    },
}

/// At most so many units per [`Period`], under one [`Algorithm`].
///
/// A limit of 0 blocks. "No limit" is the absence of a limit.
///
/// A limit has a text form for configuration and logs: `10/second`, `100/15minutes`,
/// `5000/day:clock`.
///
/// # Examples
///
/// ```
/// use rl_core::{Anchor, Limit, Period};
///
/// let limit = Limit::per_minute(100);
/// assert_eq!(limit.to_string(), "100/minute");
///
/// let aligned: Limit = "5000/day:clock".parse()?;
/// assert_eq!(aligned, Limit::per_day(5_000).anchored(Anchor::Clock));
/// assert_eq!(aligned.period(), Period::DAY);
/// # Ok::<(), rl_core::ParseLimitError>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Limit {
    max: u64,
    period: Period,
    algorithm: Algorithm,
}

impl Limit {
    /// Allows `max` units in each `period`, counted in fixed windows from the first request.
    ///
    /// # Errors
    ///
    /// Returns an error if `max` is above [`MAX_UNITS`].
    pub const fn new(max: u64, period: Period) -> Result<Self, InvalidLimit> {
        if max > MAX_UNITS {
            return Err(InvalidLimit { max });
        }
        Ok(Self::fixed_window(max, period))
    }

    const fn fixed_window(max: u64, period: Period) -> Self {
        let algorithm = Algorithm::FixedWindow { anchor: Anchor::FirstRequest };
        Self { max, period, algorithm }
    }

    /// Allows `max` units per second.
    #[must_use]
    pub const fn per_second(max: u32) -> Self {
        Self::fixed_window(max as u64, Period::SECOND)
    }

    /// Allows `max` units per minute.
    #[must_use]
    pub const fn per_minute(max: u32) -> Self {
        Self::fixed_window(max as u64, Period::MINUTE)
    }

    /// Allows `max` units per hour.
    #[must_use]
    pub const fn per_hour(max: u32) -> Self {
        Self::fixed_window(max as u64, Period::HOUR)
    }

    /// Allows `max` units per day.
    #[must_use]
    pub const fn per_day(max: u32) -> Self {
        Self::fixed_window(max as u64, Period::DAY)
    }

    /// Allows `max` units per week.
    #[must_use]
    pub const fn per_week(max: u32) -> Self {
        Self::fixed_window(max as u64, Period::WEEK)
    }

    /// Allows `max` units per month: 30 days, or the calendar month with [`Anchor::Clock`].
    #[must_use]
    pub const fn per_month(max: u32) -> Self {
        Self::fixed_window(max as u64, Period::MONTH)
    }

    /// The same limit with windows that begin at `anchor`.
    #[must_use]
    pub const fn anchored(mut self, anchor: Anchor) -> Self {
        self.algorithm = Algorithm::FixedWindow { anchor };
        self
    }

    /// The number of units allowed in each period.
    #[must_use]
    pub const fn max(self) -> u64 {
        self.max
    }

    /// The period.
    #[must_use]
    pub const fn period(self) -> Period {
        self.period
    }

    /// How it counts.
    #[must_use]
    pub const fn algorithm(self) -> Algorithm {
        self.algorithm
    }

    /// Whether both count in the same state, whatever their `max`.
    ///
    /// State is identified by algorithm, period and anchor. That is why a change of `max` keeps
    /// what was used.
    #[must_use]
    pub fn shares_state_with(self, other: Self) -> bool {
        self.period == other.period && self.algorithm == other.algorithm
    }
}

impl fmt::Debug for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Limit({self})")
    }
}

/// A limit that allows more units than can be counted exactly.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InvalidLimit {
    max: u64,
}

impl fmt::Display for InvalidLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a limit of {} is too large: {MAX_UNITS} at most", self.max)
    }
}

impl std::error::Error for InvalidLimit {}
