//! The calls that change the counts of subjects outside a decision.

use smallvec::{SmallVec, smallvec};

use super::layout::Layout;
use super::policy::PolicyEncoding;
use super::request::{RequestEncoder, packed_arguments};
use super::{arguments, keys};
use crate::model::{Period, StoreError};
use crate::store::Reset;
use crate::store::redis::connection::Command;
use crate::store::redis::layer::{AmendOperation, Amendment, Amendments, HeldReservation};
use crate::store::redis::scripts::{self, Script};
use crate::store::redis::subject_key::KeyedSubject;

/// The number of subjects in one call. A call blocks the server while it runs.
const MAX_SUBJECTS: usize = 128;

/// The keys and arguments of one subject.
struct EncodedSubject {
    keys: Vec<String>,
    arguments: Vec<Vec<u8>>,
}

impl RequestEncoder {
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
    /// The layout needs no check here, because no request of the readable layout makes reservations.
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
