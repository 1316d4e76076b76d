use super::Limit;

/// The status of one limit after a decision, in plain numbers, as a store reports it.
///
/// [`LimitStatus`](crate::LimitStatus) combines it with its limit for applications.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Outcome {
    used: u64,
    reset_micros: u64,
    // 0 if the limit grants the request; u64::MAX if it never will.
    retry_micros: u64,
}

impl Outcome {
    /// The value of `retry_micros` if the limit never grants the request.
    pub(crate) const NEVER: u64 = u64::MAX;

    /// Creates the outcome of a limit that grants the request. `used` units are used, and the whole
    /// limit is available again after `reset_micros` microseconds.
    #[must_use]
    pub const fn granted(used: u64, reset_micros: u64) -> Self {
        Self { used, reset_micros, retry_micros: 0 }
    }

    /// Creates the outcome of a limit that denies the request until `retry_micros` microseconds
    /// have passed.
    ///
    /// A wait of 0 would mean that the request is granted, so it is raised to one microsecond.
    #[must_use]
    pub const fn denied(used: u64, reset_micros: u64, retry_micros: u64) -> Self {
        let retry_micros = if retry_micros == 0 { 1 } else { retry_micros };
        Self { used, reset_micros, retry_micros }
    }

    /// Creates the outcome of a limit that never grants the request.
    #[must_use]
    pub const fn never(used: u64, reset_micros: u64) -> Self {
        Self { used, reset_micros, retry_micros: Self::NEVER }
    }

    /// Creates the outcome of a window of `max` units that ends in `reset_micros` microseconds. The
    /// request needs `required` units.
    pub(crate) const fn of_window(max: u64, used: u64, reset_micros: u64, required: u64) -> Self {
        if required <= max.saturating_sub(used) {
            Self::granted(used, reset_micros)
        } else if required > max {
            Self::never(used, reset_micros)
        } else {
            Self::denied(used, reset_micros, reset_micros)
        }
    }

    /// Creates the outcome of a limit whose counter was not read: the units used are reported as 0.
    pub(crate) const fn before_use(limit: Limit, required: u64) -> Self {
        Self::of_window(limit.capacity(), 0, 0, limit.units(required))
    }

    /// Returns the units that are used.
    pub(crate) const fn used(self) -> u64 {
        self.used
    }

    /// Returns the time until the whole limit is available again.
    pub(crate) const fn reset_micros(self) -> u64 {
        self.reset_micros
    }

    /// Returns the wait in microseconds: 0 if the limit grants the request, [`NEVER`](Self::NEVER)
    /// if waiting does not help.
    pub(crate) const fn retry_micros(self) -> u64 {
        self.retry_micros
    }

    /// Returns the wait in microseconds; `None` if the limit grants the request, or never grants
    /// it.
    pub(crate) const fn wait_micros(self) -> Option<u64> {
        match self.retry_micros {
            0 | Self::NEVER => None,
            micros => Some(micros),
        }
    }

    /// Returns the outcome as it will be in `micros` microseconds, if nothing is charged until
    /// then. If the limit denies now, it must still deny then.
    #[cfg(feature = "redis")]
    pub(crate) const fn at_later(self, micros: u64) -> Self {
        let reset_micros = self.reset_micros.saturating_sub(micros);
        let used = if reset_micros == 0 && !self.is_over() { 0 } else { self.used };
        match self.retry_micros {
            0 => Self::granted(used, reset_micros),
            Self::NEVER => Self::never(used, reset_micros),
            wait => Self::denied(used, reset_micros, wait.saturating_sub(micros)),
        }
    }

    /// Returns whether the limit denies the request.
    pub(crate) const fn is_over(self) -> bool {
        self.retry_micros != 0
    }
}
