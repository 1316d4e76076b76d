//! A server: its address, its login and its transport.

use std::sync::Arc;

use redis::{ConnectionAddr, ConnectionInfo, IntoConnectionInfo, RedisError};

use super::stream::{DrivenConnection, ReplyMeter, connect_tcp, log_in};
#[cfg(feature = "redis-tls")]
use super::tls::{Tls, TlsClient};
use crate::model::{FailureKind, StoreError};
use crate::store::redis::error::{ConnectError, classify};

/// The login to the servers, and the certificates. These values take precedence over the URL.
#[derive(Clone, Default)]
pub(crate) struct Login {
    pub(crate) user: Option<String>,
    pub(crate) password: Option<String>,
    pub(crate) database: Option<u32>,
    #[cfg(feature = "redis-tls")]
    pub(crate) tls: Option<Tls>,
}

impl Login {
    /// Returns the login with the values of `other` in place of those that are not set.
    pub(crate) fn or(self, other: Self) -> Self {
        Self {
            user: self.user.or(other.user),
            password: self.password.or(other.password),
            database: self.database.or(other.database),
            #[cfg(feature = "redis-tls")]
            tls: self.tls.or(other.tls),
        }
    }
}

/// The address at which a server listens.
#[cfg(any(feature = "redis-sentinel", feature = "redis-cluster"))]
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(super) struct Address {
    pub(super) host: String,
    pub(super) port: u16,
}

#[cfg(feature = "redis-cluster")]
impl Address {
    /// Parses `host:port`. An IPv6 host may stand without brackets. A missing host means
    /// `default_host`.
    pub(super) fn parse(text: &str, default_host: &str) -> Option<Self> {
        let (host, port) = text.rsplit_once(':')?;
        let host = host.trim_start_matches('[').trim_end_matches(']');
        let host = if matches!(host, "" | "?") { default_host } else { host };
        Some(Self { host: host.to_owned(), port: port.parse().ok()? })
    }
}

/// A server and how to connect to it.
#[derive(Clone)]
pub(crate) struct Server {
    info: ConnectionInfo,
    #[cfg(feature = "redis-tls")]
    tls: Option<TlsClient>,
}

impl Server {
    /// Creates the server at `url`.
    pub(crate) fn from_url(url: &str, login: &Login) -> Result<Self, ConnectError> {
        let (info, is_tls) = parse_url(url)?;
        #[cfg(feature = "redis-tls")]
        if !is_tls && login.tls.is_some() {
            return Err(invalid(url, "certificates are set, which need a URL with rediss://"));
        }
        #[cfg(not(feature = "redis-tls"))]
        let _ = is_tls;
        Ok(Self {
            info: apply_login(info, login),
            #[cfg(feature = "redis-tls")]
            tls: if is_tls { Some(login.tls.clone().unwrap_or_default().client()?) } else { None },
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

    /// Opens a connection and logs in. The caller limits the time that this takes. `meter` gets the
    /// replies on the connection.
    pub(super) async fn connect(
        &self,
        meter: Option<Arc<ReplyMeter>>,
    ) -> Result<DrivenConnection, StoreError> {
        let login = self.info.redis_settings();
        match self.info.addr() {
            ConnectionAddr::Tcp(host, port) => {
                #[cfg(feature = "redis-tls")]
                if let Some(tls) = &self.tls {
                    return tls.connect(host, *port, login, meter).await;
                }
                let stream = connect_tcp(host, *port).await.map_err(classify)?;
                log_in(stream, login, meter).await.map_err(classify)
            }
            #[cfg(unix)]
            ConnectionAddr::Unix(path) => {
                let stream = tokio::net::UnixStream::connect(path).await;
                log_in(stream.map_err(RedisError::from).map_err(classify)?, login, meter)
                    .await
                    .map_err(classify)
            }
            _ => Err(StoreError::new(FailureKind::Unsupported)
                .with_detail("the store connects by TCP, TLS or a Unix socket")),
        }
    }

    /// Returns the server at another address, with the same login and transport.
    #[cfg(any(feature = "redis-sentinel", feature = "redis-cluster"))]
    pub(super) fn with_address(&self, address: &Address) -> Self {
        let mut server = self.clone();
        let addr = ConnectionAddr::Tcp(address.host.clone(), address.port);
        server.info = server.info.set_addr(addr);
        server
    }

    /// Returns the server with `login` instead of the login of its URL.
    #[cfg(feature = "redis-sentinel")]
    pub(super) fn with_login(&self, login: &Login) -> Self {
        let mut server = self.clone();
        let info = server.info.set_redis_settings(redis::RedisConnectionInfo::default());
        server.info = apply_login(info, login);
        server
    }

    /// Returns whether connections to the server use TLS.
    #[cfg(any(feature = "redis-sentinel", feature = "redis-cluster"))]
    pub(super) fn is_tls(&self) -> bool {
        #[cfg(feature = "redis-tls")]
        return self.tls.is_some();
        #[cfg(not(feature = "redis-tls"))]
        return false;
    }

    /// Returns the number of the database.
    #[cfg(any(feature = "redis-sentinel", feature = "redis-cluster"))]
    pub(super) fn database(&self) -> i64 {
        self.info.redis_settings().db()
    }

    /// Returns the address, or `None` for a Unix socket.
    #[cfg(feature = "redis-cluster")]
    pub(super) fn address(&self) -> Option<Address> {
        match self.info.addr() {
            ConnectionAddr::Tcp(host, port) => Some(Address { host: host.clone(), port: *port }),
            _ => None,
        }
    }

    /// Returns whether both servers have the same login and transport.
    #[cfg(feature = "redis-cluster")]
    pub(super) fn has_login_of(&self, other: &Self) -> bool {
        let login = |server: &Self| {
            let settings = server.info.redis_settings();
            let user = settings.username().map(str::to_owned);
            let password = settings.password().map(str::to_owned);
            (user, password, server.database(), server.is_tls())
        };
        login(self) == login(other)
    }
}

/// The error of a URL with a fragment.
pub(crate) const NO_FRAGMENT: &str = "a fragment (#…) is not accepted: certificates are always \
    verified, and a # in a password is written %23";

/// Checks the URL of one server.
pub(crate) fn validate_url(url: &str) -> Result<(), ConnectError> {
    parse_url(url).map(drop)
}

/// Parses the URL of one server. Returns also whether connections to it use TLS.
fn parse_url(url: &str) -> Result<(ConnectionInfo, bool), ConnectError> {
    if url.trim().is_empty() {
        return Err(invalid(url, "it is empty"));
    }
    if url.contains('#') {
        return Err(invalid(url, NO_FRAGMENT));
    }
    let (plain_url, is_tls) = strip_tls(url);
    // The library's message never contains the URL. It ends with the kind of the error, which is
    // cut off.
    let info = plain_url.as_str().into_connection_info().map_err(|error| {
        let text = error.to_string().to_lowercase();
        invalid(url, text.split(" - ").next().unwrap_or_default())
    })?;
    if is_tls && cfg!(not(feature = "redis-tls")) {
        return Err(ConnectError::Feature { what: "TLS (rediss://)", feature: "redis-tls" });
    }
    Ok((info, is_tls))
}

/// Returns the error of a URL. It contains only the scheme.
fn invalid(url: &str, why: &str) -> ConnectError {
    ConnectError::Url { shown: redacted_url(url), why: why.to_owned() }
}

/// Replaces a scheme with TLS by the scheme without TLS. Returns whether the scheme was replaced.
///
/// The client library is built without TLS and would reject the scheme.
fn strip_tls(url: &str) -> (String, bool) {
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

/// Overrides the login of a URL.
fn apply_login(info: ConnectionInfo, login: &Login) -> ConnectionInfo {
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
    // Set an empty password. Without one, the library would not log in, and the connection would
    // belong to the user `default`.
    if settings.username().is_some() && settings.password().is_none() {
        settings = settings.set_password("");
    }
    info.set_redis_settings(settings)
}

/// Returns the scheme of a URL.
///
/// The rest of the URL is never shown: if a character is missing in the URL, any part may be the
/// password.
pub(crate) fn redacted_url(url: &str) -> String {
    if url.trim().is_empty() {
        return String::new();
    }
    let scheme = url.split_once("://").map_or("", |(scheme, _)| scheme);
    let is_scheme =
        scheme.len() <= 16 && scheme.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-');
    if is_scheme && !scheme.is_empty() { format!("{scheme}://…") } else { "…".to_owned() }
}
