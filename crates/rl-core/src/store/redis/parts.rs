//! Requests of several parts.

use smallvec::SmallVec;
#[cfg(feature = "redis-cluster")]
use smallvec::smallvec;

use super::RedisStore;
#[cfg(feature = "redis-cluster")]
use super::across_slots::Slot;
#[cfg(feature = "redis-cluster")]
use super::executor::ScriptExecutor;
use super::layer::PartRequest;
use super::shortcuts::{Lookup, RequestStamp};
use super::subject_key::{KeyedSubjectRef, SubjectKey};
use crate::decision::{Decision, Origin};
use crate::maybe_ready::MaybeReady;
use crate::model::{Mode, StoreError};
use crate::store::part_groups::{GroupDecisions, PartGroup, PartGroups};
use crate::store::{DecideRequest, Reservations, StoreFuture};

type KeyedGroup<'a> = PartGroup<'a, SubjectKey>;

impl RedisStore {
    /// Decides a request of several parts, in one script call.
    ///
    /// Such requests use neither leased units nor batches. A cached denial of an enforced part
    /// denies the request without a call.
    pub(super) fn decide_parts(&self, request: &DecideRequest<'_>) -> StoreFuture<Decision> {
        let parts = match self.groups(request) {
            Ok(parts) => parts,
            Err(error) => return MaybeReady::ready(Err(error)),
        };
        let (groups, mode, now) = (parts.groups(), request.mode, self.inner.clock.now());
        let denials = self.inner.layers.denials();
        let mut stamps: SmallVec<[Option<RequestStamp>; 4]> = SmallVec::new();
        for (index, group) in groups.iter().enumerate() {
            let asked = part_request(group, mode, now);
            stamps.push(match denials.lookup(asked) {
                _ if !asked.is_plain_check() => None,
                Lookup::Denied(denial) if !group.is_shadow => {
                    let decisions = denied_by(groups, index, denial);
                    return MaybeReady::ready(Ok(parts.decision(decisions)));
                }
                Lookup::Denied(_) => None,
                Lookup::Unknown(stamp) => stamp,
            });
        }
        #[cfg(feature = "redis-cluster")]
        match slots_of(&self.inner.executor, groups) {
            Ok(slots) if slots.len() > 1 => {
                let (across_slots, join) = (&self.inner.across_slots, parts.join());
                return across_slots.decide(groups, slots, &stamps, mode, join);
            }
            Ok(_) => {}
            Err(error) => return MaybeReady::ready(Err(error)),
        }
        let call = match self.inner.executor.call_of_parts(groups, mode) {
            Ok(call) => call,
            Err(error) => return MaybeReady::ready(Err(error)),
        };
        let (join, this) = (parts.join(), self.clone());
        let keys: SmallVec<[SubjectKey; 4]> = groups.iter().map(|group| group.key).collect();
        MaybeReady::later(async move {
            let decisions = this.inner.executor.execute_parts(call).await?;
            let denials = this.inner.layers.denials();
            for ((key, decision), stamp) in keys.iter().zip(&decisions).zip(stamps) {
                denials.remember(*key, decision, stamp);
            }
            Ok(join.decision(decisions))
        })
    }

    /// Denies a request of several parts by a cached denial, while the server is overloaded.
    pub(super) fn decide_parts_locally(&self, request: &DecideRequest<'_>) -> Option<Decision> {
        let parts = self.groups(request).ok()?;
        let (groups, now) = (parts.groups(), self.inner.clock.now());
        let enforced = groups.iter().enumerate().filter(|(_, group)| !group.is_shadow);
        let requests =
            enforced.map(|(index, group)| (index, part_request(group, request.mode, now)));
        let mut plain = requests.filter(|(_, part)| part.is_plain_check());
        let denied = plain.find_map(|(index, part)| {
            Some((index, self.inner.layers.denials().decide_locally(part)?))
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

/// Returns the groups in each slot that the keys of the request are in.
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

fn part_request<'a>(group: &KeyedGroup<'a>, mode: Mode, now: u64) -> PartRequest<'a> {
    let PartGroup { key, namespace, subject, policy, cost, .. } = *group;
    PartRequest {
        subject: KeyedSubjectRef { namespace, subject, key },
        policy,
        mode,
        cost,
        reservations: Reservations::Ignore,
        now,
    }
}

/// Returns the decisions of a request that the cached denial of one part denies. The status of the
/// other parts is unknown, so they have no limits.
fn denied_by(groups: &[KeyedGroup<'_>], denied: usize, denial: Decision) -> GroupDecisions {
    let at = denial.at();
    let decision = |(index, group): (usize, &KeyedGroup<'_>)| {
        if index == denied {
            return denial.clone();
        }
        let mut unknown = Decision::pending(group.policy, group.cost);
        unknown.finish(0, at, true);
        unknown.with_origin(Origin::LocalDeny)
    };
    groups.iter().enumerate().map(decision).collect()
}
