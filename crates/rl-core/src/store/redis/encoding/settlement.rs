//! The calls that settle the charges of several subjects, or reset several subjects.

use super::arguments;
use super::layout::Layout;
use super::policy::PolicyEncoding;
use super::request::RequestEncoder;
use crate::model::StoreError;
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

    /// Creates the command that resets all limits of these subjects. Creates several commands for
    /// many subjects, and on a cluster one for each slot.
    pub(crate) fn reset_together(&self, resets: &[Reset<'_>]) -> Result<Vec<Command>, StoreError> {
        let encoded = resets.iter().map(|reset| {
            Ok(match self.reset(reset)? {
                Command::Script { keys, arguments, .. } => EncodedSubject { keys, arguments },
                Command::Delete { keys } => EncodedSubject { keys, arguments: Vec::new() },
            })
        });
        let slots = self.by_slot(encoded.collect::<Result<_, StoreError>>()?).into_iter();
        Ok(match self.layout {
            Layout::Packed => slots.map(|subjects| call(scripts::reset(), subjects)).collect(),
            Layout::Readable => {
                let keys = |subjects: Vec<EncodedSubject>| {
                    subjects.into_iter().flat_map(|subject| subject.keys).collect()
                };
                slots.map(|subjects| Command::Delete { keys: keys(subjects) }).collect()
            }
        })
    }

    /// Groups subjects by the slot of their keys. One server holds all keys in one group. A slot
    /// with more than [`MAX_SUBJECTS`] has several groups.
    fn by_slot(&self, subjects: Vec<EncodedSubject>) -> Vec<Vec<EncodedSubject>> {
        let mut slots: Vec<(u16, Vec<EncodedSubject>)> = Vec::new();
        for subject in subjects {
            let slot = if self.placement.is_cluster() { slot_of(&subject.keys[0]) } else { 0 };
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
        let mut keys = Vec::with_capacity(1);
        self.push_keys(&mut keys, namespace, subject, policy, &encoding)?;
        let arguments = match self.layout {
            Layout::Packed => {
                let plan = arguments::settle_plan(settlement, &encoding);
                vec![encoding.shape, plan, encoding.format]
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
