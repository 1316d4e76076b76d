use super::{Namespace, Refund, RefundOf};
use crate::model::{Limit, Subject};
use crate::policy::{LimitSet, Policy};
use crate::time::Timestamp;

/// The settlement of one subject's charge, after the request has ended.
///
/// It releases permits under concurrency limits. Under all other limits, it refunds units or
/// charges further ones. [`Store::settle`](super::Store::settle) settles all subjects of a
/// request in one step. A [`Refund`] converts into a settlement that only gives units back.
#[derive(Clone, Copy, Debug)]
pub struct Settlement<'a> {
    /// The namespace of the counters.
    pub namespace: &'a Namespace,
    /// The subject that was charged.
    pub subject: &'a Subject,
    /// The limits that were charged.
    pub policy: &'a Policy,
    /// The time of the charge: [`Decision::at`](crate::Decision::at).
    pub charged: Timestamp,
    /// The time at which the current leases of the permits began: the time of the charge, or of the
    /// last renewal.
    pub leased: Timestamp,
    /// The units to release under concurrency limits.
    pub released: u64,
    /// The units to refund to all other limits, at most those that were charged.
    pub refunded: u64,
    /// The units to charge to limits that count units, even beyond these limits. Concurrency limits
    /// are not charged.
    pub added: u64,
    /// The limits that were not charged. The settlement does not change them.
    pub uncharged: LimitSet,
    /// The limits to which nothing is refunded: those in `uncharged`, and limits that count
    /// requests if only a part of the cost is refunded.
    pub kept: LimitSet,
    /// The reservation that the settlement ends. Such a settlement only refunds units, and is the
    /// only one of its call.
    pub reservation: Option<Reservation>,
}

/// Charged units that are refunded if the process that made the request dies before it settles
/// them.
///
/// A decision with [`Reservations::Reserve`](super::Reservations::Reserve) creates a reservation.
/// The time of its charge identifies it among the reservations of the subject.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reservation {
    /// The units that were charged.
    pub units: u64,
    /// The time at which the reservation expires, on the store's clock. At first, this is the time
    /// of the charge plus the lifetime. A renewal returns a new time.
    pub expires: Timestamp,
}

/// The state of charged units when they were renewed or settled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeaseStatus<T = ()> {
    /// The units were charged until now.
    Held(T),
    /// The lease or the reservation has ended, and its units have been given back.
    Expired,
    /// The store does not know the reservation, although it cannot have expired. The subject was
    /// reset, or the store has lost its counts.
    Forgotten,
}

impl<T> LeaseStatus<T> {
    /// Returns the value of units that were charged until now.
    #[must_use]
    pub fn held(self) -> Option<T> {
        match self {
            Self::Held(value) => Some(value),
            Self::Expired | Self::Forgotten => None,
        }
    }
}

impl<'a> From<Refund<'a>> for Settlement<'a> {
    fn from(refund: Refund<'a>) -> Self {
        let Refund { namespace, subject, policy, charged, units, of, uncharged } = refund;
        Self {
            namespace,
            subject,
            policy,
            charged,
            leased: charged,
            released: if of == RefundOf::Rates { 0 } else { units },
            refunded: if of == RefundOf::Permits { 0 } else { units },
            added: 0,
            uncharged,
            kept: uncharged,
            reservation: None,
        }
    }
}

impl<'a> Settlement<'a> {
    /// Returns the refund that releases the permits.
    #[must_use]
    pub const fn release(&self) -> Refund<'a> {
        let Self { namespace, subject, policy, leased: charged, released: units, .. } = *self;
        let (of, uncharged) = (RefundOf::Permits, self.uncharged);
        Refund { namespace, subject, policy, charged, units, of, uncharged }
    }

    /// Returns the refund to the limits that are not concurrency limits.
    #[must_use]
    pub const fn refund(&self) -> Refund<'a> {
        let Self { namespace, subject, policy, charged, refunded: units, .. } = *self;
        let (of, uncharged) = (RefundOf::Rates, self.kept);
        Refund { namespace, subject, policy, charged, units, of, uncharged }
    }

    /// Returns the further units that are charged to the limit at `place`.
    #[must_use]
    pub fn units_added_to(&self, place: usize) -> u64 {
        match self.policy.limits().get(place) {
            Some(limit) if self.is_charged(place, limit.limit()) => self.added,
            _ => 0,
        }
    }

    /// Returns the limits to which further units are charged, or `None` if there are none.
    #[must_use]
    pub fn charged_limits(&self) -> Option<Policy> {
        let is_charged = |place, limit: Limit| self.is_charged(place, limit);
        if self.added == 0 { None } else { self.policy.only(is_charged) }
    }

    /// Returns whether the settlement changes nothing.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        let charges_nothing =
            (0..self.policy.limits().len()).all(|place| self.units_added_to(place) == 0);
        let refunds_nothing = self.release().is_empty() && self.refund().is_empty();
        charges_nothing && refunds_nothing && self.reservation.is_none()
    }

    /// Returns whether further units count under `limit`, which is at `place`.
    ///
    /// They do not count under a limit that counts requests, because it has already counted the
    /// request.
    fn is_charged(&self, place: usize, limit: Limit) -> bool {
        !limit.holds_permits() && !limit.counts_requests() && !self.uncharged.contains(place)
    }
}
