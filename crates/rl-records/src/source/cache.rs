use std::cmp::Reverse;
use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::future::{BoxFuture, Shared};
use futures::{FutureExt, StreamExt, stream};
use indexmap::IndexMap;
use rl_core::FailureKind;
use rl_core::time::Timestamp;
use tokio::runtime::Handle;
use tokio::sync::oneshot;

use crate::database::{LookupLimiter, LookupPermit, PAUSE_MICROS, is_paused};

/// The number of random entries that an eviction compares, to remove the least recently used of
/// them.
const SAMPLE: usize = 8;

/// The time limit of one read, however many callers wait for it.
const TIME_LIMIT: Duration = Duration::from_secs(3);

/// The maximum number of reads in one look-up of a value that keeps changing.
const MAX_READS: usize = 4;

/// The number of concurrent refreshes after one change. It is small, so that the refreshes do not
/// delay the look-ups of requests.
const CONCURRENT_REFRESHES: usize = 4;

/// The maximum number of unreadable keys that are remembered.
const MAX_DAMAGED: usize = 1_024;

/// A look-up that is shared by all callers that request the key.
pub(super) type Lookup<V> = Shared<BoxFuture<'static, Result<Arc<V>, FailureKind>>>;

/// Reads the value of a key.
pub(super) trait Load<V>: Send + Sync + 'static {
    /// Reads the value of a key from the database.
    fn load(&self, key: Arc<str>) -> BoxFuture<'static, Result<V, FailureKind>>;

    /// Returns the time.
    fn now(&self) -> Timestamp;
}

/// A cache of values from the database, with at most `capacity` entries.
///
/// For each key, at most one look-up runs at a time. If it fails, the last known value stays.
pub(super) struct Cache<V> {
    state: Mutex<State<V>>,
    load: Box<dyn Load<V>>,
    limiter: Arc<LookupLimiter>,
    capacity: usize,
    fresh_micros: u64,
    // Look-ups run on the runtime of the source, because the runtime of a caller may end before its
    // look-up.
    runtime: Handle,
}

/// The entries, and the look-ups in flight.
///
/// An entry is added only when a value has been found, so look-ups of unknown keys evict nothing.
struct State<V> {
    entries: IndexMap<Arc<str>, Entry<V>>,
    // `Cache::limiter` bounds the number of look-ups.
    in_flight: HashMap<Arc<str>, InFlight<V>>,
    // Keys that cannot be read for a lasting reason, each with the failure and the time of the next
    // attempt.
    damaged: HashMap<Arc<str>, (FailureKind, Timestamp)>,
    // The number of uses so far. `used_at` is this number at the last use of an entry.
    tick: u64,
}

struct Entry<V> {
    value: Arc<V>,
    read_at: Timestamp,
    // Whether the data of the key may have changed since the value was read.
    is_stale: bool,
    used_at: u64,
}

struct InFlight<V> {
    lookup: Lookup<V>,
    // Whether the data of the key may have changed since the read began.
    is_stale: bool,
    // Whether a caller has stopped waiting. Later callers then get the last value without waiting.
    is_late: bool,
}

/// The result of [`Cache::get`].
pub(super) enum Cached<V> {
    /// The value.
    Value(Arc<V>),
    /// A look-up is in flight. If it fails or takes too long, `last` applies, which is `None` if no
    /// value is known.
    Pending { lookup: Lookup<V>, last: Option<Arc<V>> },
    /// No value is known, and the database cannot be read now.
    Failed(FailureKind),
}

impl<V: Send + Sync + 'static> Cache<V> {
    pub(super) fn new(
        load: impl Load<V>,
        limiter: Arc<LookupLimiter>,
        capacity: usize,
        fresh_micros: u64,
        runtime: Handle,
    ) -> Self {
        let state = State {
            entries: IndexMap::new(),
            in_flight: HashMap::new(),
            damaged: HashMap::new(),
            tick: 0,
        };
        Self {
            state: Mutex::new(state),
            load: Box::new(load),
            limiter,
            capacity: capacity.max(1),
            fresh_micros,
            runtime,
        }
    }

    /// Returns the number of cached values.
    pub(super) fn len(&self) -> usize {
        self.state().entries.len()
    }

    fn state(&self) -> MutexGuard<'_, State<V>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the value of a key, or starts a look-up.
    pub(super) fn get(self: &Arc<Self>, key: &str) -> Cached<V> {
        let mut state = self.state();
        // The clock is read under the lock, so that no entry can have a later time than `now`.
        let now = self.load.now();
        let (last, is_stale) = match state.touch(key) {
            Some(entry) => {
                // If the clock was set back, the age of the entry is unknown, so it counts as
                // stale.
                let is_stale = entry.is_stale || now < entry.read_at;
                let age = now.micros_since(entry.read_at);
                if !is_stale && age < self.fresh_micros {
                    return Cached::Value(entry.value.clone());
                }
                (Some(entry.value.clone()), is_stale)
            }
            None => (None, true),
        };
        let in_flight = state.in_flight.get(key);
        let is_late = in_flight.is_some_and(|in_flight| in_flight.is_late);
        let lookup = match in_flight {
            Some(in_flight) => in_flight.lookup.clone(),
            None => match self.start(state, key, last.is_some(), now) {
                Ok(lookup) => lookup,
                Err(kind) => return last.map_or(Cached::Failed(kind), Cached::Value),
            },
        };
        match last {
            // The look-up goes on, but this caller does not wait for it: the key has not changed,
            // or an earlier caller has waited for too long.
            Some(value) if !is_stale || is_late => Cached::Value(value),
            last => Cached::Pending { lookup, last },
        }
    }

    /// Starts a look-up, if the database may be read now.
    fn start(
        self: &Arc<Self>,
        mut state: MutexGuard<'_, State<V>>,
        key: &str,
        is_known: bool,
        now: Timestamp,
    ) -> Result<Lookup<V>, FailureKind> {
        if let Some((kind, until)) = state.damaged.get(key)
            && is_paused(now, *until)
        {
            return Err(*kind);
        }
        let permit = self.limiter.enqueue(is_known, now)?;
        let (sender, receiver) = oneshot::channel();
        let result = receiver.map(|sent| sent.unwrap_or(Err(FailureKind::Unavailable)));
        let lookup = result.boxed().shared();
        let key: Arc<str> = key.into();
        let in_flight = InFlight { lookup: lookup.clone(), is_stale: false, is_late: false };
        state.in_flight.insert(key.clone(), in_flight);
        drop(state);
        let task = LookupTask { cache: self.clone(), key, is_done: false };
        // The look-up runs in its own task, because the caller that started it may be cancelled.
        self.runtime.spawn(async move {
            let _ = sender.send(task.run(permit).await);
        });
        Ok(lookup)
    }

    /// Stores the result of a read. Returns `None` if the read must be repeated, because the key
    /// changed during the read. The last read of a look-up is never repeated.
    fn finish(
        &self,
        key: &Arc<str>,
        loaded: Result<V, FailureKind>,
        is_last: bool,
    ) -> Option<Result<Arc<V>, FailureKind>> {
        let mut state = self.state();
        let now = self.load.now();
        let loaded = loaded.map(Arc::new);
        let is_stale = state.in_flight.get(key).is_some_and(|in_flight| in_flight.is_stale);
        match &loaded {
            Ok(value) => {
                let value = value.clone();
                state.insert(key, value, now, is_stale, self.capacity);
            }
            Err(kind) if kind.is_configuration() => {
                state.damaged.retain(|_, (_, until)| is_paused(now, *until));
                if state.damaged.len() < MAX_DAMAGED {
                    let until = now.plus_micros(PAUSE_MICROS);
                    state.damaged.insert(key.clone(), (*kind, until));
                }
            }
            Err(_) => {}
        }
        if is_stale && !is_last && loaded.is_ok() {
            state.in_flight.entry(key.clone()).and_modify(|in_flight| in_flight.is_stale = false);
            return None;
        }
        state.in_flight.remove(key);
        Some(loaded)
    }

    /// Records that a caller stopped waiting for `key`. Until the look-up ends, callers get the
    /// last value without waiting, if there is one.
    pub(super) fn give_up(&self, key: &str) {
        if let Some(in_flight) = self.state().in_flight.get_mut(key) {
            in_flight.is_late = true;
        }
    }

    /// Looks up a value that has just changed, so that it is known even if the database is lost
    /// before the next request. Returns `None` if the database may not be read now.
    pub(super) fn refresh(self: &Arc<Self>, key: &str) -> Option<BoxFuture<'static, ()>> {
        let state = self.state();
        let lookup = match state.in_flight.get(key) {
            Some(in_flight) => in_flight.lookup.clone(),
            None => {
                let now = self.load.now();
                self.start(state, key, true, now).ok()?
            }
        };
        Some(lookup.map(drop).boxed())
    }

    /// Looks up the stale values that satisfy `is_concerned`, beginning with the most recently used
    /// ones.
    ///
    /// Dropping the future stops it. The remaining values are looked up when they are requested.
    pub(super) fn refresh_if(
        self: &Arc<Self>,
        is_concerned: impl Fn(&V) -> bool,
    ) -> BoxFuture<'static, ()> {
        let state = self.state();
        let is_concerned = |entry: &Entry<V>| entry.is_stale && is_concerned(&entry.value);
        let concerned = state.entries.iter().filter(|(_, entry)| is_concerned(entry));
        let mut keys: Vec<_> =
            concerned.map(|(key, entry)| (Reverse(entry.used_at), key.clone())).collect();
        drop(state);
        keys.sort_unstable();
        let cache = self.clone();
        let refreshes =
            stream::iter(keys).for_each_concurrent(CONCURRENT_REFRESHES, move |(_, key)| {
                let cache = cache.clone();
                async move {
                    // A request may have looked up the value in the meantime.
                    let is_stale =
                        cache.state().entries.get(&key).is_some_and(|entry| entry.is_stale);
                    if is_stale && let Some(refresh) = cache.refresh(&key) {
                        refresh.await;
                    }
                }
            });
        refreshes.boxed()
    }

    /// Marks the value of `key` as stale. The next caller waits for the new value.
    pub(super) fn invalidate(&self, key: &str) {
        let mut state = self.state();
        state.damaged.remove(key);
        if let Some(entry) = state.entries.get_mut(key) {
            entry.is_stale = true;
        }
        if let Some(in_flight) = state.in_flight.get_mut(key) {
            in_flight.is_stale = true;
        }
    }

    /// Marks every value as stale.
    pub(super) fn invalidate_all(&self) {
        self.invalidate_if(|_| true);
    }

    /// Marks as stale the values that satisfy `is_concerned`, and all values that are being looked
    /// up.
    pub(super) fn invalidate_if(&self, is_concerned: impl Fn(&V) -> bool) {
        let mut state = self.state();
        state.damaged.clear();
        for entry in state.entries.values_mut() {
            entry.is_stale |= is_concerned(&entry.value);
        }
        state.in_flight.values_mut().for_each(|in_flight| in_flight.is_stale = true);
    }
}

/// The task of a look-up. If it is dropped, for example with its runtime, another look-up may
/// start.
struct LookupTask<V: Send + Sync + 'static> {
    cache: Arc<Cache<V>>,
    key: Arc<str>,
    is_done: bool,
}

impl<V: Send + Sync + 'static> LookupTask<V> {
    async fn run(mut self, mut permit: LookupPermit) -> Result<Arc<V>, FailureKind> {
        permit.acquire().await?;
        let mut reads = 1;
        loop {
            let loading = tokio::time::timeout(TIME_LIMIT, self.cache.load.load(self.key.clone()));
            let loaded = loading.await.unwrap_or(Err(FailureKind::TimedOut));
            if let Some(found) = self.cache.finish(&self.key, loaded, reads == MAX_READS) {
                self.is_done = true;
                permit.finish(found.as_ref().err().copied(), self.cache.load.now());
                return found;
            }
            reads += 1;
        }
    }
}

impl<V: Send + Sync + 'static> Drop for LookupTask<V> {
    fn drop(&mut self) {
        if !self.is_done {
            self.cache.state().in_flight.remove(&self.key);
        }
    }
}

impl<V> State<V> {
    /// Returns the entry of a key, and marks it as the most recently used one. Returns `None` if
    /// there is no entry.
    fn touch(&mut self, key: &str) -> Option<&Entry<V>> {
        self.tick += 1;
        let entry = self.entries.get_mut(key)?;
        entry.used_at = self.tick;
        Some(entry)
    }

    fn insert(
        &mut self,
        key: &Arc<str>,
        value: Arc<V>,
        read_at: Timestamp,
        is_stale: bool,
        capacity: usize,
    ) {
        // A look-up does not count as a use, so an entry that it replaces keeps its `used_at`.
        let used_at = match self.entries.get(key) {
            Some(entry) => entry.used_at,
            None => {
                self.make_room(capacity);
                self.tick
            }
        };
        let entry = Entry { value, read_at, is_stale, used_at };
        self.entries.insert(key.clone(), entry);
    }

    fn make_room(&mut self, capacity: usize) {
        while self.entries.len() >= capacity {
            let count = self.entries.len();
            let indexes = (0..SAMPLE).map(|_| fastrand::usize(..count));
            let idlest = indexes.min_by_key(|index| self.entries[*index].used_at);
            self.entries.swap_remove_index(idlest.unwrap_or_default());
        }
    }
}

impl<V> fmt::Debug for Cache<V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cache").field("capacity", &self.capacity).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
