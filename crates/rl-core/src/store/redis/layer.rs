//! The trait of all layers of the store, and the types that they pass to each other.
//!
//! ```text
//! RedisStore
//!     │ PartRequest, Amendment
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
//! Each layer decides the requests that it can decide, and forwards all others to the layer below.
//! A layer that is switched off forwards everything.

use super::encoding::reply::ScriptReply;
use super::subject_key::{KeyedSubject, KeyedSubjectRef, SubjectKey};
use crate::decision::Decision;
use crate::model::{Cost, FailureKind, StoreError};
use crate::policy::{LimitSet, Policy};
use crate::store::part_groups::PartGroup;
use crate::store::{
    Mode, Refund, RefundOf, Renewal, Reservation, ReservationChange, Reservations, StoreFuture,
};
use crate::time::Timestamp;

/// One layer of the store. Clones are cheap, and share their state.
pub(crate) trait Layer: Clone + Send + Sync + 'static {
    /// Decides `request`.
    fn decide(&self, request: PartRequest<'_>) -> StoreFuture<Decision>;

    /// Charges units ahead of the requests that will spend them.
    fn lease(&self, request: LeaseRequest<'_>) -> StoreFuture<ScriptReply>;

    /// Changes counts outside a decision. Resolves to the reply of the script.
    fn amend(&self, amendment: Amendment<'_>) -> StoreFuture<Vec<u8>>;
}

/// One part of a [`DecideRequest`](crate::store::DecideRequest), with the key of its subject.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PartRequest<'a> {
    pub(crate) subject: KeyedSubjectRef<'a>,
    pub(crate) policy: &'a Policy,
    pub(crate) mode: Mode,
    pub(crate) cost: Cost,
    pub(crate) reservations: Reservations,
    /// The time at which the request reached the store, on the
    /// [`MonotonicClock`](super::shortcuts::MonotonicClock).
    pub(crate) now: u64,
}

impl<'a> PartRequest<'a> {
    /// Creates the request of a group that makes no reservation.
    pub(crate) const fn of_group(group: &PartGroup<'a, SubjectKey>, mode: Mode, now: u64) -> Self {
        let PartGroup { key, namespace, subject, policy, cost, .. } = *group;
        let subject = KeyedSubjectRef { namespace, subject, key };
        Self { subject, policy, mode, cost, reservations: Reservations::Ignore, now }
    }

    /// Returns whether shortcuts may decide the request.
    ///
    /// A concurrency limit allows requests again as soon as a permit is released, so nothing about
    /// it may be cached.
    pub(crate) fn is_plain_check(&self) -> bool {
        self.charges_cost() && !self.policy.has_permits()
    }

    /// Returns whether the request is a check that charges its whole cost or nothing. A check with
    /// a cost of 0 never changes a count.
    pub(crate) fn charges_cost(&self) -> bool {
        self.mode == Mode::Check && self.cost > Cost::ZERO
    }

    /// Returns the same request with another time.
    pub(crate) const fn at(self, now: u64) -> Self {
        Self { now, ..self }
    }

    pub(crate) fn to_owned(self) -> OwnedPartRequest {
        let Self { subject, policy, mode, cost, reservations, now } = self;
        let (subject, policy) = (subject.to_owned(), policy.clone());
        OwnedPartRequest { subject, policy, mode, cost, reservations, now }
    }
}

/// An owned [`PartRequest`], for tasks and futures.
#[derive(Clone, Debug)]
pub(crate) struct OwnedPartRequest {
    pub(crate) subject: KeyedSubject,
    pub(crate) policy: Policy,
    mode: Mode,
    pub(crate) cost: Cost,
    reservations: Reservations,
    now: u64,
}

impl OwnedPartRequest {
    pub(crate) const fn as_ref(&self) -> PartRequest<'_> {
        let Self { subject, policy, mode, cost, reservations, now } = self;
        PartRequest {
            subject: subject.as_ref(),
            policy,
            mode: *mode,
            cost: *cost,
            reservations: *reservations,
            now: *now,
        }
    }
}

/// A request to charge units to one subject ahead.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LeaseRequest<'a> {
    pub(crate) subject: KeyedSubjectRef<'a>,
    pub(crate) policy: &'a Policy,
    /// The maximum number of units to charge.
    pub(crate) units: u16,
    /// The minimum number of units that is useful. If fewer remain, none is charged.
    pub(crate) least: u16,
}

/// An owned [`Refund`], for tasks and queues.
#[derive(Clone, Debug)]
pub(crate) struct OwnedRefund {
    pub(crate) subject: KeyedSubject,
    pub(crate) policy: Policy,
    pub(crate) charged: Timestamp,
    pub(crate) units: u64,
    pub(crate) of: RefundOf,
    pub(crate) uncharged: LimitSet,
}

impl OwnedRefund {
    /// Copies a refund of this subject.
    pub(crate) fn new(subject: KeyedSubjectRef<'_>, refund: &Refund<'_>) -> Self {
        let Refund { policy, charged, units, of, uncharged, .. } = *refund;
        Self { subject: subject.to_owned(), policy: policy.clone(), charged, units, of, uncharged }
    }

    pub(crate) const fn as_ref(&self) -> Refund<'_> {
        let Self { subject, policy, charged, units, of, uncharged } = self;
        let KeyedSubject { namespace, subject, .. } = subject;
        let (charged, units, of, uncharged) = (*charged, *units, *of, *uncharged);
        Refund { namespace, subject, policy, charged, units, of, uncharged }
    }

    pub(crate) const fn amendment(&self) -> Amendment<'_> {
        let operation = AmendOperation::Refund(self.as_ref());
        Amendment { subject: self.subject.as_ref(), operation }
    }
}

/// A change of counts outside a decision.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Amendment<'a> {
    pub(crate) subject: KeyedSubjectRef<'a>,
    pub(crate) operation: AmendOperation<'a>,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum AmendOperation<'a> {
    Refund(Refund<'a>),
    Renew(Renewal<'a>),
    ChangeReservation(Reservation<'a>, ReservationChange),
}

impl Amendment<'_> {
    /// Returns whether requests that were denied may be allowed after the change.
    pub(crate) const fn may_lower_counts(&self) -> bool {
        !matches!(self.operation, AmendOperation::Renew(_))
    }
}

/// Returns the error for a request whose background task has ended without a result because the
/// store's runtime has shut down.
pub(crate) const fn runtime_has_ended() -> StoreError {
    StoreError::new(FailureKind::Unavailable)
}
