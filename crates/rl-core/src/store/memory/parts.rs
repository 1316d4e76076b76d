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
//! still locked and the time is the same. Only a new subject in a shard with little room may still
//! be denied by the charge (`parts/room.rs`).

mod packed;
mod room;

use arrayvec::ArrayVec;
use smallvec::SmallVec;

use super::locked_shards::{LockOrder, LockedShards};
use super::run::{DecideArgs, TooManyStates};
use super::shard::Shard;
use super::{MemoryStore, too_many_states};
use crate::decision::{Decision, DecisionList, PartFlags};
use crate::model::{Cost, Mode, StoreError};
use crate::store::fingerprint::Fingerprint;
use crate::store::part_groups::{PartGroup, PartGroups, available, check_count, common_units};
use crate::store::{DecideRequest, Part};
use crate::time::{Clock, Timestamp};

type Group<'a> = PartGroup<'a, Fingerprint>;

/// The units to charge to each group. A group with `None` is not charged.
type GroupUnits = SmallVec<[Option<u64>; 8]>;

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
    #[inline(never)]
    pub(super) fn decide_parts(&self, request: &DecideRequest<'_>) -> Result<Decision, StoreError> {
        let (flags, list, charged_at) = self.decide_list(request)?;
        Ok(match charged_at {
            Some(at) => Decision::of_charged_parts(flags, list, at),
            None => Decision::of_parts(flags, list),
        })
    }

    /// Decides for the parts of a request, and charges all of them or none.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`decide_parts`](Self::decide_parts).
    #[inline(always)]
    fn decide_list(
        &self,
        request: &DecideRequest<'_>,
    ) -> Result<(PartFlags, DecisionList, Option<Timestamp>), StoreError> {
        check_count(request.parts)?;
        let mut parts = KeyedParts::empty();
        parts.lock(self, request);
        let flags = parts.flags;
        // The clock is read under the locks, so that decisions are made in the order of their
        // times.
        let now = self.clock.now();
        let is_denied = match parts.try_charge_packed(request, now) {
            PackedAttempt::Charged(list) => {
                let has_shadow = flags.has_shadow() || list.has_shadow();
                return Ok((flags, list, (!has_shadow).then_some(now)));
            }
            PackedAttempt::Denied => true,
            PackedAttempt::Undecided => false,
        };
        let list = parts.decide_groups(request, is_denied, now)?;
        Ok((flags, list, None))
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
        for (index, part) in request.parts.iter().enumerate() {
            let namespace = request.namespace_of(part);
            let key = store.fingerprinter.fingerprint(namespace, part.subject);
            order.add(key);
            self.keys.push(key);
            self.flags.add(index, part.flags);
        }
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
    fn decide_groups(
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
        let cost = self.groups[index].cost;
        let Some(units) = units else { return Ok(self.peek(index, cost, at)) };
        let decision = self.decide_group(index, mode, Cost::new(units), at)?;
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
