//! The algorithms, as pure functions: no clock, no lock, no I/O, no floating point.
//!
//! Every algorithm implements the same operations (`Counting`) on the state of one limit. A
//! [`Plan`] contains the algorithms of a policy with their constants. The memory store runs the
//! plan over the record of a subject, and charges all limits or none.
//!
//! Each file has a twin in `store/redis/scripts/algorithms/` that charges the same way. Only this
//! module computes the status that a client sees. It computes it from the state that was stored
//! here or on Redis. For a log on Redis, it uses the summary that the script returns.
//!
//! A concurrency limit is a sliding log whose units are released. ARCHITECTURE.md lists the steps
//! to add an algorithm.

mod counting;
mod divisor;
pub(crate) mod fixed_window;
mod gcra;
mod log;
mod plan;
#[cfg(feature = "redis")]
mod replied;
mod sliding_log;
mod sliding_window;
mod sliding_window_counter;
mod step;
mod token_bucket;

pub(crate) use log::Log;
pub(crate) use plan::{Available, Plan};
#[cfg(feature = "redis")]
pub(crate) use replied::{State, replied_cells, stored_cells};
pub(crate) use step::{PlanStep, SubjectStates, SubjectStatesMut};
