//! Leases: units that this instance has charged ahead, and spends without asking the server.
//!
//! * **The limits hold** for any number of instances. Each spent unit was charged before, in every
//!   window of the policy, and is spent before the first of these windows ends. If an instance dies
//!   or a reply is lost, units stay unspent, but no unit is spent twice. `DESIGN.md` has the proof.
//!   If a clock jumps, at most one lease for each instance exceeds a limit.
//! * **Unspent units are returned** when the first window ends, after an idle time, at the end of
//!   the lease's lifetime, and when the store is closed. Until then, other instances may be denied
//!   because of them: at most one lease for each instance, and the units of requests in flight.
//! * **A denied request charges nothing**: the script leases units only if they suffice for the
//!   request.
//! * **One call can lease for many subjects**, if their leases have the same size and policy.
//! * **A lease starts small**. Each lease is twice as large as the one before, up to the setting.
//!   It is never more than a quarter of the units that remained on the server.
//! * Only checks under fixed windows that begin with the first request use leases. All other
//!   requests are forwarded.
//! * **Each part has its own lease.** The layer below decides the parts for which no units could be
//!   taken. If it denies the request, or if the request is cancelled, the taken units are given
//!   back: to their lease, or to the server if that lease has ended.
//!
//! ```text
//!              enough unspent units
//! check ─────────────────────────────────► take ─────► decision
//!   │ too few
//!   ▼
//! refill lock ─► lease from the server ─► add to the slot ─► take, or deny
//! ```

mod returning;
mod slot;
mod table;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use returning::UnitReturner;
use slot::{ActiveLease, ReturnedUnits};
use smallvec::{SmallVec, smallvec};
use table::{LeaseTable, RefillGuard};
use tokio::runtime::Handle;

use super::denial_cache::{DenialCache, Lookup, RequestStamp};
use super::{MonotonicClock, safe_deadline};
use crate::decision::{Decision, Origin};
use crate::maybe_ready::MaybeReady;
use crate::model::{Cost, StoreError};
use crate::store::part_groups::GroupDecisions;
use crate::store::redis::encoding::policy::is_fixed_windows;
use crate::store::redis::encoding::reply::{CallArgs, ScriptReply};
use crate::store::redis::give_back::GiveBack;
use crate::store::redis::layer::{
    Amendments, Layer, LeaseRequest, PlainCheck, Request, RequestPart, runtime_has_ended,
};
use crate::store::redis::subject_key::KeyedSubject;
use crate::store::{Mode, Reservations, StoreFuture};

/// The largest size of a lease, because one script call cannot count more units.
const MAX_LEASE: u16 = u16::MAX - 1;

/// The maximum number of subjects that hold leases.
const MAX_SUBJECTS: usize = 16_384;

/// The settings of leases.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LeaseSettings {
    /// The maximum number of units in one lease. 0 switches leases off.
    pub(crate) units: u64,
    /// The time without a spent unit after which the units are returned.
    pub(crate) idle: Duration,
    /// The maximum lifetime of a lease.
    pub(crate) lifetime: Duration,
}

/// The layer that spends leased units.
#[derive(Clone)]
pub(crate) struct Leases<L> {
    shared: Arc<LeasesShared<L>>,
}

struct LeasesShared<L> {
    inner: L,
    table: Arc<LeaseTable>,
    returner: UnitReturner<L>,
    max_units: u64,
    lifetime_micros: u64,
    /// The number of leases so far.
    leases: AtomicU64,
    clock: Arc<MonotonicClock>,
    runtime: Handle,
}

/// The units that were taken for each part of a request; `None` for a part that is decided below.
type Taken<S> = SmallVec<[Option<TakenUnits<S>>; 1]>;

/// Leased units that a request uses for one of its parts. They are given back when this is dropped,
/// unless they are kept.
struct TakenUnits<S: Layer> {
    leases: Leases<DenialCache<S>>,
    subject: KeyedSubject,
    /// The decision on the part; `None` once the units are kept.
    decision: Option<Decision>,
    /// The number of the lease.
    number: u64,
}

impl<S: Layer> TakenUnits<S> {
    /// Keeps the units charged when this is dropped. Returns the decision on the part.
    fn keep(mut self) -> Option<Decision> {
        self.decision.take()
    }
}

impl<S: Layer> Drop for TakenUnits<S> {
    fn drop(&mut self) {
        let Some(decision) = self.decision.take().filter(|decision| decision.charged() > 0) else {
            return;
        };
        let (shared, units) = (&self.leases.shared, decision.charged());
        let units = {
            let mut slots = shared.table.lock();
            let slot = slots.get_mut(&self.subject.key);
            slot.map_or(units, |slot| slot.put_back(self.number, units, shared.max_units))
        };
        let Some(policy) = decision.policy().filter(|_| units > 0) else { return };
        // The slot no longer has this lease, or it has enough units: each denied request may have
        // leased some. Otherwise a client over its own limit would take the units of the fleet from
        // other instances.
        let returned = ReturnedUnits { policy: policy.clone(), charged: decision.at(), units };
        shared.returner.give_back_later(self.subject.clone(), returned);
    }
}

/// A part of a request that has to wait for a refill.
struct LeaseRefill {
    part: RequestPart,
    stamp: Option<RequestStamp>,
}

/// The result of waiting for a refill.
enum AfterRefill<S: Layer> {
    Taken(TakenUnits<S>),
    /// The server has too few units for the part.
    Denied(Decision),
    /// The server has to decide the part. Leases cannot, for example because the cost exceeds the
    /// largest lease.
    Undecided,
}

/// The result of a call that leases units.
struct Leased {
    /// The decision. `None` if the slot has too few units, because others have expired or other
    /// tasks have spent them, but has enough together with those that remain on the server.
    decision: Option<Decision>,
    /// The units that were leased.
    units: u64,
}

impl<S: Layer> Leases<DenialCache<S>> {
    /// Creates the layer. Its tasks run in the runtime in which it is created.
    pub(crate) fn new(
        inner: DenialCache<S>,
        settings: LeaseSettings,
        give_back: GiveBack,
        clock: Arc<MonotonicClock>,
    ) -> Self {
        let table = Arc::<LeaseTable>::default();
        let returner = UnitReturner::new(
            inner.clone(),
            Arc::clone(&table),
            settings.idle,
            give_back,
            Arc::clone(&clock),
        );
        let max_units = settings.units.min(MAX_LEASE.into());
        if max_units > 0 && !clock.is_manual() {
            returner.start_sweeping();
        }
        let lifetime_micros = u64::try_from(settings.lifetime.as_micros()).unwrap_or(u64::MAX);
        let runtime = Handle::current();
        Self {
            shared: Arc::new(LeasesShared {
                inner,
                table,
                returner,
                max_units,
                lifetime_micros,
                leases: AtomicU64::new(0),
                clock,
                runtime,
            }),
        }
    }

    /// Returns the layer below, which caches denials.
    #[cfg(feature = "redis-cluster")]
    pub(crate) fn denials(&self) -> &DenialCache<S> {
        &self.shared.inner
    }

    /// Decides a request without asking the server: with leased units for all parts, or by a cached
    /// denial.
    pub(crate) fn decide_locally(&self, request: &Request) -> Option<GroupDecisions> {
        let taken = request.parts.iter().map(|part| self.take(request, part));
        let taken: Option<SmallVec<[TakenUnits<S>; 1]>> = taken.collect();
        match taken {
            Some(taken) => Some(taken.into_iter().filter_map(TakenUnits::keep).collect()),
            None => self.shared.inner.repeat_denial(request),
        }
    }

    /// Decides the only part of a request without asking the server: with leased units, or by a
    /// cached denial.
    pub(crate) fn try_shortcuts(
        &self,
        check: PlainCheck<'_>,
        reservations: Reservations,
    ) -> Option<Decision> {
        let can_lease = Self::is_enabled(&self.shared) && reservations == Reservations::Ignore;
        if can_lease && let Some((decision, _)) = self.spend(check) {
            return Some(decision);
        }
        match self.shared.inner.lookup(check) {
            Lookup::Denied(denial) => Some(denial),
            Lookup::Unknown(_) => None,
        }
    }

    /// Returns all unspent units to the server, and stops leasing.
    pub(crate) async fn close(&self) -> Result<(), StoreError> {
        self.shared.returner.close().await
    }

    /// Gives the units of expired or idle leases back to the server.
    #[cfg(feature = "conformance")]
    pub(crate) async fn return_idle(&self) {
        self.shared.returner.sweep().await;
    }

    const fn is_enabled(shared: &LeasesShared<DenialCache<S>>) -> bool {
        shared.max_units > 0
    }

    /// Returns the data by which leases decide this part, if they may.
    fn leasable<'a>(&self, request: &Request, part: &'a RequestPart) -> Option<PlainCheck<'a>> {
        let is_leasable = Self::is_enabled(&self.shared)
            && request.reservations == Reservations::Ignore
            && !part.is_shadow;
        request.plain_check(part).filter(|_| is_leasable)
    }

    /// Takes leased units for a part, if enough are left.
    fn take(&self, request: &Request, part: &RequestPart) -> Option<TakenUnits<S>> {
        let (decision, number) = self.spend(self.leasable(request, part)?)?;
        Some(self.taken(part, decision, number))
    }

    /// Spends leased units for a part, if enough are left. Returns the number of the lease too.
    fn spend(&self, check: PlainCheck<'_>) -> Option<(Decision, u64)> {
        let now = self.shared.clock.now();
        let mut slots = self.shared.table.lock();
        let slot = slots.get_mut(&check.key)?;
        let decision = slot.spend(check.policy, check.cost, now)?;
        Some((decision, slot.lease.as_ref()?.number))
    }

    fn taken(&self, part: &RequestPart, decision: Decision, number: u64) -> TakenUnits<S> {
        let (leases, subject) = (self.clone(), part.subject.clone());
        TakenUnits { leases, subject, decision: Some(decision), number }
    }

    /// Returns whether a lease could allow this part, for which too few units are left.
    fn can_lease(&self, request: &Request, part: &RequestPart) -> bool {
        self.leasable(request, part).is_some()
            && is_fixed_windows(&part.policy)
            && (part.cost.units() <= self.shared.max_units
                || self.shared.table.lock().contains_key(&part.subject.key))
            && !self.shared.returner.is_closed()
    }

    /// Refills the leases of the parts that need it, then forwards the parts that got no units.
    async fn refill_and_forward(
        self,
        request: Arc<Request>,
        mut taken: Taken<S>,
    ) -> Result<GroupDecisions, StoreError> {
        for (part, taken) in request.parts.iter().zip(&mut taken) {
            if taken.is_some() || !self.can_lease(&request, part) {
                continue;
            }
            let is_sole = request.parts.len() == 1;
            match self.take_after_refill(&request, part).await {
                Ok(AfterRefill::Taken(units)) => *taken = Some(units),
                Ok(AfterRefill::Denied(denial)) if is_sole => return Ok(smallvec![denial]),
                Err(error) if is_sole => return Err(error),
                // The server decides the part together with the others, whose status is then known
                // too.
                Ok(AfterRefill::Denied(_) | AfterRefill::Undecided) | Err(_) => {}
            }
        }
        self.forward_rest(request, taken).await
    }

    /// Decides the parts for which no units were taken in the layer below.
    fn forward_rest(&self, request: Arc<Request>, taken: Taken<S>) -> StoreFuture<GroupDecisions> {
        let inner = &self.shared.inner;
        if taken.iter().all(Option::is_none) {
            return inner.decide(request);
        }
        if taken.iter().all(Option::is_some) {
            let decisions = taken.into_iter().flatten().filter_map(TakenUnits::keep);
            return MaybeReady::ready(Ok(decisions.collect()));
        }
        let rest = request.parts.iter().zip(&taken).filter(|(_, taken)| taken.is_none());
        let rest = request.of_parts(rest.map(|(part, _)| part.clone()), request.mode);
        let decided = inner.decide(Arc::clone(&rest));
        MaybeReady::later(async move { Ok(with_taken(&request, &rest, taken, decided.await?)) })
    }

    /// Waits for the refill lock of a part's subject. Then takes the units that are left, or leases
    /// more.
    async fn take_after_refill(
        &self,
        request: &Request,
        part: &RequestPart,
    ) -> Result<AfterRefill<S>, StoreError> {
        let LeasesShared { inner, table, returner, max_units, clock, runtime, .. } = &*self.shared;
        let enter = |max| table.enter(part.subject.clone(), max);
        let slot = enter(MAX_SUBJECTS).or_else(|| enter(returner.make_room(MAX_SUBJECTS)));
        let Some(slot) = slot else { return Ok(AfterRefill::Undecided) };
        let guard = slot.lock_refill().await;

        // While this task waited, another task may have leased units, or may have found that the
        // part is denied.
        if let Some(taken) = self.take(request, part) {
            return Ok(AfterRefill::Taken(taken));
        }
        let looked_up = request.plain_check(part).map(|check| inner.lookup(check));
        let Some(Lookup::Unknown(stamp)) = looked_up else { return Ok(AfterRefill::Undecided) };
        let now = clock.now();
        let is_hopeless = guard.slot.with(|slot| slot.is_hopeless(&part.policy, part.cost, now));
        if is_hopeless || returner.is_closed() {
            return Ok(AfterRefill::Undecided);
        }

        // Units are returned and leased in a separate task, so that none are lost if the request is
        // cancelled.
        let (this, is_too_dear) = (self.clone(), part.cost.units() > *max_units);
        let refill = LeaseRefill { part: part.clone(), stamp };
        // Boxed, so that only a pointer is moved while the task is spawned.
        let refilled = runtime.spawn(Box::pin(async move {
            if is_too_dear {
                this.empty(&guard).await;
                return Ok(AfterRefill::Undecided);
            }
            this.refill_and_take(guard, refill).await
        }));
        refilled.await.unwrap_or_else(|_| Err(runtime_has_ended()))
    }

    async fn refill_and_take(
        &self,
        mut guard: RefillGuard,
        refill: LeaseRefill,
    ) -> Result<AfterRefill<S>, StoreError> {
        let Some(decision) = self.refill(&mut guard, &refill).await? else {
            return Ok(AfterRefill::Undecided);
        };
        if !decision.is_allowed() {
            return Ok(AfterRefill::Denied(decision));
        }
        let number = guard.slot.with(|slot| slot.lease.as_ref().map(|lease| lease.number));
        // No lease has the number `u64::MAX`, so units that the request does not keep go back to
        // the server.
        let number = number.unwrap_or(u64::MAX);
        Ok(AfterRefill::Taken(self.taken(&refill.part, decision, number)))
    }

    /// Leases units, and decides the request that needs them. Returns `None` if the server has to
    /// decide the request: all units of the subject have been returned to it.
    async fn refill(
        &self,
        guard: &mut RefillGuard,
        refill: &LeaseRefill,
    ) -> Result<Option<Decision>, StoreError> {
        let LeasesShared { inner, returner, .. } = &*self.shared;
        let mut units = 0;
        // If the unspent units do not last until the reply, the whole cost is leased.
        for counts_unspent in [true, false] {
            let leased = self.lease_more(guard, refill, counts_unspent).await?;
            units += leased.units;
            let Some(decision) = leased.decision else { continue };
            if !decision.is_allowed()
                && let Some(returned) = guard.slot.with(|slot| slot.take_back(units))
            {
                // A denied request charges nothing, so the units that were leased for it are
                // returned. If that fails, they stay charged, and the error is ignored.
                let _ = returner.give_back(&guard.slot.subject, returned).await;
            }
            inner.remember(guard.slot.subject.key, &decision, refill.stamp);
            return Ok(Some(decision));
        }
        self.empty(guard).await;
        Ok(None)
    }

    /// Returns all unspent units of a slot to the server. If that fails, they stay charged, and the
    /// error is ignored.
    async fn empty(&self, guard: &RefillGuard) {
        let _ = self.shared.returner.empty(guard).await;
    }

    /// Leases at least enough units to cover the cost, then decides.
    ///
    /// If `counts_unspent`, the unspent units in the slot reduce the number that must be leased.
    async fn lease_more(
        &self,
        guard: &mut RefillGuard,
        refill: &LeaseRefill,
        counts_unspent: bool,
    ) -> Result<Leased, StoreError> {
        let LeasesShared { inner, returner, max_units, lifetime_micros, clock, .. } = &*self.shared;
        let RequestPart { policy, cost, .. } = &refill.part;
        let now = clock.now();
        if guard.slot.with(|slot| slot.open(policy, now).is_none()) {
            self.empty(guard).await;
        }
        let (unspent, server_remaining) = guard.slot.with(|slot| match &slot.lease {
            Some(lease) => (if counts_unspent { lease.unspent } else { 0 }, lease.server_remaining),
            None => (0, u64::MAX),
        });
        let doubled = 2 * guard.state.last_units.max(1);
        let size = doubled.min(*max_units).min((server_remaining / 4).max(1));
        let least = lease_units(cost.units().saturating_sub(unspent).max(1));
        let units = lease_units(size).max(least);

        let sent = clock.now();
        let subject = guard.slot.subject.clone();
        let request = LeaseRequest::new(subject, policy.clone(), units, least);
        let reply = inner.lease(request).await?;
        let received_at = clock.now();
        let last = CallArgs { policy, mode: Mode::Check, cost: Cost::ONE };
        let last = reply.decision(units - 1, last);
        let (leased, remaining) = (u64::from(reply.allowed_calls()), reply.least_remaining(policy));
        let active = last.limits().filter(|limit| limit.is_active());
        let first_end = active.map(|limit| limit.reset_after_decision()).min().unwrap_or_default();
        let micros = u64::try_from(first_end.as_micros()).unwrap_or(u64::MAX);
        let lease = ActiveLease {
            policy: policy.clone(),
            reply,
            charged: last.at(),
            number: self.shared.leases.fetch_add(1, Ordering::Relaxed),
            received_at,
            expires: safe_deadline(sent, micros.min(*lifetime_micros)),
            last_spent: received_at,
            unspent: leased,
            server_remaining: remaining,
        };
        if leased > 0 || remaining == 0 {
            guard.state.last_units = leased;
        }
        let (added, surplus) = guard.slot.with(|slot| {
            let added = slot.add(lease, *cost);
            (added, slot.take_back(slot.unspent().saturating_sub(*max_units)))
        });
        // Denied requests may have put units back since the call was sent.
        if let Some(surplus) = surplus.filter(|surplus| surplus.units > 0) {
            returner.give_back_later(guard.slot.subject.clone(), surplus);
        }
        if let Some(expired) = added.expired {
            // If the units cannot be returned, they stay charged. The error is ignored.
            let _ = returner.give_back(&guard.slot.subject, ReturnedUnits::from(expired)).await;
        }
        Ok(Leased { decision: added.decision, units: leased })
    }

    /// Runs `reset`, which resets these subjects, after their leases have ended. If only one limit
    /// of a subject is reset, which the flag says, the unspent units are given back afterwards,
    /// because the other limits still count them.
    pub(crate) fn reset_after_leases(
        &self,
        mut subjects: Vec<(KeyedSubject, bool)>,
        reset: StoreFuture<()>,
    ) -> StoreFuture<()> {
        let keys = subjects.iter().map(|(subject, _)| subject.key);
        let reset = self.shared.inner.invalidate_after(keys, reset);
        if !Self::is_enabled(&self.shared) {
            return reset;
        }
        // Each reset locks subjects in this order, and each subject once. Otherwise two resets
        // could wait for each other, or one for itself.
        subjects.sort_unstable_by_key(|(subject, _)| subject.key.bits());
        subjects.dedup_by(|(other, of_one_limit), (subject, keeps)| {
            let is_same = other.key == subject.key;
            *keeps |= is_same && *of_one_limit;
            is_same
        });
        let this = self.clone();
        MaybeReady::later(async move {
            let (mut guards, mut kept) = (Vec::with_capacity(subjects.len()), Vec::new());
            for (subject, of_one_limit) in subjects {
                let Some((guard, lease)) = this.clone().end_lease(subject).await else { continue };
                let kept_lease = lease.filter(|_| of_one_limit);
                kept.extend(kept_lease.map(|lease| (guard.slot.subject.clone(), lease)));
                guards.push(guard);
            }
            let reset = reset.await;
            for (subject, lease) in kept {
                this.shared.returner.give_back_later(subject, lease.into());
            }
            reset
        })
    }

    /// Ends the lease of a subject, and returns it. Until the returned guard is dropped, other
    /// tasks can neither spend nor lease units of the subject.
    async fn end_lease(self, subject: KeyedSubject) -> Option<(RefillGuard, Option<ActiveLease>)> {
        // The table may exceed its bound here, because a reset must not fail if the table is full.
        let guard = self.shared.table.enter(subject, usize::MAX)?.lock_refill().await;
        let lease = guard.slot.with(|slot| slot.lease.take());
        Some((guard, lease))
    }
}

impl<S: Layer> Layer for Leases<DenialCache<S>> {
    fn decide(&self, request: Arc<Request>) -> StoreFuture<GroupDecisions> {
        let inner = &self.shared.inner;
        if !Self::is_enabled(&self.shared) {
            return inner.decide(request);
        }
        let taken: Taken<S> = request.parts.iter().map(|part| self.take(&request, part)).collect();
        let rest = || request.parts.iter().zip(&taken).filter(|(_, taken)| taken.is_none());
        let is_denied = |part: &RequestPart| {
            let looked_up = self.leasable(&request, part).map(|check| inner.lookup(check));
            matches!(looked_up, Some(Lookup::Denied(_)))
        };
        let needs_refill = rest().any(|(part, _)| self.can_lease(&request, part))
            && !rest().any(|(part, _)| is_denied(part));
        if needs_refill {
            MaybeReady::later(self.clone().refill_and_forward(request, taken))
        } else {
            self.forward_rest(request, taken)
        }
    }

    fn lease(&self, request: LeaseRequest) -> StoreFuture<ScriptReply> {
        self.shared.inner.lease(request)
    }

    fn amend(&self, amendments: Amendments) -> StoreFuture<Vec<u8>> {
        self.shared.inner.amend(amendments)
    }
}

/// Returns the decisions on all parts of `request`, after the layer below has decided the `rest`.
/// If it denies the request, the taken units are given back.
fn with_taken<S: Layer>(
    request: &Request,
    rest: &Request,
    taken: Taken<S>,
    decided: GroupDecisions,
) -> GroupDecisions {
    let mut enforced = rest.parts.iter().zip(&decided).filter(|(part, _)| !part.is_shadow);
    let is_denied = enforced.any(|(_, decision)| !decision.is_allowed());
    let first = decided.first();
    let at = first.map(Decision::at).unwrap_or_default();
    // Parts with taken units get the origin of the other parts, because the request needed those
    // too.
    let origin = first.map_or(Origin::Store, Decision::origin);
    let mut decided = decided.into_iter();
    let decision = |(part, taken): (&RequestPart, Option<TakenUnits<S>>)| match taken {
        None => decided.next(),
        Some(taken) if !is_denied => Some(taken.keep()?.with_origin(origin)),
        Some(_) => Some(part.unknown_status(at).with_origin(origin)),
    };
    request.parts.iter().zip(taken).filter_map(decision).collect()
}

/// Converts a number of units to the size of a lease.
fn lease_units(units: u64) -> u16 {
    u16::try_from(units).unwrap_or(MAX_LEASE).min(MAX_LEASE)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::maybe_ready::done;
    use crate::model::{FailureKind, Limit, Subject};
    use crate::policy::Policy;
    use crate::store::Namespace;
    use crate::store::redis::test_layer::{TestLayer, check, keyed};

    fn leases(inner: TestLayer) -> Leases<DenialCache<TestLayer>> {
        let (idle, lifetime) = (Duration::from_secs(10), Duration::from_secs(60));
        let settings = LeaseSettings { units: 4, idle, lifetime };
        let clock = Arc::new(MonotonicClock::new(None));
        let cache = DenialCache::new(inner, true, Arc::clone(&clock));
        Leases::new(cache, settings, GiveBack::new("test", Duration::from_secs(1)), clock)
    }

    fn failing() -> TestLayer {
        TestLayer::new(|_| Err(StoreError::new(FailureKind::Unavailable)))
    }

    #[tokio::test]
    async fn all_tasks_of_a_subject_share_a_slot_and_the_last_one_removes_it() {
        let leases = leases(failing());
        let (namespace, alice, bob) =
            (Namespace::default(), Subject::user("alice"), Subject::user("bob"));
        let [alice, bob] = [&alice, &bob].map(|subject| keyed(&namespace, subject));
        let table = &leases.shared.table;
        let enter_alice = || table.enter(alice.clone(), 1).unwrap();
        let first = enter_alice().lock_refill().await;
        let waiting = enter_alice();
        assert!(table.enter(bob.clone(), 1).is_none(), "the table is full");
        drop(first);
        assert_eq!(table.lock().get(&alice.key).map(|slot| slot.guards), Some(1));
        let guard = waiting.lock_refill().await;
        let cancelled = tokio::spawn(enter_alice().lock_refill());
        tokio::task::yield_now().await;
        drop(guard);
        cancelled.abort();
        drop(cancelled.await);
        assert_eq!(table.lock().len(), 0, "a cancelled task leaves nothing behind");
        drop(leases.clone().end_lease(bob.clone()).await);
        assert_eq!(table.lock().len(), 0, "the slot had no lease");
    }

    /// Otherwise the resets would wait for each other, or for themselves.
    #[tokio::test]
    async fn resets_of_several_subjects_lock_them_in_one_order_and_each_once() {
        let leases = leases(failing());
        let (namespace, alice, bob) =
            (Namespace::default(), Subject::user("alice"), Subject::user("bob"));
        let owned = |subject: &Subject| keyed(&namespace, subject);
        for _ in 0..100 {
            let (one, other) = (vec![&alice, &bob, &alice], vec![&bob, &alice]);
            let reset = |subjects: Vec<&Subject>| {
                let subjects =
                    subjects.into_iter().map(|subject| (owned(subject), false)).collect();
                tokio::spawn(leases.reset_after_leases(subjects, done()))
            };
            let (one, other) = tokio::join!(reset(one), reset(other));
            assert!(one.unwrap().is_ok() && other.unwrap().is_ok());
        }
        assert_eq!(leases.shared.table.lock().len(), 0, "the slots had no leases");
    }

    #[tokio::test]
    async fn subjects_without_leased_units_have_no_slot() {
        let leases = leases(failing());
        let (namespace, policy) =
            (Namespace::default(), Policy::new([Limit::per_hour(10)]).unwrap());
        for n in 0..20 {
            let subject = Subject::user(&n.to_string());
            let subject = keyed(&namespace, &subject);
            leases.decide(check(&subject, &policy, 1 + n % 6)).await.unwrap_err();
            let reset = leases.reset_after_leases(vec![(subject.clone(), false)], done());
            reset.await.unwrap();
        }
        assert_eq!(leases.shared.table.lock().len(), 0);
    }
}
