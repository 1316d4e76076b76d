//! Judgements of a request that charge nothing.

use super::{FastDecision, PackedEntry, TimeBase};
use crate::algorithm::SubjectStates;
use crate::algorithm::fixed_window::{self, CompiledWindows};
use crate::store::memory::run::{self, DecideArgs};
use crate::time::Timestamp;

impl PackedEntry {
    /// Decides for a peek under fixed windows. Returns `None` if [`decide`](Self::decide) has to.
    pub(in crate::store::memory) fn try_peek_fast(
        &self,
        windows: &CompiledWindows,
        base: TimeBase,
        args: DecideArgs<'_>,
    ) -> Option<FastDecision<'_>> {
        let at = self.decision_time(base, args.now);
        let is_allowed = fixed_window::try_judge(windows, &self.states, at, args.cost)?;
        Some(FastDecision { at, is_allowed, states: &self.states })
    }

    /// Returns whether a check of `args` would be granted, and the time of this judgement. The
    /// limits of the policy use the states of this entry.
    pub(in crate::store::memory) fn judge(
        &self,
        base: TimeBase,
        args: DecideArgs<'_>,
    ) -> (bool, Timestamp) {
        let plan = args.policy.plan();
        let cells = self.cells(plan.cells(), base);
        let states = SubjectStates { cells: &cells[..plan.cells()], logs: &[] };
        let at = args.now.max(self.last_change(base));
        (run::would_grant(&args, states, at), at)
    }
}
