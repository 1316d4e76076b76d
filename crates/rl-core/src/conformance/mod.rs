//! Tests for the contract of [`Store`](crate::store::Store): run [`suite`] on your own store.
//!
//! A failure names the broken clause of the contract by its number and text: `clause 6: nothing is
//! kept for ever: …`.
//!
//! # Example
//!
//! ```
//! use rl_core::conformance::{Suite, suite};
//! use rl_core::MemoryStore;
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
mod clause;
mod clock;
mod limits;
mod permits;
mod refunds;
mod state;
mod subject;
mod suite;
#[cfg(test)]
mod tests;

use clause::{Clause, require};
use suite::Stored;
pub use suite::{Suite, Time};

/// Checks every clause of the contract.
///
/// # Panics
///
/// Panics if the store breaks a clause or returns an error. The message names the clause.
pub async fn suite(suite: &Suite) {
    let is_known = !matches!(suite.stored, Stored::Unknown);
    let what = "count the stored records with `Suite::count_stored`, or use `without_stored_count`";
    require(Clause::Expiry, is_known, what);

    limits::check(suite).await;
    state::check(suite).await;
    refunds::check(suite).await;
    clock::check(suite).await;
    algorithms::check(suite).await;
    permits::check(suite).await;
}
