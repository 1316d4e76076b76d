use rl_core::FailureKind;
use sqlx::any::AnyRow;

use super::connections::Runner;
use super::kind::Kind;
use super::row::{micros, number, optional_text, text, time};
use super::statement::{Sql, without_nul};
use super::transaction::Transaction;
use crate::error::DatabaseError;
use crate::history::{Change, HistoryQuery, HistoryValue};

/// The description of a change, for its row in the history.
pub(super) struct HistoryRow<'a> {
    pub(super) change: i64,
    pub(super) kind: Kind,
    pub(super) owner: &'a str,
    pub(super) item: &'a str,
    pub(super) by: &'a str,
}

/// Writes the history row of a change.
pub(super) async fn write<T: HistoryValue>(
    transaction: &mut Transaction,
    row: HistoryRow<'_>,
    before: Option<&T>,
    after: Option<&T>,
) -> Result<(), DatabaseError> {
    let json = |content: Option<&T>| content.map(|content| content.to_json().to_string());
    let insert = Sql::with(
        "INSERT INTO rl_history (\"change\", kind, owner, item, changed_at, changed_by, \"before\", \
         \"after\") VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
        [
            row.change.into(),
            row.kind.as_str().into(),
            row.owner.into(),
            row.item.into(),
            micros(transaction.now()).into(),
            row.by.into(),
            json(before).into(),
            json(after).into(),
        ],
    );
    insert.on(&mut **transaction).await?;
    Ok(())
}

/// Lists the changes of these kinds, the newest first.
pub(super) async fn list<T: HistoryValue>(
    runner: impl Runner,
    kinds: &[Kind],
    query: &HistoryQuery,
) -> Result<Vec<Change<T>>, DatabaseError> {
    let mut sql = Sql::new("SELECT * FROM rl_history WHERE");
    match kinds {
        // No database orders the rows of several kinds by an index.
        [kind] => sql.push(" kind = ?", [kind.as_str().into()]),
        _ => {
            sql.push(" kind", []);
            sql.push_list(kinds.iter().map(|kind| kind.as_str()));
        }
    }
    for (part, value) in [(" AND owner = ?", &query.owner), (" AND item = ?", &query.item)] {
        if let Some(value) = value {
            sql.push(part, [without_nul(value).into()]);
        }
    }
    if let Some(before) = query.before {
        sql.push(" AND \"change\" < ?", [before.into()]);
    }
    let limit = i64::from(query.limit.clamp(1, 1_000));
    sql.push(" ORDER BY \"change\" DESC LIMIT ?", [limit.into()]);
    sql.on(runner).await?.iter().map(change).collect()
}

/// Reads a change from its history row.
pub(super) fn change<T: HistoryValue>(row: &AnyRow) -> Result<Change<T>, DatabaseError> {
    Ok(Change {
        number: number(row, "change")?,
        item: text(row, "item")?,
        at: time(row, "changed_at")?,
        by: text(row, "changed_by")?,
        before: content(row, "before")?,
        after: content(row, "after")?,
    })
}

/// Reads the JSON of a column that may be NULL.
pub(super) fn content<T: HistoryValue>(
    row: &AnyRow,
    column: &str,
) -> Result<Option<T>, DatabaseError> {
    let parse = |text: String| T::from_json(&serde_json::from_str(&text).ok()?);
    let corrupt = || DatabaseError::new(FailureKind::Corrupt);
    optional_text(row, column)?.map(|text| parse(text).ok_or_else(corrupt)).transpose()
}
