use std::sync::LazyLock;
use std::time::SystemTime;

use super::counter::Counter;
use super::{Clock, Timestamp};

/// The system's wall clock, in UTC.
///
/// It is the wall clock and not the monotonic clock, because aligned windows begin at full minutes, days
/// and months. The system clock is read at most every ten milliseconds; in between, the time is computed
/// from the processor's counter, which takes less than half as long. A step of the system clock is
/// therefore followed within ten milliseconds.
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
    // A clock set before 1970 reads as the epoch.
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    Timestamp::from(now).as_micros()
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
}
