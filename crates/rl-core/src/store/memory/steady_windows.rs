//! More than six fixed windows of one subject while all of them are open.
//!
//! Until the first window ends, every charge adds the same units to all windows. A comparison with
//! one number, the units that the fullest window has left, therefore decides. The outcomes are
//! computed from those of an earlier decision: more units are used, and less time is left.

use super::run::DecideArgs;
use crate::algorithm::SubjectStates;
use crate::decision::Usages;
use crate::model::Mode;
use crate::policy::Policy;
use crate::time::Timestamp;

/// Fixed windows that are all open.
#[derive(Clone, Debug)]
pub(super) struct SteadyWindows {
    /// The outcomes of the decision at `since`.
    before: Usages,
    since: Timestamp,
    /// The time at which the first window ends.
    first_end: Timestamp,
    /// The units that were charged after `since`.
    charged: u32,
    /// The units that the fullest window has left.
    left: u64,
}

/// A decision on windows that are all open. It borrows the outcomes of an earlier decision, so that
/// they are copied only once.
#[derive(Clone, Copy, Debug)]
pub(super) struct SteadyDecision<'a> {
    pub(super) before: &'a Usages,
    pub(super) at: Timestamp,
    pub(super) is_allowed: bool,
    /// The units that were charged since the earlier decision.
    pub(super) charged: u32,
    /// The microseconds that have passed since the earlier decision.
    pub(super) later: u64,
}

impl SteadyWindows {
    /// Creates the windows of `policy`, all of which have just been charged at `at`.
    pub(super) fn new(
        policy: &Policy,
        before: Usages,
        states: SubjectStates<'_>,
        at: Timestamp,
    ) -> Self {
        let steps = || policy.plan().steps().iter();
        let first_end = steps().map(|step| step.expires(states)).min().unwrap_or_default();
        let left = steps().map(|step| step.available(states, at)).min().unwrap_or(0);
        Self { before, since: at, first_end, charged: 0, left }
    }

    /// Records that some of the windows may no longer be open.
    pub(super) const fn close(&mut self) {
        self.first_end = Timestamp::EPOCH;
    }

    /// Decides at `at` if one comparison suffices. `cells` are the states of the windows.
    ///
    /// Returns `None` and changes nothing if the plan has to decide.
    #[inline(always)]
    pub(super) fn try_decide(
        &mut self,
        cells: &mut [u64],
        args: DecideArgs<'_>,
        at: Timestamp,
    ) -> Option<SteadyDecision<'_>> {
        let units = u32::try_from(args.cost.units()).ok()?;
        let charged = self.charged.checked_add(units)?;
        if at >= self.first_end || units == 0 || args.mode == Mode::Peek {
            return None;
        }
        let is_allowed = u64::from(units) < self.left;
        if is_allowed {
            self.charged = charged;
            self.left -= u64::from(units);
            for [_, used] in cells.as_chunks_mut().0 {
                *used += u64::from(units);
            }
        } else if self.left > 0 || args.mode != Mode::Check {
            // The plan has to compute how long the denial lasts, or to charge a part of the cost.
            return None;
        }
        let (before, charged, later) = (&self.before, self.charged, at.micros_since(self.since));
        Some(SteadyDecision { before, at, is_allowed, charged, later })
    }
}
