//! The answer of a limiter: allowed or denied, and the status of each limit.

mod held_policy;
mod made;
mod origin;
mod outcome;
mod outcomes;

use std::cmp::{Ordering, Reverse};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use held_policy::HeldPolicy;
pub use origin::Origin;
pub use outcome::{LimitStatus, Outcome, RetryAfter};
pub(crate) use outcomes::{Outcomes, Windows};

use crate::model::{Cost, FailureKind};
use crate::policy::{LimitSet, Policy};
use crate::time::Timestamp;

/// Which limit the single-valued headers and the message of a denial describe: the *governing* one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum GoverningLimit {
    /// The limit of the shortest period that is active; of a denial, the shortest that denies.
    #[default]
    ShortestActive,
    /// The limit with the fewest units left; of a denial, among those that deny. Equals are settled
    /// by the longest wait.
    FewestRemaining,
}

/// Allowed or denied, and where each limit stands.
///
/// # Examples
///
/// ```
/// use rl_core::{Limit, RateLimiter, RetryAfter, Subject};
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let limiter = RateLimiter::builder().limit(Limit::per_minute(1)).build()?;
/// let alice = Subject::user("alice");
/// assert!(limiter.check(&alice, 1).await.is_allowed());
///
/// let denied = limiter.check(&alice, 1).await;
/// assert!(!denied.is_allowed());
/// let minute = denied.limits().next().unwrap();
/// assert_eq!((minute.name(), minute.max(), minute.remaining()), ("minute", 1, 0));
/// assert!(matches!(denied.retry_after(), RetryAfter::In(wait) if wait.as_secs() >= 59));
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Decision {
    policy: HeldPolicy,
    outcomes: Outcomes,
    cost: Cost,
    granted: u64,
    // What the store took: less, if a limiter in shadow granted more.
    taken: u64,
    verdict: Verdict,
    at: Timestamp,
    origin: Origin,
    // Whether the units taken are a reservation, which expires unless it is settled or renewed.
    is_reserved: bool,
    // Which limiter decided, as an opaque number.
    limiter: usize,
    // A keyed hash of the subject that a gate has counted; 0 if no gate has.
    counted: u64,
    outer: Option<Arc<Decision>>,
}

/// What becomes of the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    Allowed,
    Denied,
    // Denied, but it goes on, to be answered with less.
    Degraded,
}

impl Verdict {
    const fn of(allowed: bool) -> Self {
        if allowed { Self::Allowed } else { Self::Denied }
    }
}

impl Decision {
    /// What a store decided at `at`: of `cost`, `granted` units were given.
    ///
    /// Denied, if any of `outcomes` denies whose limit is not in shadow. `outcomes` come in the order of
    /// the policy's limits.
    #[must_use]
    pub fn decided(
        policy: Policy,
        cost: Cost,
        granted: u64,
        at: Timestamp,
        outcomes: impl IntoIterator<Item = Outcome>,
    ) -> Self {
        Self::of(&policy, cost, granted, at, outcomes.into_iter().collect())
    }

    /// What is decided without a store: denied for [`Origin::FailedClosed`], else allowed.
    #[must_use]
    pub fn undecided(cost: Cost, origin: Origin) -> Self {
        let allowed = !matches!(origin, Origin::FailedClosed(_));
        let granted = if allowed { cost.units() } else { 0 };
        let verdict = Verdict::of(allowed);
        Self { granted, verdict, origin, ..Self::of_none(HeldPolicy::NONE, cost) }
    }

    /// Whether the request may pass.
    #[must_use]
    pub const fn is_allowed(&self) -> bool {
        matches!(self.verdict, Verdict::Allowed)
    }

    /// Whether limits deny the request, those of this limiter or of one around it, and it goes on
    /// nevertheless, to be answered with less: [`OverLimit::Degrade`](crate::gate::OverLimit::Degrade).
    #[must_use]
    pub fn is_degraded(&self) -> bool {
        self.verdict == Verdict::Degraded || self.outer().is_some_and(Self::is_degraded)
    }

    /// Whether the request goes on: it is allowed or [degraded](Self::is_degraded).
    #[must_use]
    pub const fn lets_pass(&self) -> bool {
        !matches!(self.verdict, Verdict::Denied)
    }

    /// The same denial so many microseconds later, when it still holds.
    #[cfg(feature = "redis")]
    #[inline(always)]
    pub(crate) fn denied_again(&self, micros: u64) -> Self {
        Self {
            policy: self.policy.clone(),
            outcomes: self.outcomes.later(micros),
            at: self.at.plus_micros(micros),
            origin: Origin::LocalDeny,
            outer: self.outer.clone(),
            ..*self
        }
    }

    /// The same decision, come about so.
    #[cfg(feature = "redis")]
    pub(crate) fn from(self, origin: Origin) -> Self {
        Self { origin, ..self }
    }

    /// Marks the units of the decision as a [reservation](crate::store::Reservation): for stores.
    #[must_use]
    pub const fn reserved(mut self) -> Self {
        self.is_reserved = self.taken > 0;
        self
    }

    /// Returns whether the units taken come back unless they are settled or renewed.
    pub(crate) const fn is_reserved(&self) -> bool {
        self.is_reserved
    }

    /// Makes it the decision of a limiter in shadow.
    pub(crate) fn put_in_shadow(&mut self) {
        if self.origin.is_of_store() {
            (self.origin, self.verdict) = (Origin::Shadow, Verdict::Allowed);
            self.granted = self.cost.units();
        }
    }

    /// The decision of a fallback, which was asked because the store failed.
    pub(crate) fn in_place_of(mut self, failure: FailureKind) -> Self {
        if self.origin.is_of_store() {
            self.origin = Origin::Fallback(failure);
        }
        self
    }

    /// Lets a request that is over its limits go on, unless they never let it pass.
    pub(crate) fn or_degraded(mut self) -> Self {
        let is_for_a_time = self.retry_after() != RetryAfter::Never;
        if self.verdict == Verdict::Denied && self.origin.enforces() && is_for_a_time {
            self.verdict = Verdict::Degraded;
        }
        self
    }

    /// Units asked for.
    #[must_use]
    pub const fn cost(&self) -> Cost {
        self.cost
    }

    /// Returns the units granted: all of the cost, part of it (after `check_up_to`), or 0 if the request
    /// is denied or was a [`Peek`](crate::store::Mode::Peek), which takes nothing.
    #[must_use]
    pub const fn granted(&self) -> u64 {
        self.granted
    }

    /// How the decision came about.
    #[must_use]
    pub const fn origin(&self) -> Origin {
        self.origin
    }

    /// When it was made, on the store's clock; the epoch if no store decided.
    #[must_use]
    pub const fn at(&self) -> Timestamp {
        self.at
    }

    /// The policy that was decided; none if no store decided.
    #[must_use]
    pub const fn policy(&self) -> Option<&Policy> {
        self.policy.get()
    }

    /// The decision of the limiter around this one, if the request has passed one before.
    #[must_use]
    pub fn outer(&self) -> Option<&Self> {
        self.outer.as_deref()
    }

    pub(crate) const fn set_limiter(&mut self, limiter: usize) {
        self.limiter = limiter;
    }

    /// Forgets the decision of the limiter around this one.
    pub(crate) fn forget_outer(&mut self) {
        self.outer = None;
    }

    /// Marks this decision of a gate with the hash `counted` of its subject, and with the decision `outer` of
    /// the limiter around it.
    pub(crate) fn carried(mut self, counted: u64, outer: Option<Self>) -> Self {
        self.counted = counted;
        self.outer = outer.map(Arc::new);
        self
    }

    /// Returns whether `limiter` made this decision, or one around it, about the subject with the hash
    /// `counted`.
    pub(crate) fn has_counted(&self, limiter: usize, counted: u64) -> bool {
        (self.limiter, self.counted) == (limiter, counted)
            || self.outer().is_some_and(|outer| outer.has_counted(limiter, counted))
    }

    /// Where each limit stands, in the order of the policy.
    pub fn limits(&self) -> impl ExactSizeIterator<Item = LimitStatus<'_>> {
        let limits = self.policy().map_or(&[][..], Policy::limits);
        let plan = self.policy().and_then(Policy::windows);
        let limits = limits[..self.outcomes.count(limits.len())].iter().enumerate();
        limits.map(move |(place, limit)| LimitStatus {
            limit,
            outcome: self.outcomes.outcome(place, plan, self.at),
        })
    }

    fn limit_at(&self, place: usize) -> Option<LimitStatus<'_>> {
        let policy = self.policy()?;
        let is_told = place < self.outcomes.count(policy.limits().len());
        is_told.then(|| LimitStatus {
            limit: &policy.limits()[place],
            outcome: self.outcomes.outcome(place, policy.windows(), self.at),
        })
    }

    /// The limits that can deny: those that are not in shadow.
    pub fn enforced(&self) -> impl Iterator<Item = LimitStatus<'_>> {
        self.limits().filter(|limit| self.origin != Origin::Shadow && !limit.limit().is_shadow())
    }

    /// Whether a limit of it may be in shadow.
    #[inline]
    pub(crate) fn has_shadow(&self) -> bool {
        self.origin == Origin::Shadow || self.policy().is_some_and(Policy::has_shadow)
    }

    /// The limits that would have denied the request if they were not in shadow.
    pub fn over_in_shadow(&self) -> impl Iterator<Item = LimitStatus<'_>> {
        let is_shadow =
            |limit: &LimitStatus<'_>| self.origin == Origin::Shadow || limit.limit().is_shadow();
        self.limits().filter(move |limit| limit.is_over() && is_shadow(limit))
    }

    /// The units that the store took: those that can be given back.
    pub(crate) const fn taken(&self) -> u64 {
        self.taken
    }

    /// Whether it would have been denied by a limiter that is not in shadow.
    pub(crate) fn is_refused_in_shadow(&self) -> bool {
        self.origin == Origin::Shadow && self.limits().any(|limit| limit.is_over())
    }

    /// The limits of which nothing comes back when `units` are given back: those that were not
    /// charged, and unless it is all that was granted, those that count requests.
    pub(crate) fn kept(&self, units: u64) -> LimitSet {
        let mut kept = self.uncharged();
        if units < self.taken {
            let limits = self.limits().enumerate();
            let requests = limits.filter(|(_, limit)| limit.limit().counts_requests());
            requests.for_each(|(place, _)| kept.insert(place));
        }
        kept
    }

    /// The limits that were not charged although the request was granted: those in shadow that would
    /// have denied it.
    #[must_use]
    pub fn uncharged(&self) -> LimitSet {
        let is_uncharged = |limit: &LimitStatus<'_>| limit.limit().is_shadow() && limit.is_over();
        let limits = self.limits().enumerate();
        limits.filter(|(_, limit)| is_uncharged(limit)).map(|(place, _)| place).collect()
    }

    /// The longest wait over the limits that deny: waiting exactly that long, with no other
    /// traffic, succeeds.
    ///
    /// When no store could be asked ([`Origin::FailedClosed`]), one second.
    #[must_use]
    pub fn retry_after(&self) -> RetryAfter {
        if let Origin::FailedClosed(_) = self.origin {
            return RetryAfter::In(Duration::from_secs(1));
        }
        self.enforced().map(|limit| limit.retry_after()).max().unwrap_or(RetryAfter::Now)
    }

    /// The limit that single-valued headers and messages describe; none if no store decided.
    #[must_use]
    pub fn governing(&self, follow: GoverningLimit) -> Option<LimitStatus<'_>> {
        let denied = !self.is_allowed();
        if follow == GoverningLimit::ShortestActive && !denied && self.origin != Origin::Shadow {
            // Nearly always it is active: where the others stand need not be worked out.
            let shortest = self.policy().and_then(Policy::shortest);
            let shortest = shortest.and_then(|place| self.limit_at(place));
            if shortest.is_some_and(|limit| limit.is_active()) {
                return shortest;
            }
        }
        let candidates = self.enforced().filter(|limit| !denied || limit.is_over());
        match follow {
            GoverningLimit::ShortestActive => {
                candidates.min_by_key(|limit| (!limit.is_active(), limit.limit().period()))
            }
            GoverningLimit::FewestRemaining => candidates.min_by_key(|limit| {
                let wait =
                    if denied { limit.retry_after() } else { RetryAfter::In(limit.reset_after()) };
                (limit.remaining(), Reverse(wait))
            }),
        }
    }

    /// Whether this decision leaves a client less than `other` does: nested limiters show the
    /// stricter of the two.
    #[must_use]
    pub fn is_stricter_than(&self, other: &Self) -> bool {
        self.strictness(other) == Ordering::Greater
    }

    fn strictness(&self, other: &Self) -> Ordering {
        let denied = (!self.is_allowed()).cmp(&!other.is_allowed());
        let known = self.policy().is_some().cmp(&other.policy().is_some());
        denied.then(known).then_with(|| {
            let remaining = |decision: &Self| {
                decision
                    .governing(GoverningLimit::FewestRemaining)
                    .map_or(u64::MAX, |limit| limit.remaining())
            };
            remaining(other).cmp(&remaining(self))
        })
    }
}

impl fmt::Debug for Decision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let outcomes: Vec<Outcome> = self.limits().map(|limit| limit.outcome).collect();
        f.debug_struct("Decision")
            .field("policy", &self.policy())
            .field("outcomes", &outcomes)
            .field("cost", &self.cost)
            .field("granted", &self.granted)
            .field("taken", &self.taken)
            .field("verdict", &self.verdict)
            .field("at", &self.at)
            .field("origin", &self.origin)
            .field("limiter", &self.limiter)
            .field("counted", &self.counted)
            .field("outer", &self.outer)
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Limit;

    const SECOND: u64 = 1_000_000;

    fn decide(outcomes: &[(Limit, Outcome)]) -> Decision {
        let policy = Policy::new(outcomes.iter().map(|(limit, _)| *limit)).unwrap();
        let outcomes = outcomes.iter().map(|(_, outcome)| *outcome);
        Decision::decided(policy, Cost::ONE, 1, Timestamp::EPOCH, outcomes)
    }

    /// The table of the governing limit: per second 10, per minute 100, per hour 1 000.
    #[test]
    fn governing_limit() {
        let limits = |outcomes: [Outcome; 3]| {
            let [second, minute, hour] = outcomes;
            decide(&[
                (Limit::per_second(10), second),
                (Limit::per_minute(100), minute),
                (Limit::per_hour(1_000), hour),
            ])
        };
        let governs = |decision: &Decision, follow| {
            let limit = decision.governing(follow).unwrap();
            (limit.max(), limit.remaining(), limit.reset_after().as_secs())
        };
        let (shortest, fewest) = (GoverningLimit::ShortestActive, GoverningLimit::FewestRemaining);

        let fresh = limits([
            Outcome::granted(1, SECOND),
            Outcome::granted(1, 60 * SECOND),
            Outcome::granted(1, 3600 * SECOND),
        ]);
        assert_eq!(governs(&fresh, shortest), (10, 9, 1));
        assert_eq!(governs(&fresh, fewest), (10, 9, 1));

        let minute_full = limits([
            Outcome::granted(2, SECOND),
            Outcome::granted(100, 30 * SECOND),
            Outcome::granted(501, 3600 * SECOND),
        ]);
        assert_eq!(governs(&minute_full, shortest), (10, 8, 1));
        assert_eq!(governs(&minute_full, fewest), (100, 0, 30));

        let minute_over = limits([
            Outcome::granted(0, 0),
            Outcome::denied(100, 30 * SECOND, 30 * SECOND),
            Outcome::granted(501, 3600 * SECOND),
        ]);
        assert_eq!(governs(&minute_over, shortest), (100, 0, 30));
        assert_eq!(governs(&minute_over, fewest), (100, 0, 30));

        let two_over = limits([
            Outcome::denied(10, SECOND, SECOND),
            Outcome::granted(90, 30 * SECOND),
            Outcome::denied(1_000, 900 * SECOND, 900 * SECOND),
        ]);
        assert_eq!(governs(&two_over, shortest), (10, 0, 1));
        assert_eq!(governs(&two_over, fewest), (1_000, 0, 900));
        assert_eq!(two_over.retry_after(), RetryAfter::In(Duration::from_secs(900)));
    }

    #[test]
    fn the_shortest_active_limit_governs_wherever_it_stands() {
        let limits = [
            Limit::per_hour(9),
            Limit::per_second(9).in_shadow(),
            Limit::per_minute(9),
            Limit::per_day(9),
        ];
        for active in 0..16 {
            let is_active = |place: usize| active >> place & 1 == 1;
            let outcome = |place| Outcome::granted(0, if is_active(place) { SECOND } else { 0 });
            let decision = decide(&[0, 1, 2, 3].map(|place| (limits[place], outcome(place))));
            let governing = decision.governing(GoverningLimit::ShortestActive).unwrap();
            let expected = [2, 0, 3].into_iter().find(|place| is_active(*place)).unwrap_or(2);
            assert_eq!(governing.limit(), limits[expected], "{active:b}");
        }
    }

    #[test]
    fn never_outweighs_every_wait() {
        let decision = decide(&[
            (Limit::per_second(1), Outcome::never(0, 0)),
            (Limit::per_month(9), Outcome::denied(9, SECOND, 2_592_000 * SECOND)),
        ]);
        assert_eq!(decision.retry_after(), RetryAfter::Never);
    }

    #[test]
    fn the_stricter_decision_is_denied_or_has_less_left() {
        let allowed = |used| decide(&[(Limit::per_minute(10), Outcome::granted(used, SECOND))]);
        let denied = decide(&[(Limit::per_minute(900), Outcome::denied(900, SECOND, SECOND))]);
        let disabled = Decision::undecided(Cost::ONE, Origin::Disabled);
        assert!(denied.is_stricter_than(&allowed(10)));
        assert!(allowed(3).is_stricter_than(&allowed(2)));
        assert!(!allowed(2).is_stricter_than(&allowed(2)));
        assert!(allowed(0).is_stricter_than(&disabled));
        assert!(!disabled.is_stricter_than(&disabled));
    }
}
