//! Rate limits: up to sixteen limits of one subject, all charged together or not at all.
//!
//! ```
//! use rl_core::{Limit, RateLimiter, Subject};
//!
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let limiter = RateLimiter::builder()
//!     .limit(Limit::per_second(10))
//!     .limit(Limit::per_day(5_000))
//!     .build()?; // counters in memory; nothing to install
//!
//! let decision = limiter.check(&Subject::consumer("abc123"), 1).await;
//! assert!(decision.is_allowed());
//! # Ok(()) }
//! ```
//!
//! Web services use this crate through an adapter, which re-exports all of it: `rl-tower` for axum,
//! tonic and other services built on tower, `rl-actix` for actix-web.
//!
//! # Features
//!
//! | Name | Description | Default? |
//! |---|---|---|
//! | `tracing` | Log lines through the `tracing` facade | Yes |
//! | `redis` | Counters on Redis, shared by every instance | No |
//! | `redis-tls` | Redis over TLS and mutual TLS | No |
//! | `redis-sentinel` | The primary server, found through Redis Sentinel | No |
//! | `redis-cluster` | Redis Cluster | No |
//! | `rules-file` | [Rules](rules) from YAML and TOML files, which are read again when they change | No |
//! | `serde` | Limits, periods and policies in configuration files | No |
//! | `conformance` | The contract of [`Store`](store::Store) as tests, and stores on a clock that tests control | No |
//!
//! # Reading order
//!
//! The source of this page declares the modules in reading order. The first ones know nothing of
//! limits, and the last ones are for applications. Each module uses only modules before it.

#![cfg_attr(docsrs, feature(doc_cfg))]

mod maybe_ready;
pub mod time;

#[macro_use]
mod model;

mod algorithm;
mod policy;

mod decision;

#[cfg(feature = "serde")]
mod serde_impls;

pub mod client_ip;
pub mod denial;
pub mod headers;
pub mod key;

pub mod stats;
pub mod store;

pub mod observe;
pub mod source;

pub mod rules;

mod limiter;

pub mod adapter;

#[cfg(feature = "conformance")]
#[cfg_attr(docsrs, doc(cfg(feature = "conformance")))]
pub mod conformance;

pub mod _documentation;

pub use adapter::settings::CountedSubject;
pub use decision::{
    Decision, GoverningLimit, LimitStatus, Origin, PartStatus, PublicName, RetryAfter,
};
pub use headers::ResponseInfo;
pub use limiter::{
    BuildError, LimiterRequest, NamedRule, Permit, RateLimiter, RateLimiterBuilder,
    RequestSubjects, ResetError, Share, WaitingRequest, WeakRateLimiter,
};
pub use maybe_ready::MaybeReady;
pub use model::{
    Algorithm, Anchor, Cost, CustomRealm, FailureKind, InvalidLimit, InvalidLogSecret,
    InvalidPeriod, InvalidRealm, Limit, MAX_UNITS, OnFailure, ParseLimitError, Period, Realm,
    Redacted, Refill, StoreError, Subject, SubjectId,
};
pub use policy::{Block, InvalidPolicy, LimitSet, NamedLimit, Policy, PolicyBuilder};
pub use rules::{MissingKey, OverLimit};
pub use store::Part;
pub use store::memory::{MemoryStore, MemoryStoreBuilder};
#[cfg(feature = "redis")]
#[cfg_attr(docsrs, doc(cfg(feature = "redis")))]
pub use store::redis::{RedisStore, RedisStoreBuilder};
