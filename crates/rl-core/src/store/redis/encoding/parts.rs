//! The script call of a request of several parts.

use smallvec::SmallVec;

use super::arguments;
use super::layout::Layout;
use super::placement::Placement;
use super::policy::{PolicyEncoding, has_fast_path};
use super::reply::CallArgs;
use super::request::RequestEncoder;
use crate::model::{Algorithm, Cost, Mode, StoreError};
use crate::policy::Policy;
use crate::store::part_groups::PartGroup;
use crate::store::redis::connection::Command;
#[cfg(feature = "redis-cluster")]
use crate::store::redis::hash_slot::slot_of;
use crate::store::redis::scripts::{Script, of_any_parts};
use crate::store::redis::subject_key::{KeyedSubject, KeyedSubjectRef, SubjectKey};

/// The encoding of one part, by which its reply is read.
#[derive(Debug)]
pub(crate) struct EncodedPart {
    pub(crate) policy: Policy,
    pub(crate) encoding: PolicyEncoding,
    pub(crate) cost: Cost,
}

impl EncodedPart {
    /// Returns the arguments of the decision on the part.
    pub(crate) const fn args(&self, mode: Mode) -> CallArgs<'_> {
        CallArgs { policy: &self.policy, mode, cost: self.cost }
    }

    /// Returns the argument of the part in the packed layout.
    pub(super) fn argument(&self, mode: Mode) -> Vec<u8> {
        let mut bytes = self.argument_buffer();
        self.push_argument(&mut bytes, mode);
        bytes
    }

    fn push_argument(&self, bytes: &mut Vec<u8>, mode: Mode) {
        arguments::push_part(bytes, &self.policy, &self.encoding, mode, self.cost);
    }

    /// Returns an empty buffer with room for the argument of the part, and for the flags.
    fn argument_buffer(&self) -> Vec<u8> {
        let PolicyEncoding { shape, format, stored, .. } = &self.encoding;
        Vec::with_capacity(shape.len() + format.len() + 21 * stored.len() + 32)
    }
}

/// The owned groups of a request, for tasks and futures.
#[derive(Clone, Debug)]
pub(crate) struct OwnedGroups(SmallVec<[OwnedGroup; 3]>);

/// An owned [`PartGroup`].
#[derive(Clone, Debug)]
pub(crate) struct OwnedGroup {
    pub(crate) subject: KeyedSubject,
    pub(crate) policy: Policy,
    pub(crate) cost: Cost,
    pub(crate) is_shadow: bool,
}

impl OwnedGroup {
    /// Copies the group.
    pub(crate) fn new(group: &PartGroup<'_, SubjectKey>) -> Self {
        let PartGroup { key, namespace, subject, policy, cost, is_shadow } = *group;
        let subject = KeyedSubjectRef { namespace, subject, key }.to_owned();
        Self { subject, policy: policy.clone(), cost, is_shadow }
    }

    /// Returns the group with another cost.
    pub(crate) const fn with_cost(&self, cost: Cost) -> PartGroup<'_, SubjectKey> {
        let Self { subject, policy, is_shadow, .. } = self;
        let KeyedSubjectRef { namespace, subject, key } = subject.as_ref();
        PartGroup { key, namespace, subject, policy, cost, is_shadow: *is_shadow }
    }
}

impl OwnedGroups {
    /// Copies the groups.
    pub(crate) fn new(groups: &[PartGroup<'_, SubjectKey>]) -> Self {
        Self(groups.iter().map(OwnedGroup::new).collect())
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &OwnedGroup> {
        self.0.iter()
    }

    /// Returns the groups.
    pub(crate) fn as_groups(&self) -> SmallVec<[PartGroup<'_, SubjectKey>; 3]> {
        self.0.iter().map(|group| group.with_cost(group.cost)).collect()
    }
}

impl RequestEncoder {
    /// Returns the slot of a cluster that holds the keys of a group; 0 if one server holds all
    /// keys.
    ///
    /// # Errors
    ///
    /// Returns an error if the layout does not support a limit.
    #[cfg(feature = "redis-cluster")]
    pub(crate) fn slot_of(&self, group: &PartGroup<'_, SubjectKey>) -> Result<u16, StoreError> {
        if !self.placement.is_cluster() {
            return Ok(0);
        }
        let PartGroup { namespace, subject, policy, .. } = *group;
        let mut keys = Vec::with_capacity(1);
        self.push_keys(&mut keys, namespace, subject, policy, &PolicyEncoding::new(policy))?;
        // All keys of a subject are in one slot. A policy has at least one limit, and so a key.
        Ok(keys.first().map_or(0, |key| slot_of(key)))
    }

    /// Creates the command that decides the parts in one step, and the encoding of each part. On a
    /// cluster, all their keys must be in one slot.
    ///
    /// # Errors
    ///
    /// Returns an error if the layout does not support a limit.
    pub(crate) fn decide_parts(
        &self,
        groups: &[PartGroup<'_, SubjectKey>],
        mode: Mode,
    ) -> Result<(Command, Vec<EncodedPart>), StoreError> {
        let encode = |group: &PartGroup<'_, SubjectKey>| EncodedPart {
            policy: group.policy.clone(),
            encoding: PolicyEncoding::new(group.policy),
            cost: group.cost,
        };
        let parts: Vec<_> = groups.iter().map(encode).collect();
        let (mut keys, mut flags) = (Vec::with_capacity(parts.len()), Vec::with_capacity(4));
        for (group, part) in groups.iter().zip(&parts) {
            let before = keys.len();
            let PartGroup { namespace, subject, policy, .. } = *group;
            self.push_keys(&mut keys, namespace, subject, policy, &part.encoding)?;
            let count = u8::try_from(keys.len() - before).expect("a part has at most 17 keys");
            flags.push(count | u8::from(group.is_shadow) << 7);
        }
        let arguments = match self.layout {
            Layout::Packed => packed_arguments(&parts, mode, &flags),
            Layout::Readable => readable_arguments(&parts, mode, flags),
        };
        let script = self.fast_script_of_parts(groups, &parts, mode);
        let script = script.unwrap_or_else(|| of_any_parts(self.layout));
        Ok((Command::Script { script, keys, arguments }, parts))
    }

    /// Returns the script with a fast path for the parts. There is one only for checks of enforced
    /// limits without logs, and only if Lua has room for their variables.
    fn fast_script_of_parts(
        &self,
        groups: &[PartGroup<'_, SubjectKey>],
        parts: &[EncodedPart],
        mode: Mode,
    ) -> Option<&'static Script> {
        let is_fast = |group: &PartGroup<'_, SubjectKey>| {
            !group.is_shadow && group.cost > Cost::ZERO && has_fast_path(group.policy)
        };
        if self.layout == Layout::Readable || mode != Mode::Check || !groups.iter().all(is_fast) {
            return None;
        }
        let shapes: Vec<_> = parts.iter().map(|part| part.encoding.script_shape()).collect();
        self.part_scripts.get(&shapes)
    }
}

/// Returns the arguments of the parts in the packed layout. The first one begins with the flags.
fn packed_arguments(parts: &[EncodedPart], mode: Mode, flags: &[u8]) -> Vec<Vec<u8>> {
    let count = u8::try_from(flags.len()).expect("a request has at most 8 parts");
    let argument = |(index, part): (usize, &EncodedPart)| {
        let mut bytes = part.argument_buffer();
        if index == 0 {
            bytes.push(count);
            bytes.extend_from_slice(flags);
        }
        part.push_argument(&mut bytes, mode);
        bytes
    };
    parts.iter().enumerate().map(argument).collect()
}

/// Returns the arguments of the parts in the readable layout.
fn readable_arguments(parts: &[EncodedPart], mode: Mode, flags: Vec<u8>) -> Vec<Vec<u8>> {
    let mut arguments = vec![flags];
    for EncodedPart { policy, encoding, cost } in parts {
        let (shape, format) = encoding.of_any_count();
        let plan = arguments::readable_plan(policy, encoding, mode, *cost);
        arguments.extend([arguments::readable_periods(policy, encoding), plan, shape, format]);
    }
    arguments
}

/// Returns whether a script can decide the request together with others: a check of enforced limits
/// without logs. On a cluster, only subjects of one slot group share a call.
pub(crate) fn can_batch(
    encoder: &RequestEncoder,
    groups: &[PartGroup<'_, SubjectKey>],
    mode: Mode,
) -> bool {
    let has_logs = |policy: &Policy| {
        let mut limits = policy.limits().iter().map(|named| named.limit().algorithm());
        limits.any(|algorithm| matches!(algorithm, Algorithm::SlidingLog | Algorithm::Concurrency))
    };
    let is_fast = |group: &PartGroup<'_, SubjectKey>| {
        !group.is_shadow
            && group.cost > Cost::ZERO
            && has_fast_path(group.policy)
            && !has_logs(group.policy)
    };
    mode == Mode::Check
        && encoder.layout == Layout::Packed
        && !matches!(encoder.placement, Placement::SubjectSlots)
        && groups.iter().all(is_fast)
}
