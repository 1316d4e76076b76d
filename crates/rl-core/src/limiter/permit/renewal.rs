//! Renews what a permit holds: places under concurrency limits, and its reservation.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::timeout;

use super::inner::{PermitInner, ReservationState};
use crate::decision::Decision;
use crate::limiter::renewals::Renewable;
use crate::limiter::stores::{Pending, timed_out};
use crate::model::{Limit, Mode, StoreError};
use crate::policy::Policy;
use crate::store::{Lease, LeaseStatus, RefundOf};
use crate::time::Timestamp;

impl Renewable for PermitInner {
    fn renew(self: Arc<Self>, interval: Duration) -> Pending<()> {
        Box::pin(renew(self, interval))
    }
}

/// Renews what a permit holds, or ends its renewal if nothing is left.
async fn renew(permit: Arc<PermitInner>, interval: Duration) {
    if std::mem::replace(&mut permit.account().is_renewing, true) {
        return;
    }
    // No request waits for a renewal, so a renewal may take until the next one is due.
    let keeps_reservation = renew_reservation(&permit, interval).await;
    let keeps_places = match places(&permit) {
        Some(places) => renew_places(&permit, &places, interval).await,
        None => false,
    };
    let mut account = permit.account();
    account.is_renewing = false;
    if !keeps_reservation && !keeps_places {
        permit.end_renewal();
    }
}

/// Renews the reservation. Returns whether to continue.
async fn renew_reservation(permit: &PermitInner, deadline: Duration) -> bool {
    let (state, is_settled) = {
        let account = permit.account();
        (account.reservation, account.is_settled)
    };
    let (ReservationState::Until(expires), Some(lifetime), false) =
        (state, permit.reservation_lifetime(), is_settled)
    else {
        return false;
    };
    let PermitInner { pipeline, subject, decision, .. } = permit;
    let call = pipeline.breaker.observe();
    let lease = Lease::Reservation { expires, lifetime };
    let renewed = pipeline.stores.renew(decision, permit.counters(), decision.at(), lease);
    match timeout(deadline, renewed).await.unwrap_or_else(|_| Err(timed_out())) {
        Ok(status) => {
            let state = ReservationState::from(status);
            permit.account().reservation = state;
            matches!(state, ReservationState::Until(_))
        }
        Err(error) => {
            pipeline.settlements.failed(subject, decision.origin(), call, &error);
            true
        }
    }
}

/// Returns a policy that consists of the concurrency limits under which the permit holds units.
fn places(permit: &PermitInner) -> Option<Policy> {
    let uncharged = permit.decision.uncharged();
    let is_held = |place, limit: Limit| limit.holds_permits() && !uncharged.contains(place);
    permit.decision.policy()?.only(is_held)
}

/// Renews the leases, or charges the units again if a lease has lapsed. Returns false if the permit
/// has been settled, so that its renewal ends.
async fn renew_places(permit: &PermitInner, places: &Policy, deadline: Duration) -> bool {
    let account = *permit.account();
    if account.is_settled {
        return false;
    }
    let PermitInner { pipeline, subject, decision, .. } = permit;
    let (call, origin) = (pipeline.breaker.observe(), decision.origin());
    let renewed = if account.is_lapsed {
        Ok(None)
    } else {
        let (counters, lease) = (permit.counters(), Lease::Permits);
        let renewed = pipeline.stores.renew(decision, counters, account.leased, lease);
        let renewed = timeout(deadline, renewed).await.unwrap_or_else(|_| Err(timed_out()));
        renewed.map(LeaseStatus::held)
    };
    let renewed = match renewed {
        // The permit was settled during the call, and its units were released before the renewal.
        // So no lease has lapsed, and nothing is charged again.
        Ok(None) if permit.account().is_settled => return false,
        Ok(None) if permit.account().is_lease_doubtful => {
            take_twice(permit, places).await.map(Some)
        }
        Ok(None) => take_again(permit, places, account.leased).await,
        renewed => renewed,
    };
    let leased = match renewed {
        Ok(Some(leased)) => leased,
        // Other requests hold all units. This request continues without being counted, and tries
        // again later.
        Ok(None) => return true,
        Err(error) => {
            permit.account().is_lease_doubtful = true;
            pipeline.settlements.failed(subject, origin, call, &error);
            return true;
        }
    };
    let is_settled = {
        let mut account = permit.account();
        account.leased = leased;
        account.is_lease_doubtful = false;
        account.is_lapsed = false;
        account.is_settled
    };
    // If the permit was settled during the renewal, the renewal has charged the released units
    // again. Release them once more.
    if is_settled && let Err(error) = permit.free(leased, false).await {
        pipeline.settlements.failed(subject, origin, pipeline.breaker.observe(), &error);
    }
    !is_settled
}

/// Charges the units a second time, after a renewal whose reply was lost. If that renewal was
/// carried out, both leases count until the older one ends. For a time too many units are charged,
/// but never too few.
async fn take_twice(permit: &PermitInner, places: &Policy) -> Result<Timestamp, StoreError> {
    take(permit, places, Mode::Charge).await.map(|taken| taken.at())
}

/// Charges the units of a request in flight again after its lease has lapsed, if they are
/// available. A lease lapses if the machine was suspended, the runtime was blocked, or a fail-over
/// lost writes. Reports the lapse, and also a later call that charges the units.
///
/// Resolves to the time of the charge, or to `None` if other requests hold the units.
async fn take_again(
    permit: &PermitInner,
    places: &Policy,
    leased: Timestamp,
) -> Result<Option<Timestamp>, StoreError> {
    let PermitInner { pipeline, decision, .. } = permit;
    let was_lapsed = std::mem::replace(&mut permit.account().is_lapsed, true);
    // Perhaps only the lease under one limit has lapsed. Without this refund, the units under the
    // other limits would be charged twice below.
    if !was_lapsed && places.limits().len() > 1 {
        let units = decision.charged();
        let counters = permit.counters();
        pipeline.stores.refund(decision, counters, RefundOf::Permits, leased, units).await?;
    }
    let taken = take(permit, places, Mode::Check).await?;
    let is_retaken = taken.is_allowed();
    if is_retaken || !was_lapsed {
        pipeline.events.lease_lapsed(permit.counters(), is_retaken);
    }
    Ok(is_retaken.then(|| taken.at()))
}

/// Charges the units of the permit under `places`, in the store that has counted the request.
async fn take(permit: &PermitInner, places: &Policy, mode: Mode) -> Result<Decision, StoreError> {
    let PermitInner { pipeline, decision, .. } = permit;
    let (counters, units) = (permit.counters(), decision.charged());
    pipeline.stores.charge(decision, places, counters, mode, units).await
}
