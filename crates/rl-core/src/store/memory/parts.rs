//! Decides requests of several parts, in one step.
//!
//! ```text
//! fingerprints -> lock the shards, in ascending order -> read the clock
//!   -> judge every part -> charge all parts, or none -> unlock
//! ```
//!
//! There is no deadlock: all operations lock shards in one order (`locked_shards.rs`).
//!
//! If all subjects are known, different, and have open windows that grant their costs, one comparison
//! judges each of them, and each is charged by one addition. This is the case of nearly all allowed
//! requests.
//!
//! All other requests are judged by their plans, which changes nothing. Parts of one subject are then
//! one group. If the judgement grants the units, the charge grants them too, because the shards are
//! still locked and the time is the same. Only a new subject in a full shard may still be denied by
//! the charge, because it may be counted in the entry that new subjects share. Such subjects are
//! therefore charged first. If one of them is denied, the shared entries are restored from copies. No
//! subject is evicted for a request that is denied.

use arrayvec::ArrayVec;
use smallvec::SmallVec;

use super::entry::Entry;
use super::locked_shards::{LockOrder, LockedShards};
use super::packed_entry::FastDecision;
use super::run::{DecideArgs, TooManyStates};
use super::shard::Shard;
use super::{MemoryStore, SHARDS, too_many_states};
use crate::decision::{Decision, DecisionList, PartFlags};
use crate::model::{Cost, Mode, StoreError};
use crate::store::fingerprint::Fingerprint;
use crate::store::part_groups::{PartGroup, PartGroups, available, check_count, common_units};
use crate::store::{DecideRequest, Part};
use crate::time::{Clock, Timestamp};

type Group<'a> = PartGroup<'a, Fingerprint>;

/// The units to charge to each group. A group with `None` is not charged.
type GroupUnits = SmallVec<[Option<u64>; 8]>;

impl<C: Clock> MemoryStore<C> {
    /// Decides a request of several parts.
    ///
    /// # Errors
    ///
    /// Fails and changes nothing if the parts cannot be grouped ([`PartGroups::add`]), or if a
    /// charge would exceed the number of states that one subject may have.
    #[inline(never)]
    pub(super) fn decide_parts(&self, request: &DecideRequest<'_>) -> Result<Decision, StoreError> {
        check_count(request.parts)?;
        let mut parts = KeyedParts::empty();
        parts.lock(self, request);
        let flags = parts.flags;
        // The clock is read under the locks, so that decisions are made in the order of their
        // times.
        let now = self.clock.now();
        let list = match parts.try_charge_open(request, now) {
            Some(list) => list,
            None => parts.decide_after_judgement(request, now)?,
        };
        Ok(Decision::of_parts(flags, list))
    }
}

/// The keys of the parts of a request, and the locked shards of these keys.
struct KeyedParts<'a> {
    keys: ArrayVec<Fingerprint, { Part::MAX }>,
    flags: PartFlags,
    shards: LockedShards<'a>,
}

impl<'a> KeyedParts<'a> {
    #[inline(always)]
    fn empty() -> Self {
        Self { keys: ArrayVec::new(), flags: PartFlags::default(), shards: LockedShards::none() }
    }

    /// Adds the parts of `request` to an empty value, and locks their shards. A value that is filled
    /// in place is not moved.
    #[inline(always)]
    fn lock<C>(&mut self, store: &'a MemoryStore<C>, request: &DecideRequest<'_>) {
        let mut order = LockOrder::default();
        // A local variable stays in a register, unlike a field.
        let mut flags = PartFlags::default();
        for (index, part) in request.parts.iter().enumerate() {
            let namespace = request.namespace_of(part);
            let key = store.fingerprinter.fingerprint(namespace, part.subject);
            order.add(key);
            self.keys.push(key);
            flags.add(index, part.flags);
        }
        self.flags = flags;
        self.shards.lock(store, order);
    }

    /// Returns whether no two parts have the same key.
    #[inline(always)]
    fn are_distinct(&self) -> bool {
        let is_new = |(index, key)| !self.keys[..index].contains(key);
        self.shards.len() == self.keys.len() || self.keys.iter().enumerate().all(is_new)
    }

    /// Decides for the parts of a request in groups with different keys.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`MemoryStore::decide_parts`].
    #[inline(never)]
    fn decide_after_judgement(
        &mut self,
        request: &DecideRequest<'_>,
        now: Timestamp,
    ) -> Result<DecisionList, StoreError> {
        let mut parts = PartGroups::empty();
        parts.add(request, |index, _| self.keys[index])?;
        let mut step = LockedStep { groups: parts.groups(), shards: &mut self.shards };
        let mut decisions = step.decide(request.mode, now).map_err(|_| too_many_states())?;
        decisions.all_mut().iter_mut().for_each(|decision| decision.note_clock(now));
        Ok(parts.decisions_on_parts(decisions))
    }

    /// Charges all parts if every subject is known, and all of its limits are open windows that grant
    /// the cost of the part. This decides nearly all allowed requests. Otherwise it changes nothing.
    #[inline(never)]
    fn try_charge_open(
        &mut self,
        request: &DecideRequest<'_>,
        now: Timestamp,
    ) -> Option<DecisionList> {
        if request.mode != Mode::Check || !self.are_distinct() {
            return None;
        }
        let args = |part| DecideArgs::new(part, Mode::Check, now);
        for (part, key) in request.parts.iter().zip(&self.keys) {
            if !self.shards.of(*key).grants_open(*key, args(part)) {
                return None;
            }
        }
        let mut decisions = DecisionList::new();
        for (part, key) in request.parts.iter().zip(&self.keys) {
            let charged = self.shards.of(*key).try_decide_fast(*key, args(part));
            let FastDecision { at, is_allowed, states } = charged.expect("the windows grant it");
            let decision = Decision::from_windows(part.policy, part.cost, at, is_allowed, states);
            decisions.push(decision);
        }
        Some(decisions)
    }
}

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

/// The groups of a request, and the locked shards of their subjects.
struct LockedStep<'a, 'l> {
    groups: &'a [Group<'a>],
    shards: &'a mut LockedShards<'l>,
}

impl LockedStep<'_, '_> {
    /// Decides for all groups, and charges all of them or none.
    fn decide(&mut self, mode: Mode, now: Timestamp) -> Result<DecisionList, TooManyStates> {
        let (grants, at) = self.judge(mode, now);
        let units: GroupUnits = match mode {
            Mode::Peek => return Ok(self.peek_all(at, |group| group.cost)),
            Mode::Charge => self.groups.iter().map(|group| Some(group.cost.units())).collect(),
            Mode::Check if !is_granted(self.groups, &grants) => {
                return Ok(self.peek_all(at, |group| group.cost));
            }
            Mode::Check => {
                let groups = self.groups.iter().zip(&grants);
                groups.map(|(group, grants)| grants.then_some(group.cost.units())).collect()
            }
            Mode::CheckUpTo => {
                // Peek with a cost of at most 1, because this mode denies a request only if nothing
                // is available.
                let mut peeks = self.peek_all(at, |group| group.cost.min(Cost::ONE));
                let available: SmallVec<[u64; 8]> = peeks.all().iter().map(available).collect();
                let Some(common) = common_units(self.groups, &available) else {
                    for (peek, group) in peeks.all_mut().iter_mut().zip(self.groups) {
                        peek.set_units(group.cost, 0);
                    }
                    return Ok(peeks);
                };
                let groups = self.groups.iter().zip(available);
                let units = groups.map(|(group, available)| {
                    let units = group.cost.units().min(common);
                    (units <= available).then_some(units)
                });
                units.collect()
            }
        };
        self.charge_all(mode, &units, at)
    }

    /// Returns whether each group grants its cost, and the time of the decision: `now`, or the last
    /// change of a group if the clock has stepped back.
    fn judge(&mut self, mode: Mode, now: Timestamp) -> (SmallVec<[bool; 8]>, Timestamp) {
        let mut at = now;
        loop {
            let mut latest = at;
            let grants = (0..self.groups.len()).map(|index| {
                let cost = Cost::new(mode.required(self.groups[index].cost));
                let (grants, decided_at) = self.grants(index, cost, at);
                latest = latest.max(decided_at);
                grants
            });
            let grants = grants.collect();
            if latest == at {
                return (grants, at);
            }
            at = latest;
        }
    }

    /// Returns whether the group at `index` grants `cost`, and the time of that decision.
    fn grants(&mut self, index: usize, cost: Cost, at: Timestamp) -> (bool, Timestamp) {
        let Group { key, policy, .. } = self.groups[index];
        let args = DecideArgs { policy, mode: Mode::Check, cost, now: at };
        let judged = self.shard(key).try_judge(key, args);
        judged.unwrap_or_else(|| {
            let decision = self.peek(index, cost, at);
            (decision.is_allowed(), decision.at())
        })
    }

    fn shard(&mut self, subject: Fingerprint) -> &mut Shard {
        self.shards.of(subject)
    }

    /// Returns the decision on the group at `index` for a request of `cost`, without a charge.
    fn peek(&mut self, index: usize, cost: Cost, at: Timestamp) -> Decision {
        let Group { key, policy, .. } = self.groups[index];
        let args = DecideArgs { policy, mode: Mode::Peek, cost, now: at };
        let shard = self.shard(key);
        if let Some(peeked) = shard.try_peek_windows(key, args) {
            return peeked;
        }
        let mut decision = Decision::pending(policy, cost);
        let peeked = shard.decide(key, args, &mut decision);
        peeked.expect("only a charge needs further states");
        decision
    }

    fn peek_all(&mut self, at: Timestamp, cost: impl Fn(&Group<'_>) -> Cost) -> DecisionList {
        (0..self.groups.len())
            .map(|index| self.peek(index, cost(&self.groups[index]), at))
            .collect()
    }

    /// Charges `units` to the groups. A group with `None` is not charged.
    fn charge_all(
        &mut self,
        mode: Mode,
        units: &[Option<u64>],
        at: Timestamp,
    ) -> Result<DecisionList, TooManyStates> {
        let mut may_lack_room = false;
        for group in self.groups {
            let count = self.groups.len();
            let shard = self.shard(group.key);
            may_lack_room |= shard.may_lack_room(group.key, group.policy, at, count)?;
        }
        if may_lack_room {
            return self.charge_with_little_room(mode, units, at);
        }
        let mode = mode_of_charge(mode);
        (0..self.groups.len()).map(|index| self.charge(index, mode, units[index], at)).collect()
    }

    /// Charges `units` to the group at `index`. If `units` is `None`, the group is in shadow and
    /// does not grant the request. Its status is then returned without a charge.
    fn charge(
        &mut self,
        index: usize,
        mode: Mode,
        units: Option<u64>,
        at: Timestamp,
    ) -> Result<Decision, TooManyStates> {
        let Group { key, policy, cost, .. } = self.groups[index];
        let Some(units) = units else { return Ok(self.peek(index, cost, at)) };
        let args = DecideArgs { policy, mode, cost: Cost::new(units), now: at };
        let shard = self.shard(key);
        let decision = match shard.try_decide_fast(key, args) {
            Some(FastDecision { at, is_allowed, states, .. }) => {
                Decision::from_windows(policy, args.cost, at, is_allowed, states)
            }
            None => {
                let mut decision = Decision::pending(policy, args.cost);
                shard.decide(key, args, &mut decision)?;
                decision
            }
        };
        let charged = decision.charged();
        Ok(decision.with_units(cost, charged))
    }

    /// Charges `units` to the groups. Some of them are new subjects in shards with little room.
    ///
    /// New subjects without room are charged first, in the entry that new subjects share, because
    /// this entry may deny the request. Subjects are evicted only once it is certain that all
    /// groups are charged.
    #[cold]
    fn charge_with_little_room(
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

/// Returns the mode in which the units of a granted request are charged.
fn mode_of_charge(mode: Mode) -> Mode {
    if mode == Mode::Charge { Mode::Charge } else { Mode::Check }
}

/// Returns whether all enforced groups grant the request.
fn is_granted(groups: &[Group<'_>], grants: &[bool]) -> bool {
    groups.iter().zip(grants).all(|(group, grants)| *grants || group.is_shadow)
}
