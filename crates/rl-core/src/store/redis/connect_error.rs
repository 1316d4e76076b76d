use std::fmt;

use crate::model::StoreError;

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
