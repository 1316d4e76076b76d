//! Settles the charges of several subjects in one step.

use smallvec::SmallVec;

use super::locked_shards::{LockOrder, LockedShards};
use super::run::{DecideArgs, TooManyStates};
use super::shard::Shard;
use super::{MemoryStore, too_many_states};
use crate::decision::Decision;
use crate::model::{Cost, Mode, StoreError};
use crate::policy::Policy;
use crate::store::fingerprint::Fingerprint;
use crate::store::{Refund, Settlement};
use crate::time::{Clock, Timestamp};

/// The settlement of one subject, and the limits to which it charges further units.
struct KeyedSettlement<'a> {
    key: Fingerprint,
    settlement: Settlement<'a>,
    charged: Option<Policy>,
}

impl<C: Clock> MemoryStore<C> {
    /// Releases the permits and refunds the units of one subject, under the lock of its shard
    /// alone.
    pub(super) fn give_back(&self, settlement: &Settlement<'_>) {
        let Settlement { namespace, subject, .. } = *settlement;
        let subject = self.fingerprinter.fingerprint(namespace, subject);
        let (release, refund) = (settlement.release(), settlement.refund());
        let mut shard = self.shard(subject);
        let now = self.clock.now();
        give_back(&mut shard, subject, [&release, &refund], now);
    }

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
        let mut shards = LockedShards::none();
        let mut order = LockOrder::default();
        settlements.iter().for_each(|settlement| order.add(settlement.key));
        shards.lock(self, order);
        let now = self.clock.now();
        for KeyedSettlement { key, charged, .. } in &settlements {
            if let Some(policy) = charged {
                let checked = shards.of(*key).check_states(*key, policy, now);
                checked.map_err(|_| too_many_states())?;
            }
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
        let Self { key, settlement, charged } = self;
        let shard = shards.of(*key);
        give_back(shard, *key, [&settlement.release(), &settlement.refund()], now);
        let Some(policy) = charged else { return Ok(()) };
        let cost = Cost::new(settlement.added);
        let args = DecideArgs { policy, mode: Mode::Charge, cost, now };
        shard.decide(*key, args, &mut Decision::pending(policy, cost))
    }
}

/// Releases permits and refunds units of one subject.
fn give_back(
    shard: &mut Shard,
    subject: Fingerprint,
    [release, refund]: [&Refund<'_>; 2],
    now: Timestamp,
) {
    if !release.is_empty() {
        // The time of the charge identifies the entry that holds the permit: that of the subject,
        // or the one that new subjects share in a full shard.
        shard.refund(shard.permit_holder(subject, release, now), release, now);
    }
    if !refund.is_empty() {
        shard.refund(subject, refund, now);
    }
}
