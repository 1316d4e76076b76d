use std::time::Duration;

use super::{Namespace, Refund, RefundOf};
use crate::model::Subject;
use crate::policy::{LimitSet, Policy};
use crate::time::Timestamp;

/// Identifies charged units. They are refunded if the process that made the request dies before it
/// settles them.
///
/// A decision with [`Reservations::Reserve`](super::Reservations::Reserve) creates a reservation.
/// The time of its charge identifies it among the reservations of the subject.
#[derive(Clone, Copy, Debug)]
pub struct Reservation<'a> {
    /// The namespace of the counters that were charged.
    pub namespace: &'a Namespace,
    /// The subject that was charged.
    pub subject: &'a Subject,
    /// The limits that were charged.
    pub policy: &'a Policy,
    /// The time of the charge: [`Decision::at`](crate::Decision::at).
    pub charged: Timestamp,
    /// The units that were charged.
    pub units: u64,
    /// The limits that were not charged: [`Decision::uncharged`](crate::Decision::uncharged).
    pub uncharged: LimitSet,
    /// The time at which the reservation expires, on the store's clock. At first, this is the time
    /// of the charge plus the lifetime. A renewal returns a new time.
    pub expires: Timestamp,
}

impl<'a> Reservation<'a> {
    /// Returns the refund of `units` of the reservation. It applies to all limits except
    /// concurrency limits and the limits in `kept`.
    #[must_use]
    pub const fn refund(&self, units: u64, kept: LimitSet) -> Refund<'a> {
        let Self { namespace, subject, policy, charged, .. } = *self;
        Refund { namespace, subject, policy, charged, units, of: RefundOf::Rates, uncharged: kept }
    }
}

/// A change of a reservation.
#[derive(Clone, Copy, Debug)]
pub enum ReservationChange {
    /// Extends the reservation, so that it expires this long from now.
    Renew(Duration),
    /// Ends the reservation, and refunds units, except to the limits in `kept`.
    Settle {
        /// The units to refund.
        returned: u64,
        /// The limits to which nothing is refunded: those that were not charged, and, if only a
        /// part of the charge is refunded, those that count requests.
        kept: LimitSet,
    },
}

/// The state of a reservation after a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReservationStatus {
    /// The reservation was renewed or settled.
    Held {
        /// The time at which the reservation expires after a renewal. After a settlement it has no
        /// meaning.
        expires: Timestamp,
    },
    /// The reservation has expired, and its units have been refunded.
    Expired,
    /// The store does not know the reservation, although it cannot have expired. The subject was
    /// reset, or the store has lost its counts.
    Forgotten,
}
