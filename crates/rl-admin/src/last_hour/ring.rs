use std::collections::VecDeque;

use rl_core::stats::LimiterStats;
use rl_core::time::Timestamp;

use super::denied::{DeniedSubject, DeniedSubjects};
use super::report::HourReport;
use super::sample::{LimitPaths, Sample, times};
use super::top::{Ranking, TopEntry, TopHistory};

/// The length of the ring in microseconds.
const HOUR: u64 = 3_600_000_000;

const MINUTE: u64 = 60_000_000;

/// The minimum length of a stored sample in microseconds. It bounds the number of samples. It is
/// less than the interval of the task, because the ticks of the task are not exact.
const SHORTEST: u64 = 9_000_000;

/// The largest step back of the clock that keeps the samples, in microseconds. It bounds the time
/// for which the current sample does not grow longer.
const SMALL_STEP: u64 = 10_000_000;

/// The last minute of a limiter.
#[derive(Debug)]
pub(crate) struct LastMinute {
    pub(crate) now: Timestamp,
    pub(crate) per_second: f64,
    pub(crate) denied_per_second: f64,
    /// The subjects that were denied, those with the most denials first.
    pub(crate) denied: Vec<DeniedSubject>,
}

/// The samples of the last hour.
#[derive(Debug)]
pub(crate) struct Ring {
    samples: VecDeque<Sample>,
    /// The sample that begins at the end of the last stored one, and is still growing.
    current: Sample,
    paths: LimitPaths,
    /// The time at which sampling started.
    begun: Timestamp,
    /// Whether sampling started because the clock stepped back.
    has_stepped_back: bool,
    /// The counts at the end of the last stored sample.
    last: (Timestamp, LimiterStats),
    now: (Timestamp, LimiterStats),
    top: TopHistory,
    denied: DeniedSubjects,
}

impl Ring {
    /// Creates an empty ring. The first sample begins at `now`, when the counts are `stats`.
    pub(crate) fn new(now: Timestamp, stats: LimiterStats) -> Self {
        let mut paths = LimitPaths::default();
        let current = Sample::between((now, &stats), (now, &stats), &mut paths);
        Self {
            samples: VecDeque::new(),
            current,
            paths,
            begun: now,
            has_stepped_back: false,
            top: TopHistory::new(now, &stats),
            denied: DeniedSubjects::new(now, &stats),
            last: (now, stats.clone()),
            now: (now, stats),
        }
    }

    /// Adds the counts until `now`.
    ///
    /// After a small step back of the clock, the samples end at the last known time until the clock
    /// has passed it. After a larger one, the samples are dropped, because their times are wrong.
    pub(crate) fn update(&mut self, now: Timestamp, stats: LimiterStats) {
        if self.now.0.micros_since(now) > SMALL_STEP {
            *self = Self { has_stepped_back: true, ..Self::new(now, stats) };
            return;
        }
        let now = now.max(self.now.0);
        let last = (self.last.0, &self.last.1);
        self.current = Sample::between(last, (now, &stats), &mut self.paths);
        self.top.update(now, &stats);
        self.denied.update(now, &stats);
        if now.micros_since(self.last.0) >= SHORTEST {
            let next = Sample::between((now, &stats), (now, &stats), &mut self.paths);
            self.samples.push_back(std::mem::replace(&mut self.current, next));
            self.last = (now, stats.clone());
        }
        let is_old = |sample: &Sample| now.micros_since(sample.end) >= HOUR;
        while self.samples.front().is_some_and(is_old) {
            self.samples.pop_front();
        }
        self.now = (now, stats);
    }

    /// Returns the samples of the hour before the last update.
    pub(crate) fn report(&self) -> HourReport {
        let (now, stats) = (self.now.0, self.now.1.clone());
        let current = Some(&self.current).filter(|current| current.start < current.end);
        HourReport {
            start: Timestamp::from_micros(now.as_micros().saturating_sub(HOUR)),
            now,
            begun: self.begun,
            has_stepped_back: self.has_stepped_back,
            bounds: times(&stats).bounds.clone(),
            stats,
            samples: self.samples.iter().chain(current).cloned().collect(),
            top_denied: self.top(Ranking::Denied),
            top_used: self.top(Ranking::Used),
        }
    }

    /// Returns the samples of the minute before the last update, and the denials of this time.
    pub(crate) fn last_minute(&self) -> LastMinute {
        let now = self.now.0;
        let samples = self.samples.iter().rev();
        let recent = samples.take_while(|sample| now.micros_since(sample.end) < MINUTE);
        let (mut seconds, mut requests, mut denied) = (0.0, 0, 0);
        for sample in recent.chain([&self.current]) {
            seconds += sample.seconds();
            requests += sample.allowed + sample.denied + sample.failed_closed;
            denied += sample.denied;
        }
        // In the first seconds, a single request would count as several per second.
        let per_second = |count: u64| count as f64 / f64::max(seconds, 10.0);
        LastMinute {
            now,
            per_second: per_second(requests),
            denied_per_second: per_second(denied),
            denied: self.denied.of_last_minute(),
        }
    }

    /// Returns the subjects with the largest counts, the largest first.
    pub(crate) fn top(&self, ranking: Ranking) -> Vec<TopEntry> {
        self.top.entries(ranking, self.now.0, &self.now.1)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use rl_core::rules::{Match, Rule, Rules};
    use rl_core::stats::{Histogram, LimitStats, RuleStats};
    use rl_core::time::ManualClock;
    use rl_core::{Limit, MemoryStore, RateLimiter, Subject};

    use super::super::sample::{LimitDenials, LimitPath};
    use super::super::top::TopCounts;
    use super::*;

    fn at(seconds: u64) -> Timestamp {
        Timestamp::from_secs(1_769_947_200 + seconds)
    }

    async fn send(limiter: &RateLimiter, requests: u64) {
        for _ in 0..requests {
            limiter.check(&Subject::consumer("abc"), 1).await;
        }
    }

    #[tokio::test]
    async fn samples_hold_the_differences_of_the_counts() {
        let limiter = RateLimiter::builder().limit(Limit::per_day(5)).build().unwrap();
        send(&limiter, 1).await;
        let mut ring = Ring::new(at(0), limiter.stats());
        send(&limiter, 3).await;
        ring.update(at(10), limiter.stats());
        send(&limiter, 3).await;
        ring.update(at(15), limiter.stats());
        let samples = ring.report().samples;
        let seen: Vec<_> =
            samples.iter().map(|one| (one.start, one.end, one.allowed, one.denied)).collect();
        assert_eq!(seen, [(at(0), at(10), 3, 0), (at(10), at(15), 1, 2)]);
        assert_eq!((&*samples[1].denials[0].path.limit, samples[1].denials[0].over), ("day", 2));

        ring.update(at(20), limiter.stats());
        let samples = ring.report().samples;
        assert_eq!((samples.len(), samples[1].end, samples[1].denied), (2, at(20), 2));
    }

    #[tokio::test]
    async fn samples_end_after_an_hour_and_their_number_is_bounded() {
        let limiter = RateLimiter::builder().limit(Limit::per_day(5)).build().unwrap();
        let mut ring = Ring::new(at(0), limiter.stats());
        for second in 1..10_000 {
            ring.update(at(second), limiter.stats());
            assert!(ring.samples.len() <= 401);
        }
        let report = ring.report();
        assert!(report.samples.iter().all(|sample| sample.end > report.start));
        assert!(report.samples.len() >= 400);
        assert_eq!(report.begun, at(0));
    }

    /// The largest number of top subjects that a limiter reports.
    const TOP: usize = 32;

    /// Returns the bytes of a ring on the heap, without the names of limits and the ids of
    /// subjects.
    fn bytes(ring: &Ring) -> usize {
        let vec = |capacity: usize, size: usize| capacity * size;
        let of_sample = |sample: &Sample| {
            vec(sample.times.capacity(), 8)
                + vec(sample.denials.capacity(), size_of::<LimitDenials>())
        };
        let of_histogram =
            |one: &Histogram| vec(one.bounds.capacity(), 8) + vec(one.counts.capacity(), 8);
        let of_stats = |stats: &LimiterStats| {
            let limits = stats.limits.iter().map(|limit| {
                let by_tier = vec(limit.by_tier.capacity(), size_of::<(String, Limit)>());
                of_histogram(&limit.utilization) + by_tier
            });
            vec(stats.limits.capacity(), size_of::<LimitStats>())
                + vec(stats.rules.capacity(), size_of::<RuleStats>())
                + limits.sum::<usize>()
        };
        let of_top = |top: &TopCounts| {
            // Each list counts as full, even if this test has filled only a part of it.
            let entries = top.denied.capacity().max(TOP) + top.used.capacity().max(TOP);
            vec(entries, size_of::<(Subject, u64)>())
        };
        let paths =
            ring.paths.0.capacity() * (8 + 1) + ring.paths.0.len() * (16 + size_of::<LimitPath>());
        vec(ring.samples.capacity(), size_of::<Sample>())
            + ring.samples.iter().map(of_sample).sum::<usize>()
            + vec(ring.top.0.capacity(), size_of::<TopCounts>())
            + ring.top.0.iter().map(of_top).sum::<usize>()
            + of_stats(&ring.last.1)
            + of_stats(&ring.now.1)
            + paths
    }

    #[tokio::test]
    async fn an_hour_in_which_all_of_500_limits_deny_takes_little_more_than_a_megabyte() {
        let rules = (0..100).map(|rule| {
            let limits = (1..=5).map(|hours| format!("1/{hours}h").parse::<Limit>().unwrap());
            let path = Match::new().path(format!("/{rule}"));
            limits.fold(Rule::named(format!("rule-{rule}")).matching(path), Rule::limit)
        });
        // A limiter records the subject of one decision in a millisecond.
        let clock = Arc::new(ManualClock::at(at(0)));
        let limiter = RateLimiter::builder().rules(rules.fold(Rules::new(), Rules::rule));
        let limiter = limiter.store(MemoryStore::builder().clock(clock.clone()).build());
        let limiter = limiter.build().unwrap();
        let mut ring = Ring::new(at(0), limiter.stats());
        for step in 1..=400 {
            for rule in 0..100 {
                clock.advance(Duration::from_millis(1));
                let subject = Subject::consumer(&format!("consumer-{rule}"));
                limiter.rule(&format!("rule-{rule}")).of(&subject).check().await;
            }
            ring.update(at(9 * step), limiter.stats());
        }
        assert!(ring.samples.len() >= 399 && ring.paths.0.len() > 500, "{}", ring.samples.len());
        assert!(ring.samples.iter().skip(1).all(|sample| sample.denials.len() == 32));
        assert_eq!(ring.top(Ranking::Denied).len(), TOP);
        let bytes = bytes(&ring);
        println!("{bytes} bytes");
        assert!(bytes <= 1_100_000, "{bytes}");
    }

    #[tokio::test]
    async fn the_hour_begins_again_if_the_clock_steps_back() {
        let limiter = RateLimiter::builder().limit(Limit::per_day(5)).build().unwrap();
        let mut ring = Ring::new(at(100), limiter.stats());
        send(&limiter, 2).await;
        ring.update(at(110), limiter.stats());
        send(&limiter, 2).await;
        ring.update(at(50), limiter.stats());
        let report = ring.report();
        assert_eq!((report.begun, report.now, report.samples.len()), (at(50), at(50), 0));
        assert!(report.has_stepped_back);
        ring.update(at(60), limiter.stats());
        assert_eq!(ring.report().samples[0].allowed, 0);
    }

    #[tokio::test]
    async fn a_small_step_back_of_the_clock_loses_no_counts() {
        let limiter = RateLimiter::builder().limit(Limit::per_day(9)).build().unwrap();
        let mut ring = Ring::new(at(100), limiter.stats());
        for second in [110, 105, 103, 112, 120] {
            send(&limiter, 1).await;
            ring.update(at(second), limiter.stats());
        }
        let report = ring.report();
        assert_eq!((report.begun, report.has_stepped_back), (at(100), false));
        let seen: Vec<_> =
            report.samples.iter().map(|one| (one.start, one.end, one.allowed)).collect();
        assert_eq!(seen, [(at(100), at(110), 1), (at(110), at(120), 4)]);
    }
}
