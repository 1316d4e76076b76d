use std::sync::{Arc, Weak};
use std::time::Duration;

use rl_core::observe::Transition;
use rl_core::{RateLimiter, Subject};
use rl_records::{RecordQuery, Records};
use serde_json::{Value, json};
use tokio::time::{MissedTickBehavior, interval};

use crate::failure::{Dependency, DependencyFailure};
use crate::webhook::Webhooks;
use crate::wire::all_periods;

/// The time without a failure after which an outage is considered over.
const RECOVERY_PERIOD: Duration = Duration::from_secs(10);

/// The interval between probes during an outage.
const PROBE_INTERVAL: Duration = Duration::from_secs(1);

/// Logs one line when an outage of a dependency begins, and one when it is over, and sends both as
/// webhooks.
///
/// Responses report only failures, never a recovery. So a task probes the dependency during an
/// outage.
#[derive(Debug)]
pub(crate) struct OutageLog {
    records: Records,
    limiter: RateLimiter,
    webhooks: Option<Webhooks>,
    database: Transition,
    counters: Transition,
}

impl OutageLog {
    pub(crate) fn new(
        records: Records,
        limiter: RateLimiter,
        webhooks: Option<Webhooks>,
    ) -> Arc<Self> {
        let database = Transition::new(RECOVERY_PERIOD);
        let counters = Transition::new(RECOVERY_PERIOD);
        Arc::new(Self { records, limiter, webhooks, database, counters })
    }

    /// Records a failure that a response reports.
    pub(crate) fn note(self: &Arc<Self>, failure: &DependencyFailure) {
        let DependencyFailure { dependency, kind, cause } = failure;
        if !self.transition(*dependency).occurred() {
            return;
        }
        self.send(dependency, true, json!({ "failure": kind }));
        match dependency {
            Dependency::Database => {
                tracing::warn!(target: "rl_admin", kind, cause, "database failing");
            }
            Dependency::Counters => {
                tracing::warn!(target: "rl_admin", kind, cause, "counters failing");
            }
        }
        tokio::spawn(probe(Arc::downgrade(self), *dependency));
    }

    /// Sends the webhook event for the beginning or the end of an outage.
    fn send(&self, dependency: &Dependency, is_failing: bool, detail: Value) {
        let event = match (dependency, is_failing) {
            (Dependency::Database, true) => "database_failing",
            (Dependency::Database, false) => "database_recovered",
            (Dependency::Counters, true) => "counters_failing",
            (Dependency::Counters, false) => "counters_recovered",
        };
        if let Some(webhooks) = &self.webhooks {
            webhooks.send_event(event, detail);
        }
    }

    const fn transition(&self, dependency: Dependency) -> &Transition {
        match dependency {
            Dependency::Database => &self.database,
            Dependency::Counters => &self.counters,
        }
    }

    /// Returns whether a dependency replies to a cheap read.
    async fn is_available(&self, dependency: Dependency) -> bool {
        match dependency {
            Dependency::Database => {
                let query = RecordQuery { limit: 1, ..RecordQuery::default() };
                self.records.list(&query).await.is_ok()
            }
            Dependency::Counters => {
                let subject = Subject::global();
                self.limiter.request(&subject).policy(all_periods()).usage().await.is_ok()
            }
        }
    }
}

/// Probes a dependency until its outage is over, and then logs the recovery.
async fn probe(log: Weak<OutageLog>, dependency: Dependency) {
    let mut ticks = interval(PROBE_INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let Some(log) = log.upgrade() else { return };
        let transition = log.transition(dependency);
        if !log.is_available(dependency).await {
            // A count of 0 extends the outage without counting a failed request.
            transition.occurred_times(0);
            continue;
        }
        let Some(ended) = transition.ended() else { continue };
        let outage_ms = u64::try_from(ended.lasted.as_millis()).unwrap_or(u64::MAX);
        let failures = ended.count;
        let detail = json!({ "seconds": ended.lasted.as_secs_f64(), "failures": failures });
        log.send(&dependency, false, detail);
        match dependency {
            Dependency::Database => {
                tracing::info!(target: "rl_admin", outage_ms, failures, "database recovered");
            }
            Dependency::Counters => {
                tracing::info!(target: "rl_admin", outage_ms, failures, "counters recovered");
            }
        }
        return;
    }
}

#[cfg(test)]
mod tests {
    use rl_records::RecordSource;

    use super::*;

    #[tokio::test]
    async fn an_outage_ends_after_the_recovery_period_without_a_failure() {
        let records = Records::connect("sqlite::memory:").await.unwrap();
        let source = RecordSource::start(&records);
        let limiter = RateLimiter::builder().policies(source).build().unwrap();
        // Paused only now, because opening the database could time out on a paused clock.
        tokio::time::pause();
        let log = OutageLog::new(records, limiter, None);
        let failure = DependencyFailure {
            dependency: Dependency::Counters,
            kind: "unavailable",
            cause: "connection refused".to_owned(),
        };
        log.note(&failure);
        log.note(&failure);
        assert!(log.counters.is_on() && !log.database.is_on());
        tokio::time::advance(RECOVERY_PERIOD / 2).await;
        tokio::time::timeout(RECOVERY_PERIOD / 4, std::future::pending::<()>()).await.unwrap_err();
        assert!(log.counters.is_on(), "the outage is not over before the recovery period");
        tokio::time::timeout(RECOVERY_PERIOD, std::future::pending::<()>()).await.unwrap_err();
        assert!(!log.counters.is_on());
    }
}
