use rl_core::MAX_UNITS;

use super::edit::Edit;
use super::members::tier_limits;
use super::records::overlapping;
use super::sql::Statement;
use super::{Kind, Records, micros};
use crate::effect::{Span, effect};
use crate::{
    Author, CallLimit, CallPeriod, ChangeError, InvalidField, Record, RecordContent, RecordId,
};

/// The steps of a change of records. Each writes one entry of the history, under the number `change`.
impl Records {
    pub(super) async fn insert(
        &self,
        edit: &mut Edit,
        change: i64,
        content: RecordContent,
        by: Author<'_>,
    ) -> Result<Record, ChangeError<Record>> {
        let now = self.clock().now();
        let record = Record {
            id: RecordId::random(),
            content,
            created_by: by.name().to_owned(),
            updated_by: by.name().to_owned(),
            created_at: now,
            updated_at: now,
            revision: 1,
        };
        check_sum(edit, &record).await?;
        let after = (record.id, &record.content);
        self.check_effect(edit, None, Some(after), by).await?;
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
        .on(&mut **edit)
        .await?;
        let entry = self.entry(change, Kind::Record, &content.consumer_id, by.name());
        entry.write(&mut **edit, &record.id.to_string(), None, Some(content)).await?;
        Ok(record)
    }

    pub(super) async fn overwrite(
        &self,
        edit: &mut Edit,
        change: i64,
        before: Record,
        content: RecordContent,
        by: Author<'_>,
    ) -> Result<Record, ChangeError<Record>> {
        let id = before.id;
        let after = Record {
            id,
            content,
            updated_by: by.name().to_owned(),
            updated_at: self.clock().now(),
            revision: before.revision + 1,
            ..before.clone()
        };
        check_sum(edit, &after).await?;
        let (was, is) = ((id, &before.content), (id, &after.content));
        self.check_effect(edit, Some(was), Some(is), by).await?;
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
        .on(&mut **edit)
        .await?;
        let entry = self.entry(change, Kind::Record, &content.consumer_id, by.name());
        let (item, before) = (id.to_string(), &before.content);
        entry.write(&mut **edit, &item, Some(before), Some(content)).await?;
        Ok(after)
    }

    pub(super) async fn remove(
        &self,
        edit: &mut Edit,
        change: i64,
        before: &Record,
        by: Author<'_>,
    ) -> Result<(), ChangeError<Record>> {
        self.check_effect(edit, Some((before.id, &before.content)), None, by).await?;
        sqlx::query("DELETE FROM rl_records WHERE rate_limiting_id = $1")
            .bind(before.id.to_string())
            .on(&mut **edit)
            .await?;
        let entry = self.entry(change, Kind::Record, &before.content.consumer_id, by.name());
        let item = before.id.to_string();
        entry.write(&mut **edit, &item, Some(&before.content), None).await?;
        Ok(())
    }

    /// Returns an error if the change blocks or unblocks the consumer and the author may not do that.
    ///
    /// Runs inside the transaction, so it compares the same records that the change finds.
    async fn check_effect(
        &self,
        edit: &mut Edit,
        before: Option<(RecordId, &RecordContent)>,
        after: Option<(RecordId, &RecordContent)>,
        by: Author<'_>,
    ) -> Result<(), ChangeError<Record>> {
        let Some((id, content)) = after.or(before) else { return Ok(()) };
        if by.may_both() {
            return Ok(());
        }
        let (before, after) =
            (before.map(|(_, content)| content), after.map(|(_, content)| content));
        let both = || before.into_iter().chain(after);
        let start = both().map(|content| content.from_date).min().unwrap_or_default();
        let end = both().map(|content| content.to_date).max().unwrap_or_default();
        let consumer = &content.consumer_id;
        let records = overlapping(&mut **edit, consumer, start, end).await?;
        let tier = tier_limits(&mut **edit, "consumer", consumer).await?;
        let aggregation = self.inner.aggregation;
        let fallback = aggregation.is_blocked_in(tier.as_ref());
        let others = records.iter().filter(|record| record.id != id);
        let others =
            others.map(|record| Span { content: &record.content, is_before: true, is_after: true });
        let before = before.map(|content| Span { content, is_before: true, is_after: false });
        let after = after.map(|content| Span { content, is_before: false, is_after: true });
        let spans: Vec<_> = others.chain(before).chain(after).collect();
        by.check(effect(&spans, fallback, aggregation.zero_means, self.clock().now()))
    }
}

/// Checks that the limits of all records that overlap with this one can be added up.
async fn check_sum(edit: &mut Edit, record: &Record) -> Result<(), ChangeError<Record>> {
    let RecordContent { consumer_id, limits, from_date, to_date, .. } = &record.content;
    let others = overlapping(&mut **edit, consumer_id, *from_date, *to_date).await?;
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
