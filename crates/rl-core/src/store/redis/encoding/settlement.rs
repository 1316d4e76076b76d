//! The calls that settle the charges of subjects, or reset subjects.

use super::arguments;
use super::layout::Layout;
use super::policy::PolicyEncoding;
use super::request::{RequestEncoder, packed_arguments};
use crate::model::{Period, StoreError};
use crate::store::redis::connection::Command;
use crate::store::redis::scripts::{self, Script};
use crate::store::{Reset, Settlement};

/// The number of subjects in one call. A call blocks the server while it runs.
const MAX_SUBJECTS: usize = 128;

/// The keys and arguments of one subject.
struct EncodedSubject {
    keys: Vec<String>,
    arguments: Vec<Vec<u8>>,
}

impl RequestEncoder {
    /// Creates the command that settles these charges. Creates several commands for many charges,
    /// and on a cluster one for each slot.
    pub(crate) fn settle(
        &self,
        settlements: &[Settlement<'_>],
    ) -> Result<Vec<Command>, StoreError> {
        let encoded = settlements.iter().map(|settlement| self.encode_settlement(settlement));
        let slots = self.by_slot(encoded.collect::<Result<_, _>>()?);
        let settle = scripts::settle(self.layout);
        Ok(slots.into_iter().map(|subjects| call(settle, subjects)).collect())
    }

    /// Creates the commands that make these resets. Subjects of one slot share a command, except
    /// that a reset of one limit has a command of its own in the packed layout.
    pub(crate) fn reset(&self, resets: &[Reset<'_>]) -> Result<Vec<Command>, StoreError> {
        let (mut commands, mut whole) = (Vec::new(), Vec::with_capacity(resets.len()));
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
                    let (script, keys) = (scripts::amend(self.layout), keys?);
                    let arguments = packed_arguments(&encoding, plan);
                    commands.push(Command::Script { script, keys, arguments });
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

    fn encode_settlement(&self, settlement: &Settlement<'_>) -> Result<EncodedSubject, StoreError> {
        let Settlement { namespace, subject, policy, .. } = *settlement;
        let encoding = PolicyEncoding::new(policy);
        let keys = self.keys(namespace, subject, policy, &encoding)?;
        let arguments = match self.layout {
            Layout::Packed => {
                packed_arguments(&encoding, arguments::settle_plan(settlement, &encoding))
            }
            Layout::Readable => {
                let periods = arguments::readable_periods(policy, &encoding);
                vec![periods, arguments::readable_settle_plan(settlement, &encoding)]
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
