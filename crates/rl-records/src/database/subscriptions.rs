use std::sync::Arc;

use rl_core::time::Timestamp;

use super::handle::Database;
use super::kind::Kind;
use super::statement::{Sql, without_nul};
use super::table::{self, Object};
use super::transaction::Transaction;
use super::{history, record_table};
use crate::author::Author;
use crate::error::{ChangeError, DatabaseError, InvalidField};
use crate::history::{Change, HistoryQuery};
use crate::record::{Record, RecordContent, check_name};
use crate::record_id::{RecordId, SubscriptionId};
use crate::revision::Expected;
use crate::subscription::{Subscription, SubscriptionContent, SubscriptionStatus};
use crate::tier::Tier;

/// Selects subscriptions. The list is ordered by id.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SubscriptionQuery {
    /// Selects the subscriptions of this consumer.
    pub consumer: Option<String>,
    /// Selects the subscriptions of these consumers.
    pub consumers: Option<Vec<String>>,
    /// Selects the subscriptions to this tier.
    pub tier: Option<String>,
    /// Selects the subscriptions with this status.
    pub status: Option<SubscriptionStatus>,
    /// Selects the subscriptions after this one. Pass [`SubscriptionPage::next`] of the previous
    /// page.
    pub after: Option<SubscriptionId>,
    /// Selects the subscriptions before this one, nearest first. Pass
    /// [`SubscriptionPage::previous`] of the next page.
    pub before: Option<SubscriptionId>,
    /// The maximum number of subscriptions on a page: 1 to 1 000.
    pub limit: u32,
}

impl Default for SubscriptionQuery {
    /// Returns a query for the first 50 subscriptions.
    fn default() -> Self {
        Self {
            consumer: None,
            consumers: None,
            tier: None,
            status: None,
            after: None,
            before: None,
            limit: 50,
        }
    }
}

/// A page of the list of subscriptions.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SubscriptionPage {
    /// The subscriptions.
    pub subscriptions: Vec<Subscription>,
    /// The cursor of the next page, if there is one.
    pub next: Option<SubscriptionId>,
    /// The cursor of the previous page, if there is one.
    pub previous: Option<SubscriptionId>,
}

impl SubscriptionPage {
    /// Creates a page of `size` rows. `rows` are in the order of the query, which is backwards for
    /// a previous page, and one more than the page if others follow.
    fn new(mut rows: Vec<Subscription>, size: usize, query: &SubscriptionQuery) -> Self {
        let has_more = rows.len() > size;
        rows.truncate(size);
        let is_back = query.before.is_some();
        if is_back {
            rows.reverse();
        }
        // A page that was reached from another one has this one beside it.
        let (has_next, has_previous) =
            if is_back { (true, has_more) } else { (has_more, query.after.is_some()) };
        let next = rows.last().filter(|_| has_next).map(|last| last.id);
        let previous = rows.first().filter(|_| has_previous).map(|first| first.id);
        Self { subscriptions: rows, next, previous }
    }
}

/// The subscriptions of a database: each gives a consumer the limits of a tier, from one date to
/// another, while its [status](SubscriptionStatus) says so.
///
/// A subscription that is active owns one record of its consumer. The record is added to other
/// records of the consumer, and only the subscription changes it. A change of the tier's limits
/// applies to this record like to the members of the tier.
#[derive(Clone, Copy, Debug)]
pub struct Subscriptions<'a> {
    database: &'a Arc<Database>,
}

impl<'a> Subscriptions<'a> {
    pub(super) const fn new(database: &'a Arc<Database>) -> Self {
        Self { database }
    }

    /// Creates a subscription that is requested or active.
    ///
    /// # Errors
    ///
    /// Returns an error if a field cannot be stored, if no tier has this name, or if the database
    /// fails. For an active subscription, returns the errors of
    /// [`Records::create`](crate::Records::create) too.
    ///
    /// # Examples
    ///
    /// ```
    /// use rl_core::time::{Clock, SystemClock};
    /// use rl_records::{Limits, Records, SubscriptionContent, SubscriptionStatus, TierContent};
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let records = Records::connect("sqlite::memory:").await?;
    /// let limits: Limits = "10/second, 100/minute".parse()?;
    /// let gold = TierContent { name: "gold".into(), limits: limits.clone() };
    /// records.tiers().create(gold, "alice").await?;
    ///
    /// let now = SystemClock.now();
    /// let content = SubscriptionContent::new("abc123", "gold", now);
    /// let requested = records.subscriptions().create(content, "alice").await?;
    /// let active = SubscriptionStatus::Active;
    /// records.subscriptions().set_status(requested.id, active, requested.revision, "billing").await?;
    /// assert_eq!(records.active_limits("abc123", SystemClock.now()).await?.limits(), &limits);
    /// # Ok(()) }
    /// ```
    pub async fn create(
        self,
        content: SubscriptionContent,
        by: impl Into<Author<'_>>,
    ) -> Result<Subscription, ChangeError<Subscription>> {
        use SubscriptionStatus::{Active, Requested};

        let by = by.into();
        let content = content.checked()?;
        check_name("created_by", by.name())?;
        if !matches!(content.status, Requested | Active) {
            let expected = "requested or active, because the subscription is new";
            return Err(InvalidField::new("status", content.status.as_str(), expected).into());
        }
        let mut transaction = Transaction::begin(self.database).await?;
        let tier = find_tier(&mut transaction, &content.tier).await?;
        let record_id = match content.status {
            Active => {
                let record = content.active_record(&tier.content.limits);
                Some(insert_record(&mut transaction, record, by).await?)
            }
            _ => None,
        };
        let now = transaction.now();
        let subscription = Subscription {
            id: SubscriptionId::random(),
            content,
            record_id,
            created_by: by.name().to_owned(),
            updated_by: by.name().to_owned(),
            created_at: now,
            updated_at: now,
            revision: 1,
        };
        let change = transaction.next_change().await?;
        table::insert(&mut transaction, change, &subscription, by.name()).await?;
        transaction.commit(Kind::Record, &subscription.content.consumer_id).await?;
        Ok(subscription)
    }

    /// Returns the subscription with this id, if there is one.
    ///
    /// # Errors
    ///
    /// Returns an error if the database fails.
    pub async fn read(self, id: SubscriptionId) -> Result<Option<Subscription>, DatabaseError> {
        table::find(&self.database.reads, &id.to_string()).await
    }

    /// Returns a page of the list of subscriptions.
    ///
    /// # Errors
    ///
    /// Returns an error if the database fails.
    pub async fn list(self, query: &SubscriptionQuery) -> Result<SubscriptionPage, DatabaseError> {
        let mut sql = Sql::new("SELECT * FROM rl_subscriptions WHERE 1 = 1");
        for (condition, value) in
            [(" AND consumer_id = ?", &query.consumer), (" AND tier = ?", &query.tier)]
        {
            if let Some(value) = value {
                sql.push(condition, [without_nul(value).into()]);
            }
        }
        if let Some(consumers) = &query.consumers {
            sql.push(" AND consumer_id", []);
            sql.push_list(consumers);
        }
        if let Some(status) = query.status {
            sql.push(" AND status = ?", [status.as_str().into()]);
        }
        if let Some(after) = query.after {
            sql.push(" AND subscription_id > ?", [after.to_string().into()]);
        }
        if let Some(before) = query.before {
            sql.push(" AND subscription_id < ?", [before.to_string().into()]);
        }
        let order = if query.before.is_some() { " DESC LIMIT ?" } else { " LIMIT ?" };
        let size = query.limit.clamp(1, 1_000);
        sql.push(" ORDER BY subscription_id", []);
        sql.push(order, [i64::from(size + 1).into()]);
        let rows = sql.on(&self.database.reads).await?;
        let rows: Vec<_> = rows.iter().map(Subscription::from_row).collect::<Result<_, _>>()?;
        Ok(SubscriptionPage::new(rows, size as usize, query))
    }

    /// Changes the status of a subscription, and in the same transaction the record that the
    /// subscription owns. If the subscription has this status already, changes nothing.
    ///
    /// # Errors
    ///
    /// Returns an error that names both statuses if the new one cannot follow the current one.
    /// Returns [`ChangeError::NotFound`] if there is no such subscription, and
    /// [`ChangeError::Conflict`] if it is not as expected. Returns an error if the change blocks or
    /// unblocks the consumer and the author lacks that right, if the sum of the consumer's records
    /// cannot be stored, or if the database fails.
    pub async fn set_status(
        self,
        id: SubscriptionId,
        status: SubscriptionStatus,
        expected: impl Into<Expected>,
        by: impl Into<Author<'_>>,
    ) -> Result<Subscription, ChangeError<Subscription>> {
        self.change(id, expected.into(), by.into(), |before| {
            before.status.check_next(status)?;
            Ok(SubscriptionContent { status, ..before.clone() })
        })
        .await
    }

    /// Changes the dates and the billing day of a subscription, and in the same transaction the
    /// record that the subscription owns. While the
    /// subscription is suspended, its record changes only when it is activated again.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`set_status`](Self::set_status). Returns an error if a date cannot be
    /// stored, or if the subscription is cancelled.
    pub async fn set_dates(
        self,
        id: SubscriptionId,
        from: Timestamp,
        to: Option<Timestamp>,
        billing_day: Option<u8>,
        expected: impl Into<Expected>,
        by: impl Into<Author<'_>>,
    ) -> Result<Subscription, ChangeError<Subscription>> {
        self.change(id, expected.into(), by.into(), |before| {
            if before.status == SubscriptionStatus::Cancelled {
                let expected = "a subscription that is not cancelled, because cancelled is final";
                return Err(InvalidField::new("status", before.status.as_str(), expected));
            }
            SubscriptionContent { from_date: from, to_date: to, billing_day, ..before.clone() }
                .checked()
        })
        .await
    }

    /// Lists changes of subscriptions, the newest first.
    ///
    /// In the query, the owner is a consumer, and the item is the id of a subscription.
    ///
    /// # Errors
    ///
    /// Returns an error if the database fails.
    pub async fn history(
        self,
        query: &HistoryQuery,
    ) -> Result<Vec<Change<SubscriptionContent>>, DatabaseError> {
        history::list(&self.database.reads, &[Kind::Subscription], query).await
    }

    async fn change(
        self,
        id: SubscriptionId,
        expected: Expected,
        by: Author<'_>,
        next: impl FnOnce(&SubscriptionContent) -> Result<SubscriptionContent, InvalidField> + Send,
    ) -> Result<Subscription, ChangeError<Subscription>> {
        check_name("updated_by", by.name())?;
        let mut transaction = Transaction::begin(self.database).await?;
        let current = table::find(&mut *transaction, &id.to_string()).await?;
        let before: Subscription = expected.check_existing(current)?;
        let content = next(&before.content)?;
        if content == before.content {
            return Ok(before);
        }
        let record_id = change_record(&mut transaction, &before, &content, by).await?;
        let after = Subscription {
            content,
            record_id,
            updated_by: by.name().to_owned(),
            updated_at: transaction.now(),
            revision: before.revision + 1,
            ..before.clone()
        };
        let change = transaction.next_change().await?;
        table::update(&mut transaction, change, &before, &after, by.name()).await?;
        transaction.commit(Kind::Record, &after.content.consumer_id).await?;
        Ok(after)
    }
}

/// Creates, changes or deletes the record of a subscription that is about to have this content.
/// Returns the id of the record that the subscription then owns.
async fn change_record(
    transaction: &mut Transaction,
    before: &Subscription,
    content: &SubscriptionContent,
    by: Author<'_>,
) -> Result<Option<RecordId>, ChangeError<Subscription>> {
    let owned: Option<Record> = match before.record_id {
        Some(id) => record_table::find(&mut **transaction, id).await?,
        None => None,
    };
    if !content.status.has_record() {
        if let Some(record) = &owned {
            record_table::delete(transaction, record, by).await?;
        }
        return Ok(None);
    }
    let tier = find_tier(transaction, &content.tier).await?;
    let limits = &tier.content.limits;
    let wanted = match content.status {
        SubscriptionStatus::Suspended => content.ended(limits, transaction.now()),
        _ => content.active_record(limits),
    };
    match owned {
        // While a subscription stays suspended, its record stays as it is.
        Some(record)
            if record.content == wanted
                || (before.content.status, content.status)
                    == (SubscriptionStatus::Suspended, SubscriptionStatus::Suspended) =>
        {
            Ok(Some(record.id))
        }
        Some(record) => {
            record_table::update(transaction, &record, wanted, by).await?;
            Ok(Some(record.id))
        }
        None => insert_record(transaction, wanted, by).await.map(Some),
    }
}

async fn insert_record(
    transaction: &mut Transaction,
    content: RecordContent,
    by: Author<'_>,
) -> Result<RecordId, ChangeError<Subscription>> {
    Ok(record_table::insert(transaction, content, by).await?.id)
}

async fn find_tier(
    transaction: &mut Transaction,
    name: &str,
) -> Result<Tier, ChangeError<Subscription>> {
    let found = table::find(&mut **transaction, name).await?;
    let missing = || InvalidField::new("tier", name, "the name of a tier that exists");
    Ok(found.ok_or_else(missing)?)
}
