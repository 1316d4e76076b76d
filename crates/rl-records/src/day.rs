use std::fmt;
use std::str::FromStr;

use jiff::ToSpan;
use jiff::civil::{Date, date};
use rl_core::time::Timestamp;

/// A day in UTC, from 1970-01-01 to 9999-12-31.
///
/// # Examples
///
/// ```
/// use rl_core::time::Timestamp;
/// use rl_records::Day;
///
/// let day: Day = "2026-11-30".parse()?;
/// assert_eq!(day.month().to_string(), "2026-11-01");
/// assert_eq!(Day::of(Timestamp::from_secs(1_796_083_199)), day);
/// # Ok::<(), rl_records::InvalidDay>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Day(Date);

const MICROS: u64 = 86_400_000_000;

const FIRST: Date = date(1970, 1, 1);

impl Day {
    /// Returns the day that contains `time`. A time after the last day is in the last day.
    #[must_use]
    pub fn of(time: Timestamp) -> Self {
        Self::from_number(i64::try_from(time.as_micros() / MICROS).unwrap_or(i64::MAX))
    }

    /// Returns the first instant of the day.
    #[must_use]
    pub fn start(self) -> Timestamp {
        Timestamp::from_micros(self.number().unsigned_abs() * MICROS)
    }

    /// Returns the first day of the month.
    #[must_use]
    pub fn month(self) -> Self {
        Self(self.0.first_of_month())
    }

    /// Returns the last day of the month.
    #[must_use]
    pub fn last_of_month(self) -> Self {
        Self(self.0.last_of_month())
    }

    /// Returns the day that is `days` later, or earlier if the number is negative. The result stays
    /// between the first and the last day.
    #[must_use]
    pub fn plus(self, days: i64) -> Self {
        Self::from_number(self.number().saturating_add(days))
    }

    /// Returns the days since 1970-01-01.
    pub(crate) fn number(self) -> i64 {
        self.0.since(FIRST).map_or(0, |span| i64::from(span.get_days()))
    }

    /// Returns the day with this number of days since 1970-01-01, or the nearest possible day.
    pub(crate) fn from_number(days: i64) -> Self {
        let days = days.clamp(0, 2_932_896);
        Self(FIRST.saturating_add(days.days()))
    }
}

impl fmt::Display for Day {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl FromStr for Day {
    type Err = InvalidDay;

    fn from_str(text: &str) -> Result<Self, InvalidDay> {
        let day = text.parse().ok().filter(|day: &Date| *day >= FIRST).map(Self);
        day.filter(|day| day.to_string() == text).ok_or(InvalidDay)
    }
}

/// The error for a text that is no [`Day`].
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct InvalidDay;

rl_core::debug_as_display!(InvalidDay);

impl fmt::Display for InvalidDay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("expected a day from 1970-01-01 to 9999-12-31")
    }
}

impl std::error::Error for InvalidDay {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn days_are_counted_from_1970_and_end_at_midnight() {
        let day: Day = "2026-11-30".parse().unwrap();
        let midnight = day.plus(1).start();
        assert_eq!(Day::of(midnight).to_string(), "2026-12-01");
        assert_eq!(Day::of(Timestamp::from_micros(midnight.as_micros() - 1)), day);
        assert_eq!(day.last_of_month(), day);
        assert_eq!(Day::from_number(day.number()), day);
        assert_eq!(Day::of(Timestamp::from_micros(u64::MAX)).to_string(), "9999-12-31");
        assert_eq!(Day::of(Timestamp::EPOCH).plus(-1).to_string(), "1970-01-01");
        for text in ["", "2026-11-31", "2026-1-1", "1969-12-31", "2026-11-30T00:00", "+2026-11-30"]
        {
            assert_eq!(text.parse::<Day>(), Err(InvalidDay), "{text}");
        }
    }
}
