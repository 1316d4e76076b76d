use rl_core::time::Timestamp;
use rl_core::{FailureKind, MAX_UNITS};
use sqlx::any::AnyRow;

use super::connections::Runner;
use super::kind::Kind;
use super::row::{LIMIT_COLUMNS, limit_values, limits, micros, number, optional_text, text, time};
use super::statement::{Bound, Sql};
use super::table::{self, METADATA, Object};
use super::tier_members;
use super::transaction::Transaction;
use crate::author::Author;
use crate::effect::{Span, effect};
use crate::error::{ChangeError, DatabaseError, InvalidField};
use crate::limits::{CallLimit, CallPeriod};
use crate::record::{Record, RecordContent};
use crate::record_id::RecordId;

impl Object for Record {
    type Content = RecordContent;

    const KIND: Kind = Kind::Record;
    const TABLE: &'static str = "rl_records";
    const KEY: &'static str = "rate_limiting_id";
    const COLUMNS: &'static [&'static str] = &[
        "consumer_id",
        "api_name",
        "api_version",
        "bank_id",
        LIMIT_COLUMNS[0],
        LIMIT_COLUMNS[1],
        LIMIT_COLUMNS[2],
        LIMIT_COLUMNS[3],
        LIMIT_COLUMNS[4],
        LIMIT_COLUMNS[5],
        "from_date",
        "to_date",
        "blocks",
        METADATA[0],
        METADATA[1],
        METADATA[2],
        METADATA[3],
        METADATA[4],
    ];

    fn key(&self) -> String {
        self.id.to_string()
    }

    fn owner(&self) -> &str {
        &self.content.consumer_id
    }

    fn content(&self) -> &RecordContent {
        &self.content
    }

    fn values(&self) -> Vec<Bound> {
        let content = &self.content;
        let mut values: Vec<Bound> = vec![
            content.consumer_id.as_str().into(),
            content.api_name.clone().into(),
            content.api_version.clone().into(),
            content.bank_id.clone().into(),
        ];
        values.extend(limit_values(&content.limits));
        values.extend([
            micros(content.from_date).into(),
            micros(content.to_date).into(),
            i64::from(content.blocks).into(),
            self.created_by.as_str().into(),
            self.updated_by.as_str().into(),
            micros(self.created_at).into(),
            micros(self.updated_at).into(),
            self.revision.into(),
        ]);
        values
    }

    fn from_row(row: &AnyRow) -> Result<Self, DatabaseError> {
        let corrupt = |_| DatabaseError::new(FailureKind::Corrupt);
        Ok(Self {
            id: text(row, "rate_limiting_id")?.parse().map_err(corrupt)?,
            content: RecordContent {
                consumer_id: text(row, "consumer_id")?,
                api_name: optional_text(row, "api_name")?,
                api_version: optional_text(row, "api_version")?,
                bank_id: optional_text(row, "bank_id")?,
                limits: limits(row)?,
                from_date: time(row, "from_date")?,
                to_date: time(row, "to_date")?,
                blocks: number(row, "blocks")? != 0,
            },
            created_by: text(row, "created_by")?,
            updated_by: text(row, "updated_by")?,
            created_at: time(row, "created_at")?,
            updated_at: time(row, "updated_at")?,
            revision: number(row, "revision")?,
        })
    }
}

/// Reads the record with this id.
pub(super) async fn find(
    runner: impl Runner,
    id: RecordId,
) -> Result<Option<Record>, DatabaseError> {
    table::find(runner, &id.to_string()).await
}

/// Reads the records of a consumer that are active at some instant from `start` to `end`.
pub(super) async fn overlapping(
    runner: impl Runner,
    consumer: &str,
    start: Timestamp,
    end: Timestamp,
) -> Result<Vec<Record>, DatabaseError> {
    if consumer.contains('\0') {
        // PostgreSQL rejects NUL in text, and no stored id contains it.
        return Ok(Vec::new());
    }
    let mut sql = Sql::new("SELECT * FROM rl_records WHERE");
    sql.push(
        " consumer_id = ? AND to_date >= ? AND from_date <= ? ORDER BY from_date, rate_limiting_id",
        [consumer.into(), micros(start).into(), micros(end).into()],
    );
    records(&sql.on(runner).await?)
}

/// Reads the blocks of a consumer that are active now, ordered by their end.
pub(super) async fn blocks(
    runner: impl Runner,
    consumer: &str,
    now: Timestamp,
) -> Result<Vec<Record>, DatabaseError> {
    let mut blocks = overlapping(runner, consumer, now, now).await?;
    blocks.retain(|record| record.content.blocks);
    blocks.sort_by_key(|record| record.content.to_date);
    Ok(blocks)
}

/// Reads the blocks of all consumers that are active now, ordered by their end.
pub(super) async fn all_blocks(
    runner: impl Runner,
    now: Timestamp,
    limit: u32,
) -> Result<Vec<Record>, DatabaseError> {
    let mut sql = Sql::new("SELECT * FROM rl_records WHERE blocks = 1");
    sql.push(
        " AND to_date >= ? AND from_date <= ? ORDER BY to_date, rate_limiting_id LIMIT ?",
        [micros(now).into(), micros(now).into(), i64::from(limit.clamp(1, 1_000)).into()],
    );
    records(&sql.on(runner).await?)
}

/// The maximum number of records that [`similar`] returns.
const MAX_SIMILAR: i64 = 10;

/// Reads the records that do not block, that no subscription owns, and that have the consumer, API
/// name, version and bank of `content`.
pub(super) async fn similar(
    runner: impl Runner,
    content: &RecordContent,
) -> Result<Vec<Record>, DatabaseError> {
    let mut sql = Sql::new("SELECT * FROM rl_records WHERE blocks = 0");
    sql.push(" AND consumer_id = ?", [content.consumer_id.as_str().into()]);
    for (condition, value) in [
        (" AND coalesce(api_name, '') = ?", &content.api_name),
        (" AND coalesce(api_version, '') = ?", &content.api_version),
        (" AND coalesce(bank_id, '') = ?", &content.bank_id),
    ] {
        sql.push(condition, [value.as_deref().unwrap_or_default().into()]);
    }
    sql.push(
        " AND NOT EXISTS (SELECT 1 FROM rl_subscriptions WHERE record_id = rate_limiting_id)",
        [],
    );
    sql.push(" ORDER BY from_date, rate_limiting_id LIMIT ?", [MAX_SIMILAR.into()]);
    records(&sql.on(runner).await?)
}

/// Reads records from their rows.
pub(super) fn records(rows: &[AnyRow]) -> Result<Vec<Record>, DatabaseError> {
    rows.iter().map(Record::from_row).collect()
}

/// Creates a record.
pub(super) async fn insert<T>(
    transaction: &mut Transaction,
    content: RecordContent,
    by: Author<'_>,
) -> Result<Record, ChangeError<T>> {
    let now = transaction.now();
    let record = Record {
        id: RecordId::random(),
        content,
        created_by: by.name().to_owned(),
        updated_by: by.name().to_owned(),
        created_at: now,
        updated_at: now,
        revision: 1,
    };
    check_sum(transaction, &record).await?;
    check_effect(transaction, record.id, None, Some(&record.content), by).await?;
    let change = transaction.next_change().await?;
    table::insert(transaction, change, &record, by.name()).await?;
    Ok(record)
}

/// Replaces the content of a record.
pub(super) async fn update<T>(
    transaction: &mut Transaction,
    before: &Record,
    content: RecordContent,
    by: Author<'_>,
) -> Result<Record, ChangeError<T>> {
    let after = Record {
        content,
        updated_by: by.name().to_owned(),
        updated_at: transaction.now(),
        revision: before.revision + 1,
        ..before.clone()
    };
    check_sum(transaction, &after).await?;
    check_effect(transaction, after.id, Some(&before.content), Some(&after.content), by).await?;
    let change = transaction.next_change().await?;
    table::update(transaction, change, before, &after, by.name()).await?;
    Ok(after)
}

/// Deletes a record.
pub(super) async fn delete<T>(
    transaction: &mut Transaction,
    record: &Record,
    by: Author<'_>,
) -> Result<(), ChangeError<T>> {
    check_effect(transaction, record.id, Some(&record.content), None, by).await?;
    let change = transaction.next_change().await?;
    table::delete(transaction, change, record, by.name()).await?;
    Ok(())
}

/// Adds up the limits of this record and of all records that overlap with it. Checks that the sums
/// can be stored.
async fn check_sum<T>(
    transaction: &mut Transaction,
    record: &Record,
) -> Result<(), ChangeError<T>> {
    let RecordContent { consumer_id, limits, from_date, to_date, .. } = &record.content;
    let others = overlapping(&mut **transaction, consumer_id, *from_date, *to_date).await?;
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

/// Checks that the author may block or unblock the consumer, if the change has such an effect.
async fn check_effect<T>(
    transaction: &mut Transaction,
    id: RecordId,
    before: Option<&RecordContent>,
    after: Option<&RecordContent>,
    by: Author<'_>,
) -> Result<(), ChangeError<T>> {
    let Some(content) = after.or(before) else { return Ok(()) };
    if by.may_both() {
        return Ok(());
    }
    let both = || before.into_iter().chain(after);
    let start = both().map(|content| content.from_date).min().unwrap_or_default();
    let end = both().map(|content| content.to_date).max().unwrap_or_default();
    let consumer = &content.consumer_id;
    let records = overlapping(&mut **transaction, consumer, start, end).await?;
    let tier = tier_members::find_tier(&mut **transaction, "consumer", consumer).await?;
    let aggregation = transaction.aggregation();
    let fallback = aggregation.is_blocked_in(tier.as_ref());
    let others = records.iter().filter(|record| record.id != id);
    let others =
        others.map(|record| Span { content: &record.content, is_before: true, is_after: true });
    let before = before.map(|content| Span { content, is_before: true, is_after: false });
    let after = after.map(|content| Span { content, is_before: false, is_after: true });
    let spans: Vec<_> = others.chain(before).chain(after).collect();
    by.check(effect(&spans, fallback, aggregation.zero_means, transaction.now()))
}
