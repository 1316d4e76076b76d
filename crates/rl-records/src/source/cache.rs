use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::FutureExt;
use futures::future::{BoxFuture, Shared};
use indexmap::IndexMap;
use rl_core::FailureKind;
use rl_core::time::Timestamp;
use tokio::runtime::Handle;

/// How many entries are compared to find one that has not been used for long.
const SAMPLE: usize = 8;

/// How long nothing is asked after a failure.
const PAUSE_MICROS: u64 = 1_000_000;

/// How long a look-up may take, whoever waits for it.
const LONGEST: Duration = Duration::from_secs(5);

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
    capacity: usize,
    fresh_micros: u64,
    // Look-ups run where the source was made: the runtime of a worker may end before them.
    runtime: Handle,
}

struct State<V> {
    slots: IndexMap<Arc<str>, Slot<V>>,
    // Counts uses and changes; orders them.
    tick: u64,
    // After a failure, until when nothing is asked for what is not known.
    down_until: Timestamp,
}

struct Slot<V> {
    known: Option<(Arc<V>, Timestamp)>,
    flight: Option<Flight<V>>,
    // What is known is older than a change.
    is_changed: bool,
    // The look-up takes longer than anybody should wait who can have the last value.
    is_late: bool,
    changed_at: u64,
    used_at: u64,
    retry_at: Timestamp,
}

/// The answer of a [`Cache`].
pub(super) enum Found<V> {
    /// It is known.
    Known(Arc<V>),
    /// It is being looked up; until then, and if that fails, this is the last that was known.
    Wait(Flight<V>, Option<Arc<V>>),
    /// Nothing is known, and the database failed a moment ago.
    Down,
}

impl<V: Send + Sync + 'static> Cache<V> {
    pub(super) fn new(
        load: impl Load<V>,
        capacity: usize,
        fresh_micros: u64,
        runtime: Handle,
    ) -> Self {
        let (slots, tick, down_until) = (IndexMap::new(), 0, Timestamp::EPOCH);
        let state = Mutex::new(State { slots, tick, down_until });
        Self { state, load: Box::new(load), capacity: capacity.max(1), fresh_micros, runtime }
    }

    fn state(&self) -> MutexGuard<'_, State<V>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn get(self: &Arc<Self>, key: &str) -> Found<V> {
        let now = self.load.now();
        let mut state = self.state();
        state.tick += 1;
        let (tick, is_down) = (state.tick, pauses(now, state.down_until));
        if !state.slots.contains_key(key) {
            if is_down {
                return Found::Down;
            }
            state.make_room(self.capacity);
            state.slots.insert(key.into(), Slot::new());
        }
        let (key, slot) = match state.slots.get_full_mut(key) {
            Some((_, key, slot)) => (key.clone(), slot),
            None => return Found::Down,
        };
        slot.used_at = tick;
        let is_old = slot
            .known
            .as_ref()
            .is_none_or(|(_, read_at)| now.micros_since(*read_at) >= self.fresh_micros);
        let may_ask = !pauses(now, slot.retry_at) && (slot.known.is_some() || !is_down);
        if (is_old || slot.is_changed) && slot.flight.is_none() && may_ask {
            slot.flight = Some(self.start(key));
        }
        match (&slot.known, &slot.flight) {
            (Some((value, _)), Some(flight)) if slot.is_changed && !slot.is_late => {
                Found::Wait(flight.clone(), Some(value.clone()))
            }
            // What is merely old is served while somebody looks whether it still holds.
            (Some((value, _)), _) => Found::Known(value.clone()),
            (None, Some(flight)) => Found::Wait(flight.clone(), None),
            (None, None) => Found::Down,
        }
    }

    fn start(self: &Arc<Self>, key: Arc<str>) -> Flight<V> {
        let this = self.clone();
        // A task of its own: whoever asked first may go away.
        let task = self.runtime.spawn(async move {
            loop {
                let began = this.state().tick;
                let loading = tokio::time::timeout(LONGEST, this.load.load(key.clone()));
                let loaded = loading.await.unwrap_or(Err(FailureKind::TimedOut));
                if let Some(result) = this.finish(&key, began, loaded) {
                    return result;
                }
            }
        });
        task.map(|done| done.unwrap_or(Err(FailureKind::Unavailable))).boxed().shared()
    }

    /// Keeps what was loaded; `None` if it changed while it was read.
    fn finish(
        &self,
        key: &str,
        began: u64,
        loaded: Result<V, FailureKind>,
    ) -> Option<Result<Arc<V>, FailureKind>> {
        let now = self.load.now();
        let loaded = loaded.map(Arc::new);
        let mut state = self.state();
        match &loaded {
            Ok(_) => state.down_until = Timestamp::EPOCH,
            // One damaged record is no reason not to ask for others.
            Err(kind) if kind.is_configuration() => {}
            Err(_) => state.down_until = now.plus_micros(PAUSE_MICROS),
        }
        let Some(slot) = state.slots.get_mut(key) else { return Some(loaded) };
        match &loaded {
            Ok(_) if slot.changed_at > began => return None,
            Ok(value) => {
                slot.known = Some((value.clone(), now));
                slot.is_changed = false;
                slot.retry_at = Timestamp::EPOCH;
            }
            Err(_) => slot.retry_at = now.plus_micros(PAUSE_MICROS),
        }
        (slot.flight, slot.is_late) = (None, false);
        Some(loaded)
    }

    /// Somebody has waited long enough for `key`: until its look-up ends, nobody waits who can have the
    /// last value.
    pub(super) fn give_up(&self, key: &str) {
        if let Some(slot) = self.state().slots.get_mut(key) {
            slot.is_late = slot.flight.is_some();
        }
    }

    /// The value of `key` is another one: the next who asks waits for it.
    pub(super) fn changed(&self, key: &str) {
        let mut state = self.state();
        state.tick += 1;
        let tick = state.tick;
        if let Some(slot) = state.slots.get_mut(key) {
            slot.change(tick);
        }
    }

    /// Every value may be another one.
    pub(super) fn all_changed(&self) {
        self.changed_if(|_| true);
    }

    /// The values of which `is_concerned` is true may be other ones, and those that are being looked up.
    pub(super) fn changed_if(&self, is_concerned: impl Fn(&V) -> bool) {
        let mut state = self.state();
        state.tick += 1;
        let tick = state.tick;
        for slot in state.slots.values_mut() {
            let concerns = slot.known.as_ref().is_none_or(|(value, _)| is_concerned(value));
            if concerns || slot.flight.is_some() {
                slot.change(tick);
            }
        }
    }

    #[cfg(test)]
    fn len(&self) -> usize {
        self.state().slots.len()
    }
}

/// Whether a pause until then goes on. A clock that was set back does not make it longer.
const fn pauses(now: Timestamp, until: Timestamp) -> bool {
    let left = until.micros_since(now);
    0 < left && left <= PAUSE_MICROS
}

impl<V> State<V> {
    fn make_room(&mut self, capacity: usize) {
        while self.slots.len() >= capacity {
            let count = self.slots.len();
            let places = (0..SAMPLE).map(|_| fastrand::usize(..count));
            let idle = places.filter(|place| self.slots[*place].flight.is_none());
            match idle.min_by_key(|place| self.slots[*place].used_at) {
                Some(place) => self.slots.swap_remove_index(place),
                // All of them are being looked up: whoever waits keeps the flight.
                None => self.slots.swap_remove_index(fastrand::usize(..count)),
            };
        }
    }
}

impl<V> Slot<V> {
    const fn new() -> Self {
        Self {
            known: None,
            flight: None,
            is_changed: false,
            is_late: false,
            changed_at: 0,
            used_at: 0,
            retry_at: Timestamp::EPOCH,
        }
    }

    const fn change(&mut self, tick: u64) {
        (self.is_changed, self.changed_at, self.retry_at) = (true, tick, Timestamp::EPOCH);
    }
}

impl<V> fmt::Debug for Cache<V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cache").field("capacity", &self.capacity).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
