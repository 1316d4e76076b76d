//! Settles the charges of a request of several parts in one step.

use std::sync::Arc;

use smallvec::SmallVec;

use super::inner::{Account, PermitInner, ReservationState};
use crate::maybe_ready::{both, done};
use crate::store::StoreFuture;

/// Settles the charges of one request, except those that are settled already.
pub(super) fn settle_all(permits: &[Arc<PermitInner>]) -> StoreFuture<()> {
    let open = permits.iter().filter_map(|permit| Some((permit, permit.finish()?)));
    let open: SmallVec<[(&Arc<PermitInner>, Account); 2]> = open.collect();
    let is_reserved =
        |(_, account): &(_, Account)| !matches!(account.reservation, ReservationState::None);
    // If a charge is a reservation, the charges are settled one by one: each reply says whether the
    // reservation has expired.
    if open.iter().any(is_reserved) {
        let settled = open.into_iter().map(|(permit, account)| permit.settle_once(account));
        return settled.fold(done(), both);
    }
    let Some((first, _)) = open.first() else { return done() };
    let pipeline = Arc::clone(&first.pipeline);
    let settlements = open.iter().filter_map(|(permit, account)| permit.settlement(*account));
    let settlements: SmallVec<[_; 2]> = settlements.collect();
    let settled = pipeline.stores.settle(&first.decision, &settlements);
    let released: Vec<_> = open.iter().map(|(permit, _)| Arc::clone(permit)).collect();
    pipeline.settlements.notifying(settled, move |wait_queues| {
        released.iter().for_each(|permit| wait_queues.notify_released(permit.counters()));
    })
}
