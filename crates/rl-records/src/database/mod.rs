//! The tables: connections, transactions, and the operations on each kind of object.
//!
//! From the bottom up:
//!
//! ```text
//! dialect                         what the kinds of databases do differently
//! connections, statement, row     a pooled connection, a query on it, and its columns
//! handle, open                    the pools of a database, and the caches to notify
//! transaction                     a change: begun, numbered, committed, announced
//! history, table                  objects with revisions, and one history row for each change
//! record_table, tier_members,
//! subscription_table              the rows of each kind of object
//! records, tiers, resources,
//! subscriptions                   the public operations
//! lookups, change_log             the queries of sources
//! usage_table, usage_history      calls added up by day: the writes, and the public queries
//! console_sessions                the logins of people, which are no limits
//! ```

mod audit_log;
mod change_log;
mod connections;
mod console_sessions;
mod consumers;
mod dialect;
mod driver_error;
mod handle;
mod history;
mod kind;
mod lookup_limiter;
mod lookups;
mod open;
mod options;
mod record_query;
mod record_table;
mod records;
mod resources;
mod row;
mod rules;
mod statement;
mod subscription_table;
mod subscriptions;
mod table;
mod tier_members;
mod tiers;
mod transaction;
mod usage_history;
mod usage_table;

pub use audit_log::AuditLog;
pub use console_sessions::{ConsoleSession, ConsoleSessions};
pub use consumers::{ConsumerPage, ConsumerQuery, ConsumerSummary};
pub use options::RecordsOptions;
pub use record_query::{RecordCursor, RecordPage, RecordQuery};
pub use records::Records;
pub use resources::Resources;
pub use rules::StoredRules;
pub use subscriptions::{SubscriptionPage, SubscriptionQuery, Subscriptions};
pub use tiers::Tiers;
pub use usage_history::UsageHistory;

pub(crate) use change_log::{ChangesSince, Position, changes_since, last_change};
pub(crate) use handle::{CHANNEL, Database, Listener};
pub(crate) use kind::Kind;
pub(crate) use lookup_limiter::{LookupLimiter, LookupPermit, PAUSE_MICROS, is_paused};
pub(crate) use lookups::{SubjectLimits, record_realms, resource_limit, subject_limits};
pub(crate) use usage_table::{UsageKey, add as add_usage, delete_before as delete_usage_before};
