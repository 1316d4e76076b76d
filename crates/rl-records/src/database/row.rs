use rl_core::FailureKind;
use rl_core::time::Timestamp;
use sqlx::Row;
use sqlx::any::AnyRow;

use super::driver_error::database_error;
use crate::error::DatabaseError;
use crate::limits::Limits;

/// Reads the column of limits.
pub(super) fn limits(row: &AnyRow) -> Result<Limits, DatabaseError> {
    text(row, "limits")?.parse().map_err(|_| DatabaseError::new(FailureKind::Corrupt))
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
