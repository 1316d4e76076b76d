//! Log lines of limits in shadow.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::{Mutex, PoisonError};

use crate::decision::LimitStatus;
use crate::store::Namespace;
use crate::time::Timestamp;

/// The maximum number of limits to remember. With more limits, some are logged more than once per
/// window.
const MAX_LIMITS: usize = 1_000;

/// Samples the log lines of limits in shadow. For each window of a limit, one line is logged,
/// whichever subject exceeds it.
///
/// Under rules, limits of many rules have the same name, so a limit is identified by the namespace
/// of its rule and its name.
#[derive(Debug, Default)]
pub(super) struct ShadowLog {
    /// The key is a hash of a namespace and the name of a limit; the value is the end of the window
    /// that has been logged.
    logged_until: Mutex<HashMap<u64, Timestamp>>,
    hasher: RandomState,
}

impl ShadowLog {
    /// Returns true for the first call in a window of the limit, which is counted in `namespace`.
    pub(super) fn should_log(
        &self,
        namespace: Option<&Namespace>,
        limit: &LimitStatus<'_>,
        now: Timestamp,
    ) -> bool {
        let key = self.hasher.hash_one((namespace.map(Namespace::as_str), limit.name()));
        let mut logged = self.logged_until.lock().unwrap_or_else(PoisonError::into_inner);
        if logged.get(&key).is_some_and(|until| now < *until) {
            return false;
        }
        if logged.len() >= MAX_LIMITS {
            logged.clear();
        }
        let window = match u64::try_from(limit.reset_after_decision().as_micros()) {
            Ok(0) | Err(_) => limit.limit().period().as_micros(),
            Ok(until_reset) => until_reset,
        };
        logged.insert(key, now.plus_micros(window));
        true
    }
}
