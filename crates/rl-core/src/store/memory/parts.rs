//! Decides requests of several parts, in one step.
//!
//! ```text
//! fingerprints -> lock the shards, in ascending order -> read the clock
//!   -> judge every part -> charge all parts, or none -> unlock
//! ```
//!
//! There is no deadlock: all operations lock shards in one order (`locked_shards.rs`).
//!
//! If all subjects are known, different and have packed entries, they are charged without a
//! judgement, in one pass. If one of them is denied, the charges of the others are undone before
//! the shards are unlocked. A charge to open windows has changed only their counts and the time of
//! the last change. After other charges, a copy of the entry is restored. A copy takes 72 bytes, and
//! restores also what a refund would not: a window that the charge has opened.
//!
//! All other requests are judged first, which changes nothing. Parts of one subject are then one
//! group. If the judgement grants the units, the charge grants them too, because the shards are
//! still locked and the time is the same. Only a new subject in a full shard may still be denied by
//! the charge, because it may be counted in the entry that new subjects share. Such subjects are
//! therefore charged first. If one of them is denied, the shared entries are restored from copies. No
//! subject is evicted for a request that is denied.

use arrayvec::ArrayVec;
use smallvec::SmallVec;

use super::counting::{count_whole, try_count_allowed};
use super::entry::Entry;
use super::locked_shards::{LockOrder, LockedShards};
use super::packed_entry::FastDecision;
use super::run::{DecideArgs, TooManyStates};
use super::shard::{PackedCharges, PartCharge, Shard};
use super::{MemoryStore, SHARDS, too_many_states};
use crate::decision::{Decision, DecisionList, PartFlags};
use crate::maybe_ready::MaybeReady;
use crate::model::{Cost, Mode, StoreError};
use crate::store::fingerprint::Fingerprint;
use crate::store::part_groups::{PartGroup, PartGroups, available, check_count, common_units};
use crate::store::{DecideRequest, FastPath, Part};
use crate::time::{Clock, Timestamp};

type Group<'a> = PartGroup<'a, Fingerprint>;

/// The units to charge to each group. A group with `None` is not charged.
type GroupUnits = SmallVec<[Option<u64>; 8]>;

/// The decisions on the parts of a request.
struct DecidedList {
    list: DecisionList,
    flags: PartFlags,
    /// `None` if a part was not charged its cost, or if a part or a limit is in shadow.
    charge: Option<ListCharge>,
}

/// The charge of its cost to each part of a request.
#[derive(Clone, Copy)]
struct ListCharge {
    at: Timestamp,
    /// The units that were charged to all parts together.
    units: u64,
}

/// The result of charging the parts of a request in one pass.
enum PackedAttempt {
    Charged(DecisionList),
    /// An enforced part denies its cost. Nothing was changed.
    Denied,
    /// The parts must be judged before a charge. Nothing was changed.
    Undecided,
}

impl<C: Clock> MemoryStore<C> {
    /// Decides a request of several parts.
    ///
    /// # Errors
    ///
    /// Fails and changes nothing if the parts cannot be grouped ([`PartGroups::add`]), or if a
    /// charge would exceed the number of states that one subject may have.
    pub(super) fn decide_parts(&self, request: &DecideRequest<'_>) -> Result<Decision, StoreError> {
        let DecidedList { list, flags, .. } = self.decided_list(request)?;
        Ok(Decision::of_parts(flags, list))
    }

    /// Decides a request of several parts. If the store cannot decide it, changes nothing, and
    /// returns `limiter.decide_by_steps(request)`.
    #[inline(never)]
    pub(super) fn try_decide_parts(
        &self,
        request: &DecideRequest<'_>,
        limiter: &FastPath<'_>,
    ) -> MaybeReady<Decision> {
        match self.decided_list(request) {
            Ok(DecidedList { list, flags, charge: Some(ListCharge { at, units }) })
                if try_count_allowed(request, units, at, limiter) =>
            {
                MaybeReady::ready(Decision::of_charged_parts(flags, list, at))
            }
            Ok(DecidedList { list, flags, .. }) => {
                count_whole(request, Decision::of_parts(flags, list), limiter)
            }
            Err(_) => limiter.decide_by_steps(request),
        }
    }

    /// Decides for the parts of a request, and charges all of them or none.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`decide_parts`](Self::decide_parts).
    #[inline(always)]
    fn decided_list(&self, request: &DecideRequest<'_>) -> Result<DecidedList, StoreError> {
        check_count(request.parts)?;
        let mut parts = KeyedParts::empty();
        parts.lock(self, request);
        let KeyedParts { flags, units, .. } = parts;
        // The clock is read under the locks, so that decisions are made in the order of their
        // times.
        let now = self.clock.now();
        let is_denied = match parts.try_charge_packed(request, now) {
            PackedAttempt::Charged(list) => {
                let has_shadow = flags.has_shadow() || list.has_shadow();
                let charge = ListCharge { at: now, units };
                let charge = if has_shadow { None } else { Some(charge) };
                return Ok(DecidedList { list, flags, charge });
            }
            PackedAttempt::Denied => true,
            PackedAttempt::Undecided => false,
        };
        let list = parts.decide_after_judgement(request, is_denied, now)?;
        Ok(DecidedList { list, flags, charge: None })
    }
}

/// The keys of the parts of a request, and the locked shards of these keys.
struct KeyedParts<'a> {
    keys: ArrayVec<Fingerprint, { Part::MAX }>,
    flags: PartFlags,
    /// The sum of the costs.
    units: u64,
    shards: LockedShards<'a>,
}

impl<'a> KeyedParts<'a> {
    #[inline(always)]
    fn empty() -> Self {
        Self {
            keys: ArrayVec::new(),
            flags: PartFlags::default(),
            units: 0,
            shards: LockedShards::none(),
        }
    }

    /// Adds the parts of `request` to an empty value, and locks their shards. A value that is filled
    /// in place is not moved.
    #[inline(always)]
    fn lock<C>(&mut self, store: &'a MemoryStore<C>, request: &DecideRequest<'_>) {
        let mut order = LockOrder::default();
        // Local variables stay in registers, unlike fields.
        let (mut flags, mut units) = (PartFlags::default(), 0_u64);
        for (index, part) in request.parts.iter().enumerate() {
            let namespace = request.namespace_of(part);
            let key = store.fingerprinter.fingerprint(namespace, part.subject);
            order.add(key);
            self.keys.push(key);
            flags.add(index, part.flags);
            units = units.saturating_add(part.cost.units());
        }
        (self.flags, self.units) = (flags, units);
        self.shards.lock(store, order);
    }

    /// Returns whether no two parts have the same key.
    #[inline(always)]
    fn are_distinct(&self) -> bool {
        let is_new = |(index, key)| !self.keys[..index].contains(key);
        self.shards.len() == self.keys.len() || self.keys.iter().enumerate().all(is_new)
    }

    /// Decides for the parts of a request in groups with different keys. `is_denied` states that
    /// [`try_charge_packed`](Self::try_charge_packed) has found a part that denies its cost.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`MemoryStore::decide_parts`].
    #[inline(never)]
    fn decide_after_judgement(
        &mut self,
        request: &DecideRequest<'_>,
        is_denied: bool,
        now: Timestamp,
    ) -> Result<DecisionList, StoreError> {
        let mut parts = PartGroups::empty();
        parts.add(request, |index, _| self.keys[index])?;
        let mut step = LockedStep { groups: parts.groups(), shards: &mut self.shards };
        let mut decisions = match step.denied(is_denied, now) {
            Some(decisions) => decisions,
            None => step.decide(request.mode, now).map_err(|_| too_many_states())?,
        };
        decisions.all_mut().iter_mut().for_each(|decision| decision.note_clock(now));
        Ok(parts.decisions_on_parts(decisions))
    }

    /// Charges all parts, if each of them is a known subject with a packed entry that grants its
    /// cost now. Nearly all allowed requests are decided here. Otherwise changes nothing.
    #[inline(always)]
    fn try_charge_packed(&mut self, request: &DecideRequest<'_>, now: Timestamp) -> PackedAttempt {
        if request.mode != Mode::Check || !self.are_distinct() {
            return PackedAttempt::Undecided;
        }
        let mut charges = PackedCharges::new();
        let charged = self.charge_open(request.parts, now, &mut charges);
        if charged < request.parts.len() {
            let charge = self.charge_from(charged, request, now, &mut charges);
            match charge {
                PartCharge::Charged => {}
                PartCharge::Denied => return PackedAttempt::Denied,
                PartCharge::Undecided => return PackedAttempt::Undecided,
            }
        }
        PackedAttempt::Charged(charges.decisions)
    }

    /// Charges the first parts, as long as all their windows are open and grant their cost. Returns
    /// their number.
    ///
    /// It is not inlined, so that the loop keeps its values in registers.
    #[inline(never)]
    fn charge_open(
        &mut self,
        parts: &[Part<'_>],
        now: Timestamp,
        charges: &mut PackedCharges,
    ) -> usize {
        for (index, (part, key)) in parts.iter().zip(&self.keys).enumerate() {
            if !self.shards.of(*key).try_charge_open(*key, part, now, charges) {
                return index;
            }
        }
        parts.len()
    }

    /// Charges the parts from `first` on; those before have been charged. If a part is not charged,
    /// undoes all charges, and returns [`PartCharge::Denied`] if the part denies the request.
    #[inline(never)]
    fn charge_from(
        &mut self,
        first: usize,
        request: &DecideRequest<'_>,
        now: Timestamp,
        charges: &mut PackedCharges,
    ) -> PartCharge {
        for (part, key) in request.parts.iter().zip(&self.keys).skip(first) {
            let charge = self.shards.of(*key).charge_packed(*key, part, now, charges);
            if charge != PartCharge::Charged {
                self.undo(request, charges);
                let is_denied = charge == PartCharge::Denied && !part.is_shadow();
                return if is_denied { PartCharge::Denied } else { PartCharge::Undecided };
            }
        }
        PartCharge::Charged
    }

    /// Undoes `charges`, which were made to the first parts of the request.
    #[inline(never)]
    fn undo(&mut self, request: &DecideRequest<'_>, charges: &PackedCharges) {
        for ((part, key), undo) in request.parts.iter().zip(&self.keys).zip(charges.undos()) {
            self.shards.of(*key).undo(*key, part, *undo);
        }
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
    /// Returns the decisions on a request that one of its groups denies at `now`, if no group was
    /// changed later.
    fn denied(&mut self, is_denied: bool, now: Timestamp) -> Option<DecisionList> {
        let statuses = is_denied.then(|| self.peek_all(now, |group| group.cost))?;
        statuses.all().iter().all(|status| status.at() == now).then_some(statuses)
    }

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
