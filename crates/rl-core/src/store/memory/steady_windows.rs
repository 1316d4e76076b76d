//! More than six fixed windows of one subject while all of them are open.
//!
//! Until the first window ends, every charge adds the same units to all windows. A comparison with
//! one number, the units that the fullest window has left, therefore decides. The outcomes are
//! computed from those of an earlier decision: more units are used, and less time is left.

use super::run::DecideArgs;
use crate::algorithm::SubjectStates;
use crate::decision::Usages;
use crate::model::{Cost, Mode};
use crate::policy::{LimitSet, Policy};
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
    /// The last denied cost, and the windows that denied it. `None` while units are left, and
    /// before the first denial.
    denied: Option<(Cost, LimitSet)>,
}

/// A decision on windows that are all open. It borrows the outcomes of an earlier decision, so that
/// they are copied only once.
#[derive(Clone, Copy, Debug)]
pub(super) struct SteadyDecision<'a> {
    pub(super) before: &'a Usages,
    pub(super) at: Timestamp,
    pub(super) is_allowed: bool,
    /// The limits that deny the request.
    pub(super) over: LimitSet,
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
        Self { before, since: at, first_end, charged: 0, left, denied: None }
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
        let mut over = LimitSet::EMPTY;
        if is_allowed {
            self.charged = charged;
            self.left -= u64::from(units);
            for [_, used] in cells.as_chunks_mut().0 {
                *used += u64::from(units);
            }
        } else if self.left > 0 || args.mode != Mode::Check {
            // The plan has to compute how long the denial lasts, or to charge a part of the cost.
            return None;
        } else {
            over = match self.denied {
                Some((cost, over)) if cost == args.cost => over,
                _ => self.note_denial(cells, args),
            };
        }
        let (before, charged, later) = (&self.before, self.charged, at.micros_since(self.since));
        Some(SteadyDecision { before, at, is_allowed, over, charged, later })
    }

    /// Finds the windows that deny a request. The result holds until the next charge, because no
    /// request is allowed while nothing is left.
    #[inline(never)]
    fn note_denial(
        &mut self,
        cells: &[u64],
        DecideArgs { policy, cost, .. }: DecideArgs<'_>,
    ) -> LimitSet {
        let windows = cells.as_chunks().0.iter().zip(policy.limits()).enumerate();
        let is_over = |[_, used]: [u64; 2], max: u64| used.saturating_add(cost.units()) > max;
        let over = windows.filter(|(_, (cells, named))| is_over(**cells, named.limit().max()));
        let over = over.map(|(index, _)| index).collect();
        self.denied = Some((cost, over));
        over
    }
}
