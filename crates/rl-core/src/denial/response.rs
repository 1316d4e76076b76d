//! A denial, its reason, and the protocol in which it is sent.

use std::borrow::Cow;

use crate::decision::Decision;
use crate::model::Subject;

/// The content type of gRPC requests and responses.
pub(super) const GRPC_CONTENT_TYPE: &str = "application/grpc";

/// The response to a rejected request.
///
/// Create one with [`Denial::json`], [`Denial::text`] or [`Denial::new`]. The response to a client
/// that [asks for its usage](crate::adapter::HttpLimiter::usage) has this type too.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Denial {
    /// The HTTP status.
    pub status: u16,
    /// The value of `Content-Type`, or `None` if there is no body.
    pub content_type: Option<&'static str>,
    /// The body; empty if there is none.
    pub body: Cow<'static, str>,
    /// Further headers: unique names in lower case, and values of visible ASCII and spaces.
    pub headers: Vec<(&'static str, Cow<'static, str>)>,
}

impl Denial {
    /// Creates a response with this status and no body or headers. Its fields can be set.
    #[must_use]
    pub const fn new(status: u16) -> Self {
        Self { status, content_type: None, body: Cow::Borrowed(""), headers: Vec::new() }
    }

    /// Creates a response with the given body, which must be JSON.
    ///
    /// # Examples
    ///
    /// ```
    /// use rl_core::adapter::HttpLimiter;
    /// use rl_core::denial::Denial;
    /// use rl_core::{Limit, RateLimiter};
    ///
    /// # let limiter = RateLimiter::builder().limit(Limit::per_second(10)).build()?;
    /// // The default status is 429; 503 if the limiter cannot decide, or under nine rules; 403 without
    /// // a key; 400 with an ambiguous one; 500 if the server does not report the client's address.
    /// let limiter = HttpLimiter::new(limiter).deny_with(|_reason, default| {
    ///     Denial::json(default.status, r#"{"error":"slow_down"}"#).header("x-docs", "/limits")
    /// });
    /// # Ok::<(), rl_core::BuildError>(())
    /// ```
    #[must_use]
    pub fn json(status: u16, body: impl Into<Cow<'static, str>>) -> Self {
        let content_type = Some("application/json");
        Self { content_type, body: body.into(), ..Self::new(status) }
    }

    /// Creates a response with a body of plain text.
    #[must_use]
    pub fn text(status: u16, body: impl Into<Cow<'static, str>>) -> Self {
        let content_type = Some("text/plain; charset=utf-8");
        Self { content_type, body: body.into(), ..Self::new(status) }
    }

    /// Adds a header. The name must be in lower case, and the value must consist of visible ASCII
    /// and spaces.
    #[must_use]
    pub fn header(mut self, name: &'static str, value: impl Into<Cow<'static, str>>) -> Self {
        self.headers.push((name, value.into()));
        self
    }

    /// Returns whether this is the response to a gRPC call, whose client reads the status from
    /// `grpc-status`.
    #[must_use]
    pub fn is_grpc(&self) -> bool {
        self.content_type == Some(GRPC_CONTENT_TYPE)
    }
}

/// The reason for which a request is rejected.
///
/// The function of the `deny_with` setting receives it.
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
        /// The name of the rule that denies the request, if the limiter has
        /// [rules](crate::rules). No form of a denial contains it, unless the service discloses it.
        rule: Option<&'a str>,
    },
    /// The request has no key, and [`MissingKey::Reject`](crate::MissingKey::Reject) is set.
    MissingKey,
    /// The key of the request is [ambiguous](crate::key::AmbiguousKey).
    AmbiguousKey,
    /// The request matches more [rules](crate::rules) than one decision can apply.
    TooManyRules,
    /// The address of the client is unknown, because the server does not report the peer of the
    /// connection. Like [`MissingKey`](Self::MissingKey), but the server is at fault.
    UnknownAddress,
}

impl<'a> DenialReason<'a> {
    /// Returns the decision that denies the request, or `None` if no subject was counted.
    #[must_use]
    pub const fn decision(self) -> Option<&'a Decision> {
        match self {
            Self::Decision { decision, .. } => Some(decision),
            Self::MissingKey | Self::AmbiguousKey | Self::TooManyRules | Self::UnknownAddress => {
                None
            }
        }
    }

    /// Returns the name of the rule that denies the request, if the limiter has rules.
    #[must_use]
    pub const fn rule(self) -> Option<&'a str> {
        match self {
            Self::Decision { rule, .. } => rule,
            Self::MissingKey | Self::AmbiguousKey | Self::TooManyRules | Self::UnknownAddress => {
                None
            }
        }
    }

    /// Returns the subject that was counted, if there is one.
    #[must_use]
    pub const fn subject(self) -> Option<&'a Subject> {
        match self {
            Self::Decision { subject, .. } => Some(subject),
            Self::MissingKey | Self::AmbiguousKey | Self::TooManyRules | Self::UnknownAddress => {
                None
            }
        }
    }
}

/// The protocol in which a request is answered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Protocol {
    /// HTTP: the client reads the HTTP status.
    #[default]
    Http,
    /// gRPC: the client reads the status from headers of a response with the HTTP status 200.
    Grpc,
}

impl Protocol {
    /// Returns the protocol of a request with the header `Content-Type: content_type`.
    ///
    /// gRPC calls have the type `application/grpc`, perhaps with a suffix such as `+proto` or with
    /// parameters. `application/grpc-web` counts as HTTP, because its responses are framed
    /// differently. A proxy, or the layer of `tonic-web` outside the limiter, translates them.
    ///
    /// # Examples
    ///
    /// ```
    /// use rl_core::denial::Protocol;
    ///
    /// assert_eq!(Protocol::from_content_type(b"application/grpc"), Protocol::Grpc);
    /// assert_eq!(Protocol::from_content_type(b"application/grpc+proto"), Protocol::Grpc);
    /// assert_eq!(Protocol::from_content_type(b"application/grpc-web+proto"), Protocol::Http);
    /// assert_eq!(Protocol::from_content_type(b"application/json"), Protocol::Http);
    /// ```
    #[must_use]
    pub fn from_content_type(content_type: &[u8]) -> Self {
        let length = GRPC_CONTENT_TYPE.len();
        let is_grpc = content_type.split_at_checked(length).is_some_and(|(start, rest)| {
            start.eq_ignore_ascii_case(GRPC_CONTENT_TYPE.as_bytes())
                && matches!(rest, [] | [b'+' | b';' | b' ' | b'\t', ..])
        });
        if is_grpc { Self::Grpc } else { Self::Http }
    }
}
