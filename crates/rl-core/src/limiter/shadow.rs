use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use super::RateLimiter;
use crate::decision::{Decision, LimitStatus};
use crate::model::Subject;
use crate::observe;
use crate::time::Timestamp;

/// Names of limits that are remembered; more are logged more often.
const MOST_NAMES: usize = 1_000;

/// Until when a limit in shadow has been logged, by its name: one line for each window, whoever is
/// over.
#[derive(Debug, Default)]
pub(super) struct ShadowLog(Mutex<HashMap<Arc<str>, Timestamp>>);

impl ShadowLog {
    /// Whether it is the first time in the limit's window.
    fn is_first(&self, limit: &LimitStatus<'_>, now: Timestamp) -> bool {
        let mut logged = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if logged.get(limit.name()).is_some_and(|until| now < *until) {
            return false;
        }
        if logged.len() >= MOST_NAMES {
            logged.clear();
        }
        let window = match u64::try_from(limit.reset_after().as_micros()) {
            Ok(0) | Err(_) => limit.limit().period().as_micros(),
            Ok(until_reset) => until_reset,
        };
        logged.insert(limit.name().into(), now.plus_micros(window));
        true
    }
}

impl RateLimiter {
    /// Tells which limits would have denied the request if they were not in shadow.
    pub(super) fn report_shadow(&self, subject: &Subject, decision: &Decision) {
        for limit in decision.over_in_shadow() {
            let is_first = self.inner.shadow_log.is_first(&limit, decision.at());
            observe::would_deny(subject, &limit, is_first);
            self.inner.observer().would_deny(subject, &limit);
        }
    }
}
