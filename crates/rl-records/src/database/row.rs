use rl_core::FailureKind;
use rl_core::time::Timestamp;
use sqlx::Row;
use sqlx::any::AnyRow;

use super::driver_error::database_error;
use super::statement::Bound;
use crate::error::DatabaseError;
use crate::limits::{CallLimits, CallPeriod};

/// The columns of the six limits, ordered by their periods, the shortest first.
pub(super) const LIMIT_COLUMNS: [&str; 6] = [
    CallPeriod::ALL[0].field(),
    CallPeriod::ALL[1].field(),
    CallPeriod::ALL[2].field(),
    CallPeriod::ALL[3].field(),
    CallPeriod::ALL[4].field(),
    CallPeriod::ALL[5].field(),
];

/// Returns the values of [`LIMIT_COLUMNS`].
pub(super) fn limit_values(limits: &CallLimits) -> [Bound; 6] {
    limits.numbers().map(Bound::from)
}

/// Reads [`LIMIT_COLUMNS`].
pub(super) fn limits(row: &AnyRow) -> Result<CallLimits, DatabaseError> {
    let mut numbers = [0; 6];
    for (column, value) in LIMIT_COLUMNS.into_iter().zip(&mut numbers) {
        *value = number(row, column)?;
    }
    CallLimits::from_numbers(numbers).map_err(|_| DatabaseError::new(FailureKind::Corrupt))
}

pub(super) fn text(row: &AnyRow, column: &str) -> Result<String, DatabaseError> {
    row.try_get(column).map_err(database_error)
}

pub(super) fn optional_text(row: &AnyRow, column: &str) -> Result<Option<String>, DatabaseError> {
    row.try_get(column).map_err(database_error)
}

pub(super) fn number(row: &AnyRow, column: &str) -> Result<i64, DatabaseError> {
    row.try_get(column).map_err(database_error)
}

pub(super) fn time(row: &AnyRow, column: &str) -> Result<Timestamp, DatabaseError> {
    let micros = number(row, column)?;
    Ok(Timestamp::from_micros(micros.try_into().unwrap_or_default()))
}

/// Returns the number that represents a time in the tables.
pub(super) fn micros(time: Timestamp) -> i64 {
    i64::try_from(time.as_micros()).unwrap_or(i64::MAX)
}
