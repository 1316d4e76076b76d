//! Delays between attempts to connect.
//!
//! Written by hand, because the ten lines of [`delay`] cost less than a dependency.

use std::hash::{BuildHasher, RandomState};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

use crate::model::{FailureKind, StoreError};

/// The delay after the first failed attempt.
const FIRST_DELAY: Duration = Duration::from_millis(25);

/// The longest delay while a server cannot be reached. Limits must apply again within a second
/// after the server has come back.
const LONGEST_DELAY: Duration = Duration::from_millis(200);

/// The longest delay while a server refuses the service. It is longer, because only an operator can
/// end that condition.
const LONGEST_DELAY_REFUSED: Duration = Duration::from_millis(500);

/// The time for which a refusal is reported to callers that would have to wait for a connection.
const REFUSAL_LIFETIME: Duration = Duration::from_secs(1);

/// Returns the delay after this number of failures in a row.
///
/// The delay starts at `first` and doubles with each failure, up to `longest`. Then a random part
/// of up to one half is subtracted, so that the instances of a service do not reconnect at the same
/// time.
pub(super) fn delay(failures: u32, first: Duration, longest: Duration) -> Duration {
    let doubled = first.saturating_mul(1 << failures.saturating_sub(1).min(16));
    let full = doubled.min(longest);
    let random = RandomState::new().hash_one(failures) % 1_001;
    full / 2 + full.mul_f64(random as f64 / 2_000.0)
}

/// Delays attempts to connect, and stores the reason why the last attempt failed.
///
/// bb8 reports only that no connection was available in time. Callers need the reason: a wrong
/// password must not look like an outage, during which requests may be allowed. Clones share the
/// state.
#[derive(Clone, Default)]
pub(super) struct Backoff {
    /// The failure of the last attempt; `None` if it succeeded.
    last_failure: Arc<Mutex<Option<ConnectFailure>>>,
    /// Notified after every attempt.
    attempted: Arc<Notify>,
}

/// An attempt to connect that failed.
struct ConnectFailure {
    kind: FailureKind,
    detail: Option<String>,
    failed_at: Instant,
    /// The number of failed attempts in a row, including this one.
    count: u32,
    /// The time at which the next attempt is due.
    retry_at: Instant,
}

impl Backoff {
    /// Records the result of an attempt: its error, or `None` if it succeeded.
    pub(super) fn record(&self, error: Option<&StoreError>) {
        {
            let mut last = self.lock();
            *last = error.map(|error| ConnectFailure::after(last.as_ref(), error));
        }
        self.attempted.notify_waiters();
    }

    /// Returns the error of the last attempt, if it failed.
    pub(super) fn last_error(&self) -> Option<StoreError> {
        self.lock().as_ref().map(ConnectFailure::error)
    }

    /// Waits until the server refuses the service, and returns that error.
    ///
    /// Returns immediately if the server has refused the service within the last second.
    pub(super) async fn refusal(&self) -> StoreError {
        loop {
            // The notification is requested before the check, so that no attempt in between is
            // missed.
            let attempted = self.attempted.notified();
            let refusal = self.lock().as_ref().and_then(ConnectFailure::refusal);
            match refusal {
                Some(refusal) => return refusal,
                None => attempted.await,
            }
        }
    }

    /// Waits until the next attempt is due. Returns immediately if the last attempt succeeded.
    pub(super) async fn wait(&self) {
        loop {
            let retry_at = self.lock().as_ref().map(|failure| failure.retry_at);
            match retry_at {
                // No task is notified when an attempt is due, so this task sleeps until then. Then
                // it checks again, because another attempt may have failed meanwhile.
                Some(retry_at) if retry_at > Instant::now() => {
                    tokio::time::sleep_until(retry_at).await;
                }
                _ => return,
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Option<ConnectFailure>> {
        self.last_failure.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ConnectFailure {
    /// Creates the failure of an attempt. `previous` is the failure of the attempt before.
    fn after(previous: Option<&Self>, error: &StoreError) -> Self {
        let kind = error.kind();
        let count = previous.map_or(0, |previous| previous.count) + 1;
        let longest = if kind.is_configuration() { LONGEST_DELAY_REFUSED } else { LONGEST_DELAY };
        let failed_at = Instant::now();
        Self {
            kind,
            detail: error.detail().map(str::to_owned),
            failed_at,
            count,
            retry_at: failed_at + delay(count, FIRST_DELAY, longest),
        }
    }

    /// Returns the error of the attempt.
    fn error(&self) -> StoreError {
        let error = StoreError::new(self.kind);
        match &self.detail {
            Some(detail) => error.with_detail(detail.clone()),
            None => error,
        }
    }

    /// Returns the error if the server refused the service within the last second.
    fn refusal(&self) -> Option<StoreError> {
        let is_recent = self.failed_at.elapsed() < REFUSAL_LIFETIME;
        (self.kind.is_configuration() && is_recent).then(|| self.error())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_double_up_to_the_longest_and_are_random() {
        let first = Duration::from_millis(25);
        let longest = Duration::from_millis(200);
        for (failures, full) in [(1, 25), (2, 50), (3, 100), (4, 200), (5, 200), (u32::MAX, 200)] {
            let full = Duration::from_millis(full);
            let delays: Vec<_> = (0..64).map(|_| delay(failures, first, longest)).collect();
            assert!(delays.iter().all(|delay| (full / 2..=full).contains(delay)), "{delays:?}");
            assert!(delays.iter().any(|delay| *delay != delays[0]));
        }
    }
}
