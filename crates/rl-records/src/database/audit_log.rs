use std::sync::Arc;

use rl_core::{FailureKind, Realm, Subject};
use sqlx::any::AnyRow;

use super::handle::Database;
use super::history::{self, HistoryRow};
use super::kind::Kind;
use super::record_table;
use super::row::{number, text, time};
use super::statement::{Sql, without_nul};
use super::transaction::Transaction;
use crate::audit::{AuditEntry, AuditEvent, AuditQuery, Refusal, StoredReset};
use crate::error::DatabaseError;
use crate::history::{Change, HistoryValue};
use crate::record::Record;

/// The largest number of characters of a path or an id that an entry stores.
const MAX_CHARS: usize = 500;

/// The audit history: changes of records, tiers and subscriptions, resets of counters, and refused requests.
#[derive(Clone, Copy, Debug)]
pub struct AuditLog<'a> {
    database: &'a Arc<Database>,
}

impl<'a> AuditLog<'a> {
    pub(super) const fn new(database: &'a Arc<Database>) -> Self {
        Self { database }
    }

    /// Lists entries, the newest first.
    ///
    /// # Errors
    ///
    /// Returns an error if the database fails.
    pub async fn entries(self, query: &AuditQuery) -> Result<Vec<AuditEntry>, DatabaseError> {
        let mut sql = Sql::new("SELECT * FROM rl_history WHERE");
        match query.consumer.is_some() || query.consumers.is_some() {
            true => sql.push(
                " kind IN ('record', 'subscription', 'consumer', 'reset', 'reason', 'refusal')",
                [],
            ),
            false => sql.push(
                " kind IN ('record', 'subject_record', 'tier', 'resource', 'rule', 'subscription', 'consumer', \
                 'key', 'reset', 'subject_reset', 'reason', 'subject_reason', 'refusal')",
                [],
            ),
        }
        if let Some(consumer) = &query.consumer {
            sql.push(" AND owner = ?", [without_nul(consumer).into()]);
        }
        if let Some(consumers) = &query.consumers {
            sql.push(" AND owner", []);
            sql.push_list(consumers);
        }
        if let Some(before) = query.before {
            sql.push(" AND \"change\" < ?", [before.into()]);
        }
        let limit = i64::from(query.limit.clamp(1, 1_000));
        sql.push(" ORDER BY \"change\" DESC LIMIT ?", [limit.into()]);
        sql.on(&self.database.reads).await?.iter().map(entry).collect()
    }

    /// Writes an entry for a reset of counters under a rule, if the limiter has rules: of the limit
    /// with this name, or of all limits if it is `None`.
    ///
    /// # Errors
    ///
    /// Returns an error if the database fails.
    pub async fn note_reset(
        self,
        subject: &Subject,
        rule: Option<&str>,
        limit: Option<&str>,
        by: &str,
    ) -> Result<(), DatabaseError> {
        let kind = match subject.realm() {
            Realm::Consumer => Kind::Reset,
            _ => Kind::SubjectReset,
        };
        let id = shortened(&subject.id().to_string());
        let realm = subject.realm().as_str().to_owned();
        let [rule, limit] = [rule, limit].map(|name| name.map(ToOwned::to_owned));
        let reset = StoredReset { realm, rule, limit };
        self.write(kind, &id, &id, by, &reset).await
    }

    /// Writes the reason for a change of a record, such as a block, which an entry of its own
    /// contains. It is cut to 500 characters.
    ///
    /// # Errors
    ///
    /// Returns an error if the database fails.
    pub async fn note_reason(
        self,
        record: &Record,
        reason: &str,
        by: &str,
    ) -> Result<(), DatabaseError> {
        let kind = match record.content.realm {
            Realm::Consumer => Kind::Reason,
            _ => Kind::SubjectReason,
        };
        let owner = record_table::owner(&record.content);
        self.write(kind, &owner, &record.id.to_string(), by, &shortened(reason)).await
    }

    /// Returns the last reason that was given for a change of a record.
    ///
    /// # Errors
    ///
    /// Returns an error if the database fails.
    pub async fn reason_of(self, record: &Record) -> Result<Option<String>, DatabaseError> {
        let mut sql = Sql::new("SELECT * FROM rl_history WHERE");
        sql.push(
            " kind IN ('reason', 'subject_reason') AND owner = ? AND item = ? \
             ORDER BY \"change\" DESC LIMIT 1",
            [record_table::owner(&record.content).into(), record.id.to_string().into()],
        );
        let rows = sql.on(&self.database.reads).await?;
        rows.first().map_or(Ok(None), |row| history::content(row, "after"))
    }

    /// Writes an entry for a refused request.
    ///
    /// Every client with a token can cause refusals, so the caller must limit the number of entries
    /// that it writes.
    ///
    /// # Errors
    ///
    /// Returns an error if the database fails.
    pub async fn note_refusal(self, refusal: Refusal, by: &str) -> Result<(), DatabaseError> {
        let consumer = refusal.consumer.as_deref().map(shortened);
        let owner = consumer.clone().unwrap_or_default();
        let refusal = Refusal { path: shortened(&refusal.path), consumer, ..refusal };
        self.write(Kind::Refusal, &owner, &refusal.role, by, &refusal).await
    }

    async fn write<T: HistoryValue>(
        self,
        kind: Kind,
        owner: &str,
        item: &str,
        by: &str,
        event: &T,
    ) -> Result<(), DatabaseError> {
        let mut transaction = Transaction::begin(self.database).await?;
        let change = transaction.next_change().await?;
        let row = HistoryRow { change, kind, owner, item, by };
        history::write(&mut transaction, row, None, Some(event)).await?;
        transaction.commit(kind, owner).await
    }
}

/// Shortens a text, and replaces control characters, which databases reject.
fn shortened(text: &str) -> String {
    text.chars().take(MAX_CHARS).map(|char| if char.is_control() { '?' } else { char }).collect()
}

fn entry(row: &AnyRow) -> Result<AuditEntry, DatabaseError> {
    let corrupt = || DatabaseError::new(FailureKind::Corrupt);
    let kind = text(row, "kind")?;
    let owner = text(row, "owner")?;
    let event = match Kind::from_name(&kind).ok_or_else(corrupt)? {
        Kind::Record | Kind::SubjectRecord => {
            let Change { item, before, after, .. } = history::change(row)?;
            AuditEvent::Record { id: item, before, after }
        }
        Kind::Tier => {
            let Change { before, after, .. } = history::change(row)?;
            AuditEvent::Tier { name: owner, before, after }
        }
        Kind::Rule => {
            let Change { before, after, .. } = history::change(row)?;
            AuditEvent::Rule { name: owner, before, after }
        }
        Kind::Subscription => {
            let Change { item, before, after, .. } = history::change(row)?;
            AuditEvent::Subscription { id: item, consumer: owner, before, after }
        }
        Kind::Consumer | Kind::Key => {
            let Change { before, after, .. } = history::change(row)?;
            AuditEvent::Member { realm: kind, id: owner, before, after }
        }
        Kind::Reset | Kind::SubjectReset => {
            let reset: Option<StoredReset> = history::content(row, "after")?;
            let StoredReset { realm, rule, limit } = reset.ok_or_else(corrupt)?;
            AuditEvent::Reset { realm, id: owner, rule, limit }
        }
        Kind::Reason => {
            let reason = history::content(row, "after")?.ok_or_else(corrupt)?;
            AuditEvent::Reason { realm: "consumer".to_owned(), id: owner, reason }
        }
        Kind::SubjectReason => {
            let reason = history::content(row, "after")?.ok_or_else(corrupt)?;
            let (realm, id) = owner.split_once('/').ok_or_else(corrupt)?;
            AuditEvent::Reason { realm: realm.to_owned(), id: id.to_owned(), reason }
        }
        Kind::Refusal => AuditEvent::Refusal(history::content(row, "after")?.ok_or_else(corrupt)?),
        Kind::Resource => {
            let Change { before, after, .. } = history::change(row)?;
            AuditEvent::Resource { name: owner, before, after }
        }
    };
    Ok(AuditEntry {
        number: number(row, "change")?,
        at: time(row, "changed_at")?,
        by: text(row, "changed_by")?,
        event,
    })
}
