use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::time::Instant;

use super::Timestamp;

/// The clock from which a store in this process reads the time.
///
/// A clock may step back, as the system clock does when it is corrected. A store never grants more
/// because of a step back.
pub trait Clock: fmt::Debug + Send + Sync + 'static {
    /// Returns the current time.
    fn now(&self) -> Timestamp;
}

impl<C: Clock + ?Sized> Clock for std::sync::Arc<C> {
    fn now(&self) -> Timestamp {
        (**self).now()
    }
}

/// A clock for tests that moves only when a test moves it.
#[derive(Debug, Default)]
pub struct ManualClock(AtomicU64);

impl ManualClock {
    /// Creates a clock that shows `start`.
    #[must_use]
    pub fn at(start: Timestamp) -> Self {
        Self(AtomicU64::new(start.as_micros()))
    }

    /// Sets the clock to `time`, which may be in the past.
    pub fn set(&self, time: Timestamp) {
        self.0.store(time.as_micros(), Ordering::SeqCst);
    }

    /// Moves the clock forward, at most to the latest time that it can show.
    pub fn advance(&self, by: Duration) {
        let by = u64::try_from(by.as_micros()).unwrap_or(u64::MAX);
        self.set(self.now().plus_micros(by));
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Timestamp {
        Timestamp::from_micros(self.0.load(Ordering::SeqCst))
    }
}

/// A clock that follows tokio's time, for tests of requests that wait.
///
/// Requests wait on tokio's timers, and a store decides on its own clock. With a
/// [`ManualClock`] the two clocks differ, and a waiting request sleeps in real
/// time. With this clock and tokio's paused time, both clocks move together, so a wait of an hour
/// takes no real time.
///
/// # Examples
///
/// ```
/// use rl_core::time::TokioClock;
/// use rl_core::{Limit, MemoryStore, RateLimiter, Subject};
/// use std::time::Duration;
///
/// // In a test: #[tokio::test(start_paused = true)]
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let store = MemoryStore::builder().clock(TokioClock::new()).build();
/// let limiter = RateLimiter::builder().limit(Limit::per_hour(1)).store(store).build()?;
/// let alice = Subject::user("alice");
///
/// assert!(limiter.check(&alice, 1).await.is_allowed());
/// let waited = limiter.request(&alice).wait(Duration::from_secs(3_600), 10).check().await;
/// assert!(waited.is_allowed());
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, Debug)]
pub struct TokioClock {
    begin: Timestamp,
    since: Instant,
}

impl TokioClock {
    /// Starts a clock that shows 2026-01-01T00:00:00Z now.
    #[must_use]
    pub fn new() -> Self {
        Self::at(Timestamp::from_secs(1_767_225_600))
    }

    /// Starts a clock that shows `begin` now.
    #[must_use]
    pub fn at(begin: Timestamp) -> Self {
        Self { begin, since: Instant::now() }
    }
}

impl Default for TokioClock {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock for TokioClock {
    fn now(&self) -> Timestamp {
        let elapsed = Timestamp::from(self.since.elapsed());
        self.begin.plus_micros(elapsed.as_micros())
    }
}
