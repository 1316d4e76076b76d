use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::SystemTime;

use super::{Clock, Timestamp};

/// The system's wall clock, in UTC.
///
/// Aligned windows begin at full minutes, days and months, so the monotonic clock is not suitable.
/// The system clock is read at most every ten milliseconds. In between, the time is computed from
/// the processor's counter, which takes less than half as long. A step of the system clock
/// therefore takes effect within ten milliseconds.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn now(&self) -> Timestamp {
        static COUNTER: LazyLock<Counter> = LazyLock::new(|| Counter::new(since_epoch));
        Timestamp::from_micros(COUNTER.micros())
    }
}

#[expect(clippy::disallowed_methods, reason = "this is the one place that reads the clock")]
fn since_epoch() -> u64 {
    // A system clock before 1970 is treated as the epoch.
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    Timestamp::from(now).as_micros()
}

/// The time between two calibrations with the system clock, in µs. If the counter runs too fast or
/// too slow by a thousandth, the error stays below ten microseconds.
const CALIBRATION_INTERVAL: u64 = 10_000;

/// The longest time in µs that a read of the system clock may take if its result is to calibrate
/// the counter. The result of a longer read is returned, but not stored: with it, all threads would
/// lag behind the system clock.
const MAX_READ_TIME: u64 = 10;

/// A system clock in µs that is read through the processor's counter.
///
/// The counter is calibrated with the system clock at most every ten milliseconds. In between, a
/// read takes 9 ns instead of 22 ns. After a step of the system clock, the next calibration adopts
/// the new time. The clock of `quanta` does not follow such a step.
///
/// With `SystemTime` instead, a decision in memory would take 93 ns in place of 82 ns, and a
/// decision on a leased unit would take 1.5 times as long.
#[derive(Debug)]
pub(crate) struct Counter {
    ticks: quanta::Clock,
    system: fn() -> u64,
    /// The value of the processor's counter when this value was created.
    begin: u64,
    /// The length of a tick, in µs / 2^64. A tick is always shorter than a microsecond.
    tick: u64,
    /// The time of the last calibration, in µs since `begin`.
    calibrated_at: AtomicU64,
    /// The system clock minus the time since `begin`, in µs. Arithmetic on this field and on
    /// `calibrated_at` wraps around.
    offset: AtomicU64,
}

impl Counter {
    /// Creates a counter for the clock `system`.
    pub(crate) fn new(system: fn() -> u64) -> Self {
        let ticks = quanta::Clock::new();
        let begin = ticks.raw();
        // Many ticks make the rounding error negligible.
        let nanos = ticks.delta_as_nanos(0, 1 << 40);
        let tick = u64::try_from((u128::from(nanos) << 24) / 1_000).unwrap_or(u64::MAX);
        // This value is far from any count, so the first read calibrates.
        let calibrated_at = AtomicU64::new(u64::MAX / 2);
        Self { ticks, system, begin, tick, calibrated_at, offset: 0.into() }
    }

    /// Returns the microseconds since the beginning.
    fn count(&self) -> u64 {
        let ticks = self.ticks.raw().wrapping_sub(self.begin);
        ((u128::from(ticks) * u128::from(self.tick)) >> 64) as u64
    }

    /// Returns the time of the system clock in µs.
    pub(crate) fn micros(&self) -> u64 {
        let count = self.count();
        // Several threads may calibrate at the same time, and each result is correct. If the
        // counter goes back, the difference wraps to a huge number, which causes a calibration too.
        if count.wrapping_sub(self.calibrated_at.load(Ordering::Acquire)) > CALIBRATION_INTERVAL {
            return self.calibrate();
        }
        count.wrapping_add(self.offset.load(Ordering::Relaxed))
    }

    #[cold]
    fn calibrate(&self) -> u64 {
        let before = self.count();
        let now = (self.system)();
        // The counter is read after the clock, so that other threads may lag behind the system
        // clock but never lead.
        let count = self.count();
        // If this thread was descheduled between the two reads of the counter, the result is not
        // stored: with it, other threads would lag too far behind.
        if count.wrapping_sub(before) <= MAX_READ_TIME {
            self.offset.store(now.wrapping_sub(count), Ordering::Relaxed);
            // Release: a thread that loads this value also sees its offset, or a later one.
            self.calibrated_at.store(count, Ordering::Release);
        }
        now
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[expect(clippy::disallowed_methods, reason = "it is compared with the clock that it reads")]
    fn the_counter_and_the_system_clock_show_the_same_time() {
        let system =
            || Timestamp::from(SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap());
        // The loop is so long that `SystemClock` reads the system clock in some rounds, and the
        // counter in others.
        for _ in 0..10_000 {
            let (before, now, after) = (system(), SystemClock.now(), system());
            // A step of the system clock during the test is expected to be shorter than these 50
            // ms.
            assert!(now.plus_micros(50_000) >= before && now <= after.plus_micros(50_000));
        }
    }

    #[test]
    fn a_counter_that_has_gone_back_is_calibrated_again() {
        const NOW: u64 = 1_700_000_000;

        let counter = Counter::new(|| NOW);
        counter.calibrated_at.store(u64::MAX / 2, Ordering::Relaxed);
        counter.offset.store(12_345, Ordering::Relaxed);
        assert_eq!(counter.micros(), NOW);
    }

    #[test]
    fn a_slow_read_of_the_system_clock_does_not_calibrate() {
        const NOW: u64 = 1_700_000_000;

        fn slow() -> u64 {
            let ticks = quanta::Clock::new();
            let begin = ticks.raw();
            while ticks.delta_as_nanos(begin, ticks.raw()) < 100 * 1_000 * MAX_READ_TIME {}
            NOW
        }

        let counter = Counter::new(slow);
        let never = counter.calibrated_at.load(Ordering::Relaxed);
        assert_eq!((counter.micros(), counter.micros()), (NOW, NOW));
        assert_eq!(counter.calibrated_at.load(Ordering::Relaxed), never);
    }
}
