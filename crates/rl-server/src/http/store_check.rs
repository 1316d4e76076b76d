//! Checks whether the store can be reached.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rl_core::{Limit, Policy, RateLimiter, Subject};
use tokio::sync::Mutex;
use tokio::time::{Instant, timeout};

/// The time for which a result is cached. Every peer may call `/readyz`, so the checks must not load
/// the store.
const CACHED_FOR: Duration = Duration::from_secs(1);

/// The time after which the store counts as unreachable.
const DEADLINE: Duration = Duration::from_secs(1);

/// The checks of the store. Concurrent ones share a call.
#[derive(Debug, Default)]
pub(super) struct StoreCheck {
    last: Mutex<Option<(Instant, bool)>>,
    has_answered: AtomicBool,
}

impl StoreCheck {
    /// Returns whether the store can read counters, which proves more than an open connection.
    pub(super) async fn is_reachable(&self, limiter: &RateLimiter) -> bool {
        let mut last = self.last.lock().await;
        if let Some((_, result)) = last.filter(|(at, _)| at.elapsed() < CACHED_FOR) {
            return result;
        }
        let result = is_reachable(limiter).await;
        *last = Some((Instant::now(), result));
        self.has_answered.fetch_or(result, Ordering::Relaxed);
        result
    }

    /// Returns whether a check has succeeded.
    pub(super) fn has_answered(&self) -> bool {
        self.has_answered.load(Ordering::Relaxed)
    }
}

async fn is_reachable(limiter: &RateLimiter) -> bool {
    let subject = Subject::global();
    let Ok(policy) = Policy::new([Limit::per_minute(1)]) else { return false };
    let usage = limiter.request(&subject).policy(&policy).usage();
    timeout(DEADLINE, usage).await.is_ok_and(|usage| usage.is_ok())
}
