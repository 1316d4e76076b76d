//! Rate limits, decided all-or-nothing over up to sixteen periods of one subject.

#![cfg_attr(docsrs, feature(doc_cfg))]

// In reading order.
mod algorithm;
#[cfg(feature = "conformance")]
#[cfg_attr(docsrs, doc(cfg(feature = "conformance")))]
pub mod conformance;
mod future;
pub mod key;
pub mod limiter;
pub mod model;
pub mod observe;
pub mod source;
pub mod store;
pub mod time;

pub use future::Eventual;
pub use limiter::{RateLimiter, RateLimiterBuilder};
pub use model::*;
pub use store::MemoryStore;
#[cfg(feature = "redis")]
#[cfg_attr(docsrs, doc(cfg(feature = "redis")))]
pub use store::RedisStore;
