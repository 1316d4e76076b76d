use std::collections::BTreeSet;

use rl_core::time::Timestamp;
use rl_core::{FailureKind, Realm};
use sqlx::AnyConnection;
use sqlx::any::AnyRow;

use super::connections::Runner;
use super::kind::Kind;
use super::row::{limits, micros, number, optional_text, text, time};
use super::statement::{Bound, Sql};
use super::table::{self, METADATA, Object};
use super::tier_members;
use super::transaction::Transaction;
use crate::author::Author;
use crate::effect::{Span, effect};
use crate::error::{ChangeError, DatabaseError};
use crate::record::{Record, RecordContent, realm_named};
use crate::record_id::RecordId;

impl Object for Record {
    type Content = RecordContent;

    const TABLE: &'static str = "rl_records";
    const KEY: &'static str = "rate_limiting_id";
    const COLUMNS: &'static [&'static str] = &[
        "realm",
        "subject_id",
        "rule",
        "api_name",
        "api_version",
        "bank_id",
        "limits",
        "from_date",
        "to_date",
        "blocks",
        "grants",
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
        kind(&self.content.realm)
    }

    fn owner(&self) -> String {
        owner(&self.content)
    }

    fn content(&self) -> &RecordContent {
        &self.content
    }

    fn values(&self) -> Vec<Bound> {
        let content = &self.content;
        vec![
            content.realm.as_str().into(),
            content.subject_id.as_str().into(),
            content.rule.clone().into(),
            content.api_name.clone().into(),
            content.api_version.clone().into(),
            content.bank_id.clone().into(),
            content.limits.to_string().into(),
            micros(content.from_date).into(),
            micros(content.to_date).into(),
            i64::from(content.blocks).into(),
            i64::from(content.grants).into(),
            self.created_by.as_str().into(),
            self.updated_by.as_str().into(),
            micros(self.created_at).into(),
            micros(self.updated_at).into(),
            self.revision.into(),
        ]
    }

    fn from_row(row: &AnyRow) -> Result<Self, DatabaseError> {
        let corrupt = || DatabaseError::new(FailureKind::Corrupt);
        Ok(Self {
            id: text(row, "rate_limiting_id")?.parse().map_err(|_| corrupt())?,
            content: RecordContent {
                realm: realm_named(&text(row, "realm")?).ok_or_else(corrupt)?,
                subject_id: text(row, "subject_id")?,
                rule: optional_text(row, "rule")?,
                api_name: optional_text(row, "api_name")?,
                api_version: optional_text(row, "api_version")?,
                bank_id: optional_text(row, "bank_id")?,
                limits: limits(row)?,
                from_date: time(row, "from_date")?,
                to_date: time(row, "to_date")?,
                blocks: number(row, "blocks")? != 0,
                grants: number(row, "grants")? != 0,
            },
            created_by: text(row, "created_by")?,
            updated_by: text(row, "updated_by")?,
            created_at: time(row, "created_at")?,
            updated_at: time(row, "updated_at")?,
            revision: number(row, "revision")?,
        })
    }
}

/// Returns the kind of a change of a record: the history of a consumer has no records of other
/// subjects.
pub(super) fn kind(realm: &Realm) -> Kind {
    if *realm == Realm::Consumer { Kind::Record } else { Kind::SubjectRecord }
}

/// Returns the owner of the history of a record: the id of the consumer, or the realm and the id of
/// another subject.
pub(super) fn owner(content: &RecordContent) -> String {
    match &content.realm {
        Realm::Consumer => content.subject_id.clone(),
        realm => format!("{}/{}", realm.as_str(), content.subject_id),
    }
}

/// Reads the record with this id.
pub(super) async fn find(
    runner: impl Runner,
    id: RecordId,
) -> Result<Option<Record>, DatabaseError> {
    table::find(runner, &id.to_string()).await
}

/// Reads the records of a subject that are active at some instant from `start` to `end`.
pub(super) async fn overlapping(
    runner: impl Runner,
    realm: &str,
    id: &str,
    start: Timestamp,
    end: Timestamp,
) -> Result<Vec<Record>, DatabaseError> {
    if id.contains('\0') {
        // PostgreSQL rejects NUL in text, and no stored id contains it.
        return Ok(Vec::new());
    }
    let mut sql = Sql::new("SELECT * FROM rl_records WHERE");
    sql.push(
        " realm = ? AND subject_id = ? AND to_date >= ? AND from_date <= ? \
         ORDER BY from_date, rate_limiting_id",
        [realm.into(), id.into(), micros(start).into(), micros(end).into()],
    );
    records(&sql.on(runner).await?)
}

/// Reads the blocks of a subject that are active now, ordered by their end.
pub(super) async fn blocks(
    runner: impl Runner,
    realm: &str,
    id: &str,
    now: Timestamp,
) -> Result<Vec<Record>, DatabaseError> {
    let mut blocks = overlapping(runner, realm, id, now, now).await?;
    blocks.retain(|record| record.content.blocks);
    blocks.sort_by_key(|record| record.content.to_date);
    Ok(blocks)
}

/// Reads the blocks of all subjects that are active now, ordered by their end.
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

/// Reads the records that neither block nor grant, that no subscription owns, that apply under every rule,
/// that six numbers can express, and that have the consumer, API name, version and bank of
/// `content`.
pub(super) async fn similar(
    runner: impl Runner,
    content: &RecordContent,
) -> Result<Vec<Record>, DatabaseError> {
    let mut sql =
        Sql::new("SELECT * FROM rl_records WHERE blocks = 0 AND grants = 0 AND rule IS NULL");
    sql.push(
        " AND realm = ? AND subject_id = ?",
        [content.realm.as_str().into(), content.subject_id.as_str().into()],
    );
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
    sql.push(" ORDER BY from_date, rate_limiting_id", []);
    let mut similar = records(&sql.on(runner).await?)?;
    similar.retain(|record| record.content.limits.call_limits().is_some());
    Ok(similar)
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
    let record = Record::new(RecordId::random(), content, by.name(), now);
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

/// Adds up the limits of this record and of all records that overlap with it, under each rule.
/// Checks that the sums can be stored.
async fn check_sum<T>(
    transaction: &mut Transaction,
    record: &Record,
) -> Result<(), ChangeError<T>> {
    let content = &record.content;
    let RecordContent { realm, subject_id, from_date, to_date, .. } = content;
    let (realm, runner) = (realm.as_str(), &mut **transaction);
    let mut others = overlapping(runner, realm, subject_id, *from_date, *to_date).await?;
    others.retain(|other| other.id != record.id);
    for rule in rules(content, &others) {
        let others = others.iter().map(|other| &other.content);
        content.check_sum(others.filter(|other| other.applies_under(rule)))?;
    }
    Ok(())
}

/// Returns the rules under which a change of `content` makes a difference. `None` stands for the
/// rules that no record names.
fn rules<'a>(content: &'a RecordContent, others: &'a [Record]) -> BTreeSet<Option<&'a str>> {
    match &content.rule {
        Some(rule) => BTreeSet::from([Some(&**rule)]),
        None => others.iter().map(|other| other.content.rule.as_deref()).chain([None]).collect(),
    }
}

/// Returns the realms whose subjects have records, in the order of their names.
pub(super) async fn realms(connection: &mut AnyConnection) -> Result<Vec<String>, DatabaseError> {
    let mut realms = Vec::new();
    // Each query reads one row through an index, whereas DISTINCT would read the whole index.
    let mut last = String::new();
    loop {
        let next = "SELECT realm FROM rl_records WHERE realm > ? ORDER BY realm LIMIT 1";
        let rows = Sql::with(next, [last.as_str().into()]).on(&mut *connection).await?;
        let Some(row) = rows.first() else { return Ok(realms) };
        last = text(row, "realm")?;
        realms.push(last.clone());
    }
}

/// Checks that the author may block or unblock the subject, if the change has such an effect under
/// any rule.
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
    let (realm, subject_id) = (content.realm.as_str(), &content.subject_id);
    let mut others = overlapping(&mut **transaction, realm, subject_id, start, end).await?;
    others.retain(|record| record.id != id);
    let tier = tier_members::find_tier(&mut **transaction, realm, subject_id).await?;
    let aggregation = transaction.aggregation();
    // The policies of other subjects without a tier are unknown here. They are assumed not to block.
    let has_defaults = tier.is_some() || content.realm == Realm::Consumer;
    let fallback = has_defaults && aggregation.is_blocked_in(tier.as_ref());
    for rule in rules(content, &others) {
        let others = others.iter().filter(|record| record.content.applies_under(rule));
        let others =
            others.map(|record| Span { content: &record.content, is_before: true, is_after: true });
        let before = before.map(|content| Span { content, is_before: true, is_after: false });
        let after = after.map(|content| Span { content, is_before: false, is_after: true });
        let spans: Vec<_> = others.chain(before).chain(after).collect();
        by.check(effect(&spans, fallback, aggregation.zero_means, transaction.now()))?;
    }
    Ok(())
}
