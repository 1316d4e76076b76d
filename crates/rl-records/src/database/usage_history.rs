use std::sync::Arc;

use sqlx::any::AnyRow;

use super::handle::Database;
use super::row::{number, text};
use super::statement::{Sql, without_nul};
use crate::day::Day;
use crate::error::DatabaseError;
use crate::usage::{
    MonthCursor, MonthPage, MonthQuery, MonthRow, UsageCounts, UsageCursor, UsageOrder, UsagePage,
    UsageQuery, UsageRow,
};

/// The calls of subjects, added up for each rule and day, as
/// [`UsageRecorder`](crate::UsageRecorder) writes them.
#[derive(Clone, Copy, Debug)]
pub struct UsageHistory<'a> {
    database: &'a Arc<Database>,
}

impl<'a> UsageHistory<'a> {
    pub(super) const fn new(database: &'a Arc<Database>) -> Self {
        Self { database }
    }

    /// Returns a page of the days.
    ///
    /// # Errors
    ///
    /// Returns an error if the database fails.
    pub async fn days(self, query: &UsageQuery) -> Result<UsagePage, DatabaseError> {
        let size = query.limit.clamp(1, 1_000) as usize;
        let is_back = query.before.is_some();
        let mut rows = Vec::new();
        for span in spans(query) {
            if rows.len() > size {
                break;
            }
            let sql = select_days(query, &span, is_back, size + 1 - rows.len());
            for row in sql.on(&self.database.reads).await? {
                rows.push(usage_row(&row)?);
            }
        }
        let (rows, has_next, has_previous) = one_page(rows, size, is_back, query.after.is_some());
        let next = rows.last().filter(|_| has_next).map(UsageCursor::of);
        let previous = rows.first().filter(|_| has_previous).map(UsageCursor::of);
        Ok(UsagePage { rows, next, previous })
    }

    /// Returns a page of the subjects of a month, each with its sums.
    ///
    /// # Errors
    ///
    /// Returns an error if the database fails.
    pub async fn month(self, query: &MonthQuery) -> Result<MonthPage, DatabaseError> {
        let size = query.limit.clamp(1, 1_000) as usize;
        let is_back = query.before.is_some();
        let mut sql = self.of_month("subject_id, ", query);
        let cursor = query.before.as_ref().or(query.after.as_ref());
        push_order(&mut sql, query.order, cursor, is_back);
        sql.push(" LIMIT ?", [(size as i64 + 1).into()]);
        let rows = sql.on(&self.database.reads).await?;
        let rows: Result<Vec<_>, DatabaseError> = rows.iter().map(month_row).collect();
        let (rows, has_next, has_previous) = one_page(rows?, size, is_back, query.after.is_some());
        let cursor = |row: &MonthRow| MonthCursor::of(row, query.order);
        let next = rows.last().filter(|_| has_next).map(cursor);
        let previous = rows.first().filter(|_| has_previous).map(cursor);
        Ok(MonthPage { rows, next, previous })
    }

    /// Returns the sums of all subjects of a month that a query selects, regardless of its page.
    ///
    /// # Errors
    ///
    /// Returns an error if the database fails.
    pub async fn sum_of_month(self, query: &MonthQuery) -> Result<UsageCounts, DatabaseError> {
        let rows = self.of_month("", query).on(&self.database.reads).await?;
        rows.first().map_or_else(|| Ok(UsageCounts::default()), counts)
    }

    fn of_month(self, columns: &'static str, query: &MonthQuery) -> Sql {
        let mut sql = Sql::new("SELECT ");
        sql.push(columns, []);
        sql.push(self.database.dialect.usage_sums(), []);
        sql.push(
            " FROM rl_usage_months WHERE day = ? AND realm = ?",
            [query.month.month().number().into(), query.realm.as_str().into()],
        );
        if let Some(search) = &query.search {
            sql.push_search(search);
        }
        push_filters(&mut sql, query.subjects.as_deref(), query.rule.as_deref());
        sql
    }
}

/// The rows of one statement. A page may continue within a subject, then within a day, and then
/// with other days. One statement could compare whole rows, but MySQL uses no index for that.
enum RowRange<'a> {
    /// The rules of the subject at the cursor.
    Subject(&'a UsageCursor),
    /// The subjects of the day at the cursor.
    Day(&'a UsageCursor),
    /// Days, both included.
    Days(Day, Day),
}

fn spans(query: &UsageQuery) -> Vec<RowRange<'_>> {
    let (from, to) = (query.from, query.to);
    match (&query.before, &query.after) {
        (Some(at), _) if at.day > to => vec![RowRange::Days(from, to)],
        (Some(at), _) => {
            let mut spans = vec![RowRange::Subject(at), RowRange::Day(at)];
            if at.day > from {
                spans.push(RowRange::Days(from, at.day.plus(-1)));
            }
            spans
        }
        (None, Some(at)) if at.day < from => vec![RowRange::Days(from, to)],
        (None, Some(at)) => {
            let mut spans = vec![RowRange::Subject(at), RowRange::Day(at)];
            if at.day < to {
                spans.push(RowRange::Days(at.day.plus(1), to));
            }
            spans
        }
        (None, None) => vec![RowRange::Days(from, to)],
    }
}

fn select_days(query: &UsageQuery, span: &RowRange<'_>, is_back: bool, limit: usize) -> Sql {
    let mut sql = Sql::with(
        "SELECT day, subject_id, rule, allowed, denied, would_be_denied, units \
         FROM rl_usage_days WHERE realm = ?",
        [query.realm.as_str().into()],
    );
    match span {
        RowRange::Subject(at) => {
            let at_subject = [at.day.number().into(), at.subject.as_str().into()];
            sql.push(" AND day = ? AND subject_id = ?", at_subject);
            let rest = if is_back { " AND rule < ?" } else { " AND rule > ?" };
            sql.push(rest, [at.rule.as_str().into()]);
        }
        RowRange::Day(at) => {
            sql.push(" AND day = ?", [at.day.number().into()]);
            let rest = if is_back { " AND subject_id < ?" } else { " AND subject_id > ?" };
            sql.push(rest, [at.subject.as_str().into()]);
        }
        RowRange::Days(from, to) => {
            sql.push(" AND day >= ? AND day <= ?", [from.number().into(), to.number().into()]);
        }
    }
    if let Some(subject) = &query.subject {
        sql.push(" AND subject_id = ?", [without_nul(subject).into()]);
    }
    push_filters(&mut sql, query.subjects.as_deref(), query.rule.as_deref());
    sql.push(
        match is_back {
            false => " ORDER BY day, realm, subject_id, rule LIMIT ?",
            true => " ORDER BY day DESC, realm DESC, subject_id DESC, rule DESC LIMIT ?",
        },
        [i64::try_from(limit).unwrap_or(i64::MAX).into()],
    );
    sql
}

fn push_filters(sql: &mut Sql, subjects: Option<&[String]>, rule: Option<&str>) {
    if let Some(subjects) = subjects {
        sql.push(" AND subject_id", []);
        sql.push_list(subjects);
    }
    if let Some(rule) = rule {
        sql.push(" AND rule = ?", [without_nul(rule).into()]);
    }
}

/// Adds the groups of a list of subjects, and its order from the cursor on.
fn push_order(sql: &mut Sql, order: UsageOrder, at: Option<&MonthCursor>, is_back: bool) {
    let subject = |at: &MonthCursor| at.subject.as_str().into();
    let (after, before, ascending, descending) = match order {
        UsageOrder::Subject => {
            if let Some(at) = at {
                let rest = if is_back { " AND subject_id < ?" } else { " AND subject_id > ?" };
                sql.push(rest, [subject(at)]);
            }
            let by = if is_back { " ORDER BY subject_id DESC" } else { " ORDER BY subject_id" };
            sql.push(" GROUP BY subject_id", []);
            return sql.push(by, []);
        }
        UsageOrder::Allowed => (
            " HAVING SUM(allowed) < ? OR (SUM(allowed) = ? AND subject_id > ?)",
            " HAVING SUM(allowed) > ? OR (SUM(allowed) = ? AND subject_id < ?)",
            " ORDER BY SUM(allowed) DESC, subject_id",
            " ORDER BY SUM(allowed), subject_id DESC",
        ),
        UsageOrder::Denied => (
            " HAVING SUM(denied) < ? OR (SUM(denied) = ? AND subject_id > ?)",
            " HAVING SUM(denied) > ? OR (SUM(denied) = ? AND subject_id < ?)",
            " ORDER BY SUM(denied) DESC, subject_id",
            " ORDER BY SUM(denied), subject_id DESC",
        ),
        UsageOrder::Units => (
            " HAVING SUM(units) < ? OR (SUM(units) = ? AND subject_id > ?)",
            " HAVING SUM(units) > ? OR (SUM(units) = ? AND subject_id < ?)",
            " ORDER BY SUM(units) DESC, subject_id",
            " ORDER BY SUM(units), subject_id DESC",
        ),
    };
    sql.push(" GROUP BY subject_id", []);
    if let Some(at) = at {
        let values = [at.number.into(), at.number.into(), subject(at)];
        sql.push(if is_back { before } else { after }, values);
    }
    sql.push(if is_back { descending } else { ascending }, []);
}

/// Cuts rows to one page, in the order of the list. Returns whether there is a next page, and
/// whether there is a previous one.
fn one_page<T>(
    mut rows: Vec<T>,
    size: usize,
    is_back: bool,
    is_after: bool,
) -> (Vec<T>, bool, bool) {
    let has_more = rows.len() > size;
    rows.truncate(size);
    if is_back {
        rows.reverse();
        // The cursor came from the next page, so that page exists.
        return (rows, true, has_more);
    }
    (rows, has_more, is_after)
}

fn non_empty(text: String) -> Option<String> {
    Some(text).filter(|text| !text.is_empty())
}

fn usage_row(row: &AnyRow) -> Result<UsageRow, DatabaseError> {
    Ok(UsageRow {
        day: Day::from_number(number(row, "day")?),
        subject: non_empty(text(row, "subject_id")?),
        rule: non_empty(text(row, "rule")?),
        counts: counts(row)?,
    })
}

fn month_row(row: &AnyRow) -> Result<MonthRow, DatabaseError> {
    Ok(MonthRow { subject: non_empty(text(row, "subject_id")?), counts: counts(row)? })
}

fn counts(row: &AnyRow) -> Result<UsageCounts, DatabaseError> {
    let count = |column| number(row, column).map(i64::unsigned_abs);
    Ok(UsageCounts {
        allowed: count("allowed")?,
        denied: count("denied")?,
        would_be_denied: count("would_be_denied")?,
        units: number(row, "units")?,
    })
}
