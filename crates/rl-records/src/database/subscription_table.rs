use rl_core::FailureKind;
use sqlx::Row;
use sqlx::any::AnyRow;

use super::connections::Runner;
use super::driver_error::database_error;
use super::kind::Kind;
use super::row::{micros, number, optional_text, text, time};
use super::statement::{Bound, Sql};
use super::table::{METADATA, Object};
use super::transaction::Transaction;
use crate::error::{ChangeError, DatabaseError, InvalidField};
use crate::record::Record;
use crate::record_id::RecordId;
use crate::subscription::{Subscription, SubscriptionContent, SubscriptionStatus};
use crate::tier::TierContent;

impl Object for Subscription {
    type Content = SubscriptionContent;

    const TABLE: &'static str = "rl_subscriptions";
    const KEY: &'static str = "subscription_id";
    const COLUMNS: &'static [&'static str] = &[
        "consumer_id",
        "tier",
        "status",
        "from_date",
        "to_date",
        "billing_day",
        "record_id",
        METADATA[0],
        METADATA[1],
        METADATA[2],
        METADATA[3],
        METADATA[4],
    ];

    fn key(&self) -> String {
        self.id.to_string()
    }

    fn kind(&self) -> Kind {
        Kind::Subscription
    }

    fn owner(&self) -> String {
        self.content.consumer_id.clone()
    }

    fn content(&self) -> &SubscriptionContent {
        &self.content
    }

    fn values(&self) -> Vec<Bound> {
        let content = &self.content;
        vec![
            content.consumer_id.as_str().into(),
            content.tier.as_str().into(),
            content.status.as_str().into(),
            micros(content.from_date).into(),
            content.to_date.map(micros).into(),
            content.billing_day.map(i64::from).into(),
            self.record_id.map(|id| id.to_string()).into(),
            self.created_by.as_str().into(),
            self.updated_by.as_str().into(),
            micros(self.created_at).into(),
            micros(self.updated_at).into(),
            self.revision.into(),
        ]
    }

    fn from_row(row: &AnyRow) -> Result<Self, DatabaseError> {
        let corrupt = || DatabaseError::new(FailureKind::Corrupt);
        let to_date: Option<i64> = row.try_get("to_date").map_err(database_error)?;
        let day: Option<i64> = row.try_get("billing_day").map_err(database_error)?;
        let record_id = optional_text(row, "record_id")?.map(|id| id.parse());
        let status = SubscriptionStatus::from_name(&text(row, "status")?);
        Ok(Self {
            id: text(row, "subscription_id")?.parse().map_err(|_| corrupt())?,
            content: SubscriptionContent {
                consumer_id: text(row, "consumer_id")?,
                tier: text(row, "tier")?,
                status: status.ok_or_else(corrupt)?,
                from_date: time(row, "from_date")?,
                to_date: to_date.map(|_| time(row, "to_date")).transpose()?,
                billing_day: day.map(u8::try_from).transpose().map_err(|_| corrupt())?,
            },
            record_id: record_id.transpose().map_err(|_| corrupt())?,
            created_by: text(row, "created_by")?,
            updated_by: text(row, "updated_by")?,
            created_at: time(row, "created_at")?,
            updated_at: time(row, "updated_at")?,
            revision: number(row, "revision")?,
        })
    }
}

/// Returns the tiers whose limits the records of a consumer have, because subscriptions own these
/// records.
pub(super) async fn tiers_of(
    runner: impl Runner,
    consumer: &str,
) -> Result<Vec<String>, DatabaseError> {
    if consumer.contains('\0') {
        return Ok(Vec::new());
    }
    let select = "SELECT DISTINCT tier FROM rl_subscriptions \
                  WHERE consumer_id = ? AND record_id IS NOT NULL";
    let rows = Sql::with(select, [consumer.into()]).on(runner).await?;
    rows.iter().map(|row| text(row, "tier")).collect()
}

/// Returns an error if a subscription owns the record. Only the subscription changes such a record.
pub(super) async fn check_unowned(
    transaction: &mut Transaction,
    record: RecordId,
) -> Result<(), ChangeError<Record>> {
    let select = "SELECT subscription_id FROM rl_subscriptions WHERE record_id = ?";
    let rows = Sql::with(select, [record.to_string().into()]).on(&mut **transaction).await?;
    if rows.is_empty() {
        return Ok(());
    }
    let expected = "a record that no subscription owns; change the subscription instead";
    Err(InvalidField::new("rate_limiting_id", record, expected).into())
}

/// Returns whether a tier has subscriptions that are not cancelled.
pub(super) async fn exist(
    transaction: &mut Transaction,
    tier: &str,
) -> Result<bool, DatabaseError> {
    let select = "SELECT 1 FROM rl_subscriptions WHERE tier = ? AND status <> ? LIMIT 1";
    let values = [tier.into(), SubscriptionStatus::Cancelled.as_str().into()];
    Ok(!Sql::with(select, values).on(&mut **transaction).await?.is_empty())
}

/// Writes the limits of a tier into the records of its subscriptions.
///
/// The records are copies of the limits, so that look-ups and sums need no other table. One
/// statement for each billing day updates all of them, whatever their number. They keep their
/// revisions, and the history has the change of the tier only, because no other part of them changes.
pub(super) async fn copy_limits(
    transaction: &mut Transaction,
    tier: &TierContent,
) -> Result<(), DatabaseError> {
    let select = "SELECT DISTINCT coalesce(billing_day, 1) AS billing_day FROM rl_subscriptions \
                  WHERE tier = ? AND record_id IS NOT NULL";
    let days = Sql::with(select, [tier.name.as_str().into()]).on(&mut **transaction).await?;
    for row in &days {
        let day = number(row, "billing_day")?;
        let limits = tier.limits.billed_on(u8::try_from(day).ok());
        let update = "UPDATE rl_records SET limits = ? WHERE rate_limiting_id IN \
                      (SELECT record_id FROM rl_subscriptions \
                       WHERE tier = ? AND record_id IS NOT NULL AND coalesce(billing_day, 1) = ?)";
        let values = [limits.to_string().into(), tier.name.as_str().into(), day.into()];
        Sql::with(update, values).on(&mut **transaction).await?;
    }
    Ok(())
}
