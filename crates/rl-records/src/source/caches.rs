use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::future::{BoxFuture, FutureExt, join_all};
use rl_core::time::Timestamp;
use rl_core::{FailureKind, Policy};
use tokio::runtime::Handle;
use tokio::time::Instant;

use super::cache::{Cache, Load};
use super::timeline::{PolicyOf, Timeline};
use crate::database::{
    Database, Kind, Listener, Position, consumer_records, key_tier, resource_limit,
};
use crate::error::DatabaseError;
use crate::resource::ResourceLimitContent;

/// The caches of a source, for consumers, resources and keys.
pub(super) struct Caches {
    pub(super) consumers: Arc<Cache<Timeline>>,
    pub(super) resources: Arc<Cache<Option<ResourceLimitContent>>>,
    pub(super) keys: Option<Arc<Cache<Option<KeyTier>>>>,
    /// The time at which the change log was last read.
    polled_at: Mutex<Option<Instant>>,
    pub(super) seen: Arc<SeenEnd>,
}

/// The newest end of the change log that look-ups have read since the last poll.
///
/// A look-up may read a change before a poll does. If the database then goes back to the state
/// before the change, the log alone does not show that.
#[derive(Default)]
pub(super) struct SeenEnd(Mutex<Option<Position>>);

impl SeenEnd {
    pub(super) fn get(&self) -> Option<Position> {
        self.lock().clone()
    }

    fn record(&self, end: Position) {
        let mut newest = self.lock();
        if newest.as_ref().is_none_or(|newest| end.is_after(newest)) {
            *newest = Some(end);
        }
    }

    /// Forgets an end that a poll has compared with the log.
    pub(super) fn forget(&self, compared: Option<Position>) {
        let mut newest = self.lock();
        if *newest == compared {
            *newest = None;
        }
    }

    fn lock(&self) -> MutexGuard<'_, Option<Position>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The tier of a key.
pub(super) struct KeyTier {
    pub(super) name: String,
    pub(super) policy: Option<Policy>,
}

/// The settings of the caches.
#[derive(Clone, Copy, Debug)]
pub(super) struct CacheSettings {
    pub(super) policy_of: PolicyOf,
    pub(super) capacity: usize,
    pub(super) fresh_micros: u64,
    pub(super) has_keys: bool,
}

impl Caches {
    pub(super) fn new(database: &Arc<Database>, settings: CacheSettings) -> Self {
        let seen = Arc::default();
        Self {
            consumers: Arc::new(cache(database, settings, &seen)),
            resources: Arc::new(cache(database, settings, &seen)),
            keys: settings.has_keys.then(|| Arc::new(cache(database, settings, &seen))),
            polled_at: Mutex::default(),
            seen,
        }
    }

    /// Records that the change log was read.
    pub(super) fn record_poll(&self) {
        *self.polled_at.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
    }

    /// Returns the time since the change log was last read.
    pub(super) fn lag(&self) -> Option<Duration> {
        let polled_at = *self.polled_at.lock().unwrap_or_else(PoisonError::into_inner);
        polled_at.map(|polled_at| polled_at.elapsed())
    }

    /// Marks everything as stale.
    pub(super) fn invalidate_all(&self) {
        self.consumers.invalidate_all();
        self.resources.invalidate_all();
        self.keys.iter().for_each(|keys| keys.invalidate_all());
    }
}

fn cache<V: Send + Sync + 'static>(
    database: &Arc<Database>,
    settings: CacheSettings,
    seen: &Arc<SeenEnd>,
) -> Cache<V>
where
    Loader: Load<V>,
{
    let (database, seen) = (Arc::clone(database), Arc::clone(seen));
    let limiter = database.lookup_limiter().clone();
    let loader = Loader { database, policy_of: settings.policy_of, seen };
    Cache::new(loader, limiter, settings.capacity, settings.fresh_micros, Handle::current())
}

impl Listener for Caches {
    fn changed(&self, kind: Kind, owner: &str) {
        match kind {
            Kind::Record | Kind::Consumer => self.consumers.invalidate(owner),
            Kind::Resource => self.resources.invalidate(owner),
            Kind::Key => self.keys.iter().for_each(|keys| keys.invalidate(owner)),
            Kind::Tier => {
                self.consumers.invalidate_if(|timeline| timeline.depends_on(owner));
                self.keys.iter().for_each(|keys| keys.invalidate_if(|tier| is_in(tier, owner)));
            }
            // A change of a subscription affects limits through its record. Changes of the other
            // kinds affect no limit.
            Kind::Subscription
            | Kind::Reset
            | Kind::SubjectReset
            | Kind::Reason
            | Kind::Refusal => {}
        }
    }

    fn refresh(&self, kind: Kind, owner: &str) -> Option<BoxFuture<'static, ()>> {
        match kind {
            Kind::Record | Kind::Consumer => self.consumers.refresh(owner),
            Kind::Resource => self.resources.refresh(owner),
            Kind::Key => self.keys.as_ref()?.refresh(owner),
            Kind::Tier => {
                let consumers = self.consumers.refresh_if(|timeline| timeline.depends_on(owner));
                let keys = self.keys.as_ref();
                let keys = keys.map(|keys| keys.refresh_if(|tier| is_in(tier, owner)));
                Some(join_all(keys.into_iter().chain([consumers])).map(drop).boxed())
            }
            Kind::Subscription
            | Kind::Reset
            | Kind::SubjectReset
            | Kind::Reason
            | Kind::Refusal => None,
        }
    }
}

fn is_in(member: &Option<KeyTier>, tier: &str) -> bool {
    member.as_ref().is_some_and(|member| member.name == tier)
}

/// Reads the values of the caches.
struct Loader {
    database: Arc<Database>,
    policy_of: PolicyOf,
    seen: Arc<SeenEnd>,
}

fn log_failure(error: &DatabaseError) -> FailureKind {
    let kind = error.kind().as_str();
    let cause = tracing::field::display(error);
    tracing::debug!(target: "rl_records", kind, cause, "look-up failed");
    error.kind()
}

impl Load<Timeline> for Loader {
    fn load(&self, consumer: Arc<str>) -> BoxFuture<'static, Result<Timeline, FailureKind>> {
        let database = self.database.clone();
        let (policy_of, seen) = (self.policy_of, self.seen.clone());
        async move {
            let now = database.now();
            let found = consumer_records(&database, &consumer, now).await;
            let (found, end) = found.map_err(|error| log_failure(&error))?;
            seen.record(end);
            Ok(Timeline::new(found, database.aggregation(), policy_of, now))
        }
        .boxed()
    }

    fn now(&self) -> Timestamp {
        self.database.now()
    }
}

impl Load<Option<ResourceLimitContent>> for Loader {
    fn load(
        &self,
        name: Arc<str>,
    ) -> BoxFuture<'static, Result<Option<ResourceLimitContent>, FailureKind>> {
        let (database, seen) = (self.database.clone(), self.seen.clone());
        async move {
            let found = resource_limit(&database, &name).await;
            let (found, end) = found.map_err(|error| log_failure(&error))?;
            seen.record(end);
            Ok(found.map(|resource| resource.content))
        }
        .boxed()
    }

    fn now(&self) -> Timestamp {
        self.database.now()
    }
}

impl Load<Option<KeyTier>> for Loader {
    fn load(&self, key: Arc<str>) -> BoxFuture<'static, Result<Option<KeyTier>, FailureKind>> {
        let database = self.database.clone();
        let (policy_of, seen) = (self.policy_of, self.seen.clone());
        async move {
            let found = key_tier(&database, &key).await;
            let (tier, end) = found.map_err(|error| log_failure(&error))?;
            seen.record(end);
            Ok(tier.map(|tier| {
                let aggregation = database.aggregation().with_tier(Some(&tier));
                KeyTier { name: tier.name, policy: policy_of(&aggregation.limits([])) }
            }))
        }
        .boxed()
    }

    fn now(&self) -> Timestamp {
        self.database.now()
    }
}
