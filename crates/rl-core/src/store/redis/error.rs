//! From the client library's errors to ours: which kind, and nothing secret.

use redis::{ErrorKind, RedisError};

use crate::FailureKind;
use crate::store::StoreError;

pub(super) fn is_unknown_script(error: &RedisError) -> bool {
    error.code() == Some("NOSCRIPT")
}

pub(super) fn classify(error: RedisError) -> StoreError {
    StoreError::new(kind(&error)).with_detail(detail(&error))
}

fn kind(error: &RedisError) -> FailureKind {
    // Before version 7, an error inside a script came wrapped in a text of its own.
    let says = |word: &str| error.to_string().contains(word);
    match error.code() {
        Some("NOAUTH" | "WRONGPASS" | "NOPERM") => return FailureKind::Refused,
        Some("WRONGTYPE" | "RLCORRUPT") => return FailureKind::Corrupt,
        Some(
            "LOADING" | "MASTERDOWN" | "TRYAGAIN" | "CLUSTERDOWN" | "BUSY" | "READONLY" | "OOM"
            | "MISCONF" | "NOREPLICAS" | "UNKILLABLE",
        ) => return FailureKind::Unavailable,
        Some(_) if says("WRONGTYPE") || says("RLCORRUPT") => return FailureKind::Corrupt,
        Some(_) if says("max number of clients") => return FailureKind::Unavailable,
        Some(_) => return FailureKind::Protocol,
        None => {}
    }
    match error.kind() {
        _ if error.is_timeout() => FailureKind::TimedOut,
        ErrorKind::AuthenticationFailed => FailureKind::Refused,
        ErrorKind::Io => FailureKind::Unavailable,
        ErrorKind::InvalidClientConfig => FailureKind::Refused,
        _ if error.is_unrecoverable_error() => FailureKind::Unavailable,
        _ => FailureKind::Protocol,
    }
}

/// The server's code or the kind of the failure: not its text, which may quote what was sent.
fn detail(error: &RedisError) -> String {
    match error.code() {
        Some(code) => format!("Redis answered {code}"),
        None if error.is_connection_refusal() => "the connection was refused".to_owned(),
        None if error.is_connection_dropped() => "the connection was lost".to_owned(),
        None => error.category().to_owned(),
    }
}
