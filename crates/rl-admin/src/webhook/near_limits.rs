use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::{Mutex, PoisonError};

use rl_core::Period;
use rl_core::observe::{Event, EventKind};
use rl_core::time::Timestamp;

/// The shortest period for which each crossing of a threshold is sent.
const SHORTEST_PERIOD: Period = Period::HOUR;

/// The microseconds between two events for one threshold of a limit with a shorter period.
const INTERVAL: u64 = 60_000_000;

/// The largest number of thresholds to remember. With more, an event may be sent too early.
const MAX_REMEMBERED: usize = 10_000;

/// Bounds the number of `near_limit` events for limits with short periods. Busy subjects reach the
/// thresholds of these limits in each window.
#[derive(Debug, Default)]
pub(super) struct NearLimitSampler {
    /// The key is a hash of a limiter, a rule, a limit and a threshold.
    sent: Mutex<HashMap<u64, Sent>>,
    hasher: RandomState,
}

/// The last event that was sent.
#[derive(Clone, Copy, Debug)]
struct Sent {
    at: Timestamp,
    /// The number of events that were left out since then.
    suppressed: u64,
}

impl NearLimitSampler {
    /// Returns the event to send for `event` at `now`, or `None` if it is left out. Returns events
    /// of other kinds as they are.
    pub(super) fn sample<'a>(&self, event: &Event<'a>, now: Timestamp) -> Option<Event<'a>> {
        let EventKind::NearLimit { subject, limit, percent, suppressed } = event.kind else {
            return Some(*event);
        };
        if limit.limit().period() >= SHORTEST_PERIOD {
            return Some(*event);
        }
        let location = event.location;
        let threshold = (location.limiter, location.rule, limit.name(), percent);
        let key = self.hasher.hash_one(threshold);
        let suppressed = self.record(key, suppressed, now)?;
        let kind = EventKind::NearLimit { subject, limit, percent, suppressed };
        Some(Event::new(location, kind))
    }

    /// Records an event, before which the limiter has left out `suppressed` others. Returns the
    /// number of events that were left out since the last one, or `None` if this one is left out.
    fn record(&self, key: u64, suppressed: u64, now: Timestamp) -> Option<u64> {
        let mut sent = self.sent.lock().unwrap_or_else(PoisonError::into_inner);
        let mut total = suppressed;
        if let Some(last) = sent.get_mut(&key) {
            if now < last.at.plus_micros(INTERVAL) {
                last.suppressed += suppressed + 1;
                return None;
            }
            total += last.suppressed;
        } else if sent.len() >= MAX_REMEMBERED {
            sent.clear();
        }
        sent.insert(key, Sent { at: now, suppressed: 0 });
        Some(total)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_for_a_threshold_are_sent_once_a_minute_with_the_number_left_out() {
        let sampler = NearLimitSampler::default();
        let record = |key, suppressed, seconds| {
            sampler.record(key, suppressed, Timestamp::from_secs(seconds))
        };
        assert_eq!(record(1, 0, 100), Some(0));
        assert_eq!(record(1, 0, 159), None);
        assert_eq!(record(1, 5, 159), None, "the limiter has left out five more");
        assert_eq!(record(2, 3, 159), Some(3), "another threshold");
        assert_eq!(record(1, 0, 160), Some(7));
        assert_eq!(record(1, 0, 300), Some(0));
        (3..30_000).for_each(|key| assert_eq!(record(key, 0, 300), Some(0)));
        assert!(sampler.sent.lock().unwrap().len() <= MAX_REMEMBERED);
    }
}
