use std::time::Duration;

use super::Namespace;
use crate::decision::PartFlags;
use crate::model::{Cost, FailureKind, Limit, Mode, StoreError, Subject};
use crate::policy::{LimitSet, Policy};
use crate::time::Timestamp;

/// One subject of a request, the policy that applies to it, and the cost.
///
/// Counters belong to a namespace and a subject. Rules that may count the same subject therefore
/// have namespaces of their own ([`Namespace::rule`]).
///
/// # Requests of several parts
///
/// A request may belong to several subjects at once: its key, its customer, the whole fleet. Each
/// of them is a [`Part`] with limits and a cost of its own. All parts are decided in one step: all
/// are charged, or none.
///
/// * A denial by one part changes no counter of the others. The order of the parts does not matter.
/// * Counters belong to the namespace and the subject of a part. If two parts have the same
///   namespace and subject, their costs are added, and both report the same status. A limit that
///   counts requests counts one request.
/// * The failure policy, the circuit breaker and the fallback apply to the request as a whole.
/// * A request without parts is not limited.
/// * A decision has at most [`Part::MAX`] parts. A request with more parts is a configuration
///   failure. So is a request with different limits for the same counters.
///
/// # Examples
///
/// ```
/// use rl_core::{Limit, Part, Policy, RateLimiter, Subject};
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let limiter = RateLimiter::builder().limit(Limit::per_second(10)).build()?;
/// let (keys, fleet) = (limiter.namespace().rule("keys")?, limiter.namespace().rule("fleet")?);
/// let of_key = Policy::new([Limit::per_minute(100)])?;
/// let of_fleet = Policy::new([Limit::per_second(5_000)])?;
///
/// let (key, all) = (Subject::consumer("abc123"), Subject::global());
/// let parts = [
///     Part::new(&key, &of_key, 1.into()).with_namespace(&keys),
///     Part::new(&all, &of_fleet, 1.into()).with_namespace(&fleet).undisclosed(),
/// ];
/// let decision = limiter.request(&parts).check().await;
/// assert!(decision.is_allowed());
/// assert_eq!(decision.parts().map(|part| part.charged()).collect::<Vec<_>>(), [1, 1]);
/// # Ok(()) }
/// ```
///
/// A key that is over its limit does not use up the limit of the fleet:
///
/// ```
/// use rl_core::{Limit, Part, Policy, RateLimiter, Subject};
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let limiter = RateLimiter::builder().limit(Limit::per_minute(2)).build()?;
/// let fleet = limiter.namespace().rule("fleet")?;
/// let (of_key, of_fleet) = (Policy::new([Limit::per_minute(2)])?, Policy::new([Limit::per_hour(100)])?);
/// let (key, all) = (Subject::consumer("abc123"), Subject::global());
/// let of_fleet = Part::new(&all, &of_fleet, 1.into()).with_namespace(&fleet);
///
/// for _ in 0..5 {
///     let parts = [Part::new(&key, &of_key, 1.into()), of_fleet];
///     let decision = limiter.request(&parts).check().await;
///     let over: Vec<_> = decision.parts().map(|part| part.is_over()).collect();
///     assert_eq!(over, [!decision.is_allowed(), false]);
/// }
/// let usage = limiter.request(&of_fleet).usage().await?;
/// assert_eq!(usage.limits().next().map(|hour| hour.used()), Some(2));
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Part<'a> {
    /// The subject that is counted.
    pub subject: &'a Subject,
    /// The limits of the subject, which are decided together.
    pub policy: &'a Policy,
    /// The units that the request costs.
    pub cost: Cost,
    /// The namespace of the counters, if it is not that of the request.
    pub namespace: Option<&'a Namespace>,
    /// The properties by which the part differs from a plain one, as in [`PartFlags`]. They form
    /// one number, so that the fast path needs one comparison.
    pub(crate) flags: u8,
}

impl<'a> Part<'a> {
    /// The maximum number of parts of a request.
    pub const MAX: usize = 8;

    /// Creates a part.
    #[must_use]
    pub const fn new(subject: &'a Subject, policy: &'a Policy, cost: Cost) -> Self {
        Self { subject, policy, cost, namespace: None, flags: 0 }
    }

    /// Sets the namespace of the counters.
    #[must_use]
    pub const fn with_namespace(self, namespace: &'a Namespace) -> Self {
        Self { namespace: Some(namespace), ..self }
    }

    /// Lets the part deny nothing. All its limits are charged, or none, as if it were enforced.
    #[must_use]
    pub const fn shadow(self) -> Self {
        Self { flags: self.flags | PartFlags::SHADOW, ..self }
    }

    /// Hides the part from headers and messages. Clients learn only how long they have to wait.
    #[must_use]
    pub const fn undisclosed(self) -> Self {
        Self { flags: self.flags | PartFlags::UNDISCLOSED, ..self }
    }

    /// Returns which of `parts` are in shadow, and which are undisclosed. There are at most
    /// [`MAX`](Self::MAX) parts.
    pub(crate) fn flags(parts: &[Self]) -> PartFlags {
        let mut flags = PartFlags::default();
        for (index, part) in parts.iter().enumerate().take(Self::MAX) {
            flags.add(index, part.flags);
        }
        flags
    }

    /// Returns whether the part is enforced and disclosed. The fast paths decide only such parts.
    pub(crate) const fn is_plain(&self) -> bool {
        self.flags == 0
    }

    /// Returns whether the part denies nothing. It is charged if it would grant the request.
    #[must_use]
    pub const fn is_shadow(&self) -> bool {
        self.flags & PartFlags::SHADOW != 0
    }

    /// Returns whether headers and messages may describe the part.
    #[must_use]
    pub const fn is_disclosed(&self) -> bool {
        self.flags & PartFlags::UNDISCLOSED == 0
    }
}

/// The arguments of one decision.
///
/// A store decides all parts in one step, at one time, and charges all of them or none. A store may
/// refuse requests of several parts with
/// [`FailureKind::Unsupported`](crate::FailureKind::Unsupported).
///
/// # Examples
///
/// ```
/// use rl_core::store::{DecideRequest, Mode, Namespace, Part, Store};
/// use rl_core::{Cost, Limit, MemoryStore, Policy, Subject};
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let (namespace, subject) = (Namespace::default(), Subject::consumer("abc123"));
/// let policy = Policy::new([Limit::per_second(10)])?;
/// let parts = [Part::new(&subject, &policy, Cost::ONE)];
/// let request = DecideRequest::new(&namespace, &parts, Mode::Check);
/// assert!(MemoryStore::new().decide(request).await?.is_allowed());
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct DecideRequest<'a> {
    /// The namespace of the counters, for parts that have no namespace of their own.
    pub namespace: &'a Namespace,
    /// The subjects that are counted, each with its policy and cost.
    pub parts: &'a [Part<'a>],
    /// The kind of decision.
    pub mode: Mode,
    /// The handling of reservations.
    pub reservations: Reservations,
}

impl<'a> DecideRequest<'a> {
    /// Creates a request that ignores reservations.
    #[must_use]
    pub const fn new(namespace: &'a Namespace, parts: &'a [Part<'a>], mode: Mode) -> Self {
        Self { namespace, parts, mode, reservations: Reservations::Ignore }
    }

    /// Sets what happens to reservations.
    #[must_use]
    pub const fn with_reservations(self, reservations: Reservations) -> Self {
        Self { reservations, ..self }
    }

    /// Returns the only part of a request.
    ///
    /// # Errors
    ///
    /// Returns an error of kind [`FailureKind::Unsupported`] if the request has no part or several
    /// parts, or if its part is in shadow or undisclosed. A store that decides only one part passes
    /// the error on to its caller.
    pub fn sole_part(&self) -> Result<Part<'a>, StoreError> {
        match *self.parts {
            [part] if part.is_plain() => Ok(part),
            _ => Err(StoreError::new(FailureKind::Unsupported).with_detail(format!(
                "a request of {} parts: this store decides requests of one part",
                self.parts.len()
            ))),
        }
    }

    /// Returns the namespace of the counters of `part`.
    #[must_use]
    pub const fn namespace_of(&self, part: &Part<'a>) -> &'a Namespace {
        match part.namespace {
            Some(namespace) => namespace,
            None => self.namespace,
        }
    }
}

/// The handling of [reservations](super::Reservation) in a decision.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Reservations {
    /// Ignores the reservations of the subject. Used by limiters that make no reservations.
    #[default]
    Ignore,
    /// Refunds the units of expired reservations, then decides.
    ReturnExpired,
    /// Refunds the units of expired reservations, decides, and makes the charge a reservation.
    ///
    /// The charged units are refunded if the reservation is neither settled nor renewed within this
    /// time. The store marks the decision with [`Decision::reserved`](crate::Decision::reserved).
    Reserve(Duration),
}

/// The arguments of a refund.
#[derive(Clone, Copy, Debug)]
pub struct Refund<'a> {
    /// The namespace of the counters.
    pub namespace: &'a Namespace,
    /// The subject that was charged.
    pub subject: &'a Subject,
    /// The limits that were charged.
    pub policy: &'a Policy,
    /// The time of the charge: [`Decision::at`](crate::Decision::at).
    pub charged: Timestamp,
    /// The units to refund, at most those that were charged.
    pub units: u64,
    /// The kind of limits to which the units are refunded.
    pub of: RefundOf,
    /// The limits that do not change: those that were not charged, and, if only a part of the
    /// charge is refunded, those that count requests.
    pub uncharged: LimitSet,
}

impl Refund<'_> {
    /// Returns whether the refund changes nothing, because it has no units or applies to no limit.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        (0..self.policy.limits().len()).all(|place| self.units_of(place) == 0)
    }

    /// Returns the units for the limit at `place`: 0 if the refund does not apply to it, 1 if the
    /// limit counts requests.
    #[must_use]
    pub fn units_of(&self, place: usize) -> u64 {
        match self.policy.limits().get(place).map(|limit| limit.limit()) {
            Some(limit) if self.of.includes(limit) && !self.uncharged.contains(place) => {
                limit.units(self.units)
            }
            _ => 0,
        }
    }
}

/// The kind of limits to which a refund applies.
///
/// A request that has ended releases its concurrency limits, and stays charged to the rate limits.
/// If a request costs less than its estimate, units are refunded to the rate limits, and its
/// concurrency limits stay charged while it runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum RefundOf {
    /// All limits.
    #[default]
    All,
    /// All limits except concurrency limits.
    Rates,
    /// Concurrency limits.
    Permits,
}

impl RefundOf {
    /// Returns whether a refund applies to `limit`.
    #[must_use]
    pub const fn includes(self, limit: Limit) -> bool {
        match self {
            Self::All => true,
            Self::Rates => !limit.holds_permits(),
            Self::Permits => limit.holds_permits(),
        }
    }
}

/// The arguments of a renewal of charged units.
#[derive(Clone, Copy, Debug)]
pub struct Renewal<'a> {
    /// The namespace of the counters.
    pub namespace: &'a Namespace,
    /// The subject that was charged.
    pub subject: &'a Subject,
    /// The limits that were charged.
    pub policy: &'a Policy,
    /// The time of the charge, or of the last renewal.
    pub charged: Timestamp,
    /// The units to renew, at most those that were charged.
    pub units: u64,
    /// The limits that were not charged. The renewal does not change them.
    pub uncharged: LimitSet,
    /// The lease that the renewal extends.
    pub lease: Lease,
}

/// The kind of lease under which charged units are held.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Lease {
    /// The leases of permits, under the concurrency limits of the policy. A renewal restarts them.
    #[default]
    Permits,
    /// A [reservation](super::Reservation), under all other limits.
    Reservation {
        /// The time at which the reservation expires.
        expires: Timestamp,
        /// The time from now after which it expires once it is renewed.
        lifetime: Duration,
    },
}

impl Renewal<'_> {
    /// Returns whether there is nothing to renew, because there is no unit or no concurrency limit.
    /// The store then returns `charged`.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.lease == Lease::Permits && self.as_refund().is_empty()
    }

    /// Returns the refund of the old permits, which the renewal replaces by new ones.
    pub(crate) const fn as_refund(&self) -> Refund<'_> {
        let Self { namespace, subject, policy, charged, units, uncharged, .. } = *self;
        Refund { namespace, subject, policy, charged, units, uncharged, of: RefundOf::Permits }
    }
}

/// The arguments of a reset.
#[derive(Clone, Copy, Debug)]
pub struct Reset<'a> {
    /// The namespace of the counters.
    pub namespace: &'a Namespace,
    /// The subject whose counters are reset.
    pub subject: &'a Subject,
    /// The limits of the subject.
    pub policy: &'a Policy,
    /// The position of the limit in the policy, or `None` for all state of the subject.
    pub limit: Option<usize>,
}
