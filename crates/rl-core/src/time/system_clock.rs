use std::sync::LazyLock;
use std::time::SystemTime;

use super::counter::Counter;
use super::{Clock, Timestamp};

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
        static COUNTER: LazyLock<Counter> = LazyLock::new(|| Counter::of(since_epoch));
        Timestamp::from_micros(COUNTER.nanos() / 1_000)
    }
}

#[expect(clippy::disallowed_methods, reason = "this is the one place that reads the clock")]
fn since_epoch() -> u64 {
    // A clock set before 1970 reads as the epoch.
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(now.as_nanos()).unwrap_or(u64::MAX)
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
