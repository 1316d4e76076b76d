//! The limiters that are compared, and the keys on which they decide. Each is called as its
//! documentation shows.

use std::collections::{HashMap, VecDeque};
use std::hint::black_box;
use std::num::NonZeroU32;
use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, SystemTime};

use actix_extensible_rate_limit::backend::memory::InMemoryBackend;
use actix_extensible_rate_limit::backend::{Backend, SimpleInput};
use burster::Limiter as _;
use dashmap::DashMap;
use fastrand::Rng;
use governor::clock::DefaultClock;
use governor::state::keyed::DashMapStateStore;
use governor::{DefaultKeyedRateLimiter, Quota};
use limitador::limit::{
    Context as Values, Expression, Limit as LimitadorLimit, Namespace as LimitadorNamespace,
};
use rl_core::{Cost, Limit, MaybeReady, MemoryStore, Part, Period, Policy, RateLimiter, Subject};
use tokio::runtime::Builder;
use tokio::sync::Semaphore;
use tokio::task::yield_now;
use trypema::local::LocalRateLimiterProvider;
use trypema::{BucketSize, RateLimit, RateLimitDecision, RateLimiterBuilder, WindowSize};

use crate::Result;
use crate::algorithms::{CONCURRENCY, ENDLESS, six};

/// The number of requests that hold a permit at the same time.
const SERVED_AT_ONCE: usize = 64;
const HOUR: Duration = Duration::from_secs(3_600);

/// The keys of a measurement. A key is an index: some limiters use the name at this index, and
/// others the subject.
pub(super) struct Keys {
    subjects: Vec<Subject>,
    names: Vec<String>,
    /// All keys, in random order.
    pub(super) order: Vec<u32>,
}

impl Keys {
    pub(super) fn new(count: usize) -> Self {
        Self::named((0..count as u32).map(|key| Self::name(&key)))
    }

    pub(super) fn named(names: impl Iterator<Item = String>) -> Self {
        let names: Vec<String> = names.collect();
        let subjects = names.iter().map(|name| Subject::consumer(name)).collect();
        let mut order: Vec<u32> = (0..).take(names.len()).collect();
        Rng::with_seed(1).shuffle(&mut order);
        Self { subjects, names, order }
    }

    pub(super) fn name(key: &u32) -> String {
        format!("consumer-{key:08}")
    }
}

/// Returns `count` visits of the keys below `keys`, uniformly distributed.
pub(super) fn uniform(keys: usize, count: usize, seed: u64) -> Vec<u32> {
    let mut rng = Rng::with_seed(seed);
    (0..count).map(|_| rng.u32(..keys as u32)).collect()
}

/// Returns `count` visits of `keys`. The probability of the n-th key is proportional to `1 /
/// n^0.99`.
pub(super) fn zipf(keys: &[u32], count: usize, seed: u64) -> Vec<u32> {
    let mut sum = 0.0;
    let mut add = |rank: usize| {
        sum += (rank as f64).powf(-0.99);
        sum
    };
    let sums: Vec<f64> = (1..=keys.len()).map(&mut add).collect();
    let mut rng = Rng::with_seed(seed);
    let rank = |drawn: f64| sums.partition_point(|sum| *sum <= drawn).min(keys.len() - 1);
    (0..count).map(|_| keys[rank(rng.f64() * sum)]).collect()
}

/// A limiter that can be measured: a function that makes the visits, and returns how many are
/// allowed. One dynamic call makes a whole block of visits, so the calls inside it are direct.
pub(super) type Limiter = Box<dyn Fn(&Keys, &[u32]) -> usize + Send + Sync>;

/// Creates a limiter from a function that makes one visit.
fn each(allows: impl Fn(&Keys, usize) -> bool + Send + Sync + 'static) -> Limiter {
    Box::new(move |keys, visits| visits.iter().filter(|key| allows(keys, **key as usize)).count())
}

/// Creates our limiter for six periods, with `max` units in each.
pub(super) fn ours(max: u32, subjects: usize) -> Limiter {
    // The capacity is twice the number of subjects, because some shards fill earlier than others.
    ours_of(&six(max).expect("six limits are a policy"), 2 * subjects)
}

/// Creates our limiter with this policy and this capacity.
pub(super) fn ours_of(policy: &Policy, capacity: usize) -> Limiter {
    let limiter = limiter(policy, capacity);
    each(move |keys, key| match &limiter.check(&keys.subjects[key], 1) {
        MaybeReady::Ready(Some(decision)) => black_box(decision).is_allowed(),
        _ => unreachable!("decisions in memory are there at once"),
    })
}

fn limiter(policy: &Policy, capacity: usize) -> RateLimiter {
    let store = MemoryStore::builder().capacity(capacity).build();
    let limiter = RateLimiter::builder().store(store).policy(policy.clone());
    limiter.build().expect("a policy and a store are a limiter")
}

/// Creates our limiter with a concurrency limit, used as in a service: each request holds a permit
/// until it ends.
pub(super) fn ours_with_permits(policy: &Policy, capacity: usize) -> Limiter {
    let limiter = limiter(policy, capacity);
    // After a yield, the requests continue when the runtime has polled `event_interval` tasks, or
    // when no task is ready. Fewer tasks renew leases, so all of them are polled before.
    let mut runtime = Builder::new_current_thread();
    runtime.enable_time().event_interval(2 * SERVED_AT_ONCE as u32);
    let runtime = runtime.build().expect("a runtime can be started");
    Box::new(move |keys, visits| {
        runtime.block_on(async {
            let mut allowed = 0;
            for visits in visits.chunks(SERVED_AT_ONCE) {
                let mut permits = Vec::with_capacity(visits.len());
                for key in visits {
                    permits.push(limiter.acquire(&keys.subjects[*key as usize], 1).await);
                }
                // During the first yield, the tasks that renew leases start. During the second one,
                // they end.
                yield_now().await;
                allowed += permits.iter().filter(|permit| permit.decision().is_allowed()).count();
                drop(permits);
                yield_now().await;
            }
            allowed
        })
    })
}

/// Creates our limiter, whose requests have this number of parts: a key with six limits, its
/// address, and the fleet of all keys.
pub(super) fn parts(count: usize) -> Result<Limiter> {
    let one = Policy::new([Limit::per_minute(ENDLESS)])?;
    let limiter = limiter(&one, 200_000);
    let rule = |name| limiter.namespace().rule(name);
    let rules =
        [(rule("keys")?, six(ENDLESS)?), (rule("addresses")?, one.clone()), (rule("fleet")?, one)];
    let addresses: Vec<Subject> =
        (0..1_000_u32).map(|n| Subject::ip((0x0a00_0000 + n).to_be_bytes())).collect();
    let all = Subject::global();
    Ok(each(move |keys, key| {
        let subjects = [&keys.subjects[key], &addresses[key % 1_000], &all];
        let part = |place: usize| {
            let (rule, policy) = &rules[place];
            Part::new(subjects[place], policy, Cost::ONE).with_namespace(rule)
        };
        match &limiter.request(&[part(0), part(1), part(2)][..count]).check() {
            MaybeReady::Ready(Some(decision)) => black_box(decision).is_allowed(),
            _ => unreachable!("decisions in memory are there at once"),
        }
    }))
}

/// A limiter of another library.
pub(super) struct OtherLimiter {
    pub(super) name: &'static str,
    /// The largest number of subjects with which it is measured.
    pub(super) subjects: usize,
    /// The factor by which its blocks are shorter.
    pub(super) slowness: usize,
    /// Creates it, with this maximum and for this number of subjects.
    pub(super) new: fn(&Keys, max: u32, subjects: usize) -> Limiter,
}

const fn other(name: &'static str, new: fn(&Keys, u32, usize) -> Limiter) -> OtherLimiter {
    OtherLimiter { name, subjects: usize::MAX, slowness: 1, new }
}

/// The places of the limiters with goals.
pub(super) const GOVERNOR: usize = 0;
pub(super) const SIX_GOVERNORS: usize = 2;
pub(super) const EXTENSIBLE: usize = 3;
pub(super) const LIMITADOR: usize = 6;

/// The other limiters of the table by working set.
pub(super) static OTHERS: [OtherLimiter; 8] = [
    other("governor, one", |_, max, _| governor(max)),
    other("governor with ahash, one", |_, max, _| {
        let store = DashMapStateStore::with_hasher(ahash::RandomState::new());
        let limiter: governor::RateLimiter<String, _, DefaultClock> =
            governor::RateLimiter::new(month(max), store, DefaultClock::default());
        each(move |keys, key| limiter.check_key(&keys.names[key]).is_ok())
    }),
    OtherLimiter { slowness: 5, ..other("six governors", |_, max, _| six_governors(max)) },
    other("actix-extensible-rate-limit, one", |_, max, _| actix_extensible(max)),
    other("throttlecrab in a lock, one", |_, max, subjects| throttlecrab(max, subjects)),
    other("trypema, one", |_, max, _| trypema(max)),
    // limitador needs a map of values for each subject, so it is measured with fewer subjects.
    OtherLimiter { subjects: 10_000, slowness: 50, ..other("limitador, six periods", limitador) },
    OtherLimiter { subjects: 1, ..other("governor without keys, one", |_, max, _| direct(max)) },
];

/// Creates a limiter with this maximum.
type NewLimiter = fn(max: u32) -> Limiter;

/// The limiters that implement one algorithm, each with the name of its row.
pub(super) const BY_ALGORITHM: [(&str, &str, NewLimiter); 7] = [
    ("fixed window", "actix-extensible", actix_extensible),
    ("GCRA", "governor", governor),
    // The rate of `max` units per hour, in whole units per second.
    ("token bucket", "burster in a DashMap", |max| {
        let bucket = move || burster::token_bucket((max / 3_600).into(), max.into());
        per_key(bucket, |bucket| bucket.try_consume_one().is_ok())
    }),
    ("sliding window counter", "burster in a DashMap", |max| {
        let counter = move || burster::sliding_window_counter(max.into(), HOUR.as_millis() as u64);
        per_key(counter, |counter| counter.try_consume_one().is_ok())
    }),
    ("sliding window, 60 buckets", "trypema", trypema),
    ("sliding log", "times in a DashMap", |max| {
        per_key(VecDeque::new, move |log| {
            let now = quanta::Instant::now();
            while log.front().is_some_and(|first| now.duration_since(*first) >= HOUR) {
                log.pop_front();
            }
            let passes = log.len() < max as usize;
            if passes {
                log.push_back(now);
            }
            passes
        })
    }),
    (CONCURRENCY, "tokio's in a DashMap", semaphores),
];

fn governor(max: u32) -> Limiter {
    let limiter = DefaultKeyedRateLimiter::<String>::keyed(month(max));
    each(move |keys, key| limiter.check_key(&keys.names[key]).is_ok())
}

fn direct(max: u32) -> Limiter {
    let limiter = governor::RateLimiter::direct(month(max));
    each(move |_, _| limiter.check().is_ok())
}

fn six_governors(max: u32) -> Limiter {
    let limiters = Period::NAMED.map(|period| DefaultKeyedRateLimiter::keyed(quota(max, period)));
    each(move |keys, key| {
        limiters.iter().all(|limiter| limiter.check_key(&keys.names[key]).is_ok())
    })
}

fn month(max: u32) -> Quota {
    quota(max, Period::MONTH)
}

/// Returns a quota of `max` units in each period, with a burst of `max` units.
fn quota(max: u32, period: Period) -> Quota {
    let max = NonZeroU32::new(max).expect("limits here are above 0");
    // governor accepts no replenishment interval below one nanosecond.
    let pause = (Duration::from(period) / max.get()).max(Duration::from_nanos(1));
    Quota::with_period(pause).expect("a pause above 0").allow_burst(max)
}

/// Creates one limiter for each key, in a map whose shards have a lock each.
fn per_key<L: Send + Sync + 'static>(
    new: impl Fn() -> L + Send + Sync + 'static,
    allows: impl Fn(&mut L) -> bool + Send + Sync + 'static,
) -> Limiter {
    let limiters = DashMap::<String, L>::new();
    each(move |keys, key| {
        let name = &keys.names[key];
        match limiters.get_mut(name) {
            Some(mut limiter) => allows(&mut limiter),
            None => allows(&mut limiters.entry(name.clone()).or_insert_with(&new)),
        }
    })
}

/// Creates a semaphore of tokio for each key. Several requests hold their permits at the same time,
/// as with our limiter.
fn semaphores(max: u32) -> Limiter {
    let all = DashMap::<String, Arc<Semaphore>>::new();
    let new = move || Arc::new(Semaphore::new(max as usize));
    Box::new(move |keys, visits| {
        let mut allowed = 0;
        for visits in visits.chunks(SERVED_AT_ONCE) {
            let mut permits = Vec::with_capacity(visits.len());
            for key in visits {
                let name = &keys.names[*key as usize];
                let semaphore = match all.get(name) {
                    Some(semaphore) => Arc::clone(&semaphore),
                    None => Arc::clone(&all.entry(name.clone()).or_insert_with(new)),
                };
                permits.extend(semaphore.try_acquire_owned());
            }
            allowed += permits.len();
        }
        allowed
    })
}

/// Creates the in-memory store of actix-extensible-rate-limit.
fn actix_extensible(max: u32) -> Limiter {
    let backend = InMemoryBackend::builder().with_gc_interval(None).build();
    each(move |keys, key| {
        let (interval, key) = (Period::MONTH.into(), keys.names[key].clone());
        let answer = pin!(backend.request(SimpleInput { interval, max_requests: max.into(), key }));
        match answer.poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(Ok((decision, ..))) => decision.is_allowed(),
            _ => unreachable!("it decides at once"),
        }
    })
}

/// Creates throttlecrab with the lock that is necessary to share it.
fn throttlecrab(max: u32, subjects: usize) -> Limiter {
    let store = throttlecrab::AdaptiveStore::builder().capacity(2 * subjects).build();
    let limiter = Mutex::new(throttlecrab::RateLimiter::new(store));
    let (max, month) = (i64::from(max), Duration::from(Period::MONTH).as_secs() as i64);
    #[expect(clippy::disallowed_methods, reason = "it is given the time")]
    each(move |keys, key| {
        let mut limiter = limiter.lock().unwrap_or_else(PoisonError::into_inner);
        let checked = limiter.rate_limit(&keys.names[key], max, max, month, 1, SystemTime::now());
        checked.expect("limits and cost are above 0").0
    })
}

fn trypema(max: u32) -> Limiter {
    let build = || -> Result<_> {
        let provider: Arc<LocalRateLimiterProvider> = LocalRateLimiterProvider::builder()
            .window_size(WindowSize::hours(1)?)
            .bucket_size(BucketSize::milliseconds(10)?)
            .disable_cleanup()
            .build()?;
        Ok((provider, RateLimit::per_hour(max.into())?))
    };
    let (provider, rate) = build().expect("the sizes are valid");
    each(move |keys, key| {
        let decision = provider.absolute().inc(&keys.names[key], &rate, 1);
        matches!(decision, RateLimitDecision::Allowed)
    })
}

/// Creates limitador with a limit for each of six periods.
fn limitador(keys: &Keys, max: u32, subjects: usize) -> Limiter {
    // The capacity is so large that no counter is evicted.
    let limiter = limitador::RateLimiter::new(12 * subjects as u64);
    let namespace = LimitadorNamespace::from("bench");
    for period in Period::NAMED {
        let user = Expression::parse("user").expect("a name is an expression");
        let seconds = Duration::from(period).as_secs();
        limiter.add_limit(LimitadorLimit::new("bench", max.into(), seconds, [], [user]));
    }
    // The descriptor values of each key are built before the measurement.
    let values = |name: &String| Values::from(HashMap::from([("user".to_owned(), name.clone())]));
    let values: Vec<Values<'static>> = keys.names.iter().take(subjects).map(values).collect();
    each(move |_, key| {
        let checked = limiter.check_rate_limited_and_update(&namespace, &values[key], 1);
        !checked.expect("its store is in memory").limited
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_zipf_workload_has_the_frequencies_of_its_formula() {
        const COUNT: usize = 200_000;
        let keys: Vec<u32> = (0..1_000).rev().collect();
        let visits = zipf(&keys, COUNT, 1);
        let sum: f64 = (1..=1_000).map(|rank| f64::from(rank).powf(-0.99)).sum();
        for rank in [1_u32, 2, 10, 100] {
            let expected = COUNT as f64 * f64::from(rank).powf(-0.99) / sum;
            let came = visits.iter().filter(|key| **key == 1_000 - rank).count() as f64;
            // The frequency is within five standard deviations.
            assert!((came - expected).abs() < 5.0 * expected.sqrt(), "{rank}: {came}, {expected}");
        }
    }
}
