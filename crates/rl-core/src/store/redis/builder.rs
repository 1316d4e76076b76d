use std::fmt;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use super::command::Commands;
use super::connection::{Manager, Pool};
use super::{Inner, Layout, RedisStore};
use crate::observe;
use crate::store::StoreError;
#[cfg(feature = "conformance")]
use crate::time::ManualClock;

/// Makes a [`RedisStore`].
#[derive(Clone)]
#[must_use]
pub struct RedisStoreBuilder {
    url: String,
    layout: Layout,
    prefix: Option<String>,
    connections: u32,
    connection_wait: Duration,
    #[cfg(feature = "conformance")]
    clock: Option<Arc<ManualClock>>,
}

impl RedisStoreBuilder {
    pub(super) fn new(url: &str) -> Self {
        Self {
            url: url.to_owned(),
            layout: Layout::default(),
            prefix: None,
            connections: 4,
            connection_wait: Duration::from_millis(75),
            #[cfg(feature = "conformance")]
            clock: None,
        }
    }

    /// How counters are kept. Defaults to [`Layout::Packed`].
    pub fn layout(mut self, layout: Layout) -> Self {
        self.layout = layout;
        self
    }

    /// What every key begins with: up to 32 characters of `A-Z a-z 0-9 _ . -`. Defaults to `rl`,
    /// and to nothing in the readable layout.
    pub fn prefix(mut self, prefix: &str) -> Self {
        self.prefix = Some(prefix.to_owned());
        self
    }

    /// How many connections to hold at most. Defaults to 4: each carries the commands of many
    /// requests at once, so that more seldom help.
    pub fn connections(mut self, connections: u32) -> Self {
        self.connections = connections;
        self
    }

    /// The longest a decision waits for a connection. Defaults to 75 ms: less than the limiter's
    /// deadline, so that the failure says why there is none.
    pub fn connection_wait(mut self, wait: Duration) -> Self {
        self.connection_wait = wait;
        self
    }

    /// Decides on this clock instead of the server's: for tests that step through invented time.
    #[cfg(feature = "conformance")]
    #[cfg_attr(docsrs, doc(cfg(feature = "conformance")))]
    pub fn manual_clock(mut self, clock: Arc<ManualClock>) -> Self {
        self.clock = Some(clock);
        self
    }

    /// Checks the settings and connects.
    ///
    /// A server that cannot be reached is no error: the limiter's failure policy stands in until it
    /// comes up.
    ///
    /// # Errors
    ///
    /// Returns an error if a setting is not valid, or if the server refuses to work for us, as with
    /// a wrong password.
    pub async fn connect(self) -> Result<RedisStore, ConnectError> {
        let Self { url, layout, prefix, connections, connection_wait, .. } = self;
        let prefix = prefix.unwrap_or_else(|| match layout {
            Layout::Packed => "rl".to_owned(),
            Layout::Readable => String::new(),
        });
        let fits = |b: u8| b.is_ascii_alphanumeric() || b"_.-".contains(&b);
        if prefix.len() > 32 || !prefix.bytes().all(fits) {
            return Err(ConnectError::Prefix { prefix: prefix.chars().take(64).collect() });
        }
        if connections == 0 {
            return Err(ConnectError::NoConnections);
        }
        if connection_wait.is_zero() {
            return Err(ConnectError::NoWait);
        }
        if ["rediss", "valkeys"].contains(&scheme(&url).to_ascii_lowercase().as_str()) {
            let why = "TLS is not supported yet".to_owned();
            return Err(ConnectError::Url { shown: shown(&url), why });
        }
        let client = redis::Client::open(url.as_str())
            .map_err(|error| ConnectError::Url { shown: shown(&url), why: why(&error) })?;

        let manager = Manager::new(client, super::script::of(layout).to_vec());
        let pool = Pool::new(manager, connections, connection_wait);
        match pool.probe().await {
            Err(error) if error.kind().is_configuration() => {
                return Err(ConnectError::Refused(error));
            }
            Err(error) => observe::not_connected(&error),
            Ok(()) => {}
        }
        Ok(RedisStore {
            inner: Arc::new(Inner {
                pool,
                commands: Commands { layout, prefix },
                healed: AtomicU64::new(0),
                #[cfg(feature = "conformance")]
                clock: self.clock,
            }),
        })
    }
}

/// The library's words for what is wrong with a URL, without its name for the kind of error; they
/// never quote the URL.
fn why(error: &redis::RedisError) -> String {
    let text = error.to_string();
    text.split(" - ").next().unwrap_or_default().to_lowercase()
}

fn scheme(url: &str) -> &str {
    url.split_once("://").map_or("", |(scheme, _)| scheme)
}

/// The scheme of a URL: wherever its user forgot a character, anything behind may be the password.
fn shown(url: &str) -> String {
    let scheme = scheme(url);
    let is_scheme = scheme.len() <= 16 && scheme.bytes().all(|b| b.is_ascii_alphanumeric());
    if is_scheme && !scheme.is_empty() { format!("{scheme}://…") } else { "…".to_owned() }
}

// The URL may hold a password.
impl fmt::Debug for RedisStoreBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisStoreBuilder")
            .field("url", &shown(&self.url))
            .field("layout", &self.layout)
            .field("prefix", &self.prefix)
            .field("connections", &self.connections)
            .field("connection_wait", &self.connection_wait)
            .finish_non_exhaustive()
    }
}

/// Why there is no [`RedisStore`].
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
    /// The prefix cannot stand in keys.
    Prefix {
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
                "Redis URL {shown}: {why}; expected redis://[user:password@]host[:port][/database]"
            ),
            Self::Prefix { prefix } => write!(
                f,
                "key prefix {prefix:?}: expected up to 32 characters of A-Z a-z 0-9 _ . -"
            ),
            Self::NoConnections => f.write_str("0 connections: expected at least 1"),
            Self::NoWait => f.write_str("a connection wait of 0: expected more than no time"),
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

    #[tokio::test]
    async fn invalid_settings_are_named_and_secrets_are_not() {
        let error = |builder: RedisStoreBuilder| async {
            assert!(!format!("{builder:?}").contains("hunter2"));
            let error = builder.connect().await.unwrap_err();
            let shown = format!("{error} {error:?}");
            assert!(!shown.contains("hunter2"), "{shown}");
            error.to_string()
        };
        let of = RedisStore::builder;
        for url in [
            "",
            "127.0.0.1",
            "http://u:hunter2@h/",
            "redis://u:hunter2@h:99999/",
            "redis://u:hunter2@h/x",
        ] {
            let text = error(of(url)).await;
            assert!(text.contains("expected redis://"), "{url}: {text}");
            assert!(!text.contains("invalidclientconfig"), "{url}: {text}");
        }
        for url in ["rediss://u:hunter2@h/", "REDISS://h:6380/0#insecure", "valkeys://h/"] {
            let text = error(of(url)).await;
            assert!(text.contains("://…: TLS is not supported yet; "), "{url}: {text}");
        }
        assert!(error(of("redis://h/").prefix("a b")).await.contains("\"a b\""));
        assert!(error(of("redis://h/").connections(0)).await.contains("at least 1"));
        assert!(
            error(of("redis://h/").connection_wait(Duration::ZERO)).await.contains("more than")
        );
    }
}
