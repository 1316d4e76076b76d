use std::fmt;
use std::num::NonZeroU64;
use std::str::FromStr;
use std::time::Duration;

/// A length of time in whole milliseconds: more than zero, and at most 100 years.
///
/// Six periods have names: [`Period::SECOND`] to [`Period::MONTH`]. Two periods of the same length
/// are equal: seven days are a week, thirty days are a month.
///
/// # Examples
///
/// ```
/// use rl_core::Period;
///
/// let quarter: Period = "15minutes".parse()?;
/// assert_eq!(quarter.as_millis(), 900_000);
/// assert_eq!(Period::from_millis(60_000)?, Period::MINUTE);
/// assert_eq!(Period::MINUTE.to_string(), "minute");
/// # Ok::<(), rl_core::InvalidPeriod>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Period(NonZeroU64);

/// The name, short form and length in milliseconds of each unit. The longest comes first, because a
/// period is written in the longest unit that divides it. Names with a plural "s" are also read.
const UNITS: [(&str, &str, u64); 7] = [
    ("month", "mo", 2_592_000_000),
    ("week", "w", 604_800_000),
    ("day", "d", 86_400_000),
    ("hour", "h", 3_600_000),
    ("minute", "m", 60_000),
    ("second", "s", 1_000),
    ("ms", "ms", 1),
];

const MAX_MILLIS: u64 = 100 * 365 * 86_400_000;

impl Period {
    /// One second.
    pub const SECOND: Self = Self::known(1_000);
    /// 60 seconds.
    pub const MINUTE: Self = Self::known(60_000);
    /// 3 600 seconds.
    pub const HOUR: Self = Self::known(3_600_000);
    /// 86 400 seconds.
    pub const DAY: Self = Self::known(86_400_000);
    /// Seven days. Windows that are aligned to the clock begin on Monday.
    pub const WEEK: Self = Self::known(604_800_000);
    /// 30 days (2 592 000 s). Windows that are aligned to the clock are calendar months.
    pub const MONTH: Self = Self::known(2_592_000_000);

    /// The longest period: 100 years of 365 days.
    pub const LONGEST: Self = Self::known(MAX_MILLIS);

    /// The six named periods, shortest first.
    pub const NAMED: [Self; 6] =
        [Self::SECOND, Self::MINUTE, Self::HOUR, Self::DAY, Self::WEEK, Self::MONTH];

    const fn known(millis: u64) -> Self {
        Self(NonZeroU64::new(millis).expect("the named periods are not zero"))
    }

    /// Creates a period of `millis` milliseconds.
    ///
    /// # Errors
    ///
    /// Returns an error if `millis` is zero or longer than 100 years (of 365 days).
    pub const fn from_millis(millis: u64) -> Result<Self, InvalidPeriod> {
        match NonZeroU64::new(millis) {
            None => Err(InvalidPeriod::Zero),
            Some(_) if millis > MAX_MILLIS => Err(InvalidPeriod::TooLong),
            Some(millis) => Ok(Self(millis)),
        }
    }

    /// Returns the length in milliseconds.
    #[must_use]
    pub const fn as_millis(self) -> u64 {
        self.0.get()
    }

    /// Returns the length in microseconds.
    #[must_use]
    pub const fn as_micros(self) -> u64 {
        self.0.get() * 1_000
    }

    /// Returns the position in [`Period::NAMED`], if the period has a name.
    #[must_use]
    pub fn named_index(self) -> Option<usize> {
        Self::NAMED.iter().position(|named| *named == self)
    }

    /// Returns the period in the longest unit that divides it: the number of units, and the unit.
    pub(crate) fn count_and_unit(self) -> (u64, &'static str) {
        UNITS
            .iter()
            .find(|(_, _, length)| self.as_millis().is_multiple_of(*length))
            .map_or((self.as_millis(), "ms"), |(name, _, length)| (self.as_millis() / length, name))
    }
}

/// The text form: `second`, `15minutes`, `250ms`.
impl fmt::Display for Period {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.count_and_unit() {
            (1, unit) => f.write_str(unit),
            (count, "ms") => write!(f, "{count}ms"),
            (count, unit) => write!(f, "{count}{unit}s"),
        }
    }
}

impl fmt::Debug for Period {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Period({self})")
    }
}

impl FromStr for Period {
    type Err = InvalidPeriod;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let digits = text.bytes().take_while(u8::is_ascii_digit).count();
        let (count, unit) = text.split_at(digits);
        let count: u64 = match count {
            "" => 1,
            count => count.parse().map_err(|_| InvalidPeriod::TooLong)?,
        };
        let length = UNITS
            .iter()
            .find(|(name, short, _)| {
                unit == *short
                    || unit == *name
                    || (*name != "ms" && unit.strip_suffix('s') == Some(name))
            })
            .map(|(_, _, length)| *length)
            .ok_or(InvalidPeriod::UnknownUnit)?;
        Self::from_millis(count.checked_mul(length).ok_or(InvalidPeriod::TooLong)?)
    }
}

impl TryFrom<Duration> for Period {
    type Error = InvalidPeriod;

    /// Creates a period from a duration.
    ///
    /// # Errors
    ///
    /// Returns an error if the duration is zero, too long, or not a whole number of milliseconds.
    fn try_from(span: Duration) -> Result<Self, InvalidPeriod> {
        if !span.subsec_nanos().is_multiple_of(1_000_000) {
            return Err(InvalidPeriod::NotWholeMillis);
        }
        Self::from_millis(u64::try_from(span.as_millis()).map_err(|_| InvalidPeriod::TooLong)?)
    }
}

impl From<Period> for Duration {
    fn from(period: Period) -> Self {
        Self::from_millis(period.as_millis())
    }
}

/// The error for an invalid [`Period`].
#[derive(Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum InvalidPeriod {
    /// The period is zero.
    Zero,
    /// The period is longer than 100 years.
    TooLong,
    /// The duration is not a whole number of milliseconds.
    NotWholeMillis,
    /// The text does not end in a known unit.
    UnknownUnit,
}

debug_as_display!(InvalidPeriod);

impl fmt::Display for InvalidPeriod {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Zero => "period must not be zero",
            Self::TooLong => "period is too long: expected at most 100 years",
            Self::NotWholeMillis => "period must be a whole number of milliseconds",
            Self::UnknownUnit => {
                "a period is an optional count and, in lower case, ms, second or s, minute or m, \
                 hour or h, day or d, week or w, month or mo"
            }
        })
    }
}

impl std::error::Error for InvalidPeriod {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[rustfmt::skip]
    fn text_forms() {
        let cases = [
            // read        | millis          | written
            ("second",       1_000,            "second"),
            ("1s",           1_000,            "second"),
            ("1000ms",       1_000,            "second"),
            ("ms",           1,                "ms"),
            ("250ms",        250,              "250ms"),
            ("90s",          90_000,           "90seconds"),
            ("15minutes",    900_000,          "15minutes"),
            ("60m",          3_600_000,        "hour"),
            ("24h",          86_400_000,       "day"),
            ("7d",           604_800_000,      "week"),
            ("30days",       2_592_000_000,    "month"),
            ("2mo",          5_184_000_000,    "2months"),
        ];
        for (read, millis, written) in cases {
            let period: Period = read.parse().unwrap();
            assert_eq!(period.as_millis(), millis, "{read}");
            assert_eq!(period.to_string(), written, "{read}");
        }
    }

    #[test]
    fn invalid_periods_say_why() {
        let why = |text: &str| text.parse::<Period>().unwrap_err();
        assert_eq!(why("0s"), InvalidPeriod::Zero);
        assert_eq!(why("101000d"), InvalidPeriod::TooLong);
        assert_eq!(why("99999999999999999999s"), InvalidPeriod::TooLong);
        assert_eq!(why("18446744073709551615w"), InvalidPeriod::TooLong);
        for text in ["", "1", "fortnight", "1 s", "mss", "-1s", "secondss"] {
            assert_eq!(why(text), InvalidPeriod::UnknownUnit, "{text}");
        }
        assert_eq!(
            Period::try_from(Duration::from_micros(1)).unwrap_err(),
            InvalidPeriod::NotWholeMillis
        );
    }
}
