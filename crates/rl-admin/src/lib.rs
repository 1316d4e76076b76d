//! Management of rate limits over HTTP: an axum [`Router`](axum::Router) that any service can mount, and
//! a [`console`] for people.
//!
//! It reads and changes the records of `rl-records`, tells what they add up to and what has been
//! used, resets counters, blocks consumers, and explains decisions. Reading never charges a counter.
//!
//! ```
//! use axum::body::Body;
//! use axum::http::{Request, StatusCode};
//! use rl_admin::{Admin, BearerTokens, Roles};
//! use rl_core::RateLimiter;
//! use rl_records::{RecordSource, Records};
//! use tower::ServiceExt;
//!
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! // What the service has anyway: records, the source of policies that they make, and the limiter.
//! let records = Records::connect("sqlite::memory:").await?;
//! let source = RecordSource::start(&records);
//! let limiter = RateLimiter::builder().policies(source.clone()).build()?;
//!
//! let tokens = BearerTokens::new().with("alice", "a-long-and-random-token", Roles::all())?;
//! let admin = Admin::builder(records, source, limiter).authorize(tokens).build();
//! let app = axum::Router::new().nest("/obp/v6.0.0", admin.router());
//!
//! let path = "/obp/v6.0.0/management/consumers/abc123/active-rate-limits";
//! let request = || Request::get(path);
//! let answer = app.clone().oneshot(request().body(Body::empty())?).await?;
//! assert_eq!(answer.status(), StatusCode::UNAUTHORIZED);
//!
//! let alice = request().header("authorization", "Bearer a-long-and-random-token");
//! let answer = app.oneshot(alice.body(Body::empty())?).await?;
//! assert_eq!(answer.status(), StatusCode::OK);
//! # Ok(()) }
//! ```
//!
//! # Rules
//!
//! 1. **Nobody is let in unless it is said who**: without an [`Authorize`] every call is answered with
//!    401, whatever its path. Then comes the [`Role`], 403, and only then the rest of the request.
//! 2. **A change binds the next request** of this process, and soon those of others: see `rl-records`.
//! 3. **No edit is lost**: `If-Match` with the `ETag` of what was seen is answered with 412 if it has
//!    changed, and the history keeps everything with who did it.
//! 4. **What cannot be used is refused** with the field and what was expected; nothing of it is stored.
//! 5. **What the API does its document says**: `/openapi.json` is made from the code.
//!
//! The README of the crate lists the operations. The same is there as a server, `rl-admin`.

#![cfg_attr(docsrs, feature(doc_cfg))]

pub mod access;

mod backend;
mod error;
mod wire;

mod admin;
mod audit;
mod read;
mod routes;

pub mod console;

pub use access::{Actor, Authorize, BearerTokens, FailedAttempts, Role, Roles};
pub use admin::{Admin, AdminBuilder};
pub use backend::Backend;
pub use error::ApiError;
