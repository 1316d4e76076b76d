//! Counts of decisions, calls and times, for operators.
//!
//! Each limiter counts its decisions; [`RateLimiter::stats`](crate::RateLimiter::stats) returns the
//! counts since it was built. They are plain data. The crate `rl-metrics` exports them to
//! Prometheus, OpenTelemetry and the `metrics` facade.
//!
//! * **Counts are exact.** Every decision is counted once, except peeks.
//! * **Times, utilizations and top subjects are sampled** for decisions in memory: each thread
//!   records those of one decision in a millisecond.
//! * **Memory is bounded.** No request adds a counter. A limiter counts up to 1022 limits and rules
//!   by name, and all others together under the name [`OTHER_NAME`].
//!
//! Each thread counts in memory of its own (`sharded.rs`), so a decision takes no lock and no
//! atomic read-modify-write for it.
//!
//! # Example
//!
//! ```
//! use rl_core::{Limit, RateLimiter, Subject};
//!
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let limiter = RateLimiter::builder().limit(Limit::per_hour(2)).build()?;
//! for _ in 0..5 {
//!     limiter.check(&Subject::consumer("abc123"), 1).await;
//! }
//! let stats = limiter.stats();
//! assert_eq!((stats.allowed(), stats.denied()), (2, 3));
//! assert_eq!((stats.limits[0].name.as_str(), stats.limits[0].over), ("hour", 3));
//! assert_eq!(stats.top_denied[0].subject, Subject::consumer("abc123"));
//! # Ok(()) }
//! ```

mod decision_counts;
mod histogram;
mod limiter_stats;
mod sharded;
mod store_stats;
mod top;

pub(crate) use decision_counts::{DecisionCounts, is_record_due};
pub use histogram::Histogram;
pub(crate) use histogram::{REQUEST_BOUNDS, TimeHistogram};
pub use limiter_stats::{
    DecisionCount, FailureCount, LimitStats, LimiterStats, OTHER_NAME, RuleStats, RulesFileStats,
    UncountedRequests, UnitCounts,
};
pub(crate) use sharded::{OwnShard, PerThread, Sharded, ThreadCount, Writer};
#[cfg(feature = "redis")]
pub(crate) use store_stats::RedisCounts;
pub(crate) use store_stats::next_store_id;
pub use store_stats::{MemoryStats, RedisStats, StoreStats};
pub use top::TopSubject;
pub(crate) use top::TopSubjects;
