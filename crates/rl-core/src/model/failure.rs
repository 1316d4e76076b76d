use std::fmt;

/// Why no decision could be made.
///
/// *Infrastructure* failures pass by themselves; *configuration* failures last until someone
/// mends them, and an attacker may be able to cause them, so they never open the gate on their own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum FailureKind {
    /// The store cannot be reached, is loading, failing over or out of memory.
    Unavailable,
    /// The store did not answer before the deadline.
    TimedOut,
    /// Too many decisions wait for the store already; it was not asked.
    Overloaded,
    /// The store refused the credentials or the permission for a command.
    Refused,
    /// The store did not prove who it is.
    Untrusted,
    /// What is stored under the subject's key was not written by this crate, or is damaged.
    Corrupt,
    /// The store rejected the request or answered something that makes no sense.
    Protocol,
    /// The store cannot hold this policy, or the policy has no such limit.
    Unsupported,
}

impl FailureKind {
    /// Whether it lasts until someone mends it.
    #[must_use]
    pub const fn is_configuration(self) -> bool {
        match self {
            Self::Unavailable | Self::TimedOut | Self::Overloaded => false,
            Self::Refused
            | Self::Untrusted
            | Self::Corrupt
            | Self::Protocol
            | Self::Unsupported => true,
        }
    }

    /// A short fixed word, fit for a metric label.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Unavailable => "unavailable",
            Self::TimedOut => "timed_out",
            Self::Overloaded => "overloaded",
            Self::Refused => "refused",
            Self::Untrusted => "untrusted",
            Self::Corrupt => "corrupt",
            Self::Protocol => "protocol",
            Self::Unsupported => "unsupported",
        }
    }
}

impl fmt::Display for FailureKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Unavailable => "the store is unavailable",
            Self::TimedOut => "the store did not answer in time",
            Self::Overloaded => "too many decisions wait for the store",
            Self::Refused => "the store refused the credentials or a permission",
            Self::Untrusted => "the certificate of the store is not to be trusted",
            Self::Corrupt => "the stored state is not ours or is damaged",
            Self::Protocol => "the store rejected the request",
            Self::Unsupported => "what is asked is not supported",
        })
    }
}
