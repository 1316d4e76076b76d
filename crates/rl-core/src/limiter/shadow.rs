//! Log lines of limits in shadow.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use crate::decision::LimitStatus;
use crate::time::Timestamp;

/// The maximum number of limit names to remember. With more names, some limits are logged more than
/// once per window.
const MAX_NAMES: usize = 1_000;

/// Samples the log lines of limits in shadow. For each window of a limit, one line is logged,
/// whichever subject exceeds it.
///
/// Maps the name of a limit to the end of the window that has been logged.
#[derive(Debug, Default)]
pub(super) struct ShadowLog(Mutex<HashMap<Arc<str>, Timestamp>>);

impl ShadowLog {
    /// Returns true for the first call in a window of the limit.
    pub(super) fn should_log(&self, limit: &LimitStatus<'_>, now: Timestamp) -> bool {
        let mut logged = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if logged.get(limit.name()).is_some_and(|until| now < *until) {
            return false;
        }
        if logged.len() >= MAX_NAMES {
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
