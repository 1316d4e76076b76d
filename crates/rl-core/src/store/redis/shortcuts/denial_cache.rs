//! Caches denials. Until a cached denial expires, further requests of the subject are rejected
//! without a call to Redis.
//!
//! * **No false denial**: the lifetime of a cached denial begins when its request is sent, and is
//!   shortened by a margin for clock drift. It therefore expires here before it expires on the
//!   server. In the meantime, other instances can only use more units. `DESIGN.md` has the proof.
//!   Denials by concurrency limits are not cached, because such limits may allow a request earlier.
//! * **Lower counts take effect**: a reset or a refund through this store invalidates the denial. A
//!   reset or a refund by another instance takes effect after [`MAX_AGE`] at the latest. A denial
//!   under another policy or cost is not repeated.
//! * **Denials during an overload**: while the server cannot be asked, a denial is repeated for the
//!   whole wait that the server returned.
//! * **Bounded**: at most [`MAX_DENIALS`] denials are cached. Requests of other subjects go to the
//!   server, or are rejected during an overload.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use smallvec::SmallVec;

use super::{MonotonicClock, safe_deadline};
use crate::decision::{Decision, RetryAfter};
use crate::maybe_ready::MaybeReady;
use crate::store::StoreFuture;
use crate::store::part_groups::GroupDecisions;
use crate::store::redis::encoding::reply::ScriptReply;
use crate::store::redis::layer::{Amendments, Layer, LeaseRequest, PlainCheck, Request};
use crate::store::redis::subject_key::{SubjectKey, SubjectMap};

/// The maximum time for which a denial is repeated, unless the server is overloaded.
const MAX_AGE: Duration = Duration::from_secs(1);

/// The maximum number of cached denials.
const MAX_DENIALS: usize = 16_384;

const SHARDS: usize = 64;

/// The layer that repeats cached denials.
#[derive(Clone)]
pub(crate) struct DenialCache<S> {
    inner: S,
    /// The cached denials, or `None` if the cache is switched off.
    denials: Option<Arc<Denials>>,
    clock: Arc<MonotonicClock>,
}

/// The result of a look-up.
pub(crate) enum Lookup {
    /// A cached denial rejects the part.
    Denied(Decision),
    /// The server has to decide. The stamp is needed to cache its decision; it is `None` if denials
    /// are not cached.
    Unknown(Option<RequestStamp>),
}

/// A stamp for each part of a request whose denial may be cached.
type Stamps = SmallVec<[Option<RequestStamp>; 2]>;

/// The state of the cache at the time a request is sent.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RequestStamp {
    generation: u64,
    sent: u64,
    /// Whether a denial is cached. It must be removed if the server allows the request.
    has_denial: bool,
}

impl<S: Layer> DenialCache<S> {
    /// Creates the layer. It forwards every request unless it `is_enabled`.
    pub(crate) fn new(inner: S, is_enabled: bool, clock: Arc<MonotonicClock>) -> Self {
        Self { inner, denials: is_enabled.then(|| Arc::new(Denials::new())), clock }
    }

    /// Looks up a cached denial of a part.
    pub(crate) fn lookup(&self, check: PlainCheck<'_>) -> Lookup {
        match &self.denials {
            Some(denials) => denials.lookup(check, self.clock.now()),
            None => Lookup::Unknown(None),
        }
    }

    /// Returns the decisions on a request that a cached denial of an enforced part denies; `None`
    /// if there is no such denial.
    #[cfg(feature = "redis-cluster")]
    pub(crate) fn denial_of(&self, request: &Request) -> Option<GroupDecisions> {
        self.look_up_parts(request).err().map(|denied| *denied)
    }

    /// Looks up cached denials of all parts of a request.
    ///
    /// # Errors
    ///
    /// Returns the decisions on a request that a cached denial of an enforced part denies. If there
    /// are several, the one with the longest wait denies it.
    fn look_up_parts(&self, request: &Request) -> Result<Stamps, Box<GroupDecisions>> {
        let (mut stamps, mut denials) = (Stamps::new(), SmallVec::<[_; 1]>::new());
        for (index, part) in request.parts.iter().enumerate() {
            stamps.push(match request.plain_check(part).map(|check| self.lookup(check)) {
                Some(Lookup::Unknown(stamp)) => stamp,
                Some(Lookup::Denied(denial)) if !part.is_shadow => {
                    denials.push((index, denial));
                    None
                }
                Some(Lookup::Denied(_)) | None => None,
            });
        }
        request.denied_by(denials).map_or(Ok(stamps), |denied| Err(Box::new(denied)))
    }

    /// Caches a denial by the server. If the server has allowed the request, removes an older
    /// denial.
    pub(crate) fn remember(
        &self,
        subject: SubjectKey,
        decision: &Decision,
        stamp: Option<RequestStamp>,
    ) {
        let (Some(denials), Some(stamp)) = (&self.denials, stamp) else { return };
        if !decision.is_allowed() {
            denials.insert(subject, decision, stamp, self.clock.now());
        } else if stamp.has_denial {
            denials.remove_older(subject, stamp);
        }
    }

    /// Invalidates the denials of these subjects once `change` has ended, because it may lower
    /// their counts.
    pub(crate) fn invalidate_after<T: Send + 'static>(
        &self,
        subjects: impl IntoIterator<Item = SubjectKey>,
        change: StoreFuture<T>,
    ) -> StoreFuture<T> {
        let Some(denials) = &self.denials else { return change };
        let (denials, subjects) = (Arc::clone(denials), subjects.into_iter().collect());
        let invalidate = InvalidateOnDrop { denials, subjects };
        MaybeReady::later(async move {
            let _invalidate = invalidate;
            change.await
        })
    }

    /// Repeats a denial of an enforced part whose wait has not ended, however old it is. Used
    /// during an overload.
    pub(crate) fn repeat_denial(&self, request: &Request) -> Option<GroupDecisions> {
        let (denials, now) = (self.denials.as_ref()?, self.clock.now());
        let promised = request.parts.iter().enumerate().filter_map(|(index, part)| {
            let check = request.plain_check(part).filter(|_| !part.is_shadow)?;
            Some((index, denials.promised(check, now)?))
        });
        request.denied_by(promised)
    }
}

impl<S: Layer> Layer for DenialCache<S> {
    fn decide(&self, request: Arc<Request>) -> StoreFuture<GroupDecisions> {
        if self.denials.is_none() {
            return self.inner.decide(request);
        }
        let stamps = match self.look_up_parts(&request) {
            Ok(stamps) => stamps,
            Err(denied) => return MaybeReady::ready(Ok(*denied)),
        };
        let decided = self.inner.decide(Arc::clone(&request));
        if stamps.iter().all(Option::is_none) {
            return decided;
        }
        let this = self.clone();
        MaybeReady::later(async move {
            let decisions = decided.await?;
            for ((part, decision), stamp) in request.parts.iter().zip(&decisions).zip(stamps) {
                this.remember(part.subject.key, decision, stamp);
            }
            Ok(decisions)
        })
    }

    fn lease(&self, request: LeaseRequest) -> StoreFuture<ScriptReply> {
        self.inner.lease(request)
    }

    fn amend(&self, amendments: Amendments) -> StoreFuture<Vec<u8>> {
        let lowered = amendments.iter().filter(|amendment| amendment.may_lower_counts());
        let lowered: SmallVec<[SubjectKey; 2]> = lowered.map(|of| of.subject.key).collect();
        let amended = self.inner.amend(amendments);
        if lowered.is_empty() { amended } else { self.invalidate_after(lowered, amended) }
    }
}

/// Invalidates the denials of subjects when it is dropped, because the counts of the subjects may
/// be lower then.
struct InvalidateOnDrop {
    denials: Arc<Denials>,
    subjects: SmallVec<[SubjectKey; 2]>,
}

impl Drop for InvalidateOnDrop {
    fn drop(&mut self) {
        self.subjects.iter().for_each(|subject| self.denials.invalidate(*subject));
    }
}

/// The cached denials, in shards.
struct Denials {
    shards: Box<[CacheShard]>,
}

struct CacheShard {
    /// The number of invalidations. If it changes while a request is in flight, the decision on
    /// that request is not cached.
    generation: AtomicU64,
    denials: Mutex<SubjectMap<CachedDenial>>,
}

struct CachedDenial {
    decision: Decision,
    received_at: u64,
    /// The time from which the server must be asked again.
    expires: u64,
    /// The end of the wait that the server returned.
    promised_until: u64,
}

impl CachedDenial {
    /// Returns the denial, updated to `now`, if it was made under the policy and cost of `check`.
    fn repeat(&self, check: PlainCheck<'_>, now: u64) -> Option<Decision> {
        let Self { decision, received_at, .. } = self;
        let is_same = decision.cost() == check.cost && decision.policy() == Some(check.policy);
        is_same.then(|| decision.at_later(now.saturating_sub(*received_at)))
    }
}

impl Denials {
    fn new() -> Self {
        let shard = || CacheShard { generation: AtomicU64::new(0), denials: Mutex::default() };
        let shards = std::iter::repeat_with(shard).take(SHARDS).collect();
        Self { shards }
    }

    fn shard(&self, subject: SubjectKey) -> &CacheShard {
        &self.shards[subject.shard(SHARDS)]
    }

    fn lookup(&self, check: PlainCheck<'_>, now: u64) -> Lookup {
        let shard = self.shard(check.key);
        let denials = shard.lock();
        let cached = denials.get(&check.key);
        let denial = cached.filter(|denial| now < denial.expires);
        match denial.and_then(|denial| denial.repeat(check, now)) {
            Some(denial) => Lookup::Denied(denial),
            None => {
                let generation = shard.generation.load(Ordering::Acquire);
                let has_denial = cached.is_some();
                Lookup::Unknown(Some(RequestStamp { generation, sent: now, has_denial }))
            }
        }
    }

    fn promised(&self, check: PlainCheck<'_>, now: u64) -> Option<Decision> {
        let denials = self.shard(check.key).lock();
        let denial = denials.get(&check.key)?;
        if now < denial.promised_until { denial.repeat(check, now) } else { None }
    }

    /// Caches a denial that was received at `now`.
    fn insert(&self, subject: SubjectKey, decision: &Decision, stamp: RequestStamp, now: u64) {
        let micros = |wait: Duration| u64::try_from(wait.as_micros()).unwrap_or(u64::MAX);
        let (max_age, promised) = match decision.retry_after() {
            RetryAfter::In(wait) => {
                // A clock that has stepped back may soon be corrected, and then has no lag.
                let wait = wait.saturating_sub(decision.clock_lag());
                (wait.min(MAX_AGE), micros(wait))
            }
            RetryAfter::Never => (MAX_AGE, u64::MAX),
            RetryAfter::Now => return,
        };
        let expires = safe_deadline(stamp.sent, micros(max_age));
        if now >= expires {
            return;
        }
        let shard = self.shard(subject);
        let mut denials = shard.lock();
        if shard.generation.load(Ordering::Acquire) != stamp.generation {
            return;
        }
        if denials.len() >= MAX_DENIALS / SHARDS && !denials.contains_key(&subject) {
            make_room(&mut denials, now);
        }
        let promised_until = safe_deadline(stamp.sent, promised);
        let decision = decision.clone();
        let denial = CachedDenial { decision, received_at: now, expires, promised_until };
        denials.insert(subject, denial);
    }

    /// Removes a denial that was received before the request with this `stamp` was sent.
    fn remove_older(&self, subject: SubjectKey, stamp: RequestStamp) {
        let mut denials = self.shard(subject).lock();
        if denials.get(&subject).is_some_and(|denial| denial.received_at <= stamp.sent) {
            denials.swap_remove(&subject);
        }
    }

    /// Removes the denial of a subject whose counts may be lower now.
    fn invalidate(&self, subject: SubjectKey) {
        let shard = self.shard(subject);
        let mut denials = shard.lock();
        shard.generation.fetch_add(1, Ordering::AcqRel);
        denials.swap_remove(&subject);
    }
}

impl CacheShard {
    fn lock(&self) -> MutexGuard<'_, SubjectMap<CachedDenial>> {
        self.denials.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Removes entries of a full shard: the expired ones among the first four, or if there are none, an
/// arbitrary one.
fn make_room(denials: &mut SubjectMap<CachedDenial>, now: u64) {
    for index in (0..denials.len().min(4)).rev() {
        if denials[index].expires <= now {
            denials.swap_remove_index(index);
        }
    }
    if denials.len() >= MAX_DENIALS / SHARDS {
        let index = usize::try_from(now).unwrap_or(0) % denials.len();
        denials.swap_remove_index(index);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::maybe_ready::done;
    use crate::model::{Limit, Subject};
    use crate::policy::Policy;
    use crate::store::Namespace;
    use crate::store::redis::layer::RequestPart;
    use crate::store::redis::test_layer::{TestLayer, check, check_all, deny, keyed};
    use crate::time::{ManualClock, Timestamp};

    #[tokio::test]
    async fn a_denial_is_repeated_until_it_expires_or_is_invalidated() {
        let clock = Arc::new(ManualClock::default());
        clock.set(Timestamp::from_secs(1_000));
        let inner = TestLayer::new(|part| deny(part, Duration::from_millis(500)));
        let monotonic = Arc::new(MonotonicClock::new(Some(Arc::clone(&clock))));
        let cache = DenialCache::new(inner.clone(), true, monotonic);
        let policy = Policy::new([Limit::per_second(1)]).unwrap();
        let alice = keyed(&Namespace::default(), &Subject::user("alice"));
        let decide = async || cache.decide(check(&alice, &policy, 1)).await.unwrap();

        decide().await;
        decide().await;
        assert_eq!(inner.decisions(), 1, "the second denial comes from the cache");
        clock.advance(Duration::from_millis(500));
        decide().await;
        assert_eq!(inner.decisions(), 2, "the first denial has expired");
        cache.invalidate_after([alice.key], done()).await.unwrap();
        decide().await;
        assert_eq!(inner.decisions(), 3, "the reset has invalidated the second denial");
    }

    /// Fault: the first cached denial decided, although another part had to wait longer.
    #[tokio::test]
    async fn the_cached_denial_with_the_longest_wait_decides() {
        let clock = Arc::new(ManualClock::default());
        clock.set(Timestamp::from_secs(1_000));
        let waits = |part: &RequestPart| {
            if part.subject.subject == Subject::user("alice") { 300 } else { 800 }
        };
        let inner = TestLayer::new(move |part| deny(part, Duration::from_millis(waits(part))));
        let cache =
            DenialCache::new(inner.clone(), true, Arc::new(MonotonicClock::new(Some(clock))));
        let policy = Policy::new([Limit::per_second(1)]).unwrap();
        let both = ["alice", "bob"].map(|id| keyed(&Namespace::default(), &Subject::user(id)));
        for one in &both {
            cache.decide(check(one, &policy, 1)).await.unwrap();
        }
        let parts = cache.decide(check_all(&both, &policy, 1)).await.unwrap();
        let expected = [RetryAfter::Now, RetryAfter::In(Duration::from_millis(800))];
        let waits: Vec<_> = parts.iter().map(Decision::retry_after).collect();
        assert_eq!((&waits[..], inner.decisions()), (&expected[..], 2));
    }
}
