use std::collections::BTreeMap;
use std::sync::Arc;

#[cfg(doc)]
use rl_core::MAX_UNITS;
use rl_core::Subject;
use rl_core::time::Timestamp;

use super::audit_log::AuditLog;
use super::console_sessions::ConsoleSessions;
use super::consumers::{self, ConsumerPage, ConsumerQuery};
use super::handle::Database;
use super::history;
use super::kind::Kind;
use super::open;
use super::options::RecordsOptions;
use super::record_query::{self, RecordPage, RecordQuery};
use super::record_table;
use super::resources::Resources;
use super::rules::StoredRules;
use super::subscription_table::check_unowned;
use super::subscriptions::Subscriptions;
use super::tier_members;
use super::tiers::Tiers;
use super::transaction::Transaction;
use super::usage_history::UsageHistory;
use crate::active::{ActiveLimits, Aggregation};
use crate::author::Author;
use crate::call_limits::CallLimits;
use crate::error::{ChangeError, DatabaseError};
use crate::history::{Change, HistoryQuery};
use crate::record::{Record, RecordContent, check_name, record_id};
use crate::record_id::RecordId;
use crate::revision::Expected;
use crate::tier::TierContent;

/// A database of limits: dated records of subjects, [tiers](Self::tiers),
/// [subscriptions](Self::subscriptions), and limits of [resources](Self::resources).
///
/// Clones are cheap and share the connections.
#[derive(Clone, Debug)]
pub struct Records {
    database: Arc<Database>,
}

impl Records {
    /// Connects to `sqlite::memory:`, `sqlite://file`, `postgres://…`, or `mysql://…` for MySQL and
    /// MariaDB. Creates or upgrades the tables.
    ///
    /// # Errors
    ///
    /// Returns an error if the URL is not one of these, if the database fails, or if the tables
    /// cannot be created.
    pub async fn connect(url: &str) -> Result<Self, DatabaseError> {
        Self::connect_with(RecordsOptions::new(url)).await
    }

    /// Connects like [`connect`](Self::connect), with other options.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`connect`](Self::connect).
    pub async fn connect_with(options: RecordsOptions) -> Result<Self, DatabaseError> {
        Ok(Self { database: Arc::new(open::open(options).await?) })
    }

    /// Returns how the active records of a subject are combined into its limits.
    #[must_use]
    pub fn aggregation(&self) -> &Aggregation {
        self.database.aggregation()
    }

    /// Returns the tiers.
    #[must_use]
    pub fn tiers(&self) -> Tiers<'_> {
        Tiers::new(&self.database)
    }

    /// Returns the subscriptions of consumers to tiers.
    #[must_use]
    pub fn subscriptions(&self) -> Subscriptions<'_> {
        Subscriptions::new(&self.database)
    }

    /// Returns the limits of resources.
    #[must_use]
    pub fn resources(&self) -> Resources<'_> {
        Resources::new(&self.database)
    }

    /// Returns the rules.
    #[must_use]
    pub fn rules(&self) -> StoredRules<'_> {
        StoredRules::new(&self.database)
    }

    /// Returns the audit history.
    #[must_use]
    pub fn audit_log(&self) -> AuditLog<'_> {
        AuditLog::new(&self.database)
    }

    /// Returns the calls of subjects, added up by day, if a
    /// [`UsageRecorder`](crate::UsageRecorder) writes them.
    #[must_use]
    pub const fn usage(&self) -> UsageHistory<'_> {
        UsageHistory::new(&self.database)
    }

    /// Returns the sessions of the console.
    #[must_use]
    pub fn console_sessions(&self) -> ConsoleSessions<'_> {
        ConsoleSessions::new(&self.database)
    }

    /// Closes every connection. Later calls return an error.
    pub async fn close(&self) {
        self.database.close().await;
    }

    pub(crate) const fn database(&self) -> &Arc<Database> {
        &self.database
    }

    /// Creates a record.
    ///
    /// # Errors
    ///
    /// Returns an error if a field cannot be stored, or if the database fails. Returns an error if
    /// the record blocks or unblocks the subject, and the author lacks that right. The limits of
    /// records that are active at the same time are added up; a sum that no policy can have is an
    /// error too, such as one above [`MAX_UNITS`], or one with more than sixteen limits.
    pub async fn create(
        &self,
        content: RecordContent,
        by: impl Into<Author<'_>>,
    ) -> Result<Record, ChangeError<Record>> {
        let by = by.into();
        let content = content.checked()?;
        check_name("created_by", by.name())?;
        let mut transaction = Transaction::begin(&self.database).await?;
        let record = record_table::insert(&mut transaction, content, by).await?;
        commit(transaction, &record.content).await?;
        Ok(record)
    }

    /// Returns the record with this id, if there is one.
    ///
    /// # Errors
    ///
    /// Returns an error if the database fails.
    pub async fn read(&self, id: RecordId) -> Result<Option<Record>, DatabaseError> {
        record_table::find(&self.database.reads, id).await
    }

    /// Returns a page of the list of records.
    ///
    /// # Errors
    ///
    /// Returns an error if the database fails.
    pub async fn list(&self, query: &RecordQuery) -> Result<RecordPage, DatabaseError> {
        record_query::page(&self.database, query).await
    }

    /// Replaces the content of a record, provided that the record is as `expected`.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`create`](Self::create), and an error if the record belongs to
    /// another subject or another rule, or to a subscription. Returns [`ChangeError::NotFound`] if there is no such
    /// record, and [`ChangeError::Conflict`] if the record is not as expected.
    pub async fn update(
        &self,
        id: RecordId,
        content: RecordContent,
        expected: impl Into<Expected>,
        by: impl Into<Author<'_>>,
    ) -> Result<Record, ChangeError<Record>> {
        self.replace(id, content, false, expected.into(), by.into()).await
    }

    /// Replaces the content of a record like [`update`](Self::update), but does not change whether
    /// it blocks or grants.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`update`](Self::update).
    pub async fn update_limits(
        &self,
        id: RecordId,
        content: RecordContent,
        expected: impl Into<Expected>,
        by: impl Into<Author<'_>>,
    ) -> Result<Record, ChangeError<Record>> {
        self.replace(id, content, true, expected.into(), by.into()).await
    }

    async fn replace(
        &self,
        id: RecordId,
        content: RecordContent,
        keeps_effect: bool,
        expected: Expected,
        by: Author<'_>,
    ) -> Result<Record, ChangeError<Record>> {
        check_name("updated_by", by.name())?;
        let mut transaction = Transaction::begin(&self.database).await?;
        let current = record_table::find(&mut *transaction, id).await?;
        let before = expected.check_existing(current)?;
        check_unowned(&mut transaction, id).await?;
        let (blocks, grants) = match keeps_effect {
            true => (before.content.blocks, before.content.grants),
            false => (content.blocks, content.grants),
        };
        let content = RecordContent { blocks, grants, ..content }.checked()?;
        content.check_owner(&before.content)?;
        let record = record_table::update(&mut transaction, &before, content, by).await?;
        commit(transaction, &record.content).await?;
        Ok(record)
    }

    /// Replaces the consumer's record that has the API name, version and bank of `content`. Creates
    /// a record if there is none.
    ///
    /// Records that block or grant, records of subscriptions, records under a rule, and records whose limits
    /// [six numbers](crate::Limits::call_limits) cannot express are ignored.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`update`](Self::update). Returns [`ChangeError::NotFound`] if a
    /// record was expected and none matches, and [`ChangeError::Several`] if more than one record
    /// matches.
    pub async fn upsert(
        &self,
        content: RecordContent,
        expected: impl Into<Expected>,
        by: impl Into<Author<'_>>,
    ) -> Result<Record, ChangeError<Record>> {
        let expected: Expected = expected.into();
        let by = by.into();
        let content = content.checked()?;
        check_name("created_by", by.name())?;
        let mut transaction = Transaction::begin(&self.database).await?;
        let mut found = record_table::similar(&mut *transaction, &content).await?;
        if found.len() > 1 {
            let ids = found.iter().map(|record| record.id).take(10).collect();
            return Err(ChangeError::Several { ids });
        }
        let record = match expected.check(found.pop())? {
            Some(before) => record_table::update(&mut transaction, &before, content, by).await?,
            None => record_table::insert(&mut transaction, content, by).await?,
        };
        commit(transaction, &record.content).await?;
        Ok(record)
    }

    /// Deletes a record, provided that it is as `expected`. Returns the deleted record.
    ///
    /// # Errors
    ///
    /// Returns [`ChangeError::NotFound`] if there is no such record, and [`ChangeError::Conflict`]
    /// if the record is not as expected. Returns an error if the record belongs to a subscription,
    /// if the deletion blocks or unblocks the consumer and the author lacks that right, or if the
    /// database fails.
    pub async fn delete(
        &self,
        id: RecordId,
        expected: impl Into<Expected>,
        by: impl Into<Author<'_>>,
    ) -> Result<Record, ChangeError<Record>> {
        let by = by.into();
        check_name("updated_by", by.name())?;
        let mut transaction = Transaction::begin(&self.database).await?;
        let current = record_table::find(&mut *transaction, id).await?;
        let before = expected.into().check_existing(current)?;
        check_unowned(&mut transaction, id).await?;
        record_table::delete(&mut transaction, &before, by).await?;
        commit(transaction, &before.content).await?;
        Ok(before)
    }

    /// Returns the limits of a consumer at an instant, with the records or the tier that they come
    /// from.
    ///
    /// Records under a rule are left out. The tier is always the consumer's current one, whatever
    /// the instant.
    ///
    /// # Errors
    ///
    /// Returns an error if the database fails.
    pub async fn active_limits(
        &self,
        consumer: &str,
        at: Timestamp,
    ) -> Result<ActiveLimits, DatabaseError> {
        self.active_limits_during(consumer, at, at).await
    }

    /// Returns the limits at the instant `at`, before and after a record with this content is stored.
    /// The record is new, or replaces the record `replaced`. The limits are those of its subject
    /// under its rule.
    ///
    /// The limits of tiers and the defaults are those of consumers.
    ///
    /// # Errors
    ///
    /// Returns an error if the database fails.
    pub async fn preview(
        &self,
        content: &RecordContent,
        replaced: Option<RecordId>,
        at: Timestamp,
    ) -> Result<(ActiveLimits, ActiveLimits), DatabaseError> {
        let RecordContent { realm, subject_id, rule, .. } = content;
        let (mut records, tier) = self.sources(realm.as_str(), subject_id, at, at).await?;
        records.retain(|record| record.content.applies_under(rule.as_deref()));
        let before = ActiveLimits::new(&records, tier.clone(), self.aggregation());
        records.retain(|record| Some(record.id) != replaced);
        let id = replaced.unwrap_or_else(RecordId::random);
        records.push(Record::new(id, content.clone(), "", at));
        Ok((before, ActiveLimits::new(&records, tier, self.aggregation())))
    }

    /// Returns the limits of a subject at an instant, by rule. The entry `None` has the limits under
    /// every rule that no active record names.
    ///
    /// For a subject that is no consumer and has no active record, the result is the defaults of
    /// consumers, which do not apply to it.
    ///
    /// # Errors
    ///
    /// Returns an error if the database fails.
    pub async fn active_limits_by_rule(
        &self,
        subject: &Subject,
        at: Timestamp,
    ) -> Result<BTreeMap<Option<String>, ActiveLimits>, DatabaseError> {
        let (records, tier) = match record_id(subject) {
            Some(id) => self.sources(subject.realm().as_str(), &id, at, at).await?,
            None => (Vec::new(), None),
        };
        let rules = records.iter().map(|record| record.content.rule.clone()).chain([None]);
        let limits = |rule: &Option<String>| {
            let applies = |record: &&Record| record.content.applies_under(rule.as_deref());
            let records: Vec<_> = records.iter().filter(applies).cloned().collect();
            ActiveLimits::new(&records, tier.clone(), self.aggregation())
        };
        Ok(rules.map(|rule| (rule.clone(), limits(&rule))).collect())
    }

    /// Returns the combined limits of all records of a consumer that are active at some instant from
    /// `start` to `end`.
    ///
    /// Records under a rule are left out.
    ///
    /// # Errors
    ///
    /// Returns an error if the database fails.
    pub async fn active_limits_during(
        &self,
        consumer: &str,
        start: Timestamp,
        end: Timestamp,
    ) -> Result<ActiveLimits, DatabaseError> {
        let (mut records, tier) = self.sources("consumer", consumer, start, end).await?;
        records.retain(|record| record.content.applies_under(None));
        Ok(ActiveLimits::new(&records, tier, self.aggregation()))
    }

    /// Reads the records of a subject that are active at some instant from `start` to `end`, and its
    /// tier.
    async fn sources(
        &self,
        realm: &str,
        id: &str,
        start: Timestamp,
        end: Timestamp,
    ) -> Result<(Vec<Record>, Option<TierContent>), DatabaseError> {
        let reads = &self.database.reads;
        let records = record_table::overlapping(reads, realm, id, start, end).await?;
        Ok((records, tier_members::find_tier(reads, realm, id).await?))
    }

    /// Lists the active blocks of a subject under all rules, the earliest end first.
    ///
    /// # Errors
    ///
    /// Returns an error if the database fails.
    pub async fn blocks_of(&self, subject: &Subject) -> Result<Vec<Record>, DatabaseError> {
        let Some(id) = record_id(subject) else { return Ok(Vec::new()) };
        let (realm, now) = (subject.realm().as_str(), self.database.now());
        record_table::blocks(&self.database.reads, realm, &id, now).await
    }

    /// Lists the blocks that are active now, those that end first at the top.
    ///
    /// # Errors
    ///
    /// Returns an error if the database fails.
    pub async fn active_blocks(&self, limit: u32) -> Result<Vec<Record>, DatabaseError> {
        record_table::all_blocks(&self.database.reads, self.database.now(), limit).await
    }

    /// Blocks a subject from now until the time `until`, in one transaction. Concurrent calls run
    /// one after the other, so the last one that succeeds takes effect.
    ///
    /// `None` means every rule that takes its limits from records. If the subject has a block under
    /// this rule already, the one that ends last must be as `expected`. This call moves the end of
    /// that block to `until`, and deletes the other blocks under this rule that end later.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`create`](Self::create) and [`update`](Self::update). Returns an
    /// error if the subject can have [no records](RecordContent::of_subject).
    pub async fn block(
        &self,
        subject: &Subject,
        rule: Option<&str>,
        until: Timestamp,
        expected: impl Into<Expected>,
        by: impl Into<Author<'_>>,
    ) -> Result<Record, ChangeError<Record>> {
        let expected: Expected = expected.into();
        let by = by.into();
        let now = self.database.now();
        let content = RecordContent {
            rule: rule.map(ToOwned::to_owned),
            blocks: true,
            ..RecordContent::of_subject(subject, now, until, CallLimits::BLOCKED)?
        };
        let content = content.checked()?;
        let (realm, id) = (content.realm.as_str(), &content.subject_id);
        check_name("created_by", by.name())?;
        let mut transaction = Transaction::begin(&self.database).await?;
        let mut found = blocks_under(&mut transaction, realm, id, rule, now).await?;
        let block = match expected.check(found.pop())? {
            Some(last) => {
                let content = RecordContent { to_date: until, ..last.content.clone() };
                record_table::update(&mut transaction, &last, content, by).await?
            }
            None => record_table::insert(&mut transaction, content, by).await?,
        };
        for longer in found.iter().filter(|other| other.content.to_date > until) {
            record_table::delete(&mut transaction, longer, by).await?;
        }
        commit(transaction, &block.content).await?;
        Ok(block)
    }

    /// Deletes all current blocks of a subject that apply under `rule` alone, in one transaction.
    /// Without a name, deletes those that apply under every rule. Returns the block that would have
    /// ended last, which must be as `expected`.
    ///
    /// # Errors
    ///
    /// Returns [`ChangeError::NotFound`] if there is no such block. Returns the errors of
    /// [`delete`](Self::delete) otherwise.
    pub async fn unblock(
        &self,
        subject: &Subject,
        rule: Option<&str>,
        expected: impl Into<Expected>,
        by: impl Into<Author<'_>>,
    ) -> Result<Record, ChangeError<Record>> {
        let by = by.into();
        let now = self.database.now();
        let Some(id) = record_id(subject) else { return Err(ChangeError::NotFound) };
        let realm = subject.realm().as_str();
        check_name("updated_by", by.name())?;
        let mut transaction = Transaction::begin(&self.database).await?;
        let mut found = blocks_under(&mut transaction, realm, &id, rule, now).await?;
        let last = expected.into().check_existing(found.pop())?;
        record_table::delete(&mut transaction, &last, by).await?;
        for other in &found {
            record_table::delete(&mut transaction, other, by).await?;
        }
        commit(transaction, &last.content).await?;
        Ok(last)
    }

    /// Returns a page of the list of consumers that have records or a tier, as of the instant `at`.
    ///
    /// # Errors
    ///
    /// Returns an error if the database fails.
    pub async fn consumers(
        &self,
        query: &ConsumerQuery,
        at: Timestamp,
    ) -> Result<ConsumerPage, DatabaseError> {
        consumers::page(&self.database, query, at).await
    }

    /// Counts the consumers that `query` selects, regardless of its page. Returns `None` if there
    /// are more than 10 000.
    ///
    /// # Errors
    ///
    /// Returns an error if the database fails.
    pub async fn count_consumers(
        &self,
        query: &ConsumerQuery,
    ) -> Result<Option<u64>, DatabaseError> {
        consumers::count(&self.database, query).await
    }

    /// Lists changes of records, the newest first.
    ///
    /// In the query, the owner is a consumer.
    ///
    /// # Errors
    ///
    /// Returns an error if the database fails.
    pub async fn history(
        &self,
        query: &HistoryQuery,
    ) -> Result<Vec<Change<RecordContent>>, DatabaseError> {
        let kinds = match query.owner {
            Some(_) => &[Kind::Record][..],
            None => &[Kind::Record, Kind::SubjectRecord],
        };
        history::list(&self.database.reads, kinds, query).await
    }
}

/// Reads the active blocks of a subject that apply under this rule alone, ordered by their end.
/// Without a name, reads those that apply under every rule.
async fn blocks_under(
    transaction: &mut Transaction,
    realm: &str,
    id: &str,
    rule: Option<&str>,
    now: Timestamp,
) -> Result<Vec<Record>, DatabaseError> {
    let mut blocks = record_table::blocks(&mut **transaction, realm, id, now).await?;
    blocks.retain(|block| block.content.rule.as_deref() == rule);
    Ok(blocks)
}

/// Commits a change of a record with this content.
async fn commit(transaction: Transaction, content: &RecordContent) -> Result<(), DatabaseError> {
    let kind = record_table::kind(&content.realm);
    transaction.commit(kind, &record_table::owner(content)).await
}
