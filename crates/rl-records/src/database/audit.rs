use rl_core::{FailureKind, Realm, Subject};
use sqlx::Row;
use sqlx::any::AnyRow;

use super::failure::failed;
use super::history::{change_of, content_of};
use super::sql::Sql;
use super::{Kind, Records, time_of};
use crate::audit::StoredReset;
use crate::{AuditEntry, AuditEvent, AuditQuery, Change, DatabaseError, Refusal};

/// The longest path and id that an entry keeps, in characters.
const LONGEST: usize = 500;

impl Records {
    /// Writes a reset of `subject`'s counters to the audit history: of the limit called `limit`, or of all.
    ///
    /// # Errors
    ///
    /// Returns an error if the database does not answer.
    pub async fn note_reset(
        &self,
        subject: &Subject,
        limit: Option<&str>,
        by: &str,
    ) -> Result<(), DatabaseError> {
        let kind = match subject.realm() {
            Realm::Consumer => Kind::Reset,
            _ => Kind::SubjectReset,
        };
        let id = kept(&subject.id().to_string());
        let reset = StoredReset {
            realm: subject.realm().as_str().to_owned(),
            limit: limit.map(ToOwned::to_owned),
        };
        let (mut edit, change) = self.begin().await?;
        let entry = self.entry(change, kind, &id, by);
        entry.write(&mut *edit, &id, None, Some(&reset)).await?;
        edit.commit(kind, &id).await
    }

    /// Writes a refused request to the audit history.
    ///
    /// Every token can cause refusals, so callers must bound how many they write.
    ///
    /// # Errors
    ///
    /// Returns an error if the database does not answer.
    pub async fn note_refusal(&self, refusal: Refusal, by: &str) -> Result<(), DatabaseError> {
        let consumer = refusal.consumer.as_deref().map(kept);
        let owner = consumer.clone().unwrap_or_default();
        let refusal = Refusal { path: kept(&refusal.path), consumer, ..refusal };
        let (mut edit, change) = self.begin().await?;
        let entry = self.entry(change, Kind::Refusal, &owner, by);
        entry.write(&mut *edit, &refusal.role, None, Some(&refusal)).await?;
        edit.commit(Kind::Refusal, &owner).await
    }

    /// Returns entries of the audit history, the newest first: changes of records and tiers,
    /// assignments to tiers, resets of counters, and refused requests. Limits of resources have a
    /// [history of their own](Self::resource_history).
    ///
    /// # Errors
    ///
    /// Returns an error if the database does not answer.
    pub async fn audit(&self, query: &AuditQuery) -> Result<Vec<AuditEntry>, DatabaseError> {
        let mut sql = Sql::new("SELECT * FROM rl_history WHERE");
        match &query.consumer {
            Some(consumer) => sql.push(
                " kind IN ('record', 'consumer', 'reset', 'refusal') AND owner = ?",
                [consumer.replace('\0', "\u{1}").into()],
            ),
            None => sql.push(
                " kind IN ('record', 'tier', 'consumer', 'key', 'reset', 'subject_reset', \
                 'refusal')",
                [],
            ),
        }
        if let Some(before) = query.before {
            sql.push(" AND change < ?", [before.into()]);
        }
        let limit = i64::from(query.limit.clamp(1, 1_000));
        sql.push(" ORDER BY change DESC LIMIT ?", [limit.into()]);
        let rows = sql.on(&self.inner.reads).await?;
        rows.iter().map(entry_of).collect()
    }
}

/// Returns the part of a text that an entry keeps, without control characters, which databases refuse.
fn kept(text: &str) -> String {
    text.chars().take(LONGEST).map(|char| if char.is_control() { '?' } else { char }).collect()
}

fn entry_of(row: &AnyRow) -> Result<AuditEntry, DatabaseError> {
    let corrupt = || DatabaseError::new(FailureKind::Corrupt);
    let kind: String = row.try_get("kind").map_err(failed)?;
    let owner: String = row.try_get("owner").map_err(failed)?;
    let event = match Kind::from_name(&kind).ok_or_else(corrupt)? {
        Kind::Record => {
            let Change { item, before, after, .. } = change_of(row)?;
            AuditEvent::Record { id: item, consumer: owner, before, after }
        }
        Kind::Tier => {
            let Change { before, after, .. } = change_of(row)?;
            AuditEvent::Tier { name: owner, before, after }
        }
        Kind::Consumer | Kind::Key => {
            let Change { before, after, .. } = change_of(row)?;
            AuditEvent::Member { realm: kind, id: owner, before, after }
        }
        Kind::Reset | Kind::SubjectReset => {
            let reset: Option<StoredReset> = content_of(row, "after")?;
            let StoredReset { realm, limit } = reset.ok_or_else(corrupt)?;
            AuditEvent::Reset { realm, id: owner, limit }
        }
        Kind::Refusal => AuditEvent::Refusal(content_of(row, "after")?.ok_or_else(corrupt)?),
        Kind::Resource => return Err(corrupt()),
    };
    Ok(AuditEntry {
        number: row.try_get("change").map_err(failed)?,
        at: time_of(row, "changed_at").map_err(failed)?,
        by: row.try_get("changed_by").map_err(failed)?,
        event,
    })
}
