//! Three minutes of requests, which are the same for every algorithm, and the decisions on them.

use std::error::Error;
use std::sync::Arc;

use rl_core::time::{ManualClock, Timestamp};
use rl_core::{Algorithm, Decision, Limit, MaybeReady, MemoryStore, Permit, RateLimiter, Subject};

/// Seven in the evening, in seconds since the epoch.
pub(super) const START: u64 = 1_769_886_000;
/// The duration of the timeline, in ms.
pub(super) const END: u64 = 180_000;
/// The step of the timeline in ms. Requests arrive at multiples of it, and the usage is read at
/// multiples of it.
pub(super) const TICK: u64 = 100;
/// The period in ms of every limit that is drawn. The pictures also count the allowed requests in
/// this period.
const MINUTE: u64 = 60_000;

/// A limiter with one limit and one subject, on a manual clock.
pub(super) struct SimulatedLimiter {
    clock: Arc<ManualClock>,
    limiter: RateLimiter,
    subject: Subject,
}

impl SimulatedLimiter {
    pub(super) fn under(limit: &str) -> Result<Self, Box<dyn Error>> {
        let clock = Arc::new(ManualClock::default());
        let store = MemoryStore::builder().clock(Arc::clone(&clock)).build();
        let limiter = RateLimiter::builder().limit(limit.parse()?).store(store).build()?;
        Ok(Self { clock, limiter, subject: Subject::consumer("alice") })
    }

    /// Sets the clock to a time in ms since the epoch.
    pub(super) fn set(&self, millis: u64) {
        self.clock.set(Timestamp::from_micros(millis * 1_000));
    }

    /// Makes a request of one unit. Returns whether it is allowed.
    pub(super) fn passes(&self) -> bool {
        at_once(self.limiter.check(&self.subject, 1)).is_allowed()
    }

    /// Makes a request that takes some time: it lasts until the returned permit is dropped.
    pub(super) fn acquire(&self) -> Permit {
        at_once(self.limiter.acquire(&self.subject, 1))
    }

    /// Returns the used units.
    pub(super) fn used(&self) -> u64 {
        self.usage().limits().map(|limit| limit.used()).sum()
    }

    /// Returns the usage of the limit.
    fn usage(&self) -> Decision {
        at_once(self.limiter.usage(&self.subject)).expect("memory always answers")
    }
}

fn at_once<T>(answer: MaybeReady<T>) -> T {
    match answer {
        MaybeReady::Ready(Some(answer)) => answer,
        _ => unreachable!("decisions in memory are there at once"),
    }
}

/// A request. Its time is in milliseconds since the beginning.
#[derive(Clone, Copy, Debug)]
pub(super) struct Request {
    pub(super) at: u64,
    pub(super) passed: bool,
}

/// The requests, the decisions, and the usage of the limit. Times are milliseconds since the
/// beginning. A pair contains a time, and the number from this time on.
#[derive(Debug, Default)]
pub(super) struct Timeline {
    pub(super) requests: Vec<Request>,
    /// The maximum number of units that can be in use at the same time.
    pub(super) capacity: u64,
    pub(super) used: Vec<(u64, u64)>,
    /// The number of requests that were allowed in the last minute, over time.
    pub(super) passed: Vec<(u64, u64)>,
    /// The times at which fixed windows end.
    pub(super) edges: Vec<u64>,
}

/// Returns the groups of requests: the name of each group, and the times at which its requests
/// arrive.
fn parts() -> [(&'static str, Vec<u64>); 4] {
    let burst = |begin: u64| (begin..).step_by(600).take(10).collect();
    [
        ("the first request", vec![0]),
        ("a burst before 1:00", burst(54_300)),
        ("a burst after 1:00", burst(60_300)),
        ("steady traffic of twice the rate", (73_500..END).step_by(3_000).collect()),
    ]
}

impl Timeline {
    /// Decides the requests under `limit`.
    pub(super) fn of(limit: &str) -> Result<Self, Box<dyn Error>> {
        let counted = SimulatedLimiter::under(limit)?;
        let parsed: Limit = limit.parse()?;
        let has_edges = matches!(parsed.algorithm(), Algorithm::FixedWindow { .. });
        let mut timeline = Self { capacity: parsed.capacity(), ..Self::default() };
        let times: Vec<u64> = parts().into_iter().flat_map(|(_, times)| times).collect();
        for at in (0..=END).step_by(TICK as usize) {
            counted.set(START * 1_000 + at);
            for _ in times.iter().filter(|time| **time == at) {
                timeline.requests.push(Request { at, passed: counted.passes() });
            }
            timeline.read(at, &counted.usage(), has_edges);
        }
        Ok(timeline)
    }

    fn read(&mut self, at: u64, usage: &Decision, has_edges: bool) {
        let limit = usage.limits().next().expect("a policy has a limit");
        push_change(&mut self.used, at, limit.used());
        let passed = self.passed_until(at);
        push_change(&mut self.passed, at, passed);
        let edge = at + u64::try_from(limit.reset_after().as_millis()).unwrap_or(u64::MAX);
        if has_edges && limit.is_active() && edge <= END && self.edges.last() != Some(&edge) {
            self.edges.push(edge);
        }
    }

    /// Returns the number of requests allowed in the minute that ends at `at`.
    fn passed_until(&self, at: u64) -> u64 {
        let counts = |request: &&Request| request.passed && at - request.at < MINUTE;
        self.requests.iter().filter(counts).count() as u64
    }

    /// Returns the largest number of requests that were allowed within a minute.
    pub(super) fn most(&self) -> u64 {
        self.passed.iter().map(|(_, passed)| *passed).max().unwrap_or_default()
    }

    /// Returns the numbers of the picture in a sentence.
    pub(super) fn summary(&self) -> String {
        let passed = self.requests.iter().filter(|request| request.passed).count();
        let (all, most) = (self.requests.len(), self.most());
        format!("{passed} of {all} requests admitted, at most {most} in any minute")
    }

    /// Returns the numbers of each group of requests.
    pub(super) fn details(&self) -> String {
        let mut requests = self.requests.iter();
        let part = |(name, times): (&str, Vec<u64>)| {
            let passed = requests.by_ref().take(times.len()).filter(|request| request.passed);
            format!("{name}, {} of {} admitted", passed.count(), times.len())
        };
        parts().map(part).join("; ")
    }
}

/// Adds a level if it differs from the last one.
pub(super) fn push_change(levels: &mut Vec<(u64, u64)>, at: u64, level: u64) {
    if levels.last().is_none_or(|(_, last)| *last != level) {
        levels.push((at, level));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fixed_window_allows_twice_its_max_around_an_edge() {
        let timeline = Timeline::of("10/minute").unwrap();
        assert_eq!(timeline.requests.len(), 57);
        assert_eq!(timeline.edges, [60_000, 120_300]);
        // Nine requests of the burst before the edge are allowed, because the first request has
        // used one unit. All ten of the burst after the edge are allowed.
        assert_eq!(timeline.most(), 19);
    }

    #[test]
    fn requests_come_in_order_at_ticks() {
        let times: Vec<u64> = parts().into_iter().flat_map(|(_, times)| times).collect();
        assert!(times.is_sorted() && times.iter().all(|time| time % TICK == 0), "{times:?}");
    }
}
