//! A store under test, and its time.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use crate::model::{Algorithm, Anchor, Limit, Refill};
use crate::store::Store;
use crate::time::ManualClock;

/// The time of a store under test, which a test can advance.
pub trait Time: fmt::Debug + Send + Sync + 'static {
    /// Lets `time` pass for the store, or slightly more.
    fn pass(&self, time: Duration) -> Pin<Box<dyn Future<Output = ()> + Send + '_>>;

    /// Returns the clock of the store if only tests advance it. The suite then checks times to the
    /// microsecond.
    fn manual(&self) -> Option<&ManualClock>;
}

impl Time for Arc<ManualClock> {
    fn pass(&self, time: Duration) -> Pin<Box<dyn Future<Output = ()> + Send + '_>> {
        self.advance(time);
        Box::pin(std::future::ready(()))
    }

    fn manual(&self) -> Option<&ManualClock> {
        Some(self)
    }
}

/// A function that counts the records in a store.
pub(super) type Count = Box<dyn Fn() -> Pin<Box<dyn Future<Output = usize> + Send>> + Send + Sync>;

/// A store under test.
pub struct Suite {
    pub(super) store: Arc<dyn Store>,
    pub(super) time: Box<dyn Time>,
    pub(super) stored: Stored,
    unsupported: Vec<Algorithm>,
    pub(super) subjects: AtomicU64,
}

/// How the suite counts the records in the store.
pub(super) enum Stored {
    Unknown,
    Unchecked,
    Counted(Count),
}

impl Suite {
    /// Creates a suite for an empty store. `time` is the time by which the store decides.
    #[must_use]
    pub fn new(store: impl Store, time: impl Time) -> Self {
        Self {
            store: Arc::new(store),
            time: Box::new(time),
            stored: Stored::Unknown,
            unsupported: Vec::new(),
            subjects: AtomicU64::new(0),
        }
    }

    /// Sets the function that counts the records in the store, so that the suite can check their
    /// removal.
    ///
    /// If records have an expiry of their own, as Redis keys do, count the records without expiry.
    /// If the store itself removes expired records, count all records.
    #[must_use]
    pub fn count_stored<F>(mut self, count: impl Fn() -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = usize> + Send + 'static,
    {
        self.stored = Stored::Counted(Box::new(move || Box::pin(count())));
        self
    }

    /// Skips the check that records are removed (clause 6), for stores that cannot count their
    /// records.
    #[must_use]
    pub fn without_stored_count(mut self) -> Self {
        self.stored = Stored::Unchecked;
        self
    }

    /// Expects the store to refuse limits of this algorithm as
    /// [`Unsupported`](crate::FailureKind::Unsupported).
    ///
    /// The burst, capacity and precision are ignored, but not the anchor and the kind of refill.
    /// Every store must support fixed windows that begin with the first request.
    #[must_use]
    pub fn without(mut self, algorithm: Algorithm) -> Self {
        self.unsupported.push(algorithm);
        self
    }

    /// Expects the store to support nothing but fixed windows that begin with the first request.
    #[must_use]
    pub fn only_fixed_windows(self) -> Self {
        let others = LIMITS.iter().map(|text| limit(text).algorithm());
        others.fold(self, Self::without)
    }

    /// Returns whether the store is expected to support limits of this algorithm.
    pub(super) fn holds(&self, algorithm: Algorithm) -> bool {
        !self.unsupported.iter().any(|other| kind(*other) == kind(algorithm))
    }

    pub(super) fn holds_clock_windows(&self) -> bool {
        self.holds(Algorithm::FixedWindow { anchor: Anchor::Clock })
    }
}

/// Returns a number for each algorithm, anchor and kind of refill.
const fn kind(algorithm: Algorithm) -> u8 {
    match algorithm {
        Algorithm::FixedWindow { anchor: Anchor::FirstRequest } => 0,
        Algorithm::FixedWindow { anchor: Anchor::Clock | Anchor::ClockOffset(_) } => 1,
        Algorithm::SlidingLog => 2,
        Algorithm::SlidingWindow { .. } => 3,
        Algorithm::SlidingWindowCounter => 4,
        Algorithm::TokenBucket { refill: Refill::Greedy, .. } => 5,
        Algorithm::TokenBucket { refill: Refill::Interval, .. } => 6,
        Algorithm::Gcra { .. } => 7,
        Algorithm::Concurrency => 8,
    }
}

impl fmt::Debug for Suite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Suite")
            .field("store", &self.store)
            .field("time", &self.time)
            .field("unsupported", &self.unsupported)
            .finish_non_exhaustive()
    }
}

/// A limit of each algorithm that grants six units at once. Fixed windows that begin with the first
/// request are left out, because other checks cover them.
pub(super) const LIMITS: [&str; 8] = [
    "6/day:clock",
    "6/day:sliding-log",
    "6/day:sliding-window:precision=hour",
    "6/day:sliding-window-counter",
    "3/day:token-bucket:capacity=6",
    "3/day:token-bucket:capacity=6:refill=interval",
    "3/day:gcra:burst=6",
    "6:concurrency:lease=day",
];

/// Parses a limit of this file.
pub(super) fn limit(text: &str) -> Limit {
    text.parse().expect("a limit")
}
