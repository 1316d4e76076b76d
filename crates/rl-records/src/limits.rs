use std::fmt;

use rl_core::{Limit, MAX_UNITS, Period, Policy};

use crate::error::InvalidField;

/// One of the six periods of a record.
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

    /// Returns the period of a [`Limit`].
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

/// The limit of a record for one period.
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
            // Limits are checked before they are stored. A larger limit is reduced here, in case
            // one was not checked.
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
        let limit = match number {
            -1 => Self::Unlimited,
            _ => Self::AtMost(u64::try_from(number).unwrap_or(u64::MAX)),
        };
        limit.checked().map_err(|expected| InvalidField::new(field, number, expected))
    }

    const fn checked(self) -> Result<Self, &'static str> {
        match self {
            Self::AtMost(max) if max > MAX_UNITS => {
                Err("-1 (no limit), or 0 to 9007199254740991 calls")
            }
            limit => Ok(limit),
        }
    }
}

/// The limits of the six periods.
///
/// # Examples
///
/// ```
/// use rl_records::{CallLimit, CallLimits, CallPeriod};
///
/// let limits = CallLimits::from_numbers([10, 100, -1, -1, -1, -1])?;
/// assert_eq!(limits.get(CallPeriod::Minute), CallLimit::AtMost(100));
/// assert_eq!(limits.policy().unwrap().to_string(), "second=10/second, minute=100/minute");
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

    /// Checks that every limit can be stored.
    ///
    /// # Errors
    ///
    /// Returns an error that names the first period whose limit is above [`MAX_UNITS`].
    pub(crate) fn check(&self) -> Result<(), InvalidField> {
        for period in CallPeriod::ALL {
            let limit = self.get(period);
            if let (Err(expected), CallLimit::AtMost(max)) = (limit.checked(), limit) {
                return Err(InvalidField::new(period.field(), max, expected));
            }
        }
        Ok(())
    }

    /// Returns whether a period has a limit of 0.
    pub(crate) fn has_zero(&self) -> bool {
        self.0.contains(&CallLimit::AtMost(0))
    }

    /// Returns a policy of fixed windows that begin with the first request, or `None` if there is
    /// no limit.
    #[must_use]
    #[expect(clippy::missing_panics_doc, reason = "limits of different periods make a policy")]
    pub fn policy(&self) -> Option<Policy> {
        let mut policy = Policy::builder();
        for period in CallPeriod::ALL {
            if let CallLimit::AtMost(max) = self.get(period) {
                let limit = Limit::new(max.min(MAX_UNITS), period.period());
                policy = policy.limit(limit.expect("a limit is at most MAX_UNITS"));
            }
        }
        let is_empty = policy.is_empty();
        (!is_empty).then(|| policy.build().expect("the periods differ"))
    }

    /// Returns whether a limit of [`counting_policy`](Self::counting_policy) only counts, and never
    /// denies. Display such a limit as unlimited.
    #[must_use]
    pub const fn only_counts(limit: Limit) -> bool {
        limit.is_shadow() && limit.max() == MAX_UNITS
    }

    /// Returns a policy that also counts the periods without a limit.
    ///
    /// Each of those periods gets a shadow limit of [`MAX_UNITS`], which never denies. Thus the
    /// usage is known before there is a limit, and a new limit includes earlier calls. Such a
    /// policy costs as much as six limits.
    ///
    /// # Examples
    ///
    /// ```
    /// use rl_records::{CallLimit, CallLimits, CallPeriod};
    ///
    /// let limits = CallLimits::UNLIMITED.with(CallPeriod::Minute, CallLimit::AtMost(100));
    /// assert_eq!(limits.policy().unwrap().limits().len(), 1);
    /// let counted = limits.counting_policy();
    /// assert_eq!(counted.limits().len(), 6);
    /// assert_eq!(counted.limits().iter().filter(|limit| !limit.limit().is_shadow()).count(), 1);
    /// ```
    #[must_use]
    #[expect(clippy::missing_panics_doc, reason = "limits of different periods make a policy")]
    pub fn counting_policy(&self) -> Policy {
        let limits = CallPeriod::ALL.map(|period| match self.get(period) {
            CallLimit::AtMost(max) => Limit::new(max.min(MAX_UNITS), period.period()),
            CallLimit::Unlimited => Limit::new(MAX_UNITS, period.period()).map(Limit::shadow),
        });
        let limits = limits.map(|limit| limit.expect("a limit is at most MAX_UNITS"));
        Policy::new(limits).expect("the periods differ")
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
