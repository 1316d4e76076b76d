use rl_core::FailureKind;
use rl_core::time::Timestamp;
use sqlx::Row;
use sqlx::any::AnyRow;

use super::connections::Place;
use super::failure::failed;
use super::sql::{Sql, Statement};
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
        place: impl Place,
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
        .on(place)
        .await?;
        Ok(())
    }
}

/// The last change that was seen: its number, and its line of the history if there is one.
///
/// A number alone does not tell whether the database went back meanwhile (to a replica that had not
/// heard of everything, to a file of yesterday) and has come as far again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Mark {
    number: i64,
    line: Option<(String, i64)>,
}

/// What happened since a change.
#[derive(Debug)]
pub(crate) enum Since {
    /// These, up to this one.
    Changes(Vec<(Kind, String)>, Mark),
    /// More than can be told one by one, or what was seen before is not there any more.
    Unknown,
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
        let rows = sql.on(&self.inner.reads).await?;
        rows.iter().map(change_of).collect()
    }

    /// The last change.
    pub(crate) async fn last_change(&self) -> Result<Mark, DatabaseError> {
        let query = "SELECT c.change, h.item, h.changed_at FROM rl_changes c \
                     LEFT JOIN rl_history h ON h.change = c.change";
        let rows = sqlx::query(query).on(&self.inner.look_ups).await?;
        let row = rows.first().ok_or_else(|| DatabaseError::new(FailureKind::Corrupt))?;
        mark_of(row)
    }

    /// What changed after the change `last`.
    pub(crate) async fn changes_since(&self, last: &Mark) -> Result<Since, DatabaseError> {
        let mut sql =
            Sql::new("SELECT change, kind, owner, item, changed_at FROM rl_history WHERE");
        sql.push(" change >= ? ORDER BY change LIMIT ?", [last.number.into(), (MOST + 2).into()]);
        let rows = sql.on(&self.inner.look_ups).await?;
        if rows.len() as i64 > MOST + 1 {
            return Ok(Since::Unknown);
        }
        let mut rows = rows.iter();
        if last.line.is_some() && rows.next().map(mark_of).transpose()?.as_ref() != Some(last) {
            return Ok(Since::Unknown);
        }
        let mut newest = last.clone();
        let mut changes = Vec::with_capacity(rows.len());
        for row in rows {
            let mark = mark_of(row)?;
            // Every change has a line: some were deleted, or that of the last came back.
            if mark.number != newest.number + 1 {
                return Ok(Since::Unknown);
            }
            newest = mark;
            let kind: String = row.try_get("kind").map_err(failed)?;
            // A kind that a later version of this crate writes is nothing that is kept here.
            if let Some(kind) = Kind::from_name(&kind) {
                changes.push((kind, row.try_get("owner").map_err(failed)?));
            }
        }
        if newest.line.is_none() && self.last_change().await? != newest {
            return Ok(Since::Unknown);
        }
        Ok(Since::Changes(changes, newest))
    }
}

fn mark_of(row: &AnyRow) -> Result<Mark, DatabaseError> {
    let item: Option<String> = row.try_get("item").map_err(failed)?;
    let at: Option<i64> = row.try_get("changed_at").map_err(failed)?;
    Ok(Mark { number: row.try_get("change").map_err(failed)?, line: item.zip(at) })
}

pub(super) fn change_of<T: Stored>(row: &AnyRow) -> Result<Change<T>, DatabaseError> {
    Ok(Change {
        number: row.try_get("change").map_err(failed)?,
        item: row.try_get("item").map_err(failed)?,
        at: time_of(row, "changed_at").map_err(failed)?,
        by: row.try_get("changed_by").map_err(failed)?,
        before: content_of(row, "before")?,
        after: content_of(row, "after")?,
    })
}

/// Returns what a column holds as JSON, if it holds anything.
pub(super) fn content_of<T: Stored>(
    row: &AnyRow,
    column: &str,
) -> Result<Option<T>, DatabaseError> {
    let text: Option<String> = row.try_get(column).map_err(failed)?;
    let parse = |text: String| T::from_json(&serde_json::from_str(&text).ok()?);
    text.map(|text| parse(text).ok_or_else(|| DatabaseError::new(FailureKind::Corrupt))).transpose()
}
