use std::time::Duration;

use super::{Namespace, Refund, RefundOf};
use crate::model::Subject;
use crate::policy::{LimitSet, Policy};
use crate::time::Timestamp;

/// Identifies units that a request has charged and that come back if its process dies.
///
/// A decision with [`Reservations::Reserve`](super::Reservations::Reserve) makes a reservation. The time of its charge identifies
/// it among those of the subject.
#[derive(Clone, Copy, Debug)]
pub struct Reservation<'a> {
    /// The counters that were charged: those of this namespace.
    pub namespace: &'a Namespace,
    /// The subject that was charged.
    pub subject: &'a Subject,
    /// The limits that were charged.
    pub policy: &'a Policy,
    /// When they were charged: [`Decision::at`](crate::Decision::at).
    pub charged: Timestamp,
    /// The units that were charged.
    pub units: u64,
    /// The limits that were not charged: [`Decision::uncharged`](crate::Decision::uncharged).
    pub uncharged: LimitSet,
    /// When it expires on the store's clock: its lifetime after the charge, or the time that the last
    /// renewal returned.
    pub expires: Timestamp,
}

impl<'a> Reservation<'a> {
    /// Returns the refund of `units` of the reservation, for all limits except those of concurrency and those
    /// that are `kept`.
    #[must_use]
    pub const fn refund(&self, units: u64, kept: LimitSet) -> Refund<'a> {
        let Self { namespace, subject, policy, charged, .. } = *self;
        Refund { namespace, subject, policy, charged, units, of: RefundOf::Rates, uncharged: kept }
    }
}

/// A change of a reservation.
#[derive(Clone, Copy, Debug)]
pub enum ReservationChange {
    /// Extends it to this time from now on.
    Renew(Duration),
    /// Ends it and gives units back, except to the limits that are kept.
    Settle {
        /// The units that come back.
        returned: u64,
        /// The limits that keep what they were charged.
        kept: LimitSet,
    },
}

/// The state of a reservation after a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReservationStatus {
    /// It was renewed, and expires then; or it was settled.
    Held {
        /// When it expires, if it was renewed.
        expires: Timestamp,
    },
    /// It has expired, and its units have come back.
    Expired,
    /// The store does not know it, although it cannot have expired: the subject was reset, or the store has
    /// lost its counts.
    Forgotten,
}
