//! Creates the commands for decisions and amendments, in each layout.

use std::time::Duration;

use smallvec::{SmallVec, smallvec};

use super::placement::Placement;
#[cfg(feature = "redis-cluster")]
use super::placement::slot_of;
use super::policy::{PolicyEncoding, has_fast_path};
use super::reply::CallArgs;
use super::{Layout, arguments, keys};
use crate::model::{Algorithm, Anchor, Cost, FailureKind, Mode, Period, StoreError, Subject};
use crate::policy::Policy;
use crate::store::redis::connection::Command;
use crate::store::redis::layer::{
    AmendOperation, Amendment, Amendments, HeldReservation, Request, RequestPart,
};
use crate::store::redis::scripts::{self, Purpose, Script, ShapeScripts, of_any_parts};
use crate::store::redis::subject_key::{KeyedSubject, SubjectMap};
use crate::store::{Namespace, Reservations, Reset};

/// The number of subjects in one call. A call blocks the server while it runs.
const MAX_SUBJECTS: usize = 128;

/// One call of a deciding script, with the same costs for each of its subjects.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DecideCall<'a> {
    /// The subjects to decide. There may be several only for a check under a policy with a fast
    /// path ([`has_fast_path`]).
    pub(crate) subjects: &'a [&'a KeyedSubject],
    pub(crate) policy: &'a Policy,
    pub(crate) mode: Mode,
    pub(crate) costs: CallCosts<'a>,
    pub(crate) reservations: Reservations,
}

/// The costs of the calls of each subject. The calls are decided one after the other.
///
/// There may be several calls only in the packed layout.
#[derive(Clone, Copy, Debug)]
pub(crate) enum CallCosts<'a> {
    /// `calls` calls of one cost. If fewer than `least` of them would be allowed, none is.
    Same { cost: Cost, calls: u16, least: u16 },
    /// A call for each of these costs.
    Each(&'a [Cost]),
}

impl CallCosts<'_> {
    /// Returns the costs of a single call.
    pub(crate) const fn same(cost: Cost) -> Self {
        Self::Same { cost, calls: 1, least: 1 }
    }
}

impl<'a> DecideCall<'a> {
    /// Returns the number of calls of each subject.
    pub(crate) fn calls(&self) -> u16 {
        match self.costs {
            CallCosts::Same { calls, .. } => calls,
            CallCosts::Each(costs) => u16::try_from(costs.len()).unwrap_or(u16::MAX),
        }
    }

    /// Returns the arguments of a decision on a call of `cost`.
    pub(crate) const fn args(&self, cost: Cost) -> CallArgs<'a> {
        CallArgs { policy: self.policy, mode: self.mode, cost }
    }

    /// Returns the time for which charged units are reserved.
    ///
    /// A peek and [`Mode::Charge`] make no reservation: a peek charges nothing, and `Charge` is for
    /// work that is already done.
    pub(crate) fn lifetime(&self) -> Option<Duration> {
        match self.reservations {
            Reservations::Reserve(lifetime)
                if self.mode != Mode::Peek && self.mode != Mode::Charge =>
            {
                Some(lifetime)
            }
            _ => None,
        }
    }
}

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

/// The keys and arguments of one subject.
struct EncodedSubject {
    keys: Vec<String>,
    arguments: Vec<Vec<u8>>,
}

/// Creates commands for one layout and one prefix of keys.
#[derive(Debug)]
pub(crate) struct RequestEncoder {
    pub(crate) layout: Layout,
    prefix: String,
    placement: Placement,
    decide_scripts: ShapeScripts,
    refund_scripts: ShapeScripts,
    part_scripts: ShapeScripts,
}

impl RequestEncoder {
    /// Creates an encoder. At most `script_shapes` combinations of kinds of limits get a fast
    /// script of their own, for each purpose: decisions, refunds, and requests of parts. The other
    /// combinations use the script that accepts any policy.
    pub(crate) fn new(
        layout: Layout,
        prefix: String,
        placement: Placement,
        script_shapes: usize,
    ) -> Self {
        let decide = match layout {
            Layout::Packed => Purpose::Decide,
            Layout::Readable => Purpose::DecideReadable,
        };
        Self {
            layout,
            prefix,
            placement,
            decide_scripts: ShapeScripts::new(decide, script_shapes),
            refund_scripts: ShapeScripts::new(Purpose::Refund, script_shapes),
            part_scripts: ShapeScripts::new(Purpose::Parts, script_shapes),
        }
    }

    /// Returns the slot of a cluster that holds all keys of a subject; 0 if one server holds all
    /// keys.
    pub(crate) fn slot_of_subject(&self, namespace: &Namespace, subject: &Subject) -> u16 {
        if !self.placement.is_cluster() {
            return 0;
        }
        let Self { layout, prefix, placement, .. } = self;
        let key = match layout {
            Layout::Packed => keys::packed(prefix, placement.groups(), namespace, subject),
            // The keys of all periods have the same hash tag.
            Layout::Readable => {
                let key = keys::readable(prefix, namespace, subject, true)(Period::SECOND, false);
                key.unwrap_or_default()
            }
        };
        #[cfg(feature = "redis-cluster")]
        return slot_of(&key);
        #[cfg(not(feature = "redis-cluster"))]
        unreachable!("a cluster without its feature: {key}")
    }

    /// Creates the command for a call of a deciding script, in the packed layout.
    pub(crate) fn decide(
        &self,
        call: &DecideCall<'_>,
        encoding: &PolicyEncoding,
    ) -> Result<Command, StoreError> {
        let (policy, mode) = (call.policy, call.mode);
        let (cost, calls, least) = match call.costs {
            CallCosts::Same { cost, calls, least } => (cost, calls, least),
            CallCosts::Each(_) => (Cost::ZERO, 0, 1),
        };
        let mut keys = match call.subjects {
            [KeyedSubject { namespace, subject, .. }] => {
                self.keys(namespace, subject, policy, encoding)?
            }
            // For several subjects, the script reads only one key of each: that of its state.
            several => {
                several.iter().map(|of| self.state_key(&of.namespace, &of.subject)).collect()
            }
        };
        let mut plan = arguments::packed_plan(policy, encoding, mode, cost, calls, least);
        if call.subjects.len() > 1 {
            plan = arguments::of_several_subjects(plan);
        }
        let mut arguments = packed_arguments(encoding, plan);
        if let CallCosts::Each(costs) = call.costs {
            arguments.push(arguments::costs(costs));
        }
        if call.reservations == Reservations::Ignore {
            let script = self.fast_script(call, encoding).unwrap_or_else(scripts::decide);
            return Ok(Command::Script { script, keys, arguments });
        }
        arguments.push(arguments::lifetime(call.lifetime()));
        keys.push(keys::reservations(&keys[0]));
        Ok(Command::Script { script: scripts::reserve(), keys, arguments })
    }

    /// Returns the script with a fast path for the call, if there is one. Without a fast path, a
    /// call can decide only one subject.
    pub(crate) fn fast_script(
        &self,
        call: &DecideCall<'_>,
        encoding: &PolicyEncoding,
    ) -> Option<&'static Script> {
        let is_check = call.mode == Mode::Check
            && call.reservations == Reservations::Ignore
            && matches!(call.costs, CallCosts::Same { cost, .. } if cost > Cost::ZERO);
        let is_fast = is_check && has_fast_path(call.policy);
        if is_fast { self.decide_scripts.get(&[encoding.script_shape()]) } else { None }
    }

    /// Creates the command that refunds units of two or more subjects under one policy. Returns
    /// `None` if no script refunds them together.
    pub(crate) fn refund_together(&self, refunds: &[&Amendment]) -> Option<Command> {
        let first = refunds.first()?;
        let encoding = PolicyEncoding::new(&first.policy);
        let script = match self.layout {
            Layout::Packed => self.refund_scripts.get(&[encoding.script_shape()])?,
            Layout::Readable => return None,
        };
        let key = |of: &&Amendment| self.state_key(&of.subject.namespace, &of.subject.subject);
        let keys = refunds.iter().map(key).collect();
        let plan = arguments::of_several_subjects(arguments::change_plan(first, &encoding));
        let mut arguments = packed_arguments(&encoding, plan);
        arguments.push(arguments::refund_charges(refunds, &encoding));
        Some(Command::Script { script, keys, arguments })
    }

    /// Returns the keys that hold the states of the policy's limits, in the order of the scripts.
    fn keys(
        &self,
        namespace: &Namespace,
        subject: &Subject,
        policy: &Policy,
        encoding: &PolicyEncoding,
    ) -> Result<Vec<String>, StoreError> {
        let mut keys = Vec::with_capacity(1);
        self.push_keys(&mut keys, namespace, subject, policy, encoding)?;
        Ok(keys)
    }

    /// Returns the key of a subject's state in the packed layout.
    fn state_key(&self, namespace: &Namespace, subject: &Subject) -> String {
        keys::packed(&self.prefix, self.placement.groups(), namespace, subject)
    }

    fn push_keys(
        &self,
        keys: &mut Vec<String>,
        namespace: &Namespace,
        subject: &Subject,
        policy: &Policy,
        encoding: &PolicyEncoding,
    ) -> Result<(), StoreError> {
        if self.layout == Layout::Packed {
            let state = keys.len();
            keys.push(self.state_key(namespace, subject));
            for limit in encoding.limits(policy) {
                keys.extend(keys::log_key(&keys[state], limit));
            }
            return Ok(());
        }
        let key = self.readable_key(namespace, subject);
        for limit in encoding.limits(policy) {
            const STORED: Algorithm = Algorithm::FixedWindow { anchor: Anchor::FirstRequest };
            let key = key(limit.period(), limit.counts_requests());
            let key = key.filter(|_| limit.algorithm() == STORED);
            keys.push(key.ok_or_else(|| {
                StoreError::new(FailureKind::Unsupported).with_detail(format!(
                    "the readable layout holds fixed windows of the six named periods that begin \
                     with the first request, not {limit}"
                ))
            })?);
        }
        Ok(())
    }

    fn readable_key<'a>(
        &'a self,
        namespace: &'a Namespace,
        subject: &Subject,
    ) -> impl Fn(Period, bool) -> Option<String> + use<'a> {
        // On a cluster, the hash tag keeps the counters of a subject together.
        keys::readable(&self.prefix, namespace, subject, self.placement.is_cluster())
    }

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

    /// Creates the command that decides these requests, one after the other, and the encoding of
    /// the parts. The parts of all requests have the same policies, in the same order. On a
    /// cluster, all their keys must be in one slot. Returns `None` if no script decides several
    /// such requests.
    ///
    /// # Errors
    ///
    /// Returns an error if the layout does not support a limit.
    pub(crate) fn command_of_requests(
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
            Layout::Packed => packed_arguments_of_parts(&parts, first.mode, &flags, &table),
            Layout::Readable => readable_arguments_of_parts(&parts, first.mode, flags),
        };
        Ok(Some((Command::Script { script, keys, arguments }, parts)))
    }

    /// Returns whether one script call can decide `request` together with other requests.
    ///
    /// This needs the packed layout, and on a cluster also slot groups. The request must be a check
    /// in which every part costs more than 0, is enforced, and has neither a limit in shadow nor a
    /// log. A concurrency limit is a log too.
    pub(crate) fn can_batch(&self, request: &Request) -> bool {
        let has_logs = |policy: &Policy| {
            let mut limits = policy.limits().iter().map(|named| named.limit().algorithm());
            limits.any(|algorithm| {
                matches!(algorithm, Algorithm::SlidingLog | Algorithm::Concurrency)
            })
        };
        let is_fast = |part: &RequestPart| {
            !part.is_shadow && has_fast_path(&part.policy) && !has_logs(&part.policy)
        };
        request.charges_cost()
            && self.layout == Layout::Packed
            && !matches!(self.placement, Placement::SubjectSlots)
            && request.parts.iter().all(is_fast)
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

    /// Divides changes into calls: several for many subjects, and on a cluster one for each slot.
    pub(crate) fn calls_of(&self, amendments: Amendments) -> Vec<Amendments> {
        by_slot(amendments.into_iter().map(|amendment| {
            let KeyedSubject { namespace, subject, .. } = &amendment.subject;
            (self.slot_of_subject(namespace, subject), amendment)
        }))
    }

    /// Creates the command that makes the changes of a call, each of another subject.
    ///
    /// # Errors
    ///
    /// Returns an error if the layout does not support a limit.
    pub(crate) fn amend(&self, amendments: &[Amendment]) -> Result<Command, StoreError> {
        if let [amendment] = amendments {
            if let AmendOperation::ChangeReservation(held) = &amendment.operation {
                return self.change_reservation(amendment, held);
            }
            if let Some(command) = self.fast_refund(amendment) {
                return Ok(command);
            }
        }
        let encoded = amendments.iter().map(|amendment| self.encode_amendment(amendment));
        Ok(call(scripts::settle(self.layout), encoded.collect::<Result<_, _>>()?))
    }

    /// Creates the command of a refund with a fast path; `None` if the amendment has none.
    fn fast_refund(&self, amendment: &Amendment) -> Option<Command> {
        if self.layout == Layout::Readable || !amendment.is_refund() {
            return None;
        }
        let encoding = PolicyEncoding::new(&amendment.policy);
        let script = self.refund_scripts.get(&[encoding.script_shape()])?;
        let EncodedSubject { keys, arguments } = self.encode_amendment(amendment).ok()?;
        Some(Command::Script { script, keys, arguments })
    }

    /// Creates the command that renews or ends a reservation.
    ///
    /// The layout needs no check here, because no request of the readable layout makes
    /// reservations.
    fn change_reservation(
        &self,
        amendment: &Amendment,
        held: &HeldReservation,
    ) -> Result<Command, StoreError> {
        let encoding = PolicyEncoding::new(&amendment.policy);
        let EncodedSubject { mut keys, mut arguments } = self.encode_amendment(amendment)?;
        arguments.push(arguments::reservation(amendment.charged, held, &encoding));
        arguments.push(arguments::lifetime(held.renewed_for));
        arguments.push(arguments::expires(held));
        keys.push(keys::reservations(&keys[0]));
        let script = scripts::change_reservation();
        Ok(Command::Script { script, keys, arguments })
    }

    /// Creates the commands that make these resets. Subjects of one slot share a command, except
    /// that a reset of one limit has a command of its own in the packed layout.
    pub(crate) fn reset(&self, resets: &[Reset<'_>]) -> Result<Vec<Command>, StoreError> {
        let (mut of_limits, mut whole) = (Vec::new(), Vec::with_capacity(resets.len()));
        for Reset { namespace, subject, policy, limit } in resets.iter().copied() {
            let encoding = PolicyEncoding::new(policy);
            let keys = self.keys(namespace, subject, policy, &encoding);
            let slot = self.slot_of_subject(namespace, subject);
            match (self.layout, limit) {
                (Layout::Packed, None) => {
                    let arguments = vec![encoding.shape, encoding.format];
                    whole.push((slot, EncodedSubject { keys: keys?, arguments }));
                }
                (Layout::Packed, Some(limit)) => {
                    let plan = arguments::forget_plan(policy, &encoding, limit);
                    let (keys, arguments) = (keys?, packed_arguments(&encoding, plan));
                    of_limits.push(EncodedSubject { keys, arguments });
                }
                (Layout::Readable, None) => {
                    let key = self.readable_key(namespace, subject);
                    let both = |period| [key(period, false), key(period, true)];
                    let keys = Period::NAMED.into_iter().flat_map(both).flatten().collect();
                    whole.push((slot, EncodedSubject { keys, arguments: Vec::new() }));
                }
                (Layout::Readable, Some(limit)) => {
                    let keys = encoding.order.iter().zip(keys?);
                    let keys = keys.filter(|(place, _)| **place == limit);
                    let keys = keys.map(|(_, key)| key).collect();
                    whole.push((slot, EncodedSubject { keys, arguments: Vec::new() }));
                }
            }
        }
        // One call cannot make several resets of one subject, because it reads all states first.
        let settle = scripts::settle(self.layout);
        let of_limits = of_limits.into_iter().map(|subject| call(settle, smallvec![subject]));
        let mut commands: Vec<_> = of_limits.collect();
        commands.extend(by_slot(whole).into_iter().map(|subjects| match self.layout {
            Layout::Packed => call(scripts::reset(), subjects),
            Layout::Readable => {
                let keys = subjects.into_iter().flat_map(|subject| subject.keys).collect();
                Command::Delete { keys }
            }
        }));
        Ok(commands)
    }

    /// Creates the command that publishes the note of an instance. An empty id reads all notes.
    pub(crate) fn notes(&self, namespace: &Namespace, instance: &str, note: &str) -> Command {
        let keys = vec![keys::notes(&self.prefix, self.layout, namespace)];
        let arguments = vec![instance.into(), note.into()];
        Command::Script { script: scripts::notes(), keys, arguments }
    }

    fn encode_amendment(&self, amendment: &Amendment) -> Result<EncodedSubject, StoreError> {
        let Amendment { subject, policy, .. } = amendment;
        let encoding = PolicyEncoding::new(policy);
        let keys = self.keys(&subject.namespace, &subject.subject, policy, &encoding)?;
        let arguments = match self.layout {
            Layout::Packed => {
                packed_arguments(&encoding, arguments::change_plan(amendment, &encoding))
            }
            Layout::Readable => {
                let periods = arguments::readable_periods(policy, &encoding);
                vec![periods, arguments::readable_change_plan(amendment, &encoding)]
            }
        };
        Ok(EncodedSubject { keys, arguments })
    }
}

/// Returns the arguments with which all scripts of the packed layout begin.
fn packed_arguments(encoding: &PolicyEncoding, plan: Vec<u8>) -> Vec<Vec<u8>> {
    vec![encoding.shape.clone(), plan, encoding.format.clone()]
}

/// Returns the arguments of the parts in the packed layout. `table` lists the key and the cost of
/// each part of each request.
fn packed_arguments_of_parts(
    parts: &[EncodedPart],
    mode: Mode,
    flags: &[u8],
    table: &[u8],
) -> Vec<Vec<u8>> {
    let count = u8::try_from(flags.len()).expect("a request has at most 8 parts");
    let mut arguments = vec![[&[count], flags, table].concat()];
    arguments.extend(parts.iter().map(|part| part.argument(mode)));
    arguments
}

/// Returns the arguments of the parts in the readable layout.
fn readable_arguments_of_parts(parts: &[EncodedPart], mode: Mode, flags: Vec<u8>) -> Vec<Vec<u8>> {
    let mut arguments = vec![flags];
    for EncodedPart { policy, encoding, cost } in parts {
        let (shape, format) = encoding.of_any_count();
        let plan = arguments::readable_plan(policy, encoding, mode, *cost);
        arguments.extend([arguments::readable_periods(policy, encoding), plan, shape, format]);
    }
    arguments
}

/// Groups subjects by slot. A slot with more than [`MAX_SUBJECTS`] has several groups.
fn by_slot<T>(subjects: impl IntoIterator<Item = (u16, T)>) -> Vec<SmallVec<[T; 1]>> {
    let mut slots: Vec<(u16, SmallVec<[T; 1]>)> = Vec::new();
    for (slot, subject) in subjects {
        let has_room = |(known, group): &&mut (u16, SmallVec<[T; 1]>)| {
            *known == slot && group.len() < MAX_SUBJECTS
        };
        match slots.iter_mut().rev().find(has_room) {
            Some((_, group)) => group.push(subject),
            None => slots.push((slot, smallvec![subject])),
        }
    }
    slots.into_iter().map(|(_, group)| group).collect()
}

/// Creates the call of a script for several subjects: `settle.lua` or `reset.lua`.
fn call(script: &'static Script, subjects: SmallVec<[EncodedSubject; 1]>) -> Command {
    let count = |subject: &EncodedSubject| {
        u8::try_from(subject.keys.len()).expect("a subject has at most 17 keys")
    };
    let mut arguments = vec![subjects.iter().map(count).collect()];
    let mut keys = Vec::with_capacity(subjects.len());
    for subject in subjects {
        keys.extend(subject.keys);
        arguments.extend(subject.arguments);
    }
    Command::Script { script, keys, arguments }
}
