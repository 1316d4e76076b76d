//! Requests of several parts.
//!
//! ```text
//! groups ─► leased units ─► cached denials ─► batch, or a script call ─► decision
//!              │ of each        │ of any              │
//!              │ group          ▼                     ▼ denied
//!              └──────────────► denied ─► leased units are given back
//! ```

use smallvec::SmallVec;
#[cfg(feature = "redis-cluster")]
use smallvec::smallvec;

use super::RedisStore;
#[cfg(feature = "redis-cluster")]
use super::across_slots::Slot;
use super::batching::Batcher;
use super::encoding::parts::OwnedGroups;
use super::executor::ScriptExecutor;
use super::layer::{Layer, PartRequest};
use super::shortcuts::{Lookup, RequestStamp, TakenUnits};
use super::subject_key::SubjectKey;
use crate::decision::{Decision, Origin};
use crate::maybe_ready::MaybeReady;
use crate::model::{Mode, StoreError};
use crate::store::part_groups::{GroupDecisions, PartGroup, PartGroups, PartJoin};
use crate::store::{DecideRequest, StoreFuture};

type KeyedGroup<'a> = PartGroup<'a, SubjectKey>;

/// The leased units of each group; `None` for a group that the server decides.
type Taken = Vec<Option<TakenUnits<Batcher<ScriptExecutor>>>>;
type Stamps = SmallVec<[Option<RequestStamp>; 4]>;

impl RedisStore {
    /// Decides a request of several parts: in one script call, or on a cluster in one call for each
    /// slot.
    ///
    /// A cached denial of an enforced part denies the request without a call. Parts with leased
    /// units are left out of the call.
    pub(super) fn decide_parts(&self, request: &DecideRequest<'_>) -> StoreFuture<Decision> {
        let parts = match self.groups(request) {
            Ok(parts) => parts,
            Err(error) => return MaybeReady::ready(Err(error)),
        };
        let (groups, mode, now) = (parts.groups(), request.mode, self.inner.clock.now());
        #[cfg(feature = "redis-cluster")]
        match slots_of(&self.inner.executor, groups) {
            Ok(slots) if slots.len() > 1 => {
                return self.decide_across_slots(groups, slots, mode, parts.join());
            }
            Ok(_) => {}
            Err(error) => return MaybeReady::ready(Err(error)),
        }
        let leases = &self.inner.layers;
        let (mut taken, mut needs_refill) = (Taken::with_capacity(groups.len()), false);
        for group in groups {
            let request = PartRequest::of_group(group, mode, now);
            let can_take = !group.is_shadow && leases.can_take(request);
            let of_group = if can_take { leases.take(request) } else { None };
            needs_refill |= can_take && of_group.is_none();
            taken.push(of_group);
        }
        if !needs_refill || self.look_up(groups, &taken, mode).is_err() {
            return self.decide_rest(groups, mode, parts.join(), taken);
        }
        let (this, owned, join) = (self.clone(), OwnedGroups::new(groups), parts.join());
        MaybeReady::later(async move {
            for (index, of_group) in taken.iter_mut().enumerate() {
                let request = {
                    let groups = owned.as_groups();
                    let request =
                        PartRequest::of_group(&groups[index], mode, this.inner.clock.now());
                    let can_take = !groups[index].is_shadow && this.inner.layers.can_take(request);
                    (of_group.is_none() && can_take).then(|| request.to_owned())
                };
                if let Some(request) = request {
                    *of_group = this.inner.layers.take_after_refill(request).await;
                }
            }
            let decided = this.decide_rest(&owned.as_groups(), mode, join, taken);
            decided.await
        })
    }

    /// Decides a request whose keys are in several slots of a cluster, in one call for each slot.
    ///
    /// A part that is alone in its slot uses leased units and batches like a request of one part.
    #[cfg(feature = "redis-cluster")]
    fn decide_across_slots(
        &self,
        groups: &[KeyedGroup<'_>],
        slots: Vec<Slot>,
        mode: Mode,
        join: PartJoin,
    ) -> StoreFuture<Decision> {
        match self.look_up(groups, &[], mode) {
            Ok(stamps) => self.inner.across_slots.decide(groups, slots, &stamps, mode, join),
            Err(denied) => MaybeReady::ready(Ok(join.decision(*denied))),
        }
    }

    /// Decides the groups without leased units, and combines the decisions of all groups.
    fn decide_rest(
        &self,
        groups: &[KeyedGroup<'_>],
        mode: Mode,
        join: PartJoin,
        taken: Taken,
    ) -> StoreFuture<Decision> {
        let stamps = match self.look_up(groups, &taken, mode) {
            Ok(stamps) => stamps,
            Err(denied) => return MaybeReady::ready(Ok(join.decision(*denied))),
        };
        if taken.iter().all(Option::is_some) {
            let decisions = taken.into_iter().flatten().map(TakenUnits::keep).collect();
            return MaybeReady::ready(Ok(join.decision(decisions)));
        }
        let rest = groups.iter().zip(&taken).filter(|(_, taken)| taken.is_none());
        let rest: SmallVec<[KeyedGroup<'_>; 4]> = rest.map(|(group, _)| *group).collect();
        let keys: SmallVec<[SubjectKey; 4]> = rest.iter().map(|group| group.key).collect();
        let decided = self.call_server(&rest, mode);
        let (this, has_taken) = (self.clone(), rest.len() < groups.len());
        let owned = has_taken.then(|| Box::new(OwnedGroups::new(groups)));
        MaybeReady::later(async move {
            let decisions = decided.await?;
            for ((key, decision), stamp) in keys.into_iter().zip(&decisions).zip(stamps) {
                this.inner.layers.denials().remember(key, decision, stamp);
            }
            Ok(join.decision(match owned {
                Some(groups) => with_taken(&groups, taken, decisions),
                None => decisions,
            }))
        })
    }

    /// Asks the server to decide these groups in one step.
    fn call_server(&self, groups: &[KeyedGroup<'_>], mode: Mode) -> StoreFuture<GroupDecisions> {
        match groups {
            // A single group is decided like a request of one subject.
            [group] if !group.is_shadow => {
                let request = PartRequest::of_group(group, mode, self.inner.clock.now());
                let decided = self.inner.layers.denials().decide(request);
                decided.map(|decided| Ok(SmallVec::from_iter([decided?])))
            }
            _ => match self.inner.parts_batcher.decide(groups, mode) {
                Ok(pending) => MaybeReady::later(pending.decisions()),
                Err(error) => MaybeReady::ready(Err(error)),
            },
        }
    }

    /// Looks up cached denials of the groups without leased units. For each of these groups,
    /// returns a stamp of the present state of the denial cache. `taken` is empty if no group has
    /// leased units.
    ///
    /// # Errors
    ///
    /// Returns the decisions on a request that the cached denial of an enforced group denies.
    fn look_up(
        &self,
        groups: &[KeyedGroup<'_>],
        taken: &[Option<TakenUnits<Batcher<ScriptExecutor>>>],
        mode: Mode,
    ) -> Result<Stamps, Box<GroupDecisions>> {
        let (denials, now) = (self.inner.layers.denials(), self.inner.clock.now());
        let mut stamps = Stamps::new();
        for (index, group) in groups.iter().enumerate() {
            let request = PartRequest::of_group(group, mode, now);
            if taken.get(index).is_some_and(Option::is_some) {
                continue;
            }
            stamps.push(match denials.lookup(request) {
                _ if !request.is_plain_check() => None,
                Lookup::Denied(denial) if !group.is_shadow => {
                    return Err(Box::new(denied_by(groups, index, denial)));
                }
                Lookup::Denied(_) => None,
                Lookup::Unknown(stamp) => stamp,
            });
        }
        Ok(stamps)
    }

    /// Decides a request of several parts while the server is overloaded: with leased units for all
    /// parts, or by a cached denial. Returns `None` if neither is possible.
    pub(super) fn decide_parts_locally(&self, request: &DecideRequest<'_>) -> Option<Decision> {
        let parts = self.groups(request).ok()?;
        let (groups, now) = (parts.groups(), self.inner.clock.now());
        let requests = groups.iter().map(|group| PartRequest::of_group(group, request.mode, now));
        let requests: SmallVec<[PartRequest<'_>; 4]> = requests.collect();
        let can_take = |(group, part): (&KeyedGroup<'_>, &PartRequest<'_>)| {
            !group.is_shadow && self.inner.layers.can_take(*part)
        };
        if groups.iter().zip(&requests).all(can_take) {
            let taken = requests.iter().map(|part| self.inner.layers.take(*part));
            if let Some(taken) = taken.collect::<Option<Vec<_>>>() {
                let decisions = taken.into_iter().map(TakenUnits::keep).collect();
                return Some(parts.decision(decisions));
            }
        }
        let enforced = groups.iter().zip(&requests).enumerate();
        let mut plain =
            enforced.filter(|(_, (group, part))| !group.is_shadow && part.is_plain_check());
        let denied = plain.find_map(|(index, (_, part))| {
            Some((index, self.inner.layers.denials().decide_locally(*part)?))
        });
        denied.map(|(index, denial)| parts.decision(denied_by(groups, index, denial)))
    }

    fn groups<'a>(
        &self,
        request: &DecideRequest<'a>,
    ) -> Result<PartGroups<'a, SubjectKey>, StoreError> {
        PartGroups::new(request, |namespace, subject| self.keyed(namespace, subject).key)
    }
}

/// Returns the slots with keys of the request, and the indices of the groups in each of them.
#[cfg(feature = "redis-cluster")]
fn slots_of(executor: &ScriptExecutor, groups: &[KeyedGroup<'_>]) -> Result<Vec<Slot>, StoreError> {
    let mut slots: Vec<(u16, Slot)> = Vec::new();
    for (index, group) in groups.iter().enumerate() {
        let number = executor.slot_of(group)?;
        match slots.iter_mut().find(|(known, _)| *known == number) {
            Some((_, slot)) => slot.push(index),
            None => slots.push((number, smallvec![index])),
        }
    }
    Ok(slots.into_iter().map(|(_, slot)| slot).collect())
}

/// Returns the decisions of all groups, after the server has decided those without leased units. If
/// it denies the request, the leased units are given back.
fn with_taken(groups: &OwnedGroups, taken: Taken, decided: GroupDecisions) -> GroupDecisions {
    let groups = groups.as_groups();
    let enforced = groups.iter().zip(&taken).filter(|(_, taken)| taken.is_none());
    let mut enforced = enforced.map(|(group, _)| group).zip(&decided);
    let is_denied = enforced.any(|(group, decision)| !group.is_shadow && !decision.is_allowed());
    let at = decided.first().map(Decision::at).unwrap_or_default();
    let mut decided = decided.into_iter();
    let decision =
        |(group, taken): (&KeyedGroup<'_>, Option<TakenUnits<Batcher<ScriptExecutor>>>)| {
            Some(match taken {
                None => decided.next()?,
                // The request needed a call to the server, so this part has the origin `Store` too.
                Some(taken) if !is_denied => taken.keep().with_origin(Origin::Store),
                Some(_) => group.unknown_status(at).with_origin(Origin::Store),
            })
        };
    groups.iter().zip(taken).filter_map(decision).collect()
}

/// Returns the decisions on a request that is denied by a cached denial of one part.
fn denied_by(groups: &[KeyedGroup<'_>], denied: usize, denial: Decision) -> GroupDecisions {
    let at = denial.at();
    let decision = |(index, group): (usize, &KeyedGroup<'_>)| match index == denied {
        true => denial.clone(),
        false => group.unknown_status(at).with_origin(Origin::LocalDeny),
    };
    groups.iter().enumerate().map(decision).collect()
}
