//! The queries of policy sources, on connections that are reserved for them.

use rl_core::time::Timestamp;

use super::handle::Database;
use super::{record_table, table, tier_members};
use crate::error::DatabaseError;
use crate::record::Record;
use crate::resource::ResourceLimit;
use crate::tier::TierContent;

/// Returns the records of a consumer that are active at `at` or later, and the tier of the
/// consumer.
pub(crate) async fn consumer_records(
    database: &Database,
    consumer: &str,
    at: Timestamp,
) -> Result<(Vec<Record>, Option<TierContent>), DatabaseError> {
    let mut lease = database.lookups.take().await?;
    let end = Timestamp::from_micros(u64::MAX);
    let records = record_table::overlapping(&mut *lease, consumer, at, end).await?;
    let tier = tier_members::find_tier(&mut *lease, "consumer", consumer).await?;
    lease.put_back();
    Ok((records, tier))
}

/// Returns the tier of an API key.
pub(crate) async fn key_tier(
    database: &Database,
    key: &str,
) -> Result<Option<TierContent>, DatabaseError> {
    tier_members::find_tier(&database.lookups, "key", key).await
}

/// Returns the limit of a resource.
pub(crate) async fn resource_limit(
    database: &Database,
    name: &str,
) -> Result<Option<ResourceLimit>, DatabaseError> {
    table::find(&database.lookups, name).await
}
