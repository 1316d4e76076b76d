//! Limits that administrators manage: dated records in a database, as a source of policies.
//!
//! A record has any [limits](Limits) of a consumer, or of another subject such as an address, from
//! one date to another. The limits of records that are active at the same time are added up. A
//! change takes effect with the next request.
//!
//! ```
//! use rl_core::time::{Clock, SystemClock};
//! use rl_core::{RateLimiter, Subject};
//! use rl_records::{Limits, RecordContent, RecordSource, Records};
//!
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! // Or "sqlite://limits.db", "postgres://user:password@host/database", or "mysql://…".
//! let records = Records::connect("sqlite::memory:").await?;
//!
//! let now = SystemClock.now();
//! let next_hour = now.plus_micros(3_600_000_000);
//! let limits: Limits = "2/minute, 10000/day:unit=tokens".parse()?;
//! let content = RecordContent::new("abc123", now, next_hour, limits);
//! let record = records.create(content, "alice").await?;
//!
//! let limiter = RateLimiter::builder().policies(RecordSource::start(&records)).build()?;
//! let consumer = Subject::consumer("abc123");
//! assert!(limiter.check(&consumer, 2).await.is_allowed());
//! assert!(!limiter.check(&consumer, 1).await.is_allowed());
//!
//! let mut content = record.content.clone();
//! content.limits = "3/minute, 10000/day:unit=tokens".parse()?;
//! records.update(record.id, content, record.revision, "bob").await?;
//! assert!(limiter.check(&consumer, 1).await.is_allowed());
//! # Ok(()) }
//! ```
//!
//! # Which limits apply
//!
//! | active records, for one window | limit |
//! |---|---|
//! | no record | the limits of the consumer's tier; without a tier the defaults ([`RecordsOptions::defaults`]), if there are any |
//! | at least one limit above 0 | the sum of the records; 0 adds nothing |
//! | only limits of 0 | 0, which rejects every call, or no limit with [`ZeroMeans::Unlimited`] |
//! | no record has a limit | no limit; the default does not apply, because there is a record |
//! | at least one record that [blocks](RecordContent::block) | no call is allowed, whatever the other records contain |
//!
//! A *window* is what a limit counts in: its period, its algorithm and anchor or precision, and
//! whether it counts units or requests. Limits of different windows stand beside each other, up to
//! sixteen together. [`Aggregation`] has the details. In the six numbers of open banking systems
//! ([`CallLimits`]), −1 is no limit.
//!
//! A record is active from its `from_date` to its `to_date`, both included, to the microsecond.
//! [`Records::active_limits`] returns the limits at a time and the contribution of each record.
//! [`RecordSource`] enforces the same limits.
//!
//! A record of a [rule](RecordContent::rule) is added to the others under this rule only. Records of
//! subjects that are no consumers replace the policies of [`RecordSourceBuilder::others`].
//!
//! A [tier](Tiers) has limits and no dates. Its limits replace the defaults for its members. While a
//! member has an active record, the record replaces the tier. API keys can have a tier too: see
//! [`RecordSourceBuilder::tiers_of_keys`].
//!
//! A [subscription](Subscriptions) gives a consumer the limits of a tier as a record, with dates and
//! a [status](SubscriptionStatus). Its record is added to the other records of the consumer.
//!
//! [Rules](StoredRules) are stored too, in the form of a rule file. A [`RuleFollower`] applies them
//! to the limiters of a file.
//!
//! # When a change takes effect
//!
//! * In the process that made the change: with the next request.
//! * In other processes on the same database: as soon as they are notified, within milliseconds.
//!   The notification goes through `LISTEN/NOTIFY` on PostgreSQL, or through Redis
//!   publish/subscribe (feature `redis`).
//! * Without a notification: with the next poll of the change log, every half second, or every 200
//!   milliseconds on MySQL and MariaDB ([`RecordSourceBuilder::poll_every`]). Including two
//!   look-ups, this takes less than a second.
//!
//! While the database is down, the last known policies apply, and records still begin and end on
//! time.
//!
//! A change is announced even if its caller is cancelled, or if the result of its commit is
//! unknown. The next poll also detects a database that went back to an earlier state, after a
//! fail-over or with `.restore` of SQLite. All limits are then looked up again. A process that has
//! a SQLite file open does not notice that another file was renamed to its path: stop all processes
//! first, and delete the files that end in `-wal` and `-shm`.
//!
//! # Under load
//!
//! Look-ups, changes and other reads have separate connections
//! ([`RecordsOptions::max_connections`]). Every wait has a time limit: three seconds for a look-up,
//! and ten seconds for each statement of a change. However many consumers clients invent, only a
//! few look-ups run at the same time, and a few hundred wait. Further requests are decided by the
//! failure policy of the limiter, without waiting. Unknown consumers evict no cached value. After a
//! failed look-up, one look-up is tried each second, until one succeeds.
//!
//! # Features
//!
//! | Name | Description | Default? |
//! |---|---|---|
//! | `redis` | Announces changes to other instances through Redis | No |

#![cfg_attr(docsrs, feature(doc_cfg))]

mod error;

mod call_limits;
mod limits;

mod author;
mod day;
mod effect;
mod history;
mod record_id;
mod revision;

mod record;
mod resource;
mod rule;
mod subscription;
mod tier;
mod usage;

mod active;
mod audit;

mod database;
mod recorder;
mod source;

pub use active::{ActiveLimits, Aggregation, Contribution, lifts};
pub use audit::{AuditEntry, AuditEvent, AuditQuery, Refusal};
pub use author::Author;
pub use call_limits::{CallLimit, CallLimits, CallPeriod, ZeroMeans};
pub use database::{
    AuditLog, ConsoleSession, ConsoleSessions, ConsumerPage, ConsumerQuery, ConsumerSummary,
    RecordCursor, RecordPage, RecordQuery, Records, RecordsOptions, Resources, StoredRules,
    SubscriptionPage, SubscriptionQuery, Subscriptions, Tiers, UsageHistory,
};
pub use day::{Day, InvalidDay};
pub use error::{ChangeError, DatabaseError, InvalidField};
pub use history::{Change, HistoryQuery};
pub use limits::Limits;
pub use record::{Record, RecordContent};
pub use record_id::{InvalidRecordId, InvalidSubscriptionId, RecordId, SubscriptionId};
pub use recorder::{UsageRecorder, UsageRecorderBuilder};
pub use resource::{Permits, ResourceLimit, ResourceLimitContent};
pub use revision::{Expected, Revised, Revisioned};
pub use rule::{RuleContent, RuleDefinition};
pub use source::{RecordSource, RecordSourceBuilder, RecordSourceStats, RuleFollower};
pub use subscription::{Subscription, SubscriptionContent, SubscriptionStatus};
pub use tier::{Tier, TierContent, TierMember, TierUses};
pub use usage::{
    InvalidUsageCursor, MonthCursor, MonthPage, MonthQuery, MonthRow, UsageCounts, UsageCursor,
    UsageOrder, UsagePage, UsageQuery, UsageRow,
};
