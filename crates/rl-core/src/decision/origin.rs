use crate::model::{FailureKind, OnFailure};

/// How a decision was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Origin {
    /// The store decided.
    Store,
    /// The store decided for a limiter in shadow, which denies nothing.
    Shadow,
    /// The store has denied the same request before, and the denial still holds. The store was not
    /// called.
    LocalDeny,
    /// The decision spent units that the store had leased to this instance. The store was not
    /// called.
    Leased,
    /// The policy alone denied the request, by a limit of 0, a block, or a cost that the limits
    /// never grant, or the subject is [paused](crate::RateLimiter::pause). The store was not called.
    Policy,
    /// The subject has no limits. The store was not called.
    Unlimited,
    /// The limiter is disabled. The store was not called.
    Disabled,
    /// The store failed, and the fallback decided under this instance's share of the limits.
    Fallback(FailureKind),
    /// No decision could be made, and the failure policy allowed the request.
    FailedOpen(FailureKind),
    /// No decision could be made, and the failure policy rejected the request.
    FailedClosed(FailureKind),
}

impl Origin {
    /// Returns the origin of a decision that no store made. With [`OnFailure::Fallback`], the
    /// fallback could not decide either, so the request is rejected.
    pub(crate) const fn without_store(action: OnFailure, failure: FailureKind) -> Self {
        match action {
            OnFailure::Allow => Self::FailedOpen(failure),
            OnFailure::Reject | OnFailure::Fallback => Self::FailedClosed(failure),
        }
    }

    /// Returns a short fixed word, suitable as a metric label.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Store => "store",
            Self::Shadow => "shadow",
            Self::LocalDeny => "local_deny",
            Self::Leased => "leased",
            Self::Policy => "policy",
            Self::Unlimited => "unlimited",
            Self::Disabled => "disabled",
            Self::Fallback(_) => "fallback",
            Self::FailedOpen(_) => "failed_open",
            Self::FailedClosed(_) => "failed_closed",
        }
    }

    /// The number of origins. The kinds of failure are not distinguished.
    pub(crate) const COUNT: usize = 10;

    /// Returns all origins, each at its [index](Self::index). The kind of failure in an origin is
    /// arbitrary.
    pub(crate) const fn all() -> [Self; Self::COUNT] {
        let kind = FailureKind::Unavailable;
        [
            Self::Store,
            Self::Shadow,
            Self::LocalDeny,
            Self::Leased,
            Self::Policy,
            Self::Unlimited,
            Self::Disabled,
            Self::Fallback(kind),
            Self::FailedOpen(kind),
            Self::FailedClosed(kind),
        ]
    }

    /// Returns the position of the origin in `all`. It does not depend on the kind of
    /// failure.
    pub(crate) const fn index(self) -> usize {
        match self {
            Self::Store => 0,
            Self::Shadow => 1,
            Self::LocalDeny => 2,
            Self::Leased => 3,
            Self::Policy => 4,
            Self::Unlimited => 5,
            Self::Disabled => 6,
            Self::Fallback(_) => 7,
            Self::FailedOpen(_) => 8,
            Self::FailedClosed(_) => 9,
        }
    }

    /// Returns whether the decision has an outcome for each limit.
    pub(crate) const fn has_outcomes(self) -> bool {
        self.is_counted() || matches!(self, Self::LocalDeny | Self::Policy)
    }

    /// Returns whether the failure policy decided instead of counters.
    #[must_use]
    pub const fn is_failure(self) -> bool {
        matches!(self, Self::FailedOpen(_) | Self::FailedClosed(_))
    }

    /// Returns whether the decision came from the store: from a call, a cached denial or leased
    /// units.
    pub(super) const fn is_of_store(self) -> bool {
        matches!(self, Self::Store | Self::LocalDeny | Self::Leased)
    }

    /// Returns whether the decision came from counters whose limits are enforced. Waiting can help
    /// only after such a denial.
    pub(crate) const fn enforces(self) -> bool {
        matches!(self, Self::Store | Self::LocalDeny | Self::Leased | Self::Fallback(_))
    }

    /// Returns whether the decision came from counters, so that the request may have been charged.
    pub(crate) const fn is_counted(self) -> bool {
        matches!(self, Self::Store | Self::Shadow | Self::Leased | Self::Fallback(_))
    }
}

/// The result of a decision: whether the request is allowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Allowed,
    Denied,
    /// Denied, but forwarded to get a reduced response.
    Degraded,
}

impl Verdict {
    pub(super) const fn new(is_allowed: bool) -> Self {
        if is_allowed { Self::Allowed } else { Self::Denied }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_origin_is_at_its_index() {
        for (index, origin) in Origin::all().into_iter().enumerate() {
            assert_eq!(origin.index(), index);
        }
    }
}
