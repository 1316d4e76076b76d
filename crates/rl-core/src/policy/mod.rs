//! The limits of one subject: up to sixteen, each with a name, decided together.
//!
//! # Example
//!
//! ```
//! use rl_core::{Limit, Policy};
//!
//! let policy = Policy::new([Limit::per_second(10), "5000/day:clock".parse()?])?;
//! assert_eq!(policy.limits().len(), 2);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod builder;
mod invalid_policy;
mod limit_set;
mod weight;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

pub use builder::PolicyBuilder;
pub use invalid_policy::InvalidPolicy;
pub use limit_set::LimitSet;
#[cfg(feature = "redis")]
pub(crate) use weight::weight;

use crate::algorithm::Plan;
use crate::algorithm::fixed_window::CompiledWindows;
use crate::model::{Limit, Outcome, StateId};
use crate::time::Timestamp;

/// The limits of one subject: 1 to 16, each with a name.
///
/// A policy is a cheap handle: clones share the limits. All limits are charged together, or none.
/// Their order is the order in which they were added.
///
/// # Examples
///
/// ```
/// use rl_core::{Limit, Policy};
///
/// let policy = Policy::new([Limit::per_second(10), Limit::per_day(5_000)])?;
/// assert_eq!(policy.to_string(), "second=10/second, day=5000/day");
///
/// let named = Policy::builder().named("burst", Limit::per_second(10)).build()?;
/// assert_eq!(named.limits()[0].name(), "burst");
/// # Ok::<(), rl_core::InvalidPolicy>(())
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct Policy {
    inner: Arc<PolicyInner>,
}

struct PolicyInner {
    limits: Box<[NamedLimit]>,
    // All fields below except `block` are derived from the limits and the block.
    plan: Plan,
    // The shortest lease of the concurrency limits, if there are any.
    shortest_lease: Option<Duration>,
    has_shadow: bool,
    shortest: Option<usize>,
    // The smallest cost that is denied whatever the counters hold: one more than the enforced
    // limits grant at once, and 0 under a block.
    denied_from: u64,
    // The smallest cost that the store must not decide alone: `denied_from`, or 0 if a limit is in
    // shadow.
    more_than_store_from: u64,
    block: Option<Block>,
}

impl PartialEq for PolicyInner {
    fn eq(&self, other: &Self) -> bool {
        // The other fields are derived from these.
        self.limits == other.limits && self.block == other.block
    }
}

impl Eq for PolicyInner {}

/// A [`Limit`] of a [`Policy`], with its name.
#[derive(Clone, PartialEq, Eq)]
pub struct NamedLimit {
    name: Arc<str>,
    name_hash: u64,
    limit: Limit,
    state: StateId,
}

impl NamedLimit {
    fn new(name: Arc<str>, limit: Limit) -> Self {
        // FNV-1a. The names are the operator's, so no client can choose names that collide.
        let name_hash = name.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        });
        Self { name, name_hash, limit, state: limit.state_id() }
    }

    /// Returns the name: 1 to 64 characters of `A-Z a-z 0-9 _ . : * / -`. It needs no escaping in
    /// headers, JSON and keys.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the limit.
    #[must_use]
    pub const fn limit(&self) -> Limit {
        self.limit
    }

    /// Returns the limit by reference, so that the name of its unit can be borrowed.
    pub(crate) const fn limit_ref(&self) -> &Limit {
        &self.limit
    }

    /// Returns a hash of the name.
    pub(crate) const fn name_hash(&self) -> u64 {
        self.name_hash
    }

    /// Returns the identity of the limit's state.
    pub(crate) const fn state_id(&self) -> StateId {
        self.state
    }
}

impl fmt::Debug for NamedLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}={}", self.name, self.limit)
    }
}

impl Policy {
    /// The largest number of limits of a policy.
    pub const MAX_LIMITS: usize = limit_set::MAX_LIMITS;

    fn of(limits: Box<[NamedLimit]>) -> Self {
        Self::with_block(limits, None)
    }

    fn with_block(limits: Box<[NamedLimit]>, block: Option<Block>) -> Self {
        let plan = Plan::new(limits.iter().map(|named| named.limit));
        let held = limits.iter().filter(|named| named.limit.holds_permits());
        let leases = held.map(|named| Duration::from_micros(named.limit.period().as_micros()));
        let shortest_lease = leases.min();
        let has_shadow = limits.iter().any(|named| named.limit.is_shadow());
        let enforced = limits.iter().enumerate().filter(|(_, named)| !named.limit.is_shadow());
        let shortest =
            enforced.min_by_key(|(_, named)| named.limit.period()).map(|(place, _)| place);
        let denied_from = if block.is_some() { 0 } else { smallest_denied(&limits) };
        let inner = PolicyInner {
            limits,
            plan,
            shortest_lease,
            has_shadow,
            shortest,
            denied_from,
            more_than_store_from: if has_shadow { 0 } else { denied_from },
            block,
        };
        Self { inner: Arc::new(inner) }
    }

    /// Creates a policy of these limits, named as by [`PolicyBuilder::limit`] (`second`,
    /// `15minutes`).
    ///
    /// # Errors
    ///
    /// Returns the errors of [`PolicyBuilder::build`].
    pub fn new(limits: impl IntoIterator<Item = Limit>) -> Result<Self, InvalidPolicy> {
        limits.into_iter().fold(Self::builder(), PolicyBuilder::limit).build()
    }

    /// Returns the same policy with a block: every request is denied until `until`, even a cost of
    /// 0. Then the limits decide. A block without an end denies every request.
    ///
    /// A blocked request is denied by the policy alone ([`Origin::Policy`](crate::Origin::Policy)),
    /// so a block holds while the store is down. The denial reports limits of 0 under the same
    /// names, and its `Retry-After` is the end of the block. A limiter in shadow does not enforce
    /// blocks.
    ///
    /// The end is a time on the limiter's [clock](crate::RateLimiterBuilder::clock).
    ///
    /// # Examples
    ///
    /// ```
    /// use rl_core::{Limit, Origin, Policy, RateLimiter, RetryAfter, Subject};
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let policy = Policy::new([Limit::per_minute(100)])?.blocked_until(None);
    /// let limiter = RateLimiter::builder().policy(policy).build()?;
    /// let denied = limiter.check(&Subject::consumer("abc123"), 1).await;
    /// assert_eq!((denied.is_allowed(), denied.origin()), (false, Origin::Policy));
    /// assert_eq!(denied.retry_after(), RetryAfter::Never);
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn blocked_until(&self, until: impl Into<Option<Timestamp>>) -> Self {
        let closed = self.limits().iter();
        let closed = closed.map(|named| NamedLimit::new(named.name.clone(), named.limit.closed()));
        let block = Block { until: until.into(), limits: Self::of(closed.collect()) };
        Self::with_block(self.limits().into(), Some(block))
    }

    /// Returns the block that was set with [`blocked_until`](Self::blocked_until), even if it has
    /// ended.
    #[must_use]
    pub fn block(&self) -> Option<&Block> {
        self.inner.block.as_ref()
    }

    /// Returns whether the policy may deny, without a store, a request that needs `needed` units:
    /// its limits never grant them, or there is a block, which may have ended.
    pub(crate) fn may_deny_alone(&self, needed: u64) -> bool {
        needed >= self.inner.denied_from
    }

    /// Returns whether the store alone decides a request that needs `needed` units: the policy
    /// alone denies nothing, and no limit is in shadow.
    pub(crate) fn needs_only_store(&self, needed: u64) -> bool {
        needed < self.inner.more_than_store_from
    }

    /// Returns whether the enforced limits never grant `needed` units.
    pub(crate) fn never_grants(&self, needed: u64) -> bool {
        match self.block() {
            None => self.may_deny_alone(needed),
            Some(_) => needed >= smallest_denied(self.limits()),
        }
    }

    /// Creates a builder, to which limits are added one by one.
    pub fn builder() -> PolicyBuilder {
        PolicyBuilder::default()
    }

    /// Returns the limits, in the order in which they were added.
    #[must_use]
    pub fn limits(&self) -> &[NamedLimit] {
        &self.inner.limits
    }

    /// Returns the limits in packed form, if they are at most six, and all of them are fixed
    /// windows that count units and are enforced.
    pub(crate) fn compiled_windows(&self) -> Option<&CompiledWindows> {
        self.inner.plan.windows()
    }

    /// Returns the limits in compiled form.
    pub(crate) fn plan(&self) -> &Plan {
        &self.inner.plan
    }

    /// Returns whether one of the limits is in shadow.
    pub(crate) fn has_shadow(&self) -> bool {
        self.inner.has_shadow
    }

    /// Returns the position of the first enforced limit with the shortest period.
    pub(crate) fn shortest(&self) -> Option<usize> {
        self.inner.shortest
    }

    /// Returns whether both are handles of the same policy.
    pub(crate) fn is_same_handle(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.inner, &other.inner)
    }

    /// Returns whether the limits of this policy and of `other` count in the same states, one by
    /// one and in the same order.
    pub(crate) fn has_states_of(&self, other: &Self) -> bool {
        let states = other.limits().iter().map(NamedLimit::state_id);
        self.limits().iter().map(NamedLimit::state_id).eq(states)
    }

    #[cfg(test)]
    pub(crate) fn handles(&self) -> usize {
        Arc::strong_count(&self.inner)
    }

    /// Returns whether one of the limits is a concurrency limit.
    pub(crate) fn has_permits(&self) -> bool {
        self.inner.shortest_lease.is_some()
    }

    /// Returns the shortest lease of the concurrency limits, if there are any.
    pub(crate) fn shortest_lease(&self) -> Option<Duration> {
        self.inner.shortest_lease
    }

    /// Returns the policy with only the limits that satisfy `is_kept`, which gets the position and
    /// the limit; `None` if no limit does.
    pub(crate) fn only(&self, is_kept: impl Fn(usize, Limit) -> bool) -> Option<Self> {
        let kept = || {
            let limits = self.inner.limits.iter().enumerate();
            limits.filter(|(place, limit)| is_kept(*place, limit.limit)).map(|(_, limit)| limit)
        };
        match kept().count() {
            0 => None,
            all if all == self.inner.limits.len() => Some(self.clone()),
            _ => Some(Self::of(kept().cloned().collect())),
        }
    }

    /// Returns the share of one of `instances`: each limit divided by their number, but large
    /// enough to grant `needed` units. The limits count in the same states as before.
    pub(crate) fn share(&self, instances: u64, needed: u64) -> Self {
        let share = |limit: &NamedLimit| {
            let least = limit.limit.units(needed).max(1);
            NamedLimit::new(Arc::clone(&limit.name), limit.limit.share(instances, least))
        };
        Self::of(self.inner.limits.iter().map(share).collect())
    }

    /// Returns the position of the limit called `name`.
    #[must_use]
    pub fn position(&self, name: &str) -> Option<usize> {
        self.inner.limits.iter().position(|limit| limit.name() == name)
    }
}

/// A block of a [`Policy`]: until the block ends, every request is denied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Block {
    until: Option<Timestamp>,
    // The limits of the policy, each with its max replaced by 0. A denial reports them.
    limits: Policy,
}

impl Block {
    /// Returns the first instant at which the block no longer holds; `None` if it never ends.
    #[must_use]
    pub const fn until(&self) -> Option<Timestamp> {
        self.until
    }

    /// Returns whether the block holds at `now`.
    #[must_use]
    pub fn holds_at(&self, now: Timestamp) -> bool {
        self.until.is_none_or(|until| now < until)
    }

    /// Returns the outcome that the denial of a blocked request at `now` reports for each limit.
    pub(crate) const fn outcome(&self, now: Timestamp) -> Outcome {
        match self.until {
            Some(until) => {
                let wait = until.micros_since(now);
                Outcome::denied(0, wait, wait)
            }
            None => Outcome::never(0, 0),
        }
    }

    /// Returns the limits that deny a blocked request.
    pub(crate) const fn limits(&self) -> &Policy {
        &self.limits
    }
}

/// Returns the smallest cost that the enforced limits never grant, or `u64::MAX` if there is none.
fn smallest_denied(limits: &[NamedLimit]) -> u64 {
    let enforced = limits.iter().map(|named| named.limit).filter(|limit| !limit.is_shadow());
    let denied = enforced.map(|limit| match limit.capacity() {
        // A request is one unit under this limit, whatever its cost, so no cost is too high.
        1.. if limit.counts_requests() => u64::MAX,
        capacity => capacity + 1,
    });
    denied.min().unwrap_or(u64::MAX)
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, NamedLimit { name, limit, .. }) in self.limits().iter().enumerate() {
            let separator = if i == 0 { "" } else { ", " };
            write!(f, "{separator}{name}={limit}")?;
        }
        Ok(())
    }
}

impl fmt::Debug for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Policy({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Period;

    #[test]
    fn policies_are_checked() {
        let second = Limit::per_second(1);
        assert_eq!(Policy::new([]).unwrap_err(), InvalidPolicy::Empty);
        assert_eq!(
            Policy::new([second, Limit::per_second(5)]).unwrap_err(),
            InvalidPolicy::SharedState { limits: Box::new([second, Limit::per_second(5)]) }
        );
        let twice = Policy::builder().named("second", Limit::per_day(1)).limit(second).build();
        assert_eq!(twice.unwrap_err(), InvalidPolicy::NameTwice { name: "second".into() });
        let day = Limit::per_day(1);
        let both = Policy::builder().named("burst", second).named("Burst", day).build();
        assert_eq!(both.unwrap_err(), InvalidPolicy::NameTwice { name: "Burst".into() });
        let gcra: Limit = "1/minute:gcra".parse().unwrap();
        let beside = Policy::builder().named("Minute", day).limit(gcra).build().unwrap();
        assert_eq!(beside.to_string(), "Minute=1/day, minute:gcra=1/minute:gcra");
        let many = (1..=17).map(|n| Limit::new(1, Period::from_millis(n).unwrap()).unwrap());
        assert_eq!(Policy::new(many).unwrap_err(), InvalidPolicy::TooMany { count: 17 });
        let long = "n".repeat(65);
        let concurrency = Limit::concurrency(20).unwrap();
        let policy = Policy::new([second, concurrency]).unwrap();
        assert_eq!(policy.to_string(), "second=1/second, concurrency=20:concurrency");
        for name in ["", "a b", "a\r\nSet-Cookie: x", "\"", "naïve", long.as_str()] {
            let policy = Policy::builder().named(name, second).build();
            assert_eq!(policy.unwrap_err(), InvalidPolicy::Name { name: name.into() });
        }
    }

    fn names(limits: &[&str]) -> String {
        let policy = Policy::new(limits.iter().map(|limit| limit.parse().unwrap())).unwrap();
        let names: Vec<_> = policy.limits().iter().map(NamedLimit::name).collect();
        names.join(" ")
    }

    #[test]
    fn unnamed_limits_on_one_period_get_distinct_names() {
        assert_eq!(names(&["10/second:gcra", "5/day:clock"]), "second day");
        assert_eq!(names(&["10/second", "10/second:gcra"]), "second second:gcra");
        assert_eq!(names(&["10/second:gcra", "10/second"]), "second:gcra second");
        assert_eq!(names(&["10/second:gcra", "9/second:clock"]), "second second:clock");
        assert_eq!(names(&["20/minute:requests", "9/minute"]), "minute:requests minute");
        assert_eq!(
            names(&["2:concurrency", "5:concurrency:lease=minute", "9:concurrency:requests"]),
            "concurrency concurrency:minute concurrency:10seconds:requests"
        );
        let all = [
            "9/hour",
            "9/hour:clock",
            "9/hour:sliding-log",
            "9/hour:sliding-window:precision=minute",
            "9/hour:sliding-window:precision=30seconds:requests",
            "9/hour:sliding-window-counter",
            "9/hour:token-bucket",
            "9/hour:token-bucket:refill=interval",
            "9/hour:gcra",
        ];
        assert_eq!(
            names(&all),
            "hour hour:clock hour:sliding-log hour:sliding-window:minute \
             hour:sliding-window:30seconds:requests hour:sliding-window-counter hour:token-bucket \
             hour:token-bucket:interval hour:gcra"
        );
        let given = Policy::builder().named("second", Limit::per_day(1));
        let gcra = given.limit("10/second:gcra".parse().unwrap()).build().unwrap();
        assert_eq!(gcra.limits()[1].name(), "second:gcra");
    }

    #[test]
    fn requests_and_units_count_apart_under_every_algorithm() {
        for limit in [
            "9/hour",
            "9/hour:clock",
            "9/hour:sliding-log",
            "9/hour:sliding-window:precision=minute",
            "9/hour:sliding-window-counter",
            "9/hour:token-bucket",
            "9/hour:gcra",
            "9:concurrency",
        ] {
            let units: Limit = limit.parse().unwrap();
            let requests: Limit = format!("{limit}:requests").parse().unwrap();
            assert!(!units.shares_state_with(requests), "{limit}");
            assert!(requests.shares_state_with(units.count_requests().shadow()), "{limit}");
            assert!(Policy::new([units, requests]).is_ok(), "{limit}");
        }
    }

    #[test]
    fn limits_that_share_a_counter_are_refused_with_suggestions() {
        let limits = ["60/hour:gcra", "60/hour:gcra:burst=5"].map(|text| text.parse().unwrap());
        assert_eq!(
            Policy::new(limits).unwrap_err().to_string(),
            "limits 60/hour:gcra and 60/hour:gcra:burst=5 would share one counter: keep the stricter \
             one, give one of them another period or algorithm, or let only one count requests \
             (\":requests\")"
        );
    }
}
