use std::sync::LazyLock;
use std::time::SystemTime;

use super::counter::Counter;
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
    #[inline]
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
}
