//! The limiters that are compared, and the keys on which they decide.

use std::error::Error;
use std::hint::black_box;
use std::num::NonZeroU32;
use std::time::Duration;

use fastrand::Rng;
use governor::{DefaultKeyedRateLimiter, Quota};
use rl_core::{Limit, MaybeReady, MemoryStore, Period, Policy, RateLimiter, Subject};
use tokio::runtime::{Builder, Runtime};
use tokio::task::yield_now;

use crate::workload::USED_UP;

/// A limit that no measurement uses up.
pub(super) const ENDLESS: u32 = 1_000_000_000;

/// The number of requests that hold a permit at the same time. Each is from a different subject.
pub(super) const SERVED_AT_ONCE: usize = 64;

/// The keys of a measurement. A key is an index: some limiters use the name at this index, and
/// others the subject.
pub(super) struct Keys {
    pub(super) subjects: Vec<Subject>,
    pub(super) names: Vec<String>,
    /// All keys, in random order.
    pub(super) order: Vec<u32>,
}

impl Keys {
    pub(super) fn new(count: usize) -> Self {
        let name = |n: u32| format!("consumer-{n:08}");
        let mut order: Vec<u32> = (0..).take(count).collect();
        let names: Vec<String> = order.iter().map(|n| name(*n)).collect();
        let subjects = names.iter().map(|name| Subject::consumer(name)).collect();
        Rng::with_seed(1).shuffle(&mut order);
        Self { subjects, names, order }
    }
}

/// A limiter that can be measured.
pub(super) trait Limiter: Sync {
    fn allows(&self, keys: &Keys, key: u32) -> bool;

    /// Makes the visits. Returns how many are allowed. One dynamic call makes a whole block of
    /// visits, so the calls inside it are direct.
    fn count_allowed(&self, keys: &Keys, visits: &[u32]) -> usize {
        visits.iter().filter(|key| self.allows(keys, **key)).count()
    }
}

/// Our limiter.
pub(super) struct Ours(RateLimiter);

impl Ours {
    /// Creates a limiter with the given maximum for each of six periods.
    pub(super) fn new(max: [u32; 6], subjects: usize) -> Result<Self, Box<dyn Error>> {
        let mut policy = Policy::builder();
        for (max, period) in max.into_iter().zip(Period::NAMED) {
            policy = policy.limit(Limit::new(max.into(), period)?);
        }
        Self::under(&policy.build()?, subjects)
    }

    /// Creates a limiter of `max` units in each of six periods.
    pub(super) fn six(max: u32, subjects: usize) -> Result<Self, Box<dyn Error>> {
        Self::new([max; 6], subjects)
    }

    /// Creates a limiter of `max` units in a month.
    pub(super) fn one(max: u32, subjects: usize) -> Result<Self, Box<dyn Error>> {
        Self::under(&Policy::new([Limit::new(max.into(), Period::MONTH)?])?, subjects)
    }

    /// Creates a limiter with this policy. Its capacity is twice `subjects`, because some shards
    /// fill earlier than others.
    pub(super) fn under(policy: &Policy, subjects: usize) -> Result<Self, Box<dyn Error>> {
        Self::with_room(policy, 2 * subjects)
    }

    /// Creates a limiter with the given capacity.
    pub(super) fn with_room(policy: &Policy, capacity: usize) -> Result<Self, Box<dyn Error>> {
        let store = MemoryStore::builder().capacity(capacity).build();
        let limiter = RateLimiter::builder().store(store).policy(policy.clone());
        Ok(Self(limiter.build()?))
    }
}

impl Ours {
    /// Makes a request for a subject that is not among the keys. Returns whether it is allowed.
    pub(super) fn allows_subject(&self, subject: &Subject) -> bool {
        match &self.0.check(subject, 1) {
            MaybeReady::Ready(Some(decision)) => decision.is_allowed(),
            _ => unreachable!("decisions in memory are there at once"),
        }
    }
}

impl Limiter for Ours {
    fn allows(&self, keys: &Keys, key: u32) -> bool {
        match &self.0.check(&keys.subjects[key as usize], 1) {
            MaybeReady::Ready(Some(decision)) => black_box(decision).is_allowed(),
            _ => unreachable!("decisions in memory are there at once"),
        }
    }
}

/// The limit of subjects whose visits must be denied. It is not 1, because throttlecrab allows all
/// requests with a burst of 1.
pub(super) const SCARCE: u32 = 2;

/// Two limiters of the same kind: one with an endless limit, and one with a scarce limit.
pub(super) struct Mixed<C> {
    open: C,
    used_up: C,
}

impl<C> Mixed<C> {
    pub(super) fn of(
        limiter: impl Fn(u32) -> Result<C, Box<dyn Error>>,
    ) -> Result<Self, Box<dyn Error>> {
        Ok(Self { open: limiter(ENDLESS)?, used_up: limiter(SCARCE)? })
    }
}

impl<C: Limiter> Limiter for Mixed<C> {
    fn allows(&self, keys: &Keys, visit: u32) -> bool {
        match visit & USED_UP {
            0 => self.open.allows(keys, visit),
            _ => self.used_up.allows(keys, visit & !USED_UP),
        }
    }
}

/// Our limiter with a concurrency limit, used as in a service: each request holds a permit until it
/// ends.
pub(super) struct OursWithPermits {
    limiter: RateLimiter,
    runtime: Runtime,
}

impl OursWithPermits {
    pub(super) fn by(ours: Ours) -> Result<Self, Box<dyn Error>> {
        // After a yield, `serve` continues when the runtime has polled `event_interval` tasks, or
        // when no task is ready. Fewer tasks renew leases, so all of them are polled before.
        let mut runtime = Builder::new_current_thread();
        let runtime = runtime.enable_time().event_interval(2 * SERVED_AT_ONCE as u32).build()?;
        Ok(Self { limiter: ours.0, runtime })
    }

    async fn serve(&self, keys: &Keys, visits: &[u32]) -> usize {
        let mut permits = Vec::with_capacity(visits.len());
        for key in visits {
            permits.push(self.limiter.acquire(&keys.subjects[*key as usize], 1).await);
        }
        // During the first yield, the tasks that renew leases start. During the second one, they
        // end.
        yield_now().await;
        let passed = permits.iter().filter(|permit| permit.decision().is_allowed()).count();
        drop(permits);
        yield_now().await;
        passed
    }
}

impl Limiter for OursWithPermits {
    fn allows(&self, keys: &Keys, key: u32) -> bool {
        self.count_allowed(keys, &[key]) == 1
    }

    fn count_allowed(&self, keys: &Keys, visits: &[u32]) -> usize {
        self.runtime.block_on(async {
            let mut admitted = 0;
            for visits in visits.chunks(SERVED_AT_ONCE) {
                admitted += self.serve(keys, visits).await;
            }
            admitted
        })
    }
}

/// One or more limiters of governor. They are called one after the other until one of them denies.
pub(super) struct Governors(Vec<DefaultKeyedRateLimiter<String>>);

impl Governors {
    pub(super) fn one(max: u32) -> Self {
        Self(vec![DefaultKeyedRateLimiter::keyed(quota(max, Period::MONTH))])
    }

    /// Creates one limiter for each of six periods. The limiter of the shortest period is called
    /// first.
    pub(super) fn six(max: [u32; 6]) -> Self {
        let limits = max.into_iter().zip(Period::NAMED);
        let limiter = |(max, period)| DefaultKeyedRateLimiter::keyed(quota(max, period));
        Self(limits.map(limiter).collect())
    }
}

/// Returns a quota of `max` units in each period, with a burst of `max` units.
pub(super) fn quota(max: u32, period: Period) -> Quota {
    let max = NonZeroU32::new(max).expect("limits here are above 0");
    // governor accepts no replenishment interval below one nanosecond.
    let pause = (Duration::from(period) / max.get()).max(Duration::from_nanos(1));
    Quota::with_period(pause).expect("a pause above 0").allow_burst(max)
}

impl Limiter for Governors {
    fn allows(&self, keys: &Keys, key: u32) -> bool {
        let name = &keys.names[key as usize];
        self.0.iter().all(|limiter| limiter.check_key(name).is_ok())
    }
}
