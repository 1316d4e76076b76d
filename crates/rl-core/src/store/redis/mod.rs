//! Counters on Redis.
//!
//! A request passes through layers, each of which decides what it can: leased units, cached
//! denials, batching, and finally the script on the server. Each layer has its own file or folder
//! in `store/redis`.

#[cfg(feature = "redis-cluster")]
mod across_slots;
mod batching;
mod builder;
mod connection;
mod encoding;
mod error;
mod executor;
mod give_back;
mod layer;
mod scripts;
mod shortcuts;
mod subject_key;
#[cfg(test)]
mod test_layer;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

#[cfg(feature = "redis-cluster")]
use across_slots::{AcrossSlots, LayerCalls, slots_of};
use batching::Batcher;
pub use builder::RedisStoreBuilder;
use builder::Servers;
#[cfg(feature = "redis-tls")]
#[cfg_attr(docsrs, doc(cfg(feature = "redis-tls")))]
pub use connection::Tls;
pub use encoding::Layout;
use encoding::arguments;
use encoding::policy::PolicyEncoding;
pub use error::ConnectError;
use executor::ScriptExecutor;
use give_back::GiveBack;
use layer::{Amendment, Amendments, Layer, PlainCheck, Request, RequestPart};
use scripts::Purpose;
pub use scripts::Script;
use shortcuts::{DenialCache, Leases};
use smallvec::smallvec;
use subject_key::{KeyedSubject, SubjectKey};
use tokio::time::timeout;

use super::fingerprint::Fingerprinter;
use super::part_groups::{GroupDecisions, PartGroup, PartGroups};
use super::{
    DecideRequest, Lease, LeaseStatus, LimiterRegistry, Namespace, Part, Renewal, Reservation,
    Reservations, Reset, ServerLoads, Settlement, Store, StoreFuture, StoreReport,
};
use crate::decision::Decision;
use crate::maybe_ready::{MaybeReady, both, done};
#[cfg(feature = "conformance")]
use crate::model::Cost;
use crate::model::{FailureKind, StoreError, Subject};
use crate::policy::Policy;
use crate::stats::{RedisStats, StoreStats};
use crate::time::Timestamp;

/// The longest time that closing may take.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(5);

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
    executor: ScriptExecutor,
    give_back: GiveBack,
    #[cfg(feature = "redis-cluster")]
    across_slots: AcrossSlots<LayerCalls>,
    fingerprinter: Fingerprinter,
    registry: LimiterRegistry,
}

impl RedisStore {
    /// Connects to the servers at `url`. A server that cannot be reached does not cause an error:
    /// the limiter's failure policy applies until it can be reached.
    ///
    /// | URL | servers | feature |
    /// |---|---|---|
    /// | `redis://[user:password@]host[:port][/database]` | one server | |
    /// | `redis-sentinel://[user:password@]host[:port],…[/database][?sentinel_password=…]#NAME` | the primary that the sentinels at these hosts call `NAME`; the login and the database are those of the servers | `redis-sentinel` |
    /// | `redis-cluster://[user:password@]host[:port],…` | the cluster to which these servers belong | `redis-cluster` |
    /// | `rediss://…`, `rediss-sentinel://…`, `rediss-cluster://…` | the same over TLS; `?ca=FILE` trusts the authorities of this file instead of those of the system, and `cert=FILE&key=FILE` presents a client certificate | `redis-tls` |
    ///
    /// Special characters of users, passwords and files are percent-encoded.
    ///
    /// # Errors
    ///
    /// Returns an error if `url` has another form or needs a feature that is not enabled, if a file
    /// cannot be used, or if a server refuses the credentials.
    pub async fn connect(url: &str) -> Result<Self, ConnectError> {
        Self::builder(url).connect().await
    }

    /// Returns a builder of a store on the servers at `url`, which has one of the forms of
    /// [`connect`](Self::connect).
    pub fn builder(url: &str) -> RedisStoreBuilder {
        RedisStoreBuilder::new(Servers::One(url.to_owned()))
    }

    /// Checks the form of a URL for [`connect`](Self::connect), without connecting and without
    /// reading files.
    ///
    /// # Errors
    ///
    /// Returns an error if `url` has another form, or needs a feature that is not enabled.
    pub fn check_url(url: &str) -> Result<(), ConnectError> {
        RedisStoreBuilder::check_url(url)
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
    /// refunds, settlements, returned leases, and denials of requests of several parts on a
    /// cluster.
    ///
    /// Such a charge counts until it expires. While Redis certainly executes nothing, the store
    /// repeats the call that gives the charge back, for a minute. If the reply to a call is lost,
    /// the store counts it here and does not repeat it. [REDIS.md](crate::_documentation::redis)
    /// describes both.
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

    /// Returns all [leased](RedisStoreBuilder::lease) units to the server, and leases no
    /// more. Then waits until all charges are given back: those of permits that were dropped, and
    /// those of denied requests on a cluster.
    ///
    /// A service calls it when it shuts down, after its last request. The store continues to decide
    /// afterwards, and asks the server each time. [`RateLimiter::close`](crate::RateLimiter::close)
    /// does the same through the limiter.
    ///
    /// Closing takes one round trip for each subject, with 64 of them at the same time, and at most
    /// 5 seconds. Without leases, and without charges to give back, it does nothing.
    ///
    /// # Errors
    ///
    /// Returns an error if some units could not be returned or given back. They stay charged until
    /// their windows end.
    pub async fn close(&self) -> Result<(), StoreError> {
        let closing = async {
            let returned = self.inner.layers.close().await;
            self.inner.give_back.finish().await;
            returned
        };
        let late = |_| Err(StoreError::new(FailureKind::TimedOut));
        timeout(CLOSE_TIMEOUT, closing).await.unwrap_or_else(late)
    }

    /// Returns the scripts of a layout that decide these policies, for operators who load them
    /// ahead of the service, or for [`preload`](RedisStoreBuilder::preload).
    ///
    /// Policies whose limits are of the same kinds share scripts. A store runs the scripts of the
    /// first 64 combinations of kinds that it decides. Other combinations, and all operations
    /// except checks and refunds, need only the scripts that this function returns without any
    /// policy.
    pub fn scripts<'a>(
        layout: Layout,
        policies: impl IntoIterator<Item = &'a Policy>,
    ) -> Vec<&'static Script> {
        let mut listed = scripts::of_layout(layout);
        for policy in policies {
            add_scripts(Purpose::of_layout(layout), [policy], &mut listed);
        }
        listed
    }

    /// Returns the scripts of the packed layout that decide requests of several parts. Each request
    /// is the list of the policies of its parts, in their order: one policy for each
    /// [rule](crate::rules) that matches, in the order of the rules.
    ///
    /// Requests whose policies are of the same kinds share scripts. A store runs these scripts for
    /// the first 64 lists of kinds that it decides. Other requests need only the scripts that
    /// [`scripts`](Self::scripts) returns without any policy.
    ///
    /// ```
    /// use rl_core::{Limit, Policy, RedisStore};
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let (key, fleet) = (Policy::new([Limit::per_minute(9)])?, Policy::new([Limit::per_second(90)])?);
    /// let scripts = RedisStore::scripts_of_parts([vec![&key, &fleet], vec![&key]]);
    /// assert!(scripts.iter().all(|script| script.name().contains("fixed_window")));
    /// # Ok(()) }
    /// ```
    pub fn scripts_of_parts<'a, P>(requests: impl IntoIterator<Item = P>) -> Vec<&'static Script>
    where
        P: IntoIterator<Item = &'a Policy>,
    {
        let mut listed = Vec::new();
        for request in requests {
            let policies: Vec<_> = request.into_iter().collect();
            let purposes = match policies[..] {
                [_] => Purpose::of_layout(Layout::Packed),
                _ => &[Purpose::Parts],
            };
            add_scripts(purposes, policies, &mut listed);
        }
        listed
    }

    fn key(&self, namespace: &Namespace, subject: &Subject) -> SubjectKey {
        SubjectKey::new(self.inner.fingerprinter.fingerprint(namespace, subject))
    }

    fn keyed(&self, namespace: &Namespace, subject: &Subject) -> KeyedSubject {
        let key = self.key(namespace, subject);
        KeyedSubject { namespace: namespace.clone(), subject: subject.clone(), key }
    }

    /// Decides the only part of a request without asking the server. The shortcuts borrow the part,
    /// because to own it takes longer than a shortcut itself.
    fn try_shortcuts(&self, request: &DecideRequest<'_>) -> Option<Decision> {
        let part = sole_part(request)?;
        let key = self.key(request.namespace_of(part), part.subject);
        let check = PlainCheck::new(request.mode, key, part.policy, part.cost)?;
        self.inner.layers.try_shortcuts(check, request.reservations)
    }

    /// Returns a request that owns the only part of `request`.
    fn owned(&self, request: &DecideRequest<'_>, part: &Part<'_>) -> Arc<Request> {
        let subject = self.keyed(request.namespace_of(part), part.subject);
        let (policy, cost) = (part.policy.clone(), part.cost);
        let parts = smallvec![RequestPart { subject, policy, cost, is_shadow: false }];
        let (mode, reservations) = (request.mode, request.reservations);
        Arc::new(Request { parts, mode, reservations })
    }

    /// Groups the parts of a request by their counters.
    fn grouped<'a>(
        &self,
        request: &DecideRequest<'a>,
    ) -> Result<(PartGroups<'a, SubjectKey>, Arc<Request>), StoreError> {
        let grouped = PartGroups::new(request, |namespace, subject| self.key(namespace, subject))?;
        let part = |group: &PartGroup<'_, SubjectKey>| {
            let PartGroup { key, namespace, subject, policy, cost, is_shadow } = *group;
            let (namespace, subject) = (namespace.clone(), subject.clone());
            let subject = KeyedSubject { namespace, subject, key };
            RequestPart { subject, policy: policy.clone(), cost, is_shadow }
        };
        let parts = grouped.groups().iter().map(part).collect();
        // Requests of several parts make no reservations.
        let request = Request { parts, mode: request.mode, reservations: Reservations::Ignore };
        Ok((grouped, Arc::new(request)))
    }

    /// Makes changes in one step, or on a cluster in one step for each slot.
    fn settle_all(&self, changes: Amendments) -> StoreFuture<()> {
        let is_repeated = |(index, change): (usize, &Amendment)| {
            changes[index + 1..].iter().any(|other| other.subject.key == change.subject.key)
        };
        if changes.iter().enumerate().any(is_repeated) {
            let error = StoreError::new(FailureKind::Unsupported);
            let error = error.with_detail("several settlements of one subject in one call");
            return MaybeReady::ready(Err(error));
        }
        let calls = self.inner.executor.calls_of(changes).into_iter();
        calls.map(|call| self.give_back(call).map(|reply| reply.map(drop))).fold(done(), both)
    }

    /// Makes changes in one call, which is repeated while Redis certainly executes nothing.
    fn give_back(&self, amendments: Amendments) -> StoreFuture<Vec<u8>> {
        let layers = self.inner.layers.clone();
        self.inner.give_back.run(move || layers.amend(amendments.clone()))
    }

    /// Sends the parts of a request in one script call, or on a cluster in one call for each
    /// slot.
    fn send_parts(&self, request: Arc<Request>) -> StoreFuture<GroupDecisions> {
        #[cfg(feature = "redis-cluster")]
        match slots_of(&self.inner.executor, &request) {
            Ok(slots) if slots.len() > 1 => {
                // A cached denial denies the request before any slot is called.
                return match self.inner.layers.denials().denial_of(&request) {
                    Some(denied) => MaybeReady::ready(Ok(denied)),
                    None => self.inner.across_slots.decide(request, slots),
                };
            }
            Ok(_) => {}
            Err(error) => return MaybeReady::ready(Err(error)),
        }
        self.inner.layers.decide(request)
    }
}

impl Store for RedisStore {
    fn decide(&self, request: DecideRequest<'_>) -> StoreFuture<Decision> {
        if let Some(decision) = self.try_shortcuts(&request) {
            return MaybeReady::ready(Ok(decision));
        }
        if let Some(part) = sole_part(&request) {
            let decided = self.inner.layers.decide(self.owned(&request, part));
            return decided.map(|decided| sole(decided?));
        }
        let (grouped, request) = match self.grouped(&request) {
            Ok(grouped) => grouped,
            Err(error) => return MaybeReady::ready(Err(error)),
        };
        let join = grouped.join();
        self.send_parts(request)
            .map(move |decided| Ok(join.decision(decided?.into_iter().collect())))
    }

    fn decide_locally(&self, request: &DecideRequest<'_>) -> Option<Decision> {
        if let Some(part) = sole_part(request) {
            return sole(self.inner.layers.decide_locally(&self.owned(request, part))?).ok();
        }
        let (grouped, request) = self.grouped(request).ok()?;
        let decided = self.inner.layers.decide_locally(&request)?;
        Some(grouped.decision(decided.into_iter().collect()))
    }

    fn server_loads(&self, request: &DecideRequest<'_>) -> ServerLoads<'_> {
        self.inner.executor.server_loads(request)
    }

    fn report(&self) -> StoreReport<'_> {
        StoreReport {
            decides_at_once: false,
            label: self.inner.executor.label(),
            stats: StoreStats::Redis(self.stats()),
            registry: Some(&self.inner.registry),
        }
    }

    fn settle(&self, settlements: &[Settlement<'_>]) -> StoreFuture<LeaseStatus> {
        let amendment = |settlement: &Settlement<'_>| {
            let subject = self.keyed(settlement.namespace, settlement.subject);
            Amendment::settlement(subject, settlement)
        };
        if let [only] = settlements
            && let Some(Reservation { expires, .. }) = only.reservation
        {
            let ended = self.give_back(smallvec![amendment(only)]);
            return ended.map(move |reply| {
                let status = arguments::read_lease_status(&reply?, expires)?;
                Ok(match status {
                    LeaseStatus::Held(_) => LeaseStatus::Held(()),
                    LeaseStatus::Expired => LeaseStatus::Expired,
                    LeaseStatus::Forgotten => LeaseStatus::Forgotten,
                })
            });
        }
        let changes = settlements.iter().map(amendment).filter(|amendment| !amendment.is_empty());
        self.settle_all(changes.collect()).map(|settled| settled.map(LeaseStatus::Held))
    }

    fn renew(&self, renewal: Renewal<'_>) -> StoreFuture<LeaseStatus<Timestamp>> {
        if renewal.is_empty() {
            return MaybeReady::ready(Ok(LeaseStatus::Held(renewal.charged)));
        }
        let subject = self.keyed(renewal.namespace, renewal.subject);
        let amended = self.inner.layers.amend(smallvec![Amendment::renewal(subject, &renewal)]);
        let lease = renewal.lease;
        amended.map(move |reply| match lease {
            Lease::Permits => {
                let renewed = arguments::read_renewed(&reply?)?;
                Ok(renewed.map_or(LeaseStatus::Expired, LeaseStatus::Held))
            }
            Lease::Reservation { expires, .. } => arguments::read_lease_status(&reply?, expires),
        })
    }

    fn reset(&self, resets: &[Reset<'_>]) -> StoreFuture<()> {
        let subject =
            |reset: &Reset<'_>| (self.keyed(reset.namespace, reset.subject), reset.limit.is_some());
        let subjects = resets.iter().map(subject).collect();
        let reset = self.inner.executor.reset(resets);
        self.inner.layers.reset_after_leases(subjects, reset)
    }

    fn publish_note(&self, namespace: &Namespace, instance: &str, note: &str) -> StoreFuture<()> {
        if instance.is_empty() || note.contains('\n') {
            let error = StoreError::new(FailureKind::Unsupported);
            let detail = "expected the id of an instance, and a note without line breaks";
            return MaybeReady::ready(Err(error.with_detail(detail)));
        }
        self.inner.executor.notes(namespace, instance, note).map(|reply| reply.map(drop))
    }

    fn read_notes(&self, namespace: &Namespace) -> StoreFuture<Vec<String>> {
        self.inner.executor.notes(namespace, "", "").map(|reply| {
            let reply = reply?;
            let notes = reply.split(|byte| *byte == b'\n').filter(|note| !note.is_empty());
            Ok(notes.map(|note| String::from_utf8_lossy(note).into_owned()).collect())
        })
    }

    fn close(&self) -> StoreFuture<()> {
        let this = self.clone();
        // This calls the inherent function `close`, not the method of the trait.
        MaybeReady::later(async move { Self::close(&this).await })
    }
}

/// Returns the only part of a request, if it is neither in shadow nor undisclosed. Its decision is
/// the decision on the request.
fn sole_part<'a>(request: &DecideRequest<'a>) -> Option<&'a Part<'a>> {
    let [part] = request.parts else { return None };
    part.is_plain().then_some(part)
}

/// Returns the decision on the only part of a request.
fn sole(decisions: GroupDecisions) -> Result<Decision, StoreError> {
    decisions.into_iter().next().ok_or_else(encoding::reply_reader::undecided)
}

impl fmt::Debug for RedisStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisStore")
            .field("layout", &self.inner.executor.layout())
            .finish_non_exhaustive()
    }
}

/// Adds the scripts for parts under these policies that are not listed yet.
fn add_scripts<'a>(
    purposes: &[Purpose],
    policies: impl IntoIterator<Item = &'a Policy>,
    listed: &mut Vec<&'static Script>,
) {
    let shapes = policies.into_iter().map(|policy| PolicyEncoding::new(policy).script_shape());
    let shapes: Vec<_> = shapes.collect();
    for script in purposes.iter().filter_map(|purpose| scripts::of_shapes(*purpose, &shapes)) {
        if !listed.iter().any(|known| known.sha() == script.sha()) {
            listed.push(script);
        }
    }
}
