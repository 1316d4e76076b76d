//! Decides requests of several parts, in one step.
//!
//! ```text
//! fingerprints -> lock the shards, in ascending order -> read the clock
//!   -> judge every part -> charge all parts, or none -> unlock
//! ```
//!
//! There is no deadlock: all operations lock shards in one order (`locked_shards.rs`).
//!
//! If all subjects are known and have packed entries, they are charged without a judgement, in one
//! pass. If one of them is denied, the entries of the others are restored from copies before the
//! shards are unlocked. A copy takes 72 bytes, and restores also what a refund would not: a window
//! that the charge has opened, and the time of the last change.
//!
//! All other parts are judged first, which changes nothing. If the judgement grants the units, the
//! charge grants them too, because the shards are still locked and the time is the same. Only a new
//! subject in a shard with little room may still be denied by the charge (`parts/room.rs`).

mod room;

use smallvec::SmallVec;

use super::counting::count_decision;
use super::locked_shards::LockedShards;
use super::run::{DecideArgs, TooManyStates};
use super::shard::Shard;
use super::shard::group::{GroupCharge, PackedCharges};
use super::{MemoryStore, too_many_states};
use crate::decision::{Decision, DecisionList};
use crate::maybe_ready::MaybeReady;
use crate::model::{Cost, Mode, StoreError};
use crate::store::fingerprint::Fingerprint;
use crate::store::part_groups::{PartGroup, PartGroups, available, common_units};
use crate::store::{DecideRequest, FastPath};
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
    pub(super) fn decide_parts(&self, request: &DecideRequest<'_>) -> Result<Decision, StoreError> {
        let fingerprint = |namespace, subject| self.fingerprinter.fingerprint(namespace, subject);
        let mut parts = PartGroups::empty();
        parts.add(request, fingerprint)?;
        let groups = parts.groups();
        let mut shards = self.lock_shards(groups.iter().map(|group| group.key));
        let mut step = LockedStep { groups, shards: &mut shards };
        // The clock is read under the locks, so that decisions are made in the order of their
        // times.
        let decisions = step.decide(request.mode, self.clock.now());
        drop(shards);
        decisions.map(|decisions| parts.decision_of_list(decisions)).map_err(|_| too_many_states())
    }

    /// Decides a request of several parts. If the store cannot decide it, changes nothing, and
    /// returns `limiter.decide_by_steps(request)`.
    #[inline(never)]
    pub(super) fn try_decide_parts(
        &self,
        request: &DecideRequest<'_>,
        limiter: &FastPath<'_>,
    ) -> MaybeReady<Decision> {
        let Ok(decision) = self.decide_parts(request) else {
            return limiter.decide_by_steps(request);
        };
        count_decision(request, &decision, limiter);
        MaybeReady::ready(decision)
    }
}

/// The result of charging the groups of a request in one pass.
enum PackedAttempt {
    Charged(DecisionList),
    /// An enforced group denies its cost. Nothing was changed.
    Denied,
    /// The groups must be judged before a charge. Nothing was changed.
    Undecided,
}

/// The groups of a request, and the locked shards of their subjects.
struct LockedStep<'a, 'l> {
    groups: &'a [Group<'a>],
    shards: &'a mut LockedShards<'l>,
}

impl LockedStep<'_, '_> {
    /// Decides for all groups, and charges all of them or none.
    fn decide(&mut self, mode: Mode, now: Timestamp) -> Result<DecisionList, TooManyStates> {
        if mode == Mode::Check {
            match self.try_charge_packed(now) {
                PackedAttempt::Charged(decisions) => return Ok(decisions),
                PackedAttempt::Denied => {
                    let statuses = self.peek_all(now, |group| group.cost);
                    if statuses.all().iter().all(|status| status.at() == now) {
                        return Ok(statuses);
                    }
                }
                PackedAttempt::Undecided => {}
            }
        }
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

    /// Charges all groups, if each of them is a known subject with a packed entry that grants its
    /// cost now. Nearly all allowed requests are decided here. Otherwise changes nothing.
    fn try_charge_packed(&mut self, now: Timestamp) -> PackedAttempt {
        let mut charges = PackedCharges::new();
        for Group { key, policy, cost, is_shadow, .. } in self.groups.iter().copied() {
            let args = DecideArgs { policy, mode: Mode::Check, cost, now };
            let charge = self.shards.of(key).charge_packed(key, args, &mut charges);
            if charge != GroupCharge::Charged {
                self.undo(charges);
                let is_denied = charge == GroupCharge::Denied && !is_shadow;
                return if is_denied { PackedAttempt::Denied } else { PackedAttempt::Undecided };
            }
        }
        PackedAttempt::Charged(charges.decisions)
    }

    /// Undoes `charges`, which were made to the first groups of the request: restores their entries
    /// from the copies.
    #[inline(never)]
    fn undo(&mut self, charges: PackedCharges) {
        for (group, before) in self.groups.iter().zip(charges.entries_before()) {
            self.shards.of(group.key).undo(group.key, before);
        }
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
