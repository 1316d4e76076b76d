//! Settles the charges of several subjects.

use smallvec::SmallVec;

use super::RedisStore;
use super::subject_key::SubjectKey;
use crate::maybe_ready::{MaybeReady, both, done};
use crate::model::{FailureKind, StoreError};
use crate::store::{Refund, Settlement, Store, StoreFuture};

impl RedisStore {
    /// Settles the charges of several subjects in one script call.
    ///
    /// On a cluster, subjects in different slots are settled by calls of their own.
    pub(super) fn settle_all(&self, settlements: &[Settlement<'_>]) -> StoreFuture<()> {
        let open = settlements.iter().filter(|settlement| !settlement.is_empty());
        let open: SmallVec<[Settlement<'_>; 4]> = open.copied().collect();
        if let [settlement] = &open[..]
            && let Some(refund) = sole_refund(settlement)
        {
            return self.refund(refund);
        }
        let is_same = |(index, one): (usize, &Settlement<'_>)| {
            open[index + 1..].iter().any(|other| one.has_counters_of(other))
        };
        if open.iter().enumerate().any(is_same) {
            let error = StoreError::new(FailureKind::Unsupported);
            let error = error.with_detail("several settlements of one subject in one call");
            return MaybeReady::ready(Err(error));
        }
        let key = |settlement: &Settlement<'_>| -> SubjectKey {
            self.keyed(settlement.namespace, settlement.subject).key
        };
        let settled = self.inner.executor.settle(&open);
        let settled = settled.into_iter().fold(done(), both);
        self.inner.layers.denials().invalidate_after(open.iter().map(key), settled)
    }
}

/// Returns the refund of a settlement that consists of one refund and no further charge; otherwise
/// `None`.
fn sole_refund<'a>(settlement: &Settlement<'a>) -> Option<Refund<'a>> {
    let (release, refund) = (settlement.release(), settlement.refund());
    match (release.is_empty(), refund.is_empty()) {
        (false, true) if settlement.added == 0 => Some(release),
        (true, false) if settlement.added == 0 => Some(refund),
        _ => None,
    }
}
