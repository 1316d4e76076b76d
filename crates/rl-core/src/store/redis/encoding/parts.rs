//! The script call of a request of several parts.

use super::arguments;
use super::layout::Layout;
use super::placement::Placement;
use super::policy::{PolicyEncoding, has_fast_path};
use super::reply::CallArgs;
use super::request::RequestEncoder;
use crate::model::{Algorithm, Cost, Mode, StoreError};
use crate::policy::Policy;
use crate::store::redis::connection::Command;
#[cfg(feature = "redis-cluster")]
use crate::store::redis::hash_slot::slot_of;
use crate::store::redis::layer::{Request, RequestPart};
use crate::store::redis::scripts::{Script, of_any_parts};
use crate::store::redis::subject_key::KeyedSubject;

/// The encoding of one part, by which its reply is read.
#[derive(Debug)]
pub(crate) struct EncodedPart {
    pub(crate) policy: Policy,
    pub(crate) encoding: PolicyEncoding,
    pub(crate) cost: Cost,
}

impl EncodedPart {
    pub(super) fn new(policy: &Policy, cost: Cost) -> Self {
        Self { policy: policy.clone(), encoding: PolicyEncoding::new(policy), cost }
    }

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

impl RequestEncoder {
    /// Returns the slot of a cluster that holds the keys of a part; 0 if one server holds all keys.
    ///
    /// # Errors
    ///
    /// Returns an error if the layout does not support a limit.
    #[cfg(feature = "redis-cluster")]
    pub(crate) fn slot_of(&self, part: &RequestPart) -> Result<u16, StoreError> {
        if !self.placement.is_cluster() {
            return Ok(0);
        }
        let RequestPart { subject: KeyedSubject { namespace, subject, .. }, policy, .. } = part;
        let keys = self.keys(namespace, subject, policy, &PolicyEncoding::new(policy))?;
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
        request: &Request,
    ) -> Result<(Command, Vec<EncodedPart>), StoreError> {
        let encode = |part: &RequestPart| EncodedPart::new(&part.policy, part.cost);
        let parts: Vec<_> = request.parts.iter().map(encode).collect();
        let (mut keys, mut flags) = (Vec::with_capacity(parts.len()), Vec::with_capacity(4));
        for (part, encoded) in request.parts.iter().zip(&parts) {
            let (before, KeyedSubject { namespace, subject, .. }) = (keys.len(), &part.subject);
            self.push_keys(&mut keys, namespace, subject, &part.policy, &encoded.encoding)?;
            let count = u8::try_from(keys.len() - before).expect("a part has at most 17 keys");
            flags.push(count | u8::from(part.is_shadow) << 7);
        }
        let arguments = match self.layout {
            Layout::Packed => packed_arguments(&parts, request.mode, &flags),
            Layout::Readable => readable_arguments(&parts, request.mode, flags),
        };
        let script = self.fast_script_of_parts(request, &parts);
        let script = script.unwrap_or_else(|| of_any_parts(self.layout));
        Ok((Command::Script { script, keys, arguments }, parts))
    }

    /// Returns the script with a fast path for the parts. There is one only for checks of enforced
    /// limits without logs, and only if Lua has room for their variables.
    fn fast_script_of_parts(
        &self,
        request: &Request,
        encoded: &[EncodedPart],
    ) -> Option<&'static Script> {
        let is_fast = |part: &RequestPart| !part.is_shadow && has_fast_path(&part.policy);
        if self.layout == Layout::Readable
            || !request.charges_cost()
            || !request.parts.iter().all(is_fast)
        {
            return None;
        }
        let shapes: Vec<_> = encoded.iter().map(|part| part.encoding.script_shape()).collect();
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

/// Returns whether a script can decide a check of several parts together with others: if their
/// limits are enforced and have no logs. On a cluster, only subjects of one slot group share a call.
pub(crate) fn can_batch(encoder: &RequestEncoder, request: &Request) -> bool {
    let has_logs = |policy: &Policy| {
        let mut limits = policy.limits().iter().map(|named| named.limit().algorithm());
        limits.any(|algorithm| matches!(algorithm, Algorithm::SlidingLog | Algorithm::Concurrency))
    };
    let is_fast = |part: &RequestPart| {
        !part.is_shadow && has_fast_path(&part.policy) && !has_logs(&part.policy)
    };
    request.charges_cost()
        && encoder.layout == Layout::Packed
        && !matches!(encoder.placement, Placement::SubjectSlots)
        && request.parts.iter().all(is_fast)
}
