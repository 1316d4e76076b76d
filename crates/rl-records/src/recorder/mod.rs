//! Adds the decisions of limiters up, and writes the sums to the database.

mod sums;

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use rl_core::observe::{DecidedPart, DecisionEvent, Event, EventKind, Observer};
use rl_core::store::Mode;
use rl_core::time::{Clock, SystemClock};
use rl_core::{FailureKind, Origin, Realm, Subject};
use sums::{RowsOfDay, Sums, Unwritten};
use tokio::sync::Mutex;
use tokio::time::MissedTickBehavior;
use uuid::Uuid;

use crate::database::{Database, Records, UsageKey, add_usage, delete_usage_before};
use crate::day::Day;
use crate::error::DatabaseError;
use crate::usage::UsageCounts;

/// The rows of one write. A larger write would delay the changes of limits, which wait for it on
/// SQLite.
const ROWS: usize = 500;

/// An observer that adds up the calls of each subject under each rule and on each day in UTC, and
/// writes the sums to the database. [`Records::usage`] reads them.
///
/// Give it to each limiter of the process. Several processes may write to one database: the sums
/// are added to the rows. They are written every minute, and by [`write`](Self::write), which a
/// process calls before it ends; otherwise the calls of the last minute are lost. A write whose
/// result is unknown is repeated, and added only once.
///
/// While the database is down, sums stay in memory, up to
/// [`max_entries`](UsageRecorderBuilder::max_entries). Further subjects are then counted together,
/// in a row without a subject. An id that the tables cannot hold is counted there too: one of more
/// than 250 bytes, or with control characters.
///
/// # What is counted
///
/// A call counts under each rule that matches it, once under each. A call that one rule denies
/// counts as denied under that rule, and under no other. A call that is only looked at does not
/// count. While the store is down, the failure policy decides: calls that it allows or rejects
/// count too, without units, under each rule of the request. A call that no limit applies to counts
/// as allowed.
///
/// Only realms that have few subjects should be counted, because each subject has a row for each
/// rule and day. The default is consumers. Clients must not be able to invent their ids.
///
/// # Cost
///
/// A limiter with an observer of decisions does not use its fast path.
///
/// # Examples
///
/// ```
/// use rl_core::time::{Clock, SystemClock};
/// use rl_core::{Limit, RateLimiter, Subject};
/// use rl_records::{Day, Records, UsageQuery, UsageRecorder};
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let records = Records::connect("sqlite::memory:").await?;
/// let recorder = UsageRecorder::start(&records);
/// let limiter =
///     RateLimiter::builder().limit(Limit::per_hour(2)).observer(recorder.clone()).build()?;
/// let today = Day::of(SystemClock.now());
/// for _ in 0..3 {
///     limiter.check(&Subject::consumer("abc123"), 1).await;
/// }
/// recorder.write().await?;
///
/// let page = records.usage().days(&UsageQuery::new(today, today.plus(1))).await?;
/// let counts: Vec<_> = page.rows.iter().map(|row| (row.counts.allowed, row.counts.denied)).collect();
/// assert_eq!(counts, [(2, 1)]);
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct UsageRecorder(Arc<Recorder>);

/// The settings of a [`UsageRecorder`].
#[derive(Clone, Debug)]
#[must_use]
pub struct UsageRecorderBuilder {
    realms: Vec<Realm>,
    max_entries: usize,
    max_rows_per_day: usize,
    days: u32,
    every: Duration,
}

struct Recorder {
    /// The database, once it is known.
    database: OnceLock<Arc<Database>>,
    realms: Vec<Realm>,
    /// The number of days for which rows are kept.
    days: u32,
    /// The interval of writes.
    every: Duration,
    sums: Sums,
    writer: Mutex<Writer>,
    is_failing: AtomicBool,
}

/// The state of writing, which only one task may change at a time.
struct Writer {
    /// A random id of this recorder, by which the database knows its last write.
    id: String,
    /// The number of the last write.
    number: i64,
    /// The rows of the last write, until it has certainly been committed.
    begun: Vec<(UsageKey, UsageCounts)>,
    unwritten: Unwritten,
    rows_of_day: RowsOfDay,
}

impl UsageRecorder {
    /// Starts a recorder with the default settings.
    ///
    /// # Panics
    ///
    /// Panics outside a tokio runtime.
    #[must_use]
    pub fn start(records: &Records) -> Self {
        Self::builder().start(records)
    }

    /// Returns a builder with the default settings.
    pub fn builder() -> UsageRecorderBuilder {
        UsageRecorderBuilder {
            realms: vec![Realm::Consumer],
            max_entries: 100_000,
            max_rows_per_day: 1_000_000,
            days: 400,
            every: Duration::from_secs(60),
        }
    }

    /// Writes to this database from now on. Ignored if the recorder has a database already.
    ///
    /// # Panics
    ///
    /// Panics outside a tokio runtime.
    pub fn attach(&self, records: &Records) {
        if self.0.database.set(Arc::clone(records.database())).is_ok() {
            tokio::spawn(write_regularly(Arc::downgrade(&self.0), self.0.every));
        }
    }

    /// Writes all sums now.
    ///
    /// # Errors
    ///
    /// Returns an error if the database fails, or if it is not known yet. The sums are then written
    /// later.
    pub async fn write(&self) -> Result<(), DatabaseError> {
        self.0.write().await
    }
}

impl UsageRecorderBuilder {
    /// Sets the realms whose subjects are counted. Defaults to consumers.
    pub fn realms(mut self, realms: impl IntoIterator<Item = Realm>) -> Self {
        self.realms = realms.into_iter().collect();
        self
    }

    /// Sets the maximum number of sums in memory, each of one subject, rule and day. Defaults to
    /// 100 000, which take about 40 MB. Further subjects are counted together until the next write.
    pub const fn max_entries(mut self, count: usize) -> Self {
        self.max_entries = count;
        self
    }

    /// Sets the maximum number of rows that this process writes for one day, each of one subject and
    /// rule. Defaults to 1 000 000. Further subjects are counted together, so that clients that
    /// invent ids cannot fill the database.
    pub const fn max_rows_per_day(mut self, count: usize) -> Self {
        self.max_rows_per_day = count;
        self
    }

    /// Sets the number of days for which rows are kept. Defaults to 400. The sums of a month are
    /// kept until its last day is no longer kept.
    pub const fn keep_days(mut self, days: u32) -> Self {
        self.days = days;
        self
    }

    /// Sets the interval of writes. Defaults to a minute.
    pub const fn write_every(mut self, interval: Duration) -> Self {
        self.every = interval;
        self
    }

    /// Starts a recorder that writes to this database.
    ///
    /// # Panics
    ///
    /// Panics outside a tokio runtime.
    #[must_use]
    pub fn start(self, records: &Records) -> UsageRecorder {
        let recorder = self.build();
        recorder.attach(records);
        recorder
    }

    /// Builds a recorder without a database, for a service that connects to it later. It counts
    /// already, and writes from [`UsageRecorder::attach`] on.
    #[must_use]
    pub fn build(self) -> UsageRecorder {
        let writer = Writer {
            id: Uuid::new_v4().to_string(),
            number: 0,
            begun: Vec::new(),
            unwritten: Unwritten::new(),
            rows_of_day: RowsOfDay::default(),
        };
        UsageRecorder(Arc::new(Recorder {
            database: OnceLock::new(),
            realms: self.realms,
            days: self.days,
            every: self.every,
            sums: Sums::new(self.max_entries, self.max_rows_per_day),
            writer: Mutex::new(writer),
            is_failing: AtomicBool::new(false),
        }))
    }
}

impl fmt::Debug for Recorder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Recorder").field("realms", &self.realms).finish_non_exhaustive()
    }
}

impl Observer for UsageRecorder {
    fn decided(&self, event: &DecisionEvent<'_>) {
        if event.mode == Mode::Peek {
            return;
        }
        for part in event.parts().filter(|part| self.0.records(part.subject)) {
            let counts = counts(event, &part);
            self.0.add(part.subject, part.rule, counts);
        }
    }

    fn observe(&self, event: &Event<'_>) {
        if let EventKind::Settled { subject, charged, refunded, .. } = event.kind
            && self.0.records(subject)
        {
            let units = units(charged) - units(refunded);
            let counts = UsageCounts { units, ..UsageCounts::default() };
            self.0.add(subject, event.location.rule, counts);
        }
    }
}

impl Recorder {
    fn records(&self, subject: &Subject) -> bool {
        self.realms.contains(subject.realm())
    }

    fn add(&self, subject: &Subject, rule: Option<&str>, counts: UsageCounts) {
        if !counts.is_empty() {
            self.sums.add(subject, rule, self.today(), counts);
        }
    }

    /// Returns the present day. Before the database is known, it is that of the system's clock.
    fn today(&self) -> Day {
        Day::of(self.database.get().map_or_else(|| SystemClock.now(), |database| database.now()))
    }

    /// Writes all sums, and those of a write that may have failed.
    async fn write(&self) -> Result<(), DatabaseError> {
        let unknown = || DatabaseError::new(FailureKind::Unavailable);
        let database = self.database.get().ok_or_else(unknown)?;
        let mut writer = self.writer.lock().await;
        let Writer { id, number, begun, unwritten, rows_of_day } = &mut *writer;
        self.sums.take(unwritten, rows_of_day);
        let today = self.today();
        loop {
            if begun.is_empty() {
                while begun.len() < ROWS
                    && let Some(row) = unwritten.pop_first()
                {
                    begun.push(row);
                }
                if begun.is_empty() {
                    return Ok(());
                }
                *number += 1;
            }
            // If the caller is cancelled here, the next write repeats these rows with their number.
            add_usage(database, id, *number, begun, today).await?;
            self.sums.written(begun.len());
            begun.clear();
        }
    }

    /// Writes all sums, deletes old rows, and logs the beginning and the end of failures.
    async fn write_and_log(&self) {
        let written = async {
            self.write().await?;
            let Some(database) = self.database.get() else { return Ok(()) };
            delete_usage_before(database, self.today().plus(-i64::from(self.days))).await
        };
        match written.await {
            Ok(()) if self.is_failing.swap(false, Ordering::Relaxed) => {
                tracing::info!(target: "rl_records", "usage written again");
            }
            Ok(()) => {}
            Err(error) if !self.is_failing.swap(true, Ordering::Relaxed) => {
                let consequence = "it stays in memory, and is written later";
                let kind = error.kind().as_str();
                tracing::warn!(target: "rl_records", kind, %error, consequence, "usage not written");
            }
            Err(_) => {}
        }
    }
}

/// Writes the sums at this interval, as long as the recorder lives.
async fn write_regularly(recorder: Weak<Recorder>, every: Duration) {
    let mut ticks = tokio::time::interval(every.max(Duration::from_millis(1)));
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    // The first tick is at the start, when there is nothing to write.
    ticks.tick().await;
    loop {
        ticks.tick().await;
        let Some(recorder) = recorder.upgrade() else { return };
        recorder.write_and_log().await;
    }
}

/// Returns the counts that a decision adds to the sums of a part.
fn counts(event: &DecisionEvent<'_>, part: &DecidedPart<'_>) -> UsageCounts {
    let (decision, status) = (event.decision, part.status);
    let mut counts = UsageCounts { units: units(status.charged()), ..UsageCounts::default() };
    // The request was counted before its work was done.
    if event.mode == Mode::Charge {
        return counts;
    }
    let is_shadow = status.is_shadow() || decision.origin() == Origin::Shadow;
    if !decision.is_allowed() {
        // A rejection without a decision of a store counts under every rule.
        let is_denied = status.is_over() && !is_shadow || status.limits().len() == 0;
        counts.denied = u64::from(is_denied);
        return counts;
    }
    counts.allowed = 1;
    let mut limits = status.limits();
    let would_be_denied =
        limits.any(|limit| limit.is_over() && (is_shadow || limit.limit().is_shadow()));
    counts.would_be_denied = u64::from(would_be_denied);
    counts
}

fn units(units: u64) -> i64 {
    i64::try_from(units).unwrap_or(i64::MAX)
}
