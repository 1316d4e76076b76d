//! What operators see: log lines, and a hook for everything else.
//!
//! With feature `tracing` (default) the limiter logs under the target `rl_core`: one line when the
//! store begins to fail, one when it answers again, and at level `debug` one for every decision.
//! Subjects appear as eight hexadecimal digits, never by name.
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

use std::fmt;
use std::sync::Arc;

#[cfg(feature = "redis")]
pub(crate) use log::{can_evict, healed, not_connected};
pub(crate) use log::{
    ambiguous_key, caught_up, decided, fallback_failed, may_decisions_be_logged, missing_key,
    overloaded, source_failed, source_recovered, store_failed, store_recovered, too_many_states,
    would_deny,
};

use crate::store::StoreError;
use crate::{Decision, LimitReport, Subject};

/// Is told what happens. Its methods are called on the path of the request: they should be quick.
pub trait Observer: fmt::Debug + Send + Sync + 'static {
    /// A decision was made, or the failure policy stood in for one.
    fn decided(&self, subject: &Subject, decision: &Decision) {
        let _ = (subject, decision);
    }

    /// A limit in shadow would have denied a request. Called for every one; log lines come once per
    /// window.
    fn would_deny(&self, subject: &Subject, limit: &LimitReport<'_>) {
        let _ = (subject, limit);
    }

    /// A store could not answer. Called for every failure; log lines come once per outage. Requests
    /// that are answered without asking the store, while the breaker is open or too many wait, are
    /// [decided](Self::decided) alone.
    fn store_failed(&self, error: &StoreError) {
        let _ = error;
    }

    /// The store answers again.
    fn store_recovered(&self) {}

    /// The source of policies could not answer. Called for every failure.
    fn source_failed(&self, error: &StoreError) {
        let _ = error;
    }
}

/// No observer.
impl Observer for () {}

impl<O: Observer + ?Sized> Observer for Arc<O> {
    fn decided(&self, subject: &Subject, decision: &Decision) {
        (**self).decided(subject, decision);
    }

    fn would_deny(&self, subject: &Subject, limit: &LimitReport<'_>) {
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
}
