//! The judgement of a request that charges nothing.

use super::UnpackedEntry;
use crate::store::memory::run::{self, DecideArgs};
use crate::time::Timestamp;

impl UnpackedEntry {
    /// Returns whether a check of `args` would be granted, and the time of this judgement. Returns
    /// `None` if the limits of the policy do not use the states of the entry.
    pub(in crate::store::memory) fn try_judge(
        &self,
        args: DecideArgs<'_>,
    ) -> Option<(bool, Timestamp)> {
        let at = self.decision_time(args.now);
        self.has_states_of(args.policy).then(|| (run::would_grant(&args, self.states(), at), at))
    }
}
