use rl_core::FailureKind;

use crate::error::DatabaseError;

/// Converts an error of the database driver.
pub(super) fn database_error(error: sqlx::Error) -> DatabaseError {
    let kind = match &error {
        sqlx::Error::Database(error) => kind_of_code(error.code().as_deref().unwrap_or_default()),
        sqlx::Error::PoolTimedOut => FailureKind::TimedOut,
        sqlx::Error::Io(_)
        | sqlx::Error::PoolClosed
        | sqlx::Error::WorkerCrashed
        | sqlx::Error::BeginFailed => FailureKind::Unavailable,
        sqlx::Error::Tls(_) => FailureKind::Refused,
        sqlx::Error::ColumnDecode { .. } | sqlx::Error::Decode(_) => FailureKind::Corrupt,
        _ => FailureKind::Protocol,
    };
    let converted = DatabaseError::new(kind);
    let converted = match detail(&error) {
        Some(detail) => converted.with_detail(detail),
        None => converted,
    };
    // The driver's text about an invalid URL may quote parts of it, such as the password.
    match error {
        sqlx::Error::Configuration(_) => converted,
        error => converted.with_source(error),
    }
}

/// Returns the cause of an error as a text, or `None` if the driver does not report one. Messages
/// of PostgreSQL are omitted, because they may name the user.
fn detail(error: &sqlx::Error) -> Option<String> {
    match error {
        sqlx::Error::Io(why) => Some(why.to_string()),
        sqlx::Error::Database(why) => {
            let code = why.code().unwrap_or_default();
            if code.len() != 5 {
                return Some(why.message().to_owned());
            }
            let why = match &code[..2] {
                "28" => "the login was refused",
                "3D" => "no database of this name",
                "53" => "out of resources",
                _ if code == "42501" => "a permission is missing",
                _ => "see the server's log",
            };
            Some(format!("PostgreSQL error {code}, {why}"))
        }
        sqlx::Error::Configuration(_) => Some("the URL cannot be read".to_owned()),
        sqlx::Error::Tls(_) => Some("the TLS connection is not trusted".to_owned()),
        sqlx::Error::PoolClosed => Some("the connections are closed".to_owned()),
        _ => None,
    }
}

/// Returns the kind of failure of an SQLSTATE, or of an error code of SQLite. The low byte of a
/// code of SQLite is its primary code.
fn kind_of_code(code: &str) -> FailureKind {
    if code.len() == 5 {
        // SQLSTATE classes of failures that may pass: connection (08), transaction (25, 40), lack
        // of resources (53), object in use (55), intervention of an operator (57), and system (58).
        return match &code[..2] {
            "08" | "25" | "40" | "53" | "55" | "57" | "58" => FailureKind::Unavailable,
            "28" | "3D" => FailureKind::Refused,
            _ if code == "42501" => FailureKind::Refused,
            _ => FailureKind::Protocol,
        };
    }
    match code.parse::<u32>().unwrap_or_default() & 0xff {
        // SQLite is busy, locked or full, cannot read or write, or cannot open the file.
        5 | 6 | 10 | 13 | 14 => FailureKind::Unavailable,
        // SQLite denies the permission, or the file is read-only.
        3 | 8 | 23 => FailureKind::Refused,
        // The file is damaged, or is not a database.
        11 | 26 => FailureKind::Corrupt,
        _ => FailureKind::Protocol,
    }
}
