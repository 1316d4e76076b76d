//! A server: where it is, how to log in, and how to reach it.

use redis::ConnectionAddr;
#[cfg(feature = "redis-sentinel")]
use redis::RedisConnectionInfo;
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client, ConnectionInfo, IntoConnectionInfo};

#[cfg(feature = "redis-tls")]
use super::tls::{Connector, Tls};
use crate::model::StoreError;
use crate::store::redis::ConnectError;
use crate::store::redis::error::classify;

/// Who connects, and what the servers must prove. What is not set here, the URL says.
#[derive(Clone, Default)]
pub(crate) struct Login {
    pub(crate) user: Option<String>,
    pub(crate) password: Option<String>,
    pub(crate) database: Option<u32>,
    #[cfg(feature = "redis-tls")]
    pub(crate) tls: Option<Tls>,
}

/// Where a server listens.
#[cfg(any(feature = "redis-sentinel", feature = "redis-cluster"))]
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) struct Address {
    pub(crate) host: String,
    pub(crate) port: u16,
}

#[cfg(feature = "redis-cluster")]
impl Address {
    /// Reads `host:port`, where an IPv6 host has no brackets, and one left out is `same`.
    pub(crate) fn parse(text: &str, same: &str) -> Option<Self> {
        let (host, port) = text.rsplit_once(':')?;
        let host = host.trim_start_matches('[').trim_end_matches(']');
        let host = if matches!(host, "" | "?") { same } else { host };
        Some(Self { host: host.to_owned(), port: port.parse().ok()? })
    }
}

/// A server and how to connect to it.
#[derive(Clone)]
pub(crate) struct Server {
    info: ConnectionInfo,
    #[cfg(feature = "redis-tls")]
    tls: Option<Connector>,
}

impl Server {
    /// The server at `url`.
    pub(crate) fn at_url(url: &str, login: &Login) -> Result<Self, ConnectError> {
        let wrong = |why: &str| ConnectError::Url { shown: shown(url), why: why.to_owned() };
        if url.trim().is_empty() {
            return Err(wrong("it is empty"));
        }
        if url.contains('#') {
            return Err(wrong(
                "a fragment (#…) is not accepted: certificates are always verified, and a # in a \
                 password is written %23",
            ));
        }
        let (plain, is_tls) = without_tls(url);
        let info = plain.as_str().into_connection_info();
        // The library's words for what is wrong with a URL never quote it; behind them it names the kind
        // of error.
        let info = info.map_err(|error| {
            let text = error.to_string().to_lowercase();
            wrong(text.split(" - ").next().unwrap_or_default())
        })?;
        #[cfg(feature = "redis-tls")]
        if !is_tls && login.tls.is_some() {
            return Err(wrong("certificates are set, which need a URL with rediss://"));
        }
        #[cfg(not(feature = "redis-tls"))]
        if is_tls {
            return Err(ConnectError::Feature { what: "TLS (rediss://)", feature: "redis-tls" });
        }
        Ok(Self {
            info: log_in(info, login),
            #[cfg(feature = "redis-tls")]
            tls: match is_tls {
                true => Some(login.tls.clone().unwrap_or_default().connector()?),
                false => None,
            },
        })
    }

    /// Returns the address of the server, without user and password.
    pub(crate) fn name(&self) -> String {
        match self.info.addr() {
            ConnectionAddr::Tcp(host, port) | ConnectionAddr::TcpTls { host, port, .. } => {
                let is_v6 = host.contains(':');
                if is_v6 { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
            }
            ConnectionAddr::Unix(path) => format!("socket {}", path.display()),
            _ => "a server".to_owned(),
        }
    }

    /// A connection in which the user has logged in.
    pub(crate) async fn connect(&self) -> Result<MultiplexedConnection, StoreError> {
        let config = AsyncConnectionConfig::new()
            // Callers have time limits of their own, for everything together.
            .set_connection_timeout(None)
            .set_response_timeout(None);
        #[cfg(feature = "redis-tls")]
        if let (Some(tls), ConnectionAddr::Tcp(host, port)) = (&self.tls, self.info.addr()) {
            return tls.connect(host, *port, self.info.redis_settings(), config).await;
        }
        let client = Client::open(self.info.clone()).map_err(classify)?;
        client.get_multiplexed_async_connection_with_config(&config).await.map_err(classify)
    }
}

#[cfg(any(feature = "redis-sentinel", feature = "redis-cluster"))]
impl Server {
    /// The server at another address, reached in the same way.
    pub(crate) fn at(&self, address: &Address) -> Self {
        let addr = ConnectionAddr::Tcp(address.host.clone(), address.port);
        let mut server = self.clone();
        server.info = server.info.set_addr(addr);
        server
    }

    pub(crate) fn is_tls(&self) -> bool {
        #[cfg(feature = "redis-tls")]
        return self.tls.is_some();
        #[cfg(not(feature = "redis-tls"))]
        return false;
    }

    pub(crate) fn database(&self) -> i64 {
        self.info.redis_settings().db()
    }
}

#[cfg(feature = "redis-sentinel")]
impl Server {
    /// The server, with `login` and nothing of what its URL said of that.
    pub(crate) fn with_login(&self, login: &Login) -> Self {
        let mut server = self.clone();
        server.info = log_in(server.info.set_redis_settings(RedisConnectionInfo::default()), login);
        server
    }
}

#[cfg(feature = "redis-cluster")]
impl Server {
    /// Where it is; nothing if that is a file.
    pub(crate) fn address(&self) -> Option<Address> {
        match self.info.addr() {
            ConnectionAddr::Tcp(host, port) => Some(Address { host: host.clone(), port: *port }),
            _ => None,
        }
    }

    /// Whether the same user logs in there in the same way.
    pub(crate) fn is_like(&self, other: &Self) -> bool {
        let login = |server: &Self| {
            let settings = server.info.redis_settings();
            let words = [settings.username(), settings.password()].map(|s| s.map(str::to_owned));
            (words, server.database(), server.is_tls())
        };
        login(self) == login(other)
    }
}

/// The URL as that of a server without TLS, and whether it asks for TLS.
fn without_tls(url: &str) -> (String, bool) {
    match url.split_once("://") {
        Some((scheme, rest)) if scheme.eq_ignore_ascii_case("rediss") => {
            (format!("redis://{rest}"), true)
        }
        Some((scheme, rest)) if scheme.eq_ignore_ascii_case("valkeys") => {
            (format!("valkey://{rest}"), true)
        }
        _ => (url.to_owned(), false),
    }
}

fn log_in(info: ConnectionInfo, login: &Login) -> ConnectionInfo {
    let mut settings = info.redis_settings().clone();
    if let Some(user) = &login.user {
        settings = settings.set_username(user);
    }
    if let Some(password) = &login.password {
        settings = settings.set_password(password);
    }
    if let Some(database) = login.database {
        settings = settings.set_db(database.into());
    }
    // The library does not log in without a password: a user who needs none would be another one.
    if settings.username().is_some() && settings.password().is_none() {
        settings = settings.set_password("");
    }
    info.set_redis_settings(settings)
}

/// Returns the scheme of a URL. What follows is never shown: where a character was forgotten, any
/// part of it may be the password.
pub(crate) fn shown(url: &str) -> String {
    if url.trim().is_empty() {
        return String::new();
    }
    let scheme = url.split_once("://").map_or("", |(scheme, _)| scheme);
    let is_scheme = scheme.len() <= 16 && scheme.bytes().all(|b| b.is_ascii_alphanumeric());
    if is_scheme && !scheme.is_empty() { format!("{scheme}://…") } else { "…".to_owned() }
}
