use smallvec::SmallVec;

use crate::algorithm::{self, State};
use crate::model::{Cost, Limit, Mode, Outcomes, Policy};
use crate::time::Timestamp;

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

/// The state of one limit, and the limit that it was last charged under.
#[derive(Debug)]
struct Slot {
    limit: Limit,
    state: State,
}

impl Slot {
    fn expires(&self) -> Timestamp {
        algorithm::expires(self.limit, &self.state)
    }
}

/// A decision on an entry.
#[derive(Debug)]
pub(super) struct Step {
    pub(super) now: Timestamp,
    pub(super) taken: u64,
    pub(super) outcomes: Outcomes,
}

impl Entry {
    /// Decides `cost` for all limits of the policy, and charges all of them or none.
    pub(super) fn decide(
        &mut self,
        policy: &Policy,
        clock: Timestamp,
        mode: Mode,
        cost: Cost,
    ) -> Step {
        static EMPTY: State = State::empty();

        let now = self.clamp(clock);
        let limits = || policy.limits().iter().map(|named| named.limit()).enumerate();
        let available = limits().map(|(i, limit)| {
            let state = self.state(i, limit).unwrap_or(&EMPTY);
            algorithm::available(limit, state, now)
        });
        let available = available.min().unwrap_or(0);
        let taken = mode.taken(cost, available);
        if taken > 0 {
            self.charge(policy, now, taken);
            self.available = available.saturating_sub(taken);
        }
        let outcomes = limits().map(|(i, limit)| {
            let state = self.state(i, limit).unwrap_or(&EMPTY);
            algorithm::outcome(limit, state, now, mode, cost, taken)
        });
        let outcomes: Outcomes = outcomes.collect();
        if taken == 0 {
            // Whoever is denied, for whatever cost, is not forgotten before the wait is over.
            let wait = outcomes.iter().filter_map(|outcome| outcome.wait_micros()).max();
            let until = now.plus_micros(wait.unwrap_or(0)).min(self.expires);
            self.exhausted_until = self.exhausted_until.max(until);
        }
        Step { now, taken, outcomes }
    }

    /// `now`, but never before the last change.
    fn clamp(&self, now: Timestamp) -> Timestamp {
        now.max(self.last)
    }

    /// The state that `limit` counts in. As long as the policy stays the same, slots stand in its
    /// order, and `place` is where it is.
    fn state(&self, place: usize, limit: Limit) -> Option<&State> {
        match self.slots.get(place) {
            Some(slot) if slot.limit.shares_state_with(limit) => Some(&slot.state),
            _ => {
                let slot = self.slots.iter().find(|slot| slot.limit.shares_state_with(limit));
                slot.map(|slot| &slot.state)
            }
        }
    }

    /// Takes `units` from every limit of the policy.
    fn charge(&mut self, policy: &Policy, now: Timestamp, units: u64) {
        self.take_shape_of(policy, now);
        for (slot, named) in self.slots.iter_mut().zip(policy.limits()) {
            slot.limit = named.limit();
            algorithm::charge(slot.limit, &mut slot.state, now, units);
        }
        self.changed(now);
    }

    /// Notes what follows from a change at `now`.
    fn changed(&mut self, now: Timestamp) {
        self.last = now;
        self.expires = Timestamp::EPOCH;
        self.exhausted_until = Timestamp::EPOCH;
        for slot in &self.slots {
            let expires = slot.expires();
            self.expires = self.expires.max(expires);
            if algorithm::available(slot.limit, &slot.state, now) == 0 {
                self.exhausted_until = self.exhausted_until.max(expires);
            }
        }
    }

    /// Puts the slots into the order of the policy's limits; behind them stays what other policies
    /// left, as long as it counts.
    fn take_shape_of(&mut self, policy: &Policy, now: Timestamp) {
        let limits = policy.limits();
        let same = |(slot, named): (&Slot, &crate::NamedLimit)| {
            slot.limit.shares_state_with(named.limit())
        };
        if self.slots.len() == limits.len() && self.slots.iter().zip(limits).all(same) {
            return;
        }
        let mut old = std::mem::take(&mut self.slots);
        for named in limits {
            let limit = named.limit();
            let place = old.iter().position(|slot| slot.limit.shares_state_with(limit));
            let slot = place.map(|place| old.remove(place));
            self.slots.push(slot.unwrap_or_else(|| Slot { limit, state: State::empty() }));
        }
        let foreign = old.into_iter().filter(|slot| now < slot.expires());
        self.slots.extend(foreign.take(MAX_FOREIGN));
    }

    /// Changes the state of one limit, as for a refund or a reset.
    pub(super) fn amend(
        &mut self,
        limit: Limit,
        clock: Timestamp,
        change: impl FnOnce(&mut State, Timestamp),
    ) {
        let now = self.clamp(clock);
        let found = self.slots.iter_mut().find(|slot| slot.limit.shares_state_with(limit));
        if let Some(slot) = found {
            change(&mut slot.state, now);
        }
        self.changed(now);
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
