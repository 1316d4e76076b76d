//! The state of one subject in its general form, for limits of every algorithm.

use smallvec::{Array, SmallVec};

use super::layout::used_fraction;
use crate::algorithm::{self, State};
use crate::decision::Decision;
use crate::model::{Cost, Limit, MAX_FOREIGN_STATES, Mode, StateId};
use crate::policy::{LimitSet, NamedLimit, Policy};
use crate::store::{Part, Refund, Renewal};
use crate::time::Timestamp;

/// The arguments of a decision on one subject.
#[derive(Clone, Copy, Debug)]
pub(super) struct DecideArgs<'a> {
    pub(super) policy: &'a Policy,
    pub(super) mode: Mode,
    pub(super) cost: Cost,
    pub(super) now: Timestamp,
}

impl<'a> DecideArgs<'a> {
    pub(super) const fn new(part: &Part<'a>, mode: Mode, now: Timestamp) -> Self {
        Self { policy: part.policy, mode, cost: part.cost, now }
    }
}

/// A charge would need more states of one subject than the store holds. Nothing was changed.
#[derive(Debug)]
pub(super) struct TooManyStates;

/// The states of one subject, each under its [`StateId`].
#[derive(Debug)]
pub(super) struct UnpackedEntry<A: Array<Item = LimitState>> {
    /// The states of the policy that was charged last, in its order, followed by those of other policies.
    states: SmallVec<A>,
    /// The time of the last change. No decision is made at an earlier time.
    last_change: Timestamp,
    /// When all states are expired.
    expires: Timestamp,
    /// When the last denial that is known ends.
    denied_until: Timestamp,
    /// The used fraction of the fullest limit at the last charge: see [`used_fraction`].
    used_fraction: u8,
}

/// An entry on the heap, as the store holds it.
pub(super) type BoxedEntry = UnpackedEntry<[LimitState; 1]>;

/// An entry on the stack while a packed one is decided. Six states need no allocation.
pub(super) type StackEntry = UnpackedEntry<[LimitState; 6]>;

/// The state of one limit.
#[derive(Debug)]
pub(super) struct LimitState {
    pub(super) id: StateId,
    pub(super) state: State,
    /// When the state is as if never used.
    pub(super) expires: Timestamp,
}

/// Returns the earliest time of a decision after a reset at `now` of an entry last changed at
/// `last_change`.
///
/// A refund names a charge by its time. If a reset comes in the same microsecond as a charge, the next
/// charge is made a microsecond later, so that a refund of the first charge does not find it.
pub(super) fn earliest_after_reset(last_change: Timestamp, now: Timestamp) -> Timestamp {
    if last_change < now { now } else { last_change.plus_micros(1) }
}

/// Returns whether [`earliest_after_reset`] must be remembered when the whole entry is removed.
///
/// A clock that stepped back by a millisecond or more decides at its own time after a reset.
pub(super) fn is_same_moment(last_change: Timestamp, now: Timestamp) -> bool {
    const STEP_BACK_MICROS: u64 = 1_000;

    last_change >= now && last_change.micros_since(now) < STEP_BACK_MICROS
}

/// The units that the enforced limits of a policy grant at once.
#[derive(Clone, Copy, Debug)]
struct Available {
    units: u64,
    /// The requests that limits which count requests grant.
    requests: u64,
}

impl Available {
    /// Returns the units that one request is granted.
    const fn for_one_request(self) -> u64 {
        if self.requests == 0 { 0 } else { self.units }
    }
}

impl<A: Array<Item = LimitState>> Default for UnpackedEntry<A> {
    fn default() -> Self {
        Self::new([], Timestamp::EPOCH, Timestamp::EPOCH)
    }
}

impl<A: Array<Item = LimitState>> UnpackedEntry<A> {
    /// Creates an entry of these states.
    pub(super) fn new(
        states: impl IntoIterator<Item = LimitState>,
        last_change: Timestamp,
        denied_until: Timestamp,
    ) -> Self {
        let states: SmallVec<A> = states.into_iter().collect();
        let expires = states.iter().map(|state| state.expires).max().unwrap_or_default();
        Self { states, last_change, expires, denied_until, used_fraction: 0 }
    }

    /// Converts the entry to the form that the store holds on the heap.
    pub(super) fn into_boxed(self) -> Box<BoxedEntry> {
        let Self { states, last_change, expires, denied_until, used_fraction } = self;
        let states = states.into_iter().collect();
        Box::new(UnpackedEntry { states, last_change, expires, denied_until, used_fraction })
    }

    /// Returns the states of all limits.
    pub(super) fn states(&self) -> &[LimitState] {
        &self.states
    }

    /// Returns the time of the last change.
    pub(super) const fn last_change(&self) -> Timestamp {
        self.last_change
    }

    /// Returns when the last known denial ends.
    pub(super) const fn denied_until(&self) -> Timestamp {
        self.denied_until
    }

    /// Returns the used fraction of the fullest limit at the last charge, scaled to 0–255.
    pub(super) const fn used_fraction(&self) -> u8 {
        self.used_fraction
    }

    /// Returns whether all states are expired at `now`.
    pub(super) fn is_expired(&self, now: Timestamp) -> bool {
        self.decision_time(now) >= self.expires
    }

    /// Returns whether a denial is known to hold at `now`.
    pub(super) fn is_denied(&self, now: Timestamp) -> bool {
        self.decision_time(now) < self.denied_until
    }

    /// Decides for all limits of the policy, and charges all of them or none.
    ///
    /// # Errors
    ///
    /// Fails and changes nothing if a charge would need more states than the store holds.
    pub(super) fn decide(
        &mut self,
        args: DecideArgs<'_>,
        decision: &mut Decision,
    ) -> Result<(), TooManyStates> {
        let DecideArgs { policy, mode, cost, now } = args;
        let now = self.decision_time(now);
        let mut available = self.available(policy, now);
        let granted = available.for_one_request();
        let charged = mode.charged(cost, granted);
        let mut uncharged = LimitSet::EMPTY;
        if charged > 0 {
            self.check_room(policy, now)?;
            if mode != Mode::Charge && policy.has_shadow() {
                uncharged = self.denying_in_shadow(policy, now, charged);
            }
            self.charge(policy, now, charged, uncharged);
            available.requests = available.requests.saturating_sub(1);
        }

        let mut is_allowed = true;
        let mut fullest = 0;
        for (index, named) in policy.limits().iter().enumerate() {
            let limit = named.limit();
            let needed = mode.required_after(cost, charged, uncharged.contains(index));
            let outcome = algorithm::outcome(limit, self.state(index, named), now, needed);
            if !limit.is_shadow() {
                is_allowed &= !outcome.is_over();
                if charged > 0 {
                    fullest = used_fraction(limit, outcome.used()).max(fullest);
                }
            }
            decision.outcomes_mut().push(outcome);
        }
        if charged > 0 {
            self.used_fraction = fullest;
        }
        if charged >= granted || available.requests == 0 {
            self.note_denial(policy, now, Cost::ONE);
        } else if charged == 0 {
            self.note_denial(policy, now, cost);
        }
        decision.finish(charged, now, is_allowed);
        Ok(())
    }

    /// Changes the states of the policy's limits. `change` gets the index of the limit in the policy.
    pub(super) fn amend(
        &mut self,
        policy: &Policy,
        now: Timestamp,
        mut change: impl FnMut(usize, Limit, &mut State, Timestamp),
    ) {
        let now = self.decision_time(now);
        self.last_change = now;
        self.order_states(policy, now);
        for (index, (named, entry)) in policy.limits().iter().zip(&mut self.states).enumerate() {
            if !entry.state.is_empty() {
                change(index, named.limit(), &mut entry.state, now);
                entry.expires = algorithm::expires(named.limit(), &entry.state);
            }
        }
        self.expires = self.states.iter().map(|state| state.expires).max().unwrap_or_default();
        if self.states.len() == policy.limits().len() {
            // All states are inspected here, so a denial that was known before may be forgotten.
            self.denied_until = Timestamp::EPOCH;
        }
        self.note_denial(policy, now, Cost::ONE);
        let limits = policy.limits().iter().enumerate();
        let enforced = limits.filter(|(_, named)| !named.limit().is_shadow());
        let fractions = enforced.map(|(index, named)| {
            let outcome = algorithm::outcome(named.limit(), self.state(index, named), now, 0);
            used_fraction(named.limit(), outcome.used())
        });
        self.used_fraction = fractions.max().unwrap_or(0);
    }

    /// Resets the limit at `index` of the policy.
    pub(super) fn reset(&mut self, policy: &Policy, now: Timestamp, index: usize) {
        let earliest = earliest_after_reset(self.last_change, now);
        self.amend(policy, now, |i, _, state, _| {
            if i == index {
                state.clear();
            }
        });
        self.last_change = self.last_change.max(earliest);
    }

    /// Returns whether the entry holds permits that `refund` names.
    pub(super) fn holds(&self, refund: &Refund<'_>, now: Timestamp) -> bool {
        let now = self.decision_time(now);
        let mut limits = refund.policy.limits().iter().enumerate();
        limits.any(|(index, named)| {
            let state = self.state(index, named);
            let units = refund.units_of(index);
            algorithm::held(named.limit(), state, now, refund.charged, units) > 0
        })
    }

    /// Renews the lease of permits, if every concurrency limit still holds some of them.
    ///
    /// Returns the time at which the renewed lease begins.
    pub(super) fn renew(&mut self, renewal: &Renewal<'_>, now: Timestamp) -> Option<Timestamp> {
        let Renewal { policy, charged, .. } = *renewal;
        let refund = renewal.as_refund();
        let renewed_at = self.decision_time(now);
        let mut limits = policy.limits().iter().enumerate();
        let is_held = limits.all(|(index, named)| {
            let state = self.state(index, named);
            let units = refund.units_of(index);
            units == 0 || algorithm::held(named.limit(), state, renewed_at, charged, units) > 0
        });
        if !is_held {
            return None;
        }
        self.amend(policy, now, |index, limit, state, now| {
            algorithm::renew(limit, state, now, charged, refund.units_of(index));
        });
        Some(renewed_at)
    }

    /// Returns `now`, or the time of the last change if the clock has stepped back.
    fn decision_time(&self, now: Timestamp) -> Timestamp {
        now.max(self.last_change)
    }

    fn available(&self, policy: &Policy, now: Timestamp) -> Available {
        let mut available = Available { units: u64::MAX, requests: u64::MAX };
        for (index, named) in policy.limits().iter().enumerate() {
            let limit = named.limit();
            if limit.is_shadow() {
                continue;
            }
            let left = algorithm::available(limit, self.state(index, named), now);
            if limit.counts_requests() {
                available.requests = available.requests.min(left);
            } else {
                available.units = available.units.min(left);
            }
        }
        available
    }

    /// Returns the limits in shadow that do not grant `units`.
    fn denying_in_shadow(&self, policy: &Policy, now: Timestamp, units: u64) -> LimitSet {
        let limits = policy.limits().iter().enumerate();
        let denying = limits.filter(|(index, named)| {
            let limit = named.limit();
            limit.is_shadow()
                && algorithm::available(limit, self.state(*index, named), now) < limit.units(units)
        });
        denying.map(|(index, _)| index).collect()
    }

    /// Checks that the states left by other policies, as far as they still count, may stay beside
    /// those of `policy`.
    fn check_room(&self, policy: &Policy, now: Timestamp) -> Result<(), TooManyStates> {
        if self.states.len() <= MAX_FOREIGN_STATES {
            return Ok(());
        }
        let is_foreign = |state: &&LimitState| {
            now < state.expires && policy.limits().iter().all(|named| named.state_id() != state.id)
        };
        let foreign = self.states.iter().filter(is_foreign).count();
        if foreign <= MAX_FOREIGN_STATES { Ok(()) } else { Err(TooManyStates) }
    }

    /// Charges `units` to every limit of the policy except those in `uncharged`.
    fn charge(&mut self, policy: &Policy, now: Timestamp, units: u64, uncharged: LimitSet) {
        self.order_states(policy, now);
        self.last_change = now;
        self.expires = Timestamp::EPOCH;
        for (index, entry) in self.states.iter_mut().enumerate() {
            // Behind the policy's states are those of other policies.
            if let Some(named) = policy.limits().get(index)
                && !uncharged.contains(index)
            {
                algorithm::charge(named.limit(), &mut entry.state, now, units);
                entry.expires = algorithm::expires(named.limit(), &entry.state);
            }
            self.expires = self.expires.max(entry.expires);
        }
    }

    /// Returns the state of a limit, or an empty one. `index` is where it is if the policy is the one
    /// charged last.
    fn state(&self, index: usize, limit: &NamedLimit) -> &State {
        static EMPTY: State = State::empty();

        let has_id = |state: &&LimitState| state.id == limit.state_id();
        let at_index = self.states.get(index).filter(has_id);
        at_index.or_else(|| self.states.iter().find(has_id)).map_or(&EMPTY, |entry| &entry.state)
    }

    /// Puts the states into the order of the policy's limits, and drops expired ones of other policies.
    fn order_states(&mut self, policy: &Policy, now: Timestamp) {
        let limits = policy.limits();
        let in_order = limits.iter().map(NamedLimit::state_id);
        if in_order.eq(self.states.iter().map(|state| state.id)) {
            return;
        }
        let mut old = std::mem::take(&mut self.states);
        self.states.reserve_exact(limits.len());
        for named in limits {
            let id = named.state_id();
            let state = match old.iter().position(|state| state.id == id) {
                Some(index) => old.remove(index),
                None => LimitState { id, state: State::empty(), expires: Timestamp::EPOCH },
            };
            self.states.push(state);
        }
        self.states.extend(old.into_iter().filter(|state| now < state.expires));
    }

    /// Records until when a request of this cost is denied, if that is later than known before.
    fn note_denial(&mut self, policy: &Policy, now: Timestamp, cost: Cost) {
        for (index, named) in policy.limits().iter().enumerate() {
            let limit = named.limit();
            if limit.is_shadow() {
                continue;
            }
            let outcome = algorithm::outcome(limit, self.state(index, named), now, cost.units());
            if let Some(wait) = outcome.wait_micros() {
                let until = now.plus_micros(wait).min(self.expires);
                self.denied_until = self.denied_until.max(until);
            }
        }
    }
}
