use std::time::Duration;

use crate::model::Limit;
use crate::policy::NamedLimit;

/// How long to wait before the same request would pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum RetryAfter {
    /// No wait: it passes.
    Now,
    /// Exactly this long, if nobody else uses the limit; a microsecond less is too early.
    In(Duration),
    /// No wait helps: the limit is 0, or the cost is above what it ever grants.
    Never,
}

/// Where one limit stands after a decision, in the numbers that stores exchange.
///
/// [`LimitStatus`] is the same for reading, with the limit beside it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Outcome {
    used: u64,
    reset_micros: u64,
    // 0: this limit grants; u64::MAX: it never will.
    retry_micros: u64,
}

impl Outcome {
    const NEVER: u64 = u64::MAX;

    /// A limit that grants, with `used` units used and `reset_micros` until it is as if unused.
    #[must_use]
    pub const fn granted(used: u64, reset_micros: u64) -> Self {
        Self { used, reset_micros, retry_micros: 0 }
    }

    /// A limit that denies until `retry_micros` have passed.
    ///
    /// A wait of 0 would read as granted, so it counts as one microsecond.
    #[must_use]
    pub const fn denied(used: u64, reset_micros: u64, retry_micros: u64) -> Self {
        let retry_micros = if retry_micros == 0 { 1 } else { retry_micros };
        Self { used, reset_micros, retry_micros }
    }

    /// A limit that denies for good.
    #[must_use]
    pub const fn never(used: u64, reset_micros: u64) -> Self {
        Self { used, reset_micros, retry_micros: Self::NEVER }
    }

    /// A window of `max` units that is forgotten whole in `reset_micros`, for a request that needs
    /// `needed` of them.
    #[inline]
    pub(crate) const fn of_window(max: u64, used: u64, reset_micros: u64, needed: u64) -> Self {
        if needed <= max.saturating_sub(used) {
            Self::granted(used, reset_micros)
        } else if needed > max {
            Self::never(used, reset_micros)
        } else {
            Self::denied(used, reset_micros, reset_micros)
        }
    }

    /// The units that are used.
    pub(crate) const fn used(self) -> u64 {
        self.used
    }

    /// The wait of a limit that denies for a time.
    pub(crate) const fn wait_micros(self) -> Option<u64> {
        match self.retry_micros {
            0 | Self::NEVER => None,
            micros => Some(micros),
        }
    }

    /// The same so many microseconds later, if nothing was used since: what denies is taken to deny
    /// still.
    #[cfg(feature = "redis")]
    pub(super) const fn after(self, micros: u64) -> Self {
        let reset_micros = self.reset_micros.saturating_sub(micros);
        let used = if reset_micros == 0 && !self.is_over() { 0 } else { self.used };
        match self.retry_micros {
            0 => Self::granted(used, reset_micros),
            Self::NEVER => Self::never(used, reset_micros),
            wait => Self::denied(used, reset_micros, wait.saturating_sub(micros)),
        }
    }

    pub(crate) const fn is_over(self) -> bool {
        self.retry_micros != 0
    }

    const fn retry_after(self) -> RetryAfter {
        match self.retry_micros {
            0 => RetryAfter::Now,
            Self::NEVER => RetryAfter::Never,
            micros => RetryAfter::In(Duration::from_micros(micros)),
        }
    }
}

/// One limit of a decision: what it allows and where the subject stands.
#[derive(Clone, Copy, Debug)]
pub struct LimitStatus<'a> {
    pub(super) limit: &'a NamedLimit,
    pub(super) outcome: Outcome,
}

impl<'a> LimitStatus<'a> {
    /// The limit's name in its policy.
    #[must_use]
    pub fn name(&self) -> &'a str {
        self.limit.name()
    }

    /// The limit.
    #[must_use]
    pub const fn limit(&self) -> Limit {
        self.limit.limit()
    }

    /// The most units that can be used at once: [`Limit::capacity`].
    #[must_use]
    pub const fn max(&self) -> u64 {
        self.limit().capacity()
    }

    /// Units used in the current window; more than [`max`](Self::max) after a post-paid charge or
    /// when the limit was lowered. 0 where no counter was read ([`Origin::Policy`](crate::Origin::Policy)).
    #[must_use]
    pub const fn used(&self) -> u64 {
        self.outcome.used
    }

    /// Units left.
    #[must_use]
    pub const fn remaining(&self) -> u64 {
        self.max().saturating_sub(self.used())
    }

    /// Time until the limit is as if never used: for windows, their end; zero if none is open.
    #[must_use]
    pub const fn reset_after(&self) -> Duration {
        Duration::from_micros(self.outcome.reset_micros)
    }

    /// How long *this* limit denies.
    #[must_use]
    pub const fn retry_after(&self) -> RetryAfter {
        self.outcome.retry_after()
    }

    /// Whether this limit denies, or would if it were not in shadow.
    #[must_use]
    pub const fn is_over(&self) -> bool {
        self.outcome.is_over()
    }

    /// Whether something is counted now.
    #[must_use]
    pub const fn is_active(&self) -> bool {
        self.outcome.reset_micros != 0
    }
}
