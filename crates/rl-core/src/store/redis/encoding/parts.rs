//! The script calls of requests of several parts, and in the readable layout of all requests.

use super::arguments;
use super::layout::Layout;
use super::placement::Placement;
use super::policy::{PolicyEncoding, has_fast_path};
use super::request::RequestEncoder;
use crate::model::{Algorithm, Cost, Mode, StoreError};
use crate::policy::Policy;
use crate::store::redis::connection::Command;
#[cfg(feature = "redis-cluster")]
use crate::store::redis::hash_slot::slot_of;
use crate::store::redis::layer::{Request, RequestPart};
use crate::store::redis::scripts::{Script, of_any_parts};
use crate::store::redis::subject_key::{KeyedSubject, SubjectMap};

/// The encoding of one part, by which its reply is read.
#[derive(Debug)]
pub(crate) struct EncodedPart {
    pub(crate) policy: Policy,
    pub(crate) encoding: PolicyEncoding,
    pub(crate) cost: Cost,
}

impl EncodedPart {
    fn new(policy: &Policy, cost: Cost) -> Self {
        Self { policy: policy.clone(), encoding: PolicyEncoding::new(policy), cost }
    }

    /// Returns the argument of the part in the packed layout.
    fn argument(&self, mode: Mode) -> Vec<u8> {
        let Self { policy, encoding, cost } = self;
        let PolicyEncoding { shape, format, stored, .. } = encoding;
        let mut bytes = Vec::with_capacity(shape.len() + format.len() + 21 * stored.len() + 32);
        arguments::push_part(&mut bytes, policy, encoding, mode, *cost);
        bytes
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

    /// Creates the command that decides these requests, one after the other, and the encoding of the
    /// parts. The parts of all requests have the same policies, in the same order. On a cluster, all
    /// their keys must be in one slot. Returns `None` if no script decides several such requests.
    ///
    /// # Errors
    ///
    /// Returns an error if the layout does not support a limit.
    pub(crate) fn decide_parts(
        &self,
        requests: &[&Request],
    ) -> Result<Option<(Command, Vec<EncodedPart>)>, StoreError> {
        let Some(first) = requests.first() else { return Ok(None) };
        let encode = |part: &RequestPart| EncodedPart::new(&part.policy, part.cost);
        let parts: Vec<_> = first.parts.iter().map(encode).collect();
        let script = match self.fast_script_of_parts(first, &parts) {
            Some(script) => script,
            None if requests.len() > 1 => return Ok(None),
            None => of_any_parts(self.layout),
        };
        let (mut keys, mut known) = (Vec::with_capacity(parts.len()), SubjectMap::default());
        let mut flags = Vec::with_capacity(parts.len());
        let mut table = Vec::with_capacity(9 * parts.len() * requests.len());
        for request in requests {
            for (part, encoded) in request.parts.iter().zip(&parts) {
                let (before, KeyedSubject { namespace, subject, key }) =
                    (keys.len(), &part.subject);
                let (index, added) = known.insert_full(*key, ());
                if added.is_none() {
                    self.push_keys(&mut keys, namespace, subject, &part.policy, &encoded.encoding)?;
                }
                if flags.len() < parts.len() {
                    let count = u8::try_from(keys.len() - before).expect("at most 17 keys");
                    flags.push(count | u8::from(part.is_shadow) << 7);
                }
                let index = u16::try_from(index + 1).expect("at most a few hundred keys");
                table.extend_from_slice(&index.to_be_bytes());
                arguments::push_u56(&mut table, part.cost.units());
            }
        }
        let arguments = match self.layout {
            Layout::Packed => packed_arguments(&parts, first.mode, &flags, &table),
            Layout::Readable => readable_arguments(&parts, first.mode, flags),
        };
        Ok(Some((Command::Script { script, keys, arguments }, parts)))
    }

    /// Returns the script with a fast path for the parts. There is one only for checks of enforced
    /// limits without logs, and only if Lua has room for their variables. In the readable layout,
    /// there is one only for a single part.
    fn fast_script_of_parts(
        &self,
        request: &Request,
        encoded: &[EncodedPart],
    ) -> Option<&'static Script> {
        let is_fast = |part: &RequestPart| !part.is_shadow && has_fast_path(&part.policy);
        if !request.charges_cost() || !request.parts.iter().all(is_fast) {
            return None;
        }
        let shapes: Vec<_> = encoded.iter().map(|part| part.encoding.script_shape()).collect();
        match (self.layout, &shapes[..]) {
            (Layout::Packed, _) => self.part_scripts.get(&shapes),
            (Layout::Readable, [_]) => self.decide_scripts.get(&shapes),
            (Layout::Readable, _) => None,
        }
    }
}

/// Returns the arguments of the parts in the packed layout. `table` lists the key and the cost of
/// each part of each request.
fn packed_arguments(parts: &[EncodedPart], mode: Mode, flags: &[u8], table: &[u8]) -> Vec<Vec<u8>> {
    let count = u8::try_from(flags.len()).expect("a request has at most 8 parts");
    let mut arguments = vec![[&[count], flags, table].concat()];
    arguments.extend(parts.iter().map(|part| part.argument(mode)));
    arguments
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
