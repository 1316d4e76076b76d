//! Stores keep the counters.
//!
//! # The contract of [`Store`]
//!
//! 1. **One decision, one step.** [`Store::decide`] evaluates every limit of the policy on the same
//!    state and the same time, and charges all of them or none. No other operation on the subject
//!    comes in between.
//! 2. **Exact.** A request of cost `c` passes a limit if and only if `used + c <= max`.
//! 3. **A denial changes nothing**: it charges no limit and opens no window.
//! 4. **One clock.** All decisions of a store are made on its own clock. A clock that steps back
//!    grants nothing: no decision is made at an earlier time than the last charge.
//! 5. **State is identified by algorithm, period, anchor, and what is counted**: units or requests. A
//!    change of `max` keeps what was used. Adding or removing a limit leaves the others alone. State
//!    that the current policy does not name is kept until its window ends. A store that bounds such
//!    state refuses a charge ([`FailureKind::Unsupported`](crate::FailureKind::Unsupported)) rather
//!    than forget what still counts.
//! 6. **Nothing is kept for ever.** All stored state has an expiry, on every path.
//! 7. **[`Mode::Peek`] and a cost of 0 write nothing.**
//! 8. **A refund** gives back what its decision charged, as far as it still counts, and never above the
//!    capacity. It applies only to the limits that it names ([`RefundOf`]). A charge that a reset, an
//!    eviction or a lost key has removed gives nothing back.
//! 9. **Subjects never share state**, nor does one subject in two [`Namespace`]s.
//! 10. **A denial is a result.** An error means that no decision was made, or that none is known.
//!     A store never repeats a call that may have been carried out.
//! 11. **A permit ends.** A place under a concurrency limit is free once it is refunded or once its
//!     lease has ended, whichever is first. [`Store::renew`] begins the lease again, in one step, for
//!     every concurrency limit of the policy or for none. It never restores a place whose lease has
//!     ended.
//! 12. **A limit in shadow denies nothing**, and the other limits are charged. It is charged itself if
//!     it would have granted the request. Otherwise its outcome denies, and [`Decision::uncharged`]
//!     contains it.
//! 13. **A store refuses limits that it does not support**, as
//!     [`FailureKind::Unsupported`](crate::FailureKind::Unsupported) and before it counts anything. It
//!     never counts by another algorithm than the limit's.
//!
//! The contract is executable: run `conformance::suite` (feature `conformance`) on a store of
//! your own.
//!
//! # Example
//!
//! ```
//! use rl_core::store::{DecideRequest, Mode, Namespace, Part, Store};
//! use rl_core::{Cost, Limit, MemoryStore, Policy, Subject};
//!
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let store = MemoryStore::new();
//! let (namespace, subject) = (Namespace::default(), Subject::consumer("abc123"));
//! let policy = Policy::new([Limit::per_second(10), Limit::per_day(5_000)])?;
//! let parts = [Part::new(&subject, &policy, Cost::ONE)];
//! let decision = store.decide(DecideRequest::new(&namespace, &parts, Mode::Check)).await?;
//! assert!(decision.is_allowed());
//! # Ok(()) }
//! ```

mod fingerprint;
pub(crate) mod memory;
mod namespace;
#[cfg(feature = "redis")]
pub(crate) mod redis;
mod registry;
mod request;
mod reservation;

use std::fmt;
use std::sync::Arc;

pub(crate) use fingerprint::SubjectHasher;
pub use namespace::{InvalidNamespace, Namespace};
#[cfg(feature = "redis-tls")]
#[cfg_attr(docsrs, doc(cfg(feature = "redis-tls")))]
pub use redis::Tls;
#[cfg(feature = "redis")]
#[cfg_attr(docsrs, doc(cfg(feature = "redis")))]
pub use redis::{ConnectError, Layout, Script};
pub use registry::LimiterRegistry;
pub use request::{DecideRequest, Part, Refund, RefundOf, Renewal, Reservations, Reset};
pub use reservation::{Reservation, ReservationChange, ReservationStatus};

use crate::decision::Decision;
use crate::maybe_ready::MaybeReady;
use crate::model::StoreError;
pub use crate::model::{Mode, Outcome};
use crate::time::Timestamp;

/// The result of a store operation: ready at once, or a future.
pub type StoreFuture<T> = MaybeReady<Result<T, StoreError>>;

/// Keeps the counters. The [module](self) states the contract.
pub trait Store: fmt::Debug + Send + Sync + 'static {
    /// Decides `request`: evaluates all limits of all parts, and charges all of them or none.
    ///
    /// A denial is an `Ok` result.
    ///
    /// # Errors
    ///
    /// Resolves to an error if no decision was made, or if none is known.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped before it is ready, the charge may or may not have been made.
    fn decide(&self, request: DecideRequest<'_>) -> StoreFuture<Decision>;

    /// Decides `request` at once, if the store can do so without waiting. Otherwise it returns
    /// `otherwise()`, and changes nothing.
    ///
    /// This is the synchronous fast path, for requests that need neither deadline, failure policy nor
    /// events. `otherwise` takes the other steps of the limiter, which call [`decide`](Self::decide). The
    /// limiter returns the result unchanged: the compiler copies a decision that its caller inspects.
    ///
    /// The default returns `otherwise()`.
    fn try_decide(
        &self,
        request: &DecideRequest<'_>,
        otherwise: &dyn Fn() -> MaybeReady<Decision>,
    ) -> MaybeReady<Decision> {
        let _ = request;
        otherwise()
    }

    /// Decides `request` by what this process knows, without a call to a server: by a cached denial, or by
    /// leased units.
    ///
    /// The limiter calls it instead of [`decide`](Self::decide) while the servers are overloaded. Returns
    /// `None` if only a server can decide. The default returns `None`.
    fn decide_locally(&self, request: &DecideRequest<'_>) -> Option<Decision> {
        let _ = request;
        None
    }

    /// Returns the kind of store and its server for log lines, without user and password.
    fn label(&self) -> &str {
        "store"
    }

    /// Returns the registry of the limiters that count in this store.
    ///
    /// A limiter registers itself there to warn of others that share its counters under other limits. The
    /// default returns `None`: limiters of such a store are not compared.
    fn registry(&self) -> Option<&LimiterRegistry> {
        None
    }

    /// Gives units of an earlier decision back.
    ///
    /// # Errors
    ///
    /// Resolves to an error if it is not known to be done.
    fn refund(&self, refund: Refund<'_>) -> StoreFuture<()>;

    /// Begins the lease of a permit again.
    ///
    /// Resolves to the time at which the new lease begins, which replaces [`Renewal::charged`] in later calls.
    /// Resolves to `None`, and changes nothing, if the permit is lost: under one of the limits its lease has
    /// ended, or it was given back or reset.
    ///
    /// # Errors
    ///
    /// Resolves to an error if it is not known to be done.
    fn renew(&self, renewal: Renewal<'_>) -> StoreFuture<Option<Timestamp>>;

    /// Resets one limit of a subject, or all: what was used is forgotten.
    ///
    /// # Errors
    ///
    /// Resolves to an error if it is not known to be done.
    fn reset(&self, reset: Reset<'_>) -> StoreFuture<()>;

    /// Renews or settles a reservation. Changes nothing if it has expired or is forgotten.
    ///
    /// The default returns [`ReservationStatus::Forgotten`].
    ///
    /// # Errors
    ///
    /// Resolves to an error if it is not known to be done.
    fn change_reservation(
        &self,
        reservation: Reservation<'_>,
        change: ReservationChange,
    ) -> StoreFuture<ReservationStatus> {
        let _ = (reservation, change);
        MaybeReady::ready(Ok(ReservationStatus::Forgotten))
    }

    /// Gives back everything that this process has reserved ahead, such as leased units.
    ///
    /// [`RateLimiter::close`](crate::RateLimiter::close) calls it when a service shuts down. The store keeps
    /// deciding afterwards, without reserving anything ahead. The default does nothing:
    /// it suits a store that reserves nothing ahead.
    ///
    /// # Errors
    ///
    /// Resolves to an error if some units could not be given back. They stay charged until their windows
    /// end.
    fn close(&self) -> StoreFuture<()> {
        MaybeReady::ready(Ok(()))
    }
}

impl<S: Store + ?Sized> Store for Arc<S> {
    fn decide(&self, request: DecideRequest<'_>) -> StoreFuture<Decision> {
        (**self).decide(request)
    }

    fn try_decide(
        &self,
        request: &DecideRequest<'_>,
        otherwise: &dyn Fn() -> MaybeReady<Decision>,
    ) -> MaybeReady<Decision> {
        (**self).try_decide(request, otherwise)
    }

    fn decide_locally(&self, request: &DecideRequest<'_>) -> Option<Decision> {
        (**self).decide_locally(request)
    }

    fn label(&self) -> &str {
        (**self).label()
    }

    fn registry(&self) -> Option<&LimiterRegistry> {
        (**self).registry()
    }

    fn refund(&self, refund: Refund<'_>) -> StoreFuture<()> {
        (**self).refund(refund)
    }

    fn renew(&self, renewal: Renewal<'_>) -> StoreFuture<Option<Timestamp>> {
        (**self).renew(renewal)
    }

    fn reset(&self, reset: Reset<'_>) -> StoreFuture<()> {
        (**self).reset(reset)
    }

    fn change_reservation(
        &self,
        reservation: Reservation<'_>,
        change: ReservationChange,
    ) -> StoreFuture<ReservationStatus> {
        (**self).change_reservation(reservation, change)
    }

    fn close(&self) -> StoreFuture<()> {
        (**self).close()
    }
}

// Users choose the store from configuration, so `dyn Store` must stay possible.
fn _object_safe(_: &dyn Store) {}
