use rl_core::FailureKind;

use crate::DatabaseError;

/// What a failure of the driver means.
pub(super) fn failed(error: sqlx::Error) -> DatabaseError {
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
    // Of a URL that cannot be read, the driver may show parts: of a password, for example.
    match error {
        sqlx::Error::Configuration(_) => DatabaseError::new(kind),
        error => DatabaseError::new(kind).with_source(error),
    }
}

/// By SQLSTATE, or by the primary code of SQLite in the low byte.
fn kind_of_code(code: &str) -> FailureKind {
    if code.len() == 5 {
        // Connection, transaction, resources, objects in use, intervention of an operator, system.
        return match &code[..2] {
            "08" | "25" | "40" | "53" | "55" | "57" | "58" => FailureKind::Unavailable,
            "28" | "3D" => FailureKind::Refused,
            _ if code == "42501" => FailureKind::Refused,
            _ => FailureKind::Protocol,
        };
    }
    match code.parse::<u32>().unwrap_or_default() & 0xff {
        // Busy, locked, input and output, full, cannot open.
        5 | 6 | 10 | 13 | 14 => FailureKind::Unavailable,
        // Permission, read only.
        3 | 8 | 23 => FailureKind::Refused,
        // Corrupt, not a database.
        11 | 26 => FailureKind::Corrupt,
        _ => FailureKind::Protocol,
    }
}
