//! The counts of rate limiters, as series for Prometheus, OpenTelemetry and the `metrics` facade.
//!
//! ```
//! use rl_core::{Limit, RateLimiter};
//! use rl_metrics::Metrics;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let limiter = RateLimiter::builder().limit(Limit::per_minute(100)).build()?;
//! let metrics = Metrics::new().limiter(&limiter);
//! let text = metrics.render(); // or a handler for axum or actix-web
//! assert!(text.contains("rl_limit_max{limit=\"minute\",limiter=\"default\",rule=\"\",tier=\"\"} 100"));
//! # Ok(()) }
//! ```
//!
//! The counts are pulled: nothing is done for a request beyond what [`rl_core::stats`] counts. The
//! [`CATALOGUE`] lists all series; `METRICS.md` shows it as a table.
//!
//! # Features
//!
//! | Name | Description | Default? |
//! |---|---|---|
//! | `axum` | [`axum::handler`] for `/metrics` | No |
//! | `actix` | [`actix::handler`] for `/metrics` | No |
//! | `prometheus` | [`Metrics`] as a `Collector` of the crate `prometheus-client` | No |
//! | `opentelemetry` | [`opentelemetry::register`]: observable instruments | No |
//! | `metrics` | [`Metrics::record`]: the facade of the crate `metrics` | No |
//! | `records` | [`Metrics::records`]: the counts of a `RecordSource` | No |

#![cfg_attr(docsrs, feature(doc_cfg))]

#[cfg(feature = "actix")]
#[cfg_attr(docsrs, doc(cfg(feature = "actix")))]
pub mod actix;
#[cfg(feature = "axum")]
#[cfg_attr(docsrs, doc(cfg(feature = "axum")))]
pub mod axum;
mod catalogue;
mod consumers;
#[cfg(feature = "metrics")]
mod facade;
mod limiter_samples;
#[cfg(feature = "opentelemetry")]
#[cfg_attr(docsrs, doc(cfg(feature = "opentelemetry")))]
pub mod opentelemetry;
mod overflow;
#[cfg(feature = "prometheus")]
mod prometheus;
mod registry;
mod sample;
#[cfg(feature = "opentelemetry")]
mod snapshots;
#[cfg(test)]
mod tests;
mod text;

pub use catalogue::{CATALOGUE, Series, SeriesKind, catalogue_as_markdown};
pub use consumers::ConsumerCounts;
pub use registry::Metrics;
pub use sample::{Sample, SampleValue};
pub use text::CONTENT_TYPE;
