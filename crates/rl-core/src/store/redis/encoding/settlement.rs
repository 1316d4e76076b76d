//! The calls that change the counts of subjects outside a decision.

use super::layout::Layout;
use super::policy::PolicyEncoding;
use super::request::{RequestEncoder, packed_arguments};
use super::{arguments, keys};
use crate::model::{Period, StoreError};
use crate::store::Reset;
use crate::store::redis::connection::Command;
use crate::store::redis::layer::{AmendOperation, Amendment, HeldReservation};
use crate::store::redis::scripts::{self, Script};

/// The number of subjects in one call. A call blocks the server while it runs.
const MAX_SUBJECTS: usize = 128;

/// The keys and arguments of one subject.
struct EncodedSubject {
    keys: Vec<String>,
    arguments: Vec<Vec<u8>>,
}

impl RequestEncoder {
    /// Creates the command that makes these changes, each of another subject. Creates several
    /// commands for many subjects, and on a cluster one for each slot.
    ///
    /// # Errors
    ///
    /// Returns an error if the layout does not support a limit.
    pub(crate) fn amend(&self, amendments: &[Amendment]) -> Result<Vec<Command>, StoreError> {
        if let [amendment] = amendments {
            if let AmendOperation::ChangeReservation(held) = &amendment.operation {
                return Ok(vec![self.change_reservation(amendment, held)?]);
            }
            if let Some(command) = self.fast_refund(amendment) {
                return Ok(vec![command]);
            }
        }
        let encoded = amendments.iter().map(|amendment| self.encode_amendment(amendment));
        let slots = self.by_slot(encoded.collect::<Result<_, _>>()?);
        let settle = scripts::settle(self.layout);
        Ok(slots.into_iter().map(|subjects| call(settle, subjects)).collect())
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
            match (self.layout, limit) {
                (Layout::Packed, None) => {
                    let arguments = vec![encoding.shape, encoding.format];
                    whole.push(EncodedSubject { keys: keys?, arguments });
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
                    whole.push(EncodedSubject { keys, arguments: Vec::new() });
                }
                (Layout::Readable, Some(limit)) => {
                    let keys = encoding.order.iter().zip(keys?);
                    let keys = keys.filter(|(place, _)| **place == limit).map(|(_, key)| key);
                    whole.push(EncodedSubject { keys: keys.collect(), arguments: Vec::new() });
                }
            }
        }
        // One call cannot make several resets of one subject, because it reads all states first.
        let settle = scripts::settle(self.layout);
        let of_limits = of_limits.into_iter().map(|subject| call(settle, vec![subject]));
        let mut commands: Vec<_> = of_limits.collect();
        commands.extend(self.by_slot(whole).into_iter().map(|subjects| match self.layout {
            Layout::Packed => call(scripts::reset(), subjects),
            Layout::Readable => {
                let keys = subjects.into_iter().flat_map(|subject| subject.keys).collect();
                Command::Delete { keys }
            }
        }));
        Ok(commands)
    }

    /// Groups subjects by the slot of their keys. One server holds all keys in one group. A slot
    /// with more than [`MAX_SUBJECTS`] has several groups.
    fn by_slot(&self, subjects: Vec<EncodedSubject>) -> Vec<Vec<EncodedSubject>> {
        let mut slots: Vec<(u16, Vec<EncodedSubject>)> = Vec::new();
        for subject in subjects {
            let key = subject.keys.first().filter(|_| self.placement.is_cluster());
            let slot = key.map_or(0, |key| slot_of(key));
            let has_room =
                |(known, group): &&mut (_, Vec<_>)| *known == slot && group.len() < MAX_SUBJECTS;
            match slots.iter_mut().rev().find(has_room) {
                Some((_, subjects)) => subjects.push(subject),
                None => slots.push((slot, vec![subject])),
            }
        }
        slots.into_iter().map(|(_, subjects)| subjects).collect()
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

/// Creates the call of a script for several subjects: `settle.lua` or `reset.lua`.
fn call(script: &'static Script, subjects: Vec<EncodedSubject>) -> Command {
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

fn slot_of(key: &str) -> u16 {
    #[cfg(feature = "redis-cluster")]
    {
        crate::store::redis::hash_slot::slot_of(key)
    }
    #[cfg(not(feature = "redis-cluster"))]
    {
        let _ = key;
        0
    }
}
