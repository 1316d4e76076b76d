use std::sync::Arc;

use axum::http::header::{self, HeaderMap, HeaderValue};
use axum::http::uri::Authority;

use super::fields::link;
use super::session::Sessions;
use crate::access::Actor;
use crate::context::Context;
use crate::oidc::Provider;

/// The name of the session cookie.
const SESSION: &str = "rl-console";

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
    /// The provider with which people sign in.
    pub(super) provider: Option<Provider>,
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

    /// Returns whether the token or the provider that authenticated the actor of a session is still
    /// configured: the token with the same roles and applications, the provider with the same
    /// settings.
    pub(super) fn still_accepts(&self, actor: &Actor) -> bool {
        match actor.credential() {
            Some(credential) if credential.starts_with("oidc:") => {
                let own = self.provider.as_ref().map(|provider| provider.oidc().credential());
                own.as_deref() == Some(credential)
            }
            Some(_) => self.context.still_accepts(actor),
            None => true,
        }
    }

    /// Returns the id in the session cookie of a request.
    pub(super) fn session_id<'a>(&self, headers: &'a HeaderMap) -> Option<&'a str> {
        // An id that this program cannot have created must not cost a query of the database.
        let is_id = |id: &&str| id.len() == 64 && id.bytes().all(|byte| byte.is_ascii_hexdigit());
        self.cookie(headers, SESSION).filter(is_id)
    }

    /// Returns the `Set-Cookie` value with this session id. The attributes `; Max-Age=0` remove the
    /// cookie.
    pub(super) fn set_session(
        &self,
        headers: &HeaderMap,
        id: &str,
        attributes: &str,
    ) -> HeaderValue {
        self.set_cookie(headers, SESSION, id, "Strict", attributes)
    }

    /// Returns the value of a cookie of this console in a request.
    pub(super) fn cookie<'a>(&self, headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
        let lines = headers.get_all(header::COOKIE).iter();
        let pairs = lines.filter_map(|line| line.to_str().ok()).flat_map(|line| line.split(';'));
        let mut pairs = pairs.filter_map(|pair| pair.trim().split_once('='));
        let own = self.cookie_name(headers, name);
        pairs.find(|(name, _)| *name == own).map(|(_, value)| value)
    }

    /// Returns a `Set-Cookie` value with these attributes, and those that every cookie has. Requests
    /// from other sites send the cookie only if `same_site` is `Lax` and they load a page.
    pub(super) fn set_cookie(
        &self,
        headers: &HeaderMap,
        name: &str,
        value: &str,
        same_site: &str,
        attributes: &str,
    ) -> HeaderValue {
        let name = self.cookie_name(headers, name);
        let secure = if self.is_secure { "; Secure" } else { "" };
        let path = "Path=/; HttpOnly";
        let line = format!("{name}={value}; {path}; SameSite={same_site}{secure}{attributes}");
        HeaderValue::try_from(line).expect("values are ASCII without control characters")
    }

    /// Returns the name of a cookie.
    ///
    /// With TLS, the prefix of the name restricts the cookie to this host. Without TLS, the name
    /// contains the port. Browsers share cookies between the ports of a host, so a second console
    /// on the host would otherwise end the session.
    fn cookie_name(&self, headers: &HeaderMap, name: &str) -> String {
        if self.is_secure {
            return format!("__Host-{name}");
        }
        let host = headers.get(header::HOST).map(HeaderValue::as_bytes);
        let port = host.and_then(|host| Authority::try_from(host).ok()?.port_u16());
        port.map_or_else(|| name.to_owned(), |port| format!("{name}-{port}"))
    }
}
