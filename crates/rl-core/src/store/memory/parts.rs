//! Decides requests of several parts, in one step.
//!
//! ```text
//! fingerprints -> lock the shards, in ascending order -> read the clock
//!   -> judge every part -> charge all parts, or none -> unlock
//! ```
//!
//! There is no deadlock: a thread waits only for shards that come after those that it has locked,
//! and all other operations lock a single shard.
//!
//! A part is judged by a peek, which changes nothing. If the peek grants the units, the charge
//! grants them too, because the shards are still locked and the time is the same.
//!
//! There is one exception. A new subject in a full shard may be counted in the entry that new
//! subjects share, and this entry may deny the request. New subjects are therefore charged first in
//! this case. If one of them is denied, the charges of the others are undone.

use std::sync::MutexGuard;

use smallvec::SmallVec;

use super::run::{DecideArgs, TooManyStates};
use super::shard::Shard;
use super::{MemoryStore, SHARDS, lock, too_many_states};
use crate::decision::Decision;
use crate::maybe_ready::MaybeReady;
use crate::model::{Cost, Mode, StoreError};
use crate::store::fingerprint::Fingerprint;
use crate::store::part_groups::{PartGroup, PartGroups, available, common_units};
use crate::store::{DecideRequest, Refund, RefundOf};
use crate::time::{Clock, Timestamp};

type Group<'a> = PartGroup<'a, Fingerprint>;
type Decisions = SmallVec<[Decision; 4]>;

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
        let mut places: SmallVec<[usize; 8]> =
            groups.iter().map(|group| group.key.spread(SHARDS)).collect();
        places.sort_unstable();
        places.dedup();
        let shards = places.into_iter().map(|place| (place, lock(&self.shards[place]))).collect();
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
    shards: SmallVec<[(usize, MutexGuard<'a, Shard>); 4]>,
}

impl LockedStep<'_> {
    /// Decides for all groups, and charges all of them or none.
    fn decide(&mut self, mode: Mode, now: Timestamp) -> Result<Decisions, TooManyStates> {
        let (grants, at) = self.judge(mode, now);
        let units: SmallVec<[Option<u64>; 8]> = match mode {
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
        let mode = if mode == Mode::Charge { Mode::Charge } else { Mode::Check };
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
        let args = DecideArgs { policy, mode: Mode::Peek, cost, now: at };
        if let Some(fast) = self.shard(key).try_decide_fast(key, args) {
            return (fast.is_allowed, Timestamp::from_micros(fast.at.absolute));
        }
        let decision = self.peek(index, cost, at);
        (decision.is_allowed(), decision.at())
    }

    fn shard(&mut self, subject: Fingerprint) -> &mut Shard {
        let place = subject.spread(SHARDS);
        let shard = self.shards.iter_mut().find(|(locked, _)| *locked == place);
        let (_, shard) = shard.expect("the shards of all groups are locked");
        shard
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
        let decision = self.decide_group(index, Mode::Peek, cost, at);
        decision.expect("only a charge needs further states")
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
            return self.charge_newcomers_first(mode, units, at);
        }
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

    /// Charges new subjects first, because one of them may be counted in the shared entry, and be
    /// denied there.
    ///
    /// In that case, undoes the charges of the others, and denies the request. If a new subject
    /// evicts another subject of the request, that subject is treated as if it had been charged
    /// before its eviction.
    #[cold]
    fn charge_newcomers_first(
        &mut self,
        mode: Mode,
        units: &[Option<u64>],
        at: Timestamp,
    ) -> Result<Decisions, TooManyStates> {
        let all = 0..self.groups.len();
        let is_newcomer: SmallVec<[bool; 8]> =
            self.groups.iter().map(|group| !self.shards_contain(group.key)).collect();
        let mut decisions: SmallVec<[Option<Decision>; 8]> = all.clone().map(|_| None).collect();
        for index in all.clone().filter(|index| is_newcomer[*index]) {
            let charged = self.charge(index, mode, units[index], at);
            match charged {
                Ok(decision) if decision.is_allowed() || self.groups[index].is_shadow => {
                    decisions[index] = Some(decision);
                }
                denied => {
                    for (index, decision) in decisions.iter().enumerate() {
                        if let Some(decision) = decision {
                            self.undo(index, decision);
                        }
                    }
                    let denied = denied?;
                    let status = |i| {
                        if i == index {
                            denied.clone()
                        } else {
                            self.peek(i, self.groups[i].cost, at)
                        }
                    };
                    return Ok(all.map(status).collect());
                }
            }
        }
        all.map(|index| match decisions[index].take() {
            Some(decision) => Ok(decision),
            None if self.shards_contain(self.groups[index].key) => {
                self.charge(index, mode, units[index], at)
            }
            None => {
                let evicted = self.peek(index, Cost::ZERO, at);
                Ok(evicted.with_units(self.groups[index].cost, units[index].unwrap_or(0)))
            }
        })
        .collect()
    }

    fn shards_contain(&self, subject: Fingerprint) -> bool {
        let place = subject.spread(SHARDS);
        self.shards.iter().any(|(locked, shard)| *locked == place && shard.contains(subject))
    }

    /// Undoes the charge of a new subject.
    fn undo(&mut self, index: usize, decision: &Decision) {
        let Group { key, namespace, subject, policy, .. } = self.groups[index];
        let (charged, units, uncharged) = (decision.at(), decision.charged(), decision.uncharged());
        let of = RefundOf::All;
        if units > 0 {
            let refund = Refund { namespace, subject, policy, charged, units, of, uncharged };
            self.shard(key).undo_newcomer(key, &refund);
        }
    }
}

/// Returns whether all enforced groups grant the request.
fn is_granted(groups: &[Group<'_>], grants: &[bool]) -> bool {
    groups.iter().zip(grants).all(|(group, grants)| *grants || group.is_shadow)
}
