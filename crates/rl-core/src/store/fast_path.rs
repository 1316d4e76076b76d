use std::fmt;

use super::DecideRequest;
use crate::decision::Decision;
use crate::maybe_ready::MaybeReady;
use crate::policy::LimitSet;
use crate::stats::{IS_COUNTED, PartCounts};
use crate::time::Timestamp;

/// The limiter of a request that a store decides on the fast path
/// ([`Store::try_decide`](super::Store::try_decide)).
///
/// The store counts each decision with the limiter before it returns the decision. If the limiter
/// inspected the returned decision to count it, the compiler would copy the decision.
#[derive(Clone, Copy)]
pub struct FastPath<'a> {
    limiter: &'a dyn FastPathLimiter,
    /// The counts of the thread that the decision changes; `None` if it changes others too.
    counts: Option<PartCounts<'a>>,
}

/// A limiter that a store calls on the fast path.
pub(crate) trait FastPathLimiter {
    /// Implements [`FastPath::decide_by_steps`].
    fn decide_by_steps(&self, request: &DecideRequest<'_>) -> MaybeReady<Decision>;

    /// Counts an allowed request. Its parts were charged `units` together at the time `at`. No part
    /// and no limit is in shadow. Returns false, and counts nothing, if the limiter needs the whole
    /// decision.
    fn try_count_allowed(&self, request: &DecideRequest<'_>, units: u64, at: Timestamp) -> bool;

    /// Implements [`FastPath::count`].
    fn count(&self, request: &DecideRequest<'_>, decision: &Decision);
}

impl<'a> FastPath<'a> {
    /// Creates the fast path of a decision. `counts` contains the counts of the thread that the
    /// decision changes. It is `None` if the limiter must count from the whole decision.
    #[inline(always)]
    pub(crate) const fn new(
        limiter: &'a dyn FastPathLimiter,
        counts: Option<PartCounts<'a>>,
    ) -> Self {
        Self { limiter, counts }
    }

    /// Decides without the fast path: runs the steps of the limiter, which call
    /// [`Store::decide`](super::Store::decide) and count the decision.
    pub fn decide_by_steps(&self, request: &DecideRequest<'_>) -> MaybeReady<Decision> {
        self.limiter.decide_by_steps(request)
    }

    /// Counts the decision about `request`.
    pub fn count(&self, request: &DecideRequest<'_>, decision: &Decision) {
        self.limiter.count(request, decision);
    }

    /// Counts a request of one subject that was charged `units` at the time `at`. Returns false,
    /// and counts nothing, if the limiter needs more than this. The store then calls
    /// [`count`](Self::count).
    #[inline(always)]
    pub(crate) fn try_count_allowed(&self, units: u64, at: Timestamp) -> bool {
        !IS_COUNTED || self.counts.is_some_and(|counts| counts.try_add_allowed(units, at))
    }

    /// Counts an allowed request under its rules. Its parts were charged `units` together at the
    /// time `at`. Returns false, and counts nothing, if the limiter needs the whole decision.
    #[inline]
    pub(crate) fn try_count_under_rules(
        &self,
        request: &DecideRequest<'_>,
        units: u64,
        at: Timestamp,
    ) -> bool {
        !IS_COUNTED || self.limiter.try_count_allowed(request, units, at)
    }

    /// Counts a request of one subject that was denied at the time `at`. `over` returns the limits
    /// that denied it. Returns false, and counts nothing, if the limiter needs the whole decision.
    #[inline(always)]
    pub(crate) fn try_count_denied(&self, over: impl FnOnce() -> LimitSet, at: Timestamp) -> bool {
        !IS_COUNTED || self.counts.is_some_and(|counts| counts.try_add_denied(over, at))
    }
}

impl fmt::Debug for FastPath<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FastPath").finish_non_exhaustive()
    }
}
