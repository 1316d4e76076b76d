use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::future::{BoxFuture, FutureExt, join_all};
use rl_core::FailureKind;
use rl_core::time::Timestamp;
use tokio::runtime::Handle;
use tokio::time::Instant;

use super::cache::{Cache, Load};
use super::timeline::{PolicyOf, Timeline};
use crate::database::{
    Database, Kind, Listener, Position, record_realms, resource_limit, subject_limits,
};
use crate::error::DatabaseError;
use crate::resource::ResourceLimitContent;

/// The caches of a source.
pub(super) struct Caches {
    /// The consumers by their ids.
    pub(super) consumers: Arc<Cache<Timeline>>,
    /// The other subjects by their realms and ids, separated by a slash.
    pub(super) subjects: Arc<Cache<Timeline>>,
    pub(super) resources: Arc<Cache<Option<ResourceLimitContent>>>,
    /// The realms whose subjects have records, under the key [`REALMS`].
    pub(super) realms: Arc<Cache<Vec<String>>>,
    /// The time at which the change log was last read.
    polled_at: Mutex<Option<Instant>>,
    pub(super) seen: Arc<SeenEnd>,
}

/// The only key of the cache of realms.
pub(super) const REALMS: &str = "";

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

/// The settings of the caches.
#[derive(Clone, Copy, Debug)]
pub(super) struct CacheSettings {
    pub(super) policy_of: PolicyOf,
    pub(super) capacity: usize,
    pub(super) fresh_micros: u64,
    /// Whether the tiers of keys are looked up.
    pub(super) has_keys: bool,
}

impl Caches {
    pub(super) fn new(database: &Arc<Database>, settings: CacheSettings) -> Self {
        let seen = Arc::default();
        Self {
            consumers: Arc::new(cache(database, settings, true, &seen)),
            subjects: Arc::new(cache(database, settings, false, &seen)),
            resources: Arc::new(cache(database, settings, false, &seen)),
            realms: Arc::new(cache(database, settings, false, &seen)),
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
        self.subjects.invalidate_all();
        self.resources.invalidate_all();
        self.realms.invalidate_all();
    }
}

fn cache<V: Send + Sync + 'static>(
    database: &Arc<Database>,
    settings: CacheSettings,
    is_of_consumers: bool,
    seen: &Arc<SeenEnd>,
) -> Cache<V>
where
    Loader: Load<V>,
{
    let (database, seen) = (Arc::clone(database), Arc::clone(seen));
    let limiter = database.lookup_limiter().clone();
    let loader = Loader { database, settings, is_of_consumers, seen };
    Cache::new(loader, limiter, settings.capacity, settings.fresh_micros, Handle::current())
}

impl Listener for Caches {
    fn changed(&self, kind: Kind, owner: &str) {
        match kind {
            Kind::Record | Kind::Consumer => self.consumers.invalidate(owner),
            Kind::SubjectRecord => {
                self.subjects.invalidate(owner);
                self.realms.invalidate(REALMS);
            }
            Kind::Resource => self.resources.invalidate(owner),
            Kind::Key => self.subjects.invalidate(&of_key(owner)),
            Kind::Tier => {
                for cache in [&self.consumers, &self.subjects] {
                    cache.invalidate_if(|timeline| timeline.depends_on(owner));
                }
            }
            // A change of a subscription affects limits through its record. Changes of the other
            // kinds affect no limit.
            Kind::Rule
            | Kind::Subscription
            | Kind::Reset
            | Kind::SubjectReset
            | Kind::Reason
            | Kind::SubjectReason
            | Kind::Refusal => {}
        }
    }

    fn refresh(&self, kind: Kind, owner: &str) -> Option<BoxFuture<'static, ()>> {
        match kind {
            Kind::Record | Kind::Consumer => self.consumers.refresh(owner),
            Kind::SubjectRecord => {
                let refreshes = [self.subjects.refresh(owner), self.realms.refresh(REALMS)];
                Some(join_all(refreshes.into_iter().flatten()).map(drop).boxed())
            }
            Kind::Resource => self.resources.refresh(owner),
            Kind::Key => self.subjects.refresh(&of_key(owner)),
            Kind::Tier => {
                let caches = [&self.consumers, &self.subjects];
                let refreshes =
                    caches.map(|cache| cache.refresh_if(|timeline| timeline.depends_on(owner)));
                Some(join_all(refreshes).map(drop).boxed())
            }
            Kind::Rule
            | Kind::Subscription
            | Kind::Reset
            | Kind::SubjectReset
            | Kind::Reason
            | Kind::SubjectReason
            | Kind::Refusal => None,
        }
    }
}

/// Returns the key of the cache of subjects for an API key.
fn of_key(id: &str) -> String {
    format!("key/{id}")
}

/// Reads the values of the caches.
struct Loader {
    database: Arc<Database>,
    settings: CacheSettings,
    is_of_consumers: bool,
    seen: Arc<SeenEnd>,
}

fn log_failure(error: &DatabaseError) -> FailureKind {
    let kind = error.kind().as_str();
    let cause = tracing::field::display(error);
    tracing::debug!(target: "rl_records", kind, cause, "look-up failed");
    error.kind()
}

impl Load<Timeline> for Loader {
    fn load(&self, key: Arc<str>) -> BoxFuture<'static, Result<Timeline, FailureKind>> {
        let (database, seen) = (self.database.clone(), self.seen.clone());
        let (settings, is_of_consumers) = (self.settings, self.is_of_consumers);
        async move {
            let now = database.now();
            let (realm, id) = match key.split_once('/') {
                Some(subject) if !is_of_consumers => subject,
                _ => ("consumer", &*key),
            };
            let with_tier = realm == "consumer" || realm == "key" && settings.has_keys;
            let found = subject_limits(&database, realm, id, with_tier, now).await;
            let (found, end) = found.map_err(|error| log_failure(&error))?;
            seen.record(end);
            Ok(Timeline::new(found, database.aggregation(), settings.policy_of, now))
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

impl Load<Vec<String>> for Loader {
    fn load(&self, _: Arc<str>) -> BoxFuture<'static, Result<Vec<String>, FailureKind>> {
        let (database, seen) = (self.database.clone(), self.seen.clone());
        async move {
            let found = record_realms(&database).await;
            let (realms, end) = found.map_err(|error| log_failure(&error))?;
            seen.record(end);
            Ok(realms)
        }
        .boxed()
    }

    fn now(&self) -> Timestamp {
        self.database.now()
    }
}
