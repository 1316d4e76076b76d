//! Requests of several parts, some of them new subjects in shards with little room.
//!
//! A new subject in a full shard may be counted in the entry that new subjects share, and this
//! entry may deny the request. Such subjects are therefore charged first. If one of them is denied,
//! the shared entries are restored from copies. No subject is evicted for a request that is denied.

use smallvec::SmallVec;

use super::super::SHARDS;
use super::super::entry::Entry;
use super::super::run::{DecideArgs, TooManyStates};
use super::super::shard::Shard;
use super::{Group, GroupUnits, LockedStep, mode_of_charge};
use crate::decision::{Decision, DecisionList};
use crate::model::{Cost, Mode};
use crate::store::Part;
use crate::store::fingerprint::Fingerprint;
use crate::time::Timestamp;

/// The decisions on groups that are counted in shared entries; `None` for all other groups.
type SharedCharges = SmallVec<[Option<Decision>; 8]>;

/// The position of a group, and the decision that denies it.
type DeniedGroup = (usize, Decision);

/// The room for the new subjects of a request.
struct RoomPlan {
    /// Whether each group is a new subject without room, which is counted in a shared entry.
    is_shared: [bool; Part::MAX],
    /// The subjects to evict, so that the other new subjects have room.
    evicted: SmallVec<[Fingerprint; 8]>,
}

impl LockedStep<'_, '_> {
    /// Charges `units` to the groups. Some of them are new subjects in shards with little room.
    ///
    /// New subjects without room are charged first, in the entry that new subjects share, because
    /// this entry may deny the request. Subjects are evicted only once it is certain that all
    /// groups are charged.
    #[cold]
    pub(super) fn charge_with_little_room(
        &mut self,
        mode: Mode,
        units: &[Option<u64>],
        at: Timestamp,
    ) -> Result<DecisionList, TooManyStates> {
        let plan = self.plan_room(units, at);
        let mut units: GroupUnits = SmallVec::from_slice(units);
        let mut tried = self.try_charge_shared(mode, &units, &plan, at)?;
        if let Err(denial) = tried {
            let reduced = match mode {
                Mode::CheckUpTo => self.reduce_to_shared(&units, &plan, denial, at)?,
                _ => Err(denial),
            };
            tried = match reduced {
                Ok(reduced) => {
                    units = reduced;
                    self.try_charge_shared(mode, &units, &plan, at)?
                }
                Err(denial) => Err(denial),
            };
        }
        let mut charged = match tried {
            Ok(charged) => charged,
            Err((index, denial)) => return Ok(self.deny(mode, index, &denial, at)),
        };
        for evicted in plan.evicted {
            self.shard(evicted).evict(evicted, at);
        }
        let all = (0..self.groups.len()).map(|index| match (charged[index].take(), units[index]) {
            (Some(decision), _) => Ok(decision),
            (None, Some(units)) => self.charge_in(index, mode, units, at, Shard::decide_with_room),
            (None, None) => Ok(self.peek(index, self.groups[index].cost, at)),
        });
        all.collect()
    }

    /// Decides where the new subjects among the charged groups are counted.
    fn plan_room(&mut self, units: &[Option<u64>], at: Timestamp) -> RoomPlan {
        let groups = self.groups;
        let own: SmallVec<[Fingerprint; 8]> = groups.iter().map(|group| group.key).collect();
        let mut plan = RoomPlan { is_shared: [false; Part::MAX], evicted: SmallVec::new() };
        for (place, shard) in self.shards.iter_mut() {
            let is_newcomer = |index: &usize| {
                let key = groups[*index].key;
                let is_charged = units[*index].is_some_and(|units| units > 0);
                is_charged && key.spread(SHARDS) == *place && !shard.contains(key)
            };
            let newcomers: SmallVec<[usize; 8]> = (0..groups.len()).filter(is_newcomer).collect();
            let (with_room, evicted) = shard.plan_room(newcomers.len(), &own, at);
            newcomers[with_room..].iter().for_each(|index| plan.is_shared[*index] = true);
            plan.evicted.extend(evicted);
        }
        plan
    }

    /// Charges the new subjects without room in the entry that new subjects share. If an enforced
    /// group is denied, restores that entry, and returns the denial.
    fn try_charge_shared(
        &mut self,
        mode: Mode,
        units: &[Option<u64>],
        plan: &RoomPlan,
        at: Timestamp,
    ) -> Result<Result<SharedCharges, DeniedGroup>, TooManyStates> {
        let copies = self.copy_shared_entries();
        let mut charged: SharedCharges = self.groups.iter().map(|_| None).collect();
        for index in (0..self.groups.len()).filter(|index| plan.is_shared[*index]) {
            let decide = |shard: &mut Shard, _, args: DecideArgs<'_>, decision: &mut Decision| {
                shard.decide_in_shared_entry(args, decision)
            };
            let units = units[index].unwrap_or(0);
            match self.charge_in(index, mode, units, at, decide) {
                Ok(decision) if decision.is_allowed() || self.groups[index].is_shadow => {
                    charged[index] = Some(decision);
                }
                denied => {
                    self.restore_shared_entries(copies);
                    return Ok(Err((index, denied?)));
                }
            }
        }
        Ok(Ok(charged))
    }

    /// Finds the largest number of units that the shared entries grant to every group at once, and
    /// returns `units` reduced to this number. If they grant nothing, returns the denial of a
    /// single unit. `denial` is the denial of `units`.
    fn reduce_to_shared(
        &mut self,
        units: &[Option<u64>],
        plan: &RoomPlan,
        mut denial: DeniedGroup,
        at: Timestamp,
    ) -> Result<Result<GroupUnits, DeniedGroup>, TooManyStates> {
        let bounded = |most: u64| -> GroupUnits {
            units.iter().map(|units| units.map(|units| units.min(most))).collect()
        };
        // The largest number of units known to be granted, and the smallest known to be denied.
        let (mut granted, mut denied) = (0, units.iter().flatten().copied().max().unwrap_or(0));
        while denied - granted > 1 {
            let middle = granted + (denied - granted) / 2;
            let copies = self.copy_shared_entries();
            match self.try_charge_shared(Mode::Check, &bounded(middle), plan, at)? {
                Ok(_) => {
                    granted = middle;
                    self.restore_shared_entries(copies);
                }
                Err(further) => (denied, denial) = (middle, further),
            }
        }
        Ok(if granted > 0 { Ok(bounded(granted)) } else { Err(denial) })
    }

    /// Returns the decisions on all groups of a denied request. The group at `index` was denied by
    /// `denial`.
    fn deny(&mut self, mode: Mode, index: usize, denial: &Decision, at: Timestamp) -> DecisionList {
        let all = (0..self.groups.len()).map(|i| {
            let cost = self.groups[i].cost;
            // `CheckUpTo` denies a request only if nothing is available.
            let needed = if mode == Mode::CheckUpTo { cost.min(Cost::ONE) } else { cost };
            let decision = if i == index { denial.clone() } else { self.peek(i, needed, at) };
            decision.with_units(cost, 0)
        });
        all.collect()
    }

    fn copy_shared_entries(&self) -> SmallVec<[Option<Entry>; 4]> {
        self.shards.iter().map(|(_, shard)| shard.copy_shared_entry()).collect()
    }

    fn restore_shared_entries(&mut self, copies: SmallVec<[Option<Entry>; 4]>) {
        for ((_, shard), copy) in self.shards.iter_mut().zip(copies) {
            shard.restore_shared_entry(copy);
        }
    }

    /// Charges `units` to the group at `index` with `decide`, an operation of its shard.
    fn charge_in(
        &mut self,
        index: usize,
        mode: Mode,
        units: u64,
        now: Timestamp,
        decide: impl Fn(
            &mut Shard,
            Fingerprint,
            DecideArgs<'_>,
            &mut Decision,
        ) -> Result<(), TooManyStates>,
    ) -> Result<Decision, TooManyStates> {
        let Group { key, policy, cost, .. } = self.groups[index];
        let units = Cost::new(units);
        let args = DecideArgs { policy, mode: mode_of_charge(mode), cost: units, now };
        let mut decision = Decision::pending(policy, units);
        decide(self.shard(key), key, args, &mut decision)?;
        let charged = decision.charged();
        Ok(decision.with_units(cost, charged))
    }
}
