//! Leases: units that this instance has charged ahead, and spends without asking the server.
//!
//! * **The limits hold** for any number of instances. Each spent unit was charged before, in every
//!   window of the policy, and is spent before the first of these windows ends. If an instance dies
//!   or a reply is lost, units stay unspent, but no unit is spent twice. `DESIGN.md` has the proof.
//!   If a clock jumps, at most one lease for each instance exceeds a limit.
//! * **Unspent units are returned** when the first window ends, after an idle time, at the end of
//!   the lease's lifetime, and when the store is closed. Until then, other instances may be denied
//!   because of them: at most one lease for each instance.
//! * **A denied request charges nothing**: the script leases units only if they suffice for the
//!   request.
//! * **One call can lease for many subjects**, if their leases have the same size and policy.
//! * **A lease starts small**. Each lease is twice as large as the one before, up to the setting.
//!   It is never more than a quarter of the units that remained on the server.
//! * Only checks under fixed windows that begin with the first request use leases. All other
//!   requests are forwarded.
//!
//! ```text
//!              enough unspent units
//! check ─────────────────────────────────► spend ─────► decision
//!   │ too few
//!   ▼
//! refill lock ─► lease from the server ─► add to the slot ─► spend, or deny
//! ```

mod parts;
mod returning;
mod slot;
mod table;

use std::sync::Arc;
use std::time::Duration;

pub(crate) use parts::TakenUnits;
use returning::UnitReturner;
use slot::{ActiveLease, ReturnedUnits};
use table::{LeaseTable, RefillGuard};
use tokio::runtime::Handle;

use super::denial_cache::{DenialCache, Lookup, RequestStamp};
use super::monotonic::{MonotonicClock, safe_deadline};
use crate::decision::Decision;
use crate::maybe_ready::MaybeReady;
use crate::model::{Cost, StoreError};
use crate::policy::Policy;
use crate::store::redis::encoding::policy::is_fixed_windows;
use crate::store::redis::encoding::reply::{CallArgs, ScriptReply};
use crate::store::redis::give_back::GiveBack;
use crate::store::redis::layer::{
    Amendment, Layer, LeaseRequest, OwnedPartRequest, PartRequest, runtime_has_ended,
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
    clock: Arc<MonotonicClock>,
    runtime: Handle,
}

/// A request that has to wait for a refill.
struct LeaseRefill {
    policy: Policy,
    cost: Cost,
    stamp: Option<RequestStamp>,
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
                clock,
                runtime,
            }),
        }
    }

    /// Returns the layer below, which caches denials.
    pub(crate) fn denials(&self) -> &DenialCache<S> {
        &self.shared.inner
    }

    /// Decides a request without asking the server: with leased units, or by a cached denial.
    pub(crate) fn decide_locally(&self, request: PartRequest<'_>) -> Option<Decision> {
        if !request.is_plain_check() {
            return None;
        }
        self.spend(request).or_else(|| self.shared.inner.decide_locally(request))
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

    /// Spends leased units, if enough are left.
    #[inline(always)]
    fn spend(&self, request: PartRequest<'_>) -> Option<Decision> {
        if !Self::is_enabled(&self.shared) {
            return None;
        }
        let mut slots = self.shared.table.lock();
        slots.get_mut(&request.subject.key)?.spend(request.policy, request.cost, request.now)
    }

    /// Returns whether a lease could allow this request, for which too few units are left.
    fn can_lease(&self, request: PartRequest<'_>) -> bool {
        let is_too_dear = request.cost.units() > self.shared.max_units
            && self.shared.table.lock().get(&request.subject.key).is_none();
        is_fixed_windows(request.policy) && !is_too_dear && !self.shared.returner.is_closed()
    }

    /// Waits for the refill lock. Then decides with the units that are left, or leases more.
    async fn decide_after_refill(self, request: OwnedPartRequest) -> Result<Decision, StoreError> {
        let LeasesShared { inner, table, returner, max_units, clock, runtime, .. } = &*self.shared;
        let request = request.as_ref();
        let enter = |max| table.enter(request.subject.to_owned(), max);
        let slot = enter(MAX_SUBJECTS).or_else(|| enter(returner.make_room(MAX_SUBJECTS)));
        let Some(slot) = slot else { return inner.decide(request).await };
        let mut guard = slot.lock_refill().await;

        // While this task waited, another task may have leased units, or may have found that the
        // request is denied.
        let request = request.at(clock.now());
        let PartRequest { policy, cost, now, .. } = request;
        if let Some(decision) = guard.slot.with(|slot| slot.spend(policy, cost, now)) {
            return Ok(decision);
        }
        let stamp = match inner.lookup(request) {
            Lookup::Denied(denial) => return Ok(denial),
            Lookup::Unknown(stamp) => stamp,
        };
        let is_hopeless = guard.slot.with(|slot| slot.is_hopeless(policy, cost, now));
        if is_hopeless || returner.is_closed() {
            drop(guard);
            return inner.decide(request).await;
        }

        // Units are returned and leased in a separate task, so that none are lost if the request is
        // cancelled.
        let refill = LeaseRefill { policy: policy.clone(), cost, stamp };
        let (this, is_too_dear) = (self.clone(), cost.units() > *max_units);
        // Boxed, so that only a pointer is moved while the task is spawned.
        let decided = runtime.spawn(Box::pin(async move {
            if is_too_dear {
                this.empty(&guard).await;
                return Ok(None);
            }
            this.refill(&mut guard, &refill).await
        }));
        match decided.await.unwrap_or_else(|_| Err(runtime_has_ended()))? {
            Some(decision) => Ok(decision),
            None => inner.decide(request).await,
        }
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
        let LeaseRefill { policy, cost, .. } = refill;
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
        let subject = guard.slot.subject.as_ref();
        let reply = inner.lease(LeaseRequest { subject, policy, units, least }).await?;
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
            since: last.at(),
            received_at,
            expires: safe_deadline(sent, micros.min(*lifetime_micros)),
            last_spent: received_at,
            unspent: leased,
            server_remaining: remaining,
        };
        if leased > 0 || remaining == 0 {
            guard.state.last_units = leased;
        }
        let added = guard.slot.with(|slot| slot.add(lease, *cost));
        if let Some(expired) = added.expired {
            // If the units cannot be returned, they stay charged. The error is ignored.
            let _ = returner.give_back(&guard.slot.subject, ReturnedUnits::from(expired)).await;
        }
        Ok(Leased { decision: added.decision, units: leased })
    }

    /// Runs `reset`, which resets these subjects, after their leased units are dropped.
    pub(crate) fn reset_after_leases(
        &self,
        mut subjects: Vec<KeyedSubject>,
        reset: StoreFuture<()>,
    ) -> StoreFuture<()> {
        let keys = subjects.iter().map(|subject| subject.key);
        let reset = self.shared.inner.invalidate_after(keys, reset);
        if !Self::is_enabled(&self.shared) {
            return reset;
        }
        // Each reset locks subjects in this order, and each subject once. Otherwise two resets
        // could wait for each other, or one for itself.
        subjects.sort_unstable_by_key(|subject| subject.key.bits());
        subjects.dedup_by_key(|subject| subject.key.bits());
        let this = self.clone();
        MaybeReady::later(async move {
            let mut guards = Vec::with_capacity(subjects.len());
            for subject in subjects {
                guards.push(this.clone().drop_lease(subject).await);
            }
            reset.await
        })
    }

    /// Drops the leased units of a subject. Until the returned guard is dropped, other tasks can
    /// neither spend nor lease units of the subject.
    async fn drop_lease(self, subject: KeyedSubject) -> Option<RefillGuard> {
        // The table may exceed its bound here, because a reset must not fail if the table is full.
        let guard = self.shared.table.enter(subject, usize::MAX)?.lock_refill().await;
        guard.slot.with(|slot| slot.lease = None);
        Some(guard)
    }
}

impl<S: Layer> Layer for Leases<DenialCache<S>> {
    fn decide(&self, request: PartRequest<'_>) -> StoreFuture<Decision> {
        let inner = &self.shared.inner;
        let can_spend = request.is_plain_check() && request.reservations == Reservations::Ignore;
        if !Self::is_enabled(&self.shared) || !can_spend {
            return inner.decide(request);
        }
        if let Some(decision) = self.spend(request) {
            return MaybeReady::ready(Ok(decision));
        }
        if let Lookup::Denied(denial) = inner.lookup(request) {
            return MaybeReady::ready(Ok(denial));
        }
        if !self.can_lease(request) {
            return inner.decide(request);
        }
        MaybeReady::later(self.clone().decide_after_refill(request.to_owned()))
    }

    fn lease(&self, request: LeaseRequest<'_>) -> StoreFuture<ScriptReply> {
        self.shared.inner.lease(request)
    }

    fn amend(&self, amendment: Amendment<'_>) -> StoreFuture<Vec<u8>> {
        self.shared.inner.amend(amendment)
    }
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
    use crate::store::Namespace;
    use crate::store::redis::test_layer::{TestLayer, keyed};

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
        let enter_alice = || table.enter(alice.to_owned(), 1).unwrap();
        let first = enter_alice().lock_refill().await;
        let waiting = enter_alice();
        assert!(table.enter(bob.to_owned(), 1).is_none(), "the table is full");
        drop(first);
        assert_eq!(table.lock().get(&alice.key).map(|slot| slot.guards), Some(1));
        let guard = waiting.lock_refill().await;
        let cancelled = tokio::spawn(enter_alice().lock_refill());
        tokio::task::yield_now().await;
        drop(guard);
        cancelled.abort();
        drop(cancelled.await);
        assert_eq!(table.lock().len(), 0, "a cancelled task leaves nothing behind");
        drop(leases.clone().drop_lease(bob.to_owned()).await);
        assert_eq!(table.lock().len(), 0, "the slot had no lease");
    }

    /// Otherwise the resets would wait for each other, or for themselves.
    #[tokio::test]
    async fn resets_of_several_subjects_lock_them_in_one_order_and_each_once() {
        let leases = leases(failing());
        let (namespace, alice, bob) =
            (Namespace::default(), Subject::user("alice"), Subject::user("bob"));
        let owned = |subject: &Subject| keyed(&namespace, subject).to_owned();
        for _ in 0..100 {
            let (one, other) = (vec![&alice, &bob, &alice], vec![&bob, &alice]);
            let reset = |subjects: Vec<&Subject>| {
                let subjects = subjects.into_iter().map(owned).collect();
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
            let request = PartRequest {
                subject,
                policy: &policy,
                mode: Mode::Check,
                cost: Cost::new(1 + n % 6),
                reservations: Reservations::Ignore,
                now: leases.shared.clock.now(),
            };
            leases.decide(request).await.unwrap_err();
            let reset = leases.reset_after_leases(vec![subject.to_owned()], done());
            reset.await.unwrap();
        }
        assert_eq!(leases.shared.table.lock().len(), 0);
    }
}
