use std::borrow::Cow;
use std::error::Error;
use std::fmt;

use super::FailureKind;

/// The most states of other policies that a store keeps for one subject.
///
/// Together with the 16 of the present policy it bounds the memory of one subject. A charge that would
/// need more is refused, because forgetting a state would let a client reset its own limits.
pub(crate) const MAX_FOREIGN_STATES: usize = 16;

/// The detail of the error for a charge that is refused for that reason.
pub(crate) const TOO_MANY_STATES: &str = "a subject counts in more than 16 windows or buckets of other policies, and none is forgotten \
     while it counts; put one subject under fewer different periods and algorithms";

/// The store could not answer.
///
/// # Formatting
///
/// The text says what went wrong in words for an operator's log. It never holds a key, a URL, a
/// password or anything a client sent. It may change in any release.
///
/// # Source
///
/// [`Error::source`] is the failure beneath, if there is one. Its type is not part of the API.
#[derive(Debug)]
pub struct StoreError {
    kind: FailureKind,
    detail: Option<Cow<'static, str>>,
    source: Option<Box<dyn Error + Send + Sync>>,
}

impl StoreError {
    /// A failure of this kind.
    #[must_use]
    pub const fn new(kind: FailureKind) -> Self {
        Self { kind, detail: None, source: None }
    }

    /// The failure with a few words for the operator: no key, no secret, nothing a client sent.
    #[must_use]
    pub fn with_detail(mut self, detail: impl Into<Cow<'static, str>>) -> Self {
        self.detail = Some(detail.into());
        self
    }

    /// The failure with what caused it. Its text may be logged: it must hold no secret.
    #[must_use]
    pub fn with_source(mut self, source: impl Error + Send + Sync + 'static) -> Self {
        self.source = Some(Box::new(source));
        self
    }

    /// Returns the detail for operators, without the words for the kind.
    #[must_use]
    pub fn detail(&self) -> Option<&str> {
        self.detail.as_deref()
    }

    /// Adds the server that could not be reached to the detail.
    #[cfg(feature = "redis")]
    pub(crate) fn at_connecting_to(mut self, server: &str) -> Self {
        self.detail = Some(match self.detail {
            Some(detail) => format!("could not connect to {server}: {detail}").into(),
            None => format!("could not connect to {server}").into(),
        });
        self
    }

    /// The same failure for another who asked, without what caused it.
    #[cfg(feature = "redis")]
    pub(crate) fn again(&self) -> Self {
        Self { kind: self.kind, detail: self.detail.clone(), source: None }
    }

    /// Why there is no answer.
    #[must_use]
    pub const fn kind(&self) -> FailureKind {
        self.kind
    }
}

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
