//! Subjects whose requests are denied for a while: [`RateLimiter::pause`](crate::RateLimiter::pause).

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use crate::model::Subject;

/// The longest wait or pause, if a longer one cannot be added to an `Instant`.
pub(super) const A_CENTURY: Duration = Duration::from_secs(100 * 365 * 86_400);

/// The paused subjects of a limiter.
#[derive(Debug, Default)]
pub(super) struct Pauses {
    /// Whether there are pauses, some of which may have ended. Without any, requests take no lock.
    may_hold: AtomicBool,
    ends: Mutex<HashMap<Subject, Instant>>,
}

impl Pauses {
    /// Pauses a subject. A pause that ends later stays.
    pub(super) fn pause(&self, subject: &Subject, period: Duration) {
        let now = Instant::now();
        let end = now.checked_add(period).unwrap_or(now + A_CENTURY);
        let mut ends = self.ends.lock().unwrap_or_else(PoisonError::into_inner);
        // Subjects that are never used again must not fill the table.
        if ends.len() == ends.capacity() {
            ends.retain(|_, end| *end > now);
        }
        let last = ends.entry(subject.clone()).or_insert(end);
        *last = end.max(*last);
        self.may_hold.store(true, Ordering::Release);
    }

    /// Returns whether a subject may be paused.
    pub(super) fn may_hold(&self) -> bool {
        self.may_hold.load(Ordering::Acquire)
    }

    /// Returns the time until the pause of a subject ends; `None` if the subject is not paused.
    pub(super) fn remaining(&self, subject: &Subject) -> Option<Duration> {
        let mut ends = self.ends.lock().unwrap_or_else(PoisonError::into_inner);
        let remaining = ends.get(subject)?.saturating_duration_since(Instant::now());
        if remaining.is_zero() {
            ends.remove(subject);
            self.may_hold.store(!ends.is_empty(), Ordering::Release);
        }
        Some(remaining).filter(|remaining| !remaining.is_zero())
    }
}
