//! The leased units of one subject, and the rules for spending them. No I/O.

use std::sync::Arc;

use tokio::sync::Mutex as AsyncMutex;

use crate::decision::{Decision, Origin};
use crate::model::Cost;
use crate::policy::Policy;
use crate::store::redis::encoding::reply::ScriptReply;
use crate::store::redis::subject_key::KeyedSubject;
use crate::time::Timestamp;

/// The entry of one subject in the table of leases.
pub(super) struct LeaseSlot {
    pub(super) subject: KeyedSubject,
    pub(super) lease: Option<ActiveLease>,
    /// The lock of the task that refills or empties the slot. Spending does not take this lock, so
    /// no request waits while enough units are left.
    pub(super) refill: Arc<AsyncMutex<RefillState>>,
    /// The number of tasks that hold the refill lock or wait for it.
    pub(super) guards: usize,
}

/// The state that the refill lock protects.
#[derive(Default)]
pub(super) struct RefillState {
    /// The number of units in the last refill.
    pub(super) last_units: u64,
}

/// Units that were charged ahead, and the conditions under which they may be spent.
pub(super) struct ActiveLease {
    pub(super) policy: Policy,
    /// The states of the limits after the charge.
    pub(super) reply: ScriptReply,
    pub(super) charged: Timestamp,
    /// The number of the lease, which no other lease of the store has. Later charges of the same
    /// windows keep it.
    pub(super) number: u64,
    pub(super) received_at: u64,
    /// The time at which the lease expires.
    pub(super) expires: u64,
    /// The time at which a unit was last spent.
    pub(super) last_spent: u64,
    pub(super) unspent: u64,
    /// The units that remained on the server after the charge.
    pub(super) server_remaining: u64,
}

/// The result of [`LeaseSlot::add`].
pub(super) struct Added {
    /// The decision. `None` if the slot has too few units, but has enough together with those that
    /// remain on the server.
    pub(super) decision: Option<Decision>,
    /// The replaced lease, if there was one that had expired or belonged to another policy.
    pub(super) expired: Option<ActiveLease>,
}

/// Units to return to the server.
pub(super) struct ReturnedUnits {
    pub(super) policy: Policy,
    pub(super) charged: Timestamp,
    pub(super) units: u64,
}

impl LeaseSlot {
    pub(super) fn new(subject: KeyedSubject) -> Self {
        Self { subject, lease: None, refill: Arc::default(), guards: 0 }
    }

    /// Spends `cost` if enough units are left and the lease has not expired.
    pub(super) fn spend(&mut self, policy: &Policy, cost: Cost, now: u64) -> Option<Decision> {
        let lease = self.open(policy, now).filter(|lease| lease.unspent >= cost.units())?;
        lease.unspent -= cost.units();
        lease.last_spent = now;
        Some(lease.decision(cost, cost.units(), now))
    }

    /// Returns the lease if it belongs to this policy and has not expired.
    pub(super) fn open(&mut self, policy: &Policy, now: u64) -> Option<&mut ActiveLease> {
        let is_open = |lease: &&mut ActiveLease| lease.policy == *policy && now < lease.expires;
        self.lease.as_mut().filter(is_open)
    }

    /// Adds the units of `new` to the unspent ones, and decides on `cost`.
    pub(super) fn add(&mut self, mut new: ActiveLease, cost: Cost) -> Added {
        let mut expired = None;
        // If the older lease has not expired, both leases belong to the same windows, so the new
        // units are added to its unspent ones.
        match self.open(&new.policy, new.received_at) {
            Some(old) => {
                new.number = old.number;
                if old.unspent > 0 {
                    new.expires = new.expires.min(old.expires);
                    new.unspent += old.unspent;
                }
            }
            None => expired = self.lease.take(),
        }
        let lease = self.lease.insert(new);
        // The units are spent here, while the table is locked, so that no other task spends them
        // first.
        let granted = if lease.unspent >= cost.units() { cost.units() } else { 0 };
        lease.unspent -= granted;
        // Without enough units in the slot, only a denial is a decision: the server has too few
        // units to make up the difference.
        let remaining = lease.unspent.saturating_add(lease.server_remaining);
        let is_decided = granted == cost.units() || remaining < cost.units();
        let decision = is_decided
            .then(|| lease.decision(cost, granted, lease.received_at).with_origin(Origin::Store));
        Added { decision, expired }
    }

    /// Gives units back to the lease with this number, so that it has at most `max` unspent units.
    /// Returns the units that it does not take: all of them if the slot no longer has that lease.
    pub(super) fn put_back(&mut self, number: u64, units: u64, max: u64) -> u64 {
        let lease = self.lease.as_mut().filter(|lease| lease.number == number);
        lease.map_or(units, |lease| {
            let taken = units.min(max.saturating_sub(lease.unspent));
            lease.unspent += taken;
            units - taken
        })
    }

    /// Returns whether a refill cannot help: `cost` exceeds the unspent units, and the server has
    /// none left.
    pub(super) fn is_hopeless(&mut self, policy: &Policy, cost: Cost, now: u64) -> bool {
        self.open(policy, now)
            .is_some_and(|lease| lease.server_remaining == 0 && cost.units() > lease.unspent)
    }

    /// Removes up to `units` unspent units from the lease, to return them to the server.
    pub(super) fn take_back(&mut self, units: u64) -> Option<ReturnedUnits> {
        let lease = self.lease.as_mut()?;
        let units = units.min(lease.unspent);
        lease.unspent -= units;
        lease.server_remaining = lease.server_remaining.saturating_add(units);
        Some(ReturnedUnits { policy: lease.policy.clone(), charged: lease.charged, units })
    }

    /// Returns whether no task uses the slot, and its lease has expired or has been idle for `idle`
    /// µs.
    pub(super) fn is_unused(&self, now: u64, idle: u64) -> bool {
        let is_over = |lease: &ActiveLease| lease.is_over(now, idle);
        self.guards == 0 && self.lease.as_ref().is_none_or(is_over)
    }

    pub(super) fn unspent(&self) -> u64 {
        self.lease.as_ref().map_or(0, |lease| lease.unspent)
    }
}

impl ActiveLease {
    /// Returns the decision on a call that was granted `granted` units. Unspent units do not count
    /// as used.
    fn decision(&self, cost: Cost, granted: u64, now: u64) -> Decision {
        let later_by = now.saturating_sub(self.received_at);
        self.reply.leased_decision(&self.policy, cost, granted, self.unspent, later_by)
    }

    /// Returns the time since a unit was last spent, in µs.
    pub(super) const fn idle_time(&self, now: u64) -> u64 {
        now.saturating_sub(self.last_spent)
    }

    /// Returns whether the lease has expired or has been idle for `idle` µs.
    pub(super) const fn is_over(&self, now: u64, idle: u64) -> bool {
        now >= self.expires || self.idle_time(now) >= idle
    }
}

impl From<ActiveLease> for ReturnedUnits {
    fn from(ActiveLease { policy, charged, unspent: units, .. }: ActiveLease) -> Self {
        Self { policy, charged, units }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Limit, Subject};
    use crate::store::Namespace;
    use crate::store::redis::encoding::reply::{FinalState, ReplyBody};
    use crate::store::redis::test_layer::keyed;

    /// The lease of a subject after the server has counted `used` units, of which `unspent` are in
    /// the lease.
    fn lease(policy: &Policy, used: u64, unspent: u64) -> ActiveLease {
        let (now, max) = (1_700_000_000_000_000, policy.limits()[0].limit().max());
        let last = FinalState::of_windows(policy, now, &[[now, used]]);
        let allowed = u16::try_from(unspent).unwrap();
        let body = ReplyBody::Counted { allowed, last };
        ActiveLease {
            policy: policy.clone(),
            reply: ScriptReply { healed: 0, body, server_time: None },
            charged: Timestamp::from_micros(now),
            number: now,
            received_at: 0,
            expires: 1_000_000,
            last_spent: 0,
            unspent,
            server_remaining: max - used,
        }
    }

    /// A denied request of several parts may put units back while another request leases some.
    #[test]
    fn units_that_are_put_back_during_a_lease_allow_no_request_without_a_charge() {
        let policy = Policy::new([Limit::per_second(25)]).unwrap();
        let subject = keyed(&Namespace::default(), &Subject::user("alice"));
        let mut slot = LeaseSlot::new(subject);
        slot.lease = Some(lease(&policy, 24, 1));
        let number = slot.lease.as_ref().unwrap().number;
        assert_eq!(slot.put_back(number, 1, 100), 0);

        // The server leased nothing for a request of 3, because it had one unit and 2 were missing.
        let added = slot.add(lease(&policy, 24, 0), Cost::new(3));
        assert!(added.decision.is_none(), "{:?}", added.decision);
        let decision = slot.add(lease(&policy, 24, 0), Cost::new(4)).decision.unwrap();
        assert!(!decision.is_allowed(), "{decision:?}");
        let decision = slot.add(lease(&policy, 25, 1), Cost::new(3)).decision.unwrap();
        assert!(decision.is_allowed(), "{decision:?}");
        assert_eq!((decision.charged(), slot.unspent()), (3, 0));
    }

    /// Fault: a clock that stepped back gave the leases of two policies the same time, so the units
    /// of one were spent under the other.
    #[test]
    fn units_are_put_back_only_to_their_own_lease_and_only_up_to_the_bound() {
        let policy = Policy::new([Limit::per_second(25)]).unwrap();
        let mut slot = LeaseSlot::new(keyed(&Namespace::default(), &Subject::user("alice")));
        let later = ActiveLease { number: 8, ..lease(&policy, 10, 2) };
        slot.lease = Some(later);
        assert_eq!((slot.put_back(7, 3, 4), slot.unspent()), (3, 2), "of an earlier lease");
        assert_eq!((slot.put_back(8, 3, 4), slot.unspent()), (1, 4), "more than the bound");
        slot.lease = None;
        assert_eq!(slot.put_back(8, 3, 4), 3, "the lease has ended");
    }
}
