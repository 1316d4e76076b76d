use rl_core::FailureKind;
use rl_core::time::Timestamp;
use sqlx::any::AnyRow;
use sqlx::{Any, Executor, Row};

use super::failure::failed;
use super::sql::Sql;
use super::{Kind, Records, micros, time_of};
use crate::history::Stored;
use crate::{
    Change, DatabaseError, HistoryQuery, RecordContent, ResourceLimitContent, TierContent,
};

/// The most changes that are read at once; behind more, everything is looked up again.
const MOST: i64 = 1_000;

/// A line of the history, as far as it is known when a change begins.
pub(super) struct Entry<'a> {
    change: i64,
    kind: Kind,
    owner: &'a str,
    at: Timestamp,
    by: &'a str,
}

impl Entry<'_> {
    pub(super) async fn write<T: Stored>(
        self,
        executor: impl Executor<'_, Database = Any>,
        item: &str,
        before: Option<&T>,
        after: Option<&T>,
    ) -> Result<(), DatabaseError> {
        let json = |content: Option<&T>| content.map(|content| content.to_json().to_string());
        sqlx::query(
            "INSERT INTO rl_history \
             (change, kind, owner, item, changed_at, changed_by, before, after) \
             VALUES ($1, $2, $3, $4, $5, $6, $7, $8)",
        )
        .bind(self.change)
        .bind(self.kind.as_str())
        .bind(self.owner)
        .bind(item)
        .bind(micros(self.at))
        .bind(self.by)
        .bind(json(before))
        .bind(json(after))
        .execute(executor)
        .await
        .map_err(failed)?;
        Ok(())
    }
}

/// What happened since a change.
#[derive(Debug)]
pub(crate) enum Since {
    /// These, up to this one.
    Changes(Vec<(Kind, String)>, i64),
    /// More than can be told one by one, up to this one.
    TooMany(i64),
}

impl Records {
    pub(super) fn entry<'a>(
        &self,
        change: i64,
        kind: Kind,
        owner: &'a str,
        by: &'a str,
    ) -> Entry<'a> {
        Entry { change, kind, owner, at: self.clock().now(), by }
    }

    /// Changes of records, the newest first.
    ///
    /// # Errors
    ///
    /// Returns an error if the database does not answer.
    pub async fn history(
        &self,
        query: &HistoryQuery,
    ) -> Result<Vec<Change<RecordContent>>, DatabaseError> {
        self.changes(Kind::Record, query).await
    }

    /// Changes of limits of resources, the newest first.
    ///
    /// # Errors
    ///
    /// Returns an error if the database does not answer.
    pub async fn resource_history(
        &self,
        query: &HistoryQuery,
    ) -> Result<Vec<Change<ResourceLimitContent>>, DatabaseError> {
        self.changes(Kind::Resource, query).await
    }

    /// Changes of tiers, the newest first.
    ///
    /// # Errors
    ///
    /// Returns an error if the database does not answer.
    pub async fn tier_history(
        &self,
        query: &HistoryQuery,
    ) -> Result<Vec<Change<TierContent>>, DatabaseError> {
        self.changes(Kind::Tier, query).await
    }

    pub(super) async fn changes<T: Stored>(
        &self,
        kind: Kind,
        query: &HistoryQuery,
    ) -> Result<Vec<Change<T>>, DatabaseError> {
        let mut sql = Sql::new("SELECT * FROM rl_history WHERE");
        sql.push(" kind = ?", [kind.as_str().into()]);
        for (part, value) in [(" AND owner = ?", &query.of), (" AND item = ?", &query.item)] {
            if let Some(value) = value {
                sql.push(part, [value.replace('\0', "\u{1}").into()]);
            }
        }
        if let Some(before) = query.before {
            sql.push(" AND change < ?", [before.into()]);
        }
        let limit = i64::from(query.limit.clamp(1, 1_000));
        sql.push(" ORDER BY change DESC LIMIT ?", [limit.into()]);
        let rows = sql.fetch_all(&self.inner.pool).await.map_err(failed)?;
        rows.iter().map(change_of).collect()
    }

    /// The number of the last change.
    pub(crate) async fn last_change(&self) -> Result<i64, DatabaseError> {
        let row = sqlx::query("SELECT change FROM rl_changes");
        let row = row.fetch_one(&self.inner.pool).await.map_err(failed)?;
        row.try_get(0).map_err(failed)
    }

    /// What changed after the change of number `last`.
    pub(crate) async fn changes_since(&self, last: i64) -> Result<Since, DatabaseError> {
        let mut sql = Sql::new("SELECT change, kind, owner FROM rl_history WHERE");
        sql.push(" change > ? ORDER BY change LIMIT ?", [last.into(), (MOST + 1).into()]);
        let rows = sql.fetch_all(&self.inner.pool).await.map_err(failed)?;
        if rows.len() as i64 > MOST {
            return Ok(Since::TooMany(self.last_change().await?));
        }
        let mut newest = last;
        let mut changes = Vec::with_capacity(rows.len());
        for row in rows {
            newest = row.try_get("change").map_err(failed)?;
            let kind: String = row.try_get("kind").map_err(failed)?;
            // A kind that a later version of this crate writes is nothing that is kept here.
            if let Some(kind) = Kind::from_name(&kind) {
                changes.push((kind, row.try_get("owner").map_err(failed)?));
            }
        }
        Ok(Since::Changes(changes, newest))
    }
}

fn change_of<T: Stored>(row: &AnyRow) -> Result<Change<T>, DatabaseError> {
    let content = |column: &str| {
        let text: Option<String> = row.try_get(column).map_err(failed)?;
        let parse = |text: String| T::from_json(&serde_json::from_str(&text).ok()?);
        let parsed =
            text.map(|text| parse(text).ok_or_else(|| DatabaseError::new(FailureKind::Corrupt)));
        parsed.transpose()
    };
    Ok(Change {
        number: row.try_get("change").map_err(failed)?,
        item: row.try_get("item").map_err(failed)?,
        at: time_of(row, "changed_at").map_err(failed)?,
        by: row.try_get("changed_by").map_err(failed)?,
        before: content("before")?,
        after: content("after")?,
    })
}
