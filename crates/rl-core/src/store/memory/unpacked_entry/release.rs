//! Releases of permits.

use super::UnpackedEntry;
use crate::store::Refund;
use crate::time::Timestamp;

impl UnpackedEntry {
    /// Releases permits at the time `now` under a policy of one concurrency limit, if the entry has
    /// no other states and the limit is not full afterwards. Otherwise returns `false` and changes
    /// nothing.
    pub(in crate::store::memory) fn try_release(
        &mut self,
        release: &Refund<'_>,
        now: Timestamp,
    ) -> bool {
        let Refund { policy, charged, units, .. } = *release;
        let Some(extra) = &mut self.extra else { return false };
        let is_released = self.policy.is_same_handle(policy)
            && extra.foreign.is_empty()
            && charged <= self.last_change
            && policy.plan().sole_step().is_some_and(|step| {
                extra.logs.first_mut().is_some_and(|log| step.try_release(log, charged, units))
            });
        if is_released {
            self.last_change = self.decision_time(now);
            self.denied_until = Timestamp::EPOCH;
        }
        is_released
    }

    /// Returns whether the entry contains permits that `refund` would release.
    pub(in crate::store::memory) fn holds(&self, refund: &Refund<'_>, now: Timestamp) -> bool {
        (0..refund.policy.limits().len()).any(|index| self.held(refund, index, now) > 0)
    }
}
