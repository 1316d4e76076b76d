use rl_core::time::Timestamp;

use super::members::tier_limits;
use super::records::overlapping;
use super::{Records, resources};
use crate::{DatabaseError, Record, ResourceLimit, TierContent};

/// What sources ask, on connections that nobody else takes.
impl Records {
    /// All records of a consumer that are active at `at` or later, and the tier that it is in.
    pub(crate) async fn look_up_consumer(
        &self,
        consumer: &str,
        at: Timestamp,
    ) -> Result<(Vec<Record>, Option<TierContent>), DatabaseError> {
        let mut lease = self.inner.look_ups.take().await?;
        let end = Timestamp::from_micros(u64::MAX);
        let records = overlapping(&mut *lease, consumer, at, end).await?;
        let tier = tier_limits(&mut *lease, "consumer", consumer).await?;
        lease.put_back();
        Ok((records, tier))
    }

    /// The tier that an API key is in.
    pub(crate) async fn look_up_key(
        &self,
        key: &str,
    ) -> Result<Option<TierContent>, DatabaseError> {
        tier_limits(&self.inner.look_ups, "key", key).await
    }

    /// The limit of a resource.
    pub(crate) async fn look_up_resource(
        &self,
        name: &str,
    ) -> Result<Option<ResourceLimit>, DatabaseError> {
        resources::read(&self.inner.look_ups, name).await
    }
}
