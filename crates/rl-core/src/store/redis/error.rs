//! From the client library's errors to ours: which kind, and nothing secret.

use redis::{ErrorKind, RedisError};

use crate::FailureKind;
use crate::store::StoreError;

pub(super) fn is_unknown_script(error: &RedisError) -> bool {
    error.code() == Some("NOSCRIPT")
}

/// Whether the server is no primary any more: another has taken its place, to which a new connection
/// may lead.
pub(super) fn is_demoted(error: &RedisError) -> bool {
    matches!(code(error).as_deref(), Some("READONLY" | "MASTERDOWN"))
        || error.to_string().contains("READONLY")
}

/// Whether the user may not run the command.
pub(super) fn is_forbidden(error: &RedisError) -> bool {
    code(error).as_deref() == Some("NOPERM")
}

pub(super) fn classify(error: RedisError) -> StoreError {
    #[cfg(feature = "redis-tls")]
    if let Some((kind, detail)) = super::tls::failure(&error) {
        return StoreError::new(kind).with_detail(detail);
    }
    let code = code(&error);
    StoreError::new(kind(&error, code.as_deref())).with_detail(detail(&error, code.as_deref()))
}

/// The server's code for what went wrong; of a pipeline, such as the one that greets a server, the
/// first.
fn code(error: &RedisError) -> Option<String> {
    if let Some(code) = error.code() {
        return Some(code.to_owned());
    }
    let errors = error.clone().into_server_errors()?;
    errors.first().map(|(_, error)| error.code().to_owned())
}

fn kind(error: &RedisError, code: Option<&str>) -> FailureKind {
    // What goes wrong inside a script comes wrapped in a text, more or less so in each version.
    let says = |word: &str| error.to_string().contains(word);
    match code {
        Some("NOAUTH" | "WRONGPASS" | "NOPERM") => return FailureKind::Refused,
        Some("WRONGTYPE" | "RLCORRUPT") => return FailureKind::Corrupt,
        // NOSCRIPT comes here only if the scripts are flushed faster than they are loaded.
        Some(
            "LOADING" | "MASTERDOWN" | "TRYAGAIN" | "CLUSTERDOWN" | "BUSY" | "READONLY" | "OOM"
            | "MISCONF" | "NOREPLICAS" | "UNKILLABLE" | "NOSCRIPT",
        ) => return FailureKind::Unavailable,
        Some(_) if says("can't run this command") => return FailureKind::Refused,
        Some(_) if is_about_database(error) && says("permission") => return FailureKind::Refused,
        Some(_) if says("WRONGTYPE") || says("RLCORRUPT") => return FailureKind::Corrupt,
        Some(_) if says("max number of clients") => return FailureKind::Unavailable,
        Some(_) => return FailureKind::Protocol,
        None => {}
    }
    match error.kind() {
        _ if error.is_timeout() => FailureKind::TimedOut,
        ErrorKind::AuthenticationFailed | ErrorKind::InvalidClientConfig => FailureKind::Refused,
        ErrorKind::Io => FailureKind::Unavailable,
        _ if error.is_unrecoverable_error() => FailureKind::Unavailable,
        _ => FailureKind::Protocol,
    }
}

/// The server's code or the kind of the failure: not its text, which may quote what was sent.
fn detail(error: &RedisError, code: Option<&str>) -> String {
    match code {
        Some(_) if is_about_database(error) => no_database(error).to_owned(),
        Some(code) => format!("Redis answered {code}"),
        None if error.is_connection_refusal() => "the connection was refused".to_owned(),
        None if error.is_connection_dropped() => "the connection was lost".to_owned(),
        None => error.category().to_owned(),
    }
}

/// Whether a new connection could not change to the database of the URL: the library reports that in
/// words of its own, and without the server's code.
fn is_about_database(error: &RedisError) -> bool {
    error.to_string().contains("refused to switch database")
}

/// What the server has against the database of the URL. In our words: its own may name the user.
fn no_database(error: &RedisError) -> &'static str {
    let says = |word: &str| error.to_string().contains(word);
    if says("out of range") {
        "Redis has no database of the number in the URL"
    } else if says("permission") {
        "the user may not select the database of the URL (+select)"
    } else {
        "Redis does not change to the database of the URL"
    }
}
