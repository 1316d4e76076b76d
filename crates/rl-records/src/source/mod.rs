//! A source of policies that reads records, and the rules of the database.
//!
//! ```text
//! record_source   the policy of each subject, from the caches
//! stats           counts of look-ups
//! watch           invalidates the caches when other instances change something
//! caches          what was looked up: consumers, resources and keys
//! cache           one look-up at a time for each key; the last value while the database is down
//! timeline        the policy of one consumer at any time
//! rule_follower   applies the rules of the database to limiters
//! ```

mod cache;
mod caches;
mod record_source;
mod rule_follower;
mod stats;
mod timeline;
mod watch;

pub use record_source::{RecordSource, RecordSourceBuilder};
pub use rule_follower::RuleFollower;
pub use stats::RecordSourceStats;
