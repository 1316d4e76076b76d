use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::SystemTime;

use super::{Clock, Timestamp};

/// How long the processor's counter is believed, in µs: a hundred times a second the system's clock is
/// asked. A counter that is wrong by a thousandth is wrong by ten microseconds then.
const BELIEVED: u64 = 10_000;

/// The system's wall clock, in UTC.
///
/// The wall clock and not the monotonic one, because windows anchored to the clock begin at full
/// minutes, days and months. Between two questions to the system, a hundredth of a second apart at most,
/// the counter of the processor tells how time goes on, where it has one that runs evenly: that takes
/// less than half as long. A step of the system's clock is followed as soon.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    #[inline]
    fn now(&self) -> Timestamp {
        static COUNTER: LazyLock<Counter> = LazyLock::new(Counter::new);
        COUNTER.now()
    }
}

/// What the processor counts, and which times that stands for.
#[derive(Debug)]
struct Counter {
    ticks: quanta::Clock,
    /// Where it stood at the beginning.
    begin: u64,
    /// How long a tick of it lasts, in µs / 2^64. None is as slow as one in a microsecond.
    tick: u64,
    /// When the system was asked last, in µs since the beginning.
    asked: AtomicU64,
    /// What has to be added for µs since the epoch. Both wrap around.
    offset: AtomicU64,
}

impl Counter {
    fn new() -> Self {
        let ticks = quanta::Clock::new();
        let begin = ticks.raw();
        // So many that what is rounded is nothing.
        let nanos = ticks.delta_as_nanos(0, 1 << 40);
        let tick = u64::try_from((u128::from(nanos) << 24) / 1_000).unwrap_or(u64::MAX);
        let counter = Self { ticks, begin, tick, asked: 0.into(), offset: 0.into() };
        counter.ask();
        counter
    }

    /// Microseconds since the beginning.
    #[inline]
    fn count(&self) -> u64 {
        let ticks = self.ticks.raw().wrapping_sub(self.begin);
        ((u128::from(ticks) * u128::from(self.tick)) >> 64) as u64
    }

    #[inline]
    fn now(&self) -> Timestamp {
        let count = self.count();
        // Threads may ask at the same time: each of their answers is right. A counter that goes back
        // is far beyond what is believed.
        if count.wrapping_sub(self.asked.load(Ordering::Acquire)) > BELIEVED {
            return self.ask();
        }
        Timestamp::from_micros(count.wrapping_add(self.offset.load(Ordering::Relaxed)))
    }

    #[cold]
    #[expect(clippy::disallowed_methods, reason = "this is the one place that reads the clock")]
    fn ask(&self) -> Timestamp {
        // A clock set before 1970 reads as the epoch.
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let now = Timestamp::from(now);
        // Read afterwards: a thread that stands still in between lags behind, and never leads.
        let count = self.count();
        self.offset.store(now.as_micros().wrapping_sub(count), Ordering::Relaxed);
        // Whoever believes this sees the offset that belongs to it, or a later one.
        self.asked.store(count, Ordering::Release);
        now
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[expect(clippy::disallowed_methods, reason = "it is compared with the clock that it reads")]
    fn it_shows_the_time_of_the_system() {
        let system =
            || Timestamp::from(SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap());
        // Both when it asks and when it counts.
        for _ in 0..10_000 {
            let (before, now, after) = (system(), SystemClock.now(), system());
            // No step of the clock is as long as this.
            assert!(now.plus_micros(50_000) >= before && now <= after.plus_micros(50_000));
        }
    }

    #[test]
    fn a_counter_that_has_gone_back_is_not_believed() {
        let counter = Counter::new();
        counter.asked.store(u64::MAX / 2, Ordering::Relaxed);
        counter.offset.store(12_345, Ordering::Relaxed);
        let now = counter.now();
        assert!(now > Timestamp::from_secs(1_700_000_000), "{now:?}");
    }
}
