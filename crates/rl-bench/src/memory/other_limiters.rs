//! Other limiters in memory. Each is called as its documentation shows.

use std::collections::{HashMap, VecDeque};
use std::error::Error;
use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, SystemTime};

use actix_extensible_rate_limit::backend::memory::InMemoryBackend;
use actix_extensible_rate_limit::backend::{Backend, SimpleInput};
use burster::Limiter as _;
use dashmap::DashMap;
use governor::RateLimiter;
use governor::clock::DefaultClock;
use governor::middleware::NoOpMiddleware;
use governor::state::{InMemoryState, NotKeyed};
use limitador::limit::{Context as Values, Expression, Limit, Namespace};
use rl_core::Period;
use throttlecrab::AdaptiveStore;
use tokio::sync::Semaphore;
use trypema::local::LocalRateLimiterProvider;
use trypema::{BucketSize, RateLimit, RateLimitDecision, RateLimiterBuilder, WindowSize};

use super::limiters::{Governors, Keys, Limiter, SERVED_AT_ONCE, quota};

/// A limiter for one algorithm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Peer {
    ActixExtensible,
    Bucket,
    FastGovernor,
    Governor,
    Leases,
    Log,
    Semaphore,
    ThrottleCrab,
    Trypema,
    WindowCounter,
}

impl Peer {
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::ActixExtensible => "actix-extensible",
            Self::Bucket => "burster in a DashMap",
            Self::FastGovernor => "governor with ahash",
            Self::Governor => "governor",
            Self::Leases => "leases in a DashMap",
            Self::Log => "times in a DashMap",
            Self::Semaphore => "tokio's in a DashMap",
            Self::ThrottleCrab => "throttlecrab in a lock",
            Self::Trypema => "trypema",
            Self::WindowCounter => "burster in a DashMap",
        }
    }

    /// Creates the limiter. If `releases` is true, a request releases its permit when it ends.
    pub(super) fn limiter(
        self,
        capacity: usize,
        max: u32,
        releases: bool,
    ) -> Result<Box<dyn Limiter>, Box<dyn Error>> {
        const HOUR: Duration = Duration::from_secs(3_600);
        Ok(match self {
            Self::ActixExtensible => Box::new(Extensible::new(max)),
            Self::Bucket => Box::new(PerKey::new(
                // The rate of `max` units per hour, in whole units per second.
                move || burster::token_bucket((max / 3_600).into(), max.into()),
                |bucket| bucket.try_consume_one().is_ok(),
            )),
            Self::FastGovernor => Box::new(FastGovernor::new(max)),
            Self::Governor => Box::new(Governors::one(max)),
            Self::Leases => Box::new(Leases { all: DashMap::new(), max, releases }),
            Self::Log => Box::new(PerKey::new(VecDeque::new, move |log| {
                let now = quanta::Instant::now();
                while log.front().is_some_and(|first| now.duration_since(*first) >= HOUR) {
                    log.pop_front();
                }
                let passes = log.len() < max as usize;
                if passes {
                    log.push_back(now);
                }
                passes
            })),
            Self::Semaphore => Box::new(Semaphores { all: DashMap::new(), max, releases }),
            Self::ThrottleCrab => Box::new(ThrottleCrab::new(max, capacity)),
            Self::Trypema => Box::new(Trypema::new(max)?),
            Self::WindowCounter => Box::new(PerKey::new(
                move || burster::sliding_window_counter(max.into(), HOUR.as_millis() as u64),
                |counter| counter.try_consume_one().is_ok(),
            )),
        })
    }
}

/// One limiter for each key, in a map whose shards have a lock each.
struct PerKey<L, N, A> {
    limiters: DashMap<String, L>,
    new: N,
    allows: A,
}

impl<L, N: Fn() -> L, A: Fn(&mut L) -> bool> PerKey<L, N, A> {
    fn new(new: N, allows: A) -> Self {
        Self { limiters: DashMap::new(), new, allows }
    }
}

impl<L, N, A> Limiter for PerKey<L, N, A>
where
    L: Send + Sync,
    N: Fn() -> L + Sync,
    A: Fn(&mut L) -> bool + Sync,
{
    fn allows(&self, keys: &Keys, key: u32) -> bool {
        let name = &keys.names[key as usize];
        if let Some(mut limiter) = self.limiters.get_mut(name) {
            return (self.allows)(&mut limiter);
        }
        let mut limiter = self.limiters.entry(name.clone()).or_insert_with(&self.new);
        (self.allows)(&mut limiter)
    }
}

/// A semaphore of tokio for each key. Several requests hold their permits at the same time, as with
/// our limiter.
struct Semaphores {
    all: DashMap<String, Arc<Semaphore>>,
    max: u32,
    releases: bool,
}

impl Semaphores {
    fn semaphore(&self, name: &String) -> Arc<Semaphore> {
        if let Some(semaphore) = self.all.get(name) {
            return Arc::clone(&semaphore);
        }
        let new = || Arc::new(Semaphore::new(self.max as usize));
        Arc::clone(&self.all.entry(name.clone()).or_insert_with(new))
    }
}

impl Limiter for Semaphores {
    fn allows(&self, keys: &Keys, key: u32) -> bool {
        self.count_allowed(keys, &[key]) == 1
    }

    fn count_allowed(&self, keys: &Keys, visits: &[u32]) -> usize {
        let acquire = |key| self.semaphore(&keys.names[key as usize]).try_acquire_owned().ok();
        count_permits(visits, acquire, |permit| {
            if !self.releases {
                permit.forget();
            }
        })
    }
}

/// For each key, a semaphore with expiring permits, written by hand in as few steps as possible.
///
/// To acquire a permit, it locks the entry of the key and reads the clock. To release the permit,
/// it locks the entry again. Nothing renews a permit, and the map grows without a bound.
struct Leases {
    all: DashMap<String, VecDeque<quanta::Instant>>,
    max: u32,
    releases: bool,
}

impl Leases {
    const LEASE: Duration = Duration::from_secs(3_600);

    fn acquire(&self, name: &String) -> Option<quanta::Instant> {
        let acquire = |times: &mut VecDeque<quanta::Instant>| {
            let now = quanta::Instant::now();
            while times.front().is_some_and(|first| now.duration_since(*first) >= Self::LEASE) {
                times.pop_front();
            }
            (times.len() < self.max as usize).then(|| {
                times.push_back(now);
                now
            })
        };
        match self.all.get_mut(name) {
            Some(mut times) => acquire(&mut times),
            None => acquire(&mut self.all.entry(name.clone()).or_default()),
        }
    }

    fn release(&self, name: &String, acquired: quanta::Instant) {
        if let Some(mut times) = self.all.get_mut(name)
            && let Ok(place) = times.binary_search(&acquired)
        {
            times.remove(place);
        }
    }
}

impl Limiter for Leases {
    fn allows(&self, keys: &Keys, key: u32) -> bool {
        self.count_allowed(keys, &[key]) == 1
    }

    fn count_allowed(&self, keys: &Keys, visits: &[u32]) -> usize {
        let acquire = |key| {
            let name = &keys.names[key as usize];
            self.acquire(name).map(|acquired| (name, acquired))
        };
        count_permits(visits, acquire, |(name, acquired)| {
            if self.releases {
                self.release(name, acquired);
            }
        })
    }
}

/// Acquires a permit for each visit, and ends the permits of [`SERVED_AT_ONCE`] visits together.
/// Returns the number of acquired permits.
fn count_permits<P>(visits: &[u32], acquire: impl Fn(u32) -> Option<P>, end: impl Fn(P)) -> usize {
    let mut count = 0;
    for visits in visits.chunks(SERVED_AT_ONCE) {
        let mut permits = Vec::with_capacity(visits.len());
        permits.extend(visits.iter().filter_map(|key| acquire(*key)));
        count += permits.len();
        permits.into_iter().for_each(&end);
    }
    count
}

/// governor with ahash, the fastest hasher that it supports.
pub(super) struct FastGovernor(
    RateLimiter<
        String,
        governor::state::keyed::DashMapStateStore<String, ahash::RandomState>,
        DefaultClock,
    >,
);

impl FastGovernor {
    pub(super) fn new(max: u32) -> Self {
        let store = governor::state::keyed::DashMapStateStore::with_hasher(Default::default());
        Self(RateLimiter::new(quota(max, Period::MONTH), store, DefaultClock::default()))
    }
}

impl Limiter for FastGovernor {
    fn allows(&self, keys: &Keys, key: u32) -> bool {
        self.0.check_key(&keys.names[key as usize]).is_ok()
    }
}

/// governor without keys: one limiter for all requests.
pub(super) struct DirectGovernor(
    RateLimiter<NotKeyed, InMemoryState, DefaultClock, NoOpMiddleware>,
);

impl DirectGovernor {
    pub(super) fn new(max: u32) -> Self {
        Self(RateLimiter::direct(quota(max, Period::MONTH)))
    }
}

impl Limiter for DirectGovernor {
    fn allows(&self, _: &Keys, _: u32) -> bool {
        self.0.check().is_ok()
    }
}

/// A mutex around one number. No exact decision on several numbers can be faster.
pub(super) struct BareLock(Mutex<u32>, u32);

impl BareLock {
    pub(super) const fn new(max: u32) -> Self {
        Self(Mutex::new(0), max)
    }
}

impl Limiter for BareLock {
    fn allows(&self, _: &Keys, _: u32) -> bool {
        let mut used = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let passes = *used < self.1;
        *used += u32::from(passes);
        passes
    }
}

/// limitador with a limit for each of six periods.
pub(super) struct Limitador {
    limiter: limitador::RateLimiter,
    namespace: Namespace,
    /// The descriptor values of each key, which are built before the measurement.
    values: Vec<Values<'static>>,
}

impl Limitador {
    /// Creates a limiter for the first `count` keys.
    pub(super) fn six(max: u32, keys: &Keys, count: usize) -> Self {
        // The capacity is so large that no counter is evicted.
        let limiter = limitador::RateLimiter::new(12 * count as u64);
        let namespace = Namespace::from("bench");
        for period in Period::NAMED {
            let user = Expression::parse("user").expect("a name is an expression");
            let seconds = Duration::from(period).as_secs();
            limiter.add_limit(Limit::new("bench", max.into(), seconds, [], [user]));
        }
        let values = keys.names[..count]
            .iter()
            .map(|name| Values::from(HashMap::from([("user".to_owned(), name.clone())])));
        Self { limiter, namespace, values: values.collect() }
    }
}

impl Limiter for Limitador {
    fn allows(&self, _: &Keys, key: u32) -> bool {
        let values = &self.values[key as usize];
        let checked = self.limiter.check_rate_limited_and_update(&self.namespace, values, 1);
        !checked.expect("its store is in memory").limited
    }
}

/// The in-memory store of actix-extensible-rate-limit, for one period.
pub(super) struct Extensible {
    backend: InMemoryBackend,
    max: u64,
}

impl Extensible {
    pub(super) fn new(max: u32) -> Self {
        let backend = InMemoryBackend::builder().with_gc_interval(None).build();
        Self { backend, max: max.into() }
    }
}

impl Limiter for Extensible {
    fn allows(&self, keys: &Keys, key: u32) -> bool {
        let interval = Period::MONTH.into();
        let key = keys.names[key as usize].clone();
        let input = SimpleInput { interval, max_requests: self.max, key };
        let answer = pin!(self.backend.request(input));
        match answer.poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(Ok((decision, ..))) => decision.is_allowed(),
            _ => unreachable!("it decides at once"),
        }
    }
}

/// throttlecrab for one period, with the lock that is necessary to share it.
pub(super) struct ThrottleCrab {
    limiter: Mutex<throttlecrab::RateLimiter<AdaptiveStore>>,
    max: i64,
}

impl ThrottleCrab {
    pub(super) fn new(max: u32, capacity: usize) -> Self {
        let store = AdaptiveStore::builder().capacity(2 * capacity).build();
        Self { limiter: Mutex::new(throttlecrab::RateLimiter::new(store)), max: max.into() }
    }
}

impl Limiter for ThrottleCrab {
    #[expect(clippy::disallowed_methods, reason = "it is given the time")]
    fn allows(&self, keys: &Keys, key: u32) -> bool {
        let mut limiter = self.limiter.lock().unwrap_or_else(PoisonError::into_inner);
        let name = &keys.names[key as usize];
        let (max, month) = (self.max, Duration::from(Period::MONTH).as_secs() as i64);
        let checked = limiter.rate_limit(name, max, max, month, 1, SystemTime::now());
        checked.expect("limits and cost are above 0").0
    }
}

/// The local limiter of trypema, for one period.
pub(super) struct Trypema {
    provider: std::sync::Arc<LocalRateLimiterProvider>,
    rate: RateLimit,
}

impl Trypema {
    pub(super) fn new(max: u32) -> Result<Self, Box<dyn Error>> {
        let provider = LocalRateLimiterProvider::builder()
            .window_size(WindowSize::hours(1)?)
            .bucket_size(BucketSize::milliseconds(10)?)
            .disable_cleanup()
            .build()?;
        Ok(Self { provider, rate: RateLimit::per_hour(max.into())? })
    }
}

impl Limiter for Trypema {
    fn allows(&self, keys: &Keys, key: u32) -> bool {
        let name = &keys.names[key as usize];
        matches!(self.provider.absolute().inc(name, &self.rate, 1), RateLimitDecision::Allowed)
    }
}
