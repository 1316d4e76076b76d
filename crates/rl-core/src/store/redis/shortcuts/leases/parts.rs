//! Leased units for one part of a request of several parts.
//!
//! Units are taken from the lease before the other parts are decided. If another part denies the
//! request, or if the request is cancelled, the units are given back. They return to the lease they
//! were taken from, or to the server if that lease has ended.

use super::slot::ReturnedUnits;
use super::table::RefillGuard;
use super::{DenialCache, LeaseRefill, Leases, LeasesShared, MAX_SUBJECTS};
use crate::decision::Decision;
use crate::store::redis::encoding::policy::is_fixed_windows;
use crate::store::redis::layer::{Layer, OwnedPartRequest, PartRequest};
use crate::store::redis::shortcuts::Lookup;
use crate::store::redis::subject_key::KeyedSubject;
use crate::time::Timestamp;

/// Leased units that a request uses for one of its parts. They are given back when this is dropped,
/// unless the request is allowed and `keep` was called.
pub(crate) struct TakenUnits<S: Layer> {
    leases: Leases<DenialCache<S>>,
    subject: KeyedSubject,
    decision: Decision,
    /// The time of the first charge of the lease, which identifies its windows.
    since: Timestamp,
    is_kept: bool,
}

impl<S: Layer> TakenUnits<S> {
    /// Keeps the units charged when this is dropped. Returns the decision on the part.
    pub(crate) fn keep(mut self) -> Decision {
        self.is_kept = true;
        self.decision.clone()
    }
}

impl<S: Layer> Drop for TakenUnits<S> {
    fn drop(&mut self) {
        let units = self.decision.charged();
        if self.is_kept || units == 0 {
            return;
        }
        let shared = &self.leases.shared;
        let is_returned = {
            let mut slots = shared.table.lock();
            let slot = slots.get_mut(&self.subject.key);
            slot.is_some_and(|slot| slot.put_back(self.since, units))
        };
        let Some(policy) = self.decision.policy().filter(|_| !is_returned) else { return };
        // The slot no longer has this lease, so the units cannot go back to it. They are returned
        // to the server.
        let returned = ReturnedUnits { policy: policy.clone(), charged: self.decision.at(), units };
        let (returner, subject) = (shared.returner.clone(), self.subject.clone());
        shared.runtime.spawn(async move {
            // If the units cannot be returned, they stay charged. The error is ignored.
            let _ = returner.give_back(&subject, returned).await;
        });
    }
}

impl<S: Layer> Leases<DenialCache<S>> {
    /// Returns whether units may be leased for a part of a request.
    pub(crate) fn can_take(&self, request: PartRequest<'_>) -> bool {
        Self::is_enabled(&self.shared)
            && request.is_plain_check()
            && request.cost.units() <= self.shared.max_units
            && is_fixed_windows(request.policy)
            && !self.shared.returner.is_closed()
    }

    /// Takes leased units, if enough are left.
    pub(crate) fn take(&self, request: PartRequest<'_>) -> Option<TakenUnits<S>> {
        let mut slots = self.shared.table.lock();
        let slot = slots.get_mut(&request.subject.key)?;
        let decision = slot.spend(request.policy, request.cost, request.now)?;
        let since = slot.lease.as_ref()?.since;
        let subject = request.subject.to_owned();
        drop(slots);
        Some(TakenUnits { leases: self.clone(), subject, decision, since, is_kept: false })
    }

    /// Leases units, and takes those that the part needs. Returns `None` if the server has to
    /// decide the part together with the others, for example because too few units remain there, or
    /// because the call fails.
    pub(crate) async fn take_after_refill(
        &self,
        request: OwnedPartRequest,
    ) -> Option<TakenUnits<S>> {
        let LeasesShared { inner, table, returner, clock, runtime, .. } = &*self.shared;
        let request = request.as_ref();
        let enter = |max| table.enter(request.subject.to_owned(), max);
        let slot = enter(MAX_SUBJECTS).or_else(|| enter(returner.make_room(MAX_SUBJECTS)))?;
        let guard = slot.lock_refill().await;

        // While this task waited, another task may have leased units, or may have found that the
        // part is denied.
        let request = request.at(clock.now());
        if let Some(taken) = self.take(request) {
            return Some(taken);
        }
        let PartRequest { policy, cost, now, .. } = request;
        let Lookup::Unknown(stamp) = inner.lookup(request) else { return None };
        let is_hopeless = guard.slot.with(|slot| slot.is_hopeless(policy, cost, now));
        if is_hopeless || returner.is_closed() {
            return None;
        }
        let refill = LeaseRefill { policy: policy.clone(), cost, stamp };
        let this = self.clone();
        // The refill runs in a separate task, so that no units are lost if the request is
        // cancelled.
        let taken = Box::pin(async move { this.refill_and_take(guard, refill).await });
        runtime.spawn(taken).await.ok().flatten()
    }

    async fn refill_and_take(
        &self,
        mut guard: RefillGuard,
        refill: LeaseRefill,
    ) -> Option<TakenUnits<S>> {
        let decision = self.refill(&mut guard, &refill).await.ok()??;
        if !decision.is_allowed() {
            return None;
        }
        let subject = guard.slot.subject.clone();
        let since = guard.slot.with(|slot| slot.lease.as_ref().map(|lease| lease.since))?;
        Some(TakenUnits { leases: self.clone(), subject, decision, since, is_kept: false })
    }
}
