//! The queries of policy sources, on connections that are reserved for them.

use rl_core::time::Timestamp;

use super::change_log::{Position, end_of_log};
use super::handle::Database;
use super::{record_table, subscription_table, table, tier_members};
use crate::error::DatabaseError;
use crate::record::Record;
use crate::resource::ResourceLimit;
use crate::tier::TierContent;

/// The values that determine the limits of a subject.
#[derive(Debug)]
pub(crate) struct SubjectLimits {
    /// The records that are active at the time of the look-up or later.
    pub(crate) records: Vec<Record>,
    /// The tier that the subject is in.
    pub(crate) tier: Option<TierContent>,
    /// The tiers whose limits the records of subscriptions have.
    pub(crate) subscribed: Vec<String>,
}

/// Returns the limits of a subject at `at` and later, and the end of the change log. The tier is only
/// read if `with_tier` is set.
///
/// Each look-up reads the end after the values, on the same connection. So the end is not before a
/// change that the values contain.
pub(crate) async fn subject_limits(
    database: &Database,
    realm: &str,
    id: &str,
    with_tier: bool,
    at: Timestamp,
) -> Result<(SubjectLimits, Position), DatabaseError> {
    let mut lease = database.lookups.take().await?;
    let end = Timestamp::from_micros(u64::MAX);
    let records = record_table::overlapping(&mut *lease, realm, id, at, end).await?;
    // Only consumers have subscriptions, and without a record none that matters.
    let subscribed = match realm {
        "consumer" if !records.is_empty() => subscription_table::tiers_of(&mut *lease, id).await?,
        _ => Vec::new(),
    };
    let tier = match with_tier {
        true => tier_members::find_tier(&mut *lease, realm, id).await?,
        false => None,
    };
    let end = end_of_log(&mut *lease).await?;
    lease.put_back();
    Ok((SubjectLimits { records, tier, subscribed }, end))
}

/// Returns the realms whose subjects have records, and the end of the change log.
pub(crate) async fn record_realms(
    database: &Database,
) -> Result<(Vec<String>, Position), DatabaseError> {
    let mut lease = database.lookups.take().await?;
    let realms = record_table::realms(&mut lease).await?;
    let end = end_of_log(&mut *lease).await?;
    lease.put_back();
    Ok((realms, end))
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
