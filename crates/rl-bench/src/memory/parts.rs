//! Requests of several parts in this process: a key, its address, and the fleet of all keys.

use std::error::Error;
use std::hint::black_box;
use std::net::Ipv4Addr;

use rl_core::store::Namespace;
use rl_core::{Cost, Limit, MaybeReady, MemoryStore, Part, Period, Policy, RateLimiter, Subject};

use super::block::{FEW, WARM_BLOCK, WARM_ROUNDS, block, endless};
use super::limiters::{ENDLESS, Keys, Limiter};
use crate::goals::{Goal, Unit};
use crate::measure::compare;

/// Our limiter, and requests of one or three parts.
struct Parts {
    limiter: RateLimiter,
    key: (Namespace, Policy),
    address: (Namespace, Policy),
    fleet: (Namespace, Policy),
    addresses: Vec<Subject>,
    all: Subject,
    /// Whether a request has only one part, the key.
    is_key_only: bool,
}

impl Parts {
    fn new(is_key_only: bool) -> Result<Self, Box<dyn Error>> {
        let limit = |period| Limit::new(ENDLESS.into(), period);
        let six: Result<Vec<_>, _> = Period::NAMED.into_iter().map(limit).collect();
        let one = || Policy::new([Limit::per_minute(ENDLESS)]);
        let store = MemoryStore::builder().capacity(200 * FEW).build();
        let limiter = RateLimiter::builder().store(store).policy(one()?).build()?;
        let rule = |name| limiter.namespace().rule(name);
        let address = |n: u32| Subject::ip(Ipv4Addr::from(0x0a00_0000 + n));
        Ok(Self {
            key: (rule("keys")?, Policy::new(six?)?),
            address: (rule("addresses")?, one()?),
            fleet: (rule("fleet")?, one()?),
            addresses: (0..).take(FEW).map(address).collect(),
            all: Subject::global(),
            is_key_only,
            limiter,
        })
    }
}

impl Limiter for Parts {
    fn allows(&self, keys: &Keys, key: u32) -> bool {
        let part = |subject, (namespace, policy)| {
            Part::new(subject, policy, Cost::ONE).with_namespace(namespace)
        };
        let of_key = part(&keys.subjects[key as usize], (&self.key.0, &self.key.1));
        let decided = if self.is_key_only {
            self.limiter.request(&[of_key]).check()
        } else {
            let of_address =
                part(&self.addresses[key as usize], (&self.address.0, &self.address.1));
            let of_fleet = part(&self.all, (&self.fleet.0, &self.fleet.1));
            self.limiter.request(&[of_key, of_address, of_fleet]).check()
        };
        match &decided {
            MaybeReady::Ready(Some(decision)) => black_box(decision).is_allowed(),
            _ => unreachable!("decisions in memory are there at once"),
        }
    }
}

/// Compares requests of three parts, one of them with six limits, with requests of one part with
/// six limits. Then compares requests of one part with requests of a plain subject.
pub(super) fn measure(keys: &Keys, goals: &mut Vec<Goal>) -> Result<(), Box<dyn Error>> {
    let (three, one, plain) = (Parts::new(false)?, Parts::new(true)?, endless(100 * FEW)?);
    let visits: Vec<u32> = (0..).take(FEW).cycle().take(WARM_BLOCK).collect();
    let time = |limiter: &dyn Limiter| block(limiter, keys, &visits, true);
    let compared = compare(WARM_ROUNDS, |_| time(&one), |_| time(&three));
    let what = "three parts beside one part of six limits";
    goals.push(Goal::measured("M13", what, (2.2, 1.6, Unit::AtMost("x")), compared));
    let compared = compare(WARM_ROUNDS, |_| time(&plain), |_| time(&one));
    let what = "a list of one part beside a subject, six limits";
    goals.push(Goal::measured("M13", what, (1.05, 1.0, Unit::AtMost("x")), compared));
    Ok(())
}
