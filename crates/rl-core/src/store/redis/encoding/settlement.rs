//! The script calls that settle the charges of several subjects.

use super::arguments;
use super::layout::Layout;
use super::policy::PolicyEncoding;
use super::request::RequestEncoder;
use crate::model::StoreError;
use crate::store::Settlement;
use crate::store::redis::connection::Command;
use crate::store::redis::scripts;

/// The keys and arguments of one subject.
struct EncodedSettlement {
    keys: Vec<String>,
    arguments: Vec<Vec<u8>>,
}

impl RequestEncoder {
    /// Creates the command that settles these charges. On a cluster, creates a command for each
    /// slot.
    pub(crate) fn settle(
        &self,
        settlements: &[Settlement<'_>],
    ) -> Result<Vec<Command>, StoreError> {
        let encoded = settlements.iter().map(|settlement| self.encode_settlement(settlement));
        let encoded = encoded.collect::<Result<Vec<_>, _>>()?;
        let mut calls: Vec<(u16, Vec<EncodedSettlement>)> = Vec::new();
        for settlement in encoded {
            let slot = if self.placement.is_cluster() { slot_of(&settlement.keys[0]) } else { 0 };
            match calls.iter_mut().find(|(known, _)| *known == slot) {
                Some((_, settlements)) => settlements.push(settlement),
                None => calls.push((slot, vec![settlement])),
            }
        }
        Ok(calls.into_iter().map(|(_, settlements)| self.settle_in_one_slot(settlements)).collect())
    }

    fn encode_settlement(
        &self,
        settlement: &Settlement<'_>,
    ) -> Result<EncodedSettlement, StoreError> {
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
        Ok(EncodedSettlement { keys, arguments })
    }

    fn settle_in_one_slot(&self, settlements: Vec<EncodedSettlement>) -> Command {
        let count = |settlement: &EncodedSettlement| {
            u8::try_from(settlement.keys.len()).expect("a subject has at most 17 keys")
        };
        let mut arguments = vec![settlements.iter().map(count).collect()];
        let mut keys = Vec::with_capacity(settlements.len());
        for settlement in settlements {
            keys.extend(settlement.keys);
            arguments.extend(settlement.arguments);
        }
        Command::Script { script: scripts::settle(self.layout), keys, arguments }
    }
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
