//! Adds usage to the tables, and deletes old rows.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use rl_core::FailureKind;
use sqlx::Executor;

use super::connections::within;
use super::dialect::Dialect;
use super::driver_error::database_error;
use super::handle::Database;
use super::row::{number, optional_text};
use super::statement::{Bound, Sql};
use crate::day::Day;
use crate::error::DatabaseError;
use crate::usage::UsageCounts;

/// The time limit for beginning a write, and again for committing it.
const TIME_LIMIT: Duration = Duration::from_secs(10);

/// The maximum number of statements that delete old rows in one call, for each realm and for the
/// months.
const DELETIONS: usize = 20;

/// Identifies a row of the days. Rows are written in this order, so that two instances that write
/// at the same time do not cause a deadlock.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct UsageKey {
    pub(crate) realm: String,
    /// The id of the subject; empty for all subjects without a row of their own.
    pub(crate) subject: String,
    pub(crate) day: Day,
    /// The name of the rule; empty in a limiter without rules.
    pub(crate) rule: String,
}

/// Adds rows to the tables, in one transaction. `number_of_write` is larger with each write of
/// `writer`. A repeated write with the same number changes nothing if the first one was committed.
pub(crate) async fn add(
    database: &Arc<Database>,
    writer: &str,
    number_of_write: i64,
    rows: &[(UsageKey, UsageCounts)],
    today: Day,
) -> Result<(), DatabaseError> {
    let dialect = database.dialect;
    let mut lease = database.edits.take().await?;
    let begin = dialect.begin();
    within(TIME_LIMIT, async { lease.execute(begin).await.map_err(database_error) }).await?;
    // This locks the row of the writer, so it waits for an earlier write that is still committing.
    let values = [writer.into(), today.number().into()];
    Sql::with(dialect.register_writer(), values).on(&mut *lease).await?;
    let last =
        Sql::with("SELECT last_write FROM rl_usage_writers WHERE writer = ?", [writer.into()]);
    let last = last.on(&mut *lease).await?;
    let last = last.first().ok_or_else(|| DatabaseError::new(FailureKind::Corrupt))?;
    if number(last, "last_write")? < number_of_write {
        insert("rl_usage_days", rows, dialect).on(&mut *lease).await?;
        let mut months = BTreeMap::<UsageKey, UsageCounts>::new();
        for (key, counts) in rows {
            let key = UsageKey { day: key.day.month(), ..key.clone() };
            *months.entry(key).or_default() += *counts;
        }
        let months: Vec<_> = months.into_iter().collect();
        insert("rl_usage_months", &months, dialect).on(&mut *lease).await?;
        let update = "UPDATE rl_usage_writers SET last_write = ? WHERE writer = ?";
        Sql::with(update, [number_of_write.into(), writer.into()]).on(&mut *lease).await?;
    }
    let commit = dialect.commit_unannounced();
    within(TIME_LIMIT, async { lease.execute(commit).await.map_err(database_error) }).await?;
    lease.put_back();
    Ok(())
}

fn insert(table: &'static str, rows: &[(UsageKey, UsageCounts)], dialect: Dialect) -> Sql {
    let whole = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
    let mut sql = Sql::new("INSERT INTO ");
    sql.push(table, []);
    sql.push(if dialect == Dialect::MySql { "" } else { " AS stored" }, []);
    sql.push(
        " (realm, subject_id, day, rule, allowed, denied, would_be_denied, units) VALUES ",
        [],
    );
    for (index, (key, counts)) in rows.iter().enumerate() {
        sql.push(if index == 0 { "" } else { ", " }, []);
        sql.push(
            "(?, ?, ?, ?, ?, ?, ?, ?)",
            [
                key.realm.as_str().into(),
                key.subject.as_str().into(),
                key.day.number().into(),
                key.rule.as_str().into(),
                whole(counts.allowed).into(),
                whole(counts.denied).into(),
                whole(counts.would_be_denied).into(),
                counts.units.into(),
            ],
        );
    }
    sql.push(dialect.add_usage(), []);
    sql
}

/// Deletes the oldest rows of days and months that ended before `first`, a limited number of them.
pub(crate) async fn delete_before(
    database: &Arc<Database>,
    first: Day,
) -> Result<(), DatabaseError> {
    let [of_days, of_months] = database.dialect.delete_usage();
    let edits = &database.edits;
    let mut realm = String::new();
    loop {
        // The index of the days begins with the realm, so that the next realm is found at once.
        let next = "SELECT MIN(realm) AS realm FROM rl_usage_days WHERE realm > ?";
        let found = Sql::with(next, [realm.as_str().into()]).on(edits).await?;
        let Some(row) = found.first() else { break };
        let Some(next) = optional_text(row, "realm")? else { break };
        realm = next;
        let days = "SELECT day FROM rl_usage_days WHERE realm = ? AND day < ? LIMIT 1";
        let values = [realm.as_str().into(), first.number().into()];
        delete_some(database, (days, of_days), values).await?;
    }
    let months = "SELECT day FROM rl_usage_months WHERE day < ? LIMIT 1";
    delete_some(database, (months, of_months), [first.month().number().into()]).await?;
    let writers = "DELETE FROM rl_usage_writers WHERE day < ?";
    Sql::with(writers, [first.number().into()]).on(edits).await?;
    Ok(())
}

/// Deletes rows in small batches, until there are none or a limit is reached. `find` selects one of
/// them.
async fn delete_some<const N: usize>(
    database: &Arc<Database>,
    (find, delete): (&'static str, &'static str),
    values: [Bound; N],
) -> Result<(), DatabaseError> {
    for _ in 0..DELETIONS {
        if Sql::with(find, values.clone()).on(&database.edits).await?.is_empty() {
            break;
        }
        Sql::with(delete, values.clone()).on(&database.edits).await?;
    }
    Ok(())
}
