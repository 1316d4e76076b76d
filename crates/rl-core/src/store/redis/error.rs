//! From the client library's errors to ours: which kind, and nothing secret.

use std::error::Error;
use std::fmt;
use std::sync::Arc;

use redis::{ErrorKind, RedisError};

use crate::model::FailureKind;
use crate::model::{StoreError, TOO_MANY_STATES};

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
    if let Some((kind, detail)) = super::connection::tls_failure(&error) {
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

/// What a server says that cannot work now.
///
/// `NOSCRIPT` comes here only if the scripts are flushed faster than they are loaded.
const UNAVAILABLE: [&str; 11] = [
    "LOADING",
    "MASTERDOWN",
    "TRYAGAIN",
    "CLUSTERDOWN",
    "BUSY",
    "READONLY",
    "OOM",
    "MISCONF",
    "NOREPLICAS",
    "UNKILLABLE",
    "NOSCRIPT",
];

/// The error code of decide.lua for a charge that needs more states of a subject than are kept.
const TOO_MANY: &str = "RLFULL";

fn kind(error: &RedisError, code: Option<&str>) -> FailureKind {
    // What goes wrong inside a script comes wrapped in a text, more or less so in each version.
    let says = |word: &str| error.to_string().contains(word);
    match code {
        Some("NOAUTH" | "WRONGPASS" | "NOPERM") => return FailureKind::Refused,
        Some("WRONGTYPE" | "RLCORRUPT") => return FailureKind::Corrupt,
        Some(TOO_MANY) => return FailureKind::Unsupported,
        Some(code) if UNAVAILABLE.contains(&code) => return FailureKind::Unavailable,
        Some(_) if says("can't run this command") => return FailureKind::Refused,
        Some(_) if is_about_database(error) => {
            // A server that is busy, or loading, refuses that as well.
            let lasts = says("permission") || says("out of range");
            return if lasts { FailureKind::Refused } else { FailureKind::Unavailable };
        }
        // Before Redis 7 the code stands in the text.
        Some("ERR") if UNAVAILABLE.iter().any(|code| says(code)) => {
            return FailureKind::Unavailable;
        }
        Some(_) if says(TOO_MANY) => return FailureKind::Unsupported,
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
        Some(_) if error.to_string().contains(TOO_MANY) => TOO_MANY_STATES.to_owned(),
        Some(code) => format!("Redis answered {code}"),
        None if error.is_connection_refusal() => "the connection was refused".to_owned(),
        None if error.is_connection_dropped() => "the connection was lost".to_owned(),
        None => match io_error(error) {
            Some(why) if why.to_string().contains("lookup address") => {
                "the host name cannot be resolved (DNS)".to_owned()
            }
            // Only the words for the kind, because the text of the system error may hold more.
            Some(why) => why.kind().to_string(),
            None => error.category().to_owned(),
        },
    }
}

/// Returns the error of the operating system beneath, if there is one.
fn io_error(error: &RedisError) -> Option<&std::io::Error> {
    // The library wraps its source in an `Arc`.
    let shared = error.source()?.downcast_ref::<Arc<dyn Error + Send + Sync>>()?;
    shared.downcast_ref::<std::io::Error>()
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

/// Why there is no [`RedisStore`](super::RedisStore).
///
/// Its text holds no password, no key and nothing of a URL but the scheme.
#[derive(Debug)]
#[non_exhaustive]
pub enum ConnectError {
    /// The URL is not one of a Redis server.
    Url {
        /// The URL's scheme.
        shown: String,
        /// What is wrong with it.
        why: String,
    },
    /// The URL needs a feature of this crate that is not enabled.
    Feature {
        /// What the URL asks for.
        what: &'static str,
        /// The feature's name.
        feature: &'static str,
    },
    /// The URLs of sentinels or of a cluster do not go together.
    Servers {
        /// What is wrong with them.
        why: &'static str,
    },
    /// A certificate or a key cannot be used.
    Certificate {
        /// What is wrong with it.
        why: String,
    },
    /// The prefix cannot stand in keys.
    Prefix {
        /// The prefix.
        prefix: String,
    },
    /// A prefix of the readable layout that does not end in a separator.
    OpenPrefix {
        /// The prefix.
        prefix: String,
    },
    /// No connection allowed.
    NoConnections,
    /// No time allowed.
    NoWait,
    /// The server refuses to work for us.
    Refused(StoreError),
}

impl fmt::Display for ConnectError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Url { shown, why } => write!(
                f,
                "Redis URL {shown:?}: {why}; expected redis://[user:password@]host[:port][/database], or \
                 rediss:// for TLS"
            ),
            Self::Feature { what, feature } => {
                write!(f, "{what} needs feature `{feature}` of rl-core, which is not enabled")
            }
            Self::Servers { why } => f.write_str(why),
            Self::Certificate { why } => f.write_str(why),
            Self::Prefix { prefix } => write!(
                f,
                "key prefix {prefix:?}: expected up to 32 characters of A-Z a-z 0-9 _ . -"
            ),
            Self::OpenPrefix { prefix } => write!(
                f,
                "key prefix {prefix:?} of the readable layout: expected one that ends in . _ - or :, \
                 so that {:?} and ids cannot run together",
                format!("{prefix}.")
            ),
            Self::NoConnections => f.write_str("0 connections: expected at least 1"),
            Self::NoWait => f.write_str("a time limit of 0: expected more than no time"),
            Self::Refused(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for ConnectError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Refused(error) => error.source(),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn classified(answer: &str) -> StoreError {
        let line = format!("-{answer}\r\n");
        let value = redis::parse_redis_value(line.as_bytes()).unwrap();
        classify(value.extract_error().unwrap_err())
    }

    #[test]
    fn what_passes_by_itself_and_what_lasts() {
        use FailureKind::{Corrupt, Protocol, Refused, Unavailable, Unsupported};
        // As Redis 7 says it, and before that, wrapped in words of its own.
        let script = "ERR Error running script (call to f_0123): @user_script:7:";
        for (answer, kind) in [
            ("LOADING Redis is loading the dataset in memory", Unavailable),
            ("OOM command not allowed when used memory > 'maxmemory'.", Unavailable),
            (&format!("{script} -OOM command not allowed when used memory"), Unavailable),
            (&format!("{script} -READONLY You can't write against a replica"), Unavailable),
            (&format!("{script} -MISCONF Redis is configured to save snapshots"), Unavailable),
            (&format!("{script} -NOREPLICAS Not enough good replicas"), Unavailable),
            (&format!("{script} attempt to index a nil value"), Protocol),
            (&format!("{script} -WRONGTYPE Operation against a key"), Corrupt),
            ("ERR max number of clients reached", Unavailable),
            ("RLFULL states of other policies still count for this subject", Unsupported),
            (&format!("{script} -RLFULL states of other policies"), Unsupported),
            ("WRONGPASS invalid username-password pair", Refused),
            ("NOPERM User rl has no permissions to run the 'get' command", Refused),
            ("ERR unknown command 'EVALSHA'", Protocol),
        ] {
            let error = classified(answer);
            assert_eq!(error.kind(), kind, "{answer}");
            assert!(!error.to_string().contains("f_0123"), "{error}");
        }
    }
}
