//! Records as a source of policies.

mod cache;
mod settings;
mod timeline;
mod watch;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures::future::{BoxFuture, FutureExt, join_all};
use rl_core::StoreError;
use rl_core::source::{PolicyFuture, PolicySource};
use rl_core::time::Timestamp;
use rl_core::{FailureKind, MaybeReady, Policy, Realm, Subject};
use tokio::task::AbortHandle;

pub use settings::RecordSourceBuilder;

use crate::database::{Kind, Listener};
use crate::record::is_name;
use crate::{CallLimits, Records, ResourceLimitContent};
use cache::{Cache, Found, Load};
use timeline::Timeline;

/// The policies that records make, as a [`PolicySource`].
///
/// Consumers ([`Realm::Consumer`]) are under their records, else under their tier, else under the
/// defaults; API keys ([`Realm::Key`]) under their tier, if
/// [that is wanted](RecordSourceBuilder::tiers_of_keys). Everybody else is under the policies of
/// [`RecordSourceBuilder::others`]. Of subjects [made one](rl_core::key::KeyExtractor::and), the first
/// is looked up: a consumer on each route is under the records of the consumer. A consumer that is known
/// by a digest only ([`Subject::digest`]) cannot have any, which is an error of the configuration.
///
/// What was looked up is kept, at most [capacity](RecordSourceBuilder::capacity) consumers, and
/// looked up again after an hour while the old answer serves on. Records begin and end on time
/// without a look-up. After a change the next request waits for the new answer, at most the
/// [deadline](RecordSourceBuilder::deadline). If the database does not answer, the last good policy
/// holds, however many others are asked for; a consumer that was never looked up is under the limiter's
/// failure policy, by an error or when the limiter's own deadline has passed.
///
/// A change that is made through these [`Records`] is looked up before the call returns, so it holds here
/// although the database is lost right after. That takes one second at most. A change of a tier looks up
/// the members that called last first. A member that was not reached in that second, or that never
/// called, is looked up when it calls; if the database is lost before, its last good policy holds.
///
/// Few look-ups run at once and few wait, whoever invents consumers: beyond that there is an error
/// ([`FailureKind::Overloaded`]) at once. After one that failed, there is one each second until one
/// succeeds.
///
/// A cheap handle: clones share what is kept.
#[derive(Clone)]
pub struct RecordSource {
    inner: Arc<Inner>,
}

/// What the limits of a consumer become.
type PolicyOf = fn(&CallLimits) -> Option<Policy>;

struct Inner {
    consumers: Arc<Cache<Timeline>>,
    resources: Arc<Cache<Option<ResourceLimitContent>>>,
    keys: Option<Arc<Cache<Option<InTier>>>>,
    records: Records,
    others: Arc<dyn PolicySource>,
    policy_of: PolicyOf,
    deadline: Duration,
    // What waits for changes of others ends with the last handle.
    tasks: std::sync::Mutex<Vec<AbortHandle>>,
}

/// The tier of a key.
struct InTier {
    name: String,
    policy: Option<Policy>,
}

fn is_in(member: &Option<InTier>, tier: &str) -> bool {
    member.as_ref().is_some_and(|member| member.name == tier)
}

impl RecordSource {
    /// A source with the default settings, that begins to listen for changes.
    ///
    /// # Panics
    ///
    /// Panics outside a tokio runtime.
    #[must_use]
    pub fn start(records: &Records) -> Self {
        Self::builder(records).start()
    }

    /// A source with settings of its own.
    pub fn builder(records: &Records) -> RecordSourceBuilder {
        RecordSourceBuilder::new(records.clone())
    }

    /// The policy that `app` is under when it uses a resource; `None` if the resource is not
    /// configured for it.
    ///
    /// # Errors
    ///
    /// Resolves to an error if it was never looked up and the database does not answer.
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
    ///     max_permits: 2,
    ///     rate: 1,
    /// };
    /// records.create_resource(content, "alice").await?;
    ///
    /// let source = RecordSource::start(&records);
    /// let limiter = RateLimiter::builder().policies(source.clone()).build()?;
    /// let bucket = Subject::new(Realm::custom("resource")?, "payments");
    ///
    /// let policy = source.resource("payments", "shop").await?.expect("it is configured");
    /// assert!(limiter.check_with_policy(&policy, &bucket, 2).await.is_allowed());
    /// assert!(!limiter.check_with_policy(&policy, &bucket, 1).await.is_allowed());
    /// assert!(source.resource("payments", "sho").await?.is_none());
    /// # Ok(()) }
    /// ```
    pub fn resource(&self, name: &str, app: &str) -> PolicyFuture {
        if !is_name(name) {
            return MaybeReady::ready(Ok(None));
        }
        let app = app.to_owned();
        self.answer(&self.inner.resources, name, move |resource| {
            resource.as_ref().and_then(|resource| resource.policy_for(&app))
        })
    }

    /// The policy of the tier that the key is in, or else that of the others.
    fn of_key(&self, keys: &Arc<Cache<Option<InTier>>>, key: &Subject) -> PolicyFuture {
        let id = key.owner().id().to_string();
        let answer = self.answer(keys, &id, |tier| tier.as_ref().map(|tier| tier.policy.clone()));
        let pending = match answer {
            MaybeReady::Ready(Some(Ok(None))) => return self.inner.others.policy(key),
            MaybeReady::Ready(answer) => {
                return MaybeReady::Ready(answer.map(|answer| answer.map(Option::flatten)));
            }
            MaybeReady::Boxed(pending) => pending,
        };
        let (others, key) = (self.inner.others.clone(), key.clone());
        MaybeReady::later(async move {
            match pending.await? {
                Some(policy) => Ok(policy),
                None => others.policy(&key).await,
            }
        })
    }

    fn answer<V: Send + Sync + 'static, T: Send + 'static>(
        &self,
        cache: &Arc<Cache<V>>,
        key: &str,
        policy: impl Fn(&V) -> T + Send + 'static,
    ) -> MaybeReady<Result<T, StoreError>> {
        let (flight, last) = match cache.get(key) {
            Found::Known(value) => return MaybeReady::ready(Ok(policy(&value))),
            Found::No(kind) => return MaybeReady::ready(Err(no_answer(kind))),
            Found::Wait(flight, last) => (flight, last),
        };
        let Some(last) = last else {
            return MaybeReady::later(async move {
                flight.await.map(|value| policy(&value)).map_err(no_answer)
            });
        };
        let (deadline, cache, key) = (self.inner.deadline, cache.clone(), key.to_owned());
        MaybeReady::later(async move {
            let value = match tokio::time::timeout(deadline, flight).await {
                Ok(Ok(value)) => value,
                Ok(Err(_)) => last,
                Err(_) => {
                    cache.give_up(&key);
                    last
                }
            };
            Ok(policy(&value))
        })
    }
}

impl PolicySource for RecordSource {
    fn policy(&self, subject: &Subject) -> PolicyFuture {
        let owner = subject.owner().id();
        let id = match (subject.realm(), owner.as_text()) {
            (Realm::Consumer, Some(id)) if is_name(id) => id,
            // Nobody can have written records for it: to find none would be no answer.
            (Realm::Consumer, None) if !owner.is_of_long_text() => {
                let error = StoreError::new(FailureKind::Unsupported);
                let detail = "a consumer that is known by a digest, which has no records";
                return MaybeReady::ready(Err(error.with_detail(detail)));
            }
            // No record has such an id.
            (Realm::Consumer, _) => {
                let none = [];
                let limits = self.inner.records.aggregation().limits(&none);
                return MaybeReady::ready(Ok((self.inner.policy_of)(&limits)));
            }
            (Realm::Key, None) => {
                let Some(keys) = &self.inner.keys else { return self.inner.others.policy(subject) };
                return self.of_key(keys, subject);
            }
            _ => return self.inner.others.policy(subject),
        };
        let clock = self.inner.records.clock().clone();
        self.answer(&self.inner.consumers, id, move |timeline| timeline.policy(clock.now()))
    }
}

fn no_answer(kind: FailureKind) -> StoreError {
    StoreError::new(kind).with_detail("the database of records")
}

impl Listener for Inner {
    fn changed(&self, kind: Kind, owner: &str) {
        match kind {
            Kind::Record => self.consumers.changed(owner),
            Kind::Resource => self.resources.changed(owner),
            Kind::Consumer => self.consumers.changed(owner),
            Kind::Reset | Kind::SubjectReset | Kind::Refusal => {}
            Kind::Key => self.keys.iter().for_each(|keys| keys.changed(owner)),
            Kind::Tier => {
                self.consumers.changed_if(|timeline| timeline.tier() == Some(owner));
                self.keys.iter().for_each(|keys| keys.changed_if(|tier| is_in(tier, owner)));
            }
        }
    }

    fn refresh(&self, kind: Kind, owner: &str) -> Option<BoxFuture<'static, ()>> {
        match kind {
            Kind::Record | Kind::Consumer => self.consumers.refresh(owner),
            Kind::Resource => self.resources.refresh(owner),
            Kind::Key => self.keys.as_ref()?.refresh(owner),
            Kind::Tier => {
                let consumers = self.consumers.refresh_if(|member| member.tier() == Some(owner));
                let keys = self.keys.as_ref();
                let keys = keys.map(|keys| keys.refresh_if(|tier| is_in(tier, owner)));
                Some(join_all(keys.into_iter().chain([consumers])).map(drop).boxed())
            }
            // The other kinds change no limit.
            Kind::Reset | Kind::SubjectReset | Kind::Refusal => None,
        }
    }
}

impl Inner {
    fn all_changed(&self) {
        self.consumers.all_changed();
        self.resources.all_changed();
        self.keys.iter().for_each(|keys| keys.all_changed());
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        let tasks = self.tasks.get_mut().unwrap_or_else(std::sync::PoisonError::into_inner);
        tasks.iter().for_each(AbortHandle::abort);
    }
}

impl fmt::Debug for RecordSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RecordSource")
            .field("records", &self.inner.records)
            .field("consumers", &self.inner.consumers)
            .finish_non_exhaustive()
    }
}

/// Reads what the caches keep.
struct FromRecords {
    records: Records,
    policy_of: PolicyOf,
}

impl FromRecords {
    fn failed(error: &crate::DatabaseError) -> FailureKind {
        let (kind, cause) = (error.kind().as_str(), tracing::field::display(error));
        tracing::debug!(target: "rl_records", kind, cause, "look-up failed");
        error.kind()
    }
}

impl Load<Timeline> for FromRecords {
    fn load(&self, consumer: Arc<str>) -> BoxFuture<'static, Result<Timeline, FailureKind>> {
        let (records, policy_of) = (self.records.clone(), self.policy_of);
        async move {
            let now = records.clock().now();
            let found = records.look_up_consumer(&consumer, now).await;
            let (found, tier) = found.map_err(|why| Self::failed(&why))?;
            Ok(Timeline::new(&found, tier, records.aggregation(), policy_of, now))
        }
        .boxed()
    }

    fn now(&self) -> Timestamp {
        self.records.clock().now()
    }
}

impl Load<Option<ResourceLimitContent>> for FromRecords {
    fn load(
        &self,
        name: Arc<str>,
    ) -> BoxFuture<'static, Result<Option<ResourceLimitContent>, FailureKind>> {
        let records = self.records.clone();
        async move {
            let found = records.look_up_resource(&name).await.map_err(|why| Self::failed(&why))?;
            Ok(found.map(|resource| resource.content))
        }
        .boxed()
    }

    fn now(&self) -> Timestamp {
        self.records.clock().now()
    }
}

impl Load<Option<InTier>> for FromRecords {
    fn load(&self, key: Arc<str>) -> BoxFuture<'static, Result<Option<InTier>, FailureKind>> {
        let (records, policy_of) = (self.records.clone(), self.policy_of);
        async move {
            let tier = records.look_up_key(&key).await.map_err(|why| Self::failed(&why))?;
            Ok(tier.map(|tier| {
                let aggregation = records.aggregation().in_tier(Some(&tier));
                let none = [];
                InTier { name: tier.name, policy: policy_of(&aggregation.limits(&none)) }
            }))
        }
        .boxed()
    }

    fn now(&self) -> Timestamp {
        self.records.clock().now()
    }
}
