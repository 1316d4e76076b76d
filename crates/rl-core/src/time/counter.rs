use std::sync::atomic::{AtomicU64, Ordering};

/// How long the processor's counter is believed, in ns: a hundred times a second a clock of the system is
/// asked. A counter that is wrong by a thousandth is wrong by ten microseconds then.
const BELIEVED: u64 = 10_000_000;

/// A clock of the system, in ns, read by the processor's counter: between two questions to the system, a
/// hundredth of a second apart at most, it tells how time goes on, where it is one that runs evenly. That
/// takes less than half as long. A step of the system's clock is followed as soon.
#[derive(Debug)]
pub(crate) struct Counter {
    ticks: quanta::Clock,
    system: fn() -> u64,
    /// Where it stood at the beginning; from here on it is read in ns.
    begin: u64,
    /// When the system was asked last.
    asked: AtomicU64,
    /// What has to be added for the system's time. Both wrap around.
    offset: AtomicU64,
}

impl Counter {
    pub(crate) fn of(system: fn() -> u64) -> Self {
        let ticks = quanta::Clock::new();
        let begin = ticks.raw();
        let counter = Self { ticks, system, begin, asked: 0.into(), offset: 0.into() };
        counter.ask();
        counter
    }

    #[inline]
    pub(crate) fn nanos(&self) -> u64 {
        let nanos = self.ticks.delta_as_nanos(self.begin, self.ticks.raw());
        // Threads may ask at the same time: each of their answers is right. A counter that goes back
        // is far beyond what is believed.
        if nanos.wrapping_sub(self.asked.load(Ordering::Acquire)) > BELIEVED {
            return self.ask();
        }
        nanos.wrapping_add(self.offset.load(Ordering::Relaxed))
    }

    #[cold]
    fn ask(&self) -> u64 {
        let now = (self.system)();
        // Read afterwards: a thread that stands still in between lags behind, and never leads.
        let nanos = self.ticks.delta_as_nanos(self.begin, self.ticks.raw());
        self.offset.store(now.wrapping_sub(nanos), Ordering::Relaxed);
        // Whoever believes this sees the offset that belongs to it, or a later one.
        self.asked.store(nanos, Ordering::Release);
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
        assert_eq!(counter.nanos(), NOW);
    }
}
