//! Management of rate limits over HTTP: an axum [`Router`](axum::Router) that any service can
//! mount, and a [`console`] for administrators.
//!
//! It reads and changes the records of `rl-records`, and reports active limits and usage. It can
//! reset counters, block consumers and explain decisions. Reading never charges a counter.
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
//! // The service already has these: records, their source of policies, and the limiter.
//! let records = Records::connect("sqlite::memory:").await?;
//! let source = RecordSource::start(&records);
//! let limiter = RateLimiter::builder().policies(source).build()?;
//!
//! let tokens = BearerTokens::new().with("alice", "a-long-and-random-token", Roles::all())?;
//! let admin = Admin::builder(records, limiter).authorize(tokens).build();
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
//! 1. **Authentication comes first.** Without an [`Authorize`], every request gets 401, whatever
//!    its path. Next, the [`Role`] is checked (403), and only then the rest of the request.
//! 2. **A change applies to the next request** in this process, and soon in other processes: see
//!    `rl-records`.
//! 3. **No edit is lost.** A change with `If-Match` gets 412 if the object has another `ETag`. The
//!    history contains every change with its actor.
//! 4. **Invalid input is refused** with the name of the field and the expected value, and nothing
//!    is stored.
//! 5. **The document matches the code.** `/openapi.json` is generated from the code.
//!
//! [`webhook`] sends the events of limiters to other systems.
//!
//! The README of the crate lists the operations. The binary `rl-admin` serves them.

//!
//! With rules, the README has a whole program: the section *Records, rules and console together*.

#![cfg_attr(docsrs, feature(doc_cfg))]

pub mod access;

mod backend;
mod failure;
mod field_hints;

mod error;
mod wire;

mod last_hour;

mod instances;

pub mod webhook;

mod outage;
mod refusal_sampler;

mod context;

mod audit;

mod shadow;
mod stored_rules;
mod subject_rules;
mod usage_export;

mod read;
mod routes;

mod admin;

pub mod oidc;

pub mod console;

pub mod settings;

/// Runs the program of the README as a test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

pub use access::{Actor, Authorize, BearerTokens, FailedAttempts, Role, Roles};
pub use admin::{Admin, AdminBuilder};
pub use backend::Backend;
pub use error::ApiError;
pub use instances::DenialPublisher;
