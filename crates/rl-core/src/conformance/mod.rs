//! The contract of [`Store`] as a test: run [`suite`] on a store of your own.
//!
//! A failure names the rule of the contract that is broken, by number and words:
//! `rule 6: nothing is kept for ever: …`.
//!
//! # Example
//!
//! ```
//! use rl_core::conformance::{Suite, suite};
//! use rl_core::store::MemoryStore;
//! use rl_core::time::{ManualClock, Timestamp};
//! use std::sync::Arc;
//!
//! # #[tokio::main(flavor = "current_thread")] async fn main() {
//! let clock = Arc::new(ManualClock::at(Timestamp::from_secs(1_750_000_000)));
//! let store = Arc::new(MemoryStore::builder().clock(clock.clone()).build());
//! let count = store.clone();
//! let stored = move || {
//!     let stored = count.len();
//!     async move { stored }
//! };
//! suite(&Suite::new(store, clock).count_stored(stored)).await;
//! # }
//! ```

mod algorithms;
mod clock;
mod limits;
mod permits;
mod refunds;
mod rule;
mod state;
mod subject;
#[cfg(test)]
mod tests;

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use rule::{Rule, require};

use crate::model::{Algorithm, Anchor, Refill};
use crate::store::Store;
use crate::time::ManualClock;

/// The time a store decides on, as far as a test can move it.
pub trait Time: fmt::Debug + Send + Sync + 'static {
    /// Lets this time pass for the store, and not much more.
    fn pass(&self, time: Duration) -> Pin<Box<dyn Future<Output = ()> + Send + '_>>;

    /// Returns the clock, if it stands still until it is moved: then the suite checks microseconds, too.
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

/// Counts what a store holds.
type Count = Box<dyn Fn() -> Pin<Box<dyn Future<Output = usize> + Send>> + Send + Sync>;

/// A store under test.
pub struct Suite {
    store: Arc<dyn Store>,
    time: Box<dyn Time>,
    stored: Stored,
    unsupported: Vec<Algorithm>,
    subjects: AtomicU64,
}

/// How the suite counts the records in the store.
enum Stored {
    Unknown,
    Unchecked,
    Counted(Count),
}

impl Suite {
    /// Tests a store that holds nothing yet, and the time it decides on.
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

    /// Sets the function that counts the records in the store, so that the suite can check their removal.
    ///
    /// If records have an expiry of their own, like keys of Redis, count those without one. If the store
    /// removes expired records by itself, count all records.
    #[must_use]
    pub fn count_stored<F>(mut self, count: impl Fn() -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = usize> + Send + 'static,
    {
        self.stored = Stored::Counted(Box::new(move || Box::pin(count())));
        self
    }

    /// Leaves rule 6 unchecked, for stores that cannot count what they hold.
    #[must_use]
    pub fn without_stored_count(mut self) -> Self {
        self.stored = Stored::Unchecked;
        self
    }

    /// Expects the store to refuse limits of this algorithm as
    /// [`Unsupported`](crate::FailureKind::Unsupported).
    ///
    /// The burst, capacity and precision are ignored, but not the anchor and the kind of refill. Every
    /// store must support fixed windows that begin with the first request.
    #[must_use]
    pub fn without(mut self, algorithm: Algorithm) -> Self {
        self.unsupported.push(algorithm);
        self
    }

    /// Expects the store to hold nothing but fixed windows that begin with the first request.
    #[must_use]
    pub fn only_fixed_windows(self) -> Self {
        let others = algorithms::LIMITS.iter().map(|limit| algorithms::limit(limit).algorithm());
        others.fold(self, Self::without)
    }

    /// Returns whether the store is expected to hold limits of this algorithm.
    fn holds(&self, algorithm: Algorithm) -> bool {
        !self.unsupported.iter().any(|other| kind(*other) == kind(algorithm))
    }

    fn holds_clock_windows(&self) -> bool {
        self.holds(Algorithm::FixedWindow { anchor: Anchor::Clock })
    }
}

/// Returns a number for each algorithm, anchor and kind of refill.
const fn kind(algorithm: Algorithm) -> u8 {
    match algorithm {
        Algorithm::FixedWindow { anchor: Anchor::FirstRequest } => 0,
        Algorithm::FixedWindow { anchor: Anchor::Clock } => 1,
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

/// Checks every rule of the contract.
///
/// # Panics
///
/// Panics if the store breaks a rule, or answers with an error. The message names the rule.
pub async fn suite(suite: &Suite) {
    let is_known = !matches!(suite.stored, Stored::Unknown);
    let what = "count the stored records with `Suite::count_stored`, or use `without_stored_count`";
    require(Rule::Expiry, is_known, what);

    limits::check(suite).await;
    state::check(suite).await;
    refunds::check(suite).await;
    clock::check(suite).await;
    algorithms::check(suite).await;
    permits::check(suite).await;
}
