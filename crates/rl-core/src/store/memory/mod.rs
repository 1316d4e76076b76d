//! Counters in this process: the default, nothing to install.
//!
//! * **One decision, one lock, one look-up, one reading of the clock**, for all limits together,
//!   and no allocation for a subject that is known already.
//! * **Bounded**: at most `capacity` subjects, one million unless said. What has expired is dropped
//!   in passing, without a thread in the background. When the store is full, of a few subjects that
//!   are looked at the one that has used up the least of its limits makes room; one that is in a
//!   denied state never does. Should every subject that is inspected be denied, newcomers are counted
//!   together until there is room again.
//! * **Small**: about 95 bytes for a subject of up to six limits that are fixed windows, or up to three
//!   that are window counters, GCRA or buckets (each of these counts as two), however long its id. Other
//!   limits take some 200 bytes more, and what they count by: a sliding log or a limit of concurrency
//!   16 for each entry, and up to as many again as room; a sliding window 8 for each bucket.
//! * Counters are lost when the process ends, and are not shared with other processes; for that
//!   there is `RedisStore` (feature `redis`).
//!
//! # Example
//!
//! ```
//! use rl_core::store::MemoryStore;
//! use rl_core::time::ManualClock;
//! use rl_core::{Limit, RateLimiter, Subject};
//! use std::sync::Arc;
//! use std::time::Duration;
//!
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let clock = Arc::new(ManualClock::default());
//! let store = MemoryStore::builder().capacity(10_000).clock(clock.clone()).build();
//! let limiter = RateLimiter::builder().limit(Limit::per_minute(1)).store(store).build()?;
//!
//! let alice = Subject::user("alice");
//! assert!(limiter.check(&alice, 1).await.is_allowed());
//! assert!(!limiter.check(&alice, 1).await.is_allowed());
//! clock.advance(Duration::from_secs(60));
//! assert!(limiter.check(&alice, 1).await.is_allowed());
//! # Ok(()) }
//! ```

mod compact;
mod entry;
mod kept;
mod shape;
mod shard;
mod table;
#[cfg(test)]
mod tests;

use std::sync::{Mutex, MutexGuard, Once, PoisonError};

use compact::{Plain, TimeBase};
use shard::{Asked, MOST_SUBJECTS, Shard};

use super::fingerprint::{Fingerprint, Fingerprinter};
use super::{DecideRequest, LimiterRegistry, Refund, RefundOf, Renewal, Reset, Store, StoreFuture};
use crate::algorithm;
use crate::decision::Decision;
use crate::maybe_ready::MaybeReady;
use crate::model::{FailureKind, StoreError, TOO_MANY_STATES};
use crate::observe;
use crate::time::{Clock, SystemClock, Timestamp};

/// Shards, so that threads seldom meet at a lock. A power of two.
const SHARDS: usize = 64;

/// Counters in this process. The [module](self) says what it guarantees.
#[derive(Debug)]
pub struct MemoryStore<C = SystemClock> {
    shards: Box<[Mutex<Shard>; SHARDS]>,
    fingerprinter: Fingerprinter,
    registry: LimiterRegistry,
    clock: C,
}

impl MemoryStore {
    /// An empty store for up to one million subjects, on the system clock.
    #[must_use]
    pub fn new() -> Self {
        Self::builder().build()
    }

    /// A store made step by step.
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
    /// The subjects that are held at the moment, expired ones that are not dropped yet included.
    #[must_use]
    pub fn len(&self) -> usize {
        self.shards.iter().map(|shard| lock(shard).len()).sum()
    }

    /// Whether nothing is held.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn shard(&self, subject: Fingerprint) -> MutexGuard<'_, Shard> {
        lock(&self.shards[subject.spread(SHARDS)])
    }
}

/// A panic while a shard is locked leaves whole entries behind, so its counters go on being used.
fn lock(shard: &Mutex<Shard>) -> MutexGuard<'_, Shard> {
    shard.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Decides a request that the fast path does not cover. Returns `None`, and changes nothing, if a charge
/// would need more states of one subject than are kept.
#[inline(never)]
fn decide_fully(
    mut shard: MutexGuard<'_, Shard>,
    subject: Fingerprint,
    asked: Asked<'_>,
) -> Option<Decision> {
    let mut decision = Decision::begun(asked.policy, asked.cost);
    let is_decided = shard.decide(subject, asked, &mut decision);
    drop(shard);
    is_decided.then_some(decision)
}

/// Returns the error of a charge that would need more states of one subject than are kept.
#[cold]
fn too_many_states() -> StoreError {
    static WARNED: Once = Once::new();

    WARNED.call_once(|| observe::too_many_states(TOO_MANY_STATES));
    StoreError::new(FailureKind::Unsupported).with_detail(TOO_MANY_STATES)
}

impl<C: Clock> Store for MemoryStore<C> {
    fn decide(&self, request: DecideRequest<'_>) -> StoreFuture<Decision> {
        MaybeReady::ready(match request.sole_part() {
            Ok(_) => self.try_decide(&request).ok_or_else(too_many_states),
            Err(error) => Err(error),
        })
    }

    fn try_decide(&self, request: &DecideRequest<'_>) -> Option<Decision> {
        let [part] = request.parts else { return None };
        let subject = self.fingerprinter.fingerprint(request.namespace, part.subject);
        let mut shard = self.shard(subject);
        // Read under the lock: the order of the decisions is the order of their times.
        let clock = self.clock.now();
        let asked = Asked::at(clock, part, request.mode);
        let Asked { policy, cost, .. } = asked;
        match shard.decide_plainly(subject, asked) {
            // Two arms on purpose: a constant verdict lets the compiler build the decision in the return slot.
            Some(Plain { at, is_allowed: true, windows }) => {
                drop(shard);
                Some(Decision::of_windows(policy, cost, at, true, windows))
            }
            Some(Plain { at, is_allowed: false, windows }) => {
                drop(shard);
                Some(Decision::of_windows(policy, cost, at, false, windows))
            }
            None => decide_fully(shard, subject, asked),
        }
    }

    fn registry(&self) -> Option<&LimiterRegistry> {
        Some(&self.registry)
    }

    fn label(&self) -> &str {
        "memory"
    }

    fn refund(&self, refund: Refund<'_>) -> StoreFuture<()> {
        if refund.is_empty() {
            return MaybeReady::ready(Ok(()));
        }
        let subject = self.fingerprinter.fingerprint(refund.namespace, refund.subject);
        let mut shard = self.shard(subject);
        let clock = self.clock.now();
        // Permits are told apart by the very time they were taken at, even where subjects share.
        let holder = match refund.of {
            RefundOf::Permits => shard.holder(subject, &refund, clock),
            RefundOf::All | RefundOf::Rates => subject,
        };
        shard.amend(holder, refund.policy, clock, |place, limit, state, now| {
            let units = refund.units_of(place);
            algorithm::refund(limit, state, now, refund.charged, units);
        });
        drop(shard);
        MaybeReady::ready(Ok(()))
    }

    fn renew(&self, renewal: Renewal<'_>) -> StoreFuture<Option<Timestamp>> {
        if renewal.is_empty() {
            return MaybeReady::ready(Ok(Some(renewal.charged)));
        }
        let subject = self.fingerprinter.fingerprint(renewal.namespace, renewal.subject);
        let mut shard = self.shard(subject);
        let clock = self.clock.now();
        let holder = shard.holder(subject, &renewal.as_refund(), clock);
        let renewed = shard.renew(holder, &renewal, clock);
        drop(shard);
        MaybeReady::ready(Ok(renewed))
    }

    fn reset(&self, reset: Reset<'_>) -> StoreFuture<()> {
        let subject = self.fingerprinter.fingerprint(reset.namespace, reset.subject);
        let mut shard = self.shard(subject);
        let clock = self.clock.now();
        match reset.limit {
            None => shard.forget_all(subject, clock),
            Some(place) => shard.forget(subject, reset.policy, clock, place),
        }
        drop(shard);
        MaybeReady::ready(Ok(()))
    }
}

/// Makes a [`MemoryStore`].
#[derive(Clone, Debug)]
#[must_use]
pub struct MemoryStoreBuilder<C = SystemClock> {
    capacity: usize,
    clock: C,
}

impl<C: Clock> MemoryStoreBuilder<C> {
    /// The most subjects that are held at once. Defaults to one million.
    ///
    /// It is rounded up to a multiple of 64, and up to 64 more may be held: what is counted together.
    pub fn capacity(mut self, subjects: usize) -> Self {
        self.capacity = subjects;
        self
    }

    /// The clock to decide on. Defaults to the [`SystemClock`].
    pub fn clock<D: Clock>(self, clock: D) -> MemoryStoreBuilder<D> {
        MemoryStoreBuilder { capacity: self.capacity, clock }
    }

    /// The store, empty.
    #[must_use]
    pub fn build(self) -> MemoryStore<C> {
        let per_shard = self.capacity.div_ceil(SHARDS).clamp(1, MOST_SUBJECTS);
        let origin = TimeBase::around(self.clock.now());
        MemoryStore {
            shards: Box::new(std::array::from_fn(|_| Mutex::new(Shard::new(per_shard, origin)))),
            fingerprinter: Fingerprinter::random(),
            registry: LimiterRegistry::default(),
            clock: self.clock,
        }
    }
}
