//! A minute of requests that take some time, under a concurrency limit.

use std::error::Error;

use rl_core::{Limit, Permit};

use super::timeline::{START, SimulatedLimiter, TICK, push_change};

/// The time during which requests arrive, in ms.
pub(super) const END: u64 = 60_000;

/// A request that takes some time. Times are milliseconds since the beginning.
#[derive(Clone, Copy, Debug)]
pub(super) struct LongRequest {
    pub(super) at: u64,
    /// The time at which the request ends, or its process dies.
    pub(super) until: u64,
    dies: bool,
    pub(super) passed: bool,
}

/// The requests, the decisions, and the number of held permits.
#[derive(Debug, Default)]
pub(super) struct InFlight {
    pub(super) requests: Vec<LongRequest>,
    /// The maximum number of requests in flight.
    pub(super) capacity: u64,
    /// The number of held permits over time: pairs of a time and the number from this time on.
    pub(super) used: Vec<(u64, u64)>,
    lease: u64,
}

/// A group of requests that all take the same time, in ms.
struct Part {
    name: &'static str,
    times: Vec<u64>,
    lasts: u64,
    dies: bool,
}

/// Returns the groups of requests. Every request is shorter than a lease, because leases are not
/// renewed on a manual clock.
fn parts() -> [Part; 5] {
    let part = |name, begin: u64, step, count, lasts| {
        let times = (begin..).step_by(step).take(count).collect();
        Part { name, times, lasts, dies: false }
    };
    [
        part("requests that are over before the next one comes", 1_000, 2_000, 5, 1_500),
        part("ten within a second", 13_000, 100, 10, 3_000),
        part("one each second, of six seconds", 18_000, 1_000, 12, 6_000),
        Part {
            dies: true,
            ..part("one whose process dies after two seconds", 36_000, 1, 1, 2_000)
        },
        part("one each second, of three and a half", 37_000, 1_000, 20, 3_500),
    ]
}

impl Part {
    fn requests(self) -> impl Iterator<Item = LongRequest> {
        let Self { lasts, dies, .. } = self;
        let request = move |at| LongRequest { at, until: at + lasts, dies, passed: false };
        self.times.into_iter().map(request)
    }
}

impl InFlight {
    /// Decides the requests under `limit`.
    pub(super) fn of(limit: &str) -> Result<Self, Box<dyn Error>> {
        let parsed: Limit = limit.parse()?;
        let (capacity, lease) = (parsed.capacity(), parsed.period().as_millis());
        let mut picture = Self { capacity, lease, ..Self::default() };
        let counted = SimulatedLimiter::under(limit)?;
        let mut coming = parts().into_iter().flat_map(Part::requests).peekable();
        let mut held: Vec<(LongRequest, Permit)> = Vec::new();
        for at in (0..=END).step_by(TICK as usize) {
            counted.set(START * 1_000 + at);
            for (request, permit) in held.extract_if(.., |(request, _)| request.until <= at) {
                if request.dies {
                    // Forgetting the permit simulates a process that dies without releasing it.
                    std::mem::forget(permit);
                }
            }
            while let Some(mut request) = coming.next_if(|request| request.at == at) {
                let permit = counted.acquire();
                request.passed = permit.decision().is_allowed();
                picture.requests.push(request);
                held.push((request, permit));
            }
            push_change(&mut picture.used, at, counted.used());
        }
        Ok(picture)
    }

    /// Returns the time at which the permit of an allowed request is free again.
    pub(super) fn freed(&self, request: &LongRequest) -> u64 {
        if request.dies { request.at + self.lease } else { request.until }
    }

    /// Returns the allowed requests, each with its row. A request gets the lowest row that is free
    /// at its time.
    pub(super) fn lines(&self) -> Vec<(usize, LongRequest)> {
        let mut lines: Vec<(usize, LongRequest)> = Vec::new();
        for request in self.requests.iter().filter(|request| request.passed) {
            let is_taken = |line: usize| {
                lines.iter().any(|(other, by)| *other == line && self.freed(by) > request.at)
            };
            let line = (0..).find(|line| !is_taken(*line)).expect("there is no end of lines");
            lines.push((line, *request));
        }
        lines
    }

    /// Returns the numbers of the picture in a sentence.
    pub(super) fn summary(&self) -> String {
        let passed = self.requests.iter().filter(|request| request.passed).count();
        let most = self.used.iter().map(|(_, used)| *used).max().unwrap_or_default();
        format!("{passed} of {} requests admitted, at most {most} at once", self.requests.len())
    }

    /// Returns the numbers of each group of requests.
    pub(super) fn details(&self) -> String {
        let mut requests = self.requests.iter();
        let part = |Part { name, times, .. }| {
            let passed = requests.by_ref().take(times.len()).filter(|request| request.passed);
            format!("{name}, {} of {} admitted", passed.count(), times.len())
        };
        parts().map(part).join("; ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn in_flight() -> InFlight {
        InFlight::of("4:concurrency").unwrap()
    }

    #[test]
    fn requests_come_in_order_and_end_at_ticks() {
        let requests: Vec<LongRequest> = parts().into_iter().flat_map(Part::requests).collect();
        assert!(requests.is_sorted_by_key(|request| request.at));
        assert_eq!(in_flight().requests.len(), requests.len());
        for request in requests {
            assert!(request.at % TICK == 0 && request.until % TICK == 0, "{request:?}");
        }
    }

    /// The picture shows held permits twice: as bars, by the times of the requests, and as a level,
    /// by the usage of the limit.
    #[test]
    fn as_many_permits_are_held_as_there_are_bars() {
        let in_flight = in_flight();
        let lines = in_flight.lines();
        assert!(lines.iter().all(|(line, _)| *line < 4));
        for at in (0..=END).step_by(TICK as usize) {
            let level = in_flight.used.iter().rev().find(|(since, _)| *since <= at);
            let holds = |request: &LongRequest| request.at <= at && at < in_flight.freed(request);
            let bars = lines.iter().filter(|(_, request)| holds(request)).count();
            assert_eq!(level.map(|(_, level)| *level), Some(bars as u64), "at {at} ms");
        }
    }

    #[test]
    fn a_permit_of_a_dead_process_is_free_when_its_lease_ends() {
        let in_flight = in_flight();
        let died = in_flight.requests.iter().find(|request| request.dies).unwrap();
        assert_eq!((died.until, in_flight.freed(died)), (38_000, 46_000));
        let denied = |from: u64, to: u64| {
            let comes =
                |request: &&LongRequest| (from..to).contains(&request.at) && !request.passed;
            in_flight.requests.iter().filter(comes).count()
        };
        assert_eq!((denied(37_000, 46_000), denied(46_000, END)), (2, 0));
    }
}
