use crate::model::FailureKind;

/// How a decision came about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Origin {
    /// The store decided.
    Store,
    /// A store decided for a limiter in shadow, which denies nothing.
    Shadow,
    /// The store's denial of the same request a moment ago, which still holds; it was not asked again.
    LocalDeny,
    /// Units that the store had given ahead were spent; it was not asked again.
    Leased,
    /// The policy alone denied the request, by a limit of 0, a block, or limits that never grant the cost.
    /// No store was asked.
    Policy,
    /// The subject is under no limit; no store was asked.
    Unlimited,
    /// The limiter is switched off; no store was asked.
    Disabled,
    /// The store could not decide, and the fallback decided on this instance's share of the limits.
    Fallback(FailureKind),
    /// No decision could be made, and the failure policy let the request pass.
    FailedOpen(FailureKind),
    /// No decision could be made, and the failure policy turned the request away.
    FailedClosed(FailureKind),
}

impl Origin {
    /// A short fixed word, fit for a metric label.
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

    /// Returns whether the failure policy took the place of a decision.
    #[must_use]
    pub const fn is_failure(self) -> bool {
        matches!(self, Self::FailedOpen(_) | Self::FailedClosed(_))
    }

    /// Whether the store decided, now or before.
    pub(super) const fn is_of_store(self) -> bool {
        matches!(self, Self::Store | Self::LocalDeny | Self::Leased)
    }

    /// Returns whether counters decided, and their limits are enforced: waiting may help.
    pub(crate) const fn enforces(self) -> bool {
        matches!(self, Self::Store | Self::LocalDeny | Self::Leased | Self::Fallback(_))
    }

    /// Whether counters were asked, which may have charged.
    pub(crate) const fn is_counted(self) -> bool {
        matches!(self, Self::Store | Self::Shadow | Self::Leased | Self::Fallback(_))
    }
}
