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
//! Fixed windows of known subjects are charged without a peek. A denial takes back the charges of
//! the other parts before the shards are unlocked, and the parts are then judged by peeks.
//!
//! There is one exception: new subjects in shards with little room (`parts/room.rs`).

mod room;

use smallvec::SmallVec;

use super::locked_shards::LockedShards;
use super::packed_entry::PackedEntry;
use super::run::{DecideArgs, TooManyStates};
use super::shard::Shard;
use super::{MemoryStore, too_many_states};
use crate::decision::Decision;
use crate::maybe_ready::MaybeReady;
use crate::model::{Cost, Mode, StoreError};
use crate::store::fingerprint::Fingerprint;
use crate::store::part_groups::{PartGroup, PartGroups, available, common_units};
use crate::store::{DecideRequest, FastPath};
use crate::time::{Clock, Timestamp};

type Group<'a> = PartGroup<'a, Fingerprint>;
type Decisions = SmallVec<[Decision; 4]>;

/// The units to charge to each group. A group with `None` is not charged.
type GroupUnits = SmallVec<[Option<u64>; 8]>;

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

    /// Decides a request of several parts. Runs the other steps and changes nothing if it cannot.
    #[inline(never)]
    pub(super) fn try_decide_parts(
        &self,
        request: &DecideRequest<'_>,
        limiter: &FastPath<'_>,
    ) -> MaybeReady<Decision> {
        let Ok(decision) = self.decide_parts(request) else {
            return limiter.decide_by_steps(request);
        };
        limiter.count(request, &decision);
        MaybeReady::ready(decision)
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
        if mode == Mode::Check
            && let Some(decisions) = self.try_charge_windows(now)
        {
            return Ok(decisions);
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

    /// Charges all groups, if each of them is a known subject under fixed windows that grant its
    /// cost now. Nearly all allowed requests under fixed windows are decided here.
    ///
    /// Returns `None` and changes nothing if the groups must be judged before a charge.
    fn try_charge_windows(&mut self, now: Timestamp) -> Option<Decisions> {
        let mut decisions = Decisions::new();
        let mut entries_before: SmallVec<[PackedEntry; 4]> = SmallVec::new();
        for Group { key, policy, cost, .. } in self.groups {
            let args = DecideArgs { policy, mode: Mode::Check, cost: *cost, now };
            let Some((decision, before)) = self.shards.of(*key).try_decide_group(*key, args) else {
                break;
            };
            entries_before.push(before);
            // All parts are decided at one time, so a change after `now` needs another time.
            if !decision.is_allowed() || decision.at() != now {
                break;
            }
            decisions.push(decision);
        }
        if decisions.len() == self.groups.len() {
            return Some(decisions);
        }
        for (group, before) in self.groups.iter().zip(entries_before) {
            self.shards.of(group.key).undo(group.key, before);
        }
        None
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
}

/// Returns the mode in which the units of a granted request are charged.
fn mode_of_charge(mode: Mode) -> Mode {
    if mode == Mode::Charge { Mode::Charge } else { Mode::Check }
}

/// Returns whether all enforced groups grant the request.
fn is_granted(groups: &[Group<'_>], grants: &[bool]) -> bool {
    groups.iter().zip(grants).all(|(group, grants)| *grants || group.is_shadow)
}
