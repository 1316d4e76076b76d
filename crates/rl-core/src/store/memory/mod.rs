//! A store in the memory of this process.
//!
//! ```text
//! MemoryStore
//!   Fingerprinter   subject -> Fingerprint, 16 bytes                           (store/fingerprint.rs)
//!   64 × Shard      under one lock each; eviction                              (shard.rs)
//!     Table         Fingerprint -> Entry, 96 bytes for a record, and an index  (table.rs)
//!       Entry       PackedEntry for up to six fixed windows, else PlainEntry   (entry.rs)
//! ```
//!
//! One decision hashes the subjects of all parts, locks their shards in ascending order, and reads
//! the clock. A [`Step`] then judges all parts on one state, and charges all of them or none
//! (`step.rs`).

mod entry;
mod locked_shards;
mod packed_entry;
mod plain_entry;
mod settlement;
mod shard;
mod step;
mod table;
#[cfg(test)]
mod tests;

use std::fmt;
use std::sync::{Mutex, MutexGuard, Once, PoisonError};

use packed_entry::FastDecision;
use locked_shards::{LockOrder, LockedShards};
use packed_entry::TimeBase;
use shard::{MAX_SUBJECTS, Shard};
use step::Step;

use super::fingerprint::{Fingerprint, Fingerprinter};
use super::part_groups::PartGroups;
use super::{
    DecideRequest, LimiterRegistry, Refund, RefundOf, Renewal, Reset, Settlement, Store,
    StoreFuture,
};
use crate::decision::{Decision, DecisionList};
use crate::maybe_ready::MaybeReady;
use crate::model::{FailureKind, StoreError, TOO_MANY_STATES};
use crate::observe;
use crate::stats::{MemoryStats, StoreStats, next_store_id};
use crate::time::{Clock, SystemClock, Timestamp};

/// The number of shards, a power of two. It is large, so that threads seldom wait for the same
/// lock.
const SHARDS: usize = 64;

/// A store that keeps the counters in this process. It is the default, and needs no server.
///
/// * **One lock, one look-up and one reading of the clock for each decision**, for all limits of
///   the policy. A decision on a known subject allocates nothing.
/// * **Bounded**: the store holds at most [`capacity`](MemoryStoreBuilder::capacity) subjects, by
///   default one million. Each new subject drops expired ones, so no background thread is needed.
///   When the store is full, a new subject evicts another one. A few subjects are inspected, and
///   the one that has used the smallest fraction of its limits is evicted. A denied subject is
///   never evicted. If all inspected subjects are denied, new subjects share one counter until
///   there is room again.
/// * **Small**: a subject takes about 105 bytes, however long its id is. That covers up to six fixed
///   windows, or one limit of another algorithm without a list of entries or buckets. Each further
///   limit adds 16 to 32 bytes. A sliding log and a concurrency limit add some 100 bytes, and 16 to
///   32 bytes for each entry. If there are many entries, and none has more than 255 units, they add
///   10 to 19 bytes. A sliding window adds 8 for each bucket.
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

    /// Decides a request, and charges all of its parts or none.
    ///
    /// # Errors
    ///
    /// Fails and changes nothing if the parts cannot be grouped ([`PartGroups::add`]), or if a
    /// charge would exceed the number of states that one subject may have.
    fn decide_at_once(&self, request: &DecideRequest<'_>) -> Result<Decision, StoreError> {
        let mut parts = PartGroups::empty();
        parts.add(request, |part| {
            self.fingerprinter.fingerprint(request.namespace_of(part), part.subject)
        })?;
        let mut order = LockOrder::default();
        parts.groups().iter().for_each(|group| order.add(group.key));
        let mut shards = LockedShards::new(self, order);
        // The clock is read under the locks, so that decisions are made in the order of their times.
        let mut step = Step::new(&mut shards, request.mode, self.clock.now());
        step.judge(parts.groups()).map_err(|_| too_many_states())?;
        if let [part] = request.parts
            && part.is_plain()
        {
            let decision = step.conclude(0);
            step.finish();
            return Ok(decision);
        }
        let groups = 0..parts.groups().len();
        let decisions: DecisionList = groups.map(|index| step.conclude(index)).collect();
        step.finish();
        Ok(parts.decision(decisions))
    }

    fn shard(&self, subject: Fingerprint) -> MutexGuard<'_, Shard> {
        lock(&self.shards[subject.spread(SHARDS)])
    }
}

/// Locks a shard. A poisoned lock is ignored, because a panic under the lock leaves no entry
/// half-changed.
#[inline(always)]
fn lock(shard: &Mutex<Shard>) -> MutexGuard<'_, Shard> {
    shard.lock().unwrap_or_else(PoisonError::into_inner)
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
        MaybeReady::ready(self.decide_at_once(&request))
    }

    fn registry(&self) -> Option<&LimiterRegistry> {
        Some(&self.registry)
    }

    fn store_stats(&self) -> StoreStats {
        StoreStats::Memory(self.stats())
    }

    fn label(&self) -> &str {
        "memory"
    }

    fn refund(&self, refund: Refund<'_>) -> StoreFuture<()> {
        let subject = self.fingerprinter.fingerprint(refund.namespace, refund.subject);
        let mut shard = self.shard(subject);
        let now = self.clock.now();
        if refund.is_empty() {
            return MaybeReady::ready(Ok(()));
        }
        // Find the entry with the permit by the time of the charge. It may be the entry that new
        // subjects share in a full shard.
        let holder = match refund.of {
            RefundOf::Permits => shard.permit_holder(subject, &refund, now),
            RefundOf::All | RefundOf::Rates => subject,
        };
        shard.refund(holder, &refund, now);
        drop(shard);
        MaybeReady::ready(Ok(()))
    }

    fn settle(&self, settlements: &[Settlement<'_>]) -> StoreFuture<()> {
        MaybeReady::ready(self.settle_all(settlements))
    }

    fn renew(&self, renewal: Renewal<'_>) -> StoreFuture<Option<Timestamp>> {
        if renewal.is_empty() {
            return MaybeReady::ready(Ok(Some(renewal.charged)));
        }
        let subject = self.fingerprinter.fingerprint(renewal.namespace, renewal.subject);
        let mut shard = self.shard(subject);
        let now = self.clock.now();
        let holder = shard.permit_holder(subject, &renewal.as_refund(), now);
        let renewed = shard.renew(holder, &renewal, now);
        drop(shard);
        MaybeReady::ready(Ok(renewed))
    }

    fn reset(&self, reset: Reset<'_>) -> StoreFuture<()> {
        let subject = self.fingerprinter.fingerprint(reset.namespace, reset.subject);
        let mut shard = self.shard(subject);
        let now = self.clock.now();
        match reset.limit {
            None => shard.reset_all(subject, now),
            Some(index) => shard.reset_limit(subject, reset.policy, index, now),
        }
        drop(shard);
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
        let base = TimeBase::new(self.clock.now());
        let shard = |_| Mutex::new(Shard::new(per_shard, base));
        MemoryStore {
            shards: Box::new(std::array::from_fn(shard)),
            fingerprinter: Fingerprinter::random(),
            registry: LimiterRegistry::default(),
            clock: self.clock,
            id: next_store_id(),
        }
    }
}
