//! The parts of an adapter for a web framework.
//!
//! Applications use `rl-tower` or `rl-actix`. These adapters translate between their framework and
//! the types of this module. The types implement the following rules.
//!
//! # Rules
//!
//! 1. **Exempt** requests are not counted, and their responses get no headers.
//!    [`exempt`](HttpLimiter::exempt) selects them, and
//!    [`exempt_preflights`](HttpLimiter::exempt_preflights) adds CORS preflights. By default
//!    preflights are counted. To avoid this, put the CORS layer outside the limiter, so that it
//!    answers them.
//! 2. **The subject** is found by the [`KeyExtractor`](crate::key::KeyExtractor); by default it is
//!    the address of the peer. [`MissingKey`](crate::MissingKey) sets how a request without a key
//!    is handled. If the key is the address, and the server does not report the peer, the request
//!    is rejected with 500. A request whose key is [ambiguous](crate::key::AmbiguousKey) is always
//!    rejected with 400, and counted nowhere.
//! 3. **One charge for each limiter and subject.** A request that passes the same limiter twice
//!    under the same subject, in nested layers, is charged once. Under another subject it is
//!    charged again: one limiter may count addresses in one layer and consumers in another. (Two
//!    limiters on one store need different [namespaces](crate::RateLimiterBuilder::namespace).)
//! 4. **Over its limits** a request is rejected, waits or is degraded:
//!    [`OverLimit`](crate::OverLimit). Under a concurrency limit, a request holds its permit until
//!    the body of its response has ended.
//! 5. **The cost** is one unit, or the result of [`cost`](HttpLimiter::cost) for the request. The
//!    final cost can be set by the handler ([`metered`](HttpLimiter::metered)) or read from the
//!    response ([`response_cost`](HttpLimiter::response_cost),
//!    [`refund_if`](HttpLimiter::refund_if)). It is settled when the body of the response has
//!    ended.
//! 6. **Under [rules](crate::rules)** a request has several subjects, each with a policy and a
//!    cost. It is charged to all of them, or to none. A request that no rule matches is exempt.
//! 7. **Nested limiters** merge their headers. A header with a single value keeps the value of the
//!    stricter limiter. List values of both limiters are sent.
//!
//! # Example
//!
//! ```
//! use rl_core::adapter::HttpLimiter;
//! use rl_core::{Limit, RateLimiter};
//!
//! let limiter = RateLimiter::builder().limit(Limit::per_second(10)).build()?;
//! let http = HttpLimiter::new(limiter).exempt(|request| request.path() == "/health");
//! assert!(http.limiter().is_enabled());
//! # Ok::<(), rl_core::BuildError>(())
//! ```
//!
//! # An adapter
//!
//! ```text
//! request ─► admit ─┬─ Exempt ─────────────────────────────► service ─────────────► response
//!                   ├─ Rejected(denial) ──────────────────────────────────────────► response
//!                   └─ Counted ─► decide ─► apply ─┬─ no denial ─► service ─► finish ─► response
//!                                                  └─ denial ───────────────► finish ─► response
//! ```
//!
//! The adapter implements [`RequestInfo`](crate::key::RequestInfo) for the requests of its
//! framework, [`ResponseHead`] for its responses, and [`Extensions`] for their extensions. It keeps
//! the permit that [`finish`](CountedRequest::finish) returns until the body of the response has
//! ended.

mod admission;
mod denied;
mod http_limiter;
mod preflight;
pub(crate) mod response;
pub(crate) mod settings;
#[cfg(test)]
mod tests;
mod usage;

pub use admission::{Admission, RequestContext};
pub use denied::Denied;
pub use http_limiter::HttpLimiter;
pub use response::{CountedRequest, Extensions, ResponseHead};
