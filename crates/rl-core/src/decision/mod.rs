//! The decision about a request: allowed or denied, and the status of each limit.
//!
//! # Example
//!
//! ```
//! use rl_core::{Limit, RateLimiter, Subject};
//!
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let limiter = RateLimiter::builder().limit(Limit::per_minute(100)).build()?;
//! let decision = limiter.check(&Subject::consumer("abc123"), 1).await;
//! assert!(decision.is_allowed());
//! assert!(decision.limits().all(|status| status.remaining() == 99));
//! # Ok(()) }
//! ```

mod clock_lag;
mod labels;
mod limit_status;
mod linked;
mod origin;
mod outcomes;
mod parts;
mod policy_handle;
mod recycled;

use std::cmp::Reverse;
use std::thread::LocalKey;
use std::time::Duration;

pub(crate) use clock_lag::ClockLag;
pub use labels::PublicName;
pub(crate) use labels::{LabelledParts, PartitionKey, RuleLabel};
use labels::{Labels, PartLabels};
use limit_status::LimitStatuses;
pub(crate) use limit_status::seconds_ceil;
pub use limit_status::{GoverningLimit, LimitStatus, RetryAfter};
pub(crate) use linked::PartFlags;
use linked::{DecidedParts, Linked};
pub use origin::Origin;
use origin::Verdict;
pub(crate) use outcomes::Outcomes;
pub(crate) use parts::DecisionList;
pub use parts::PartStatus;
use policy_handle::PolicyHandle;
use recycled::{Recycle, Recycled, Slots};

use crate::algorithm::fixed_window::{PackedStates, PackedTime};
use crate::model::{Cost, FailureKind, Limit, Outcome};
use crate::policy::{Block, LimitSet, Policy};
use crate::time::Timestamp;

/// The decision about a request: whether it is allowed, and the status of each limit.
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
#[derive(Clone, Debug)]
pub struct Decision {
    statuses: LimitStatuses,
    cost: Cost,
    // The units that the store charged.
    charged: u64,
    verdict: Verdict,
    origin: Origin,
    // Whether the charged units are a reservation, which expires unless it is settled or renewed.
    is_reserved: bool,
    // How far the store's clock was behind the time in `statuses`.
    clock_lag: ClockLag,
    // A number that identifies the limiter and the subject of a request that an adapter has
    // counted; 0 for other requests.
    limiter_and_subject: u64,
    // The decision of an outer limiter, and the decisions on the parts if there are several. With
    // parts, most methods describe the governing part. Then `statuses` above contains only the
    // time, and `cost` and `charged` have no meaning.
    linked: Recycled<Linked<Decision>>,
}

// Up to this size, the compiler moves a decision without a call of `memcpy`.
#[cfg(target_pointer_width = "64")]
const _: () = assert!(size_of::<Decision>() == 128);

impl Decision {
    /// Creates the decision of a store that granted `granted` units of `cost` at the time `at`.
    ///
    /// `outcomes` must have the order of the policy's limits. The request is denied if a limit that
    /// is not in shadow denies it.
    #[must_use]
    pub fn decided(
        policy: Policy,
        cost: Cost,
        granted: u64,
        at: Timestamp,
        outcomes: impl IntoIterator<Item = Outcome>,
    ) -> Self {
        Self::from_outcomes(&policy, cost, granted, at, outcomes.into_iter().collect())
    }

    /// Creates a decision that was made without a store. It denies the request if `origin` is
    /// [`Origin::FailedClosed`], and allows it otherwise.
    #[must_use]
    pub fn undecided(cost: Cost, origin: Origin) -> Self {
        let is_allowed = !matches!(origin, Origin::FailedClosed(_));
        let verdict = Verdict::new(is_allowed);
        Self { verdict, origin, ..Self::empty(LimitStatuses::NONE, cost) }
    }

    /// Creates a decision from the outcomes of all limits of `policy`.
    pub(crate) fn from_outcomes(
        policy: &Policy,
        cost: Cost,
        charged: u64,
        at: Timestamp,
        outcomes: Outcomes,
    ) -> Self {
        let mut decision = Self::empty(LimitStatuses::new(policy, outcomes, at), cost);
        let is_denied = decision.enforced().any(|limit| limit.is_over());
        decision.finish(charged, at, !is_denied);
        decision
    }

    /// Creates the denial at `now` of a request that needs `required` units, which are never
    /// granted.
    pub(crate) fn never_granted(
        policy: &Policy,
        cost: Cost,
        required: u64,
        now: Timestamp,
    ) -> Self {
        let outcome = |limit: Limit| Outcome::before_use(limit, required);
        Self::denied_by_policy(policy, cost, now, outcome)
    }

    /// Creates the denial of a request that is blocked at `now`.
    pub(crate) fn blocked(block: &Block, cost: Cost, now: Timestamp) -> Self {
        Self::denied_by_policy(block.limits(), cost, now, |_| block.outcome(now))
    }

    fn denied_by_policy(
        policy: &Policy,
        cost: Cost,
        at: Timestamp,
        outcome: impl Fn(Limit) -> Outcome,
    ) -> Self {
        let mut decision = Self::pending(policy, cost);
        decision.origin = Origin::Policy;
        let (limits, mut is_denied) = (policy.limits(), false);
        for (named, place) in limits.iter().zip(decision.outcomes_mut().renew(limits.len())) {
            *place = outcome(named.limit());
            is_denied |= place.is_over() && !named.limit().is_shadow();
        }
        decision.finish(0, at, !is_denied);
        decision
    }

    /// Creates a decision under a policy of fixed windows. The whole cost is charged, or nothing.
    /// `states` contains the windows after the charge. `at.relative` must fit into 48 bits, and the
    /// cost of a denial into 32 bits. Larger numbers would need a second form of the outcomes, and
    /// with two forms the compiler would copy the decision.
    #[inline(always)]
    pub(crate) fn from_windows(
        policy: &Policy,
        cost: Cost,
        at: PackedTime,
        is_allowed: bool,
        states: &PackedStates,
    ) -> Self {
        let (charged, required) = if is_allowed { (cost.units(), 0) } else { (0, cost.units()) };
        // Creating the handle first lets the compiler copy the states only once, from the store to
        // the decision.
        let policy = PolicyHandle::new(policy);
        let outcomes = Outcomes::windows(states, at.relative, required);
        let decided_at = Timestamp::from_micros(at.absolute);
        let statuses = LimitStatuses { policy, outcomes, decided_at };
        Self { charged, verdict: Verdict::new(is_allowed), ..Self::empty(statuses, cost) }
    }

    /// Creates a decision that a store completes with [`finish`](Self::finish).
    pub(crate) fn pending(policy: &Policy, cost: Cost) -> Self {
        // Built in place, because moving `Outcomes` copies all of its bytes.
        let policy = PolicyHandle::new(policy);
        Self {
            statuses: LimitStatuses {
                policy,
                outcomes: Outcomes::NONE,
                decided_at: Timestamp::EPOCH,
            },
            cost,
            charged: 0,
            verdict: Verdict::Denied,
            origin: Origin::Store,
            is_reserved: false,
            clock_lag: ClockLag::NONE,
            limiter_and_subject: 0,
            linked: Recycled::NONE,
        }
    }

    /// Creates a decision without content, which the caller overwrites.
    #[cold]
    fn unset() -> Self {
        Self::empty(LimitStatuses::NONE, Cost::ZERO)
    }

    fn empty(statuses: LimitStatuses, cost: Cost) -> Self {
        Self {
            statuses,
            cost,
            charged: 0,
            verdict: Verdict::Denied,
            origin: Origin::Store,
            is_reserved: false,
            clock_lag: ClockLag::NONE,
            limiter_and_subject: 0,
            linked: Recycled::NONE,
        }
    }

    /// Returns the decision that the public methods describe: the one on the governing part, or
    /// this one if there is no such part.
    fn described(&self) -> &Self {
        self.decided_parts().map_or(self, |parts| self.governing_decision(parts))
    }

    /// Returns the outcomes, to be filled in the order of the policy's limits.
    pub(crate) fn outcomes_mut(&mut self) -> &mut Outcomes {
        &mut self.statuses.outcomes
    }

    /// Completes a pending decision: `charged` units were charged at the time `at`.
    pub(crate) fn finish(&mut self, charged: u64, at: Timestamp, is_allowed: bool) {
        self.charged = charged;
        self.statuses.decided_at = at;
        self.verdict = Verdict::new(is_allowed);
    }

    /// Returns the same decision with another origin.
    #[cfg(feature = "redis")]
    pub(crate) fn with_origin(self, origin: Origin) -> Self {
        Self { origin, ..self }
    }

    /// Returns this denial as it will be after `micros` microseconds. It must still hold then.
    #[cfg(feature = "redis")]
    pub(crate) fn at_later(&self, micros: u64) -> Self {
        let (clock_lag, micros) = self.clock_lag.after(micros);
        Self {
            statuses: self.statuses.at_later(micros),
            origin: Origin::LocalDeny,
            clock_lag,
            linked: self.linked.clone(),
            ..*self
        }
    }

    /// Marks the charged units as a [reservation](crate::store::Reservation). For implementations
    /// of [`Store`](crate::store::Store).
    #[must_use]
    pub const fn reserved(mut self) -> Self {
        self.is_reserved = self.charged > 0;
        self
    }

    /// Marks the decision as made by the fallback after the store failed with `failure`.
    pub(crate) fn into_fallback(mut self, failure: FailureKind) -> Self {
        if self.origin.is_of_store() {
            self.origin = Origin::Fallback(failure);
        }
        self
    }

    /// Changes a denial by limits into a degraded request, unless waiting could never help.
    pub(crate) fn degraded_if_denied(mut self) -> Self {
        let may_pass_later = self.retry_after() != RetryAfter::Never;
        if self.verdict == Verdict::Denied && self.origin.enforces() && may_pass_later {
            self.verdict = Verdict::Degraded;
        }
        self
    }

    /// Sets the requested units.
    pub(crate) const fn set_cost(&mut self, cost: Cost) {
        self.cost = cost;
    }

    /// Sets the requested units, and the units that were charged.
    pub(crate) const fn set_units(&mut self, cost: Cost, charged: u64) {
        (self.cost, self.charged) = (cost, charged);
    }

    /// Returns the same decision with these numbers of requested and of charged units.
    pub(crate) const fn with_units(mut self, cost: Cost, charged: u64) -> Self {
        self.set_units(cost, charged);
        self
    }

    /// Returns whether the request is allowed.
    #[must_use]
    pub const fn is_allowed(&self) -> bool {
        matches!(self.verdict, Verdict::Allowed)
    }

    /// Returns whether limits deny the request, but it is forwarded to get a reduced response
    /// ([`OverLimit::Degrade`](crate::OverLimit::Degrade)). The limits may belong to this limiter
    /// or to an outer one.
    #[must_use]
    pub fn is_degraded(&self) -> bool {
        self.verdict == Verdict::Degraded || self.outer().is_some_and(Self::is_degraded)
    }

    /// Returns whether the request is forwarded to the service: it is allowed or
    /// [degraded](Self::is_degraded).
    #[must_use]
    pub const fn is_forwarded(&self) -> bool {
        !matches!(self.verdict, Verdict::Denied)
    }

    /// Returns whether the charge is a reservation, which is refunded unless it is settled or
    /// renewed in time.
    pub(crate) const fn is_reserved(&self) -> bool {
        self.is_reserved
    }

    /// Returns the requested units.
    #[must_use]
    pub fn cost(&self) -> Cost {
        self.described().cost
    }

    /// Returns the granted units: the whole cost, or part of it after `check_up_to`. They are 0 if
    /// the request is denied or was a [`Peek`](crate::store::Mode::Peek).
    #[must_use]
    pub fn granted(&self) -> u64 {
        let is_counted = self.policy().is_some() || self.decided_parts().is_some();
        let is_limited = is_counted && !matches!(self.origin, Origin::Shadow);
        if self.is_allowed() && !is_limited { self.cost().units() } else { self.charged() }
    }

    /// Returns the units that the store charged, which can be refunded.
    pub(crate) fn charged(&self) -> u64 {
        self.described().charged
    }

    /// Returns how the decision was made.
    #[must_use]
    pub const fn origin(&self) -> Origin {
        self.origin
    }

    /// Returns the time of the decision on the store's clock. If several servers decided the parts
    /// of the request, it is the latest of their times.
    ///
    /// A denial by the policy alone has the time of the limiter's clock. It is the epoch if neither
    /// a store nor a policy decided.
    #[must_use]
    pub const fn at(&self) -> Timestamp {
        self.statuses.decided_at
    }

    /// Returns the policy under which the request was decided; `None` if neither a store nor the
    /// policy itself decided.
    #[must_use]
    pub fn policy(&self) -> Option<&Policy> {
        self.described().statuses.policy()
    }

    /// Returns the status of each limit, in the order of the policy.
    #[must_use]
    pub fn limits(&self) -> impl ExactSizeIterator<Item = LimitStatus<'_>> {
        let (labels, described) = (self.labels_of_described(), self.described());
        described.statuses.iter().map(move |limit| limit.of_part(labels, described.clock_lag))
    }

    /// Returns the limits that can deny the request: those that are not in shadow.
    pub fn enforced(&self) -> impl Iterator<Item = LimitStatus<'_>> {
        self.limits().filter(|limit| self.origin != Origin::Shadow && !limit.limit().is_shadow())
    }

    /// Returns the limits that a refund of `units` leaves unchanged: those that were not charged
    /// and, if `units` are only a part of the charge, those that count requests.
    pub(crate) fn non_refundable(&self, units: u64) -> LimitSet {
        let is_part = units < self.charged();
        let has_any = is_part || self.policy().is_some_and(Policy::has_shadow);
        let is_kept = |limit: &LimitStatus<'_>| limit.keeps_charge(is_part);
        if has_any { self.described().statuses.positions(is_kept) } else { LimitSet::EMPTY }
    }

    /// Returns the limits that were not charged although the request was granted: limits in shadow
    /// that would have denied it.
    #[must_use]
    pub fn uncharged(&self) -> LimitSet {
        self.described().statuses.positions(|limit| limit.is_uncharged())
    }

    /// Returns the limit that single-valued headers and messages describe. Returns `None` if no
    /// limit is enforced, or if neither a store nor the policy itself decided.
    #[must_use]
    pub fn governing(&self, selection: GoverningLimit) -> Option<LimitStatus<'_>> {
        let is_denied = !self.is_allowed();
        let is_enforced = self.origin != Origin::Shadow;
        if selection == GoverningLimit::ShortestActive && !is_denied && is_enforced {
            // The shortest limit is nearly always active. It is tried first, because the outcomes
            // of the other limits are then not computed.
            let shortest = self.policy().and_then(Policy::shortest);
            let described = self.described();
            let shortest = shortest.and_then(|index| described.statuses.get(index));
            if shortest.is_some_and(|limit| limit.is_active()) {
                let labels = self.labels_of_described();
                return shortest.map(|limit| limit.of_part(labels, described.clock_lag));
            }
        }
        selection.select(self.enforced(), is_denied)
    }

    /// Returns whether this decision is stricter than `other`: it denies what `other` allows, or
    /// leaves fewer units.
    ///
    /// If two limiters are nested, the response describes the stricter decision.
    #[must_use]
    pub fn is_stricter_than(&self, other: &Self) -> bool {
        let strictness = |decision: &Self| {
            let governing = decision.governing(GoverningLimit::FewestRemaining);
            let remaining = governing.map_or(u64::MAX, |limit| limit.remaining());
            (!decision.is_allowed(), decision.policy().is_some(), Reverse(remaining))
        };
        strictness(self) > strictness(other)
    }

    /// Returns the labels of the part that the public methods describe.
    fn labels_of_described(&self) -> PartLabels<'_> {
        match self.linked.get() {
            None => PartLabels::new(None, 0, self.origin != Origin::Policy),
            Some(_) => self.labels_of(self.governing_part().unwrap_or(0), self.described()),
        }
    }

    /// Returns the labels of the part at `index`, on which `part` was decided.
    fn labels_of(&self, index: usize, part: &Self) -> PartLabels<'_> {
        let labels = self.linked.get().map(|linked| &linked.labels);
        PartLabels::new(labels, index, part.origin != Origin::Policy)
    }

    /// Returns the labels of the parts, to change them.
    pub(crate) fn labels_mut(&mut self) -> &mut Labels {
        &mut self.linked.get_or_new().labels
    }

    /// Returns the longest wait of the limits that deny. The wait is exact if no other request uses
    /// these limits. Under a concurrency limit it is a bound: the time until enough leases have
    /// ended.
    ///
    /// If no store could decide ([`Origin::FailedClosed`]), the wait is one second. If cached
    /// denials decide ([`Origin::LocalDeny`]), the parts without one are not read, and may deny
    /// longer.
    #[must_use]
    pub fn retry_after(&self) -> RetryAfter {
        if let Origin::FailedClosed(_) = self.origin {
            return RetryAfter::In(Duration::from_secs(1));
        }
        if self.decided_parts().is_some() {
            return self.longest_wait();
        }
        self.enforced().map(|limit| limit.retry_after()).max().unwrap_or(RetryAfter::Now)
    }

    /// Returns the time after which a client should retry. `Retry-After`, messages and gRPC clients
    /// get this time.
    ///
    /// It is [`retry_after`](Self::retry_after), but a concurrency limit contributes at most its
    /// [hint](crate::Limit::with_retry_hint), by default a second. Its places are freed when
    /// requests end, long before the leases do.
    #[must_use]
    pub fn retry_hint(&self) -> RetryAfter {
        if let Origin::FailedClosed(_) = self.origin {
            return self.retry_after();
        }
        self.enforced_of_all_parts()
            .map(|limit| limit.retry_hint())
            .max()
            .unwrap_or(RetryAfter::Now)
    }

    /// Returns the longest wait of the enforced parts.
    fn longest_wait(&self) -> RetryAfter {
        let enforced = self.parts().filter(|part| part.is_enforced());
        enforced.map(|part| part.retry_after()).max().unwrap_or(RetryAfter::Now)
    }

    /// Records that the store's clock showed `clock` when the decision was made.
    pub(crate) const fn note_clock(&mut self, clock: Timestamp) {
        self.clock_lag = ClockLag::new(self.statuses.decided_at, clock);
    }

    /// Returns the same decision, made when a server's clock showed `clock`. `clock` is `None` if
    /// the server does not state its time, because its clock does not lag.
    #[cfg(feature = "redis")]
    pub(crate) const fn at_server_time(mut self, clock: Option<Timestamp>) -> Self {
        if let Some(clock) = clock {
            self.note_clock(clock);
        }
        self
    }

    /// Returns how far the store's clock was behind the [time of the decision](Self::at).
    ///
    /// It is zero unless the clock has stepped back, by more than a millisecond, to a time before
    /// the last change of the subject. Then no time passes for the subject until the clock reaches
    /// that change again. All waits and resets of the decision include this time.
    #[must_use]
    pub fn clock_lag(&self) -> Duration {
        self.described().clock_lag.duration()
    }

    /// Allows the request if the store decided. Used for a limiter in shadow.
    pub(crate) fn apply_shadow(&mut self) {
        if self.origin.is_of_store() {
            self.origin = Origin::Shadow;
            self.verdict = Verdict::Allowed;
        }
    }

    /// Returns whether the limiter or one of the limits is in shadow.
    pub(crate) fn has_shadow(&self) -> bool {
        self.origin == Origin::Shadow
            || self.statuses.policy().is_some_and(Policy::has_shadow)
            || self.decided_parts().is_some_and(|parts| parts.has_shadow)
    }

    /// Returns the limits that would have denied the request if they were not in shadow.
    pub fn over_in_shadow(&self) -> impl Iterator<Item = LimitStatus<'_>> {
        self.parts().flat_map(|part| part.over_in_shadow())
    }

    /// Returns whether the request would have been denied if the limiter were not in shadow.
    pub(crate) fn is_denied_in_shadow(&self) -> bool {
        self.origin == Origin::Shadow
            && self
                .parts()
                .filter(|part| !part.is_shadow())
                .flat_map(|part| part.limits())
                .any(|limit| limit.is_over() && !limit.limit().is_shadow())
    }

    /// Sets the limiter and the hash of the counted subject.
    pub(crate) const fn set_limiter_and_subject(&mut self, limiter_id: usize, subject_hash: u64) {
        self.limiter_and_subject = limiter_and_subject(limiter_id, subject_hash);
    }

    /// Returns the same decision with another outer decision.
    pub(crate) fn inside(mut self, outer: Option<Self>) -> Self {
        self.set_outer(outer);
        self
    }

    /// Sets the decision of the outer limiter.
    pub(crate) fn set_outer(&mut self, outer: Option<Self>) {
        if outer.is_some() {
            self.linked.get_or_new().outer = outer;
        } else if let Some(linked) = self.linked.get_mut() {
            linked.outer = None;
        }
    }

    /// Returns the decisions on the parts of the request; `None` if it was not decided as a list of
    /// parts.
    fn decided_parts(&self) -> Option<&DecidedParts<Self>> {
        self.linked.get().map(|linked| &linked.parts).filter(|parts| !parts.all().is_empty())
    }

    /// Returns the decision of the outer limiter, if the request has passed through one.
    #[must_use]
    pub fn outer(&self) -> Option<&Self> {
        self.linked.get()?.outer.as_ref()
    }

    /// Returns whether the limiter with this id decided about the subject with this hash. The
    /// decisions of outer limiters are searched too.
    pub(crate) fn was_made_by(&self, limiter_id: usize, subject_hash: u64) -> bool {
        self.limiter_and_subject == limiter_and_subject(limiter_id, subject_hash)
            || self.outer().is_some_and(|outer| outer.was_made_by(limiter_id, subject_hash))
    }
}

thread_local! {
    static RECYCLED: Slots<Linked<Decision>> = const { Slots::empty() };
}

impl Recycle for Linked<Decision> {
    const SLOTS: &'static LocalKey<Slots<Self>> = &RECYCLED;

    fn unset() -> Self {
        Self::empty()
    }

    fn clear(&mut self) {
        self.outer = None;
        self.parts.clear();
        self.labels = Labels::default();
    }
}

/// Combines a limiter and the keyed hash of a subject into one number, which keeps decisions small.
///
/// The factor is odd, so two limiters have different numbers for one subject. Under one limiter,
/// two subjects have the same number only if their hashes are the same.
const fn limiter_and_subject(limiter_id: usize, subject_hash: u64) -> u64 {
    (limiter_id as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ subject_hash
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::model::Limit;

    const SECOND: u64 = 1_000_000;

    fn decide(outcomes: &[(Limit, Outcome)]) -> Decision {
        let policy = Policy::new(outcomes.iter().map(|(limit, _)| *limit)).unwrap();
        let outcomes = outcomes.iter().map(|(_, outcome)| *outcome);
        Decision::decided(policy, Cost::ONE, 1, Timestamp::EPOCH, outcomes)
    }

    /// Checks which limit governs if the limits are 10 per second, 100 per minute and 1 000 per
    /// hour.
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
        let governs = |decision: &Decision, selection| {
            let limit = decision.governing(selection).unwrap();
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
            Limit::per_second(9).shadow(),
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
