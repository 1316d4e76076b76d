//! Settles the charges of several subjects in one step.

use smallvec::SmallVec;

use super::entry::TooManyStates;
use super::locked_shards::{LockOrder, LockedShards};
use super::step::Step;
use super::{MemoryStore, too_many_states};
use crate::model::{Cost, Mode, StoreError};
use crate::policy::Policy;
use crate::store::Settlement;
use crate::store::fingerprint::Fingerprint;
use crate::store::part_groups::PartGroup;
use crate::time::{Clock, Timestamp};

/// The settlement of one subject, and the limits to which it charges further units.
struct KeyedSettlement<'a> {
    key: Fingerprint,
    settlement: Settlement<'a>,
    charged: Option<Policy>,
}

impl<C: Clock> MemoryStore<C> {
    /// Settles the charges of all subjects while their shards are locked.
    ///
    /// # Errors
    ///
    /// Fails and changes nothing if a charge would exceed the number of states that one subject may
    /// have.
    pub(super) fn settle_all(&self, settlements: &[Settlement<'_>]) -> Result<(), StoreError> {
        let open = settlements.iter().filter(|settlement| !settlement.is_empty());
        let settlements: SmallVec<[KeyedSettlement<'_>; 2]> =
            open.map(|settlement| self.keyed(*settlement)).collect();
        let mut order = LockOrder::default();
        settlements.iter().for_each(|settlement| order.add(settlement.key));
        let mut shards = LockedShards::new(self, order);
        let now = self.clock.now();
        // A settlement fails before it changes anything.
        for settlement in &settlements {
            let tried = settlement.charge(&mut shards, now, |step| step.cancel());
            tried.map_err(|_| too_many_states())?;
        }
        for settlement in &settlements {
            settlement.carry_out(&mut shards, now).map_err(|_| too_many_states())?;
        }
        Ok(())
    }

    fn keyed<'a>(&self, settlement: Settlement<'a>) -> KeyedSettlement<'a> {
        let Settlement { namespace, subject, .. } = settlement;
        let key = self.fingerprinter.fingerprint(namespace, subject);
        KeyedSettlement { key, settlement, charged: settlement.charged_limits() }
    }
}

impl KeyedSettlement<'_> {
    fn carry_out(
        &self,
        shards: &mut LockedShards<'_>,
        now: Timestamp,
    ) -> Result<(), TooManyStates> {
        let Self { key, settlement, .. } = self;
        let shard = shards.of(*key);
        let (release, refund) = (settlement.release(), settlement.refund());
        if !release.is_empty() {
            // The time of the charge identifies the entry that holds the permit: that of the
            // subject, or the one that new subjects share in a full shard.
            shard.refund(shard.permit_holder(*key, &release, now), &release, now);
        }
        if !refund.is_empty() {
            shard.refund(*key, &refund, now);
        }
        self.charge(shards, now, |step| {
            step.conclude(0);
            step.finish();
        })
    }

    /// Judges the charge of further units, if there are any, and ends it by `end`.
    fn charge(
        &self,
        shards: &mut LockedShards<'_>,
        now: Timestamp,
        end: impl FnOnce(&mut Step<'_, '_, '_>),
    ) -> Result<(), TooManyStates> {
        let Self { key, settlement, charged } = self;
        let Some(policy) = charged else { return Ok(()) };
        let mut step = Step::new(shards, Mode::Charge, now);
        step.judge(&[PartGroup {
            key: *key,
            namespace: settlement.namespace,
            subject: settlement.subject,
            policy,
            cost: Cost::new(settlement.added),
            is_shadow: false,
        }])?;
        end(&mut step);
        Ok(())
    }
}
