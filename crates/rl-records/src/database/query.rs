use std::fmt;
use std::str::FromStr;

use rl_core::time::Timestamp;

use super::micros;
use super::sql::Sql;
use crate::{InvalidRecordId, Record, RecordId};

/// Which records to list, in the order of consumer, beginning and id.
///
/// # Examples
///
/// ```
/// use rl_core::time::{Clock, SystemClock};
/// use rl_records::{RecordQuery, Records};
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let records = Records::connect("sqlite::memory:").await?;
/// let query = RecordQuery { active_at: Some(SystemClock.now()), ..RecordQuery::default() };
/// let page = records.list(&query).await?;
/// assert!(page.records.is_empty() && page.next.is_none());
/// # Ok(()) }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordQuery {
    /// Only those of this consumer.
    pub consumer: Option<String>,
    /// Only those whose consumer has this text in its id, in large or small letters (of ASCII).
    pub search: Option<String>,
    /// Only those that are active at this time.
    pub active_at: Option<Timestamp>,
    /// Only those after this place: [`RecordPage::next`] of the page before.
    pub after: Option<RecordCursor>,
    /// At most so many: 1 to 1 000.
    pub limit: u32,
}

impl Default for RecordQuery {
    /// The first 50 of all.
    fn default() -> Self {
        Self { consumer: None, search: None, active_at: None, after: None, limit: 50 }
    }
}

/// A page of a list.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RecordPage {
    /// The records.
    pub records: Vec<Record>,
    /// Where the next page begins, if there is one.
    pub next: Option<RecordCursor>,
}

/// A place in the list of records. It stays valid when the record that was there is deleted.
///
/// As text it is safe to hand to a client and to take back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordCursor {
    id: RecordId,
    from_date: Timestamp,
    consumer_id: String,
}

impl RecordCursor {
    fn of(record: &Record) -> Self {
        let (id, content) = (record.id, &record.content);
        Self { id, from_date: content.from_date, consumer_id: content.consumer_id.clone() }
    }
}

impl fmt::Display for RecordCursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.id, self.from_date.as_micros(), self.consumer_id)
    }
}

impl FromStr for RecordCursor {
    type Err = InvalidRecordId;

    fn from_str(text: &str) -> Result<Self, InvalidRecordId> {
        let mut parts = text.splitn(3, '.');
        let mut part = || parts.next().ok_or(InvalidRecordId);
        let id = part()?.parse()?;
        let from_date = part()?.parse().map_err(|_| InvalidRecordId)?;
        let from_date = Timestamp::from_micros(from_date);
        // A NUL is no text for PostgreSQL, and no stored id has one.
        let consumer_id = part()?.to_owned();
        if consumer_id.contains('\0') {
            return Err(InvalidRecordId);
        }
        Ok(Self { id, from_date, consumer_id })
    }
}

impl RecordQuery {
    /// How many rows make a page.
    pub(super) fn page(&self) -> u32 {
        self.limit.clamp(1, 1_000)
    }

    /// The statement; it asks for one row more than the page has, to see whether there is a next one.
    pub(super) fn sql(&self, is_postgres: bool) -> Sql {
        let mut sql = Sql::new("SELECT * FROM rl_records WHERE 1 = 1");
        if let Some(consumer) = &self.consumer {
            sql.push(" AND consumer_id = ?", [without_nul(consumer).into()]);
        }
        if let Some(search) = &self.search {
            sql.push_search(search, is_postgres);
        }
        if let Some(at) = self.active_at {
            let at = micros(at);
            sql.push(" AND from_date <= ? AND to_date >= ?", [at.into(), at.into()]);
        }
        if let Some(RecordCursor { id, from_date, consumer_id }) = &self.after {
            sql.push(
                " AND (consumer_id, from_date, rate_limiting_id) > (?, ?, ?)",
                [consumer_id.as_str().into(), micros(*from_date).into(), id.to_string().into()],
            );
        }
        let rows = i64::from(self.page()) + 1;
        sql.push(" ORDER BY consumer_id, from_date, rate_limiting_id LIMIT ?", [rows.into()]);
        sql
    }

    pub(super) fn page_of(&self, mut records: Vec<Record>) -> RecordPage {
        let page = self.page() as usize;
        let has_more = records.len() > page;
        records.truncate(page);
        let next = if has_more { records.last().map(RecordCursor::of) } else { None };
        RecordPage { records, next }
    }
}

/// PostgreSQL refuses NUL in text. No stored id has one or the character that stands for it.
pub(super) fn without_nul(text: &str) -> String {
    text.replace('\0', "\u{1}")
}
