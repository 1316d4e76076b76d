//! A limiter around a *client*: it paces the calls that this service sends to others.
//!
//! Needs the feature `client`. [`ThrottleLayer`] wraps any tower service that takes an
//! [`http::Request`], such as the client of `hyper-util`, a `Channel` of tonic, or a
//! `reqwest::Client` behind tower's `map_request` and `map_response`, as in the example `outgoing`.
//!
//! ```
//! use std::time::Duration;
//!
//! use rl_tower::client::ThrottleLayer;
//! use rl_tower::{OnFailure, RateLimiter};
//! use tonic::transport::Endpoint;
//! use tower::ServiceBuilder;
//!
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let limiter = RateLimiter::builder()
//!     .limit("10/second:gcra:burst=1".parse()?)
//!     .on_store_failure(OnFailure::Reject) // no call while the store cannot decide
//!     .build()?;
//! let throttle = ThrottleLayer::new(limiter).wait(Duration::from_secs(30), 500);
//! let channel = Endpoint::from_static("http://greeter.example:50051").connect_lazy();
//! let client = tonic::client::Grpc::new(ServiceBuilder::new().layer(throttle).service(channel));
//! # let _ = client;
//! # Ok(()) }
//! ```
//!
//! # The path of a call
//!
//! 1. The **subject** is the destination: the host of the URI, or the result of
//!    [`key`](ThrottleLayer::key). The limits of the limiter apply to each destination.
//! 2. With [`adaptive`](ThrottleLayer::adaptive), a call to a destination that rejects most calls
//!    may fail at once.
//! 3. The call **waits its turn**. A longer wait than [`wait`](ThrottleLayer::wait) permits is a
//!    [`Throttled`] error, at once if the call is the next one. A call that is dropped while it
//!    waits leaves the queue and is not charged.
//! 4. The call is sent. Under a concurrency limit, it holds its place until the body of the
//!    response has ended.
//! 5. If the response **asks for a pause**, the destination is
//!    [paused](rl_core::RateLimiter::pause): no call to it is sent until then. Calls that wait
//!    already stay in the queue. The pause holds in this process; instances that share the limit
//!    through Redis learn it from their own responses.
//!
//! | response | pause |
//! |---|---|
//! | 429, 503, or gRPC status 8 or 14 without a message | `Retry-After` (seconds or a date), or `grpc-retry-pushback-ms` |
//! | any, with `ratelimit` (IETF drafts 07 to 11) | the longest `t` or `reset` of a quota with nothing remaining |
//! | any, with `ratelimit-`, `x-ratelimit-` or `x-rate-limit-remaining: 0` | `…-reset`: seconds, or seconds or milliseconds since the epoch |
//!
//! Points in time are compared with the `Date` of the response. Values that cannot be read are
//! ignored. No response can pause a destination for longer than
//! [`max_pause`](ThrottleLayer::max_pause).
//!
//! # Retries
//!
//! The layer sends each call once. Put tower's retry layer *outside* of it: each attempt then waits
//! its turn, and the one after a 429 waits for the pause. A timeout outside of the layer includes
//! the wait, and one inside bounds the call alone.
//!
//! While a call waits, it holds the inner service that was ready, so that it is sent as soon as the
//! limit allows it. Put layers that are ready for few calls only, such as tower's concurrency limit,
//! outside too.

mod adaptive;
mod layer;
mod requested_pause;
mod service;
mod settings;
mod throttled;

pub use layer::ThrottleLayer;
pub use service::{Throttle, ThrottleFuture};
pub use throttled::{BoxError, Throttled};
