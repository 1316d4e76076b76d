//! Responses to rejected requests: status, body and a few headers.
//!
//! [`DenialBody`] sets the form, and [`Denial`] is the response. The rate limit headers,
//! `Retry-After` among them, are not part of it: [`headers`](crate::headers) writes them.
//!
//! | reason | HTTP status | gRPC status |
//! |---|---|---|
//! | over a limit, blocked, or a cost that limits never grant | 429 | 8, `RESOURCE_EXHAUSTED` |
//! | the limiter cannot decide, and [rejects on failure](crate::Origin::FailedClosed) | 503 | 14, `UNAVAILABLE` |
//! | more than eight rules match the request | 503 | 14, `UNAVAILABLE` |
//! | the request has no key, and such requests are rejected | 403 | 7, `PERMISSION_DENIED` |
//! | the key is the client's address, which the server does not report | 500 | 13, `INTERNAL` |
//! | the key is [ambiguous](crate::key::AmbiguousKey) | 400 | 3, `INVALID_ARGUMENT` |
//!
//! A gRPC client treats HTTP 429 as an outage, and retries immediately. It therefore gets HTTP 200
//! without a body, with the gRPC status and `grpc-retry-pushback-ms` in headers. The header
//! `grpc-status-details-bin` contains a `google.rpc.QuotaFailure` with the limits that deny, and a
//! `google.rpc.RetryInfo` if waiting helps.
//!
//! A message says what the limit allows, and when to retry if waiting helps. A denial repeats no
//! part of the request. Its text consists of fixed words, numbers, the [public
//! names](crate::LimitStatus::public_name) and units of limits, and the settings of the service. It
//! contains no name of a rule unless the service discloses it, and no subject, except the id of a
//! consumer if [`DenialBody::name_consumer`] is set.
//!
//! # Example
//!
//! ```
//! use rl_core::denial::{DenialBody, DenialReason, Protocol};
//! use rl_core::time::Timestamp;
//! use rl_core::store::Outcome;
//! use rl_core::{Cost, Decision, GoverningLimit, Limit, Policy, Subject};
//!
//! let policy = Policy::new([Limit::per_minute(100)])?;
//! let outcomes = [Outcome::denied(100, 42_000_000, 42_000_000)];
//! let decision = Decision::decided(policy, Cost::ONE, 0, Timestamp::EPOCH, outcomes);
//!
//! let body = DenialBody::json();
//! let reason = DenialReason::Decision {
//!     decision: &decision,
//!     subject: &Subject::consumer("abc"),
//!     rule: None,
//! };
//! let denial = body.denial(reason, GoverningLimit::default(), Protocol::Http);
//! assert_eq!((denial.status, denial.content_type), (429, Some("application/json")));
//! assert_eq!(
//!     denial.body,
//!     r#"{"code":429,"message":"Too many requests: 100 per minute. Try again in 42 seconds.","limit":"minute"}"#
//! );
//! # Ok::<(), rl_core::InvalidPolicy>(())
//! ```

mod body;
mod grpc;
pub(crate) mod json;
mod open_bank;
mod response;
#[cfg(test)]
mod tests;
mod words;

pub use body::DenialBody;
pub use response::{Denial, DenialReason, Protocol};
