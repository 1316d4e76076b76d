use std::sync::atomic::{AtomicU64, Ordering};

/// How long the processor's counter is believed, in µs: a hundred times a second a clock of the system is
/// asked. A counter that is wrong by a thousandth is wrong by ten microseconds then.
const BELIEVED: u64 = 10_000;

/// How long a question may take that others believe the answer of, in µs: so much behind the system's clock
/// they are at most.
const NEAR: u64 = 10;

/// A clock of the system, in µs, read by the processor's counter: between two questions to the system, a
/// hundredth of a second apart at most, it tells how time goes on, where it is one that runs evenly. That
/// takes less than half as long. A step of the system's clock is followed as soon.
#[derive(Debug)]
pub(crate) struct Counter {
    ticks: quanta::Clock,
    system: fn() -> u64,
    /// Where it stood at the beginning.
    begin: u64,
    /// How long a tick of it lasts, in µs / 2^64. None is as slow as one in a microsecond.
    tick: u64,
    /// When the system was asked last, in µs since the beginning.
    asked: AtomicU64,
    /// What has to be added for the system's time. Both wrap around.
    offset: AtomicU64,
}

impl Counter {
    pub(crate) fn of(system: fn() -> u64) -> Self {
        let ticks = quanta::Clock::new();
        let begin = ticks.raw();
        // So many that what is rounded is nothing.
        let nanos = ticks.delta_as_nanos(0, 1 << 40);
        let tick = u64::try_from((u128::from(nanos) << 24) / 1_000).unwrap_or(u64::MAX);
        // Far from where it is believed.
        let asked = AtomicU64::new(u64::MAX / 2);
        Self { ticks, system, begin, tick, asked, offset: 0.into() }
    }

    /// Microseconds since the beginning.
    #[inline]
    fn count(&self) -> u64 {
        let ticks = self.ticks.raw().wrapping_sub(self.begin);
        ((u128::from(ticks) * u128::from(self.tick)) >> 64) as u64
    }

    #[inline]
    pub(crate) fn micros(&self) -> u64 {
        let count = self.count();
        // Threads may ask at the same time: each of their answers is right. A counter that goes back
        // is far beyond what is believed.
        if count.wrapping_sub(self.asked.load(Ordering::Acquire)) > BELIEVED {
            return self.ask();
        }
        count.wrapping_add(self.offset.load(Ordering::Relaxed))
    }

    #[cold]
    fn ask(&self) -> u64 {
        let before = self.count();
        let now = (self.system)();
        // Read afterwards: who believes it lags behind, and never leads.
        let count = self.count();
        // A thread that stood still in between would have all others live in the past.
        if count.wrapping_sub(before) <= NEAR {
            self.offset.store(now.wrapping_sub(count), Ordering::Relaxed);
            // Whoever believes this sees the offset that belongs to it, or a later one.
            self.asked.store(count, Ordering::Release);
        }
        now
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_counter_that_has_gone_back_is_not_believed() {
        const NOW: u64 = 1_700_000_000;

        let counter = Counter::of(|| NOW);
        counter.asked.store(u64::MAX / 2, Ordering::Relaxed);
        counter.offset.store(12_345, Ordering::Relaxed);
        assert_eq!(counter.micros(), NOW);
    }

    #[test]
    fn an_answer_that_took_long_is_nobody_else_s() {
        const NOW: u64 = 1_700_000_000;

        fn slow() -> u64 {
            let ticks = quanta::Clock::new();
            let begin = ticks.raw();
            while ticks.delta_as_nanos(begin, ticks.raw()) < 100 * 1_000 * NEAR {}
            NOW
        }

        let counter = Counter::of(slow);
        let never = counter.asked.load(Ordering::Relaxed);
        assert_eq!((counter.micros(), counter.micros()), (NOW, NOW));
        assert_eq!(counter.asked.load(Ordering::Relaxed), never);
    }
}
