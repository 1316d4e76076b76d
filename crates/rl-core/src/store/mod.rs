//! Stores keep the counters.
//!
//! # The contract of [`Store`]
//!
//! 1. **One decision, one step.** [`Store::decide`] evaluates every limit of all parts on the same
//!    state and at the same time. It charges all of the limits or none. No other operation on the
//!    subjects happens in between. A store may refuse requests of several parts
//!    ([`DecideRequest::sole_part`]).
//! 2. **Exact.** A request of cost `c` passes a limit if and only if `used + c <= max` or
//!    `c == 0`.
//! 3. **A denial changes nothing**: it charges no limit and opens no window.
//! 4. **One clock.** A store makes all decisions on its own clock. A clock that steps back grants
//!    nothing: no decision uses an earlier time than the last charge. Waits and resets count
//!    from the time of the clock, so they include the time until it has caught up.
//! 5. **State is identified by algorithm, period, anchor, and what is counted**: units or requests.
//!    A change of `max` keeps the used units. Adding or removing a limit does not affect the
//!    others. State of limits that are not in the current policy is kept until its window ends. A
//!    store may bound such state, but then it must refuse a charge
//!    ([`FailureKind::Unsupported`]) rather than drop state that still counts.
//! 6. **Nothing is kept for ever.** Every operation that stores state gives it an expiry.
//! 7. **[`Mode::Peek`] and a cost of 0 write nothing.**
//! 8. **A settlement** ([`Store::settle`]) gives back units that its decision has charged, as far
//!    as they still count, and never exceeds the capacity. It applies only to the limits that it
//!    names ([`RefundOf`]). If a reset, an eviction or a lost key has removed the charge, it gives
//!    nothing back.
//! 9. **Subjects never share state**, nor does one subject in two [`Namespace`]s.
//! 10. **A denial is a result.** An error means that no decision was made, or that its result is
//!     unknown. A store never repeats a call that may have been carried out.
//! 11. **A permit ends.** A place under a concurrency limit becomes free when it is released or
//!     when its lease ends. [`Store::renew`] restarts the lease in one step, for every concurrency
//!     limit of the policy or for none. It never restores a place whose lease has ended.
//! 12. **A limit in shadow denies nothing**, and does not keep the other limits from being charged.
//!     It is charged itself if it would have granted the request. Otherwise its outcome is a
//!     denial, and [`Decision::uncharged`] contains the limit.
//! 13. **A store refuses limits that it does not support**, with [`FailureKind::Unsupported`] and
//!     before it counts anything. It never replaces the limit's algorithm by another.
//! 14. **Subjects that are charged together are settled together.** [`Store::settle`] changes the
//!     counters of all subjects in one step. A store that decides requests of one part only may
//!     settle them one after the other.
//!
//! 15. **A store on several servers reports the load of each** ([`Store::server_loads`]): the calls
//!     to this server, and its replies. Otherwise the outage of one server may look like an
//!     overload of another.
//!
//! The contract is available as tests: run `conformance::suite` (feature `conformance`) on your own
//! store.
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
mod multilinear_hash;
mod namespace;
mod part_groups;
#[cfg(feature = "redis")]
pub(crate) mod redis;
mod registry;
mod request;
mod server_load;
mod settlement;

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
pub use request::{DecideRequest, Lease, Part, Refund, RefundOf, Renewal, Reservations, Reset};
#[cfg(feature = "redis-cluster")]
pub(crate) use server_load::ServerGroup;
pub(crate) use server_load::{CallBounds, FullServer, Replies, ServerSlots};
pub use server_load::{ServerCall, ServerLoad, ServerLoads};
pub use settlement::{LeaseStatus, Reservation, Settlement};

use crate::decision::Decision;
use crate::maybe_ready::MaybeReady;
use crate::model::{FailureKind, StoreError};
pub use crate::model::{Mode, Outcome};
use crate::stats::StoreStats;
use crate::time::Timestamp;

/// The result of a store operation: ready immediately, or a future.
pub type StoreFuture<T> = MaybeReady<Result<T, StoreError>>;

/// Keeps the counters. The [module](self) states the contract.
pub trait Store: fmt::Debug + Send + Sync + 'static {
    /// Decides `request`: evaluates all limits of all parts, and charges all of the limits or none.
    ///
    /// A denial is an `Ok` result.
    ///
    /// # Errors
    ///
    /// Resolves to an error if no decision was made, or if its result is unknown.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped before it is ready, the charge may or may not have been made.
    fn decide(&self, request: DecideRequest<'_>) -> StoreFuture<Decision>;

    /// Decides `request` with the state of this process, without a call to a server: by a cached
    /// denial, or with leased units.
    ///
    /// The limiter calls it instead of [`decide`](Self::decide) while the servers are overloaded.
    /// Returns `None` if only a server can decide. The default returns `None`.
    fn decide_locally(&self, request: &DecideRequest<'_>) -> Option<Decision> {
        let _ = request;
        None
    }

    /// Returns the loads of the servers that decide `request`.
    ///
    /// The limiter bounds the decisions in flight on each server, and judges a decision that is not
    /// made in time by the replies of its own servers: it is an outage if one of them is silent,
    /// and otherwise an overload. The default returns no loads, which suits a store without servers
    /// of its own: the limiter then keeps one load for the whole store.
    fn server_loads(&self, request: &DecideRequest<'_>) -> ServerLoads<'_> {
        let _ = request;
        ServerLoads::default()
    }

    /// Returns the name, the counts and the limiters of the store. The default returns an empty
    /// report.
    fn report(&self) -> StoreReport<'_> {
        StoreReport::default()
    }

    /// Settles the charges of several subjects in one step: releases permits, refunds units, and
    /// charges further units. Each subject occurs once.
    ///
    /// Resolves to [`LeaseStatus::Held`], unless the settlement [ends a
    /// reservation](Settlement::reservation) that has expired or is unknown. In that case it
    /// changes nothing.
    ///
    /// # Errors
    ///
    /// Resolves to an error if the settlement failed or its result is unknown. The store may still
    /// repeat a settlement that it has not executed, so the caller does not repeat it.
    fn settle(&self, settlements: &[Settlement<'_>]) -> StoreFuture<LeaseStatus>;

    /// Renews the leases of permits, or a reservation.
    ///
    /// Resolves to the time that later calls need: the time at which the new leases of permits
    /// begin, which replaces [`Renewal::charged`], or the time at which the reservation expires.
    ///
    /// Changes nothing, and resolves to another status, if the units are no longer held: the lease
    /// under one of the limits or the reservation has ended, or the charge was refunded or reset. A
    /// store that makes no reservations resolves to [`LeaseStatus::Forgotten`] for a reservation.
    ///
    /// # Errors
    ///
    /// Resolves to an error if the renewal failed or its result is unknown.
    fn renew(&self, renewal: Renewal<'_>) -> StoreFuture<LeaseStatus<Timestamp>>;

    /// Makes several resets: each sets one limit of a subject, or all its limits, to unused.
    ///
    /// # Errors
    ///
    /// Resolves to an error if a reset failed or its result is unknown. The others may have been
    /// made.
    fn reset(&self, resets: &[Reset<'_>]) -> StoreFuture<()>;

    /// Publishes a short text about this instance for the others that count in `namespace`, in
    /// place of its last one. It is kept for 20 seconds.
    ///
    /// A note has one line. The default fails, which suits a store that is not shared.
    ///
    /// # Errors
    ///
    /// Resolves to [`FailureKind::Unsupported`] if the store is not shared, or cannot keep the
    /// note, and to another error if it fails.
    fn publish_note(&self, namespace: &Namespace, instance: &str, note: &str) -> StoreFuture<()> {
        let _ = (namespace, instance, note);
        MaybeReady::ready(Err(StoreError::new(FailureKind::Unsupported)))
    }

    /// Returns the notes of all instances that count in `namespace`, in any order. Other
    /// programs with access to the servers may have written other texts, so the reader checks each.
    ///
    /// # Errors
    ///
    /// Resolves to the errors of [`publish_note`](Self::publish_note).
    fn read_notes(&self, namespace: &Namespace) -> StoreFuture<Vec<String>> {
        let _ = namespace;
        MaybeReady::ready(Err(StoreError::new(FailureKind::Unsupported)))
    }

    /// Gives back all units that this process has reserved ahead, such as leased units.
    ///
    /// [`RateLimiter::close`](crate::RateLimiter::close) calls it when a service shuts down. The
    /// store continues to decide afterwards, but reserves nothing ahead. The default does nothing,
    /// which suits a store that reserves nothing ahead.
    ///
    /// # Errors
    ///
    /// Resolves to an error if some units could not be returned. They stay charged until their
    /// windows end.
    fn close(&self) -> StoreFuture<()> {
        MaybeReady::ready(Ok(()))
    }
}

/// The name, the counts and the limiters of a store.
#[derive(Clone, Copy, Debug)]
pub struct StoreReport<'a> {
    /// The kind of store and its server for log lines, without user and password.
    pub label: &'a str,
    /// The counts of the store.
    pub stats: StoreStats,
    /// The registry of the limiters that count in the store.
    ///
    /// A limiter registers itself there. The registry finds limiters that share counters but have
    /// different limits. Without a registry, the limiters of the store are not compared.
    pub registry: Option<&'a LimiterRegistry>,
    /// Whether [`Store::decide`] is always ready at once.
    ///
    /// The limiter then calls it without a deadline, without the circuit breaker, and without a
    /// bound on decisions in flight. A failure is still handled by the failure policy.
    pub decides_at_once: bool,
}

impl Default for StoreReport<'_> {
    fn default() -> Self {
        Self { label: "store", stats: StoreStats::None, registry: None, decides_at_once: false }
    }
}

impl<S: Store + ?Sized> Store for Arc<S> {
    fn decide(&self, request: DecideRequest<'_>) -> StoreFuture<Decision> {
        (**self).decide(request)
    }

    fn decide_locally(&self, request: &DecideRequest<'_>) -> Option<Decision> {
        (**self).decide_locally(request)
    }

    fn server_loads(&self, request: &DecideRequest<'_>) -> ServerLoads<'_> {
        (**self).server_loads(request)
    }

    fn report(&self) -> StoreReport<'_> {
        (**self).report()
    }

    fn settle(&self, settlements: &[Settlement<'_>]) -> StoreFuture<LeaseStatus> {
        (**self).settle(settlements)
    }

    fn renew(&self, renewal: Renewal<'_>) -> StoreFuture<LeaseStatus<Timestamp>> {
        (**self).renew(renewal)
    }

    fn reset(&self, resets: &[Reset<'_>]) -> StoreFuture<()> {
        (**self).reset(resets)
    }

    fn publish_note(&self, namespace: &Namespace, instance: &str, note: &str) -> StoreFuture<()> {
        (**self).publish_note(namespace, instance, note)
    }

    fn read_notes(&self, namespace: &Namespace) -> StoreFuture<Vec<String>> {
        (**self).read_notes(namespace)
    }

    fn close(&self) -> StoreFuture<()> {
        (**self).close()
    }
}

// Applications choose the store by configuration, so `dyn Store` must stay possible.
fn _object_safe(_: &dyn Store) {}
