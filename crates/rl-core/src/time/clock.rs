use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

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
