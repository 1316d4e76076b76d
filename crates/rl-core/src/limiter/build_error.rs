use std::fmt;

use crate::policy::InvalidPolicy;
use crate::rules::InvalidRules;
use crate::store::InvalidNamespace;

/// An error in the settings of a limiter.
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum BuildError {
    /// The limits do not form a valid policy.
    Policy(InvalidPolicy),
    /// The builder has both single limits and a source of policies, so it is unclear which of them
    /// apply.
    LimitsAndPolicies,
    /// The rules are not valid.
    Rules(InvalidRules),
    /// The builder has both rules and limits or policies for all requests.
    LimitsAndRules,
    /// The namespace is not valid.
    Namespace(InvalidNamespace),
    /// The deadline is zero.
    ZeroDeadline,
    /// The lifetime of reservations is zero.
    ZeroReservation,
    /// The maximum number of decisions in flight is zero.
    NoneInFlight,
    /// [`OnFailure::Fallback`](crate::OnFailure::Fallback) is set, but there is no store to fall
    /// back on.
    NoFallback,
    /// The number of instances that share the limits is zero.
    NoInstances,
    /// [`OnFailure::Fallback`](crate::OnFailure::Fallback) is set for failures of the fallback
    /// itself.
    FallbackOfFallback,
}

debug_as_display!(BuildError);

impl fmt::Display for BuildError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Policy(InvalidPolicy::Empty) => {
                f.write_str("no limits: expected `.limit(..)` at least once, or `.policies(..)`")
            }
            Self::Policy(error) => error.fmt(f),
            Self::LimitsAndPolicies => {
                f.write_str("both `.limit(..)` and `.policies(..)`: expected one of the two")
            }
            Self::Rules(error) => error.fmt(f),
            Self::LimitsAndRules => f.write_str(
                "both `.rules(..)` and `.limit(..)` or `.policies(..)`: expected one of them; a rule \
                 without a match limits all requests",
            ),
            Self::Namespace(error) => error.fmt(f),
            Self::ZeroDeadline => f.write_str("deadline must be greater than zero"),
            Self::ZeroReservation => {
                f.write_str("reservation_expires_after must be greater than zero")
            }
            Self::NoneInFlight => f.write_str("max_in_flight must be at least 1"),
            Self::NoFallback => {
                f.write_str("`OnFailure::Fallback` without a store: expected `.fallback(..)`")
            }
            Self::NoInstances => f.write_str("a share of 0 instances: expected at least 1"),
            Self::FallbackOfFallback => f.write_str(
                "`OnFailure::Fallback` if the fallback fails: expected `OnFailure::Allow` or \
                 `OnFailure::Reject`",
            ),
        }
    }
}

impl std::error::Error for BuildError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Policy(error) => Some(error),
            Self::Rules(error) => Some(error),
            Self::Namespace(error) => Some(error),
            Self::LimitsAndPolicies
            | Self::LimitsAndRules
            | Self::ZeroDeadline
            | Self::ZeroReservation
            | Self::NoneInFlight
            | Self::NoFallback
            | Self::NoInstances
            | Self::FallbackOfFallback => None,
        }
    }
}
