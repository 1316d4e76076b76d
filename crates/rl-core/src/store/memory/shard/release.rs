//! Releases of permits.

use super::Shard;
use crate::policy::LimitSet;
use crate::store::fingerprint::Fingerprint;
use crate::store::memory::entry::Entry;
use crate::store::{Refund, RefundOf};
use crate::time::Timestamp;

impl Shard {
    /// Releases permits at the time `now` under a policy of one concurrency limit, if that needs no
    /// judgement of the record. Otherwise returns `false` and changes nothing.
    #[inline(always)]
    pub(in crate::store::memory) fn try_release(
        &mut self,
        subject: Fingerprint,
        release: &Refund<'_>,
        now: Timestamp,
    ) -> bool {
        if release.of != RefundOf::Permits || release.uncharged != LimitSet::EMPTY {
            return false;
        }
        match self.entries.get_mut(subject) {
            Some(Entry::Unpacked(entry)) => entry.try_release(release, now),
            _ => false,
        }
    }
}
