//! Charges to windows that are open.

use super::{OpenCharge, PackedEntry, TimeBase};
use crate::algorithm::fixed_window::{self, CompiledWindows, PackedTime};
use crate::model::Cost;
use crate::time::Timestamp;

impl PackedEntry {
    /// Charges `cost` at the time `now`, if all limits are open windows that grant it, the entry was
    /// not changed later, and no denial is recorded. Returns the charge, or `None` if nothing was
    /// charged.
    #[inline(always)]
    pub(in crate::store::memory) fn try_charge_open(
        &mut self,
        windows: &CompiledWindows,
        base: TimeBase,
        now: Timestamp,
        cost: Cost,
    ) -> Option<OpenCharge<'_>> {
        let at = PackedTime { absolute: now.as_micros(), relative: base.relative(now.as_micros()) };
        let last_change = self.relative_last_change();
        if at.relative < last_change.max(self.denied_until()) {
            return None;
        }
        let (states, first_to_end) = (&mut self.states, self.first_to_end);
        let numbers = fixed_window::try_charge_open(windows, states, first_to_end, at, cost)?;
        self.set_last_change(at.relative);
        Some(OpenCharge { at, states: &self.states, numbers, last_change })
    }

    /// Undoes the last charge, which was made to open windows. The entry was last changed at
    /// `last_change` before that charge.
    pub(in crate::store::memory) fn undo_open(
        &mut self,
        windows: &CompiledWindows,
        cost: Cost,
        last_change: u64,
    ) {
        fixed_window::undo_charge(windows, &mut self.states, cost);
        self.set_last_change(last_change);
    }
}
