use smallvec::{Array, SmallVec};

use super::shard::Asked;
use crate::algorithm::{self, State};
use crate::decision::Decision;
use crate::model::MAX_FOREIGN_STATES;
use crate::model::{Cost, Limit, Mode, StateId};
use crate::policy::{LimitSet, NamedLimit, Policy};
use crate::store::{Refund, Renewal};
use crate::time::Timestamp;

/// What the store keeps of one subject, whatever its limits are.
#[derive(Debug)]
pub(super) struct Entry<A: Array<Item = Slot>> {
    slots: SmallVec<A>,
    /// The time of the last change: no decision is made before it.
    last: Timestamp,
    /// When nothing of it counts any more.
    expires: Timestamp,
    /// Until when the subject is in a denied state.
    denied_until: Timestamp,
    /// Of the limit that it had used up the most when it was last charged, how many 255ths. Units do
    /// not compare: who has used a thousand of a large limit has more left than a newcomer under a
    /// small one.
    consumed: u8,
}

/// Returns the earliest time of a decision after a reset at `clock` of an entry last changed at `last`.
///
/// A refund names a charge by its time. Where the reset comes in the same microsecond as the charge,
/// the next charge is made a microsecond later, so that a refund of the first does not find it.
pub(super) fn after_reset(last: Timestamp, clock: Timestamp) -> Timestamp {
    if last < clock { clock } else { last.plus_micros(1) }
}

/// How far behind the last change a clock may be and still be taken for the same moment. A clock that
/// stepped back further decides at its own time after a reset.
const SAME_MOMENT: u64 = 1_000;

/// Returns whether the time of [`after_reset`] must be remembered when the whole entry is removed.
pub(super) fn is_same_moment(last: Timestamp, clock: Timestamp) -> bool {
    last >= clock && last.micros_since(clock) < SAME_MOMENT
}

/// An entry that is kept.
pub(super) type Whole = Entry<[Slot; 1]>;

/// An entry while it is decided, made from what is kept in less: it needs no memory of its own.
pub(super) type Unpacked = Entry<[Slot; 6]>;

/// The state of one limit.
#[derive(Debug)]
pub(super) struct Slot {
    pub(super) id: StateId,
    pub(super) state: State,
    /// When the state is as if never used.
    pub(super) expires: Timestamp,
}

impl<A: Array<Item = Slot>> Default for Entry<A> {
    fn default() -> Self {
        Self::of([], Timestamp::EPOCH, Timestamp::EPOCH)
    }
}

impl<A: Array<Item = Slot>> Entry<A> {
    pub(super) fn of(
        slots: impl IntoIterator<Item = Slot>,
        last: Timestamp,
        denied_until: Timestamp,
    ) -> Self {
        let slots: SmallVec<A> = slots.into_iter().collect();
        let expires = slots.iter().map(|slot| slot.expires).max().unwrap_or_default();
        Self { slots, last, expires, denied_until, consumed: 0 }
    }

    /// The same in room that fits.
    pub(super) fn resized<B: Array<Item = Slot>>(self) -> Entry<B> {
        let Self { slots, last, expires, denied_until, consumed } = self;
        let slots = slots.into_iter().collect();
        Entry { slots, last, expires, denied_until, consumed }
    }

    pub(super) fn slots(&self) -> &[Slot] {
        &self.slots
    }

    pub(super) const fn last(&self) -> Timestamp {
        self.last
    }

    pub(super) const fn denied_until(&self) -> Timestamp {
        self.denied_until
    }

    /// Decides `cost` for all limits of the policy, and charges all of them or none.
    ///
    /// Returns false, and changes nothing, if a charge would need more states than are kept.
    #[must_use]
    pub(super) fn decide(
        &mut self,
        Asked { policy, clock, mode, cost }: Asked<'_>,
        decision: &mut Decision,
    ) -> bool {
        let now = self.clamp(clock);
        let limits = policy.limits();
        let (mut units_left, mut requests_left, mut has_shadow) = (u64::MAX, u64::MAX, false);
        for (i, limit) in limits.iter().enumerate() {
            if limit.limit().is_shadow() {
                has_shadow = true;
                continue;
            }
            let left = algorithm::available(limit.limit(), self.state(i, limit), now);
            let counts_requests = limit.limit().counts_requests();
            let least = if counts_requests { &mut requests_left } else { &mut units_left };
            *least = left.min(*least);
        }
        let available = if requests_left == 0 { 0 } else { units_left };
        let taken = mode.taken(cost, available);
        let mut uncharged = LimitSet::EMPTY;
        if taken > 0 {
            if !self.has_room_for(policy, now) {
                return false;
            }
            if has_shadow && mode != Mode::Charge {
                uncharged = self.would_deny(policy, now, taken);
            }
            self.charge(policy, now, taken, uncharged);
            requests_left -= requests_left.min(1);
        }
        let (mut is_allowed, mut consumed) = (true, 0);
        for (i, limit) in limits.iter().enumerate() {
            let needed = algorithm::needed(mode, cost, taken, uncharged.contains(i));
            let outcome = algorithm::outcome(limit.limit(), self.state(i, limit), now, needed);
            if !limit.limit().is_shadow() {
                is_allowed &= !outcome.is_over();
                consumed = limit.consumed(outcome.used()).max(consumed);
            }
            decision.outcomes_mut().push(outcome);
        }
        if taken > 0 {
            self.consumed = consumed;
        }
        if taken >= available || requests_left == 0 {
            self.note_denial(policy, now, Cost::ONE);
        } else if taken == 0 {
            self.note_denial(policy, now, cost);
        }
        decision.concluded(taken, now, is_allowed);
        true
    }

    /// Returns whether the states that other policies left, and that still count, may stay beside
    /// those of `policy`.
    fn has_room_for(&self, policy: &Policy, now: Timestamp) -> bool {
        if self.slots.len() <= MAX_FOREIGN_STATES {
            return true;
        }
        let is_its = |slot: &Slot| policy.limits().iter().any(|limit| limit.state() == slot.id);
        let foreign = self.slots.iter().filter(|slot| now < slot.expires && !is_its(slot));
        foreign.count() <= MAX_FOREIGN_STATES
    }

    /// `now`, but never before the last change.
    fn clamp(&self, now: Timestamp) -> Timestamp {
        now.max(self.last)
    }

    /// The state that `limit` counts in; an empty one, if there is none. As long as the policy stays
    /// the same, slots stand in its order, and `place` is where it is.
    fn state(&self, place: usize, limit: &NamedLimit) -> &State {
        static EMPTY: State = State::empty();

        let is_its = |slot: &&Slot| slot.id == limit.state();
        let slot = self.slots.get(place).filter(is_its);
        slot.or_else(|| self.slots.iter().find(is_its)).map_or(&EMPTY, |slot| &slot.state)
    }

    /// The limits in shadow that do not grant `units`.
    fn would_deny(&self, policy: &Policy, now: Timestamp, units: u64) -> LimitSet {
        let limits = policy.limits().iter().enumerate();
        let would_deny = limits.filter(|(i, limit)| {
            let needed = limit.limit().units(units);
            limit.limit().is_shadow()
                && algorithm::available(limit.limit(), self.state(*i, limit), now) < needed
        });
        would_deny.map(|(i, _)| i).collect()
    }

    /// Takes `units` from every limit of the policy but those that are not to be charged.
    fn charge(&mut self, policy: &Policy, now: Timestamp, units: u64, uncharged: LimitSet) {
        self.take_shape_of(policy, now);
        self.last = now;
        self.expires = Timestamp::EPOCH;
        let mut limits = policy.limits().iter().enumerate();
        for slot in &mut self.slots {
            // Behind the slots of the policy's limits stand those of others.
            if let Some((i, limit)) = limits.next()
                && !uncharged.contains(i)
            {
                algorithm::charge(limit.limit(), &mut slot.state, now, units);
                slot.expires = algorithm::expires(limit.limit(), &slot.state);
            }
            self.expires = self.expires.max(slot.expires);
        }
    }

    /// Puts the slots into the order of the policy's limits; behind them stays what other policies
    /// left, as long as it counts.
    fn take_shape_of(&mut self, policy: &Policy, now: Timestamp) {
        let limits = policy.limits();
        let is_its = |(slot, limit): (&Slot, &NamedLimit)| slot.id == limit.state();
        if self.slots.len() == limits.len() && self.slots.iter().zip(limits).all(is_its) {
            return;
        }
        let mut old = std::mem::take(&mut self.slots);
        self.slots.reserve_exact(limits.len());
        for limit in limits {
            let id = limit.state();
            let slot = match old.iter().position(|slot| slot.id == id) {
                Some(place) => old.remove(place),
                None => Slot { id, state: State::empty(), expires: Timestamp::EPOCH },
            };
            self.slots.push(slot);
        }
        self.slots.extend(old.into_iter().filter(|slot| now < slot.expires));
    }

    /// Remembers until when a request of this cost would be denied, beyond what is known already.
    fn note_denial(&mut self, policy: &Policy, now: Timestamp, cost: Cost) {
        for (i, limit) in policy.limits().iter().enumerate() {
            let state = self.state(i, limit);
            if limit.limit().is_shadow() {
                continue;
            }
            let outcome = algorithm::outcome(limit.limit(), state, now, cost.units());
            if let Some(wait) = outcome.wait_micros() {
                let until = now.plus_micros(wait).min(self.expires);
                self.denied_until = self.denied_until.max(until);
            }
        }
    }

    /// Changes the states of the policy's limits, as for a refund or a reset.
    pub(super) fn amend(
        &mut self,
        policy: &Policy,
        clock: Timestamp,
        mut change: impl FnMut(usize, Limit, &mut State, Timestamp),
    ) {
        let now = self.clamp(clock);
        self.last = now;
        self.take_shape_of(policy, now);
        for (i, (limit, slot)) in policy.limits().iter().zip(&mut self.slots).enumerate() {
            if !slot.state.is_empty() {
                change(i, limit.limit(), &mut slot.state, now);
                slot.expires = algorithm::expires(limit.limit(), &slot.state);
            }
        }
        self.expires = self.slots.iter().map(|slot| slot.expires).max().unwrap_or_default();
        if self.slots.len() == policy.limits().len() {
            // No limit is left that could deny but those that are looked at now.
            self.denied_until = Timestamp::EPOCH;
        }
        self.note_denial(policy, now, Cost::ONE);
        let limits = policy.limits().iter().enumerate();
        let enforced = limits.filter(|(_, limit)| !limit.limit().is_shadow());
        let consumed = enforced.map(|(i, limit)| {
            let outcome = algorithm::outcome(limit.limit(), self.state(i, limit), now, 0);
            limit.consumed(outcome.used())
        });
        self.consumed = consumed.max().unwrap_or(0);
    }

    /// Forgets what was used of the limit at `place`.
    pub(super) fn forget(&mut self, policy: &Policy, clock: Timestamp, place: usize) {
        let next = after_reset(self.last, clock);
        self.amend(policy, clock, |i, _, state, _| {
            if i == place {
                state.clear();
            }
        });
        self.last = self.last.max(next);
    }

    /// Whether places that are to be freed or leased anew are held here.
    pub(super) fn holds(&self, refund: &Refund<'_>, clock: Timestamp) -> bool {
        let now = self.clamp(clock);
        let mut limits = refund.policy.limits().iter().enumerate();
        limits.any(|(i, named)| {
            let (limit, units) = (named.limit(), refund.units_of(i));
            algorithm::held(limit, self.state(i, named), now, refund.charged, units) > 0
        })
    }

    /// Begins anew the lease of units that were taken at `charged`, if every limit of concurrency
    /// still holds some of them. Returns when it begins.
    pub(super) fn renew(&mut self, renewal: &Renewal<'_>, clock: Timestamp) -> Option<Timestamp> {
        let Renewal { policy, charged, .. } = *renewal;
        let (now, refund) = (self.clamp(clock), renewal.as_refund());
        let mut limits = policy.limits().iter().enumerate();
        let is_held = limits.all(|(i, named)| {
            let (limit, state, units) = (named.limit(), self.state(i, named), refund.units_of(i));
            units == 0 || algorithm::held(limit, state, now, charged, units) > 0
        });
        if !is_held {
            return None;
        }
        self.amend(policy, clock, |i, limit, state, now| {
            algorithm::renew(limit, state, now, charged, refund.units_of(i));
        });
        Some(now)
    }

    /// Whether nothing of it counts at `now`.
    pub(super) fn is_expired(&self, now: Timestamp) -> bool {
        self.clamp(now) >= self.expires
    }

    /// Whether the subject is in a denied state at `now`, as far as is known.
    pub(super) fn is_denied(&self, now: Timestamp) -> bool {
        self.clamp(now) < self.denied_until
    }

    /// How much of its limits was used up when it was last charged: the less, the less is forgotten
    /// with it.
    pub(super) const fn consumed(&self) -> u8 {
        self.consumed
    }
}
