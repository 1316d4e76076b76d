//! The handling of requests that no store decides.

/// The handling of requests that the store cannot decide.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum OnFailure {
    /// The request is allowed. For most services, an hour without limits is better than an hour of
    /// rejected requests.
    Allow,
    /// The request is rejected; adapters respond with 503 and `Retry-After`.
    Reject,
    /// Another store decides under this instance's [`Share`](crate::Share) of the limits:
    /// [`fallback`](crate::RateLimiterBuilder::fallback). If it fails too,
    /// [`on_fallback_failure`](crate::RateLimiterBuilder::on_fallback_failure) decides.
    Fallback,
}

impl OnFailure {
    /// Returns what happens to undecided requests, as a text for the log.
    #[cfg(feature = "tracing")]
    pub(crate) const fn consequence(self) -> &'static str {
        match self {
            Self::Allow => "undecided requests are allowed without limits",
            Self::Reject => "undecided requests are rejected with 503",
            Self::Fallback => "the fallback decides under this instance's share of the limits",
        }
    }

    /// Returns a short fixed word: `allow`, `reject` or `fallback`.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Allow => "allow",
            Self::Reject => "reject",
            Self::Fallback => "fallback",
        }
    }
}
