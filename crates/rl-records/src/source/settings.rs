use std::fmt;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use rl_core::source::{PolicySource, Preset};
use tokio::runtime::Handle;

use super::{Cache, FromRecords, Inner, PolicyOf, RecordSource, watch};
use crate::{CallLimits, Records};

/// Settings of a [`RecordSource`].
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
}

impl RecordSourceBuilder {
    pub(super) fn new(records: Records) -> Self {
        Self {
            records,
            others: Arc::new(Preset::OpenBank),
            counts_all: false,
            capacity: 100_000,
            deadline: Duration::from_millis(50),
            refresh_after: Duration::from_secs(3_600),
            poll_every: Duration::from_millis(500),
            has_keys: false,
        }
    }

    /// The policies of everybody who is not a consumer. Defaults to [`Preset::OpenBank`]: 1 000
    /// requests per hour for an anonymous address.
    pub fn others(mut self, policies: impl PolicySource) -> Self {
        self.others = Arc::new(policies);
        self
    }

    /// Whether periods without a limit are counted too, so that reports show what is used in all six.
    /// Defaults to `false`; it costs what six limits cost.
    pub const fn count_unlimited(mut self, counts: bool) -> Self {
        self.counts_all = counts;
        self
    }

    /// Looks up which tier an API key ([`Realm::Key`](rl_core::Realm::Key)) is in; keys in none are under
    /// the policies of [`others`](Self::others), as all are unless this is called.
    ///
    /// Every key that is not known costs a look-up: put the limiter behind what has found the key to be
    /// genuine, or who invents keys keeps the database busy.
    pub const fn tiers_of_keys(mut self) -> Self {
        self.has_keys = true;
        self
    }

    /// The most consumers, keys and resources, of each, whose limits are kept in memory; those that were
    /// not used for long make room. Defaults to 100 000.
    pub const fn capacity(mut self, count: usize) -> Self {
        self.capacity = count;
        self
    }

    /// The longest that a request waits for a limit that has changed; then the last one holds until
    /// the look-up has ended. Defaults to 50 ms.
    ///
    /// It should be shorter than the [deadline of the limiter](rl_core::RateLimiterBuilder::deadline),
    /// whose failure policy would stand in although a limit is known.
    pub const fn deadline(mut self, deadline: Duration) -> Self {
        self.deadline = deadline;
        self
    }

    /// After how long limits are looked up again although no change was announced. Defaults to one
    /// hour.
    pub const fn refresh_after(mut self, age: Duration) -> Self {
        self.refresh_after = age;
        self
    }

    /// How often the change counter of the database is read, which is how a change of another
    /// instance is learnt at the latest. Defaults to half a
    /// second, which keeps the whole below one.
    ///
    /// It takes one look-up by primary key. Announcements through PostgreSQL or Redis are quicker, and
    /// are only a reason to look at once: losing one loses nothing.
    ///
    /// An interval of 0 is one millisecond.
    pub const fn poll_every(mut self, interval: Duration) -> Self {
        self.poll_every = interval;
        self
    }

    /// Begins to listen for changes.
    ///
    /// # Panics
    ///
    /// Panics outside a tokio runtime.
    #[must_use]
    pub fn start(self) -> RecordSource {
        let runtime = Handle::current();
        let fresh = u64::try_from(self.refresh_after.as_micros()).unwrap_or(u64::MAX);
        let policy_of: PolicyOf = if self.counts_all {
            |limits| Some(limits.counting_policy())
        } else {
            CallLimits::policy
        };
        let load = || FromRecords { records: self.records.clone(), policy_of };
        let gate = || self.records.gate().clone();
        let inner = Arc::new(Inner {
            consumers: Arc::new(Cache::new(load(), gate(), self.capacity, fresh, runtime.clone())),
            resources: Arc::new(Cache::new(load(), gate(), self.capacity, fresh, runtime.clone())),
            keys: self
                .has_keys
                .then(|| Arc::new(Cache::new(load(), gate(), self.capacity, fresh, runtime))),
            records: self.records,
            others: self.others,
            policy_of,
            deadline: self.deadline,
            tasks: Mutex::default(),
        });
        let listener: Weak<Inner> = Arc::downgrade(&inner);
        inner.records.tell(listener);
        watch::start(&inner, self.poll_every.max(Duration::from_millis(1)));
        RecordSource { inner }
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

    /// A poll of one second and the look-ups after it took a little longer than the second that is
    /// stated.
    #[tokio::test]
    async fn a_poll_and_a_look_up_that_is_waited_for_take_less_than_a_second() {
        let records = Records::connect("sqlite::memory:").await.unwrap();
        let settings = RecordSource::builder(&records);
        let longest = settings.poll_every + 2 * settings.deadline;
        assert!(longest < Duration::from_millis(900), "{longest:?}");
    }
}
