//! What a client that is turned away gets: status, body and a few headers, for an adapter to send.
//!
//! [`DenialBody`] says in which form; [`Denial`] is the answer. It adds to the lines that
//! [`headers`](crate::headers) writes, `Retry-After` among them, and repeats none of them.
//!
//! | why | status | of gRPC |
//! |---|---|---|
//! | over a limit | 429 | 8, `RESOURCE_EXHAUSTED` |
//! | the limiter cannot decide, and [is set to deny](crate::Origin::FailedClosed) | 503 | 14, `UNAVAILABLE` |
//! | the request has no key, and that is set to be denied | 403 | 7, `PERMISSION_DENIED` |
//! | the key is [ambiguous](crate::key::AmbiguousKey) | 400 | 3, `INVALID_ARGUMENT` |
//!
//! A gRPC client takes HTTP 429 for an outage and tries again at once. It is answered in its own
//! way: HTTP 200 without a body, the status in headers, and `grpc-retry-pushback-ms`.
//! [`is_grpc`] tells such requests by their content type.
//!
//! Nothing of the request is repeated in an answer, and no names of subjects: texts are made of
//! fixed words, numbers, the names of limits and what you set.
//!
//! # Example
//!
//! ```
//! use rl_core::denial::DenialBody;
//! use rl_core::time::Timestamp;
//! use rl_core::{Cost, Decision, Follow, Limit, Outcome, Policy, Realm};
//!
//! let policy = Policy::new([Limit::per_minute(100)])?;
//! let outcomes = [Outcome::denied(100, 42_000_000, 42_000_000)];
//! let decision = Decision::decided(policy, Cost::ONE, 0, Timestamp::EPOCH, outcomes);
//!
//! let body = DenialBody::open_bank();
//! let denial = body.denial(&decision, &Realm::Consumer, Follow::default(), false);
//! assert_eq!((denial.status, denial.content_type), (429, Some("application/json")));
//! assert_eq!(
//!     denial.body,
//!     r#"{"code":429,"message":"Too Many Requests. We only allow 100 requests per minute for this Consumer."}"#
//! );
//! # Ok::<(), rl_core::InvalidPolicy>(())
//! ```

mod body;
mod grpc;
mod json;
mod reason;
#[cfg(test)]
mod tests;

use std::borrow::Cow;

pub use body::DenialBody;
pub use grpc::is_grpc;

/// What a client that is turned away gets.
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
    /// An answer of this status alone; its fields can be set.
    ///
    /// # Examples
    ///
    /// ```
    /// use rl_core::denial::Denial;
    /// use rl_core::{Gate, Limit, RateLimiter};
    ///
    /// # let limiter = RateLimiter::builder().limit(Limit::per_second(10)).build()?;
    /// let gate = Gate::new(limiter).deny_with(|_decision, _caller| {
    ///     let mut denial = Denial::new(429);
    ///     denial.content_type = Some("text/html; charset=utf-8");
    ///     denial.body = "<p>Please slow down.".into();
    ///     denial
    /// });
    /// # Ok::<(), rl_core::limiter::BuildError>(())
    /// ```
    #[must_use]
    pub const fn new(status: u16) -> Self {
        Self { status, content_type: None, body: Cow::Borrowed(""), headers: Vec::new() }
    }
}
