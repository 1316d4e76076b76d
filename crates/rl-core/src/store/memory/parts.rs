//! Decides requests of several parts, in one step.
//!
//! ```text
//! fingerprints -> lock the shards, in ascending order -> read the clock
//!   -> judge every part -> charge all parts, or none -> unlock
//! ```
//!
//! There is no deadlock: all operations lock shards in one order (`locked_shards.rs`).
//!
//! A part is judged by a peek, which changes nothing. If the peek grants the units, the charge
//! grants them too, because the shards are still locked and the time is the same.
//!
//! There is one exception. A new subject in a full shard may be counted in the entry that new
//! subjects share, and this entry may deny the request. Such subjects are therefore charged first.
//! If one of them is denied, the shared entries are restored from copies. No subject is evicted
//! for a request that is denied.

use smallvec::SmallVec;

use super::entry::Entry;
use super::locked_shards::LockedShards;
use super::run::{DecideArgs, TooManyStates};
use super::shard::Shard;
use super::{MemoryStore, SHARDS, too_many_states};
use crate::decision::Decision;
use crate::maybe_ready::MaybeReady;
use crate::model::{Cost, Mode, StoreError};
use crate::store::fingerprint::Fingerprint;
use crate::store::part_groups::{PartGroup, PartGroups, available, common_units};
use crate::store::{DecideRequest, Part};
use crate::time::{Clock, Timestamp};

type Group<'a> = PartGroup<'a, Fingerprint>;
type Decisions = SmallVec<[Decision; 4]>;

/// The units to charge to each group. A group with `None` is not charged.
type GroupUnits = SmallVec<[Option<u64>; 8]>;

/// The decisions on groups that are counted in shared entries; `None` for all other groups.
type SharedCharges = SmallVec<[Option<Decision>; 8]>;

/// The position of a group, and the decision that denies it.
type DeniedGroup = (usize, Decision);

/// The room for the new subjects of a request.
struct RoomPlan {
    /// Whether each group is a new subject without room, which is counted in a shared entry.
    is_shared: [bool; Part::MAX],
    /// The subjects to evict for the others.
    evicted: SmallVec<[Fingerprint; 8]>,
}

impl<C: Clock> MemoryStore<C> {
    /// Decides a request of several parts.
    ///
    /// # Errors
    ///
    /// Fails and changes nothing if the parts cannot be grouped ([`PartGroups::new`]), or if a
    /// charge would exceed the number of states that one subject may have.
    pub(super) fn decide_parts(&self, request: &DecideRequest<'_>) -> Result<Decision, StoreError> {
        let fingerprint = |namespace, subject| self.fingerprinter.fingerprint(namespace, subject);
        let parts = PartGroups::new(request, fingerprint)?;
        let groups = parts.groups();
        let shards = self.lock_shards(groups.iter().map(|group| group.key));
        let mut step = LockedStep { groups, shards };
        // The clock is read under the locks, so that decisions are made in the order of their
        // times.
        let decisions = step.decide(request.mode, self.clock.now());
        drop(step);
        decisions.map(|decisions| parts.decision(decisions)).map_err(|_| too_many_states())
    }

    /// Decides a request of several parts. Returns `otherwise()` and changes nothing if it cannot.
    #[inline(never)]
    pub(super) fn try_decide_parts(
        &self,
        request: &DecideRequest<'_>,
        otherwise: &dyn Fn() -> MaybeReady<Decision>,
    ) -> MaybeReady<Decision> {
        match self.decide_parts(request) {
            Ok(decision) => MaybeReady::ready(decision),
            Err(_) => otherwise(),
        }
    }
}

/// The groups of a request, and the locked shards of their subjects.
struct LockedStep<'a> {
    groups: &'a [Group<'a>],
    shards: LockedShards<'a>,
}

impl LockedStep<'_> {
    /// Decides for all groups, and charges all of them or none.
    fn decide(&mut self, mode: Mode, now: Timestamp) -> Result<Decisions, TooManyStates> {
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
                let peeks = self.peek_all(at, |group| group.cost.min(Cost::ONE));
                let available: SmallVec<[u64; 8]> = peeks.iter().map(available).collect();
                let Some(common) = common_units(self.groups, &available) else {
                    let costs = self.groups.iter().map(|group| group.cost);
                    return Ok(peeks
                        .into_iter()
                        .zip(costs)
                        .map(|(d, c)| d.with_units(c, 0))
                        .collect());
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
        let decision = self.peek(index, cost, at);
        (decision.is_allowed(), decision.at())
    }

    fn shard(&mut self, subject: Fingerprint) -> &mut Shard {
        self.shards.of(subject)
    }

    /// Decides for the group at `index` alone.
    fn decide_group(
        &mut self,
        index: usize,
        mode: Mode,
        cost: Cost,
        now: Timestamp,
    ) -> Result<Decision, TooManyStates> {
        let Group { key, policy, .. } = self.groups[index];
        let args = DecideArgs { policy, mode, cost, now };
        let shard = self.shard(key);
        if let Some(fast) = shard.try_decide_fast(key, args) {
            return Ok(Decision::from_windows(policy, cost, fast.at, fast.is_allowed, fast.states));
        }
        let mut decision = Decision::pending(policy, cost);
        shard.decide(key, args, &mut decision)?;
        Ok(decision)
    }

    /// Returns the status of the group at `index` for a request of `cost`. Changes nothing.
    fn peek(&mut self, index: usize, cost: Cost, at: Timestamp) -> Decision {
        let Group { key, policy, .. } = self.groups[index];
        let args = DecideArgs { policy, mode: Mode::Peek, cost, now: at };
        let mut decision = Decision::pending(policy, cost);
        // The fast paths decide no peeks.
        let peeked = self.shard(key).decide(key, args, &mut decision);
        peeked.expect("only a charge needs further states");
        decision
    }

    fn peek_all(&mut self, at: Timestamp, cost: impl Fn(&Group<'_>) -> Cost) -> Decisions {
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
    ) -> Result<Decisions, TooManyStates> {
        let mut may_lack_room = false;
        for group in self.groups {
            let count = self.groups.len();
            let shard = self.shard(group.key);
            shard.check_states(group.key, group.policy, at)?;
            may_lack_room |= !shard.contains(group.key) && shard.vacancies() < count;
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
        let cost = self.groups[index].cost;
        let Some(units) = units else { return Ok(self.peek(index, cost, at)) };
        let decision = self.decide_group(index, mode, Cost::new(units), at)?;
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
    ) -> Result<Decisions, TooManyStates> {
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

    /// Returns the largest units, at most `units`, that the shared entries grant. Returns the
    /// denial of a single unit if they grant nothing. `denial` is the denial of `units`.
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

    /// Returns the decisions of a denied request. The group at `index` was denied by `denial`.
    fn deny(&mut self, mode: Mode, index: usize, denial: &Decision, at: Timestamp) -> Decisions {
        let all = (0..self.groups.len()).map(|i| {
            let cost = self.groups[i].cost;
            // This mode denies a request only if nothing is available.
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

    /// Charges `units` to the group at `index`, by the given operation of its shard.
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
