//! The task that renews what a permit holds: places under concurrency limits, and its reservation.

use std::sync::Weak;
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::task::AbortHandle;
use tokio::time::{Instant, MissedTickBehavior, interval_at, timeout};

use super::held::{Held, Reserved};
use crate::limiter::ask::timed_out;
use crate::model::{Cost, Limit};
use crate::model::{Mode, StoreError};
use crate::policy::Policy;
use crate::store::{RefundOf, Renewal, ReservationChange};
use crate::time::Timestamp;

/// The renewals in the time of one lease, so that one of them may fail.
const RENEWALS: u32 = 3;

/// Starts the task, which runs for as long as the permit is held. Returns `None` outside a tokio runtime.
pub(super) fn keep(held: Weak<Held>, lease: Duration) -> Option<AbortHandle> {
    let runtime = Handle::try_current().ok()?;
    let keeper = runtime.spawn(async move {
        let every = lease / RENEWALS;
        let mut in_time = interval_at(Instant::now() + every, every);
        in_time.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            in_time.tick().await;
            let Some(held) = held.upgrade() else { return };
            if !held.renew(every).await {
                return;
            }
        }
    });
    Some(keeper.abort_handle())
}

/// Returns the shortest lease of a policy's concurrency limits, if it has any.
pub(in crate::limiter) fn shortest_lease(policy: &Policy) -> Option<Duration> {
    let limits = policy.limits().iter().map(|limit| limit.limit());
    let leases = limits.filter(|limit| limit.holds_permits());
    leases.map(|limit| Duration::from_micros(limit.period().as_micros())).min()
}

impl Held {
    /// Renews the reservation and the places, each within `patience`. No request waits for a renewal, so it
    /// may take until the next is due. Returns whether there is anything left to renew.
    async fn renew(&self, patience: Duration) -> bool {
        let keeps_reservation = self.renew_reservation(patience).await;
        let keeps_places = match self.places() {
            Some(places) => self.renew_places(&places, patience).await,
            None => false,
        };
        keeps_reservation || keeps_places
    }

    async fn renew_reservation(&self, patience: Duration) -> bool {
        let (Reserved::Until(expires), Some(lifetime), false) = ({
            let account = self.account();
            (account.reserved, self.limiter.inner.reservation, account.is_settled)
        }) else {
            return false;
        };
        let Some(reservation) = self.reservation(expires) else { return false };
        let ticket = self.limiter.inner.breaker.look();
        let change = ReservationChange::Renew(lifetime);
        let store = self.limiter.store_of(&self.decision);
        let renewed = timeout(patience, store.change_reservation(reservation, change)).await;
        match renewed.unwrap_or_else(|_| Err(timed_out())) {
            Ok(status) => {
                let reserved = Reserved::from(status);
                self.account().reserved = reserved;
                matches!(reserved, Reserved::Until(_))
            }
            Err(error) => {
                self.limiter.settlement_failed(
                    &self.subject,
                    self.decision.origin(),
                    ticket,
                    &error,
                );
                true
            }
        }
    }

    /// Returns the concurrency limits under which places are held.
    fn places(&self) -> Option<Policy> {
        let uncharged = self.decision.uncharged();
        let is_held = |place, limit: Limit| limit.holds_permits() && !uncharged.contains(place);
        self.decision.policy()?.only(is_held)
    }

    /// Renews the leases, or takes places again whose lease has lapsed. Returns whether to go on.
    async fn renew_places(&self, places: &Policy, patience: Duration) -> bool {
        let (charged, is_lapsed) = {
            let account = self.account();
            if account.is_settled {
                return false;
            }
            (account.leased, account.is_lapsed)
        };
        let ticket = self.limiter.inner.breaker.look();
        let renewed = match is_lapsed {
            true => Ok(None),
            false => timeout(patience, self.renew_leases(charged))
                .await
                .unwrap_or_else(|_| Err(timed_out())),
        };
        let renewed = match renewed {
            Ok(None) if self.account().is_lease_doubtful => self.take_anew(places).await.map(Some),
            Ok(None) => self.take_again(places, charged).await,
            renewed => renewed,
        };
        let leased = match renewed {
            Ok(Some(leased)) => leased,
            // Other requests hold the places: this one stays uncounted, and tries again.
            Ok(None) => return true,
            Err(error) => {
                self.account().is_lease_doubtful = true;
                self.limiter.settlement_failed(
                    &self.subject,
                    self.decision.origin(),
                    ticket,
                    &error,
                );
                return true;
            }
        };
        let is_settled = {
            let mut account = self.account();
            (account.leased, account.is_lease_doubtful, account.is_lapsed) = (leased, false, false);
            account.is_settled
        };
        // The permit was settled during the renewal, which took the freed place again.
        if is_settled && let Err(error) = self.free(leased, false).await {
            let ticket = self.limiter.inner.breaker.look();
            self.limiter.settlement_failed(&self.subject, self.decision.origin(), ticket, &error);
        }
        !is_settled
    }

    async fn renew_leases(&self, charged: Timestamp) -> Result<Option<Timestamp>, StoreError> {
        let Some(policy) = self.decision.policy() else { return Ok(Some(charged)) };
        let (namespace, subject) = (&self.limiter.inner.namespace, &self.subject);
        let (units, uncharged) = (self.decision.charged(), self.decision.uncharged());
        let renewal = Renewal { namespace, subject, policy, charged, units, uncharged };
        self.limiter.store_of(&self.decision).renew(renewal).await
    }

    /// Takes the places once more, after a renewal whose reply was lost. If that renewal did arrive, both
    /// count until the older lease ends: too many places are held for a time, never too few.
    async fn take_anew(&self, places: &Policy) -> Result<Timestamp, StoreError> {
        let store = self.limiter.store_of(&self.decision);
        let question = self.limiter.question(Mode::Charge, Cost::new(self.decision.charged()));
        self.limiter.ask(store, places, &self.subject, question).await.map(|taken| taken.at())
    }

    /// Takes places again whose lease has lapsed while the request is in flight, if there is room. A lease
    /// lapses if the machine was suspended, the runtime was blocked, or a fail-over lost writes. Reports
    /// when the lease has lapsed, and when the places are taken again.
    async fn take_again(
        &self,
        places: &Policy,
        charged: Timestamp,
    ) -> Result<Option<Timestamp>, StoreError> {
        let was_lapsed = std::mem::replace(&mut self.account().is_lapsed, true);
        // The leases of other limits may not have lapsed yet.
        if !was_lapsed && places.limits().len() > 1 {
            self.give_back(RefundOf::Permits, charged, self.decision.charged()).await?;
        }
        let store = self.limiter.store_of(&self.decision);
        let question = self.limiter.question(Mode::Check, Cost::new(self.decision.charged()));
        let taken = self.limiter.ask(store, places, &self.subject, question).await?;
        let is_retaken = taken.is_allowed();
        if is_retaken || !was_lapsed {
            self.limiter.lease_lapsed(&self.subject, is_retaken);
        }
        Ok(is_retaken.then(|| taken.at()))
    }
}
