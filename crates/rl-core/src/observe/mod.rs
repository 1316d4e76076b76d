//! Log lines for operators, and an observer for metrics.
//!
//! With the feature `tracing` (default), the limiter logs under the target `rl_core`. It writes one
//! line when a condition begins, and one when the condition is over. Every decision has a line at
//! level `debug` only.
//!
//! The fields before a semicolon are on the line at the beginning, and those after it on the line
//! at the end. Most lines at the beginning also have the field `consequence`: what happens to
//! requests meanwhile.
//!
//! | line at the beginning | line at the end | fields |
//! |---|---|---|
//! | `store failing` | `store recovered` | `kind`, `cause`; `outage_ms`, `undecided` |
//! | `store overloaded` | `store overload ended` | `in_flight`, `bound`; `lasted_ms`, `refused` |
//! | `store out of memory` | `store charges requests again` | `cause`; `lasted_ms`, `undecided` |
//! | `policy not supported by the store` | `unsupported policies ended` | `cause`; `lasted_ms`, `requests` |
//! | `stored value damaged` | `stored value recovered` | `realm`, `subject`, `cause`; `lasted_ms`, `requests` |
//! | `policy look-ups failing` | `policy look-ups recovered` | `kind`, `cause`; `lasted_ms`, `undecided` |
//! | `policy look-ups overloaded` | `policy look-up overload ended` | none; `lasted_ms`, `refused` |
//! | `policy of subject unreadable` | `policy of subject readable again` | `realm`, `subject`, `kind`, `cause`; `lasted_ms`, `requests` |
//! | `fallback failing` | `fallback recovered` | `kind`, `cause`; `lasted_ms`, `undecided` |
//! | `concurrency lease lapsed` | `concurrency leases no longer lapse` | `subject`, `is_retaken`; `lasted_ms`, `leases` |
//! | `charge not given back` | `charges given back again` | `cause`; `lasted_ms`, `charges` |
//! | `counters without expiry found` | `no more counters without expiry` | `counters`; `lasted_ms`, `counters` |
//!
//! The other lines describe no condition that ends:
//!
//! | line | level | fields |
//! |---|---|---|
//! | `decided` | debug | `realm`, `subject`, `allowed`, `origin`, `limit`, `used`, `duration_us` |
//! | `limit in shadow would deny` | warn for the first request in a window, debug for the others | `subject`, `limit`, `max`, `used` |
//! | `many stored values damaged` | error | `consequence` |
//! | `many policies unreadable` | error | `consequence` |
//! | `requests rejected` | error | `cause`: the policies of one subject have more states than a store in memory can hold |
//! | `two limiters with different limits share counters` | warn | |
//! | `share of a limit raised to the cost of one request` | warn | `limit`, `configured`, `cost`, `instances` |
//! | `cost not set` | warn, once for each limiter | `rule` |
//! | `starting without the store` | warn | `kind`, `cause`, `consequence` |
//! | `Redis may evict counters` | warn | `maxmemory_policy` |
//! | `rules applied` | info | `path`, `version` |
//! | `rules refused` | error | `path`, `error`, `consequence` |
//! | `rules warning` | warn, once for each warning | `path`, `warning` |
//! | `client address unknown` | error, once for each limiter of an adapter | `request_id`, `trace_id` |
//! | `more than eight rules match a request` | error, then not before a minute without such a request | `rules`, `consequence`, `request_id`, `trace_id` |
//! | `request without a known key rejected` | warn, once for each limiter of an adapter | `rule`, `request_id`, `trace_id` |
//! | `request with an ambiguous key rejected` | warn, once for each limiter of an adapter | `request_id`, `trace_id` |
//!
//! The field `limiter` contains the namespace of the limiter, and `store` the kind of the store and
//! its server. The field `rule` contains the name of a rule. A line has these fields only if it is
//! about one limiter, one store or one rule. Subjects are shown as sixteen hexadecimal digits of a
//! keyed hash: [`Subject::redacted`](crate::Subject::redacted). An [`Observer`] gets the conditions
//! of limiters as [events](EventKind), from which these lines are written.
//!
//! # Spans
//!
//! At level `debug`, the crate also records spans, with the attributes that OpenTelemetry defines
//! for clients of databases. No span contains a key or the id of a subject. Decisions in memory
//! have no spans.
//!
//! | span | around | fields |
//! |---|---|---|
//! | `rl.store` | a store call for which the limiter waits | `otel.kind`, `db.system.name`, `db.operation.name`, `server.address`, `server.port`, `rate_limit.limiter`, `rate_limit.rule`, `rate_limit.outcome`, `rate_limit.origin`, `error.type` |
//! | `rl.request` | the decision about a request of an adapter | `rate_limit.limiter`, `request_id`, `trace_id`, `parent_id` |
//!
//! The ids of a request come from its headers `x-request-id` and `traceparent`. A request id has at
//! most 64 letters, digits and `-_.:/+=@` in the log; other characters are replaced by `?`.
//!
//! # Example
//!
//! ```
//! use rl_core::observe::{DecisionEvent, Observer};
//! use rl_core::{Limit, RateLimiter, Subject};
//! use std::sync::Arc;
//! use std::sync::atomic::{AtomicU64, Ordering};
//!
//! #[derive(Debug, Default)]
//! struct Denials(AtomicU64);
//!
//! impl Observer for Denials {
//!     fn decided(&self, event: &DecisionEvent<'_>) {
//!         if !event.decision.is_allowed() {
//!             self.0.fetch_add(1, Ordering::Relaxed);
//!         }
//!     }
//! }
//!
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let denials = Arc::new(Denials::default());
//! let limiter =
//!     RateLimiter::builder().limit(Limit::per_hour(1)).observer(denials.clone()).build()?;
//! for _ in 0..3 {
//!     limiter.check(&Subject::global(), 1).await;
//! }
//! assert_eq!(denials.0.load(Ordering::Relaxed), 2);
//! # Ok(()) }
//! ```

#[cfg(all(test, feature = "tracing"))]
pub(crate) mod capture;
mod event;
#[cfg(not(feature = "tracing"))]
#[path = "disabled.rs"]
mod log;
#[cfg(feature = "tracing")]
mod log;
mod observer;
mod request_ids;
#[cfg(feature = "tracing")]
mod spans;
#[cfg(test)]
mod tests;
mod transition;

pub(crate) use event::CountedParts;
pub use event::{DecidedPart, DecisionEvent, Event, EventKind, EventLocation};
use log::LogObserver;
#[cfg(feature = "rules-file")]
pub(crate) use log::rules_warned;
#[cfg(not(feature = "tracing"))]
pub(crate) use log::{RequestSpan, StoreSpan};
pub(crate) use log::{
    ambiguous_key, may_decisions_be_logged, missing_key, share_raised, shared_counters,
    too_many_rules, too_many_states, unknown_address, unknown_rule,
};
#[cfg(feature = "redis")]
pub(crate) use log::{
    can_evict, give_back_failed, give_back_recovered, healed, healing_ended, not_connected,
};
pub use observer::Observer;
pub(crate) use observer::add;
pub(crate) use request_ids::RequestIds;
#[cfg(feature = "tracing")]
pub(crate) use spans::{RequestSpan, StoreSpan};
pub use transition::{Ended, Transition};

/// Reports an event to the log, and to the observer of a limiter if there is one.
pub(crate) fn emit(observer: Option<&dyn Observer>, event: &Event<'_>) {
    LogObserver.observe(event);
    if let Some(observer) = observer {
        observer.observe(event);
    }
}

/// Reports a decision to the log.
pub(crate) fn log_decision(event: &DecisionEvent<'_>) {
    LogObserver.decided(event);
}
