//! Errors: the reasons why a store cannot be created, and the kinds of failures of the client
//! library.

use std::error::Error;
use std::fmt;
use std::sync::Arc;

use redis::{ErrorKind, RedisError};

use crate::model::{FailureKind, StoreError, TOO_MANY_STATES};

/// The reason why a [`RedisStore`](super::RedisStore) cannot be created.
///
/// The text contains no password and no key. It shows only the scheme of a URL.
#[non_exhaustive]
pub enum ConnectError {
    /// The URL is not that of a store on Redis.
    Url {
        /// The URL's scheme.
        shown: String,
        /// The problem with the URL.
        why: String,
    },
    /// The URL needs a feature of this crate that is not enabled.
    Feature {
        /// The part of the URL that needs the feature.
        what: &'static str,
        /// The feature's name.
        feature: &'static str,
    },
    /// The URLs of sentinels or of a cluster contradict each other.
    Servers {
        /// The problem with the URLs.
        why: &'static str,
    },
    /// A certificate or a key cannot be used.
    Certificate {
        /// The problem with the certificate or the key.
        why: String,
    },
    /// The prefix contains characters that are not allowed, or is too long.
    Prefix {
        /// The prefix.
        prefix: String,
    },
    /// The prefix of the readable layout does not end in a separator.
    PrefixWithoutSeparator {
        /// The prefix.
        prefix: String,
    },
    /// The number of connections is zero.
    ZeroConnections,
    /// The setting of slot groups does not fit the servers or the layout.
    SlotGroups {
        /// The problem with the setting.
        why: &'static str,
    },
    /// A time limit is zero.
    ZeroDuration {
        /// The setting's name.
        setting: &'static str,
    },
    /// The server refuses the login, for example because of a wrong password.
    Refused(StoreError),
}

debug_as_display!(ConnectError);

impl fmt::Display for ConnectError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Url { shown, why } => {
                write!(f, "Redis URL {shown:?}: {why}; expected {}", expected_form(shown))
            }
            Self::Feature { what, feature } => {
                write!(f, "{what} needs feature `{feature}` of rl-core, which is not enabled")
            }
            Self::Servers { why } | Self::SlotGroups { why } => f.write_str(why),
            Self::Certificate { why } => f.write_str(why),
            Self::Prefix { prefix } => write!(
                f,
                "key prefix {prefix:?}: expected up to 32 characters of A-Z a-z 0-9 _ . -"
            ),
            Self::PrefixWithoutSeparator { prefix } => write!(
                f,
                "key prefix {prefix:?} of the readable layout: expected one that ends in . _ - or :, \
                 so that {:?} and ids cannot run together",
                format!("{prefix}.")
            ),
            Self::ZeroConnections => f.write_str("connections must be at least 1"),
            Self::ZeroDuration { setting } => write!(f, "{setting} must be greater than zero"),
            Self::Refused(error) => error.fmt(f),
        }
    }
}

/// Returns the form of URLs with this scheme.
fn expected_form(scheme: &str) -> &'static str {
    match scheme.split_once('-') {
        Some((_, "sentinel://…")) => {
            "redis-sentinel://[user:password@]host[:port],…[/database][?sentinel_password=…]#NAME, or \
             rediss-sentinel:// for TLS"
        }
        Some((_, "cluster://…")) => {
            "redis-cluster://[user:password@]host[:port],…, or rediss-cluster:// for TLS"
        }
        _ => {
            "redis://[user:password@]host[:port][/database], or rediss:// for TLS; or \
             redis-sentinel:// or redis-cluster:// with several hosts"
        }
    }
}

impl Error for ConnectError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::Refused(error) => error.source(),
            _ => None,
        }
    }
}

/// Returns whether the server does not know the script. In that case nothing was executed.
pub(super) fn is_unknown_script(error: &RedisError) -> bool {
    error.code() == Some("NOSCRIPT")
}

/// Returns whether the server has become a replica. A new connection may lead to the primary.
pub(super) fn is_demoted(error: &RedisError) -> bool {
    matches!(code(error).as_deref(), Some("READONLY" | "MASTERDOWN"))
}

/// Returns whether the user lacks the permission for the command.
pub(super) fn is_forbidden(error: &RedisError) -> bool {
    code(error).as_deref() == Some("NOPERM")
}

/// Converts an error of the client library. The result contains no text from the server, because
/// such a text may quote the command.
pub(super) fn classify(error: RedisError) -> StoreError {
    #[cfg(feature = "redis-tls")]
    if let Some((kind, detail)) = io_error(&error).and_then(tls::classify) {
        return StoreError::new(kind).with_detail(detail);
    }
    let code = code(&error);
    let code = code.as_deref();
    let kind = kind(&error, code);
    let classified = StoreError::new(kind).with_detail(detail(&error, kind, code));
    // Redis replies with these errors before a script runs, or at its first write, so nothing was
    // changed. After the first write of a script, Redis lets all others pass, even if its memory is
    // full.
    let is_refused =
        kind == FailureKind::OutOfMemory || code.is_some_and(|code| UNAVAILABLE.contains(&code));
    if is_refused { classified.before_execution() } else { classified }
}

/// Returns the code of an error reply. For a pipeline, it is the code of the first command that
/// failed.
fn code(error: &RedisError) -> Option<String> {
    if let Some(code) = error.code() {
        let code_in_script = error.detail().and_then(code_in_script);
        return Some(code_in_script.unwrap_or(code).to_owned());
    }
    let errors = error.clone().into_server_errors()?;
    let (_, error) = errors.first()?;
    let code_in_script = error.details().and_then(code_in_script);
    Some(code_in_script.unwrap_or(error.code()).to_owned())
}

/// Returns the code with which a command failed in a script. Before Redis 7, the reply has the code
/// `ERR`, and this text: "Error running script (call to f_…): @user_script:1: -OOM command not …".
fn code_in_script(text: &str) -> Option<&str> {
    let (_, error) = text.strip_prefix("Error running script")?.split_once(": -")?;
    error.split(' ').next()
}

/// The codes of conditions that can end without intervention.
///
/// `NOSCRIPT` is one of them, because it arrives here only if the scripts are flushed right after
/// they were loaded.
const UNAVAILABLE: [&str; 10] = [
    "LOADING",
    "MASTERDOWN",
    "TRYAGAIN",
    "CLUSTERDOWN",
    "BUSY",
    "READONLY",
    "MISCONF",
    "NOREPLICAS",
    "UNKILLABLE",
    "NOSCRIPT",
];

/// The code with which Redis rejects a write because it has reached `maxmemory`.
const OUT_OF_MEMORY: &str = "OOM";

/// The code with which `decide.lua` rejects a charge that needs too many states of one subject.
const TOO_MANY: &str = "RLFULL";

/// Returns the kind of a failure.
fn kind(error: &RedisError, code: Option<&str>) -> FailureKind {
    // Each version of Redis wraps the errors of scripts in a different text, so search the whole
    // text for known words.
    let contains = |word: &str| error.to_string().contains(word);
    match code {
        Some("NOAUTH" | "WRONGPASS" | "NOPERM") => return FailureKind::Refused,
        Some("WRONGTYPE" | "RLCORRUPT") => return FailureKind::Corrupt,
        Some(TOO_MANY) => return FailureKind::Unsupported,
        Some(OUT_OF_MEMORY) => return FailureKind::OutOfMemory,
        Some(code) if UNAVAILABLE.contains(&code) => return FailureKind::Unavailable,
        // A script may run a command that the user may not. The first text is that of Redis 6.2 and
        // 7.0, the second that of Redis 8 and of Valkey.
        Some(_) if contains("can't run this command") || contains("ACL failure in script") => {
            return FailureKind::Refused;
        }
        Some(_) if is_about_database(error) => {
            // A server that is busy or loading data rejects the change of database too. That
            // failure passes, so search for the words of lasting failures.
            let is_lasting = contains("permission") || contains("out of range");
            return if is_lasting { FailureKind::Refused } else { FailureKind::Unavailable };
        }
        Some(_) if contains(TOO_MANY) => return FailureKind::Unsupported,
        Some(_) if contains("WRONGTYPE") || contains("RLCORRUPT") => return FailureKind::Corrupt,
        Some(_) if contains("max number of clients") => return FailureKind::Unavailable,
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

/// Returns the detail of a failure: the server's code or the kind of the I/O error.
fn detail(error: &RedisError, kind: FailureKind, code: Option<&str>) -> String {
    match code {
        _ if kind == FailureKind::OutOfMemory => {
            "Redis replied OOM: it has reached maxmemory, and may evict nothing".to_owned()
        }
        Some(_) if is_about_database(error) => database_detail(error).to_owned(),
        Some(_) if error.to_string().contains(TOO_MANY) => TOO_MANY_STATES.to_owned(),
        Some(code) => format!("Redis replied {code}"),
        None if error.is_connection_refusal() => "the connection was refused".to_owned(),
        None if error.is_connection_dropped() => "the connection was lost".to_owned(),
        None => match io_error(error) {
            Some(io) if io.to_string().contains("lookup address") => {
                "the host name cannot be resolved (DNS)".to_owned()
            }
            // Only the kind is shown: the text of a system error may contain what must not be
            // logged.
            Some(io) => io.kind().to_string(),
            None => error.category().to_owned(),
        },
    }
}

/// Returns the error of the operating system that caused a failure, if there is one.
fn io_error(error: &RedisError) -> Option<&std::io::Error> {
    // The client library wraps the source of its error in an `Arc`.
    let shared = error.source()?.downcast_ref::<Arc<dyn Error + Send + Sync>>()?;
    shared.downcast_ref::<std::io::Error>()
}

/// Returns whether a new connection could not select the database of the URL.
///
/// The client library reports this failure without the server's code.
fn is_about_database(error: &RedisError) -> bool {
    error.to_string().contains("refused to switch database")
}

/// Returns why the database cannot be used. The server's own text is not used, because it may
/// contain the user's name.
fn database_detail(error: &RedisError) -> &'static str {
    let contains = |word: &str| error.to_string().contains(word);
    if contains("out of range") {
        "Redis has no database of the number in the URL"
    } else if contains("permission") {
        "the user may not select the database of the URL (+select)"
    } else {
        "Redis does not change to the database of the URL"
    }
}

#[cfg(feature = "redis-tls")]
mod tls {
    use std::io::ErrorKind;

    use tokio_rustls::rustls::{AlertDescription, CertificateError, Error};

    use crate::model::FailureKind;

    /// Returns the kind and the detail of a failure of TLS; `None` for other failures.
    pub(super) fn classify(io: &std::io::Error) -> Option<(FailureKind, &'static str)> {
        Some(match io.get_ref()?.downcast_ref::<Error>()? {
            Error::InvalidCertificate(why) => (FailureKind::Untrusted, certificate_detail(why)),
            Error::NoCertificatesPresented => {
                (FailureKind::Untrusted, "the server presented no certificate")
            }
            Error::AlertReceived(alert) => match alert {
                AlertDescription::CertificateRequired
                | AlertDescription::BadCertificate
                | AlertDescription::UnsupportedCertificate
                | AlertDescription::CertificateRevoked
                | AlertDescription::CertificateExpired
                | AlertDescription::CertificateUnknown
                | AlertDescription::UnknownCA
                | AlertDescription::AccessDenied => {
                    (FailureKind::Refused, "the server does not accept the client certificate")
                }
                AlertDescription::CloseNotify | AlertDescription::UserCanceled => return None,
                _ => (FailureKind::Protocol, "the server aborted the TLS handshake"),
            },
            _ if io.kind() == ErrorKind::InvalidData => {
                (FailureKind::Protocol, "the server does not speak a supported version of TLS")
            }
            _ => return None,
        })
    }

    /// Returns why a certificate is rejected. The library's own text is not used, because it
    /// contains host names.
    const fn certificate_detail(why: &CertificateError) -> &'static str {
        match why {
            CertificateError::UnknownIssuer => "its issuer is not known",
            CertificateError::Expired | CertificateError::ExpiredContext { .. } => "it has expired",
            CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
                "it is not valid yet"
            }
            CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
                "it is for another host name"
            }
            CertificateError::Revoked => "it was revoked",
            _ => "it is not valid",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn classified(reply: &str) -> StoreError {
        let line = format!("-{reply}\r\n");
        let value = redis::parse_redis_value(line.as_bytes()).unwrap();
        classify(value.extract_error().unwrap_err())
    }

    #[test]
    fn errors_are_classified_by_code_in_every_version() {
        use FailureKind::{Corrupt, OutOfMemory, Protocol, Refused, Unavailable, Unsupported};
        // In Redis 7 the reply begins with the code. Earlier versions wrap the code in a text.
        let script = "ERR Error running script (call to f_0123): @user_script:7:";
        for (reply, kind) in [
            ("LOADING Redis is loading the dataset in memory", Unavailable),
            ("OOM command not allowed when used memory > 'maxmemory'.", OutOfMemory),
            (&format!("{script} -OOM command not allowed when used memory"), OutOfMemory),
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
            ("ERR The user executing the script can't run this command or subcommand", Refused),
            ("ERR ACL failure in script: User rl has no permissions to run 'get'", Refused),
            (&format!("{script} The user executing the script can't run this command"), Refused),
            (&format!("{script} WRONGTYPE Operation against a key"), Corrupt),
            ("ERR unknown command 'EVALSHA'", Protocol),
        ] {
            let error = classified(reply);
            assert_eq!(error.kind(), kind, "{reply}");
            assert!(!error.to_string().contains("f_0123"), "{error}");
        }
    }

    #[test]
    fn only_replies_before_the_first_write_allow_a_repetition() {
        for (reply, is_repeatable) in [
            ("LOADING Redis is loading the dataset in memory", true),
            ("CLUSTERDOWN The cluster is down", true),
            ("READONLY You can't write against a read only replica.", true),
            ("OOM command not allowed when used memory > 'maxmemory'.", true),
            ("ERR Error running script (call to f_01): @user_script:7: -OOM not allowed", true),
            ("ERR Error running script (call to f_01): @user_script:7: -READONLY You", true),
            ("ERR Error running script (call to f_01): @user_script:7: READONLY", false),
            ("RLCORRUPT the value of a subject is damaged", false),
            ("ERR unknown command 'EVALSHA'", false),
        ] {
            assert_eq!(classified(reply).has_executed_nothing(), is_repeatable, "{reply}");
        }
        let lost = RedisError::from(std::io::Error::from(std::io::ErrorKind::ConnectionReset));
        assert!(!classify(lost).has_executed_nothing(), "the reply may have been lost");
    }
}
