//! The denials of all instances of a service.
//!
//! Every five seconds, each instance publishes a [note](InstanceNote) about its last minute through
//! the store of its limiter. A page reads the notes of all instances, and adds the present counts
//! of its own process. Without a shared store, it shows this process alone.

mod note;

use std::fmt::Write as _;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use note::InstanceNote;
use rl_core::observe::Transition;
use rl_core::time::{Clock, SystemClock, Timestamp};
use rl_core::{FailureKind, RateLimiter, StoreError};
use tokio::runtime::Handle;
use tokio::time::{Instant, MissedTickBehavior, interval, timeout};

use crate::last_hour::{DeniedSubject, LastHour, STEP};

/// The interval between two notes.
const INTERVAL: Duration = Duration::from_secs(5);

/// The longest time for which a page or the task waits for the store.
const TIMEOUT: Duration = Duration::from_millis(800);

/// The time in microseconds for which the notes of other instances are shown during an outage.
const LIFETIME: u64 = 60_000_000;

/// Publishes the denials of a limiter, for the start page of a
/// [console](crate::console) in another process.
///
/// An [`Admin`](crate::Admin) does the same. Use this type in instances of a service without one.
/// The limiters must have the same namespace, on the same Redis. Nothing is published after the
/// last clone was dropped.
///
/// # Examples
///
/// ```
/// use rl_admin::DenialPublisher;
/// use rl_core::{Limit, RateLimiter};
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let limiter = RateLimiter::builder().limit(Limit::per_minute(100)).build()?;
/// let publisher = DenialPublisher::start(limiter.clone());
/// // serve(limiter).await;
/// drop(publisher);
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct DenialPublisher(#[expect(dead_code, reason = "keeps its task alive")] Arc<Instances>);

impl DenialPublisher {
    /// Starts to publish, every five seconds. Call it in a tokio runtime.
    #[must_use]
    pub fn start(limiter: RateLimiter) -> Self {
        let clock: Arc<dyn Clock> = Arc::new(SystemClock);
        let last_hour = LastHour::start(limiter.clone(), clock.clone());
        Self(Instances::start(limiter, last_hour, clock, true))
    }
}

/// Publishes the denials of this instance, and reads those of the others.
#[derive(Debug)]
pub(crate) struct Instances {
    /// The random name of this instance.
    name: String,
    limiter: RateLimiter,
    last_hour: Arc<LastHour>,
    clock: Arc<dyn Clock>,
    /// The last notes of the other instances, and the time at which they were read.
    others: Mutex<(Timestamp, Vec<InstanceNote>)>,
    damaged: Transition,
    unpublished: Transition,
}

/// The last minute of all instances.
#[derive(Debug)]
pub(crate) struct InstancesReport {
    /// The number of instances whose counts are included.
    pub(crate) instances: usize,
    pub(crate) per_second: f64,
    pub(crate) denied_per_second: f64,
    /// The number of subjects that were denied in the last minute. It is larger than the number of
    /// `subjects` if an instance has published only a part of them.
    pub(crate) limited: usize,
    /// The subjects that were denied in the last minute, those with the most denials first.
    pub(crate) subjects: Vec<DeniedSubject>,
    pub(crate) shared: Shared,
}

/// The result of reading the notes of the other instances.
#[derive(Debug)]
pub(crate) enum Shared {
    /// The store is not shared.
    No,
    /// They were read within this time.
    Read(Duration),
    /// They could not be read. Those of this time are included, if there are any.
    Failed(StoreError, Option<Timestamp>),
}

impl Instances {
    /// Starts to publish the denials of `limiter`. Outside a tokio runtime, none are published.
    pub(crate) fn start(
        limiter: RateLimiter,
        last_hour: Arc<LastHour>,
        clock: Arc<dyn Clock>,
        publishes: bool,
    ) -> Arc<Self> {
        let mut random = [0; 8];
        // Without random bytes, instances would replace each other's notes, so none is published.
        let has_name = getrandom::fill(&mut random).is_ok();
        let name = random.iter().fold(String::new(), |mut name, byte| {
            let _ = write!(name, "{byte:02x}");
            name
        });
        let instances = Arc::new(Self {
            name,
            limiter,
            last_hour,
            clock,
            others: Mutex::default(),
            damaged: Transition::new(Duration::from_secs(60)),
            unpublished: Transition::new(Duration::from_secs(60)),
        });
        if let (true, true, Ok(runtime)) = (publishes, has_name, Handle::try_current()) {
            runtime.spawn(publish_notes(Arc::downgrade(&instances)));
        }
        instances
    }

    /// Returns the last minute of all instances.
    pub(crate) async fn overview(&self) -> InstancesReport {
        let own = InstanceNote::of(&self.name, &self.last_hour);
        let now = self.clock.now();
        let (shared, others) = match self.read().await {
            Ok(read) => (Shared::Read(read), self.others(now)),
            Err(error) if error.kind() == FailureKind::Unsupported => (Shared::No, Vec::new()),
            Err(error) => {
                let others = self.others(now);
                let read_at = self.others.lock().unwrap_or_else(PoisonError::into_inner).0;
                let read_at = (!others.is_empty()).then_some(read_at);
                (Shared::Failed(error, read_at), others)
            }
        };
        merged(now, own, others, shared)
    }

    /// Reads the notes of the other instances. Returns the time that this took.
    async fn read(&self) -> Result<Duration, StoreError> {
        let began = Instant::now();
        let notes = timeout(TIMEOUT, self.limiter.read_notes()).await;
        let notes = notes.unwrap_or_else(|_| Err(StoreError::new(FailureKind::TimedOut)))?;
        let took = began.elapsed();
        let mut others = Vec::with_capacity(notes.len());
        for note in notes {
            match InstanceNote::parse(&note) {
                Ok(note) if note.instance == self.name => {}
                Ok(note) => others.push(note),
                Err(problem) => {
                    if self.damaged.occurred() {
                        tracing::warn!(target: "rl_admin", %problem, "note of an instance ignored");
                    }
                }
            }
        }
        *self.others.lock().unwrap_or_else(PoisonError::into_inner) = (self.clock.now(), others);
        Ok(took)
    }

    /// Returns the last notes of the other instances, unless they are too old.
    fn others(&self, now: Timestamp) -> Vec<InstanceNote> {
        let others = self.others.lock().unwrap_or_else(PoisonError::into_inner);
        if now.micros_since(others.0) > LIFETIME { Vec::new() } else { others.1.clone() }
    }

    /// Publishes a note of this instance. Returns whether the store can keep notes.
    async fn publish(&self) -> bool {
        let note = InstanceNote::of(&self.name, &self.last_hour).to_json();
        let published = timeout(TIMEOUT, self.limiter.publish_note(&self.name, &note)).await;
        let Ok(Err(error)) = published else { return true };
        if error.kind() == FailureKind::Unsupported {
            return false;
        }
        if self.unpublished.occurred() {
            tracing::warn!(target: "rl_admin", %error, "denials not published for other instances");
        }
        true
    }
}

/// Publishes a note every few seconds, until the last owner has dropped `instances`.
async fn publish_notes(instances: Weak<Instances>) {
    let mut ticks = interval(INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let Some(instances) = instances.upgrade() else { return };
        if !instances.publish().await {
            return;
        }
    }
}

fn merged(
    now: Timestamp,
    own: InstanceNote,
    others: Vec<InstanceNote>,
    shared: Shared,
) -> InstancesReport {
    let mut overview = InstancesReport {
        instances: 1 + others.len(),
        per_second: 0.0,
        denied_per_second: 0.0,
        limited: 0,
        subjects: Vec::new(),
        shared,
    };
    for note in std::iter::once(own).chain(others) {
        overview.per_second += note.per_second;
        overview.denied_per_second += note.denied_per_second;
        overview.limited = overview.limited.max(note.limited);
        let steps = (now.as_micros() / STEP).saturating_sub(note.at * 1_000_000 / STEP);
        for mut denied in note.subjects() {
            denied.shift(steps);
            add(&mut overview.subjects, denied);
        }
    }
    overview.subjects.retain(|subject| subject.last_minute() > 0);
    overview.subjects.sort_by_key(|subject| std::cmp::Reverse(subject.last_minute()));
    overview.limited = overview.limited.max(overview.subjects.len());
    overview
}

/// Adds the denials of a subject at one instance to those at the others.
fn add(subjects: &mut Vec<DeniedSubject>, denied: DeniedSubject) {
    let Some(known) = subjects.iter_mut().find(|known| known.subject == denied.subject) else {
        subjects.push(denied);
        return;
    };
    if denied.last > known.last {
        known.denied_by = denied.denied_by;
    }
    known.since = known.since.min(denied.since);
    known.last = known.last.max(denied.last);
    for (sum, steps) in known.steps.iter_mut().zip(denied.steps) {
        *sum = sum.saturating_add(steps);
    }
}
