use arrayvec::ArrayVec;
use smallvec::SmallVec;

use crate::algorithm::{self, Mode, State, StateId};
use crate::time::Timestamp;
use crate::{Cost, Limit, Policy};

/// The states of a policy's limits, in its order.
pub(super) type States = ArrayVec<State, { Policy::MAX_LIMITS }>;

/// The most states of limits that the present policy does not name. They belong to other policies
/// of the subject; the operator's policies have far fewer.
const MAX_FOREIGN: usize = 16;

/// What the store keeps of one subject.
#[derive(Debug, Default)]
pub(super) struct Entry {
    slots: SmallVec<[Slot; 6]>,
    /// The time of the last change: no decision is made before it.
    last: Timestamp,
    /// When nothing of it counts any more.
    expires: Timestamp,
    /// Until when the next request would be denied for sure.
    exhausted_until: Timestamp,
    /// The units left when it was last charged.
    available: u64,
}

#[derive(Clone, Copy, Debug)]
struct Slot {
    id: StateId,
    state: State,
    expires: Timestamp,
}

/// A decision on an entry, with the states it left.
#[derive(Debug)]
pub(super) struct Step {
    pub(super) now: Timestamp,
    pub(super) states: States,
    pub(super) taken: u64,
}

impl Entry {
    /// Decides `cost` for all limits of the policy; stores the new states if anything was taken.
    pub(super) fn decide(
        &mut self,
        policy: &Policy,
        clock: Timestamp,
        mode: Mode,
        cost: Cost,
    ) -> Step {
        let now = self.clamp(clock);
        let mut states = self.load(policy);
        let taken = algorithm::decide(policy, &mut states, now, mode, cost);
        if taken > 0 {
            self.save(policy, &states, now);
        }
        Step { now, states, taken }
    }

    /// `now`, but never before the last change.
    fn clamp(&self, now: Timestamp) -> Timestamp {
        now.max(self.last)
    }

    /// The states of the policy's limits; empty where nothing is stored.
    fn load(&self, policy: &Policy) -> States {
        policy.limits().iter().enumerate().map(|(i, limit)| self.state(i, limit.limit())).collect()
    }

    fn state(&self, hint: usize, limit: Limit) -> State {
        let id = StateId::of(limit);
        // As long as the policy stays the same, slots stand in its order.
        match self.slots.get(hint) {
            Some(slot) if slot.id == id => slot.state,
            _ => {
                self.slots.iter().find(|slot| slot.id == id).map_or(State::EMPTY, |slot| slot.state)
            }
        }
    }

    /// Stores the states of the policy's limits, charged at `now`; what other policies left stays
    /// until its window ends.
    fn save(&mut self, policy: &Policy, states: &[State], now: Timestamp) {
        let mut foreign = SmallVec::<[Slot; 6]>::new();
        if !self.has_shape_of(policy) {
            foreign.extend(self.slots.drain(..).filter(|slot| {
                now < slot.expires
                    && !policy.limits().iter().any(|limit| StateId::of(limit.limit()) == slot.id)
            }));
            foreign.truncate(MAX_FOREIGN);
        }
        self.last = now;
        self.expires = foreign.iter().map(|slot| slot.expires).max().unwrap_or_default();
        self.exhausted_until = Timestamp::EPOCH;
        self.available = u64::MAX;
        for (i, (limit, state)) in policy.limits().iter().zip(states).enumerate() {
            let (limit, state) = (limit.limit(), *state);
            let expires = algorithm::expires(limit, state);
            let slot = Slot { id: StateId::of(limit), state, expires };
            match self.slots.get_mut(i) {
                Some(stored) => *stored = slot,
                None => self.slots.push(slot),
            }
            let available = algorithm::available(limit, state, now);
            self.available = self.available.min(available);
            self.expires = self.expires.max(expires);
            if available == 0 {
                self.exhausted_until = self.exhausted_until.max(expires);
            }
        }
        self.slots.extend(foreign);
    }

    /// Whether the slots are those of the policy's limits, in its order.
    fn has_shape_of(&self, policy: &Policy) -> bool {
        let limits = policy.limits();
        limits.len() == self.slots.len()
            && limits
                .iter()
                .zip(&self.slots)
                .all(|(limit, slot)| StateId::of(limit.limit()) == slot.id)
    }

    /// Replaces the state of one limit, as after a refund or a reset.
    pub(super) fn amend(
        &mut self,
        limit: Limit,
        clock: Timestamp,
        change: impl FnOnce(State) -> State,
    ) {
        self.last = self.clamp(clock);
        let id = StateId::of(limit);
        if let Some(slot) = self.slots.iter_mut().find(|slot| slot.id == id) {
            slot.state = change(slot.state);
            slot.expires = algorithm::expires(limit, slot.state);
            self.exhausted_until = Timestamp::EPOCH;
            self.expires = self.slots.iter().map(|slot| slot.expires).max().unwrap_or_default();
        }
    }

    /// Whether nothing of it counts at `now`.
    pub(super) fn is_expired(&self, now: Timestamp) -> bool {
        self.clamp(now) >= self.expires
    }

    /// Whether the subject is in a denied state at `now`.
    pub(super) fn is_exhausted(&self, now: Timestamp) -> bool {
        self.clamp(now) < self.exhausted_until
    }

    /// The units left when it was last charged: the more, the less is lost with it.
    pub(super) const fn available(&self) -> u64 {
        self.available
    }
}
