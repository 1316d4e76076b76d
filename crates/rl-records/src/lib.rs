//! Limits that people manage: dated records per consumer in a database, and the policy they make.
//!
//! A record says how often a consumer may call in each of six periods, from one date to another.
//! The records that are active at the same time add up; a change of one binds the next request.
//!
//! ```
//! use rl_core::time::{Clock, SystemClock};
//! use rl_core::{RateLimiter, Subject};
//! use rl_records::{CallLimit, CallLimits, CallPeriod, RecordContent, RecordSource, Records};
//!
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! // Or "sqlite://limits.db", or "postgres://user:password@host/database".
//! let records = Records::connect("sqlite::memory:").await?;
//!
//! let now = SystemClock.now();
//! let next_hour = now.plus_micros(3_600_000_000);
//! let limits = CallLimits::UNLIMITED.with(CallPeriod::Minute, CallLimit::AtMost(2));
//! let content = RecordContent::new("abc123", now, next_hour, limits);
//! let record = records.create(content, "alice").await?;
//!
//! let limiter = RateLimiter::builder().policies(RecordSource::start(&records)).build()?;
//! let consumer = Subject::consumer("abc123");
//! assert!(limiter.check(&consumer, 2).await.is_allowed());
//! assert!(!limiter.check(&consumer, 1).await.is_allowed());
//!
//! let mut content = record.content.clone();
//! content.limits = content.limits.with(CallPeriod::Minute, CallLimit::AtMost(3));
//! records.update(record.id, content, record.revision, "bob").await?;
//! assert!(limiter.check(&consumer, 1).await.is_allowed());
//! # Ok(()) }
//! ```
//!
//! # Which limits apply
//!
//! | active records, for one period | what holds |
//! |---|---|
//! | no record at all | that of its tier, if it is in one; else the default ([`RecordsBuilder::defaults`]), no limit unless said |
//! | one or more above 0 | their sum; 0 and −1 add nothing |
//! | none above 0, one or more 0 | 0: every call is denied, or no limit with [`ZeroMeans::Unlimited`] |
//! | all −1 | no limit; the default does not apply, since there is a record |
//! | one that [blocks](RecordContent::block) | 0 in every period, whatever the others say |
//!
//! So −1 beside 100 gives 100: "no limit" does not win. A record is active from its `from_date` to
//! its `to_date`, both included, to the microsecond. [`Records::active_limits`] tells what holds at
//! a time and which record contributed what; [`RecordSource`] enforces the same answer.
//!
//! A tier ([`Records::create_tier`]) has six limits and no dates: it is what its consumers have instead
//! of the defaults. A record of a consumer's own puts them aside as long as it is active, in every
//! period. API keys can be in a tier too, and have no records: see
//! [`RecordSourceBuilder::tiers_of_keys`].
//!
//! # When a change takes effect
//!
//! In the process that made it: with the next request. In others that share the database, as soon as
//! they learn of it: through `LISTEN/NOTIFY` on PostgreSQL or Redis publish/subscribe (feature
//! `redis`) within milliseconds, and in any case at the next look at the change counter, which is half
//! a second after the last one unless [`RecordSourceBuilder::poll_every`] says otherwise. So the bound
//! is that interval and the time of two look-ups: below one second with a database that answers. While the
//! database is down, the last policies hold, and records begin and end as they were dated.
//!
//! A change whose caller goes away, or that cannot tell whether it was committed, is announced all the
//! same. A database that went back to an earlier state (fail-over, a restored file) is noticed at the
//! next look, and everything is looked up again.
//!
//! # When many ask
//!
//! Look-ups, changes and whatever else is read have connections apart
//! ([`RecordsBuilder::max_connections`]), and everything that is waited for ends: a change after seconds,
//! a look-up after three. However many consumers somebody invents, a few look-ups run at once and a few
//! hundred wait; those beyond are told so at once and are under the failure policy of the limiter. They
//! displace nothing that is known unless they are found. After a look-up that failed there is one each
//! second, for all, until one succeeds.
//!
//! # Features
//!
//! | Name | Description | Default? |
//! |---|---|---|
//! | `redis` | Changes are announced to other instances on Redis | No |

#![cfg_attr(docsrs, feature(doc_cfg))]

mod error;
mod limits;

mod record;
mod resource;
mod tier;

mod active;
mod audit;
mod author;
mod effect;
mod expected;
mod history;

mod database;
mod source;

pub use active::{ActiveLimits, Aggregation, Contribution, lifts};
pub use audit::{AuditEntry, AuditEvent, AuditQuery, Refusal};
pub use author::Author;
pub use database::{
    ConsumerPage, ConsumerQuery, ConsumerSummary, RecordCursor, RecordPage, RecordQuery, Records,
    RecordsBuilder,
};
pub use error::{ChangeError, DatabaseError, InvalidField};
pub use expected::Expected;
pub use history::{Change, HistoryQuery};
pub use limits::{CallLimit, CallLimits, CallPeriod, ZeroMeans};
pub use record::{InvalidRecordId, Record, RecordContent, RecordId};
pub use resource::{ResourceLimit, ResourceLimitContent};
pub use source::{RecordSource, RecordSourceBuilder};
pub use tier::{Tier, TierContent, TierMember};
