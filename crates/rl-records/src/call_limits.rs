use std::fmt;

use rl_core::{MAX_UNITS, Period};

use crate::error::InvalidField;

/// One of the six periods of [`CallLimits`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CallPeriod {
    /// One second.
    Second,
    /// 60 seconds.
    Minute,
    /// 3 600 seconds.
    Hour,
    /// 24 hours.
    Day,
    /// Seven days.
    Week,
    /// 30 days.
    Month,
}

impl CallPeriod {
    /// All six periods, the shortest first.
    pub const ALL: [Self; 6] =
        [Self::Second, Self::Minute, Self::Hour, Self::Day, Self::Week, Self::Month];

    /// Returns the name of the field for this period, such as `per_minute_call_limit`.
    #[must_use]
    pub const fn field(self) -> &'static str {
        match self {
            Self::Second => "per_second_call_limit",
            Self::Minute => "per_minute_call_limit",
            Self::Hour => "per_hour_call_limit",
            Self::Day => "per_day_call_limit",
            Self::Week => "per_week_call_limit",
            Self::Month => "per_month_call_limit",
        }
    }

    /// Returns the period of a [`Limit`](rl_core::Limit).
    #[must_use]
    pub const fn period(self) -> Period {
        match self {
            Self::Second => Period::SECOND,
            Self::Minute => Period::MINUTE,
            Self::Hour => Period::HOUR,
            Self::Day => Period::DAY,
            Self::Week => Period::WEEK,
            Self::Month => Period::MONTH,
        }
    }
}

/// The limit of one period.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CallLimit {
    /// No limit in this period, which is written as −1.
    Unlimited,
    /// At most this number of calls. [`ZeroMeans`] sets the meaning of 0.
    AtMost(u64),
}

impl CallLimit {
    /// Returns the number that represents the limit in tables and documents: −1 means no limit.
    #[must_use]
    pub const fn as_number(self) -> i64 {
        match self {
            Self::Unlimited => -1,
            // `from_number` accepts no larger limit, but the variant can be made with one.
            Self::AtMost(max) if max <= MAX_UNITS => max.cast_signed(),
            Self::AtMost(_) => MAX_UNITS.cast_signed(),
        }
    }

    /// Reads the limit of `field` from a number.
    ///
    /// # Errors
    ///
    /// Returns an error that names `field` unless the number is −1, or 0 to [`MAX_UNITS`].
    pub fn from_number(field: &'static str, number: i64) -> Result<Self, InvalidField> {
        match u64::try_from(number) {
            Ok(max) if max <= MAX_UNITS => Ok(Self::AtMost(max)),
            _ if number == -1 => Ok(Self::Unlimited),
            _ => {
                let expected = "-1 (no limit), or 0 to 9007199254740991 calls";
                Err(InvalidField::new(field, number, expected))
            }
        }
    }
}

/// The limits of the six periods, as open banking systems write them.
///
/// They convert to [`Limits`](crate::Limits): fixed windows that begin with the first request.
///
/// # Examples
///
/// ```
/// use rl_records::{CallLimit, CallLimits, CallPeriod, Limits};
///
/// let limits = CallLimits::from_numbers([10, 100, -1, -1, -1, -1])?;
/// assert_eq!(limits.get(CallPeriod::Minute), CallLimit::AtMost(100));
/// assert_eq!(Limits::from(limits).to_string(), "10/second, 100/minute");
///
/// let wrong = CallLimits::from_numbers([10, -5, -1, -1, -1, -1]).unwrap_err();
/// assert_eq!(
///     wrong.to_string(),
///     "per_minute_call_limit \"-5\": expected -1 (no limit), or 0 to 9007199254740991 calls"
/// );
/// # Ok::<(), rl_records::InvalidField>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct CallLimits([CallLimit; 6]);

impl CallLimits {
    /// No limit in any period.
    pub const UNLIMITED: Self = Self([CallLimit::Unlimited; 6]);

    /// A limit of 0 in every period.
    pub const BLOCKED: Self = Self([CallLimit::AtMost(0); 6]);

    /// Reads the limits from six numbers, the shortest period first.
    ///
    /// # Errors
    ///
    /// Returns the error of [`CallLimit::from_number`].
    pub fn from_numbers(numbers: [i64; 6]) -> Result<Self, InvalidField> {
        let mut limits = Self::UNLIMITED;
        for (period, number) in CallPeriod::ALL.into_iter().zip(numbers) {
            limits = limits.with(period, CallLimit::from_number(period.field(), number)?);
        }
        Ok(limits)
    }

    /// Returns the six numbers, the shortest period first.
    #[must_use]
    pub fn numbers(&self) -> [i64; 6] {
        self.0.map(CallLimit::as_number)
    }

    /// Returns the limit of one period.
    #[must_use]
    pub const fn get(&self, period: CallPeriod) -> CallLimit {
        self.0[period as usize]
    }

    /// Returns these limits with another limit for one period.
    #[must_use]
    pub const fn with(mut self, period: CallPeriod, limit: CallLimit) -> Self {
        self.0[period as usize] = limit;
        self
    }
}

/// Writes the six numbers, the shortest period first.
impl fmt::Debug for CallLimits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("CallLimits").field(&self.numbers()).finish()
    }
}

/// The meaning of 0 as the combined limit of a period. The limit is 0 if an active record has 0 and
/// no other has a positive number. (−1 is no limit, and does not count.) Without active records, it
/// is 0 if the defaults have 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum ZeroMeans {
    /// No call is allowed.
    #[default]
    Blocked,
    /// Like −1: no limit. Older open banking systems use 0 in this way.
    Unlimited,
}
