use std::fmt;
use std::time::Duration;

use super::algorithm::{MAX_BUCKETS, MAX_LOGGED, MAX_PERMITS};
use super::{Algorithm, Anchor, InvalidLimit, MAX_UNITS, Period, StateId, Unit};

/// The default lease of a permit.
pub(super) const DEFAULT_LEASE: Period = match Period::from_millis(10_000) {
    Ok(lease) => lease,
    Err(_) => panic!("ten seconds are a period"),
};

/// The default hint to clients that a concurrency limit denies.
pub(super) const DEFAULT_RETRY_HINT: Period = Period::SECOND;

/// At most `max` units in each [`Period`], counted by an [`Algorithm`].
///
/// A limit of 0 denies every request for ever. To allow every request, omit the limit.
///
/// A limit has a text form for configuration and logs: `10/second`, `100/15minutes`,
/// `5000/day:clock`, `60/hour:sliding-log`, `100/minute:gcra:burst=20`,
/// `600/hour:sliding-window:precision=minute`, `100/minute:sliding-window-counter`,
/// `10/second:token-bucket:capacity=50`, `20:concurrency`, `20:concurrency:lease=30seconds`,
/// `20:concurrency:retry=5seconds`, `20/minute:requests`, `10000/minute:unit=tokens`.
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
/// assert_eq!(aligned, Limit::per_day(5_000).aligned_to_clock()?);
/// assert_eq!(aligned.period(), Period::DAY);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Limit {
    max: u64,
    period: Period,
    algorithm: Algorithm,
    counts_requests: bool,
    is_shadow: bool,
    unit: Unit,
    // The wait in milliseconds that clients read after a denial by a concurrency limit. Other
    // limits ignore it.
    retry_hint: u32,
}

impl Limit {
    /// Allows `max` units in each `period`, counted in fixed windows from the first request.
    ///
    /// # Errors
    ///
    /// Returns an error if `max` is above [`MAX_UNITS`].
    pub const fn new(max: u64, period: Period) -> Result<Self, InvalidLimit> {
        if max > MAX_UNITS {
            return Err(InvalidLimit::TooLarge { max });
        }
        Ok(Self::fixed_window(max, period))
    }

    const fn fixed_window(max: u64, period: Period) -> Self {
        let algorithm = Algorithm::FixedWindow { anchor: Anchor::FirstRequest };
        let unit = Unit::REQUESTS;
        let retry_hint = DEFAULT_RETRY_HINT.as_millis() as u32;
        Self { max, period, algorithm, counts_requests: false, is_shadow: false, unit, retry_hint }
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

    /// Returns the same fixed window limit with windows that begin on the clock: at full minutes,
    /// hours and days in UTC, on Mondays, and on the first day of a month ([`Anchor::Clock`]).
    ///
    /// # Errors
    ///
    /// Returns an error if the algorithm is not [`Algorithm::FixedWindow`].
    pub const fn aligned_to_clock(mut self) -> Result<Self, InvalidLimit> {
        match self.algorithm {
            Algorithm::FixedWindow { .. } => {
                self.algorithm = Algorithm::FixedWindow { anchor: Anchor::Clock };
                Ok(self)
            }
            _ => Err(InvalidLimit::NotFixedWindow),
        }
    }

    /// Returns the same fixed window limit with windows that begin on the clock, shifted by `offset`
    /// ([`Anchor::ClockOffset`]). Another offset starts a new count.
    ///
    /// # Errors
    ///
    /// Returns an error if the algorithm is not [`Algorithm::FixedWindow`], or if the offset is not
    /// shorter than the period. For a calendar month it is at most 27 days, because every month has
    /// 28.
    ///
    /// # Examples
    ///
    /// ```
    /// use rl_core::{Limit, Period};
    ///
    /// let from_the_15th = Limit::per_month(5_000).with_clock_offset("14days".parse()?)?;
    /// assert_eq!(from_the_15th.to_string(), "5000/month:clock:offset=2weeks");
    /// assert!(Limit::per_day(1).with_clock_offset(Period::DAY).is_err());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn with_clock_offset(self, offset: Period) -> Result<Self, InvalidLimit> {
        match self.algorithm {
            Algorithm::FixedWindow { .. } => {
                self.with_algorithm(Algorithm::FixedWindow { anchor: Anchor::ClockOffset(offset) })
            }
            _ => Err(InvalidLimit::NotFixedWindow),
        }
    }

    /// Returns the same limit with another algorithm. With [`Algorithm::Concurrency`], the period
    /// becomes the lease.
    ///
    /// # Errors
    ///
    /// Returns an error if the limit is not valid with the algorithm. These are not valid:
    ///
    /// * an offset of windows on the clock that is too long;
    /// * a burst or capacity of 0, or one that cannot be counted exactly (burst × max above
    ///   [`MAX_UNITS`], or more than 50 years to fill);
    /// * a precision that makes more than 200 buckets;
    /// * a log of more than 100 000 units;
    /// * more than 10 000 units at the same time;
    /// * a sliding window counter with a period of more than 50 years.
    pub fn with_algorithm(mut self, algorithm: Algorithm) -> Result<Self, InvalidLimit> {
        self.algorithm = algorithm;
        match algorithm {
            Algorithm::FixedWindow { anchor: Anchor::ClockOffset(offset) } => {
                let is_month = self.period == Period::MONTH;
                let most = if is_month {
                    27 * Period::DAY.as_millis() + 1
                } else {
                    self.period.as_millis()
                };
                if offset.as_millis() >= most {
                    return Err(InvalidLimit::OffsetTooLong { period: self.period, offset });
                }
            }
            Algorithm::FixedWindow { .. } => {}
            Algorithm::SlidingLog => {
                if self.max > MAX_LOGGED {
                    return Err(InvalidLimit::LogTooLong { max: self.max });
                }
            }
            Algorithm::Concurrency => {
                if self.max > MAX_PERMITS {
                    return Err(InvalidLimit::TooManyPermits { max: self.max });
                }
            }
            Algorithm::SlidingWindowCounter => {
                if self.period.as_micros() > Period::LONGEST.as_micros() / 2 {
                    return Err(InvalidLimit::TooLong { period: self.period });
                }
            }
            Algorithm::SlidingWindow { precision } => {
                let precision = precision.min(self.period);
                if self.period.as_millis().div_ceil(precision.as_millis()) > MAX_BUCKETS {
                    return Err(InvalidLimit::TooPrecise { period: self.period, precision });
                }
                self.algorithm = Algorithm::SlidingWindow { precision };
            }
            Algorithm::Gcra { burst: capacity } | Algorithm::TokenBucket { capacity, .. } => {
                let units = u128::from(capacity) * u128::from(self.max);
                let longest = u128::from(Period::LONGEST.as_micros() / 2) * u128::from(self.max);
                let to_fill = u128::from(capacity) * u128::from(self.period.as_micros());
                let fits = capacity > 0 && units <= u128::from(MAX_UNITS) && to_fill <= longest;
                if self.max > 0 && !fits {
                    return Err(InvalidLimit::Capacity { capacity, max: self.max });
                }
            }
        }
        Ok(self)
    }

    /// Returns the number of units allowed in each period.
    #[must_use]
    pub const fn max(self) -> u64 {
        self.max
    }

    /// Returns the largest number of units that can be granted at once: the burst or capacity if
    /// the algorithm has one, else `max`.
    #[must_use]
    pub const fn capacity(self) -> u64 {
        match self.algorithm {
            // If `max` is 0, a bucket is never filled, so its capacity does not count.
            _ if self.max == 0 => 0,
            Algorithm::Gcra { burst: capacity } | Algorithm::TokenBucket { capacity, .. } => {
                capacity
            }
            Algorithm::FixedWindow { .. }
            | Algorithm::SlidingLog
            | Algorithm::SlidingWindow { .. }
            | Algorithm::SlidingWindowCounter
            | Algorithm::Concurrency => self.max,
        }
    }

    /// Returns the period. For a concurrency limit, this is the lease.
    #[must_use]
    pub const fn period(self) -> Period {
        self.period
    }

    /// Returns the same limit, but counting requests: each request is one unit, whatever its cost.
    ///
    /// A policy can thus limit both requests and their cost over the same period, in separate
    /// counters. Messages then call the units `requests`. The text form ends in `:requests`.
    ///
    /// # Examples
    ///
    /// ```
    /// use rl_core::{Limit, RateLimiter, Subject};
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let limiter = RateLimiter::builder()
    ///     .named_limit("tokens", Limit::per_minute(40_000))
    ///     .named_limit("requests", "20/minute:requests".parse()?)
    ///     .build()?;
    /// let decision = limiter.check(&Subject::user("alice"), 1_200).await;
    /// let used: Vec<u64> = decision.limits().map(|limit| limit.used()).collect();
    /// assert_eq!(used, [1_200, 1]);
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub const fn count_requests(mut self) -> Self {
        self.counts_requests = true;
        self.unit = Unit::REQUESTS;
        self
    }

    /// Returns the same limit with another name for its units in messages to clients: `tokens`,
    /// `bytes`, `credits`.
    ///
    /// Units are called `requests` by default, and always for a limit that [counts
    /// requests](Self::count_requests). The name changes only messages, not the counting. The text
    /// form of this option is `:unit=tokens`.
    ///
    /// # Errors
    ///
    /// Returns an error if `unit` is not 1 to 16 characters of `a-z`, `0-9` and `-`. For a limit
    /// that counts requests, returns an error for any other unit than `requests`.
    ///
    /// # Examples
    ///
    /// ```
    /// use rl_core::Limit;
    ///
    /// let limit = Limit::per_minute(10_000).with_unit("tokens")?;
    /// assert_eq!(limit.to_string(), "10000/minute:unit=tokens");
    /// // A denial reads: Too many requests: 10000 tokens per minute. …
    /// # Ok::<(), rl_core::InvalidLimit>(())
    /// ```
    pub fn with_unit(mut self, unit: &str) -> Result<Self, InvalidLimit> {
        let named = Unit::new(unit).filter(|unit| !self.counts_requests || *unit == Unit::REQUESTS);
        self.unit = named.ok_or(InvalidLimit::Unit { counts_requests: self.counts_requests })?;
        Ok(self)
    }

    /// Returns the name of the units in messages to clients, `requests` by default.
    #[must_use]
    pub fn unit(&self) -> &str {
        self.unit.as_str()
    }

    /// Returns whether each request is one unit, whatever its cost.
    #[must_use]
    pub const fn counts_requests(self) -> bool {
        self.counts_requests
    }

    /// Returns whether the units are permits, which are held and released.
    pub(crate) const fn holds_permits(self) -> bool {
        matches!(self.algorithm, Algorithm::Concurrency)
    }

    /// Returns the units of this limit that a request of cost `units` uses.
    pub(crate) const fn units(self, units: u64) -> u64 {
        if self.counts_requests && units > 1 { 1 } else { units }
    }

    /// Returns the same limit in shadow: it is decided and reported, but denies no request.
    ///
    /// While in shadow, it counts only the requests that it would allow if it were enforced. It
    /// keeps its count when it is enforced later. The text form ends in `:shadow`.
    ///
    /// # Examples
    ///
    /// ```
    /// use rl_core::{Limit, RateLimiter, Subject};
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let planned: Limit = "1/hour:shadow".parse()?;
    /// assert_eq!(planned, Limit::per_hour(1).shadow());
    /// let limiter = RateLimiter::builder().limit(Limit::per_second(9)).limit(planned).build()?;
    ///
    /// let alice = Subject::user("alice");
    /// limiter.check(&alice, 1).await;
    /// let second = limiter.check(&alice, 1).await;
    /// assert!(second.is_allowed());
    /// assert_eq!(second.over_in_shadow().next().map(|limit| limit.name()), Some("hour"));
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub const fn shadow(mut self) -> Self {
        self.is_shadow = true;
        self
    }

    /// Returns whether the limit is [in shadow](Self::shadow).
    #[must_use]
    pub const fn is_shadow(self) -> bool {
        self.is_shadow
    }

    /// Returns the limit that replaces this one under a block: enforced, with a max of 0.
    pub(crate) const fn closed(self) -> Self {
        Self { max: 0, is_shadow: false, ..self }
    }

    /// Returns the limit of each of `instances` equal instances: this one divided by their number
    /// and rounded down. It grants at least `least` units at once, and never more than this one.
    pub(crate) fn share(self, instances: u64, least: u64) -> Self {
        let part = |whole: u64, least: u64| (whole / instances).max(least).min(whole);
        let (max, algorithm) = match self.algorithm {
            // Only the burst must grant `least` units at once. The rate need not, because an empty
            // bucket fills until it does.
            Algorithm::Gcra { burst } => {
                (part(self.max, 1), Algorithm::Gcra { burst: part(burst, least) })
            }
            Algorithm::TokenBucket { capacity, refill } => {
                let capacity = part(capacity, least);
                (part(self.max, 1), Algorithm::TokenBucket { capacity, refill })
            }
            whole => (part(self.max, least), whole),
        };
        // A rate that is rounded down may take too long to fill the capacity. The next higher rate
        // does not.
        let with_max = |max: u64| Self { max: max.min(self.max), ..self }.with_algorithm(algorithm);
        with_max(max).or_else(|_| with_max(max + 1)).unwrap_or(self)
    }

    /// Returns the algorithm by which the limit counts.
    #[must_use]
    pub const fn algorithm(self) -> Algorithm {
        self.algorithm
    }

    /// Returns whether both limits count in the same state, whatever their `max` or burst.
    ///
    /// A state is identified by algorithm, period, anchor or precision, and by whether units or
    /// [requests](Self::count_requests) are counted. A change of `max` therefore keeps the used
    /// units, and `20/minute:requests` is counted separately from `10000/minute`.
    #[must_use]
    pub fn shares_state_with(self, other: Self) -> bool {
        self.state_id() == other.state_id()
    }

    /// Returns the identity of the limit's state.
    pub(crate) const fn state_id(self) -> StateId {
        StateId::new(self.algorithm, self.period, self.counts_requests)
    }

    /// Allows `max` units at the same time, with leases of ten seconds.
    ///
    /// A request of cost 3 holds three permits, or one if the limit
    /// [counts requests](Self::count_requests).
    ///
    /// # Errors
    ///
    /// Returns an error if `max` is above 10 000.
    ///
    /// # Examples
    ///
    /// ```
    /// use rl_core::{Limit, Period};
    ///
    /// let limit = Limit::concurrency(20)?.with_lease(Period::MINUTE)?;
    /// assert_eq!(limit.to_string(), "20:concurrency:lease=minute");
    /// # Ok::<(), rl_core::InvalidLimit>(())
    /// ```
    pub const fn concurrency(max: u64) -> Result<Self, InvalidLimit> {
        if max > MAX_PERMITS {
            return Err(InvalidLimit::TooManyPermits { max });
        }
        let algorithm = Algorithm::Concurrency;
        let limit = Self::fixed_window(max, DEFAULT_LEASE);
        Ok(Self { algorithm, ..limit })
    }

    /// Returns the same concurrency limit with leases of this length. A permit that is neither
    /// released nor renewed becomes free when its lease ends.
    ///
    /// # Errors
    ///
    /// Returns an error if the algorithm is not [`Algorithm::Concurrency`]: other limits have no
    /// lease.
    pub const fn with_lease(mut self, lease: Period) -> Result<Self, InvalidLimit> {
        match self.algorithm {
            Algorithm::Concurrency => {
                self.period = lease;
                Ok(self)
            }
            _ => Err(InvalidLimit::NoLease),
        }
    }

    /// Returns the same concurrency limit with another hint to clients: the time after which they
    /// should retry a request that was denied. Defaults to one second.
    ///
    /// A place becomes free when a request ends, which no limiter can predict. The hint is sent as
    /// `Retry-After`, unless the next lease ends earlier. It changes no decision, and is at most 49
    /// days. The text form of this option is `:retry=5seconds`.
    ///
    /// # Errors
    ///
    /// Returns an error if the algorithm is not [`Algorithm::Concurrency`]: the wait of other
    /// limits is exact.
    ///
    /// # Examples
    ///
    /// ```
    /// use rl_core::{Limit, Period};
    ///
    /// let streams = Limit::concurrency(20)?.with_retry_hint(Period::MINUTE)?;
    /// assert_eq!(streams.to_string(), "20:concurrency:retry=minute");
    /// # Ok::<(), rl_core::InvalidLimit>(())
    /// ```
    pub const fn with_retry_hint(mut self, hint: Period) -> Result<Self, InvalidLimit> {
        match self.algorithm {
            Algorithm::Concurrency => {
                let millis = hint.as_millis();
                self.retry_hint = if millis > u32::MAX as u64 { u32::MAX } else { millis as u32 };
                Ok(self)
            }
            _ => Err(InvalidLimit::NoRetryHint),
        }
    }

    /// Returns the hint of a concurrency limit to clients that it denies; `None` for other limits.
    #[must_use]
    pub const fn retry_hint(self) -> Option<Duration> {
        match self.algorithm {
            Algorithm::Concurrency => Some(Duration::from_millis(self.retry_hint as u64)),
            _ => None,
        }
    }

    /// Returns the hint as a period, which other limits have too.
    pub(in crate::model) const fn retry_period(self) -> Period {
        match Period::from_millis(self.retry_hint as u64) {
            Ok(hint) => hint,
            Err(_) => DEFAULT_RETRY_HINT,
        }
    }
}

impl fmt::Debug for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Limit({self})")
    }
}
