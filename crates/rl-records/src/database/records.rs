use rl_core::time::Timestamp;
use rl_core::{FailureKind, MAX_UNITS};
use sqlx::Row;
use sqlx::any::AnyRow;

use super::connections::Place;
use super::edit::Edit;
use super::failure::failed;
use super::members::tier_limits;
use super::sql::{Sql, Statement};
use super::{Kind, Records, micros, time_of};
use crate::record::check_name;
use crate::{
    ActiveLimits, CallLimit, CallLimits, CallPeriod, ChangeError, DatabaseError, InvalidField,
    Record, RecordContent, RecordId, RecordPage, RecordQuery,
};

impl Records {
    /// Stores a new record.
    ///
    /// # Errors
    ///
    /// Returns an error if a field cannot be stored, if the limits of all records that are active at
    /// the same time could add up to more than [`MAX_UNITS`], or if the database does not answer.
    pub async fn create(
        &self,
        content: RecordContent,
        by: &str,
    ) -> Result<Record, ChangeError<Record>> {
        let content = content.checked()?;
        check_name("created_by", by)?;
        let (edit, change) = self.begin().await?;
        self.insert(edit, change, content, by).await
    }

    /// The rest of the change that [`create`](Self::create) begins.
    pub(super) async fn insert(
        &self,
        mut edit: Edit,
        change: i64,
        content: RecordContent,
        by: &str,
    ) -> Result<Record, ChangeError<Record>> {
        let now = self.clock().now();
        let record = Record {
            id: RecordId::random(),
            content,
            created_by: by.to_owned(),
            updated_by: by.to_owned(),
            created_at: now,
            updated_at: now,
            revision: 1,
        };
        check_sum(&mut *edit, &record).await?;
        let content = &record.content;
        let [second, minute, hour, day, week, month] = content.limits.numbers();
        sqlx::query(
            "INSERT INTO rl_records (rate_limiting_id, consumer_id, api_name, api_version, bank_id, \
             per_second_call_limit, per_minute_call_limit, per_hour_call_limit, \
             per_day_call_limit, per_week_call_limit, per_month_call_limit, from_date, to_date, \
             created_by, updated_by, created_at, updated_at, revision, blocks) \
             VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, \
             $19)",
        )
        .bind(record.id.to_string())
        .bind(&content.consumer_id)
        .bind(content.api_name.as_deref())
        .bind(content.api_version.as_deref())
        .bind(content.bank_id.as_deref())
        .bind(second)
        .bind(minute)
        .bind(hour)
        .bind(day)
        .bind(week)
        .bind(month)
        .bind(micros(content.from_date))
        .bind(micros(content.to_date))
        .bind(&record.created_by)
        .bind(&record.updated_by)
        .bind(micros(record.created_at))
        .bind(micros(record.updated_at))
        .bind(record.revision)
        .bind(i64::from(content.blocks))
        .on(&mut *edit)
        .await?;
        let entry = self.entry(change, Kind::Record, &content.consumer_id, by);
        entry.write(&mut *edit, &record.id.to_string(), None, Some(content)).await?;
        edit.commit(Kind::Record, &content.consumer_id).await?;
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

    /// Writes `content` over the record, if nobody changed it since it had `revision`.
    ///
    /// # Errors
    ///
    /// As [`create`](Self::create); [`ChangeError::NotFound`] if there is no such record,
    /// [`ChangeError::Conflict`] if it has another revision, and an error if the record belongs to
    /// another consumer.
    pub async fn update(
        &self,
        id: RecordId,
        content: RecordContent,
        revision: i64,
        by: &str,
    ) -> Result<Record, ChangeError<Record>> {
        let content = content.checked()?;
        check_name("updated_by", by)?;
        let (mut edit, change) = self.begin().await?;
        let before = seen(read(&mut *edit, id).await?, revision)?;
        if content.consumer_id != before.content.consumer_id {
            let expected = "the consumer that the record belongs to";
            return Err(InvalidField::new("consumer_id", content.consumer_id, expected).into());
        }
        self.overwrite(edit, change, before, content, by).await
    }

    /// The rest of the change that [`update`](Self::update) begins.
    pub(super) async fn overwrite(
        &self,
        mut edit: Edit,
        change: i64,
        before: Record,
        content: RecordContent,
        by: &str,
    ) -> Result<Record, ChangeError<Record>> {
        let id = before.id;
        let after = Record {
            id,
            content,
            updated_by: by.to_owned(),
            updated_at: self.clock().now(),
            revision: before.revision + 1,
            ..before.clone()
        };
        check_sum(&mut *edit, &after).await?;
        let content = &after.content;
        let [second, minute, hour, day, week, month] = content.limits.numbers();
        sqlx::query(
            "UPDATE rl_records SET api_name = $2, api_version = $3, bank_id = $4, \
             per_second_call_limit = $5, per_minute_call_limit = $6, per_hour_call_limit = $7, \
             per_day_call_limit = $8, per_week_call_limit = $9, per_month_call_limit = $10, \
             from_date = $11, to_date = $12, updated_by = $13, updated_at = $14, revision = $15, \
             blocks = $16 WHERE rate_limiting_id = $1",
        )
        .bind(id.to_string())
        .bind(content.api_name.as_deref())
        .bind(content.api_version.as_deref())
        .bind(content.bank_id.as_deref())
        .bind(second)
        .bind(minute)
        .bind(hour)
        .bind(day)
        .bind(week)
        .bind(month)
        .bind(micros(content.from_date))
        .bind(micros(content.to_date))
        .bind(&after.updated_by)
        .bind(micros(after.updated_at))
        .bind(after.revision)
        .bind(i64::from(content.blocks))
        .on(&mut *edit)
        .await?;
        let entry = self.entry(change, Kind::Record, &content.consumer_id, by);
        let (item, before) = (id.to_string(), &before.content);
        entry.write(&mut *edit, &item, Some(before), Some(content)).await?;
        edit.commit(Kind::Record, &content.consumer_id).await?;
        Ok(after)
    }

    /// Deletes the record, if nobody changed it since it had `revision`; tells how it was.
    ///
    /// # Errors
    ///
    /// [`ChangeError::NotFound`] if there is no such record, [`ChangeError::Conflict`] if it has
    /// another revision, and an error if the database does not answer.
    pub async fn delete(
        &self,
        id: RecordId,
        revision: i64,
        by: &str,
    ) -> Result<Record, ChangeError<Record>> {
        check_name("updated_by", by)?;
        let (mut edit, change) = self.begin().await?;
        let before = seen(read(&mut *edit, id).await?, revision)?;
        sqlx::query("DELETE FROM rl_records WHERE rate_limiting_id = $1")
            .bind(id.to_string())
            .on(&mut *edit)
            .await?;
        let owner = &before.content.consumer_id;
        let entry = self.entry(change, Kind::Record, owner, by);
        let item = id.to_string();
        entry.write(&mut *edit, &item, Some(&before.content), None).await?;
        edit.commit(Kind::Record, owner).await?;
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

/// What is to be changed, if the caller has seen what is there.
pub(super) fn seen(record: Option<Record>, revision: i64) -> Result<Record, ChangeError<Record>> {
    match record {
        None => Err(ChangeError::NotFound),
        Some(record) if record.revision != revision => {
            Err(ChangeError::Conflict { current: Box::new(record) })
        }
        Some(record) => Ok(record),
    }
}

/// Whether all records that overlap with this one have limits that can be added up.
async fn check_sum(place: impl Place, record: &Record) -> Result<(), ChangeError<Record>> {
    let RecordContent { consumer_id, limits, from_date, to_date, .. } = &record.content;
    let others = overlapping(place, consumer_id, *from_date, *to_date).await?;
    for period in CallPeriod::ALL {
        let CallLimit::AtMost(own) = limits.get(period) else { continue };
        let others = others.iter().filter(|other| other.id != record.id);
        let sum = others.fold(own, |sum, other| match other.content.limits.get(period) {
            CallLimit::AtMost(calls) => sum.saturating_add(calls),
            CallLimit::Unlimited => sum,
        });
        if sum > MAX_UNITS {
            let expected = "at most 9007199254740991 together with the records that overlap";
            return Err(InvalidField::new(period.field(), own, expected).into());
        }
    }
    Ok(())
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
