use std::sync::Arc;

use axum::http::header::{self, HeaderMap, HeaderValue};
use axum::http::uri::Authority;

use super::fields::link;
use super::session::Sessions;
use crate::context::Context;

/// The state that all pages share: the managed objects, the settings of the console, and the
/// sessions.
pub(super) struct Site {
    pub(super) context: Arc<Context>,
    pub(super) path: String,
    pub(super) origin: Option<String>,
    pub(super) is_secure: bool,
    // Whether logins are accepted only from browsers on the same machine.
    pub(super) is_local: bool,
    pub(super) sessions: Sessions,
}

impl Site {
    /// Returns the path with which all pages begin.
    pub(super) fn path(&self) -> &str {
        &self.path
    }

    /// Returns a link to a page, with a query.
    pub(super) fn link(&self, page: &str, query: &[(&str, &str)]) -> String {
        link(&format!("{}{page}", self.path), query)
    }

    /// Returns a link to the page of a consumer.
    pub(super) fn consumer_link(&self, id: &str) -> String {
        self.link("/consumer", &[("id", id)])
    }

    /// Returns the id in the session cookie of a request.
    pub(super) fn session_id<'a>(&self, headers: &'a HeaderMap) -> Option<&'a str> {
        let lines = headers.get_all(header::COOKIE).iter();
        let pairs = lines.filter_map(|line| line.to_str().ok()).flat_map(|line| line.split(';'));
        let mut pairs = pairs.filter_map(|pair| pair.trim().split_once('='));
        let own = self.cookie_name(headers);
        pairs.find(|(name, _)| *name == own).map(|(_, value)| value)
    }

    /// Returns a `Set-Cookie` value with this session id and further attributes.
    pub(super) fn cookie(&self, headers: &HeaderMap, id: &str, attributes: &str) -> HeaderValue {
        let name = self.cookie_name(headers);
        let secure = if self.is_secure { "; Secure" } else { "" };
        let line = format!("{name}={id}; Path=/; HttpOnly; SameSite=Strict{secure}{attributes}");
        HeaderValue::try_from(line).expect("ids are hexadecimal digits")
    }

    /// Returns the name of the session cookie.
    ///
    /// With TLS, the prefix of the name restricts the cookie to this host. Without TLS, the name
    /// contains the port. Browsers share cookies between the ports of a host, so a second console
    /// on the host would otherwise end the session.
    fn cookie_name(&self, headers: &HeaderMap) -> String {
        if self.is_secure {
            return "__Host-rl-console".to_owned();
        }
        let host = headers.get(header::HOST).map(HeaderValue::as_bytes);
        let port = host.and_then(|host| Authority::try_from(host).ok()?.port_u16());
        port.map_or_else(|| "rl-console".to_owned(), |port| format!("rl-console-{port}"))
    }
}
