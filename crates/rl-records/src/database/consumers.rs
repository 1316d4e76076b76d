use std::collections::BTreeSet;

use rl_core::time::Timestamp;
use sqlx::Row;

use super::failure::failed;
use super::query::without_nul;
use super::sql::Sql;
use super::{Records, micros};
use crate::DatabaseError;

/// Which consumers to list, by id: those that have records or a tier.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConsumerQuery {
    /// Only those with this text in their id, in large or small letters (of ASCII).
    pub search: Option<String>,
    /// Only those after this id: [`ConsumerPage::next`] of the page before.
    pub after: Option<String>,
    /// At most so many: 1 to 1 000.
    pub limit: u32,
}

impl Default for ConsumerQuery {
    /// The first 50 of all.
    fn default() -> Self {
        Self { search: None, after: None, limit: 50 }
    }
}

/// A page of the list of consumers.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ConsumerPage {
    /// The consumers.
    pub consumers: Vec<ConsumerSummary>,
    /// Where the next page begins, if there is one.
    pub next: Option<String>,
}

/// What there is of a consumer.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ConsumerSummary {
    /// Its id.
    pub consumer_id: String,
    /// How many records it has.
    pub records: u64,
    /// How many of them are active at the time that was asked for.
    pub active: u64,
    /// The tier it is in.
    pub tier: Option<String>,
}

impl Records {
    /// A page of the list of consumers; what is active is told for the instant `at`.
    ///
    /// # Errors
    ///
    /// Returns an error if the database does not answer.
    ///
    /// # Examples
    ///
    /// ```
    /// use rl_core::time::{Clock, SystemClock};
    /// use rl_records::{CallLimits, ConsumerQuery, RecordContent, Records};
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let records = Records::connect("sqlite::memory:").await?;
    /// let now = SystemClock.now();
    /// let content = RecordContent::new("abc123", now, now, CallLimits::UNLIMITED);
    /// records.create(content, "alice").await?;
    ///
    /// let query = ConsumerQuery { search: Some("ABC".into()), ..ConsumerQuery::default() };
    /// let page = records.consumers(&query, now).await?;
    /// assert_eq!((page.consumers[0].records, page.consumers[0].active), (1, 1));
    /// # Ok(()) }
    /// ```
    pub async fn consumers(
        &self,
        query: &ConsumerQuery,
        at: Timestamp,
    ) -> Result<ConsumerPage, DatabaseError> {
        let page = query.limit.clamp(1, 1_000) as usize;
        let mut ids = BTreeSet::new();
        // Each by its index, in order, and no further than the page: a join of both would be made whole.
        for source in [
            "SELECT consumer_id FROM rl_records WHERE 1 = 1",
            "SELECT consumer_id FROM (SELECT id AS consumer_id FROM rl_tier_members \
             WHERE realm = 'consumer') AS members WHERE 1 = 1",
        ] {
            let mut sql = Sql::new(source);
            if let Some(text) = &query.after {
                sql.push(" AND consumer_id > ?", [without_nul(text).into()]);
            }
            if let Some(text) = &query.search {
                sql.push_search(text, self.inner.is_postgres);
            }
            let end = " GROUP BY consumer_id ORDER BY consumer_id LIMIT ?";
            sql.push(end, [(page as i64 + 1).into()]);
            for row in sql.on(&self.inner.reads).await? {
                ids.insert(row.try_get::<String, _>("consumer_id").map_err(failed)?);
            }
        }
        let has_more = ids.len() > page;
        let ids: Vec<String> = ids.into_iter().take(page).collect();
        let next = if has_more { ids.last().cloned() } else { None };
        let consumers = self.summaries(ids, at).await?;
        Ok(ConsumerPage { consumers, next })
    }

    async fn summaries(
        &self,
        ids: Vec<String>,
        at: Timestamp,
    ) -> Result<Vec<ConsumerSummary>, DatabaseError> {
        let empty =
            |consumer_id| ConsumerSummary { consumer_id, records: 0, active: 0, tier: None };
        let mut found: Vec<_> = ids.iter().cloned().map(empty).collect();
        if ids.is_empty() {
            return Ok(found);
        }
        let at = micros(at);
        let mut counts = Sql::new("SELECT consumer_id AS id, COUNT(*) AS records,");
        counts.push(
            " SUM(CASE WHEN from_date <= ? AND to_date >= ? THEN 1 ELSE 0 END) AS active \
             FROM rl_records WHERE consumer_id",
            [at.into(), at.into()],
        );
        counts.push_list(&ids);
        counts.push(" GROUP BY consumer_id", []);
        for row in counts.on(&self.inner.reads).await? {
            let id: String = row.try_get("id").map_err(failed)?;
            let Ok(place) = ids.binary_search(&id) else { continue };
            let number = |column: &str| row.try_get::<i64, _>(column).map_err(failed);
            found[place].records = number("records")?.unsigned_abs();
            found[place].active = number("active")?.unsigned_abs();
        }
        let mut tiers =
            Sql::new("SELECT id, tier FROM rl_tier_members WHERE realm = 'consumer' AND id");
        tiers.push_list(&ids);
        for row in tiers.on(&self.inner.reads).await? {
            let id: String = row.try_get("id").map_err(failed)?;
            let Ok(place) = ids.binary_search(&id) else { continue };
            found[place].tier = Some(row.try_get("tier").map_err(failed)?);
        }
        Ok(found)
    }
}
