use std::fmt;

use axum::http::{Uri, uri::Scheme};

/// The URL of a receiver.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Receiver {
    pub(super) host: String,
    pub(super) port: u16,
    pub(super) is_tls: bool,
    /// The path and the query, which may contain a secret.
    pub(super) path: String,
}

impl Receiver {
    /// Parses a URL. Returns the expected form if it is not valid.
    pub(super) fn parse(url: &str) -> Result<Self, &'static str> {
        const EXPECTED: &str =
            "expected a URL such as https://hooks.example.com/limits, without a user or password";
        let uri: Uri = url.parse().map_err(|_| EXPECTED)?;
        let is_tls = match uri.scheme() {
            Some(scheme) if *scheme == Scheme::HTTPS => true,
            Some(scheme) if *scheme == Scheme::HTTP => false,
            _ => return Err(EXPECTED),
        };
        let authority = uri.authority().filter(|authority| !authority.as_str().contains('@'));
        let authority = authority.ok_or(EXPECTED)?;
        // The default port applies only if the URL has no port. An invalid port is an error.
        let has_port = authority.as_str().len() > authority.host().len();
        let port = match authority.port_u16() {
            Some(port) if port > 0 => port,
            None if !has_port => {
                if is_tls {
                    443
                } else {
                    80
                }
            }
            _ => return Err(EXPECTED),
        };
        let path = uri.path_and_query().map_or("/", |path| path.as_str());
        let path = if path.is_empty() { "/" } else { path };
        Ok(Self { host: authority.host().to_owned(), port, is_tls, path: path.to_owned() })
    }

    /// Returns the host without the brackets of an IPv6 address.
    pub(super) fn bare_host(&self) -> &str {
        self.host.trim_start_matches('[').trim_end_matches(']')
    }

    /// Returns the value of the `Host` header.
    pub(super) fn authority(&self) -> String {
        match (self.is_tls, self.port) {
            (true, 443) | (false, 80) => self.host.clone(),
            (_, port) => format!("{}:{port}", self.host),
        }
    }
}

/// Names the host and the port, but not the path.
impl fmt::Display for Receiver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.host, self.port)
    }
}

impl fmt::Debug for Receiver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Receiver({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_name_a_host_and_no_user() {
        let table = [
            (
                "https://hooks.example.com/a?b=c",
                "hooks.example.com:443",
                "/a?b=c",
                "hooks.example.com",
            ),
            ("http://127.0.0.1:9000", "127.0.0.1:9000", "/", "127.0.0.1:9000"),
            ("https://[2001:db8::1]/x", "[2001:db8::1]:443", "/x", "[2001:db8::1]"),
        ];
        for (url, place, path, authority) in table {
            let receiver = Receiver::parse(url).unwrap();
            assert_eq!((receiver.to_string(), &*receiver.path), (place.to_owned(), path), "{url}");
            assert_eq!(receiver.authority(), authority);
        }
        for url in [
            "",
            "hooks.example.com",
            "ftp://a/",
            "https://",
            "https://u:p@a/",
            "/x",
            "http://a:0/",
            "http://a:99999/",
        ] {
            assert!(Receiver::parse(url).is_err(), "{url}");
        }
    }
}
