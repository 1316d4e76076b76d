use std::borrow::Cow;
use std::error::Error;
use std::fmt;

/// The reason why the limiter could not decide.
///
/// *Infrastructure* failures end without intervention. *Configuration* failures last until an
/// operator repairs them. An attacker may be able to cause a configuration failure, so by default
/// it rejects requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum FailureKind {
    /// The store cannot be reached, is loading data, or fails over.
    Unavailable,
    /// The store did not answer before the deadline.
    TimedOut,
    /// Too many decisions are waiting for the store, so it was not called.
    Overloaded,
    /// The store has no memory for a charge. It still decides requests that it denies, because a
    /// denial needs none. As with [`Overloaded`](Self::Overloaded),
    /// [`on_overload`](crate::RateLimiterBuilder::on_overload) decides the others.
    OutOfMemory,
    /// The store refused the credentials, or the user may not run a command.
    Refused,
    /// The server of the store could not prove its identity.
    Untrusted,
    /// The state stored under the subject's key was not written by this crate, or is damaged.
    Corrupt,
    /// The store rejected the request, or its reply is invalid.
    Protocol,
    /// The store does not support the policy or the operation.
    Unsupported,
}

impl FailureKind {
    /// All kinds, in the order of their declaration.
    pub(crate) const ALL: [Self; 9] = [
        Self::Unavailable,
        Self::TimedOut,
        Self::Overloaded,
        Self::OutOfMemory,
        Self::Refused,
        Self::Untrusted,
        Self::Corrupt,
        Self::Protocol,
        Self::Unsupported,
    ];

    /// Returns whether the failure lasts until an operator repairs it.
    #[must_use]
    pub const fn is_configuration(self) -> bool {
        match self {
            Self::Unavailable | Self::TimedOut | Self::Overloaded | Self::OutOfMemory => false,
            Self::Refused
            | Self::Untrusted
            | Self::Corrupt
            | Self::Protocol
            | Self::Unsupported => true,
        }
    }

    /// Returns a short fixed word, suitable as a metric label.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Unavailable => "unavailable",
            Self::TimedOut => "timed_out",
            Self::Overloaded => "overloaded",
            Self::OutOfMemory => "out_of_memory",
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
            Self::OutOfMemory => "the store is out of memory",
            Self::Overloaded => "too many decisions are waiting for the store",
            Self::Refused => "the store refused the credentials or a permission",
            Self::Untrusted => "the certificate of the store is not trusted",
            Self::Corrupt => "the stored state is damaged or was not written by this crate",
            Self::Protocol => "the store rejected the request",
            Self::Unsupported => "the operation is not supported",
        })
    }
}

/// An error of a store, or of a policy source.
///
/// # Formatting
///
/// The text describes the failure for an operator's log. It never contains a key, a URL, a
/// password, or data from a client. It may change in any release.
///
/// # Source
///
/// [`Error::source`] returns the underlying failure, if there is one. Its type is not part of the
/// API.
pub struct StoreError {
    kind: FailureKind,
    detail: Option<Cow<'static, str>>,
    source: Option<Box<dyn Error + Send + Sync>>,
    /// Whether the operation failed before a server executed it.
    #[cfg(feature = "redis")]
    has_executed_nothing: bool,
}

impl StoreError {
    /// Creates an error of this kind.
    #[must_use]
    pub const fn new(kind: FailureKind) -> Self {
        Self {
            kind,
            detail: None,
            source: None,
            #[cfg(feature = "redis")]
            has_executed_nothing: false,
        }
    }

    /// Returns the error with a detail for the operator. The detail must not contain a key, a
    /// secret, or data from a client.
    #[must_use]
    pub fn with_detail(mut self, detail: impl Into<Cow<'static, str>>) -> Self {
        self.detail = Some(detail.into());
        self
    }

    /// Returns the error with its cause. The text of the cause may be logged, so it must not
    /// contain a secret.
    #[must_use]
    pub fn with_source(mut self, source: impl Error + Send + Sync + 'static) -> Self {
        self.source = Some(Box::new(source));
        self
    }

    /// Returns the detail for operators, without the text that describes the kind.
    #[must_use]
    pub fn detail(&self) -> Option<&str> {
        self.detail.as_deref()
    }

    /// Adds to the detail that this server could not be reached.
    #[cfg(feature = "redis")]
    pub(crate) fn at_connecting_to(mut self, server: &str) -> Self {
        self.detail = Some(match self.detail {
            Some(detail) => format!("could not connect to {server}: {detail}").into(),
            None => format!("could not connect to {server}").into(),
        });
        self
    }

    /// Returns a copy of the error without its cause, for another caller whose request was in the
    /// same batch.
    #[cfg(feature = "redis")]
    pub(crate) fn again(&self) -> Self {
        Self { detail: self.detail.clone(), source: None, ..*self }
    }

    /// Marks the error of an operation that certainly was not executed, so that it may be repeated.
    #[cfg(feature = "redis")]
    pub(crate) fn before_execution(mut self) -> Self {
        self.has_executed_nothing = true;
        self
    }

    /// Returns whether the operation certainly was not executed.
    #[cfg(feature = "redis")]
    pub(crate) const fn has_executed_nothing(&self) -> bool {
        self.has_executed_nothing
    }

    /// Returns the kind of the failure.
    #[must_use]
    pub const fn kind(&self) -> FailureKind {
        self.kind
    }
}

debug_as_display!(StoreError);

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.kind.fmt(f)?;
        match &self.detail {
            Some(detail) => write!(f, ": {detail}"),
            None => Ok(()),
        }
    }
}

impl Error for StoreError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.source.as_deref().map(|source| source as _)
    }
}

fn _assert_send_sync() -> impl Send + Sync {
    StoreError::new(FailureKind::Unavailable)
}

/// The maximum number of states of other policies that a store keeps for one subject.
///
/// Together with the 16 states of the current policy, it bounds the memory of one subject. A charge
/// that needs more is rejected: if a state were dropped instead, a client could reset its own
/// limits.
pub(crate) const MAX_FOREIGN_STATES: usize = 16;

/// The detail of the error for a charge that would exceed [`MAX_FOREIGN_STATES`].
pub(crate) const TOO_MANY_STATES: &str = "a subject has more than 16 windows or buckets of other policies that are still active; put one \
     subject under fewer different periods and algorithms";
