//! The counts of the limiter over the last hour, for pages of the console.
//!
//! A task reads [`RateLimiter::stats`] every ten seconds, and a ring keeps the differences. Memory
//! is bounded: about 400 samples with at most 32 limits each, and one list of top subjects for each
//! minute. Nothing is written to disk, so the samples are lost when the process ends.

mod denied;
mod report;
mod ring;
mod sample;
mod top;

use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use rl_core::RateLimiter;
use rl_core::time::Clock;
use tokio::runtime::Handle;
use tokio::time::{MissedTickBehavior, interval};

pub(crate) use denied::{DeniedSubject, STEP, STEPS};
pub(crate) use report::{HourReport, LimitSums, add_times, quantile};
pub(crate) use ring::LastMinute;
use ring::Ring;
pub(crate) use sample::Sample;
pub(crate) use top::{Ranking, TopEntry};

/// The interval between samples.
const INTERVAL: Duration = Duration::from_secs(10);

/// The samples of one limiter.
#[derive(Debug)]
pub(crate) struct LastHour {
    limiter: RateLimiter,
    clock: Arc<dyn Clock>,
    ring: Mutex<Ring>,
}

impl LastHour {
    /// Starts to sample the counts of `limiter`.
    ///
    /// Outside a tokio runtime, no task takes samples. A sample is then taken only when a page is
    /// viewed.
    pub(crate) fn start(limiter: RateLimiter, clock: Arc<dyn Clock>) -> Arc<Self> {
        let ring = Mutex::new(Ring::new(clock.now(), limiter.stats()));
        let last_hour = Arc::new(Self { limiter, clock, ring });
        if let Ok(runtime) = Handle::try_current() {
            runtime.spawn(take_samples(Arc::downgrade(&last_hour)));
        }
        last_hour
    }

    /// Updates the samples, and returns those of the last hour.
    pub(crate) fn report(&self) -> HourReport {
        self.read(Ring::report)
    }

    /// Updates the samples, and returns the last minute.
    pub(crate) fn last_minute(&self) -> LastMinute {
        self.read(Ring::last_minute)
    }

    /// Returns the subjects with the largest counts, the largest first.
    pub(crate) fn top(&self, ranking: Ranking) -> Vec<TopEntry> {
        self.read(|ring| ring.top(ranking))
    }

    fn read<T>(&self, read: impl FnOnce(&Ring) -> T) -> T {
        let mut ring = self.ring.lock().unwrap_or_else(PoisonError::into_inner);
        ring.update(self.clock.now(), self.limiter.stats());
        read(&ring)
    }
}

/// Takes samples until the last owner has dropped `last_hour`.
async fn take_samples(last_hour: Weak<LastHour>) {
    let mut ticks = interval(INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let Some(last_hour) = last_hour.upgrade() else { return };
        last_hour.read(|_| ());
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;

    use rl_core::time::{ManualClock, Timestamp};
    use rl_core::{Limit, Subject};
    use tokio::time::timeout;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_task_takes_samples_without_a_view_of_the_page() {
        let limiter = RateLimiter::builder().limit(Limit::per_day(9)).build().unwrap();
        let clock = Arc::new(ManualClock::at(Timestamp::from_secs(1_769_947_200)));
        let last_hour = LastHour::start(limiter.clone(), clock.clone());
        for allowed in 1..=3 {
            for _ in 0..allowed {
                limiter.check(&Subject::global(), 1).await;
            }
            clock.advance(INTERVAL);
            timeout(INTERVAL, pending::<()>()).await.unwrap_err();
        }
        // If only the report took samples, there would be a single one, with all six requests.
        let samples = last_hour.report().samples;
        let allowed: Vec<_> = samples.iter().map(|sample| sample.allowed).collect();
        assert_eq!(allowed, [1, 2, 3]);
    }
}
