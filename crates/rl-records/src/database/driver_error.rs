use std::io::ErrorKind;

use rl_core::FailureKind;

use sqlx::error::DatabaseError as DriverError;
use sqlx::mysql::MySqlDatabaseError;

use crate::error::DatabaseError;

/// Converts an error of the database driver.
pub(super) fn database_error(error: sqlx::Error) -> DatabaseError {
    let kind = match &error {
        sqlx::Error::Database(error) => kind_of(&**error),
        sqlx::Error::PoolTimedOut => FailureKind::TimedOut,
        // The handshake of TLS reports a certificate that is not trusted as invalid data.
        sqlx::Error::Io(why) if why.kind() == ErrorKind::InvalidData => FailureKind::Refused,
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
/// of servers are omitted, because they may name the user.
fn detail(error: &sqlx::Error) -> Option<String> {
    match error {
        sqlx::Error::Io(why) => Some(why.to_string()),
        sqlx::Error::Database(why) => {
            if let Some(number) = mysql_number(&**why) {
                let why = match number {
                    1045 | 1698 => "the login was refused",
                    1049 => "no database of this name",
                    1044 | 1142 | 1143 | 1227 => "a permission is missing",
                    1040 | 1203 | 1226 => "out of resources",
                    1205 => "another transaction holds a lock",
                    _ => "see the server's manual",
                };
                return Some(format!("MySQL error {number}, {why}"));
            }
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
        // Without TLS, some logins of MySQL encrypt the password with RSA. The driver is built
        // without it, because of its timing.
        sqlx::Error::Configuration(why) if why.to_string().starts_with("RSA auth") => {
            Some("the login requires TLS".to_owned())
        }
        sqlx::Error::Configuration(_) => Some("the URL cannot be read".to_owned()),
        sqlx::Error::Tls(_) => Some("the TLS connection is not trusted".to_owned()),
        sqlx::Error::PoolClosed => Some("the connections are closed".to_owned()),
        _ => None,
    }
}

fn kind_of(error: &dyn DriverError) -> FailureKind {
    match mysql_number(error) {
        Some(number) => kind_of_number(number),
        None => kind_of_code(error.code().as_deref().unwrap_or_default()),
    }
}

/// Returns the number of an error of MySQL or MariaDB. Their SQLSTATE is too coarse: for a lock
/// that is not released it is the same as for a syntax error in a function.
fn mysql_number(error: &dyn DriverError) -> Option<u16> {
    error.try_downcast_ref::<MySqlDatabaseError>().map(MySqlDatabaseError::number)
}

/// Returns the kind of failure of an error of MySQL or MariaDB.
fn kind_of_number(number: u16) -> FailureKind {
    match number {
        // The server or the node of its cluster starts or stops, has too many connections, closed
        // this one, or has blocked the host.
        1040 | 1047 | 1053 | 1080 | 1129 | 1152..=1161 | 1203 | 1226 | 1317 | 1927 | 4031 => {
            FailureKind::Unavailable
        }
        // Its memory or disk is full, or it only reads, as after a fail-over.
        1021 | 1037 | 1038 | 1041 | 1114 | 1290 | 1792 | 1836 => FailureKind::Unavailable,
        // A lock is not released, a deadlock, a row that changed meanwhile, or a time limit.
        1020 | 1205 | 1213 | 1969 | 3024 => FailureKind::Unavailable,
        // The login, the database or a permission.
        1044 | 1045 | 1049 | 1130 | 1142 | 1143 | 1227 | 1698 | 1820 | 1862 | 3118 | 4151 => {
            FailureKind::Refused
        }
        _ => FailureKind::Protocol,
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
