//! Who is compared, and whom they are asked for.

use std::error::Error;
use std::hint::black_box;
use std::num::NonZeroU32;
use std::time::Duration;

use fastrand::Rng;
use governor::{DefaultKeyedRateLimiter, Quota};
use rl_core::store::MemoryStore;
use rl_core::{Limit, MaybeReady, Period, Policy, RateLimiter, Subject};
use tokio::runtime::{Builder, Runtime};
use tokio::task::yield_now;

use crate::visits::USED_UP;

/// More than is ever asked for.
pub(super) const ENDLESS: u32 = 1_000_000_000;

/// Requests that hold permits at the same time, all of different subjects.
const SERVED_AT_ONCE: usize = 64;

/// Everybody who is asked for, under a number.
pub(super) struct Keys {
    subjects: Vec<Subject>,
    pub(super) names: Vec<String>,
    /// All numbers, in random order.
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

/// What decides whether a key passes.
pub(super) trait Contender: Sync {
    fn admits(&self, keys: &Keys, key: u32) -> bool;

    /// How many of `visits` pass. Called once for a block, so that the calls in it are direct.
    fn admitted(&self, keys: &Keys, visits: &[u32]) -> usize {
        visits.iter().filter(|key| self.admits(keys, **key)).count()
    }
}

/// One limiter for all limits.
pub(super) struct Ours(RateLimiter);

impl Ours {
    /// `max` says for each of six periods how much passes.
    pub(super) fn new(max: [u32; 6], subjects: usize) -> Result<Self, Box<dyn Error>> {
        let mut policy = Policy::builder();
        for (max, period) in max.into_iter().zip(Period::NAMED) {
            policy = policy.limit(Limit::new(max.into(), period)?);
        }
        Self::under(&policy.build()?, subjects)
    }

    /// At most `max` in each of six periods.
    pub(super) fn six(max: u32, subjects: usize) -> Result<Self, Box<dyn Error>> {
        Self::new([max; 6], subjects)
    }

    /// At most `max` in a month.
    pub(super) fn one(max: u32, subjects: usize) -> Result<Self, Box<dyn Error>> {
        Self::under(&Policy::new([Limit::new(max.into(), Period::MONTH)?])?, subjects)
    }

    /// Under limits of any kind; there is room for twice as many as `subjects`, because by chance
    /// some of the store's parts hold more than others.
    pub(super) fn under(policy: &Policy, subjects: usize) -> Result<Self, Box<dyn Error>> {
        Self::with_room(policy, 2 * subjects)
    }

    /// With room for so many subjects in all.
    pub(super) fn with_room(policy: &Policy, capacity: usize) -> Result<Self, Box<dyn Error>> {
        let store = MemoryStore::builder().capacity(capacity).build();
        let limiter = RateLimiter::builder().store(store).policy(policy.clone());
        Ok(Self(limiter.build()?))
    }
}

impl Ours {
    /// Whether somebody passes who is not among the keys.
    pub(super) fn admits_subject(&self, subject: &Subject) -> bool {
        match &self.0.check(subject, 1) {
            MaybeReady::Ready(Some(decision)) => decision.is_allowed(),
            _ => unreachable!("decisions in memory are there at once"),
        }
    }
}

impl Contender for Ours {
    fn admits(&self, keys: &Keys, key: u32) -> bool {
        match &self.0.check(&keys.subjects[key as usize], 1) {
            MaybeReady::Ready(Some(decision)) => black_box(decision).is_allowed(),
            _ => unreachable!("decisions in memory are there at once"),
        }
    }
}

/// What every subject has that is to be denied. Not one unit: throttlecrab lets all pass where the
/// burst is one.
pub(super) const SCARCE: u32 = 2;

/// Two limiters of a kind: one that is never used up, and one of which every subject has little.
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

impl<C: Contender> Contender for Mixed<C> {
    fn admits(&self, keys: &Keys, visit: u32) -> bool {
        match visit & USED_UP {
            0 => self.open.admits(keys, visit),
            _ => self.used_up.admits(keys, visit & !USED_UP),
        }
    }
}

/// Ours as a service asks it under a concurrency limit: each request holds a permit until it has
/// ended.
pub(super) struct Served {
    limiter: RateLimiter,
    runtime: Runtime,
}

impl Served {
    pub(super) fn by(ours: Ours) -> Result<Self, Box<dyn Error>> {
        // All tasks have had their turn when the measurement goes on.
        let mut runtime = Builder::new_current_thread();
        let runtime = runtime.enable_time().event_interval(2 * SERVED_AT_ONCE as u32).build()?;
        Ok(Self { limiter: ours.0, runtime })
    }

    async fn serve(&self, keys: &Keys, visits: &[u32]) -> usize {
        let mut permits = Vec::with_capacity(visits.len());
        for key in visits {
            permits.push(self.limiter.acquire(&keys.subjects[*key as usize], 1).await);
        }
        // Here those who are to renew the leases begin to wait, and below they end.
        yield_now().await;
        let passed = permits.iter().filter(|permit| permit.decision().is_allowed()).count();
        drop(permits);
        yield_now().await;
        passed
    }
}

impl Contender for Served {
    fn admits(&self, keys: &Keys, key: u32) -> bool {
        self.admitted(keys, &[key]) == 1
    }

    fn admitted(&self, keys: &Keys, visits: &[u32]) -> usize {
        self.runtime.block_on(async {
            let mut admitted = 0;
            for visits in visits.chunks(SERVED_AT_ONCE) {
                admitted += self.serve(keys, visits).await;
            }
            admitted
        })
    }
}

/// One or more of governor's limiters, asked one after the other until one denies.
pub(super) struct Governors(Vec<DefaultKeyedRateLimiter<String>>);

impl Governors {
    pub(super) fn one(max: u32) -> Self {
        Self(vec![DefaultKeyedRateLimiter::keyed(quota(max, Period::MONTH))])
    }

    /// The shortest period is asked first.
    pub(super) fn six(max: [u32; 6]) -> Self {
        let limits = max.into_iter().zip(Period::NAMED);
        let limiter = |(max, period)| DefaultKeyedRateLimiter::keyed(quota(max, period));
        Self(limits.map(limiter).collect())
    }
}

/// At most `max` at once, and as many in each period.
pub(super) fn quota(max: u32, period: Period) -> Quota {
    let max = NonZeroU32::new(max).expect("limits here are above 0");
    // Of the shortest period, one for each nanosecond is the most that it takes.
    let pause = (Duration::from(period) / max.get()).max(Duration::from_nanos(1));
    Quota::with_period(pause).expect("a pause above 0").allow_burst(max)
}

impl Contender for Governors {
    fn admits(&self, keys: &Keys, key: u32) -> bool {
        let name = &keys.names[key as usize];
        self.0.iter().all(|limiter| limiter.check_key(name).is_ok())
    }
}
