use std::net::SocketAddr;

use super::InvalidSetting;
use crate::admin::Admin;
use crate::console::{Console, ConsoleBuilder};
use crate::oidc::Oidc;

/// The settings of the console.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ConsoleSettings {
    // `None` if the console is switched off.
    path: Option<String>,
    origin: Option<String>,
}

impl ConsoleSettings {
    /// Reads the settings. `prefix` is the path of the API.
    pub(super) fn read(
        read: impl Fn(&'static str) -> Option<String>,
        prefix: &str,
    ) -> Result<Self, InvalidSetting> {
        let path = match read("RL_ADMIN_CONSOLE").as_deref() {
            None => Some("/console".to_owned()),
            Some("off") => None,
            Some(path) => Some(path.to_owned()),
        };
        let is_plain = |part: &str| {
            let allowed = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
            !part.is_empty() && part.chars().all(allowed)
        };
        if let Some(path) = &path {
            let is_path = path.strip_prefix('/').is_some_and(|rest| rest.split('/').all(is_plain));
            let is_in_api =
                !prefix.is_empty() && format!("{path}/").starts_with(&format!("{prefix}/"));
            let holds_api = format!("{prefix}/").starts_with(&format!("{path}/"));
            if !is_path || is_in_api || holds_api {
                let expected = "off, or a path such as /console that is not that of the API";
                return Err(InvalidSetting::new(
                    "RL_ADMIN_CONSOLE",
                    format!("expected {expected}"),
                ));
            }
        }
        let origin = read("RL_ADMIN_ORIGIN");
        let is_origin = |origin: &String| {
            let place = origin.strip_prefix("https://").or_else(|| origin.strip_prefix("http://"));
            place.is_some_and(|place| !place.is_empty() && !place.contains(['/', '@', ' ', ',']))
        };
        if !origin.iter().all(is_origin) {
            let expected = "the origin that browsers see, such as https://limits.example.com";
            return Err(InvalidSetting::new("RL_ADMIN_ORIGIN", format!("expected {expected}")));
        }
        Ok(Self { path, origin })
    }

    /// Builds the console for a listener at `address`, unless the console is switched off.
    ///
    /// With an `http://` origin, the cookie is also sent without TLS. Without an origin, the cookie
    /// requires TLS, unless the listener is on the loopback interface. In that case, browsers on
    /// the same machine get the cookie without TLS.
    pub(super) fn console(
        &self,
        admin: Admin,
        address: SocketAddr,
        oidc: Option<Oidc>,
    ) -> Option<Console> {
        let console = Console::builder(admin).path(self.path.as_deref()?);
        let console = oidc.into_iter().fold(console, ConsoleBuilder::oidc);
        let console = match &self.origin {
            Some(origin) if origin.starts_with("https://") => console.origin(origin),
            Some(origin) => console.origin(origin).without_tls(),
            None if address.ip().is_loopback() => console.on_this_machine(),
            None => console,
        };
        Some(console.build())
    }

    /// Returns whether browsers reach the console over TLS, through a proxy.
    pub(super) fn is_behind_tls(&self) -> bool {
        self.origin.as_ref().is_some_and(|origin| origin.starts_with("https://"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(console: &str, origin: &str, prefix: &str) -> Result<ConsoleSettings, String> {
        let read = |name| {
            let value = match name {
                "RL_ADMIN_CONSOLE" => console,
                "RL_ADMIN_ORIGIN" => origin,
                _ => "",
            };
            Some(value.to_owned()).filter(|value| !value.is_empty())
        };
        ConsoleSettings::read(read, prefix).map_err(|error| error.to_string())
    }

    #[test]
    fn the_console_has_a_path_of_its_own_unless_it_is_off() {
        assert_eq!(settings("", "", "").unwrap().path.as_deref(), Some("/console"));
        assert_eq!(settings("off", "", "").unwrap().path, None);
        let path = settings("/limits/console", "", "/obp/v6.0.0").unwrap().path;
        assert_eq!(path.as_deref(), Some("/limits/console"));
        for (path, prefix) in [
            ("console", ""),
            ("/", ""),
            ("/a//b", ""),
            ("/a{b}", ""),
            ("/obp", "/obp"),
            ("/obp/console", "/obp"),
            ("/obp", "/obp/v6.0.0"),
        ] {
            let error = settings(path, "", prefix).unwrap_err();
            assert!(error.starts_with("RL_ADMIN_CONSOLE: expected off, or"), "{path}: {error}");
        }
    }

    #[test]
    fn the_origin_has_a_scheme_and_no_path() {
        for origin in ["https://limits.example.com", "http://localhost:8090", "https://[::1]"] {
            assert_eq!(settings("", origin, "").unwrap().origin.as_deref(), Some(origin));
        }
        for origin in ["limits.example.com", "https://", "https://a/b", "ftp://a", "https://a@b"] {
            let error = settings("", origin, "").unwrap_err();
            assert!(error.starts_with("RL_ADMIN_ORIGIN: expected the origin"), "{origin}: {error}");
        }
    }
}
