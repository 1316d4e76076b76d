//! A store in the memory of this process.
//!
//! ```text
//! MemoryStore
//!   Fingerprinter    subject -> Fingerprint, 16 bytes                          (store/fingerprint.rs)
//!   64 × Shard       under one lock each; eviction                             (shard.rs)
//!     Table          Fingerprint -> Entry, 88 bytes for a record, and an index (table.rs)
//!       Entry        PackedEntry, or UnpackedEntry if that does not fit        (entry.rs)
//!     LayoutRegistry the windows that the lanes of a packed entry hold          (layout.rs)
//! ```
//!
//! One decision hashes the subject, locks the shard, reads the clock, and finds the entry. Under up
//! to six fixed windows, one comparison of the lanes of a packed entry decides nearly all requests.
//! Otherwise the decision runs the plan of the policy over the states of the entry (`run.rs`,
//! `algorithm/plan.rs`). The plan judges all limits, then charges all of them or none. A request of
//! several parts locks the shards of all its subjects (`parts.rs`).

mod entry;
mod layout;
mod locked_shards;
mod packed_entry;
mod parts;
mod run;
mod shard;
mod table;
#[cfg(test)]
mod tests;
mod unpacked_entry;

use std::fmt;
use std::sync::{Mutex, MutexGuard, Once};

use locked_shards::{LockOrder, LockedShards, SHARDS, lock};
use packed_entry::{FastDecision, TimeBase};
use run::{DecideArgs, TooManyStates};
use shard::{MAX_SUBJECTS, Shard};
use smallvec::SmallVec;

use super::fingerprint::{Fingerprint, Fingerprinter};
use super::{
    DecideRequest, Lease, LeaseStatus, LimiterRegistry, Refund, Renewal, Reset, Settlement, Store,
    StoreFuture, StoreReport,
};
use crate::decision::Decision;
use crate::maybe_ready::MaybeReady;
use crate::model::{Cost, FailureKind, Mode, StoreError, TOO_MANY_STATES};
use crate::observe;
use crate::policy::Policy;
use crate::stats::{MemoryStats, StoreStats, next_store_id};
use crate::time::{Clock, SystemClock, Timestamp};

/// A store that keeps the counters in this process. It is the default, and needs no server.
///
/// * **One lock, one look-up and one reading of the clock for each decision**, for all limits of
///   the policy. A decision on a known subject allocates nothing.
/// * **Bounded**: the store holds at most [`capacity`](MemoryStoreBuilder::capacity) subjects, by
///   default one million. Each new subject drops expired ones, so no background thread is needed.
///   When the store is full, a new subject evicts another one. A few subjects are inspected, and
///   the one that has used the smallest fraction of its limits is evicted. If it returns, its
///   limits begin anew. A subject that is denied, or has used up a limit, is never evicted. If all
///   inspected subjects are like this, new subjects of all rules share one counter until there is
///   room again.
/// * **Small**: a subject takes about 95 bytes, however long its id is. That covers up to six fixed
///   windows. Other policies take some 16 bytes more, and 16 for each fixed window, 32 for each
///   window counter, GCRA limit or token bucket, and 8 for each bucket of a sliding window. A
///   sliding log and a concurrency limit take some 170 bytes more, and 16 to 32 for each entry. If
///   there are many entries, and none has more than 255 units, each takes 10 to 19 bytes.
/// * Counters are local to the process, and are lost when it ends. `RedisStore` (feature `redis`)
///   has shared counters.
///
/// # Example
///
/// ```
/// use rl_core::time::ManualClock;
/// use rl_core::{Limit, MemoryStore, RateLimiter, Subject};
/// use std::sync::Arc;
/// use std::time::Duration;
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let clock = Arc::new(ManualClock::default());
/// let store = MemoryStore::builder().capacity(10_000).clock(clock.clone()).build();
/// let limiter = RateLimiter::builder().limit(Limit::per_minute(1)).store(store).build()?;
///
/// let alice = Subject::user("alice");
/// assert!(limiter.check(&alice, 1).await.is_allowed());
/// assert!(!limiter.check(&alice, 1).await.is_allowed());
/// clock.advance(Duration::from_secs(60));
/// assert!(limiter.check(&alice, 1).await.is_allowed());
/// # Ok(()) }
/// ```
pub struct MemoryStore<C = SystemClock> {
    shards: Box<[Mutex<Shard>; SHARDS]>,
    fingerprinter: Fingerprinter,
    registry: LimiterRegistry,
    clock: C,
    /// The number of the store in this process.
    id: u64,
}

impl MemoryStore {
    /// Creates an empty store for up to one million subjects, on the system clock.
    #[must_use]
    pub fn new() -> Self {
        Self::builder().build()
    }

    /// Returns a builder for a store with other settings.
    pub fn builder() -> MemoryStoreBuilder {
        MemoryStoreBuilder { capacity: 1_000_000, clock: SystemClock }
    }
}

impl Default for MemoryStore {
    fn default() -> Self {
        Self::new()
    }
}

impl<C: Clock> MemoryStore<C> {
    /// Returns the number of subjects that the store holds. It includes expired subjects that are
    /// not dropped yet.
    #[must_use]
    pub fn len(&self) -> usize {
        self.shards.iter().map(|shard| lock(shard).len()).sum()
    }

    /// Returns the counts of the store. Locks one shard after the other.
    #[must_use]
    pub fn stats(&self) -> MemoryStats {
        let (mut subjects, mut capacity, mut evicted) = (0, 0, 0);
        for shard in self.shards.iter() {
            let shard = lock(shard);
            subjects += shard.len() as u64;
            capacity += shard.capacity() as u64;
            evicted += shard.evicted();
        }
        MemoryStats::new(self.id, subjects, capacity, evicted)
    }

    /// Returns whether the store holds no subject.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn shard(&self, subject: Fingerprint) -> MutexGuard<'_, Shard> {
        lock(&self.shards[subject.spread(SHARDS)])
    }

    /// Releases the permits and refunds the units of one subject, under the lock of its shard
    /// alone.
    fn give_back(&self, settlement: &Settlement<'_>) {
        let Settlement { namespace, subject, .. } = *settlement;
        let subject = self.fingerprinter.fingerprint(namespace, subject);
        let (release, refund) = (settlement.release(), settlement.refund());
        let mut shard = self.shard(subject);
        let now = self.clock.now();
        give_back(&mut shard, subject, [&release, &refund], now);
    }

    /// Settles the charges of all subjects while their shards are locked.
    ///
    /// # Errors
    ///
    /// Fails and changes nothing if a charge would exceed the number of states that one subject may
    /// have.
    fn settle_all(&self, settlements: &[Settlement<'_>]) -> Result<(), StoreError> {
        let open = settlements.iter().filter(|settlement| !settlement.is_empty());
        let settlements: SmallVec<[KeyedSettlement<'_>; 2]> =
            open.map(|settlement| self.keyed(*settlement)).collect();
        let mut shards = LockedShards::none();
        let mut order = LockOrder::default();
        settlements.iter().for_each(|settlement| order.add(settlement.key));
        shards.lock(&self.shards, order);
        let now = self.clock.now();
        for KeyedSettlement { key, charged, .. } in &settlements {
            if let Some(policy) = charged {
                let checked = shards.of(*key).check_states(*key, policy, now);
                checked.map_err(|_| too_many_states())?;
            }
        }
        for settlement in &settlements {
            settlement.carry_out(&mut shards, now).map_err(|_| too_many_states())?;
        }
        Ok(())
    }

    fn keyed<'a>(&self, settlement: Settlement<'a>) -> KeyedSettlement<'a> {
        let Settlement { namespace, subject, .. } = settlement;
        let key = self.fingerprinter.fingerprint(namespace, subject);
        KeyedSettlement { key, settlement, charged: settlement.charged_limits() }
    }
}

/// Decides a request of one part that the comparison of lanes does not decide.
fn decide_without_lanes(
    shard: &mut Shard,
    subject: Fingerprint,
    request: &DecideRequest<'_>,
    now: Timestamp,
) -> StoreFuture<Decision> {
    // Build the arguments again. If the caller passed a reference to its arguments, the compiler
    // could not keep them in registers.
    let args = DecideArgs::new(&request.parts[0], request.mode, now);
    let DecideArgs { policy, cost, .. } = args;
    // The decision is completed inside the result, so that it is not copied.
    let mut result = MaybeReady::ready(Ok(Decision::pending(policy, cost)));
    if let MaybeReady::Ready(Some(Ok(decision))) = &mut result {
        match shard.decide(subject, args, decision) {
            Ok(()) => decision.note_clock(now),
            Err(TooManyStates) => result = MaybeReady::ready(Err(too_many_states())),
        }
    }
    result
}

/// Returns the error of a charge that would exceed the number of states that one subject may have.
#[cold]
fn too_many_states() -> StoreError {
    static WARNED: Once = Once::new();

    WARNED.call_once(|| observe::too_many_states(TOO_MANY_STATES));
    StoreError::new(FailureKind::Unsupported).with_detail(TOO_MANY_STATES)
}

impl<C: Clock> Store for MemoryStore<C> {
    fn decide(&self, request: DecideRequest<'_>) -> StoreFuture<Decision> {
        let part = match request.parts {
            [part] if part.is_plain() => part,
            _ => return MaybeReady::ready(self.decide_parts(&request)),
        };
        let subject = self.fingerprinter.fingerprint(request.namespace_of(part), part.subject);
        let mut shard = self.shard(subject);
        // The clock is read under the lock, so that decisions are made in the order of their times.
        let now = self.clock.now();
        let args = DecideArgs::new(part, request.mode, now);
        match shard.try_decide_fast(subject, args) {
            Some(FastDecision { at, is_allowed, states }) => MaybeReady::ready(Ok(
                Decision::from_windows(args.policy, args.cost, at, is_allowed, states),
            )),
            None => decide_without_lanes(&mut shard, subject, &request, now),
        }
    }

    fn report(&self) -> StoreReport<'_> {
        StoreReport {
            label: "memory",
            stats: StoreStats::Memory(self.stats()),
            registry: Some(&self.registry),
            decides_at_once: true,
        }
    }

    fn settle(&self, settlements: &[Settlement<'_>]) -> StoreFuture<LeaseStatus> {
        let settled = match settlements {
            // This store makes no reservations.
            [Settlement { reservation: Some(_), .. }] => Ok(LeaseStatus::Forgotten),
            [only] if only.added == 0 => {
                self.give_back(only);
                Ok(LeaseStatus::Held(()))
            }
            _ => self.settle_all(settlements).map(LeaseStatus::Held),
        };
        MaybeReady::ready(settled)
    }

    fn renew(&self, renewal: Renewal<'_>) -> StoreFuture<LeaseStatus<Timestamp>> {
        if renewal.lease != Lease::Permits {
            return MaybeReady::ready(Ok(LeaseStatus::Forgotten));
        }
        if renewal.is_empty() {
            return MaybeReady::ready(Ok(LeaseStatus::Held(renewal.charged)));
        }
        let subject = self.fingerprinter.fingerprint(renewal.namespace, renewal.subject);
        let mut shard = self.shard(subject);
        let now = self.clock.now();
        let holder = shard.permit_holder(subject, &renewal.as_refund(), now);
        let renewed = shard.renew(holder, &renewal, now);
        drop(shard);
        MaybeReady::ready(Ok(renewed.map_or(LeaseStatus::Expired, LeaseStatus::Held)))
    }

    fn reset(&self, resets: &[Reset<'_>]) -> StoreFuture<()> {
        for reset in resets {
            let subject = self.fingerprinter.fingerprint(reset.namespace, reset.subject);
            let mut shard = self.shard(subject);
            let now = self.clock.now();
            match reset.limit {
                None => shard.reset_all(subject, now),
                Some(index) => shard.reset_limit(subject, reset.policy, now, index),
            }
        }
        MaybeReady::ready(Ok(()))
    }
}

impl<C: fmt::Debug> fmt::Debug for MemoryStore<C> {
    /// Shows no entries. There may be millions of them, and their shards would be locked while they
    /// are formatted.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryStore").field("clock", &self.clock).finish_non_exhaustive()
    }
}

/// Builds a [`MemoryStore`].
#[derive(Clone, Debug)]
#[must_use]
pub struct MemoryStoreBuilder<C = SystemClock> {
    capacity: usize,
    clock: C,
}

impl<C: Clock> MemoryStoreBuilder<C> {
    /// Sets the largest number of subjects that the store holds. Defaults to one million.
    ///
    /// The number is rounded up to a multiple of 64. A full store has up to 64 entries more, one in
    /// each shard, which new subjects share.
    pub fn capacity(mut self, subjects: usize) -> Self {
        self.capacity = subjects;
        self
    }

    /// Sets the clock of the decisions. Defaults to the [`SystemClock`].
    pub fn clock<D: Clock>(self, clock: D) -> MemoryStoreBuilder<D> {
        MemoryStoreBuilder { capacity: self.capacity, clock }
    }

    /// Creates an empty store.
    #[must_use]
    pub fn build(self) -> MemoryStore<C> {
        let per_shard = self.capacity.div_ceil(SHARDS).clamp(1, MAX_SUBJECTS);
        let time_base = TimeBase::new(self.clock.now());
        let shard = |_| Mutex::new(Shard::new(per_shard, time_base));
        MemoryStore {
            shards: Box::new(std::array::from_fn(shard)),
            fingerprinter: Fingerprinter::random(),
            registry: LimiterRegistry::default(),
            clock: self.clock,
            id: next_store_id(),
        }
    }
}

/// The settlement of one subject, and the limits to which it charges further units.
struct KeyedSettlement<'a> {
    key: Fingerprint,
    settlement: Settlement<'a>,
    charged: Option<Policy>,
}

impl KeyedSettlement<'_> {
    fn carry_out(
        &self,
        shards: &mut LockedShards<'_>,
        now: Timestamp,
    ) -> Result<(), TooManyStates> {
        let Self { key, settlement, charged } = self;
        let shard = shards.of(*key);
        give_back(shard, *key, [&settlement.release(), &settlement.refund()], now);
        let Some(policy) = charged else { return Ok(()) };
        let cost = Cost::new(settlement.added);
        let args = DecideArgs { policy, mode: Mode::Charge, cost, now };
        shard.decide(*key, args, &mut Decision::pending(policy, cost))
    }
}

/// Releases permits and refunds units of one subject.
fn give_back(
    shard: &mut Shard,
    subject: Fingerprint,
    [release, refund]: [&Refund<'_>; 2],
    now: Timestamp,
) {
    if !release.is_empty() {
        // The time of the charge identifies the entry that holds the permit: that of the subject,
        // or the one that new subjects share in a full shard.
        shard.refund(shard.permit_holder(subject, release, now), release, now);
    }
    if !refund.is_empty() {
        shard.refund(subject, refund, now);
    }
}
