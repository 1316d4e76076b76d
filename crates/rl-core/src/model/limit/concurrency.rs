//! Concurrency limits: their leases, and their hints to clients.

use std::time::Duration;

use super::{DEFAULT_LEASE, DEFAULT_RETRY_HINT, Limit};
use crate::model::algorithm::MAX_PERMITS;
use crate::model::{Algorithm, InvalidLimit, Period};

impl Limit {
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
    /// Returns an error if the algorithm is not [`Algorithm::Concurrency`]: the wait of other limits
    /// is exact.
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
