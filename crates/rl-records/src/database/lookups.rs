//! The queries of policy sources, on connections that are reserved for them.

use rl_core::time::Timestamp;

use super::change_log::{Position, end_of_log};
use super::handle::Database;
use super::{record_table, subscription_table, table, tier_members};
use crate::error::DatabaseError;
use crate::record::Record;
use crate::resource::ResourceLimit;
use crate::tier::TierContent;

/// The values that determine the limits of a consumer.
#[derive(Debug)]
pub(crate) struct ConsumerLimits {
    /// The records that are active at the time of the look-up or later.
    pub(crate) records: Vec<Record>,
    /// The tier that the consumer is in.
    pub(crate) tier: Option<TierContent>,
    /// The tiers whose limits the records of subscriptions have.
    pub(crate) subscribed: Vec<String>,
}

/// Returns the limits of a consumer at `at` and later, and the end of the change log.
///
/// Each look-up reads the end after the values, on the same connection. So the end is not before a
/// change that the values contain.
pub(crate) async fn consumer_records(
    database: &Database,
    consumer: &str,
    at: Timestamp,
) -> Result<(ConsumerLimits, Position), DatabaseError> {
    let mut lease = database.lookups.take().await?;
    let end = Timestamp::from_micros(u64::MAX);
    let records = record_table::overlapping(&mut *lease, consumer, at, end).await?;
    // Without a record, there is no record of a subscription either.
    let subscribed = match records.is_empty() {
        true => Vec::new(),
        false => subscription_table::tiers_of(&mut *lease, consumer).await?,
    };
    let tier = tier_members::find_tier(&mut *lease, "consumer", consumer).await?;
    let end = end_of_log(&mut *lease).await?;
    lease.put_back();
    Ok((ConsumerLimits { records, tier, subscribed }, end))
}

/// Returns the tier of an API key, and the end of the change log.
pub(crate) async fn key_tier(
    database: &Database,
    key: &str,
) -> Result<(Option<TierContent>, Position), DatabaseError> {
    let mut lease = database.lookups.take().await?;
    let tier = tier_members::find_tier(&mut *lease, "key", key).await?;
    let end = end_of_log(&mut *lease).await?;
    lease.put_back();
    Ok((tier, end))
}

/// Returns the limit of a resource, and the end of the change log.
pub(crate) async fn resource_limit(
    database: &Database,
    name: &str,
) -> Result<(Option<ResourceLimit>, Position), DatabaseError> {
    let mut lease = database.lookups.take().await?;
    let limit = table::find(&mut *lease, name).await?;
    let end = end_of_log(&mut *lease).await?;
    lease.put_back();
    Ok((limit, end))
}
