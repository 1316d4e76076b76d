//! What a client that is turned away gets: status, body and a few headers, for an adapter to send.
//!
//! [`DenialBody`] says in which form; [`Denial`] is the answer. It adds to the lines that
//! [`headers`](crate::headers) writes, `Retry-After` among them, and repeats none of them.
//!
//! | why | status | of gRPC |
//! |---|---|---|
//! | over a limit, blocked, or a cost that limits never grant | 429 | 8, `RESOURCE_EXHAUSTED` |
//! | the limiter cannot decide, and [is set to deny](crate::Origin::FailedClosed) | 503 | 14, `UNAVAILABLE` |
//! | the request has no key, and that is set to be denied | 403 | 7, `PERMISSION_DENIED` |
//! | the key is [ambiguous](crate::key::AmbiguousKey) | 400 | 3, `INVALID_ARGUMENT` |
//!
//! A gRPC client takes HTTP 429 for an outage and tries again at once. It is answered in its own
//! way: HTTP 200 without a body, the status in headers, `grpc-retry-pushback-ms`, and in
//! `grpc-status-details-bin` a `google.rpc.RetryInfo` (unless no wait helps) and a
//! `google.rpc.QuotaFailure` with the limits that deny.
//! [`is_grpc`] tells such requests by their content type.
//!
//! A denial repeats nothing of the request. Its text consists of fixed words, numbers, the names and
//! units of limits, and your settings. It names no subject, except the id of a consumer if
//! [`DenialBody::names_consumer`] is set.
//!
//! # Example
//!
//! ```
//! use rl_core::denial::{DenialBody, DenialReason};
//! use rl_core::time::Timestamp;
//! use rl_core::{Cost, Decision, GoverningLimit, Limit, Outcome, Policy, Subject};
//!
//! let policy = Policy::new([Limit::per_minute(100)])?;
//! let outcomes = [Outcome::denied(100, 42_000_000, 42_000_000)];
//! let decision = Decision::decided(policy, Cost::ONE, 0, Timestamp::EPOCH, outcomes);
//!
//! let body = DenialBody::open_bank();
//! let reason = DenialReason::Decision { decision: &decision, subject: &Subject::consumer("abc") };
//! let denial = body.denial(reason, GoverningLimit::default(), false);
//! assert_eq!((denial.status, denial.content_type), (429, Some("application/json")));
//! assert_eq!(
//!     denial.body,
//!     r#"{"code":429,"message":"Too Many Requests. We only allow 100 requests per minute for this Consumer."}"#
//! );
//! # Ok::<(), rl_core::InvalidPolicy>(())
//! ```

mod body;
mod grpc;
mod grpc_details;
mod json;
mod reason;
#[cfg(test)]
mod tests;
mod words;

use std::borrow::Cow;

pub use body::DenialBody;
pub use grpc::is_grpc;
pub use reason::DenialReason;

/// The response to a rejected request.
///
/// Made with [`Denial::json`], [`Denial::text`] or [`Denial::new`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Denial {
    /// The HTTP status.
    pub status: u16,
    /// The value for `Content-Type`; none if there is no body.
    pub content_type: Option<&'static str>,
    /// The body; empty if there is none.
    pub body: Cow<'static, str>,
    /// More headers: names in lower case, each once, and values of visible ASCII and spaces.
    pub headers: Vec<(&'static str, Cow<'static, str>)>,
}

impl Denial {
    /// Makes an answer with this status and nothing else; its fields can be set.
    #[must_use]
    pub const fn new(status: u16) -> Self {
        Self { status, content_type: None, body: Cow::Borrowed(""), headers: Vec::new() }
    }

    /// Makes an answer whose body is `body`, which must be JSON.
    ///
    /// # Examples
    ///
    /// ```
    /// use rl_core::denial::Denial;
    /// use rl_core::{Gate, Limit, RateLimiter};
    ///
    /// # let limiter = RateLimiter::builder().limit(Limit::per_second(10)).build()?;
    /// // The status of the default: 429, 503 if the limiter cannot decide, 403 without a key.
    /// let gate = Gate::new(limiter).deny_with(|_reason, default| {
    ///     Denial::json(default.status, r#"{"error":"slow_down"}"#).header("x-docs", "/limits")
    /// });
    /// # Ok::<(), rl_core::limiter::BuildError>(())
    /// ```
    #[must_use]
    pub fn json(status: u16, body: impl Into<Cow<'static, str>>) -> Self {
        let content_type = Some("application/json");
        Self { content_type, body: body.into(), ..Self::new(status) }
    }

    /// Makes an answer with a body of plain text.
    #[must_use]
    pub fn text(status: u16, body: impl Into<Cow<'static, str>>) -> Self {
        let content_type = Some("text/plain; charset=utf-8");
        Self { content_type, body: body.into(), ..Self::new(status) }
    }

    /// Adds a header: a name in lower case, and a value of visible ASCII and spaces.
    #[must_use]
    pub fn header(mut self, name: &'static str, value: impl Into<Cow<'static, str>>) -> Self {
        self.headers.push((name, value.into()));
        self
    }

    /// Returns whether this answers a gRPC call, whose client reads the status from `grpc-status`.
    #[must_use]
    pub fn is_grpc(&self) -> bool {
        self.content_type == Some(grpc::CONTENT_TYPE)
    }
}
