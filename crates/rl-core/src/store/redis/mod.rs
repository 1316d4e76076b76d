//! Counters on Redis.
//!
//! A request passes through layers, each of which decides what it can: leased units, cached
//! denials, batching, and finally the script on the server. Each layer has its own file or folder
//! in `store/redis`.

#[cfg(feature = "redis-cluster")]
mod across_slots;
mod batching;
mod builder;
mod closing;
mod connection;
mod encoding;
mod error;
mod executor;
mod give_back;
mod hash_slot;
mod layer;
mod listed_scripts;
mod parts;
mod pending;
mod scripts;
mod settlement;
mod shortcuts;
mod subject_key;
#[cfg(test)]
mod test_layer;

use std::fmt;
use std::sync::Arc;

#[cfg(feature = "redis-cluster")]
use across_slots::{AcrossSlots, LayerCalls};
use batching::{Batcher, PartsBatcher};
pub use builder::RedisStoreBuilder;
use builder::Servers;
#[cfg(feature = "redis-tls")]
#[cfg_attr(docsrs, doc(cfg(feature = "redis-tls")))]
pub use connection::Tls;
pub use encoding::Layout;
use encoding::arguments;
#[cfg(feature = "conformance")]
use encoding::policy::PolicyEncoding;
pub use error::ConnectError;
use executor::ScriptExecutor;
use give_back::GiveBack;
use layer::{AmendOperation, Amendment, Layer, PartRequest};
pub use scripts::Script;
use shortcuts::{DenialCache, Leases, MonotonicClock};
use subject_key::{KeyedSubjectRef, SubjectKey};

use super::fingerprint::Fingerprinter;
use super::{
    DecideRequest, LimiterRegistry, Namespace, Refund, Renewal, Reservation, ReservationChange,
    ReservationStatus, Reset, ServerLoads, Settlement, Store, StoreFuture,
};
use crate::decision::Decision;
use crate::maybe_ready::{MaybeReady, both, done};
use crate::model::Subject;
#[cfg(feature = "conformance")]
use crate::model::{Cost, StoreError};
#[cfg(feature = "conformance")]
use crate::policy::Policy;
use crate::stats::{RedisStats, StoreStats};
use crate::time::Timestamp;

/// A store that keeps the counters on Redis, shared by every instance of a service.
///
/// * **One script call for each decision**, in one round trip: the script reads the server's clock,
///   evaluates all limits, and charges all of them or none. The clocks of clients do not matter.
/// * **Two layouts**. [`Layout::Packed`] keeps all limits of a subject in one key. Each sliding log
///   or concurrency limit with more than 36 entries has its older entries in a key of its own.
///   [`Layout::Readable`] keeps a decimal counter for each named period, for people with
///   `redis-cli` and for services that follow the same format.
/// * **Every key has an expiry**, whatever wrote it. If a counter has lost its expiry, the next
///   request that would charge it sets a new one. [`RedisStore::healed`] counts these cases.
/// * **Connections** are multiplexed: many requests share one. A connection that fails leaves the
///   pool immediately. A command that may have been executed is never sent again.
/// * **One server, sentinels or a cluster**, with or without TLS: [`RedisStore::connect`],
///   `RedisStore::sentinel`, `RedisStore::cluster`. The last two, and TLS, are features.
/// * A service **starts even if Redis is down**. Its limits apply as soon as Redis can be reached.
/// * Connections run in the tokio runtime in which the store is created, and end with it. So create
///   the store in the main function, not in a worker.
///
/// Clones are cheap, and share the connections. [REDIS.md](crate::_documentation::redis) describes
/// connections, keys, scripts and permissions.
///
/// # Example
///
/// ```no_run
/// use rl_core::{Limit, RateLimiter, RedisStore};
///
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// let store = RedisStore::connect("redis://127.0.0.1/").await?;
/// let limiter = RateLimiter::builder()
///     .limit(Limit::per_second(10))
///     .limit(Limit::per_day(5_000))
///     .store(store)
///     .build()?;
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct RedisStore {
    inner: Arc<RedisStoreInner>,
}

struct RedisStoreInner {
    layers: Leases<DenialCache<Batcher<ScriptExecutor>>>,
    parts_batcher: PartsBatcher,
    executor: ScriptExecutor,
    give_back: GiveBack,
    #[cfg(feature = "redis-cluster")]
    across_slots: AcrossSlots<LayerCalls>,
    fingerprinter: Fingerprinter,
    clock: Arc<MonotonicClock>,
    registry: LimiterRegistry,
}

impl RedisStore {
    /// Connects to the server at `url`: `redis://[user:password@]host[:port][/database]`, or
    /// `rediss://` for TLS (feature `redis-tls`). A server that cannot be reached does not cause an
    /// error: the limiter's failure policy applies until it can be reached.
    ///
    /// # Errors
    ///
    /// Returns an error if `url` does not have this form, or if the server refuses the credentials.
    pub async fn connect(url: &str) -> Result<Self, ConnectError> {
        Self::builder(url).connect().await
    }

    /// Returns a builder of a store on the server at `url`.
    pub fn builder(url: &str) -> RedisStoreBuilder {
        RedisStoreBuilder::new(Servers::One(url.to_owned()))
    }

    /// Returns a builder of a store on the primary that the sentinels at these URLs call `name`.
    ///
    /// Connections follow a fail-over automatically. The URLs contain the login to the sentinels.
    /// [`user`](RedisStoreBuilder::user) and [`password`](RedisStoreBuilder::password) set the
    /// login to the servers. With `rediss://`, the servers are reached over TLS too.
    ///
    /// ```no_run
    /// # use rl_core::RedisStore;
    /// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// let sentinels = ["redis://10.0.0.1:26379/", "redis://10.0.0.2:26379/", "redis://10.0.0.3:26379/"];
    /// let store = RedisStore::sentinel(sentinels, "limits").password("of the servers").connect().await?;
    /// # Ok(()) }
    /// ```
    #[cfg(feature = "redis-sentinel")]
    #[cfg_attr(docsrs, doc(cfg(feature = "redis-sentinel")))]
    pub fn sentinel<U: AsRef<str>>(
        urls: impl IntoIterator<Item = U>,
        name: &str,
    ) -> RedisStoreBuilder {
        let urls = urls.into_iter().map(|url| url.as_ref().to_owned()).collect();
        RedisStoreBuilder::new(Servers::Sentinels { urls, name: name.to_owned() })
    }

    /// Returns a builder of a store on the cluster to which the servers at these URLs belong. The
    /// store finds the other servers itself.
    ///
    /// All keys of a subject are on one server, and subjects are spread over all servers. Commands
    /// follow slots that are migrated and replicas that are promoted.
    ///
    /// ```no_run
    /// # use rl_core::RedisStore;
    /// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// let store = RedisStore::cluster(["redis://10.0.0.1/", "redis://10.0.0.2/"]).connect().await?;
    /// # Ok(()) }
    /// ```
    #[cfg(feature = "redis-cluster")]
    #[cfg_attr(docsrs, doc(cfg(feature = "redis-cluster")))]
    pub fn cluster<U: AsRef<str>>(urls: impl IntoIterator<Item = U>) -> RedisStoreBuilder {
        let urls = urls.into_iter().map(|url| url.as_ref().to_owned()).collect();
        RedisStoreBuilder::new(Servers::Cluster(urls))
    }

    /// Returns how many counters were found without expiry, and given one, since the store was
    /// created.
    ///
    /// In the packed layout, an allowed request always writes a new expiry. Only a denial checks
    /// whether there was one.
    #[must_use]
    pub fn healed(&self) -> u64 {
        self.stats().healed
    }

    /// Returns the counts of the store since it was created.
    #[must_use]
    pub fn stats(&self) -> RedisStats {
        self.inner.executor.stats()
    }

    /// Returns how many charges could not be given back since the store was created: by releases,
    /// refunds, settlements, returned leases, and denials of requests of several parts on a cluster.
    ///
    /// Such a charge counts until it expires. While Redis certainly executes nothing, the store
    /// repeats the call that gives the charge back, for a minute. If the reply to a call is lost, the
    /// store counts it here and does not repeat it. [REDIS.md](crate::_documentation::redis) describes both.
    #[must_use]
    pub fn unreturned_charges(&self) -> u64 {
        self.inner.give_back.unreturned()
    }

    /// Gives the units of expired or idle leases back to the server.
    ///
    /// A task of the store does this regularly. With a manual clock there is no such task, and
    /// tests call this method.
    #[cfg(feature = "conformance")]
    #[cfg_attr(docsrs, doc(cfg(feature = "conformance")))]
    pub async fn return_idle_leases(&self) {
        self.inner.layers.return_idle().await;
    }

    /// Decodes the reply of a script to a single call. Fuzzers use it to simulate a faulty server.
    ///
    /// # Errors
    ///
    /// Returns an error if no script sends such a reply.
    #[cfg(feature = "conformance")]
    #[cfg_attr(docsrs, doc(cfg(feature = "conformance")))]
    pub fn decode_reply(
        reply: &[u8],
        policy: &Policy,
        mode: super::Mode,
        cost: Cost,
    ) -> Result<Decision, StoreError> {
        use encoding::{reply::CallArgs, reply_reader};
        let replies = reply_reader::read(reply, policy, &PolicyEncoding::new(policy), 1, 1)?;
        let reply = replies.into_iter().flatten().next().ok_or_else(reply_reader::undecided)?;
        Ok(reply.decision(0, CallArgs { policy, mode, cost }))
    }

    fn keyed<'a>(&self, namespace: &'a Namespace, subject: &'a Subject) -> KeyedSubjectRef<'a> {
        let key = SubjectKey::new(self.inner.fingerprinter.fingerprint(namespace, subject));
        KeyedSubjectRef { namespace, subject, key }
    }

    fn amend(
        &self,
        namespace: &Namespace,
        subject: &Subject,
        operation: AmendOperation<'_>,
    ) -> StoreFuture<Vec<u8>> {
        let subject = self.keyed(namespace, subject);
        self.inner.layers.amend(Amendment { subject, operation })
    }

    /// Returns the request that the layers decide; `None` if it has several parts, or a part that
    /// is in shadow or undisclosed.
    fn part_request<'a>(&self, request: &DecideRequest<'a>) -> Option<PartRequest<'a>> {
        let part = request.sole_part().ok()?;
        Some(PartRequest {
            subject: self.keyed(request.namespace_of(&part), part.subject),
            policy: part.policy,
            mode: request.mode,
            cost: part.cost,
            reservations: request.reservations,
            now: self.inner.clock.now(),
        })
    }
}

impl Store for RedisStore {
    fn decide(&self, request: DecideRequest<'_>) -> StoreFuture<Decision> {
        match self.part_request(&request) {
            Some(request) => self.inner.layers.decide(request),
            None => self.decide_parts(&request),
        }
    }

    fn decide_locally(&self, request: &DecideRequest<'_>) -> Option<Decision> {
        match self.part_request(request) {
            Some(request) => self.inner.layers.decide_locally(request),
            None => self.decide_parts_locally(request),
        }
    }

    fn server_loads(&self, request: &DecideRequest<'_>) -> ServerLoads<'_> {
        self.inner.executor.server_loads(request)
    }

    fn label(&self) -> &str {
        self.inner.executor.label()
    }

    fn registry(&self) -> Option<&LimiterRegistry> {
        Some(&self.inner.registry)
    }

    fn store_stats(&self) -> StoreStats {
        StoreStats::Redis(self.stats())
    }

    fn refund(&self, refund: Refund<'_>) -> StoreFuture<()> {
        if refund.is_empty() {
            return MaybeReady::ready(Ok(()));
        }
        self.run_refund(&refund).map(|reply| reply.map(drop))
    }

    fn settle(&self, settlements: &[Settlement<'_>]) -> StoreFuture<()> {
        self.settle_all(settlements)
    }

    fn renew(&self, renewal: Renewal<'_>) -> StoreFuture<Option<Timestamp>> {
        if renewal.is_empty() {
            return MaybeReady::ready(Ok(Some(renewal.charged)));
        }
        let amended =
            self.amend(renewal.namespace, renewal.subject, AmendOperation::Renew(renewal));
        amended.map(|reply| arguments::read_renewed(&reply?))
    }

    fn reset(&self, reset: Reset<'_>) -> StoreFuture<()> {
        self.reset_all(&[reset])
    }

    fn reset_all(&self, resets: &[Reset<'_>]) -> StoreFuture<()> {
        let subject = |reset: &Reset<'_>| self.keyed(reset.namespace, reset.subject).to_owned();
        let subjects = resets.iter().map(subject).collect();
        let reset = |command| self.inner.executor.send(command).map(|reply| reply.map(drop));
        let reset = match self.inner.executor.encoder().reset(resets) {
            Ok(commands) => commands.into_iter().map(reset).fold(done(), both),
            Err(error) => MaybeReady::ready(Err(error)),
        };
        self.inner.layers.reset_after_leases(subjects, reset)
    }

    fn change_reservation(
        &self,
        reservation: Reservation<'_>,
        change: ReservationChange,
    ) -> StoreFuture<ReservationStatus> {
        let operation = AmendOperation::ChangeReservation(reservation, change);
        let (namespace, subject) = (reservation.namespace, reservation.subject);
        let amended = match change {
            ReservationChange::Renew(_) => self.amend(namespace, subject, operation),
            ReservationChange::Settle { .. } => {
                let subject = self.keyed(namespace, subject);
                self.settle_reservation(Amendment { subject, operation })
            }
        };
        let expires = reservation.expires;
        amended.map(move |reply| arguments::read_reservation_status(&reply?, expires))
    }

    fn close(&self) -> StoreFuture<()> {
        let this = self.clone();
        // This calls the inherent function `close`, not the method of the trait.
        MaybeReady::later(async move { Self::close(&this).await })
    }
}

impl fmt::Debug for RedisStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisStore")
            .field("layout", &self.inner.executor.layout())
            .finish_non_exhaustive()
    }
}
