//! Time as the limiter sees it: whole microseconds since the Unix epoch, read from a [`Clock`].
//!
//! # Example
//!
//! ```
//! use rl_core::time::{Clock, ManualClock, Timestamp};
//! use std::time::Duration;
//!
//! let clock = ManualClock::at(Timestamp::from_secs(1_700_000_000));
//! clock.advance(Duration::from_millis(250));
//! assert_eq!(clock.now().as_micros(), 1_700_000_000_250_000);
//! ```

mod calendar;
mod clock;
mod counter;
mod system_clock;
mod timestamp;
mod tokio_clock;

pub(crate) use calendar::calendar_month;
pub use clock::{Clock, ManualClock};
#[cfg(feature = "redis")]
pub(crate) use counter::Counter;
pub use system_clock::SystemClock;
pub use timestamp::Timestamp;
pub use tokio_clock::TokioClock;
