use std::sync::Arc;

use rl_core::{FailureKind, Subject};
use sqlx::any::AnyRow;

use super::handle::Database;
use super::history;
use super::kind::Kind;
use super::row::{limits, number, text};
use super::statement::{Bound, Sql, without_nul};
use super::subscription_table;
use super::table::{self, METADATA, NamedContent, Object};
use super::tier_members;
use super::transaction::Transaction;
use crate::author::Author;
use crate::effect::Effect;
use crate::error::{ChangeError, DatabaseError, InvalidField};
use crate::history::{Change, HistoryQuery};
use crate::revision::{Expected, Revisioned};
use crate::subscription::SubscriptionStatus;
use crate::tier::{Tier, TierContent, TierMember, TierUses, member_key};

/// The tiers of a database, and the members of each.
#[derive(Clone, Copy, Debug)]
pub struct Tiers<'a> {
    database: &'a Arc<Database>,
}

impl<'a> Tiers<'a> {
    pub(super) const fn new(database: &'a Arc<Database>) -> Self {
        Self { database }
    }

    /// Creates a tier.
    ///
    /// # Errors
    ///
    /// Returns [`ChangeError::Conflict`] if a tier already has this name. Returns an error if a
    /// field cannot be stored, or if the database fails.
    ///
    /// # Examples
    ///
    /// ```
    /// use rl_core::{FailureKind, Subject};
    /// use rl_records::{Limits, Records, TierContent};
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use rl_core::time::{Clock, SystemClock};
    /// let records = Records::connect("sqlite::memory:").await?;
    /// let limits: Limits = "10/second, 10000/minute:unit=tokens".parse()?;
    /// let gold = TierContent { name: "gold".into(), limits: limits.clone() };
    /// records.tiers().create(gold, "alice").await?;
    ///
    /// records.tiers().set_member(&Subject::consumer("abc123"), Some("gold"), 0, "alice").await?;
    /// let active = records.active_limits("abc123", SystemClock.now()).await?;
    /// assert_eq!((active.tier(), active.limits()), (Some("gold"), &limits));
    /// # Ok(()) }
    /// ```
    pub async fn create(
        self,
        content: TierContent,
        by: impl Into<Author<'_>>,
    ) -> Result<Tier, ChangeError<Tier>> {
        table::create_named(self.database, content, by.into()).await
    }

    /// Returns the tier of this name, if there is one.
    ///
    /// # Errors
    ///
    /// Returns an error if the database fails.
    pub async fn read(self, name: &str) -> Result<Option<Tier>, DatabaseError> {
        table::find(&self.database.reads, name).await
    }

    /// Lists at most `limit` tiers by name, starting after the name `after`.
    ///
    /// # Errors
    ///
    /// Returns an error if the database fails.
    pub async fn list(self, after: Option<&str>, limit: u32) -> Result<Vec<Tier>, DatabaseError> {
        table::list_named(&self.database.reads, after, limit).await
    }

    /// Returns the number of members of a tier, and the number of subscriptions whose records have
    /// its limits.
    ///
    /// # Errors
    ///
    /// Returns an error if the database fails.
    pub async fn uses(self, name: &str) -> Result<TierUses, DatabaseError> {
        let count = "SELECT (SELECT COUNT(*) FROM rl_tier_members WHERE tier = ?) AS members, \
                     (SELECT COUNT(*) FROM rl_subscriptions WHERE tier = ? \
                     AND record_id IS NOT NULL) AS subscriptions";
        let name = Bound::from(without_nul(name));
        let rows = Sql::with(count, [name.clone(), name]).on(&self.database.reads).await?;
        let row = rows.first().ok_or_else(|| DatabaseError::new(FailureKind::Corrupt))?;
        let count = |column| Ok(number(row, column)?.unsigned_abs());
        Ok(TierUses { members: count("members")?, subscriptions: count("subscriptions")? })
    }

    /// Lists tiers like [`list`](Self::list), but only the tiers that one of these consumers is in,
    /// or has a subscription to that is not cancelled. With `name`, only the tier of this name.
    ///
    /// # Errors
    ///
    /// Returns an error if the database fails.
    pub async fn list_for_consumers(
        self,
        consumers: &[String],
        name: Option<&str>,
        after: Option<&str>,
        limit: u32,
    ) -> Result<Vec<Tier>, DatabaseError> {
        let mut sql = Sql::new(
            "SELECT * FROM rl_tiers WHERE (name IN \
             (SELECT tier FROM rl_tier_members WHERE realm = 'consumer' AND id",
        );
        sql.push_list(consumers);
        sql.push(
            ") OR name IN (SELECT tier FROM rl_subscriptions WHERE status <> ? AND consumer_id",
            [SubscriptionStatus::Cancelled.as_str().into()],
        );
        sql.push_list(consumers);
        sql.push(")) AND", []);
        if let Some(name) = name {
            sql.push(" name = ? AND", [without_nul(name).into()]);
        }
        table::push_page(&mut sql, after, limit);
        sql.on(&self.database.reads).await?.iter().map(Tier::from_row).collect()
    }

    /// Replaces the limits of a tier. They apply to the next request of every member, and of every
    /// consumer with a [subscription](crate::Subscriptions) to the tier.
    ///
    /// # Errors
    ///
    /// Returns [`ChangeError::NotFound`] if no tier has this name, and [`ChangeError::Conflict`] if
    /// the tier is not as expected. Returns an error if a field cannot be stored, if the change
    /// blocks or unblocks members and the author lacks that right, or if the database fails.
    pub async fn update(
        self,
        content: TierContent,
        expected: impl Into<Expected>,
        by: impl Into<Author<'_>>,
    ) -> Result<Tier, ChangeError<Tier>> {
        table::update_named(self.database, content, expected.into(), by.into()).await
    }

    /// Deletes a tier without members and without subscriptions that are not cancelled. Returns the
    /// deleted tier.
    ///
    /// # Errors
    ///
    /// Returns [`ChangeError::NotFound`] if no tier has this name, and [`ChangeError::Conflict`] if
    /// the tier is not as expected. Returns an error if the tier still has members, because they
    /// would fall back to the defaults, or subscriptions, or if the database fails.
    pub async fn delete(
        self,
        name: &str,
        expected: impl Into<Expected>,
        by: impl Into<Author<'_>>,
    ) -> Result<Tier, ChangeError<Tier>> {
        table::delete_named(self.database, name, expected.into(), by.into()).await
    }

    /// Lists changes of tiers, the newest first.
    ///
    /// # Errors
    ///
    /// Returns an error if the database fails.
    pub async fn history(
        self,
        query: &HistoryQuery,
    ) -> Result<Vec<Change<TierContent>>, DatabaseError> {
        history::list(&self.database.reads, &[Kind::Tier], query).await
    }

    /// Puts a consumer or an API key into a tier. With `None`, removes it from its tier.
    ///
    /// `expected` describes the current membership: a revision, or 0 for none. Returns the new
    /// membership. Pass a key as the subject that [`KeySecret`](rl_core::key::KeySecret) creates
    /// from it; the key itself is never stored.
    ///
    /// # Errors
    ///
    /// Returns an error if `subject` is neither a consumer nor a key, or if no tier has this name.
    /// Returns [`ChangeError::Conflict`] if the membership is not as expected. If there is no
    /// membership, and one was expected or should be removed, returns [`ChangeError::NotFound`].
    ///
    /// Returns an error if the change blocks or unblocks the subject and the author lacks that
    /// right, or if the database fails.
    pub async fn set_member(
        self,
        subject: &Subject,
        tier: Option<&str>,
        expected: impl Into<Expected>,
        by: impl Into<Author<'_>>,
    ) -> Result<Option<TierMember>, ChangeError<TierMember>> {
        tier_members::set(self.database, subject, tier, expected.into(), by.into()).await
    }

    /// Returns the membership of a consumer or an API key, if it is in a tier.
    ///
    /// # Errors
    ///
    /// Returns an error if the database fails.
    pub async fn member(self, subject: &Subject) -> Result<Option<TierMember>, DatabaseError> {
        match member_key(subject) {
            Some((realm, id)) => tier_members::find(&self.database.reads, realm, &id).await,
            None => Ok(None),
        }
    }

    /// Lists the changes of the tier of a consumer or an API key, the newest first.
    ///
    /// Only `before` and `limit` of the query are used.
    ///
    /// # Errors
    ///
    /// Returns an error if the database fails.
    pub async fn member_history(
        self,
        subject: &Subject,
        query: &HistoryQuery,
    ) -> Result<Vec<Change<String>>, DatabaseError> {
        let Some((realm, id)) = member_key(subject) else { return Ok(Vec::new()) };
        let query = HistoryQuery { owner: Some(id), item: None, ..query.clone() };
        history::list(&self.database.reads, &[tier_members::kind(realm)], &query).await
    }
}

impl NamedContent for TierContent {
    const KIND: Kind = Kind::Tier;
    const TABLE: &'static str = "rl_tiers";
    const COLUMNS: &'static [&'static str] =
        &["limits", METADATA[0], METADATA[1], METADATA[2], METADATA[3], METADATA[4]];

    fn name(&self) -> &str {
        &self.name
    }

    fn values(&self) -> Vec<Bound> {
        vec![self.limits.to_string().into()]
    }

    fn from_row(row: &AnyRow) -> Result<Self, DatabaseError> {
        Ok(Self { name: text(row, "name")?, limits: limits(row)? })
    }

    fn checked(self) -> Result<Self, InvalidField> {
        self.checked()
    }

    async fn prepare_change(
        transaction: &mut Transaction,
        before: Option<&Self>,
        after: Option<&Self>,
        author: Author<'_>,
    ) -> Result<(), ChangeError<Revisioned<Self>>> {
        match (before, after) {
            (Some(before), Some(after)) => {
                let aggregation = transaction.aggregation();
                let is_blocked = |tier| aggregation.is_blocked_in(Some(tier));
                let effect = Effect::of(is_blocked(before), is_blocked(after));
                // If a tier is not used, its change blocks and unblocks nothing.
                if author.check::<Tier>(effect).is_err()
                    && (tier_members::exist(transaction, &after.name).await?
                        || subscription_table::exist(transaction, &after.name).await?)
                {
                    author.check(effect)?;
                }
                subscription_table::copy_limits(transaction, after).await?;
                Ok(())
            }
            (Some(before), None) if tier_members::exist(transaction, &before.name).await? => {
                let expected = "a tier without members: move them to another one first";
                Err(InvalidField::new("name", &before.name, expected).into())
            }
            (Some(before), None)
                if subscription_table::exist(transaction, &before.name).await? =>
            {
                let expected = "a tier without subscriptions: cancel them first";
                Err(InvalidField::new("name", &before.name, expected).into())
            }
            _ => Ok(()),
        }
    }
}
