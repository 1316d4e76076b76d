//! Finds the changes of other instances, by reading the history from a known position on.

use rl_core::FailureKind;
use sqlx::Row;
use sqlx::any::AnyRow;

use super::connections::Runner;
use super::driver_error::database_error;
use super::handle::Database;
use super::kind::Kind;
use super::row::{number, optional_text, text};
use super::statement::Sql;
use crate::error::DatabaseError;

/// The maximum number of changes that one poll reads. If there are more, all caches are
/// invalidated.
const MAX_CHANGES: i64 = 1_000;

/// A position in the log of changes: the number of the last change that was read, and its row.
///
/// The number alone is not enough. A database that went back to an earlier state, such as a backup,
/// may have reached the same number again with other changes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Position {
    number: i64,
    // The item and the time of the last change. `None` if there has been no change yet.
    row: Option<(String, i64)>,
}

impl Position {
    /// Returns whether the position belongs to a later change than `other`.
    pub(crate) const fn is_after(&self, other: &Self) -> bool {
        self.number > other.number
    }
}

/// The changes after a position.
#[derive(Debug)]
pub(crate) enum ChangesSince {
    /// The changes are known: the kind and the owner of each, and the position of the newest
    /// change.
    Known(Vec<(Kind, String)>, Position),
    /// The changes are unknown: there are too many, or the log no longer contains the position.
    Unknown,
}

/// Returns the current end of the log.
pub(crate) async fn last_change(database: &Database) -> Result<Position, DatabaseError> {
    end_of_log(&database.lookups).await
}

/// Returns the current end of the log, as `runner` reads it.
pub(super) async fn end_of_log(runner: impl Runner) -> Result<Position, DatabaseError> {
    let query = "SELECT c.\"change\", h.item, h.changed_at FROM rl_changes c \
                 LEFT JOIN rl_history h ON h.\"change\" = c.\"change\"";
    let rows = Sql::new(query).on(runner).await?;
    let row = rows.first().ok_or_else(|| DatabaseError::new(FailureKind::Corrupt))?;
    position(row)
}

/// Returns the changes after `last`. They are unknown if the log does not contain `seen`, an end of
/// the log that was read before.
pub(crate) async fn changes_since(
    database: &Database,
    last: &Position,
    seen: Option<&Position>,
) -> Result<ChangesSince, DatabaseError> {
    let contradicts =
        |found: &Position| seen.is_some_and(|seen| seen.number == found.number && seen != found);
    if contradicts(last) {
        return Ok(ChangesSince::Unknown);
    }
    let mut sql =
        Sql::new("SELECT \"change\", kind, owner, item, changed_at FROM rl_history WHERE");
    let values = [last.number.into(), (MAX_CHANGES + 2).into()];
    sql.push(" \"change\" >= ? ORDER BY \"change\" LIMIT ?", values);
    let rows = sql.on(&database.lookups).await?;
    if rows.len() as i64 > MAX_CHANGES + 1 {
        return Ok(ChangesSince::Unknown);
    }
    let mut rows = rows.iter();
    if last.row.is_some() && rows.next().map(position).transpose()?.as_ref() != Some(last) {
        return Ok(ChangesSince::Unknown);
    }
    let mut newest = last.clone();
    let mut changes = Vec::with_capacity(rows.len());
    for row in rows {
        let position = position(row)?;
        // Every change has a row. A gap means that rows were deleted, or that the database went
        // back to an earlier state.
        if position.number != newest.number + 1 || contradicts(&position) {
            return Ok(ChangesSince::Unknown);
        }
        newest = position;
        // A later version of this crate may write other kinds. This version caches nothing of those
        // kinds.
        if let Some(kind) = Kind::from_name(&text(row, "kind")?) {
            changes.push((kind, text(row, "owner")?));
        }
    }
    let is_behind = seen.is_some_and(|seen| seen.is_after(&newest));
    if is_behind || newest.row.is_none() && last_change(database).await? != newest {
        return Ok(ChangesSince::Unknown);
    }
    Ok(ChangesSince::Known(changes, newest))
}

fn position(row: &AnyRow) -> Result<Position, DatabaseError> {
    let item = optional_text(row, "item")?;
    let changed_at: Option<i64> = row.try_get("changed_at").map_err(database_error)?;
    Ok(Position { number: number(row, "change")?, row: item.zip(changed_at) })
}
