//! How stores make decisions.

use super::{Decision, HeldPolicy, Verdict};
use crate::decision::{Origin, Outcome, Outcomes, Windows};
use crate::model::{Cost, Limit};
use crate::policy::{Block, Policy};
use crate::time::Timestamp;

impl Decision {
    pub(crate) fn of(
        policy: &Policy,
        cost: Cost,
        granted: u64,
        at: Timestamp,
        outcomes: Outcomes,
    ) -> Self {
        let limits = policy.limits().len();
        debug_assert_eq!(limits, outcomes.count(limits));
        let mut decision = Self::begun(policy, cost);
        (decision.outcomes, decision.at) = (outcomes, at);
        let denies = decision.enforced().any(|limit| limit.is_over());
        decision.concluded(granted, at, !denies);
        decision
    }

    /// Returns the denial of a request that needs `needed` units, which limits of `policy` never grant.
    pub(crate) fn never_granted(policy: &Policy, cost: Cost, needed: u64) -> Self {
        let outcome = |limit: Limit| {
            // No counter was read: what is used is not known, and is reported as 0.
            Outcome::of_window(limit.capacity(), 0, 0, limit.units(needed))
        };
        Self::by_policy(policy, cost, Timestamp::EPOCH, outcome)
    }

    /// Returns the denial of a request that is blocked at `now`.
    pub(crate) fn blocked(block: &Block, cost: Cost, now: Timestamp) -> Self {
        let outcome = match block.until() {
            Some(until) => {
                let wait = until.micros_since(now);
                Outcome::denied(0, wait, wait)
            }
            None => Outcome::never(0, 0),
        };
        Self::by_policy(block.limits(), cost, now, |_| outcome)
    }

    fn by_policy(
        policy: &Policy,
        cost: Cost,
        at: Timestamp,
        outcome: impl Fn(Limit) -> Outcome,
    ) -> Self {
        let outcomes = policy.limits().iter().map(|named| outcome(named.limit()));
        let decision = Self::of(policy, cost, 0, at, outcomes.collect());
        Self { origin: Origin::Policy, ..decision }
    }

    /// A decision that a store is about to make under `policy`.
    #[inline]
    pub(crate) fn begun(policy: &Policy, cost: Cost) -> Self {
        Self::of_none(HeldPolicy::handle_of(policy), cost)
    }

    #[inline]
    pub(super) fn of_none(policy: HeldPolicy, cost: Cost) -> Self {
        Self {
            policy,
            outcomes: Outcomes::new(),
            cost,
            granted: 0,
            taken: 0,
            verdict: Verdict::Denied,
            at: Timestamp::EPOCH,
            origin: Origin::Store,
            is_reserved: false,
            limiter: 0,
            counted: 0,
            outer: None,
        }
    }

    /// Where the outcomes go, in the order of the policy's limits.
    pub(crate) fn outcomes_mut(&mut self) -> &mut Outcomes {
        &mut self.outcomes
    }

    /// What was decided of windows at once, and of all of `cost` or nothing: they were left like this.
    #[inline(always)]
    pub(crate) fn of_windows(
        policy: &Policy,
        cost: Cost,
        at: Timestamp,
        is_allowed: bool,
        windows: Windows,
    ) -> Self {
        let taken = if is_allowed { cost.units() } else { 0 };
        Self {
            policy: HeldPolicy::handle_of(policy),
            outcomes: Outcomes::Windows(windows),
            cost,
            granted: taken,
            taken,
            verdict: Verdict::of(is_allowed),
            at,
            origin: Origin::Store,
            is_reserved: false,
            limiter: 0,
            counted: 0,
            outer: None,
        }
    }

    /// The outcomes are those of windows that were left like this.
    pub(crate) fn leave(&mut self, windows: Windows) {
        self.outcomes = Outcomes::Windows(windows);
    }

    /// What came out: `taken` units at `at`.
    #[inline]
    pub(crate) fn concluded(&mut self, taken: u64, at: Timestamp, is_allowed: bool) {
        (self.granted, self.taken, self.at) = (taken, taken, at);
        self.verdict = Verdict::of(is_allowed);
    }
}
