//! Log lines for operators, and an observer for metrics.
//!
//! With the feature `tracing` (default), the limiter logs under the target `rl_core`. It writes one
//! line when a condition begins, and one when the condition is over. Every decision has a line at
//! level `debug` only.
//!
//! | line at the beginning | line at the end | fields |
//! |---|---|---|
//! | `store failing` | `store recovered` | `kind`, `cause`; `outage_ms`, `undecided` |
//! | `store overloaded` | `store overload ended` | `in_flight`, `bound`; `lasted_ms`, `refused` |
//! | `policy not supported by the store` | `unsupported policies ended` | `cause`; `lasted_ms`, `requests` |
//! | `stored value damaged` | `stored value recovered` | `realm`, `subject`, `cause`; `lasted_ms`, `requests` |
//! | `policy look-ups failing` | `policy look-ups recovered` | `kind`, `cause`; `lasted_ms`, `undecided` |
//! | `policy look-ups overloaded` | `policy look-up overload ended` | `lasted_ms`, `refused` |
//! | `policy of subject unreadable` | `policy of subject readable again` | `realm`, `subject`, `kind`, `cause`; `lasted_ms`, `requests` |
//! | `fallback failing` | `fallback recovered` | `kind`, `cause`; `lasted_ms`, `undecided` |
//! | `concurrency lease lapsed…` | `concurrency leases no longer lapse` | `subject`, `is_retaken`; `lasted_ms`, `leases` |
//! | `charge of a denied request not given back` | `charges of denied requests given back again` | `cause`; `lasted_ms`, `charges` |
//! | `counters without expiry found` | `no more counters without expiry` | `counters` |
//!
//! Each line names the namespace of the `limiter` and the `store`. Subjects are shown as sixteen
//! hexadecimal digits of a keyed hash: [`Subject::redacted`].
//!
//! # Example
//!
//! ```
//! use rl_core::observe::Observer;
//! use rl_core::{Decision, Limit, RateLimiter, Subject};
//! use std::sync::Arc;
//! use std::sync::atomic::{AtomicU64, Ordering};
//!
//! #[derive(Debug, Default)]
//! struct Denials(AtomicU64);
//!
//! impl Observer for Denials {
//!     fn decided(&self, _: &Subject, decision: &Decision) {
//!         if !decision.is_allowed() {
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
#[cfg(not(feature = "tracing"))]
#[path = "disabled.rs"]
mod log;
#[cfg(feature = "tracing")]
#[path = "enabled.rs"]
mod log;
mod transition;

use std::fmt;
use std::sync::Arc;

pub(crate) use log::{
    ambiguous_key, damage_ended, damaged, decided, fallback_failed, fallback_recovered,
    lapses_ended, lease_lapsed, may_decisions_be_logged, missing_key, more_damaged, overload_ended,
    overloaded, shared_counters, source_failed, source_overload_ended, source_overloaded,
    source_recovered, store_failed, store_recovered, too_many_states, unknown_policy,
    unknown_policy_ended, unsupported, unsupported_ended, would_deny,
};
#[cfg(feature = "redis")]
pub(crate) use log::{can_evict, healed, healing_ended, not_connected};
#[cfg(feature = "redis-cluster")]
pub(crate) use log::{give_back_failed, give_back_recovered};
#[cfg(feature = "rules-file")]
pub(crate) use log::{rules_applied, rules_refused};
pub use transition::{Ended, Transition};

use crate::decision::{Decision, LimitStatus};
use crate::model::StoreError;
use crate::model::Subject;

/// The limiter and the store in the fields of a log line.
#[derive(Clone, Copy, Debug)]
#[cfg_attr(not(feature = "tracing"), expect(dead_code, reason = "nothing is logged"))]
pub(crate) struct EventLocation<'a> {
    /// The namespace of the limiter.
    pub(crate) limiter: &'a str,
    /// The kind of store and its server.
    pub(crate) store: &'a str,
}

/// Receives decisions and failures, for example to count them. Its methods run as part of the
/// request, so they should be quick.
pub trait Observer: fmt::Debug + Send + Sync + 'static {
    /// Receives a decision of the store, or of the failure policy.
    fn decided(&self, subject: &Subject, decision: &Decision) {
        let _ = (subject, decision);
    }

    /// Receives a limit in shadow that would have denied a request. It is called for each such
    /// request, while the log gets one line per window.
    fn would_deny(&self, subject: &Subject, limit: &LimitStatus<'_>) {
        let _ = (subject, limit);
    }

    /// Receives a failure of a store. It is called for each failure, while the log gets one line
    /// per outage. It is not called for requests that never reach the store, because the circuit
    /// breaker is open or too many requests are in flight.
    fn store_failed(&self, error: &StoreError) {
        let _ = error;
    }

    /// Receives the event that the store has recovered.
    fn store_recovered(&self) {}

    /// Receives a failure of the source of policies. It is called for each failure.
    fn source_failed(&self, error: &StoreError) {
        let _ = error;
    }

    /// Receives the event that a lease under a concurrency limit has ended while its request is in
    /// flight.
    ///
    /// The request continues. `is_retaken` is true if the units could be charged again; otherwise
    /// the request is not counted. In that case the method is called once more if the units are
    /// charged later.
    fn lease_lapsed(&self, subject: &Subject, is_retaken: bool) {
        let _ = (subject, is_retaken);
    }
}

/// Ignores all events.
impl Observer for () {}

impl<O: Observer + ?Sized> Observer for Arc<O> {
    fn decided(&self, subject: &Subject, decision: &Decision) {
        (**self).decided(subject, decision);
    }

    fn would_deny(&self, subject: &Subject, limit: &LimitStatus<'_>) {
        (**self).would_deny(subject, limit);
    }

    fn store_failed(&self, error: &StoreError) {
        (**self).store_failed(error);
    }

    fn store_recovered(&self) {
        (**self).store_recovered();
    }

    fn source_failed(&self, error: &StoreError) {
        (**self).source_failed(error);
    }

    fn lease_lapsed(&self, subject: &Subject, is_retaken: bool) {
        (**self).lease_lapsed(subject, is_retaken);
    }
}
