//! Creates decisions in the place where they stay, because moving them takes time on the fast path.

use super::Decision;
use super::clock_lag::ClockLag;
use super::limit_status::LimitStatuses;
use super::origin::{Origin, Verdict};
use super::outcomes::{OpenWindows, Outcomes};
use super::policy_handle::PolicyHandle;
use super::recycled::Recycled;
use crate::algorithm::fixed_window::{Lanes, PackedStates, PackedTime};
use crate::model::Cost;
use crate::policy::Policy;
use crate::time::Timestamp;

impl Decision {
    /// Creates a decision under a policy of fixed windows. The whole cost is charged, or nothing.
    /// `states` contains the windows after the charge. `at.relative` must fit into 48 bits, and the
    /// cost of a denial into 32 bits. Larger numbers would need a second form of the outcomes, and
    /// with two forms the compiler would copy the decision.
    #[inline(always)]
    pub(crate) fn from_windows(
        policy: impl Into<PolicyHandle>,
        cost: Cost,
        at: PackedTime,
        is_allowed: bool,
        states: &PackedStates,
    ) -> Self {
        let (charged, required) = if is_allowed { (cost.units(), 0) } else { (0, cost.units()) };
        // Creating the handle first lets the compiler copy the states only once, from the store to
        // the decision.
        let policy = policy.into();
        let outcomes = Outcomes::lazy(states, at.relative, required);
        let decided_at = Timestamp::from_micros(at.absolute);
        let statuses = LimitStatuses { policy, outcomes, decided_at };
        Self { charged, verdict: Verdict::new(is_allowed), ..Self::empty(statuses, cost) }
    }

    /// Creates a decision on windows that were all open at an earlier decision, and still are.
    /// `before` contains their usages at that time. Since then, `charged_since` units were charged
    /// to each window, and `later` microseconds have passed. The whole cost is charged, or nothing.
    #[inline(always)]
    pub(crate) fn from_open_windows(
        policy: PolicyHandle,
        cost: Cost,
        at: Timestamp,
        is_allowed: bool,
        open: Recycled<OpenWindows>,
    ) -> Self {
        let charged = if is_allowed { cost.units() } else { 0 };
        let statuses = LimitStatuses { policy, outcomes: Outcomes::Open(open), decided_at: at };
        Self { charged, verdict: Verdict::new(is_allowed), ..Self::empty(statuses, cost) }
    }

    /// Creates a decision that a store completes with [`finish`](Self::finish).
    #[inline(always)]
    pub(crate) fn pending(policy: &Policy, cost: Cost) -> Self {
        // Built in place, because moving `Outcomes` copies all of its bytes, even those of
        // `Outcomes::None`.
        let policy = PolicyHandle::new(policy);
        Self {
            statuses: LimitStatuses {
                policy,
                outcomes: Outcomes::None,
                decided_at: Timestamp::EPOCH,
            },
            cost,
            charged: 0,
            verdict: Verdict::Denied,
            origin: Origin::Store,
            is_reserved: false,
            clock_lag: ClockLag::NONE,
            counted: 0,
            linked: Recycled::NONE,
        }
    }

    /// Creates a decision without content, which the caller overwrites.
    #[cold]
    pub(super) fn unset() -> Self {
        Self::empty(LimitStatuses::NONE, Cost::ZERO)
    }

    /// Overwrites the decision in place with one that charged `cost` to the fixed windows of
    /// `policy`. `numbers` are those of `states`. They must fit as for
    /// [`from_windows`](Self::from_windows).
    #[inline(always)]
    pub(super) fn set_windows(
        &mut self,
        policy: &Policy,
        cost: Cost,
        at: PackedTime,
        states: &PackedStates,
        numbers: Lanes,
    ) {
        self.statuses.policy.set(policy);
        self.statuses.outcomes.set_lazy(states, numbers, at.relative);
        self.statuses.decided_at = Timestamp::from_micros(at.absolute);
        self.reset(cost);
        (self.charged, self.verdict) = (cost.units(), Verdict::Allowed);
    }

    /// Sets all fields, except the statuses of the limits, to those of a new decision of the store.
    #[inline(always)]
    pub(super) fn reset(&mut self, cost: Cost) {
        self.linked = Recycled::NONE;
        (self.cost, self.charged, self.counted) = (cost, 0, 0);
        (self.verdict, self.origin, self.is_reserved) = (Verdict::Denied, Origin::Store, false);
        self.clock_lag = ClockLag::NONE;
    }
}
