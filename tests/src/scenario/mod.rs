//! Scenarios: timelines and the decisions that an implementation must make on them, as data for
//! tests.
//!
//! [`read`] reads a file of scenarios, and [`Stores`] runs them on every store that supports them.
//!
//! # Example
//!
//! ```no_run
//! use rl_tests::scenario::{Stores, read};
//!
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let stores = Stores::start().await?;
//! for scenario in read("vectors/six-windows.json".as_ref())? {
//!     for (store, verdict) in stores.run(&scenario).await {
//!         println!("{} {store} {verdict}", scenario.id);
//!     }
//! }
//! # Ok(()) }
//! ```

mod fields;
mod read;
mod run;
mod stores;

use rl_core::store::Mode;
use rl_core::time::Timestamp;
use rl_core::{ParseLimitError, Policy};

pub use fields::Malformed;
pub use read::read;
pub use run::Verdict;
pub use stores::Stores;

/// A timeline, with the decisions that a store must make on it.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// The id of the scenario in its file.
    pub id: String,
    /// The policies under which requests are decided. If there is only one, it has no name.
    policies: Vec<NamedPolicy>,
    unit: Unit,
    steps: Vec<Step>,
}

/// A policy, or the error for limits that the library does not support.
type Limits = Result<Policy, ParseLimitError>;

/// A policy with its name, which is also the namespace of its counters. An empty name means the
/// default namespace.
#[derive(Clone, Debug)]
struct NamedPolicy {
    name: String,
    limits: Limits,
}

#[derive(Clone, Debug)]
struct Step {
    at: Timestamp,
    parts: Vec<StepPart>,
    operation: Operation,
    repeat: u64,
    expect: Expect,
}

/// A part of a request: the index of a policy, a subject and a cost.
#[derive(Clone, Debug)]
struct StepPart {
    policy: usize,
    subject: String,
    cost: u64,
}

#[derive(Clone, Debug)]
enum Operation {
    Decide(Mode),
    /// Refunds the cost of the subject's latest decision that granted units.
    Refund,
    /// Resets one limit, or all limits.
    Reset(Option<String>),
    SetLimits(Limits),
}

/// The expected decision. Absent fields are not checked. Limits are identified by their names.
#[derive(Clone, Debug, Default)]
struct Expect {
    allowed: Option<bool>,
    granted: Option<u64>,
    retry_after: Option<Wait>,
    /// The expected status of each part.
    parts: Vec<ExpectPart>,
}

#[derive(Clone, Debug, Default)]
struct ExpectPart {
    remaining: Vec<(String, u64)>,
    reset_after: Vec<(String, u64)>,
    over: Option<Vec<String>>,
}

/// A time to wait, in the unit of the scenario.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wait {
    For(u64),
    Never,
}

/// The unit of the times in a scenario.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Unit {
    Micros,
    Millis,
    Seconds,
}

impl Unit {
    const fn micros(self) -> u64 {
        match self {
            Self::Micros => 1,
            Self::Millis => 1_000,
            Self::Seconds => 1_000_000,
        }
    }

    /// Returns a time in this unit, rounded up.
    fn of(self, time: std::time::Duration) -> u64 {
        let units = time.as_micros().div_ceil(u128::from(self.micros()));
        u64::try_from(units).expect("waits are far below 2^64 microseconds")
    }
}
