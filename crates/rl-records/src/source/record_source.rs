use std::fmt;
use std::sync::{Arc, Weak};
use std::time::Duration;

use rl_core::observe::Observer;
use rl_core::source::{PolicyFuture, PolicySource, Preset};
use rl_core::{FailureKind, MaybeReady, Realm, StoreError, Subject};
use tokio::task::AbortHandle;

use super::cache::{Cache, Cached};
use super::caches::{CacheSettings, Caches, REALMS};
use super::stats::{LookupCounts, RecordSourceStats};
use super::timeline::{FoundPolicy, PolicyOf, Timeline};
use super::watch;
use crate::database::Records;
use crate::limits::Limits;
use crate::record::{is_name, record_id};

/// A [`PolicySource`] that returns the policies of records.
///
/// # Which policy applies
///
/// | subject | policy |
/// |---|---|
/// | a consumer ([`Realm::Consumer`]) | from its records; without a record from its tier; without a tier from the defaults |
/// | an API key ([`Realm::Key`]) | from its records; without a record from its tier, with [`tiers_of_keys`](RecordSourceBuilder::tiers_of_keys); without a tier from the policies of [`others`](RecordSourceBuilder::others) |
/// | any other | from its records; without a record from the policies of [`others`](RecordSourceBuilder::others) |
///
/// Under a rule, the records [of this rule](crate::RecordContent::rule) are added to those without a
/// rule. Each rule passes its name to the source, so this needs no setting:
///
/// ```
/// use rl_core::key::Identified;
/// use rl_core::rules::{Rule, Rules};
/// use rl_records::{RecordSource, Records};
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let source = RecordSource::start(&Records::connect("sqlite::memory:").await?);
/// let rules = Rules::new()
///     .rule(Rule::named("api").per(Identified).policies(source.clone()))
///     .rule(Rule::named("login").on("POST", "/login").per(Identified).policies(source));
/// # Ok(()) }
/// ```
///
/// For combined subjects ([`KeyExtractor::and`](rl_core::key::KeyExtractor::and)), the first
/// subject decides: the records of a consumer apply to the consumer on each route. A consumer that
/// is known only by a digest ([`Subject::digest`]) cannot have records, so its look-up fails as a
/// configuration failure.
///
/// # Look-ups
///
/// The limits of at most [capacity](RecordSourceBuilder::capacity) consumers are cached. After an
/// hour they are looked up again in the background. Records begin and end on time without a
/// look-up.
///
/// Subjects of other realms, such as addresses, are looked up only if any subject of their realm has
/// a record. If this is unknown, because the database was never read, or if their look-up fails,
/// their policies are those of [`others`](RecordSourceBuilder::others). Only keys whose tiers are
/// looked up are decided by the failure policy then, as consumers are.
///
/// After a change, the next request waits for the new limits until the
/// [deadline](RecordSourceBuilder::deadline). While the database is down, the last known limits
/// apply. A consumer that was never looked up is then decided by the failure policy of the limiter.
///
/// If a change is made through these [`Records`], the call waits at most one second until the new
/// limits are looked up. So the change takes effect here even if the database is lost right
/// afterwards. After a change of a tier, the most recently used members are looked up first. The
/// others are looked up with their next request.
///
/// Only a few look-ups run or wait at the same time, however many consumers clients invent. Beyond
/// that, a request gets an error ([`FailureKind::Overloaded`]) without waiting. After a failed
/// look-up, one look-up is tried each second, until one succeeds.
///
/// Clones are cheap and share the caches.
#[derive(Clone)]
pub struct RecordSource {
    inner: Arc<Inner>,
    rule: Option<Arc<str>>,
}

struct Inner {
    caches: Arc<Caches>,
    records: Records,
    others: Arc<dyn PolicySource>,
    policy_of: PolicyOf,
    deadline: Duration,
    has_keys: bool,
    counts: LookupCounts,
    // The tasks end when the last clone of the source is dropped.
    tasks: Vec<AbortHandle>,
}

impl RecordSource {
    /// Creates a source with the default settings, and starts to listen for changes.
    ///
    /// # Panics
    ///
    /// Panics outside a tokio runtime.
    #[must_use]
    pub fn start(records: &Records) -> Self {
        Self::builder(records).start()
    }

    /// Returns a builder for a source with other settings.
    pub fn builder(records: &Records) -> RecordSourceBuilder {
        RecordSourceBuilder {
            records: records.clone(),
            others: Arc::new(Preset::OpenBank),
            counts_all: false,
            capacity: 100_000,
            deadline: Duration::from_millis(50),
            refresh_after: Duration::from_secs(3_600),
            poll_every: records.database().poll_every(),
            has_keys: false,
            observers: Vec::new(),
        }
    }

    /// Returns this source for the rule called `name`. Under a rule of a limiter it keeps this name,
    /// so that several rules can have the records of one.
    ///
    /// # Examples
    ///
    /// ```
    /// use rl_core::key::Identified;
    /// use rl_core::rules::Rule;
    /// use rl_records::{RecordSource, Records};
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let source = RecordSource::start(&Records::connect("sqlite::memory:").await?);
    /// let old = Rule::named("login-of-2025").per(Identified).policies(source.for_rule("login"));
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn for_rule(&self, name: impl Into<Arc<str>>) -> Self {
        Self { inner: self.inner.clone(), rule: Some(name.into()) }
    }

    /// Returns the policy of the application `app` when it uses the resource `name`. Returns `None`
    /// if the resource does not list the application.
    ///
    /// # Errors
    ///
    /// Resolves to an error if the resource has not been looked up before and the database fails.
    ///
    /// # Examples
    ///
    /// ```
    /// use rl_core::{Limit, RateLimiter, Realm, Subject};
    /// use rl_records::{RecordSource, Records, ResourceLimitContent};
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let records = Records::connect("sqlite::memory:").await?;
    /// let content = ResourceLimitContent {
    ///     name: "payments".into(),
    ///     apps: vec!["shop".into()],
    ///     limits: "1/second:token-bucket:capacity=2, 1000/day".parse()?,
    /// };
    /// records.resources().create(content, "alice").await?;
    ///
    /// let source = RecordSource::start(&records);
    /// let limiter = RateLimiter::builder().policies(source.clone()).build()?;
    /// let payments = Subject::new(Realm::custom("resource")?, "payments");
    ///
    /// let policy = source.resource("payments", "shop").await?.expect("it is listed");
    /// assert!(limiter.request(&payments).policy(&policy).cost(2).check().await.is_allowed());
    /// assert!(!limiter.request(&payments).policy(&policy).check().await.is_allowed());
    /// assert!(source.resource("payments", "sho").await?.is_none());
    /// # Ok(()) }
    /// ```
    pub fn resource(&self, name: &str, app: &str) -> PolicyFuture {
        if !is_name(name) {
            return MaybeReady::ready(Ok(None));
        }
        let app = app.to_owned();
        self.cached(&self.inner.caches.resources, name, move |resource| {
            resource.as_ref().and_then(|resource| resource.policy_for(&app))
        })
    }

    /// Returns the counts of the source.
    #[must_use]
    pub fn stats(&self) -> RecordSourceStats {
        let caches = &self.inner.caches;
        self.inner.counts.stats(caches.consumers.len(), caches.lag())
    }

    fn consumer_policy(&self, consumer: &Subject) -> PolicyFuture {
        let owner = consumer.owner().id();
        match record_id(consumer) {
            Some(id) => {
                let found = self.timeline(&self.inner.caches.consumers, &id);
                found.map(|found| found.map(|found| found.policy))
            }
            // Records are found by the id of their consumer, but only a digest of this id is known.
            // The consumer may have records, so the defaults may be wrong.
            None if owner.as_text().is_none() && !owner.is_of_long_text() => {
                let error = StoreError::new(FailureKind::Unsupported);
                let detail = "a consumer that is known only by a digest has no records";
                MaybeReady::ready(Err(error.with_detail(detail)))
            }
            // The id is empty, too long or contains control characters. No record can contain it,
            // so the defaults apply.
            None => {
                let limits = self.inner.records.aggregation().limits([]);
                MaybeReady::ready(Ok((self.inner.policy_of)(&limits)))
            }
        }
    }

    /// Returns the policy of a subject that is no consumer.
    fn subject_policy(&self, subject: &Subject) -> PolicyFuture {
        let Some(id) = record_id(subject) else { return self.inner.others.policy(subject) };
        let realm = subject.realm();
        let has_tiers = *realm == Realm::Key && self.inner.has_keys;
        let key = || format!("{}/{id}", realm.as_str());
        let is_looked_up = match has_tiers {
            true => MaybeReady::ready(true),
            false => self.has_records(realm.as_str()),
        };
        let found = match is_looked_up {
            MaybeReady::Ready(Some(false)) => return self.inner.others.policy(subject),
            MaybeReady::Ready(_) => self.timeline(&self.inner.caches.subjects, &key()),
            MaybeReady::Boxed(pending) => {
                let (source, key) = (self.clone(), key());
                MaybeReady::later(async move {
                    match pending.await {
                        true => source.timeline(&source.inner.caches.subjects, &key).await,
                        false => Ok(FoundPolicy::default()),
                    }
                })
            }
        };
        // Clients can invent addresses faster than they are looked up. If these had no policy, the
        // failure policy of the limiter might allow all of them. A key may have a stricter tier.
        let known = found.map(move |found| match found {
            Err(_) if !has_tiers => Ok(FoundPolicy::default()),
            found => found,
        });
        let pending = match known {
            MaybeReady::Ready(found) => {
                return match found {
                    Some(Ok(found)) if found.is_default => {
                        self.policy_of_others(subject, found.grants)
                    }
                    found => MaybeReady::Ready(found.map(|found| found.map(|found| found.policy))),
                };
            }
            MaybeReady::Boxed(pending) => pending,
        };
        let (source, subject) = (self.clone(), subject.clone());
        MaybeReady::later(async move {
            let found = pending.await?;
            match found.is_default {
                true => source.policy_of_others(&subject, found.grants).await,
                false => Ok(found.policy),
            }
        })
    }

    /// Returns the policy that the source for other subjects has, with what `grants` add to it.
    fn policy_of_others(&self, subject: &Subject, grants: Limits) -> PolicyFuture {
        let policy = self.inner.others.policy(subject);
        if grants.is_empty() {
            return policy;
        }
        policy.map(move |policy| Ok(policy?.map(|policy| grants.add_to_policy(policy))))
    }

    /// Returns whether a subject of this realm has a record. Without an answer of the database, the
    /// last known one applies; if none is known, no subject has a record.
    fn has_records(&self, realm: &str) -> MaybeReady<bool> {
        let is_in = |realms: &[String], realm: &str| realms.iter().any(|known| known == realm);
        let (lookup, last) = match self.inner.caches.realms.get(REALMS) {
            Cached::Value(realms) => return MaybeReady::ready(is_in(&realms, realm)),
            Cached::Failed(_) => return MaybeReady::ready(false),
            Cached::Pending { lookup, last } => (lookup, last),
        };
        let (source, realm) = (self.clone(), realm.to_owned());
        MaybeReady::later(async move {
            let found = tokio::time::timeout(source.inner.deadline, lookup).await;
            if found.is_err() {
                source.inner.caches.realms.give_up(REALMS);
            }
            let realms = found.ok().and_then(Result::ok).or(last);
            realms.is_some_and(|realms| is_in(&realms, &realm))
        })
    }

    /// Returns the current policy in the timeline of `key`.
    fn timeline(
        &self,
        cache: &Arc<Cache<Timeline>>,
        key: &str,
    ) -> MaybeReady<Result<FoundPolicy, StoreError>> {
        let clock = self.inner.records.database().clock().clone();
        let rule = self.rule.clone();
        self.cached(cache, key, move |timeline| timeline.policy(rule.as_deref(), clock.now()))
    }

    /// Returns the cached value of `key`, converted by `convert`. If the value is being looked up,
    /// waits for it: until the deadline if an older value is known, else until the look-up ends.
    fn cached<V: Send + Sync + 'static, T: Send + 'static>(
        &self,
        cache: &Arc<Cache<V>>,
        key: &str,
        convert: impl Fn(&V) -> T + Send + 'static,
    ) -> MaybeReady<Result<T, StoreError>> {
        let counts = &self.inner.counts;
        let (lookup, last) = match cache.get(key) {
            Cached::Value(value) => {
                LookupCounts::add(&counts.cached);
                return MaybeReady::ready(Ok(convert(&value)));
            }
            Cached::Failed(kind) => {
                LookupCounts::add(&counts.failed);
                return MaybeReady::ready(Err(source_error(kind)));
            }
            Cached::Pending { lookup, last } => {
                LookupCounts::add(&counts.waited);
                (lookup, last)
            }
        };
        let Some(last) = last else {
            return MaybeReady::later(async move {
                lookup.await.map(|value| convert(&value)).map_err(source_error)
            });
        };
        let deadline = self.inner.deadline;
        let cache = cache.clone();
        let key = key.to_owned();
        MaybeReady::later(async move {
            let value = match tokio::time::timeout(deadline, lookup).await {
                Ok(Ok(value)) => value,
                Ok(Err(_)) => last,
                Err(_) => {
                    cache.give_up(&key);
                    last
                }
            };
            Ok(convert(&value))
        })
    }
}

impl PolicySource for RecordSource {
    fn policy(&self, subject: &Subject) -> PolicyFuture {
        match subject.realm() {
            Realm::Consumer => self.consumer_policy(subject),
            _ => self.subject_policy(subject),
        }
    }

    fn for_rule(&self, rule: &str) -> Option<Arc<dyn PolicySource>> {
        self.rule.is_none().then(|| Arc::new(Self::for_rule(self, rule)) as _)
    }
}

fn source_error(kind: FailureKind) -> StoreError {
    StoreError::new(kind).with_detail("the database of records")
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.tasks.iter().for_each(AbortHandle::abort);
    }
}

impl fmt::Debug for RecordSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RecordSource")
            .field("records", &self.inner.records)
            .field("consumers", &self.inner.caches.consumers)
            .finish_non_exhaustive()
    }
}

/// The settings of a [`RecordSource`].
#[must_use]
pub struct RecordSourceBuilder {
    records: Records,
    others: Arc<dyn PolicySource>,
    counts_all: bool,
    capacity: usize,
    deadline: Duration,
    refresh_after: Duration,
    poll_every: Duration,
    has_keys: bool,
    observers: Vec<Arc<dyn Observer>>,
}

impl RecordSourceBuilder {
    /// Sets the policies of subjects that are not consumers and have no record. Defaults to [`Preset::OpenBank`],
    /// which allows each anonymous address 1 000 requests per hour.
    pub fn others(mut self, policies: impl PolicySource) -> Self {
        self.others = Arc::new(policies);
        self
    }

    /// Sets whether periods without a limit are counted too, so that reports show the usage in all
    /// six periods. Defaults to `false`. Such a policy costs as much as six limits.
    pub const fn count_unlimited(mut self, counts: bool) -> Self {
        self.counts_all = counts;
        self
    }

    /// Looks up the tiers of API keys ([`Realm::Key`]). Keys without a record and without a tier get
    /// the policies of [`others`](Self::others). Without this setting, all keys without a record get
    /// those policies.
    ///
    /// Every unknown key causes a look-up. So put the limiter behind the authentication; otherwise
    /// clients that invent keys keep the database busy.
    pub const fn tiers_of_keys(mut self) -> Self {
        self.has_keys = true;
        self
    }

    /// Sets the capacity of each of the three caches: for consumers, for other subjects and for
    /// resources.
    /// Defaults to 100 000. A full cache evicts the least recently used entries.
    pub const fn capacity(mut self, count: usize) -> Self {
        self.capacity = count;
        self
    }

    /// Sets how long a request waits for a limit that has changed. Defaults to 50 ms. After that
    /// time, the last known limit applies until the look-up has ended.
    ///
    /// Set it lower than the [deadline of the limiter](rl_core::RateLimiterBuilder::deadline).
    /// Otherwise the failure policy of the limiter applies although a limit is known.
    pub const fn deadline(mut self, deadline: Duration) -> Self {
        self.deadline = deadline;
        self
    }

    /// Sets the age at which limits are looked up again if they have not changed. Defaults to one
    /// hour.
    pub const fn refresh_after(mut self, age: Duration) -> Self {
        self.refresh_after = age;
        self
    }

    /// Sets the interval at which the change log of the database is polled. Defaults to half a
    /// second, so that changes of other instances take effect within a second. On MySQL and
    /// MariaDB, which cannot announce a change, defaults to 200 milliseconds unless changes are
    /// announced on Redis.
    ///
    /// Each poll reads one row by its primary key. An announcement of PostgreSQL or Redis only
    /// triggers a poll, so a lost announcement loses no change. The minimum interval is one
    /// millisecond.
    pub const fn poll_every(mut self, interval: Duration) -> Self {
        self.poll_every = interval;
        self
    }

    /// Adds an observer, which receives [`EventKind::PoliciesChanged`] when the source has read
    /// changes of limits. Defaults to none. Failed look-ups are events of the limiter.
    ///
    /// [`EventKind::PoliciesChanged`]: rl_core::observe::EventKind::PoliciesChanged
    pub fn observer(mut self, observer: impl Observer) -> Self {
        self.observers.push(Arc::new(observer));
        self
    }

    /// Starts the source, which listens for changes.
    ///
    /// # Panics
    ///
    /// Panics outside a tokio runtime.
    #[must_use]
    pub fn start(self) -> RecordSource {
        let policy_of: PolicyOf =
            if self.counts_all { Limits::counting_policy } else { Limits::policy };
        let settings = CacheSettings {
            policy_of,
            capacity: self.capacity,
            fresh_micros: u64::try_from(self.refresh_after.as_micros()).unwrap_or(u64::MAX),
            has_keys: self.has_keys,
        };
        let database = self.records.database();
        let caches = Arc::new(Caches::new(database, settings));
        let listener: Weak<Caches> = Arc::downgrade(&caches);
        database.add_listener(listener);
        let poll_every = self.poll_every.max(Duration::from_millis(1));
        let tasks = watch::start(database, &caches, poll_every, self.observers);
        let inner = Inner {
            caches,
            records: self.records,
            others: self.others,
            policy_of,
            deadline: self.deadline,
            has_keys: self.has_keys,
            counts: LookupCounts::default(),
            tasks,
        };
        RecordSource { inner: Arc::new(inner), rule: None }
    }
}

impl fmt::Debug for RecordSourceBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RecordSourceBuilder")
            .field("records", &self.records)
            .field("capacity", &self.capacity)
            .field("deadline", &self.deadline)
            .field("refresh_after", &self.refresh_after)
            .field("poll_every", &self.poll_every)
            .field("has_keys", &self.has_keys)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Fault: the poll interval was one second, so a poll and the look-ups after it took longer
    /// than the documented second.
    #[tokio::test]
    async fn a_poll_and_the_look_ups_after_it_take_less_than_a_second() {
        let records = Records::connect("sqlite::memory:").await.unwrap();
        let settings = RecordSource::builder(&records);
        let longest = settings.poll_every + 2 * settings.deadline;
        assert!(longest < Duration::from_millis(900), "{longest:?}");
    }
}
