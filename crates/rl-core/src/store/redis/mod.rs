//! Counters on Redis, shared by every instance of a service.
//!
//! * **One script call for each decision**, one round trip: the script reads the server's clock,
//!   evaluates all limits and charges all of them or none. Clients' clocks do not matter.
//! * **Two layouts**. [`Layout::Packed`] keeps all limits of a subject in one key, and the entries
//!   of each sliding log or concurrency limit in another.
//!   [`Layout::Readable`] keeps a decimal counter for each named period, for people with
//!   `redis-cli` and for services that follow the same format.
//! * **Every key has an expiry**, on every path. A counter that lost its expiry is given one by the
//!   next request that would charge it; [`RedisStore::healed`] counts what was found.
//! * **Connections** are multiplexed: the commands of many requests travel together. A connection
//!   that fails leaves the pool at once. A command that may have been executed is never sent again.
//! * **One server, sentinels or a cluster**, over TLS or not: [`RedisStore::connect`],
//!   `RedisStore::sentinel`, `RedisStore::cluster`, each with a feature of its own.
//! * A service **starts when Redis is down** and enforces its limits when Redis comes up.
//! * Connections live in the tokio runtime in which the store is made, and work while it does: make
//!   it in the main function, not in a worker.
//!
//! `crates/rl-core/docs/REDIS.md` describes connections, keys, scripts and permissions.
//!
//! # Example
//!
//! ```no_run
//! use rl_core::{Limit, RateLimiter, RedisStore};
//!
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let store = RedisStore::connect("redis://127.0.0.1/").await?;
//! let limiter = RateLimiter::builder()
//!     .limit(Limit::per_second(10))
//!     .limit(Limit::per_day(5_000))
//!     .store(store)
//!     .build()?;
//! # Ok(()) }
//! ```

mod batching;
mod builder;
mod connection;
mod encoding;
mod error;
mod reservations;
mod scripts;
mod shortcuts;
mod subject_key;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use batching::{Combiner, Joined, Question};
pub use builder::RedisStoreBuilder;
use builder::Servers;
#[cfg(feature = "redis-tls")]
#[cfg_attr(docsrs, doc(cfg(feature = "redis-tls")))]
pub use connection::Tls;
use connection::{Command, Router};
pub use encoding::Layout;
use encoding::policy::coded;
use encoding::reply::Asked;
use encoding::request::{Commands, OnePart};
use encoding::{arguments, reply_reader};
pub use error::ConnectError;
pub use scripts::Script;
use shortcuts::denial_cache::{Asking, Denials, Forgetting};
use shortcuts::leases::Leases;
use shortcuts::monotonic::Watch;
use subject_key::WhoRef;

use super::fingerprint::Fingerprinter;
use super::{
    DecideRequest, LimiterRegistry, Mode, Namespace, Refund, Renewal, Reservation,
    ReservationChange, ReservationStatus, Reservations, Reset, Store, StoreFuture,
};
use crate::decision::Decision;
use crate::maybe_ready::MaybeReady;
use crate::model::StoreError;
use crate::model::{Cost, Subject};
use crate::observe;
use crate::observe::Transition;
use crate::policy::Policy;
use crate::time::Timestamp;
#[cfg(feature = "conformance")]
use crate::time::{Clock, ManualClock};

/// Counters on Redis. The [module](self) says what it guarantees.
///
/// A cheap handle: clones share the connections.
#[derive(Clone)]
pub struct RedisStore {
    inner: Arc<Inner>,
}

struct Inner {
    router: Router,
    commands: Commands,
    fingerprinter: Fingerprinter,
    watch: Watch,
    /// Unless every call travels alone.
    combiner: Option<Combiner>,
    /// Unless every denial is asked for.
    denials: Option<Denials>,
    /// Unless every unit is asked for.
    leases: Option<Leases>,
    healed: AtomicU64,
    /// The condition that counters without expiry are found.
    healing: Transition,
    /// The kind of store and its server, for the log.
    label: String,
    registry: LimiterRegistry,
    #[cfg(feature = "conformance")]
    clock: Option<Arc<ManualClock>>,
}

impl RedisStore {
    /// Connects to the server at `url`: `redis://[user:password@]host[:port][/database]`, or `rediss://`
    /// for TLS (feature `redis-tls`). A server that cannot be reached is no error: the limiter's failure
    /// policy applies until the server comes up.
    ///
    /// # Errors
    ///
    /// Returns an error if `url` is not such a URL, or if the server refuses the credentials.
    pub async fn connect(url: &str) -> Result<Self, ConnectError> {
        Self::builder(url).connect().await
    }

    /// Returns a builder of a store on the server at `url`.
    pub fn builder(url: &str) -> RedisStoreBuilder {
        RedisStoreBuilder::new(Servers::One(url.to_owned()))
    }

    /// A store on the primary that the sentinels at these URLs call `name`, made step by step.
    ///
    /// Connections follow a fail-over by themselves. The URLs say how to log in to the sentinels,
    /// [`user`](RedisStoreBuilder::user) and [`password`](RedisStoreBuilder::password) how to log in
    /// to the servers. With `rediss://`, the servers are reached over TLS as well.
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

    /// A store on the cluster that has servers at these URLs, made step by step. The others are
    /// found by asking these.
    ///
    /// All keys of a subject are on one server; subjects spread over all. Commands follow slots that
    /// move to other servers, and replicas that are promoted.
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

    /// The scripts of a layout, for operators who load them ahead of the service.
    pub fn scripts(layout: Layout) -> impl Iterator<Item = &'static Script> {
        scripts::of_layout(layout).into_iter()
    }

    /// How many counters without expiry were found and given one since the store was made.
    ///
    /// In the packed layout a request that passes writes a new expiry in any case; only a denial
    /// looks whether there was one.
    #[must_use]
    pub fn healed(&self) -> u64 {
        self.inner.healed.load(Ordering::Relaxed)
    }

    fn who<'a>(&self, namespace: &'a Namespace, subject: &'a Subject) -> WhoRef<'a> {
        let fingerprint = self.inner.fingerprinter.fingerprint(namespace, subject);
        WhoRef { namespace, subject, fingerprint }
    }

    /// Sends a command; returns what a script replied.
    async fn send(&self, command: Command) -> Result<Vec<u8>, StoreError> {
        #[cfg(feature = "conformance")]
        let command = match &self.inner.clock {
            Some(clock) => command.at(clock.now()),
            None => command,
        };
        self.inner.router.send(&command).await
    }

    /// Counts counters that had no expiry, and logs one line when some are found and one when no more are.
    fn note_healed(&self, healed: u64) {
        let Inner { healing, label, .. } = &*self.inner;
        if healed > 0 {
            self.inner.healed.fetch_add(healed, Ordering::Relaxed);
            if healing.occurred_times(healed) {
                observe::healed(label, healed);
            }
        } else if let Some(ended) = healing.ended() {
            observe::healing_ended(label, ended);
        }
    }

    /// Checks, together with others if that is wanted; a denial is remembered if that is.
    fn check(
        &self,
        who: WhoRef<'_>,
        policy: &Policy,
        cost: Cost,
        asking: Option<Asking>,
    ) -> StoreFuture<Decision> {
        let lone = match &self.inner.combiner {
            Some(combiner) => match self.join(combiner, who, policy, Question::Check(cost), asking)
            {
                Joined::Waiting(told) => return MaybeReady::later(batching::wait(told)),
                Joined::Alone(lone) => Some(lone),
            },
            None => None,
        };
        let (this, who, policy) = (self.clone(), who.to_owned(), policy.clone());
        MaybeReady::later(async move {
            let _lone = lone;
            this.check_and_note(who.as_ref(), &policy, cost, asking).await
        })
    }

    /// Asks the server, in a call of its own.
    fn ask_for(&self, charge: OnePart<'_>) -> StoreFuture<Decision> {
        let command = match self.inner.commands.decide(&charge) {
            Ok(command) => command,
            Err(error) => return MaybeReady::ready(Err(error)),
        };
        let (this, policy, mode, cost) =
            (self.clone(), charge.policy.clone(), charge.mode, charge.cost);
        MaybeReady::later(async move {
            let reply = this.send(command).await?;
            let asked = Asked { policy: &policy, mode, cost };
            let answer = reply_reader::read_one(&reply, 1, asked)?;
            this.note_healed(answer.healed);
            Ok(answer.decision(0, asked))
        })
    }

    /// Sends what has no answer but that it was done.
    fn carry_out(
        &self,
        who: WhoRef<'_>,
        command: Result<Command, StoreError>,
        is_reset: bool,
    ) -> StoreFuture<()> {
        match command {
            Ok(command) => {
                let (this, who) = (self.clone(), who.to_owned());
                MaybeReady::later(async move {
                    let denials = this.inner.denials.as_ref();
                    let forgetting = Forgetting { denials, who };
                    // What is held was charged to counts that are about to go.
                    let _nobody_spends = match &this.inner.leases {
                        Some(leases) if is_reset => leases.give_up(forgetting.who.clone()).await,
                        _ => None,
                    };
                    this.send(command).await.map(drop)
                })
            }
            Err(error) => MaybeReady::ready(Err(error)),
        }
    }
}

impl Store for RedisStore {
    fn decide(&self, request: DecideRequest<'_>) -> StoreFuture<Decision> {
        let charge = match OnePart::try_from(&request) {
            Ok(charge) => charge,
            Err(error) => return MaybeReady::ready(Err(error)),
        };
        match request.reservations {
            Reservations::Ignore => {}
            Reservations::ReturnExpired => return self.decide_and_reserve(charge, None),
            Reservations::Reserve(lifetime) => {
                return self.decide_and_reserve(charge, Some(lifetime));
            }
        }
        let OnePart { namespace, subject, policy, mode, cost } = charge;
        if mode == Mode::Check && cost > Cost::ZERO && !policy.has_permits() {
            let (who, now) = (self.who(namespace, subject), self.inner.watch.now());
            let leases = self.inner.leases.as_ref();
            if let Some(leased) = leases.and_then(|leases| leases.spend(who, policy, cost, now)) {
                return MaybeReady::ready(Ok(leased));
            }
            let asking = match &self.inner.denials {
                Some(denials) => {
                    let known = denials.known(who, now);
                    if let Some((denial, micros)) = known.denial(who, policy, cost) {
                        return MaybeReady::ready(Ok(denial.at_later(micros)));
                    }
                    Some(known.asking(who))
                }
                None => None,
            };
            if let Some(leases) = leases.filter(|_| coded(policy).is_all_fixed) {
                return self.check_leased(leases, who, policy, cost, asking);
            }
            if self.inner.combiner.is_some() || asking.is_some() {
                return self.check(who, policy, cost, asking);
            }
        }
        self.ask_for(charge)
    }

    fn decide_locally(&self, request: &DecideRequest<'_>) -> Option<Decision> {
        let OnePart { namespace, subject, policy, mode, cost } = OnePart::try_from(request).ok()?;
        if mode != Mode::Check || cost == Cost::ZERO || policy.has_permits() {
            return None;
        }
        let (who, now) = (self.who(namespace, subject), self.inner.watch.now());
        let leases = self.inner.leases.as_ref();
        if let Some(leased) = leases.and_then(|leases| leases.spend(who, policy, cost, now)) {
            return Some(leased);
        }
        let known = self.inner.denials.as_ref()?.known(who, now);
        let (denial, micros) = known.promised(who, policy, cost)?;
        Some(denial.at_later(micros))
    }

    fn label(&self) -> &str {
        &self.inner.label
    }

    fn registry(&self) -> Option<&LimiterRegistry> {
        Some(&self.inner.registry)
    }

    fn refund(&self, refund: Refund<'_>) -> StoreFuture<()> {
        if refund.is_empty() {
            return MaybeReady::ready(Ok(()));
        }
        let who = self.who(refund.namespace, refund.subject);
        self.carry_out(who, self.inner.commands.refund(&refund), false)
    }

    fn renew(&self, renewal: Renewal<'_>) -> StoreFuture<Option<Timestamp>> {
        if renewal.is_empty() {
            return MaybeReady::ready(Ok(Some(renewal.charged)));
        }
        match self.inner.commands.renew(&renewal) {
            Ok(command) => {
                let this = self.clone();
                MaybeReady::later(
                    async move { arguments::read_renewed(&this.send(command).await?) },
                )
            }
            Err(error) => MaybeReady::ready(Err(error)),
        }
    }

    fn reset(&self, reset: Reset<'_>) -> StoreFuture<()> {
        let who = self.who(reset.namespace, reset.subject);
        self.carry_out(who, self.inner.commands.reset(&reset), true)
    }

    fn change_reservation(
        &self,
        reservation: Reservation<'_>,
        change: ReservationChange,
    ) -> StoreFuture<ReservationStatus> {
        self.renew_or_settle(reservation, change)
    }

    fn close(&self) -> StoreFuture<()> {
        let this = self.clone();
        // The inherent function, not this one.
        MaybeReady::later(async move { Self::close(&this).await })
    }
}

impl fmt::Debug for RedisStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisStore")
            .field("layout", &self.inner.commands.layout)
            .finish_non_exhaustive()
    }
}
