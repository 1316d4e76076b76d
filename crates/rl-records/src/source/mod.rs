//! A source of policies that reads records.
//!
//! ```text
//! record_source   the policy of each subject, from the caches
//! stats           counts of look-ups
//! watch           invalidates the caches when other instances change something
//! caches          what was looked up: consumers, resources and keys
//! cache           one look-up at a time for each key; the last value while the database is down
//! timeline        the policy of one consumer at any time
//! ```

mod cache;
mod caches;
mod record_source;
mod stats;
mod timeline;
mod watch;

pub use record_source::{RecordSource, RecordSourceBuilder};
pub use stats::RecordSourceStats;
