use rl_core::FailureKind;
#[cfg(doc)]
use rl_core::MAX_UNITS;
use rl_core::time::Timestamp;
use sqlx::Row;
use sqlx::any::AnyRow;

use super::connections::Place;
use super::failure::failed;
use super::members::tier_limits;
use super::sql::{Sql, Statement};
use super::{Kind, Records, micros, time_of};
use crate::record::check_name;
use crate::{
    ActiveLimits, Author, CallLimits, CallPeriod, ChangeError, DatabaseError, Expected,
    InvalidField, Record, RecordContent, RecordId, RecordPage, RecordQuery,
};

impl Records {
    /// Stores a new record.
    ///
    /// # Errors
    ///
    /// Returns an error if a field cannot be stored, if the limits of all records that are active at
    /// the same time could add up to more than [`MAX_UNITS`], if `by` may not block or unblock and
    /// the record does, or if the database does not answer.
    pub async fn create(
        &self,
        content: RecordContent,
        by: impl Into<Author<'_>>,
    ) -> Result<Record, ChangeError<Record>> {
        let by = by.into();
        let content = content.checked()?;
        check_name("created_by", by.name())?;
        let (mut edit, change) = self.begin().await?;
        let record = self.insert(&mut edit, change, content, by).await?;
        edit.commit(Kind::Record, &record.content.consumer_id).await?;
        Ok(record)
    }

    /// The record of this id, if there is one.
    ///
    /// # Errors
    ///
    /// Returns an error if the database does not answer.
    pub async fn read(&self, id: RecordId) -> Result<Option<Record>, DatabaseError> {
        read(&self.inner.reads, id).await
    }

    /// A page of the list of records.
    ///
    /// # Errors
    ///
    /// Returns an error if the database does not answer.
    pub async fn list(&self, query: &RecordQuery) -> Result<RecordPage, DatabaseError> {
        let rows = query.sql(self.inner.is_postgres).on(&self.inner.reads).await?;
        Ok(query.page_of(records_of(&rows)?))
    }

    /// Writes `content` over the record, if it is as `expected`, for instance at a revision.
    ///
    /// # Errors
    ///
    /// As [`create`](Self::create); [`ChangeError::NotFound`] if there is no such record,
    /// [`ChangeError::Conflict`] if it is not as expected, and an error if the record belongs to
    /// another consumer.
    pub async fn update(
        &self,
        id: RecordId,
        content: RecordContent,
        expected: impl Into<Expected>,
        by: impl Into<Author<'_>>,
    ) -> Result<Record, ChangeError<Record>> {
        let blocks = Some(content.blocks);
        self.change(id, content, blocks, expected.into(), by.into()).await
    }

    /// Updates a record like [`update`](Self::update), but keeps whether it blocks.
    ///
    /// # Errors
    ///
    /// As [`update`](Self::update).
    pub async fn update_limits(
        &self,
        id: RecordId,
        content: RecordContent,
        expected: impl Into<Expected>,
        by: impl Into<Author<'_>>,
    ) -> Result<Record, ChangeError<Record>> {
        self.change(id, content, None, expected.into(), by.into()).await
    }

    async fn change(
        &self,
        id: RecordId,
        content: RecordContent,
        blocks: Option<bool>,
        expected: Expected,
        by: Author<'_>,
    ) -> Result<Record, ChangeError<Record>> {
        let content = content.checked()?;
        check_name("updated_by", by.name())?;
        let (mut edit, change) = self.begin().await?;
        let before = expected.check_existing(read(&mut *edit, id).await?)?;
        if content.consumer_id != before.content.consumer_id {
            let expected = "the consumer that the record belongs to";
            return Err(InvalidField::new("consumer_id", content.consumer_id, expected).into());
        }
        let content = RecordContent { blocks: blocks.unwrap_or(before.content.blocks), ..content };
        let record = self.overwrite(&mut edit, change, before, content, by).await?;
        edit.commit(Kind::Record, &record.content.consumer_id).await?;
        Ok(record)
    }

    /// Deletes the record, if that is as `expected`; returns it as it was.
    ///
    /// # Errors
    ///
    /// [`ChangeError::NotFound`] if there is no such record, [`ChangeError::Conflict`] if it is not as
    /// expected, and an error if `by` may not block or unblock and the deletion does, or if the
    /// database does not answer.
    pub async fn delete(
        &self,
        id: RecordId,
        expected: impl Into<Expected>,
        by: impl Into<Author<'_>>,
    ) -> Result<Record, ChangeError<Record>> {
        let (expected, by) = (expected.into(), by.into());
        check_name("updated_by", by.name())?;
        let (mut edit, change) = self.begin().await?;
        let before = expected.check_existing(read(&mut *edit, id).await?)?;
        self.remove(&mut edit, change, &before, by).await?;
        edit.commit(Kind::Record, &before.content.consumer_id).await?;
        Ok(before)
    }

    /// What `consumer` may do at an instant, and which records or which tier say so. The tier is the
    /// one that it is in today, whatever the instant.
    ///
    /// # Errors
    ///
    /// Returns an error if the database does not answer.
    pub async fn active_limits(
        &self,
        consumer: &str,
        at: Timestamp,
    ) -> Result<ActiveLimits, DatabaseError> {
        self.active_limits_during(consumer, at, at).await
    }

    /// The limits of all records that are active at some instant from `start` to `end`: those of an
    /// hour, for instance.
    ///
    /// # Errors
    ///
    /// Returns an error if the database does not answer.
    pub async fn active_limits_during(
        &self,
        consumer: &str,
        start: Timestamp,
        end: Timestamp,
    ) -> Result<ActiveLimits, DatabaseError> {
        let records = overlapping(&self.inner.reads, consumer, start, end).await?;
        // What holds without a record is asked for when there is none.
        let tier = match records.is_empty() {
            true => tier_limits(&self.inner.reads, "consumer", consumer).await?,
            false => None,
        };
        Ok(ActiveLimits::of(&records, tier, self.inner.aggregation))
    }
}

async fn read(place: impl Place, id: RecordId) -> Result<Option<Record>, DatabaseError> {
    let rows = sqlx::query("SELECT * FROM rl_records WHERE rate_limiting_id = $1")
        .bind(id.to_string())
        .on(place)
        .await?;
    rows.first().map(record_of).transpose()
}

pub(super) async fn overlapping(
    place: impl Place,
    consumer: &str,
    start: Timestamp,
    end: Timestamp,
) -> Result<Vec<Record>, DatabaseError> {
    if consumer.contains('\0') {
        // PostgreSQL refuses the question; no record has such a consumer.
        return Ok(Vec::new());
    }
    let mut sql = Sql::new("SELECT * FROM rl_records WHERE");
    sql.push(
        " consumer_id = ? AND to_date >= ? AND from_date <= ? ORDER BY from_date, rate_limiting_id",
        [consumer.into(), micros(start).into(), micros(end).into()],
    );
    records_of(&sql.on(place).await?)
}

pub(super) fn records_of(rows: &[AnyRow]) -> Result<Vec<Record>, DatabaseError> {
    rows.iter().map(record_of).collect()
}

fn record_of(row: &AnyRow) -> Result<Record, DatabaseError> {
    let corrupt = || DatabaseError::new(FailureKind::Corrupt);
    let text = |column: &str| row.try_get::<Option<String>, _>(column).map_err(failed);
    let needed = |column: &str| row.try_get::<String, _>(column).map_err(failed);
    let time = |column: &str| time_of(row, column).map_err(failed);
    let mut numbers = [0; 6];
    for (period, number) in CallPeriod::ALL.into_iter().zip(&mut numbers) {
        *number = row.try_get(period.field()).map_err(failed)?;
    }
    Ok(Record {
        id: needed("rate_limiting_id")?.parse().map_err(|_| corrupt())?,
        content: RecordContent {
            consumer_id: needed("consumer_id")?,
            api_name: text("api_name")?,
            api_version: text("api_version")?,
            bank_id: text("bank_id")?,
            limits: CallLimits::from_numbers(numbers).map_err(|_| corrupt())?,
            from_date: time("from_date")?,
            to_date: time("to_date")?,
            blocks: row.try_get::<i64, _>("blocks").map_err(failed)? != 0,
        },
        created_by: needed("created_by")?,
        updated_by: needed("updated_by")?,
        created_at: time("created_at")?,
        updated_at: time("updated_at")?,
        revision: row.try_get("revision").map_err(failed)?,
    })
}
