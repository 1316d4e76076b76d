use std::collections::BTreeSet;

use rl_core::time::Timestamp;

use super::handle::Database;
use super::row::{micros, number, text};
use super::statement::{Sql, without_nul};
use crate::error::DatabaseError;

/// Selects consumers that have records or a tier. The list is ordered by id.
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
/// let query = ConsumerQuery { search: Some("abc".into()), ..ConsumerQuery::default() };
/// let page = records.consumers(&query, now).await?;
/// assert_eq!((page.consumers[0].records, page.consumers[0].active), (1, 1));
/// # Ok(()) }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConsumerQuery {
    /// Selects the ids that begin with this text.
    pub search: Option<String>,
    /// Selects the members of the tier with this name.
    pub tier: Option<String>,
    /// Selects these consumers.
    pub consumers: Option<Vec<String>>,
    /// Selects the ids after this one. Pass [`ConsumerPage::next`] of the previous page.
    pub after: Option<String>,
    /// Selects the ids before this one, nearest first. Pass [`ConsumerPage::previous`] of the next
    /// page.
    pub before: Option<String>,
    /// The maximum number of consumers on a page: 1 to 1 000.
    pub limit: u32,
}

impl Default for ConsumerQuery {
    /// Returns a query for the first 50 consumers.
    fn default() -> Self {
        Self { search: None, tier: None, consumers: None, after: None, before: None, limit: 50 }
    }
}

/// A page of the list of consumers.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ConsumerPage {
    /// The consumers.
    pub consumers: Vec<ConsumerSummary>,
    /// The cursor of the next page, if there is one.
    pub next: Option<String>,
    /// The cursor of the previous page, if there is one.
    pub previous: Option<String>,
}

/// A consumer in a list.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ConsumerSummary {
    /// The id.
    pub consumer_id: String,
    /// The number of its records.
    pub records: u64,
    /// The number of its records that are active at the instant of the query.
    pub active: u64,
    /// The name of its tier, if it has one.
    pub tier: Option<String>,
}

/// The largest number of consumers that [`count`] counts.
const MAX_COUNT: i64 = 10_000;

/// The tables that contain consumers. A join of both would read all rows.
const SOURCES: [&str; 2] = [
    "SELECT subject_id FROM rl_records WHERE realm = 'consumer'",
    "SELECT subject_id FROM (SELECT id AS subject_id FROM rl_tier_members \
     WHERE realm = 'consumer') AS members WHERE 1 = 1",
];

/// Adds the conditions of a query.
fn push_conditions(sql: &mut Sql, query: &ConsumerQuery) {
    if let Some(search) = &query.search {
        sql.push_search(search);
    }
    if let Some(tier) = &query.tier {
        let members = " AND subject_id IN (SELECT id FROM rl_tier_members \
             WHERE realm = 'consumer' AND tier = ?)";
        sql.push(members, [without_nul(tier).into()]);
    }
    if let Some(consumers) = &query.consumers {
        sql.push(" AND subject_id", []);
        sql.push_list(consumers);
    }
}

/// Returns a page of the list of consumers, as of the instant `at`.
pub(super) async fn page(
    database: &Database,
    query: &ConsumerQuery,
    at: Timestamp,
) -> Result<ConsumerPage, DatabaseError> {
    let size = query.limit.clamp(1, 1_000) as usize;
    let mut ids = BTreeSet::new();
    for source in SOURCES {
        let mut sql = Sql::new(source);
        push_conditions(&mut sql, query);
        if let Some(after) = &query.after {
            sql.push(" AND subject_id > ?", [without_nul(after).into()]);
        }
        if let Some(before) = &query.before {
            sql.push(" AND subject_id < ?", [without_nul(before).into()]);
        }
        sql.push(" GROUP BY subject_id ORDER BY subject_id", []);
        sql.push(
            if query.before.is_some() { " DESC LIMIT ?" } else { " LIMIT ?" },
            [(size as i64 + 1).into()],
        );
        for row in sql.on(&database.reads).await? {
            ids.insert(text(&row, "subject_id")?);
        }
    }
    let has_more = ids.len() > size;
    let is_back = query.before.is_some();
    let skipped = if is_back { ids.len().saturating_sub(size) } else { 0 };
    let ids: Vec<String> = ids.into_iter().skip(skipped).take(size).collect();
    // A page that was reached from another one has this one beside it.
    let (has_next, has_previous) =
        if is_back { (true, has_more) } else { (has_more, query.after.is_some()) };
    let next = if has_next { ids.last().cloned() } else { None };
    let previous = if has_previous { ids.first().cloned() } else { None };
    let consumers = summaries(database, ids, at).await?;
    Ok(ConsumerPage { consumers, next, previous })
}

/// Counts the consumers that a query selects, regardless of its page, up to [`MAX_COUNT`]. Returns
/// `None` if there are more.
pub(super) async fn count(
    database: &Database,
    query: &ConsumerQuery,
) -> Result<Option<u64>, DatabaseError> {
    let mut ids = BTreeSet::new();
    for source in SOURCES {
        let mut sql = Sql::new(source);
        push_conditions(&mut sql, query);
        sql.push(" GROUP BY subject_id ORDER BY subject_id LIMIT ?", [(MAX_COUNT + 1).into()]);
        for row in sql.on(&database.reads).await? {
            ids.insert(text(&row, "subject_id")?);
        }
    }
    Ok(Some(ids.len() as u64).filter(|count| *count <= MAX_COUNT as u64))
}

async fn summaries(
    database: &Database,
    ids: Vec<String>,
    at: Timestamp,
) -> Result<Vec<ConsumerSummary>, DatabaseError> {
    let empty = |consumer_id| ConsumerSummary { consumer_id, records: 0, active: 0, tier: None };
    let mut found: Vec<_> = ids.iter().cloned().map(empty).collect();
    if ids.is_empty() {
        return Ok(found);
    }
    let at = micros(at);
    let mut counts = Sql::new("SELECT subject_id AS id, COUNT(*) AS records,");
    counts.push(
        " COUNT(CASE WHEN from_date <= ? AND to_date >= ? THEN 1 END) AS active \
         FROM rl_records WHERE realm = 'consumer' AND subject_id",
        [at.into(), at.into()],
    );
    counts.push_list(&ids);
    counts.push(" GROUP BY subject_id", []);
    for row in counts.on(&database.reads).await? {
        let id = text(&row, "id")?;
        let Ok(index) = ids.binary_search(&id) else { continue };
        found[index].records = number(&row, "records")?.unsigned_abs();
        found[index].active = number(&row, "active")?.unsigned_abs();
    }
    let mut tiers =
        Sql::new("SELECT id, tier FROM rl_tier_members WHERE realm = 'consumer' AND id");
    tiers.push_list(&ids);
    for row in tiers.on(&database.reads).await? {
        let id = text(&row, "id")?;
        let Ok(index) = ids.binary_search(&id) else { continue };
        found[index].tier = Some(text(&row, "tier")?);
    }
    Ok(found)
}
