//! Decides requests of several parts, in one step.
//!
//! ```text
//! group the parts by their counters -> lock the shards, in ascending order -> read the clock
//!   -> judge all groups -> charge all groups, or none -> unlock
//! ```
//!
//! There is no deadlock: all operations lock shards in one order (`locked_shards.rs`).
//!
//! A judgement changes nothing. If it grants the units, the charge grants them too, because the
//! shards are still locked and the time is the same. If a shard has no room for a new subject, this
//! subject is counted in the entry that new subjects share, and is judged there. No subject is
//! evicted for a request that is denied.

use arrayvec::ArrayVec;
use smallvec::SmallVec;

use super::locked_shards::{LockOrder, LockedShards, SHARDS};
use super::run::{DecideArgs, TooManyStates};
use super::{MemoryStore, too_many_states};
use crate::decision::{Decision, DecisionList};
use crate::model::{Cost, Mode, StoreError};
use crate::policy::Policy;
use crate::store::fingerprint::Fingerprint;
use crate::store::part_groups::{PartGroup, PartGroups, available, common_units};
use crate::store::{DecideRequest, Part};
use crate::time::{Clock, Timestamp};

type Group<'a> = PartGroup<'a, Fingerprint>;

/// A value for each group.
type ByGroup<T> = ArrayVec<T, { Part::MAX }>;

impl<C: Clock> MemoryStore<C> {
    /// Decides a request of several parts.
    ///
    /// # Errors
    ///
    /// Fails and changes nothing if the parts cannot be grouped ([`PartGroups::add`]), or if a
    /// charge would exceed the number of states that one subject may have.
    pub(super) fn decide_parts(&self, request: &DecideRequest<'_>) -> Result<Decision, StoreError> {
        let key = |namespace, subject| self.fingerprinter.fingerprint(namespace, subject);
        let mut parts = PartGroups::empty();
        parts.add(request, key)?;
        let groups = parts.groups();
        let mut order = LockOrder::default();
        groups.iter().for_each(|group| order.add(group.key));
        let decisions = {
            let mut shards = LockedShards::none();
            shards.lock(&self.shards, order);
            // The clock is read under the locks, so that decisions are made in the order of their
            // times.
            let now = self.clock.now();
            let (is_shared, evicted) = ([false; Part::MAX], SmallVec::new());
            let mut locked = LockedGroups { groups, shards: &mut shards, is_shared, evicted };
            let mut decisions = locked.decide(request.mode, now).map_err(|_| too_many_states())?;
            decisions.all_mut().iter_mut().for_each(|decision| decision.note_clock(now));
            decisions
        };
        Ok(parts.decision(decisions))
    }
}

/// The groups of a request, and the locked shards of their subjects.
struct LockedGroups<'a, 'l> {
    groups: &'a [Group<'a>],
    shards: &'a mut LockedShards<'l>,
    /// Whether each group is a new subject without room, which is counted in the entry that new
    /// subjects share.
    is_shared: [bool; Part::MAX],
    /// The subjects to evict, so that the other new subjects have room.
    evicted: SmallVec<[Fingerprint; 8]>,
}

/// The judgement about all groups of a request.
struct GroupsJudgement {
    /// Whether each group grants the units that it needs.
    grants: ByGroup<bool>,
    /// The time of the decision: that of the request, or the last change of a group if the clock
    /// has stepped back.
    at: Timestamp,
    /// Whether there may be no room for a new subject.
    may_lack_room: bool,
    /// Whether a charge would exceed the number of states of a subject.
    has_too_many_states: bool,
}

impl LockedGroups<'_, '_> {
    /// Judges all groups, then charges all of them or none.
    fn decide(&mut self, mode: Mode, now: Timestamp) -> Result<DecisionList, TooManyStates> {
        let mut judgement = self.judge(mode, now);
        let mut units = self.units(mode, &judgement);
        if units.is_some() && judgement.may_lack_room {
            self.find_room(judgement.at);
            judgement = self.judge(mode, judgement.at);
            units = self.units(mode, &judgement);
        }
        let at = judgement.at;
        let Some(units) = units else {
            let groups = 0..self.groups.len();
            return Ok(groups.map(|index| self.peek(index, mode, at)).collect());
        };
        if judgement.has_too_many_states {
            return Err(TooManyStates);
        }
        for subject in std::mem::take(&mut self.evicted) {
            self.shards.of(subject).evict(subject, at);
        }
        let mut decisions = DecisionList::new();
        for (index, units) in units.iter().enumerate() {
            self.charge(index, mode, *units, at, &mut decisions)?;
        }
        Ok(decisions)
    }

    /// Judges all groups at one time, `now` or later.
    fn judge(&mut self, mode: Mode, now: Timestamp) -> GroupsJudgement {
        let mut judgement = GroupsJudgement {
            grants: ByGroup::new(),
            at: now,
            may_lack_room: false,
            has_too_many_states: false,
        };
        loop {
            let at = judgement.at;
            judgement.grants.clear();
            for index in 0..self.groups.len() {
                let Group { key, policy, cost, .. } = self.groups[index];
                let needed = self.needed(index, mode);
                let (holder, further) = (self.holder(index), self.further_states(index));
                let args = DecideArgs { policy, mode: Mode::Check, cost: needed, now: at };
                let shard = self.shards.of(key);
                let judged = shard.judge(holder, args, further);
                let is_newcomer = !judged.is_known && cost > Cost::ZERO;
                judgement.may_lack_room |= is_newcomer && shard.vacancies() < self.groups.len();
                judgement.has_too_many_states |= judged.has_too_many_states;
                judgement.grants.push(judged.grants);
                judgement.at = judgement.at.max(judged.at);
            }
            if judgement.at == at {
                return judgement;
            }
        }
    }

    /// Returns the units to charge to each group, or `None` if nothing is charged. A group in
    /// shadow that does not grant its units is not charged.
    fn units(&mut self, mode: Mode, judgement: &GroupsJudgement) -> Option<ByGroup<Option<u64>>> {
        let groups = self.groups.iter().zip(&judgement.grants);
        match mode {
            Mode::Peek => None,
            Mode::Charge => Some(groups.map(|(group, _)| Some(group.cost.units())).collect()),
            Mode::Check => groups
                .map(|(group, grants)| match grants {
                    true => Some(Some(group.cost.units())),
                    false => group.is_shadow.then_some(None),
                })
                .collect(),
            Mode::CheckUpTo => {
                let available: ByGroup<u64> = (0..self.groups.len())
                    .map(|index| {
                        let peek = self.peek(index, mode, judgement.at);
                        available(&peek) / self.sharing(index).count().max(1) as u64
                    })
                    .collect();
                let common = common_units(self.groups, &available)?;
                let groups = self.groups.iter().zip(available);
                let units = groups.map(|(group, available)| {
                    let units = group.cost.units().min(common);
                    (units <= available).then_some(units)
                });
                Some(units.collect())
            }
        }
    }

    /// Returns the units that must be available for the group at `index`: its own, and those of the
    /// groups that charge the same state.
    fn needed(&self, index: usize, mode: Mode) -> Cost {
        if !self.is_shared[index] {
            return Cost::new(mode.required(self.groups[index].cost));
        }
        let needed = self.sharing(index).map(|group| mode.required(group.cost));
        Cost::new(needed.fold(0, u64::saturating_add))
    }

    /// Returns the number of states that the groups under other policies may add to the shared
    /// entry of the group at `index`.
    fn further_states(&self, index: usize) -> usize {
        if !self.is_shared[index] {
            return 0;
        }
        let policy = self.groups[index].policy;
        let others = self.in_shared_entry(index).filter(|group| group.policy != policy);
        others.map(|group| group.policy.limits().len()).sum()
    }

    /// Returns the groups that charge a state of the group at `index`, itself included, because
    /// they are counted in the same shared entry. Their policies may differ, and have common
    /// states.
    fn sharing(&self, index: usize) -> impl Iterator<Item = &Group<'_>> {
        let policy = self.groups[index].policy;
        self.in_shared_entry(index).filter(move |group| have_common_state(policy, group.policy))
    }

    /// Returns the groups that are counted in the same shared entry as the group at `index`, itself
    /// included. Returns none if it has an entry of its own.
    fn in_shared_entry(&self, index: usize) -> impl Iterator<Item = &Group<'_>> {
        let shard = self.groups[index].key.spread(SHARDS);
        let groups = self.groups.iter().zip(self.is_shared);
        let shares = move |(group, is_shared): &(&Group<'_>, bool)| {
            self.is_shared[index] && *is_shared && group.key.spread(SHARDS) == shard
        };
        groups.filter(shares).map(|(group, _)| group)
    }

    /// Returns the fingerprint of the entry in which the group at `index` is counted.
    const fn holder(&self, index: usize) -> Fingerprint {
        if self.is_shared[index] { Fingerprint::OVERFLOW } else { self.groups[index].key }
    }

    /// Returns the decision on the group at `index` without a charge.
    fn peek(&mut self, index: usize, mode: Mode, at: Timestamp) -> Decision {
        let Group { key, policy, cost, .. } = self.groups[index];
        let (needed, holder) = (self.needed(index, mode), self.holder(index));
        let args = DecideArgs { policy, mode: Mode::Peek, cost: needed, now: at };
        let mut decision = self.shards.of(key).peek(holder, args);
        decision.set_units(cost, 0);
        decision
    }

    /// Charges `units` to the group at `index`, and adds the decision to `decisions`. If `units` is
    /// `None`, charges nothing.
    fn charge(
        &mut self,
        index: usize,
        mode: Mode,
        units: Option<u64>,
        at: Timestamp,
        decisions: &mut DecisionList,
    ) -> Result<(), TooManyStates> {
        let Group { key, policy, cost, .. } = self.groups[index];
        let Some(units) = units else {
            decisions.push(self.peek(index, Mode::Check, at));
            return Ok(());
        };
        // Groups with a common state were judged for the sum of their costs. A limit that counts
        // requests counts one for each of them, and must not refuse the second one.
        let is_certain = mode == Mode::Charge || self.is_shared[index];
        let mode = if is_certain { Mode::Charge } else { Mode::Check };
        let args = DecideArgs { policy, mode, cost: Cost::new(units), now: at };
        let holder = self.holder(index);
        self.shards.of(key).charge(holder, args, decisions)?.set_cost(cost);
        Ok(())
    }

    /// Decides where the new subjects of a request that is charged at `at` are counted.
    #[cold]
    fn find_room(&mut self, at: Timestamp) {
        let groups = self.groups;
        let own: SmallVec<[Fingerprint; 8]> = groups.iter().map(|group| group.key).collect();
        for (place, shard) in self.shards.iter_mut() {
            let is_newcomer = |index: &usize| {
                let Group { key, cost, .. } = groups[*index];
                cost > Cost::ZERO && key.spread(SHARDS) == *place && !shard.contains(key)
            };
            let newcomers: ByGroup<usize> = (0..groups.len()).filter(is_newcomer).collect();
            let (with_room, evicted) = shard.plan_room(newcomers.len(), &own, at);
            newcomers[with_room..].iter().for_each(|index| self.is_shared[*index] = true);
            self.evicted.extend(evicted);
        }
    }
}

/// Returns whether two policies have limits that use one state, if one subject has both.
fn have_common_state(one: &Policy, other: &Policy) -> bool {
    let is_of_other = |id| other.limits().iter().any(|named| named.state_id() == id);
    one.limits().iter().any(|named| is_of_other(named.state_id()))
}
