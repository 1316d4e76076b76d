//! Decisions on one group of a request of several parts, with an undo.

use super::Shard;
use crate::decision::Decision;
use crate::store::fingerprint::Fingerprint;
use crate::store::memory::entry::Entry;
use crate::store::memory::packed_entry::PackedEntry;
use crate::store::memory::run::DecideArgs;

impl Shard {
    /// Decides for one group of parts, as [`try_decide_fast`](Self::try_decide_fast) does. Also
    /// returns the entry as it was before, so that [`undo`](Self::undo) can take back the charge.
    pub(in crate::store::memory) fn try_decide_group(
        &mut self,
        subject: Fingerprint,
        args: DecideArgs<'_>,
    ) -> Option<(Decision, PackedEntry)> {
        let DecideArgs { policy, cost, .. } = args;
        let (packed, windows, time_base) = self.packed_windows(subject, policy)?;
        let before = packed.clone();
        let fast = packed.try_decide_fast(windows, time_base, args)?;
        let decision = Decision::from_windows(policy, cost, fast.at, fast.is_allowed, fast.states);
        Some((decision, before))
    }

    /// Takes back a charge that has just been made. `before` is the entry before that charge.
    pub(in crate::store::memory) fn undo(&mut self, subject: Fingerprint, before: PackedEntry) {
        if let Some(entry) = self.entries.get_mut(subject) {
            *entry = Entry::Packed(before);
        }
    }
}
