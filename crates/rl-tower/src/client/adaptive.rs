//! Client-side throttling: the local rejection of calls to a destination that rejects most calls.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use rl_core::Subject;
use rl_core::time::Timestamp;

/// The window of two minutes consists of slots of five seconds.
const SLOT_SECS: u64 = 5;
const SLOTS: usize = 24;

/// The number of calls that are sent for each call that the destination accepts.
const SENT_PER_ACCEPT: u64 = 2;

/// The calls to each destination in the last two minutes.
#[derive(Debug, Default)]
pub(super) struct Adaptive {
    destinations: Mutex<HashMap<Subject, Window>>,
}

#[derive(Debug, Default)]
struct Window {
    /// The requests and accepts of each slot.
    slots: [(u64, u64); SLOTS],
    /// The number of the newest slot, since the epoch.
    newest: u64,
}

impl Adaptive {
    /// Returns whether a call is rejected locally, and records it if it is.
    pub(super) fn rejects(&self, subject: &Subject, now: Timestamp) -> bool {
        self.with_window(subject, now, |window| {
            let is_rejected = fastrand::f64() < window.rejection();
            if is_rejected {
                window.record(false);
            }
            is_rejected
        })
    }

    /// Records a call that was sent.
    pub(super) fn record(&self, subject: &Subject, is_accepted: bool, now: Timestamp) {
        self.with_window(subject, now, |window| window.record(is_accepted));
    }

    fn with_window<T>(
        &self,
        subject: &Subject,
        now: Timestamp,
        change: impl FnOnce(&mut Window) -> T,
    ) -> T {
        let slot = now.as_micros() / (SLOT_SECS * 1_000_000);
        let mut destinations = self.destinations.lock().unwrap_or_else(PoisonError::into_inner);
        // Destinations without recent calls make room before the table grows.
        if destinations.len() == destinations.capacity() {
            destinations.retain(|_, window| window.newest + SLOTS as u64 > slot);
        }
        let window = destinations.entry(subject.clone()).or_default();
        window.advance(slot);
        change(window)
    }
}

impl Window {
    /// Empties the slots that have passed. After a step back of the clock, the newest slot stays.
    fn advance(&mut self, slot: u64) {
        let passed = slot.saturating_sub(self.newest).min(SLOTS as u64);
        self.newest = slot.max(self.newest);
        for age in 0..passed {
            self.slots[(self.newest - age) as usize % SLOTS] = (0, 0);
        }
    }

    fn record(&mut self, is_accepted: bool) {
        let (requests, accepts) = &mut self.slots[self.newest as usize % SLOTS];
        *requests += 1;
        *accepts += u64::from(is_accepted);
    }

    /// Returns the probability with which a call is rejected.
    fn rejection(&self) -> f64 {
        let add = |(one, other): (u64, u64), slot: &(u64, u64)| (one + slot.0, other + slot.1);
        let (requests, accepts) = self.slots.iter().fold((0, 0), add);
        let excess = requests.saturating_sub(SENT_PER_ACCEPT * accepts);
        excess as f64 / (requests + 1) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_probability_is_that_of_the_formula_over_two_minutes() {
        let mut window = Window::default();
        let record = |window: &mut Window, second: u64, accepted: usize, rejected: usize| {
            window.advance(second / SLOT_SECS);
            (0..accepted).for_each(|_| window.record(true));
            (0..rejected).for_each(|_| window.record(false));
            window.rejection()
        };
        let begin = 1_700_000_000;
        assert_eq!(record(&mut window, begin, 0, 0), 0.0);
        assert_eq!(record(&mut window, begin, 50, 50), 0.0);
        assert_eq!(record(&mut window, begin + 60, 0, 99), 99.0 / 200.0);
        assert_eq!(record(&mut window, begin + 119, 0, 0), 99.0 / 200.0);
        assert_eq!(record(&mut window, begin + 120, 0, 0), 99.0 / 100.0);
        assert_eq!(record(&mut window, begin + 100, 99, 0), 0.0); // a step back
        assert_eq!(record(&mut window, begin + 9_999, 0, 0), 0.0);
    }

    #[test]
    fn a_destination_that_rejects_gets_few_calls_and_others_all() {
        fastrand::seed(7);
        let (adaptive, now) = (Adaptive::default(), Timestamp::from_secs(1_700_000_000));
        let [failing, healthy] = ["failing", "healthy"].map(Subject::consumer);
        let mut sent = 0;
        for _ in 0..1_000 {
            if !adaptive.rejects(&failing, now) {
                adaptive.record(&failing, false, now);
                sent += 1;
            }
            assert!(!adaptive.rejects(&healthy, now));
            adaptive.record(&healthy, true, now);
        }
        assert!((1..30).contains(&sent), "{sent}");
        // Two minutes later, it is called again.
        assert!(!adaptive.rejects(&failing, now.plus_micros(120_000_000)));
    }

    #[test]
    fn destinations_without_recent_calls_are_forgotten() {
        let adaptive = Adaptive::default();
        for second in 0..2_000 {
            let subject = Subject::consumer(&second.to_string());
            adaptive.record(&subject, true, Timestamp::from_secs(second));
        }
        assert!(adaptive.destinations.lock().unwrap().len() < 500);
    }
}
