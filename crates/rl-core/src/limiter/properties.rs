//! The settings and the state of a limiter.

use std::sync::Arc;

use super::tally::{LimiterState, UncountedKind};
use super::{OnFailure, RateLimiter, WeakRateLimiter};
use crate::model::FailureKind;
use crate::stats::LimiterStats;
use crate::store::Namespace;

impl RateLimiter {
    /// Returns the number of decisions that wait now, as a gauge for metrics: at most
    /// [`max_in_flight`](crate::RateLimiterBuilder::max_in_flight) for each server of the store, and
    /// as many for a fallback on a server. It is 0 with a store in memory.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.pipeline.waiting_for_stores()
    }

    /// Returns the counts of the limiter since it was built, and those of its store.
    ///
    /// This takes some microseconds for each limit, and locks each shard of a store in memory. It
    /// suits a reader that asks every few seconds.
    ///
    /// # Examples
    ///
    /// ```
    /// use rl_core::{Limit, RateLimiter, Subject};
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let limiter = RateLimiter::builder().limit(Limit::per_minute(100)).build()?;
    /// limiter.check(&Subject::consumer("abc123"), 1).await;
    /// assert_eq!(limiter.stats().allowed(), 1);
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn stats(&self) -> LimiterStats {
        let pipeline = &*self.pipeline;
        let policies = match &pipeline.rules {
            Some(rules) => {
                let rules = rules.current();
                let of_rule = |(name, policies): (&Namespace, _)| (Some(name.clone()), policies);
                rules.policies_by_tier().map(of_rule).collect()
            }
            None => {
                let own = pipeline.policies.of_all();
                own.map(|policy| (None, vec![(String::new(), policy.clone())]))
                    .into_iter()
                    .collect()
            }
        };
        pipeline.tally.stats(LimiterState {
            store_name: pipeline.stores.primary.label(),
            store: pipeline.stores.primary.store_stats(),
            in_flight: pipeline.waiting_for_stores(),
            waiting: pipeline.wait_queues.waiting(),
            is_breaker_closed: pipeline.breaker.is_closed(),
            policies,
            rules_file: pipeline.rules.as_ref().and_then(|rules| rules.file_stats()),
        })
    }

    /// Counts a request that has no decision (it is exempt, or its key is missing or ambiguous), or
    /// a denied request that is forwarded.
    pub(crate) fn count_uncounted(&self, kind: UncountedKind) {
        self.pipeline.tally.uncounted(kind);
    }

    /// Returns whether the limiter is switched on.
    #[must_use]
    pub fn is_enabled(&self) -> bool {
        self.pipeline.enabled
    }

    /// Returns the setting for requests that the store cannot decide because of a failure of this
    /// kind.
    #[must_use]
    pub fn on_failure(&self, kind: FailureKind) -> OnFailure {
        self.pipeline.failure_policy.setting(kind)
    }

    /// Returns whether the limiter is in shadow: it decides and reports, but denies nothing.
    #[must_use]
    pub fn is_shadow(&self) -> bool {
        self.pipeline.failure_policy.is_shadow
    }

    /// Returns a handle that does not keep the limiter alive.
    #[must_use]
    pub fn downgrade(&self) -> WeakRateLimiter {
        WeakRateLimiter(Arc::downgrade(&self.pipeline))
    }

    /// Returns a number that the limiter shares with its clones, and with no other limiter that is
    /// alive.
    pub(crate) fn id(&self) -> usize {
        Arc::as_ptr(&self.pipeline).addr()
    }
}
