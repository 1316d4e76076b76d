use std::fmt;
use std::str::FromStr;

use rl_core::Realm;
use rl_core::time::Timestamp;
use sqlx::AnyConnection;

use super::handle::Database;
use super::record_table;
use super::row::micros;
use super::statement::{Bound, Sql, without_nul};
use crate::error::DatabaseError;
use crate::record::{Record, realm_named};
use crate::record_id::{InvalidRecordId, RecordId};

/// Selects records. The list is ordered by realm, subject, start and id.
///
/// # Examples
///
/// ```
/// use rl_core::time::{Clock, SystemClock};
/// use rl_records::{RecordQuery, Records};
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let records = Records::connect("sqlite::memory:").await?;
/// let consumer = RecordQuery::of_consumer("abc123");
/// let query = RecordQuery { active_at: Some(SystemClock.now()), ..consumer };
/// let page = records.list(&query).await?;
/// assert!(page.records.is_empty() && page.next.is_none());
/// # Ok(()) }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordQuery {
    /// Selects the records of subjects of this realm.
    pub realm: Option<Realm>,
    /// Selects the records of subjects with this id.
    pub subject: Option<String>,
    /// Selects the records under this rule.
    pub rule: Option<String>,
    /// Selects the records whose subject id begins with this text.
    pub search: Option<String>,
    /// Selects the records of these consumers.
    pub consumers: Option<Vec<String>>,
    /// Selects the records that are active at this time.
    pub active_at: Option<Timestamp>,
    /// Selects the records after this cursor. Pass [`RecordPage::next`] of the previous page.
    pub after: Option<RecordCursor>,
    /// The maximum number of records on a page: 1 to 1 000.
    pub limit: u32,
}

impl Default for RecordQuery {
    /// Returns a query for the first 50 records.
    fn default() -> Self {
        Self {
            realm: None,
            subject: None,
            rule: None,
            search: None,
            consumers: None,
            active_at: None,
            after: None,
            limit: 50,
        }
    }
}

/// A page of a list of records.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RecordPage {
    /// The records.
    pub records: Vec<Record>,
    /// The cursor of the next page, if there is one.
    pub next: Option<RecordCursor>,
}

/// A position in the list of records. It stays valid even if the record at this position is
/// deleted.
///
/// A client can receive its text form and send it back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordCursor {
    id: RecordId,
    from_date: Timestamp,
    realm: String,
    subject_id: String,
}

impl RecordCursor {
    fn of(record: &Record) -> Self {
        Self {
            id: record.id,
            from_date: record.content.from_date,
            realm: record.content.realm.as_str().to_owned(),
            subject_id: record.content.subject_id.clone(),
        }
    }
}

impl fmt::Display for RecordCursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { id, from_date, realm, subject_id } = self;
        write!(f, "{id}.{}.{realm}.{subject_id}", from_date.as_micros())
    }
}

impl FromStr for RecordCursor {
    type Err = InvalidRecordId;

    fn from_str(text: &str) -> Result<Self, InvalidRecordId> {
        let mut parts = text.splitn(4, '.');
        let mut part = || parts.next().ok_or(InvalidRecordId);
        let id = part()?.parse()?;
        let from_date = part()?.parse().map_err(|_| InvalidRecordId)?;
        let from_date = Timestamp::from_micros(from_date);
        let (realm, subject_id) = (part()?.to_owned(), part()?.to_owned());
        // PostgreSQL rejects NUL in text, and no stored id contains it.
        if text.contains('\0') {
            return Err(InvalidRecordId);
        }
        Ok(Self { id, from_date, realm, subject_id })
    }
}

impl RecordQuery {
    /// Returns a query for the first 50 records of a consumer.
    #[must_use]
    pub fn of_consumer(id: &str) -> Self {
        Self { realm: Some(Realm::Consumer), subject: Some(id.to_owned()), ..Self::default() }
    }

    /// Returns the number of records on a page.
    fn page_size(&self) -> u32 {
        self.limit.clamp(1, 1_000)
    }

    /// Returns the statement that reads a page. It selects one more row than the page has, to
    /// detect whether there is a next page.
    fn sql(&self) -> Sql {
        let mut sql = Sql::new("SELECT * FROM rl_records WHERE 1 = 1");
        let realm = self.realm.as_ref().map(Realm::as_str);
        for (condition, value) in [
            (" AND realm = ?", realm),
            (" AND subject_id = ?", self.subject.as_deref()),
            (" AND rule = ?", self.rule.as_deref()),
        ] {
            if let Some(value) = value {
                sql.push(condition, [without_nul(value).into()]);
            }
        }
        if let Some(search) = &self.search {
            sql.push_search(search);
        }
        if let Some(consumers) = &self.consumers {
            sql.push(" AND realm = 'consumer' AND subject_id", []);
            sql.push_list(consumers);
        }
        if let Some(at) = self.active_at {
            let at = micros(at);
            sql.push(" AND from_date <= ? AND to_date >= ?", [at.into(), at.into()]);
        }
        if let Some(RecordCursor { id, from_date, realm, subject_id }) = &self.after {
            // MySQL uses no index to compare rows. With the condition before the comparison, it skips
            // the subjects of the pages before. So does SQLite, if the realm is given.
            let [at_realm, subject] = [realm, subject_id].map(|text| Bound::from(text.as_str()));
            let (from, id) = (micros(*from_date).into(), id.to_string().into());
            match self.realm {
                Some(_) => sql.push(
                    " AND subject_id >= ? AND (subject_id, from_date, rate_limiting_id) > (?, ?, ?)",
                    [subject.clone(), subject, from, id],
                ),
                None => sql.push(
                    " AND (realm > ? OR (realm = ? AND subject_id >= ?)) \
                     AND (realm, subject_id, from_date, rate_limiting_id) > (?, ?, ?, ?)",
                    [
                        at_realm.clone(),
                        at_realm.clone(),
                        subject.clone(),
                        at_realm,
                        subject,
                        from,
                        id,
                    ],
                ),
            }
        }
        let rows = i64::from(self.page_size()) + 1;
        sql.push(" ORDER BY realm, subject_id, from_date, rate_limiting_id LIMIT ?", [rows.into()]);
        sql
    }

    /// Creates a page from the rows of [`sql`](Self::sql).
    fn page_of(&self, mut records: Vec<Record>) -> RecordPage {
        let page = self.page_size() as usize;
        let has_more = records.len() > page;
        records.truncate(page);
        let next = if has_more { records.last().map(RecordCursor::of) } else { None };
        RecordPage { records, next }
    }
}

/// Returns a page of the list of records.
pub(super) async fn page(
    database: &Database,
    query: &RecordQuery,
) -> Result<RecordPage, DatabaseError> {
    let mut lease = database.reads.take().await?;
    let mut records = Vec::new();
    for query in in_realms(&mut lease, query).await? {
        if records.len() <= query.page_size() as usize {
            records.extend(record_table::records(&query.sql().on(&mut *lease).await?)?);
        }
    }
    lease.put_back();
    Ok(query.page_of(records))
}

/// Returns a query for each realm if `query` searches in all of them, because the index of subjects
/// begins with the realm.
async fn in_realms(
    connection: &mut AnyConnection,
    query: &RecordQuery,
) -> Result<Vec<RecordQuery>, DatabaseError> {
    if query.search.is_none() || query.realm.is_some() {
        return Ok(vec![query.clone()]);
    }
    let after = query.after.as_ref();
    let realms = record_table::realms(connection).await?;
    let realms = realms.iter().filter(|realm| after.is_none_or(|after| after.realm <= **realm));
    let queries = realms.map(|realm| RecordQuery {
        realm: realm_named(realm),
        after: after.filter(|after| after.realm == *realm).cloned(),
        ..query.clone()
    });
    Ok(queries.collect())
}
