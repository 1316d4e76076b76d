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

use crate::database::{Gate, PAUSE_MICROS, Ticket, pauses};

/// How many entries are compared to find one that has not been used for long.
const SAMPLE: usize = 8;

/// How long a look-up may take from its turn on, whoever waits for it.
const LONGEST: Duration = Duration::from_secs(3);

/// How often a value is read in one look-up while it changes.
const ROUNDS: usize = 4;

/// How many values that changed together are looked up at once, so that requests get their turn between.
const TOGETHER: usize = 4;

/// The most keys of which is kept that they cannot be read.
const MOST_DAMAGED: usize = 1_024;

/// Looks a value up; shared by all who wait for it.
type Flight<V> = Shared<BoxFuture<'static, Result<Arc<V>, FailureKind>>>;

/// Reads the value of a key.
pub(super) trait Load<V>: Send + Sync + 'static {
    fn load(&self, key: Arc<str>) -> BoxFuture<'static, Result<V, FailureKind>>;

    fn now(&self) -> Timestamp;
}

/// What was looked up, at most `capacity` values: refreshed one at a time for each key, kept when that
/// fails.
pub(super) struct Cache<V> {
    state: Mutex<State<V>>,
    load: Box<dyn Load<V>>,
    gate: Arc<Gate>,
    capacity: usize,
    fresh_micros: u64,
    // Look-ups run where the source was made: the runtime of a worker may end before them.
    runtime: Handle,
}

/// A look-up takes no room among what is known before it has found something: what is asked in vain
/// displaces nothing.
struct State<V> {
    known: IndexMap<Arc<str>, Known<V>>,
    // No more than the gate lets wait and ask.
    flights: HashMap<Arc<str>, Flying<V>>,
    // What the database refuses to tell, and until when it is not asked again.
    damaged: HashMap<Arc<str>, (FailureKind, Timestamp)>,
    // Counts uses; orders them.
    tick: u64,
}

struct Known<V> {
    value: Arc<V>,
    read_at: Timestamp,
    // It is older than a change.
    is_changed: bool,
    used_at: u64,
}

struct Flying<V> {
    flight: Flight<V>,
    // There was a change since it began to read.
    is_changed: bool,
    // It takes longer than anybody should wait who can have the last value.
    is_late: bool,
}

/// The answer of a [`Cache`].
pub(super) enum Found<V> {
    /// It is known.
    Known(Arc<V>),
    /// It is being looked up; until then, and if that fails, this is the last that was known.
    Wait(Flight<V>, Option<Arc<V>>),
    /// Nothing is known, and the database is not asked.
    No(FailureKind),
}

impl<V: Send + Sync + 'static> Cache<V> {
    pub(super) fn new(
        load: impl Load<V>,
        gate: Arc<Gate>,
        capacity: usize,
        fresh_micros: u64,
        runtime: Handle,
    ) -> Self {
        let (known, flights, damaged) = (IndexMap::new(), HashMap::new(), HashMap::new());
        let state = Mutex::new(State { known, flights, damaged, tick: 0 });
        Self { state, load: Box::new(load), gate, capacity: capacity.max(1), fresh_micros, runtime }
    }

    fn state(&self) -> MutexGuard<'_, State<V>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn get(self: &Arc<Self>, key: &str) -> Found<V> {
        let mut state = self.state();
        // Read under the lock: what was looked up before is not from the future.
        let now = self.load.now();
        let (last, is_changed) = match state.used(key) {
            Some(known) => {
                // A clock that was set back tells nothing about an age.
                let is_changed = known.is_changed || now < known.read_at;
                let age = now.micros_since(known.read_at);
                if !is_changed && age < self.fresh_micros {
                    return Found::Known(known.value.clone());
                }
                (Some(known.value.clone()), is_changed)
            }
            None => (None, true),
        };
        let flying = state.flights.get(key);
        let is_late = flying.is_some_and(|flying| flying.is_late);
        let flight = match flying {
            Some(flying) => flying.flight.clone(),
            None => match self.start(state, key, last.is_some(), now) {
                Ok(flight) => flight,
                Err(kind) => return last.map_or(Found::No(kind), Found::Known),
            },
        };
        match last {
            // What is merely old is served while somebody looks whether it still holds.
            Some(value) if !is_changed || is_late => Found::Known(value),
            last => Found::Wait(flight, last),
        }
    }

    /// Begins a look-up, if the database is to be asked.
    fn start(
        self: &Arc<Self>,
        mut state: MutexGuard<'_, State<V>>,
        key: &str,
        is_known: bool,
        now: Timestamp,
    ) -> Result<Flight<V>, FailureKind> {
        if let Some((kind, until)) = state.damaged.get(key)
            && pauses(now, *until)
        {
            return Err(*kind);
        }
        let ticket = self.gate.enter(is_known, now)?;
        let (tell, told) = oneshot::channel();
        let told = told.map(|told| told.unwrap_or(Err(FailureKind::Unavailable)));
        let flight = told.boxed().shared();
        let key: Arc<str> = key.into();
        let flying = Flying { flight: flight.clone(), is_changed: false, is_late: false };
        state.flights.insert(key.clone(), flying);
        drop(state);
        let landing = Landing { cache: self.clone(), key, has_landed: false };
        // A task of its own: whoever asked first may go away.
        self.runtime.spawn(async move {
            let _ = tell.send(landing.look_up(ticket).await);
        });
        Ok(flight)
    }

    /// Keeps what was loaded; `None` if it changed while it was read and is to be read again.
    fn finish(
        &self,
        key: &Arc<str>,
        loaded: Result<V, FailureKind>,
        is_last: bool,
    ) -> Option<Result<Arc<V>, FailureKind>> {
        let mut state = self.state();
        let now = self.load.now();
        let loaded = loaded.map(Arc::new);
        let is_changed = state.flights.get(key).is_some_and(|flying| flying.is_changed);
        match &loaded {
            Ok(value) => {
                let value = value.clone();
                state.keep(key, value, now, is_changed, self.capacity);
            }
            Err(kind) if kind.is_configuration() => {
                state.damaged.retain(|_, (_, until)| pauses(now, *until));
                if state.damaged.len() < MOST_DAMAGED {
                    let until = now.plus_micros(PAUSE_MICROS);
                    state.damaged.insert(key.clone(), (*kind, until));
                }
            }
            Err(_) => {}
        }
        if is_changed && !is_last && loaded.is_ok() {
            state.flights.entry(key.clone()).and_modify(|flying| flying.is_changed = false);
            return None;
        }
        state.flights.remove(key);
        Some(loaded)
    }

    /// Somebody has waited long enough for `key`: until its look-up ends, nobody waits who can have the
    /// last value.
    pub(super) fn give_up(&self, key: &str) {
        if let Some(flying) = self.state().flights.get_mut(key) {
            flying.is_late = true;
        }
    }

    /// Looks up a value that has just been changed, so that it is known even if the database is lost before
    /// the next request. Returns `None` if the database must not be asked now.
    pub(super) fn refresh(self: &Arc<Self>, key: &str) -> Option<BoxFuture<'static, ()>> {
        let state = self.state();
        let flight = match state.flights.get(key) {
            Some(flying) => flying.flight.clone(),
            None => {
                let now = self.load.now();
                self.start(state, key, true, now).ok()?
            }
        };
        Some(flight.map(drop).boxed())
    }

    /// Looks up the values that were marked as changed and of which `is_concerned` is true, those that
    /// were used last first. Whoever has waited long enough drops the future: the rest is looked up when
    /// it is asked for.
    pub(super) fn refresh_if(
        self: &Arc<Self>,
        is_concerned: impl Fn(&V) -> bool,
    ) -> BoxFuture<'static, ()> {
        let state = self.state();
        let concerned = |known: &Known<V>| known.is_changed && is_concerned(&known.value);
        let concerned = state.known.iter().filter(|(_, known)| concerned(known));
        let mut keys: Vec<_> =
            concerned.map(|(key, known)| (Reverse(known.used_at), key.clone())).collect();
        drop(state);
        keys.sort_unstable();
        let cache = self.clone();
        let refreshing = stream::iter(keys).for_each_concurrent(TOGETHER, move |(_, key)| {
            let cache = cache.clone();
            async move {
                // A request may have looked it up meanwhile.
                let is_changed =
                    cache.state().known.get(&key).is_some_and(|known| known.is_changed);
                if is_changed && let Some(refreshing) = cache.refresh(&key) {
                    refreshing.await;
                }
            }
        });
        refreshing.boxed()
    }

    /// The value of `key` is another one: the next who asks waits for it.
    pub(super) fn changed(&self, key: &str) {
        let mut state = self.state();
        state.damaged.remove(key);
        if let Some(known) = state.known.get_mut(key) {
            known.is_changed = true;
        }
        if let Some(flying) = state.flights.get_mut(key) {
            flying.is_changed = true;
        }
    }

    /// Every value may be another one.
    pub(super) fn all_changed(&self) {
        self.changed_if(|_| true);
    }

    /// The values of which `is_concerned` is true may be other ones, and those that are being looked up.
    pub(super) fn changed_if(&self, is_concerned: impl Fn(&V) -> bool) {
        let mut state = self.state();
        state.damaged.clear();
        for known in state.known.values_mut() {
            known.is_changed |= is_concerned(&known.value);
        }
        state.flights.values_mut().for_each(|flying| flying.is_changed = true);
    }

    #[cfg(test)]
    fn len(&self) -> usize {
        self.state().known.len()
    }
}

/// A look-up on its way. However it ends, also with its runtime, somebody else can begin another.
struct Landing<V: Send + Sync + 'static> {
    cache: Arc<Cache<V>>,
    key: Arc<str>,
    has_landed: bool,
}

impl<V: Send + Sync + 'static> Landing<V> {
    async fn look_up(mut self, mut ticket: Ticket) -> Result<Arc<V>, FailureKind> {
        ticket.turn().await?;
        let mut round = 1;
        loop {
            let loading = tokio::time::timeout(LONGEST, self.cache.load.load(self.key.clone()));
            let loaded = loading.await.unwrap_or(Err(FailureKind::TimedOut));
            if let Some(found) = self.cache.finish(&self.key, loaded, round == ROUNDS) {
                self.has_landed = true;
                ticket.ended(found.as_ref().err().copied(), self.cache.load.now());
                return found;
            }
            round += 1;
        }
    }
}

impl<V: Send + Sync + 'static> Drop for Landing<V> {
    fn drop(&mut self) {
        if !self.has_landed {
            self.cache.state().flights.remove(&self.key);
        }
    }
}

impl<V> State<V> {
    /// What is known of a key that is asked for.
    fn used(&mut self, key: &str) -> Option<&Known<V>> {
        self.tick += 1;
        let known = self.known.get_mut(key)?;
        known.used_at = self.tick;
        Some(known)
    }

    fn keep(
        &mut self,
        key: &Arc<str>,
        value: Arc<V>,
        read_at: Timestamp,
        is_changed: bool,
        capacity: usize,
    ) {
        // To be looked up is not to be used.
        let used_at = match self.known.get(key) {
            Some(known) => known.used_at,
            None => {
                self.make_room(capacity);
                self.tick
            }
        };
        let known = Known { value, read_at, is_changed, used_at };
        self.known.insert(key.clone(), known);
    }

    fn make_room(&mut self, capacity: usize) {
        while self.known.len() >= capacity {
            let count = self.known.len();
            let places = (0..SAMPLE).map(|_| fastrand::usize(..count));
            let idle = places.min_by_key(|place| self.known[*place].used_at);
            self.known.swap_remove_index(idle.unwrap_or_default());
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
