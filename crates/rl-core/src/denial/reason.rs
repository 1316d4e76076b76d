use crate::decision::Decision;
use crate::model::Subject;

/// Why a request is rejected.
///
/// [`Gate::deny_with`](crate::Gate::deny_with) hands it to responders.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum DenialReason<'a> {
    /// A decision denies the request: it is over a limit, its subject is blocked, or the limiter
    /// cannot decide ([`Origin::FailedClosed`](crate::Origin::FailedClosed)).
    Decision {
        /// The decision.
        decision: &'a Decision,
        /// The subject that was counted.
        subject: &'a Subject,
    },
    /// The request has no key, and [`MissingKey::Reject`](crate::gate::MissingKey::Reject) is set.
    MissingKey,
    /// The key of the request is [ambiguous](crate::key::AmbiguousKey).
    AmbiguousKey,
}

impl<'a> DenialReason<'a> {
    /// Returns the decision that denies the request; `None` if no subject was counted.
    #[must_use]
    pub const fn decision(self) -> Option<&'a Decision> {
        match self {
            Self::Decision { decision, .. } => Some(decision),
            Self::MissingKey | Self::AmbiguousKey => None,
        }
    }

    /// Returns the subject that was counted, if there is one.
    #[must_use]
    pub const fn subject(self) -> Option<&'a Subject> {
        match self {
            Self::Decision { subject, .. } => Some(subject),
            Self::MissingKey | Self::AmbiguousKey => None,
        }
    }
}
