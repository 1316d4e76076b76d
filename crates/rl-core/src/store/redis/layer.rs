//! The trait of all layers of the store, and the types that they pass to each other.
//!
//! ```text
//! RedisStore
//!     │ Request: one to eight parts, Amendment
//!     ▼
//! Leases           spends units that were charged ahead, and charges more ahead
//!     ▼
//! DenialCache      repeats denials that still hold
//!     ▼
//! Batcher          sends concurrent checks in one script call
//!     ▼
//! ScriptExecutor   encodes a call, runs the script, and decodes the reply
//! ```
//!
//! Each layer decides the requests, or the parts of them, that it can decide, and forwards the rest
//! to the layer below. A layer that is switched off forwards everything.

use std::sync::Arc;
use std::time::Duration;

use smallvec::{SmallVec, smallvec};

use super::encoding::reply::ScriptReply;
use super::subject_key::{KeyedSubject, SubjectKey};
use crate::decision::{Decision, Origin};
use crate::model::{Cost, FailureKind, StoreError};
use crate::policy::{LimitSet, Policy};
use crate::store::part_groups::GroupDecisions;
use crate::store::{
    Lease, Mode, Refund, Renewal, Reservation, Reservations, Settlement, StoreFuture,
};
use crate::time::Timestamp;

/// One layer of the store. Clones are cheap, and share their state.
pub(crate) trait Layer: Clone + Send + Sync + 'static {
    /// Decides `request` in one step. Resolves to a decision on each part.
    fn decide(&self, request: Arc<Request>) -> StoreFuture<GroupDecisions>;

    /// Charges units ahead of the requests that will spend them.
    fn lease(&self, request: LeaseRequest) -> StoreFuture<ScriptReply>;

    /// Changes the counts of different subjects outside a decision, in one step. Resolves to the
    /// reply of the script, which concerns the first of them.
    fn amend(&self, amendments: Amendments) -> StoreFuture<Vec<u8>>;
}

/// A request to decide. It owns its parts, because it may wait in queues and tasks.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    /// The parts, each with counters of its own.
    pub(crate) parts: SmallVec<[RequestPart; 1]>,
    pub(crate) mode: Mode,
    pub(crate) reservations: Reservations,
}

/// One part of a [`Request`].
#[derive(Clone, Debug)]
pub(crate) struct RequestPart {
    pub(crate) subject: KeyedSubject,
    pub(crate) policy: Policy,
    pub(crate) cost: Cost,
    pub(crate) is_shadow: bool,
}

/// A part that a shortcut may decide. It borrows, so that a decision without the server owns
/// nothing.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PlainCheck<'a> {
    pub(crate) key: SubjectKey,
    pub(crate) policy: &'a Policy,
    pub(crate) cost: Cost,
}

impl<'a> PlainCheck<'a> {
    /// Returns the data of a part of a request in `mode`, if shortcuts may decide the part.
    ///
    /// A concurrency limit allows requests again as soon as a permit is released, so nothing about
    /// it may be cached.
    pub(crate) fn new(mode: Mode, key: SubjectKey, policy: &'a Policy, cost: Cost) -> Option<Self> {
        let is_plain = mode == Mode::Check && cost > Cost::ZERO && !policy.has_permits();
        is_plain.then_some(Self { key, policy, cost })
    }
}

impl Request {
    /// Returns a request of some of the parts, in this mode.
    pub(crate) fn of_parts(
        &self,
        parts: impl IntoIterator<Item = RequestPart>,
        mode: Mode,
    ) -> Arc<Self> {
        let parts = parts.into_iter().collect();
        Arc::new(Self { parts, mode, reservations: self.reservations })
    }

    /// Returns the data by which a shortcut decides a part of the request, if shortcuts may.
    pub(crate) fn plain_check<'a>(&self, part: &'a RequestPart) -> Option<PlainCheck<'a>> {
        PlainCheck::new(self.mode, part.subject.key, &part.policy, part.cost)
    }

    /// Returns whether each part is charged its whole cost or nothing. A check with a cost of 0
    /// never changes a count.
    pub(crate) fn charges_cost(&self) -> bool {
        self.mode == Mode::Check && self.parts.iter().all(|part| part.cost > Cost::ZERO)
    }

    /// Returns whether the parts of both requests have the same policies, in the same order.
    pub(crate) fn has_policies_of(&self, other: &Self) -> bool {
        let mut pairs = self.parts.iter().zip(&other.parts);
        self.parts.len() == other.parts.len()
            && pairs.all(|(one, other)| one.policy == other.policy)
    }

    /// Returns the decisions on a request that the cached denials of these parts deny, of which the
    /// one with the longest wait counts. Returns `None` if there is no denial.
    pub(crate) fn denied_by(
        &self,
        cached: impl IntoIterator<Item = (usize, Decision)>,
    ) -> Option<GroupDecisions> {
        let (denied, denial) = cached.into_iter().max_by_key(|(_, denial)| denial.retry_after())?;
        let decision = |(index, part): (usize, &RequestPart)| match index == denied {
            true => denial.clone(),
            false => part.unknown_status(denial.at()).with_origin(Origin::LocalDeny),
        };
        Some(self.parts.iter().enumerate().map(decision).collect())
    }
}

impl RequestPart {
    /// Returns the part with another cost.
    #[cfg(feature = "redis-cluster")]
    pub(crate) fn with_cost(&self, cost: Cost) -> Self {
        Self { cost, ..self.clone() }
    }

    /// Returns the decision on a part of unknown status. The decision has no limits, and denies
    /// nothing.
    pub(crate) fn unknown_status(&self, at: Timestamp) -> Decision {
        let mut unknown = Decision::pending(&self.policy, self.cost);
        unknown.finish(0, at, true);
        unknown
    }
}

/// A request to charge units to one subject ahead.
#[derive(Clone, Debug)]
pub(crate) struct LeaseRequest {
    /// A check of one unit of the subject.
    pub(crate) request: Arc<Request>,
    /// The maximum number of units to charge.
    pub(crate) units: u16,
    /// The minimum number of units that is useful. If fewer remain, none is charged.
    pub(crate) least: u16,
}

impl LeaseRequest {
    pub(crate) fn new(subject: KeyedSubject, policy: Policy, units: u16, least: u16) -> Self {
        let parts = smallvec![RequestPart { subject, policy, cost: Cost::ONE, is_shadow: false }];
        let (mode, reservations) = (Mode::Check, Reservations::Ignore);
        Self { request: Arc::new(Request { parts, mode, reservations }), units, least }
    }
}

/// A change of the counts of one subject, outside a decision.
#[derive(Clone, Debug)]
pub(crate) struct Amendment {
    pub(crate) subject: KeyedSubject,
    pub(crate) policy: Policy,
    /// The time of the charge.
    pub(crate) charged: Timestamp,
    /// The time at which the current leases of the permits began.
    pub(crate) leased: Timestamp,
    /// The units to refund to each limit, and the further units to charge to it, in the order of
    /// the policy.
    pub(crate) units: SmallVec<[ChangedUnits; 6]>,
    pub(crate) operation: AmendOperation,
}

/// The changes of one operation, each of another subject.
pub(crate) type Amendments = SmallVec<[Amendment; 1]>;

/// The change of one limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ChangedUnits {
    pub(crate) refunded: u64,
    pub(crate) added: u64,
}

/// The operation of an [`Amendment`].
#[derive(Clone, Copy, Debug)]
pub(crate) enum AmendOperation {
    /// Refunds units, releases permits, and charges further units.
    Settle,
    /// Refunds permits, and charges them again.
    Renew,
    /// Renews a reservation, or ends it and refunds the units.
    ChangeReservation(HeldReservation),
}

/// The data of a reservation by which the server finds it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HeldReservation {
    /// The units that were charged.
    pub(crate) units: u64,
    /// The limits that were not charged.
    pub(crate) uncharged: LimitSet,
    pub(crate) expires: Timestamp,
    /// The time for which the reservation is renewed, or `None` if it ends.
    pub(crate) renewed_for: Option<Duration>,
}

impl Amendment {
    pub(crate) fn refund(subject: KeyedSubject, refund: &Refund<'_>) -> Self {
        let limits = 0..refund.policy.limits().len();
        let units = |place| ChangedUnits { refunded: refund.units_of(place), added: 0 };
        let (policy, charged) = (refund.policy.clone(), refund.charged);
        let (units, operation) = (limits.map(units).collect(), AmendOperation::Settle);
        Self { subject, policy, charged, leased: charged, units, operation }
    }

    pub(crate) fn settlement(subject: KeyedSubject, settlement: &Settlement<'_>) -> Self {
        let (release, refund) = (settlement.release(), settlement.refund());
        // A limit is either released or refunded.
        let units = (0..settlement.policy.limits().len()).map(|place| ChangedUnits {
            refunded: release.units_of(place).max(refund.units_of(place)),
            added: Cost::new(settlement.units_added_to(place)).units(),
        });
        // Only one of the times matters if only permits are released, or if none is.
        let (charged, leased) = match (release.is_empty(), refund.is_empty()) {
            (true, _) => (settlement.charged, settlement.charged),
            (false, true) => (settlement.leased, settlement.leased),
            (false, false) => (settlement.charged, settlement.leased),
        };
        let operation = match settlement.reservation {
            None => AmendOperation::Settle,
            Some(Reservation { units, expires }) => {
                let (uncharged, renewed_for) = (settlement.uncharged, None);
                let held = HeldReservation { units, uncharged, expires, renewed_for };
                AmendOperation::ChangeReservation(held)
            }
        };
        let (policy, units) = (settlement.policy.clone(), units.collect());
        Self { subject, policy, charged, leased, units, operation }
    }

    pub(crate) fn renewal(subject: KeyedSubject, renewal: &Renewal<'_>) -> Self {
        let Renewal { units, uncharged, .. } = *renewal;
        match renewal.lease {
            Lease::Permits => Self {
                operation: AmendOperation::Renew,
                ..Self::refund(subject, &renewal.as_refund())
            },
            Lease::Reservation { expires, lifetime } => {
                let renewed_for = Some(lifetime);
                let held = HeldReservation { units, uncharged, expires, renewed_for };
                let operation = AmendOperation::ChangeReservation(held);
                let nothing = Refund { units: 0, ..renewal.as_refund() };
                Self { operation, ..Self::refund(subject, &nothing) }
            }
        }
    }

    /// Returns whether the amendment only refunds units that were charged at one time. Such
    /// amendments have a fast path.
    pub(crate) fn is_refund(&self) -> bool {
        matches!(self.operation, AmendOperation::Settle)
            && self.charged == self.leased
            && self.units.iter().all(|units| units.added == 0)
    }

    /// Returns whether the amendment changes no limit.
    pub(crate) fn is_empty(&self) -> bool {
        self.units.iter().all(|units| *units == ChangedUnits::default())
    }

    /// Returns whether requests that were denied may be allowed after the change.
    pub(crate) const fn may_lower_counts(&self) -> bool {
        !matches!(self.operation, AmendOperation::Renew)
    }
}

/// Returns the error for a request whose background task has ended without a result because the
/// store's runtime has shut down.
pub(crate) const fn runtime_has_ended() -> StoreError {
    StoreError::new(FailureKind::Unavailable)
}
