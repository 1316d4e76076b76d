//! The settings of programs that serve the management API: the server of this crate, and the
//! decision server.
//!
//! Each setting has the name of an environment variable, which the README of the crate lists. A
//! program may read the values from elsewhere.

mod console;
mod invalid;
mod oidc;
mod records;
pub mod section;
mod value_or_file;
mod webhooks;
pub mod yaml;

use std::net::SocketAddr;

use axum::Router;
use console::ConsoleSettings;
pub use invalid::InvalidSetting;
pub use records::RecordsSettings;
use rl_core::client_ip::{ClientIp, InvalidProxies, TrustedProxies};
use rl_core::{RateLimiter, Realm};
use rl_records::Records;
use value_or_file::value_or_file;
use webhooks::WebhookSettings;

use crate::access::{BearerTokens, FailedAttempts};
use crate::admin::{Admin, AdminBuilder};
use crate::oidc::Oidc;
use crate::webhook::Webhooks;

/// The settings of the management API and the console: the variables that begin with `RL_ADMIN_`,
/// and `RL_REALMS`.
///
/// # Examples
///
/// ```
/// use rl_admin::settings::AdminSettings;
///
/// let tokens = r#"[{ "name": "alice", "token": "a-long-and-random-token", "roles": [] }]"#;
/// let read = |name: &str| (name == "RL_ADMIN_TOKENS").then(|| tokens.to_owned());
/// let settings = AdminSettings::read(read)?;
/// assert_eq!(settings.listen(), "127.0.0.1:8090");
/// # Ok::<(), rl_admin::settings::InvalidSetting>(())
/// ```
#[derive(Clone, Debug)]
pub struct AdminSettings {
    listen: String,
    prefix: String,
    console: ConsoleSettings,
    oidc: Option<Oidc>,
    webhooks: Option<WebhookSettings>,
    tokens: BearerTokens,
    attempts: FailedAttempts,
    require_if_match: bool,
    /// The realms of the services, in addition to the predefined ones.
    realms: Vec<Realm>,
}

impl AdminSettings {
    /// Reads the settings. `read` returns the value of a variable. The tokens are required, so that
    /// the API is never open.
    ///
    /// # Errors
    ///
    /// Returns an error that names the variable and the expected value.
    pub fn read(read: impl Fn(&'static str) -> Option<String>) -> Result<Self, InvalidSetting> {
        let wrong =
            |name, expected: &str| InvalidSetting::new(name, format!("expected {expected}"));
        let is_true = |name| match read(name).as_deref() {
            None | Some("false") => Ok(false),
            Some("true") => Ok(true),
            Some(_) => Err(wrong(name, "true or false")),
        };
        let require_if_match = is_true("RL_ADMIN_REQUIRE_IF_MATCH")?;
        let proxies = read("RL_ADMIN_TRUSTED_PROXIES").unwrap_or_default();
        let proxies: TrustedProxies = proxies.parse().map_err(|error: InvalidProxies| {
            InvalidSetting::new("RL_ADMIN_TRUSTED_PROXIES", error.to_string())
        })?;
        let attempts = match read("RL_ADMIN_FAILED_ATTEMPTS").map(|text| text.parse::<u32>()) {
            None => FailedAttempts::default(),
            Some(Ok(max)) if max > 0 => FailedAttempts::per_minute(max),
            Some(_) => {
                return Err(wrong("RL_ADMIN_FAILED_ATTEMPTS", "a number from 1, per minute"));
            }
        };
        let attempts = attempts
            .client_address(ClientIp::with_proxies(proxies))
            .exempt_loopback(is_true("RL_ADMIN_EXEMPT_LOOPBACK")?);
        let prefix = read("RL_ADMIN_PREFIX").unwrap_or_default();
        let is_plain = |c: char| c.is_ascii_alphanumeric() || "/._-".contains(c);
        let is_path =
            prefix.starts_with('/') && !prefix.ends_with('/') && prefix.chars().all(is_plain);
        if !prefix.is_empty() && !is_path {
            return Err(wrong("RL_ADMIN_PREFIX", "a path such as /obp/v6.0.0"));
        }
        let (tokens, oidc) = (tokens(&read)?, oidc::read(&read)?);
        if let Some(name) = tokens.names().find(|name| oidc.is_some() && name.ends_with('>')) {
            let reason = format!(
                "name {name:?}: must not end with >, which marks the names of people of the provider"
            );
            return Err(InvalidSetting::new("RL_ADMIN_TOKENS", reason));
        }
        Ok(Self {
            listen: read("RL_ADMIN_LISTEN").unwrap_or_else(|| "127.0.0.1:8090".to_owned()),
            console: ConsoleSettings::read(&read, &prefix)?,
            prefix,
            webhooks: WebhookSettings::read(&read)?,
            tokens,
            oidc,
            attempts,
            require_if_match,
            realms: realms(read)?,
        })
    }

    /// Returns the address to listen on.
    #[must_use]
    pub fn listen(&self) -> &str {
        &self.listen
    }

    /// Returns the prefix of all paths of the API.
    #[must_use]
    pub fn prefix(&self) -> &str {
        &self.prefix
    }

    /// Starts to deliver events to the receivers of webhooks; returns `None` if there are none.
    ///
    /// # Errors
    ///
    /// Returns an error if a receiver or the secret is not valid.
    ///
    /// # Panics
    ///
    /// Panics outside a tokio runtime, if there are receivers.
    pub fn webhooks(&self) -> Result<Option<Webhooks>, InvalidSetting> {
        self.webhooks.as_ref().map(WebhookSettings::start).transpose()
    }

    /// Returns a builder for an API that manages `records` and the counters of `limiter`.
    pub fn admin(
        &self,
        records: Records,
        limiter: RateLimiter,
        webhooks: Option<Webhooks>,
    ) -> AdminBuilder {
        let admin = Admin::builder(records, limiter)
            .authorize(self.tokens.clone())
            .failed_attempts(self.attempts.clone())
            .require_if_match(self.require_if_match);
        let admin = webhooks.into_iter().fold(admin, AdminBuilder::webhooks);
        self.realms.iter().cloned().fold(admin, AdminBuilder::realm)
    }

    /// Returns the routes of the API under its prefix, and those of the console, for a listener at
    /// `address`.
    pub fn router(&self, admin: Admin, address: SocketAddr) -> Router {
        let routes = match &*self.prefix {
            "" => admin.router(),
            prefix => Router::new().nest(prefix, admin.router()),
        };
        match self.console.console(admin, address, self.oidc.clone()) {
            Some(console) => routes.merge(console.router()),
            None => routes,
        }
    }

    /// Returns whether tokens are sent over the network without encryption if the listener at
    /// `address` has none.
    #[must_use]
    pub fn sends_tokens_in_clear(&self, address: SocketAddr) -> bool {
        !address.ip().is_loopback() && !self.console.is_behind_tls()
    }
}

fn tokens(read: impl Fn(&'static str) -> Option<String>) -> Result<BearerTokens, InvalidSetting> {
    const NAMES: [&str; 3] =
        ["RL_ADMIN_TOKENS", "RL_ADMIN_TOKENS_FILE", "RL_ADMIN_TOKENS and RL_ADMIN_TOKENS_FILE"];
    let (name, json) = value_or_file(read, NAMES)?.ok_or_else(|| {
        let none = "no actor could use this API: expected a list such as [{\"name\": \"alice\", \
                    \"token\": \"…\", \"roles\": [\"CanReadCallLimits\"]}], or a file with it";
        InvalidSetting::new(NAMES[0], none)
    })?;
    let tokens = BearerTokens::from_json(&json);
    let tokens = tokens.map_err(|error| InvalidSetting::new(name, error.to_string()))?;
    if tokens.is_empty() {
        return Err(InvalidSetting::new(name, "expected at least one token"));
    }
    Ok(tokens)
}

/// Reads the names of realms, separated by commas.
fn realms(read: impl Fn(&'static str) -> Option<String>) -> Result<Vec<Realm>, InvalidSetting> {
    let names = read("RL_REALMS").unwrap_or_default();
    let names = names.split(',').map(str::trim).filter(|_| !names.is_empty());
    let realms = names.map(Realm::custom).collect::<Result<_, _>>();
    realms.map_err(|error| InvalidSetting::new("RL_REALMS", error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TOKENS: &str =
        r#"[{"name": "alice", "token": "a-long-and-random-token", "roles": ["CanSetCallLimits"]}]"#;

    fn settings(variables: &[(&str, &str)]) -> Result<AdminSettings, String> {
        let find = |name: &str| variables.iter().find(|(known, _)| *known == name);
        AdminSettings::read(|name| find(name).map(|(_, value)| (*value).to_owned()))
            .map_err(|error| error.to_string())
    }

    #[test]
    fn only_the_tokens_are_required() {
        let least = settings(&[("RL_ADMIN_TOKENS", TOKENS)]).unwrap();
        assert_eq!((least.listen(), least.prefix()), ("127.0.0.1:8090", ""));
        assert!(!least.tokens.is_empty() && !least.require_if_match);
        for tokens in [&[][..], &[("RL_ADMIN_TOKENS", "[]")]] {
            let error = settings(tokens).unwrap_err();
            assert!(error.contains("RL_ADMIN_TOKENS") && error.contains("expected"), "{error}");
        }
    }

    #[test]
    fn people_and_tokens_cannot_have_the_same_name() {
        let roles = r#"{"admins": {"roles": ["CanGetRateLimits"]}}"#;
        let oidc = [
            ("RL_ADMIN_OIDC_ISSUER", "https://login.example.com"),
            ("RL_ADMIN_OIDC_CLIENT_ID", "console"),
            ("RL_ADMIN_OIDC_CLIENT_SECRET", "swordfish"),
            ("RL_ADMIN_OIDC_ROLES", roles),
        ];
        let with = |tokens| settings(&[oidc.as_slice(), &[("RL_ADMIN_TOKENS", tokens)]].concat());
        let fits = with(TOKENS).unwrap();
        assert!(fits.oidc.is_some() && !format!("{fits:?}").contains("swordfish"));
        let error = with(&TOKENS.replace("alice", "alice <a@login.example.com>")).unwrap_err();
        assert!(error.starts_with("RL_ADMIN_TOKENS: name \"alice <a@login"), "{error}");
        for (left_out, message) in [
            (2, "RL_ADMIN_OIDC_CLIENT_SECRET: expected the secret of the client"),
            (3, "RL_ADMIN_OIDC_ROLES: EOF while parsing"),
        ] {
            let mut rest = oidc.to_vec();
            rest.remove(left_out);
            rest.push(("RL_ADMIN_TOKENS", TOKENS));
            let error = settings(&rest).unwrap_err();
            assert!(error.starts_with(message), "{error}");
        }
    }

    #[test]
    fn realms_are_separated_by_commas() {
        let base = ("RL_ADMIN_TOKENS", TOKENS);
        assert_eq!(settings(&[base]).unwrap().realms, []);
        let two = [base, ("RL_REALMS", "tenant, partner")];
        let expected = ["tenant", "partner"].map(|name| Realm::custom(name).unwrap());
        assert_eq!(settings(&two).unwrap().realms, expected);
    }

    #[test]
    fn errors_name_the_variable_and_the_expected_value() {
        #[rustfmt::skip]
        let table = [
            ("RL_ADMIN_REQUIRE_IF_MATCH", "1", "RL_ADMIN_REQUIRE_IF_MATCH: expected true or false"),
            ("RL_ADMIN_EXEMPT_LOOPBACK", "yes", "RL_ADMIN_EXEMPT_LOOPBACK: expected true or false"),
            ("RL_ADMIN_FAILED_ATTEMPTS", "0", "RL_ADMIN_FAILED_ATTEMPTS: expected a number from 1"),
            ("RL_ADMIN_TRUSTED_PROXIES", "10.0.0.0/33", "RL_ADMIN_TRUSTED_PROXIES: trusted proxy \"10.0"),
            ("RL_ADMIN_PREFIX", "obp/", "RL_ADMIN_PREFIX: expected a path such as /obp/v6.0.0"),
            ("RL_REALMS", "tenant,Partner", "RL_REALMS: realm \"Partner\": expected 1 to 32 characters"),
            ("RL_REALMS", "tenant,", "RL_REALMS: realm \"\": expected 1 to 32 characters"),
            ("RL_REALMS", "consumer", "RL_REALMS: realm \"consumer\": expected 1 to 32 characters"),
            ("RL_ADMIN_TOKENS", "alice", "RL_ADMIN_TOKENS: line 1 column 1: expected a list"),
            ("RL_ADMIN_OIDC_CLIENT_ID", "console", "RL_ADMIN_OIDC_ISSUER: expected the issuer of"),
            ("RL_ADMIN_OIDC_ISSUER", "http://a.example", "RL_ADMIN_OIDC_ISSUER: expected the issuer"),
            ("RL_ADMIN_OIDC_ISSUER", "https://a.example", "RL_ADMIN_OIDC_CLIENT_ID: expected the id"),
            ("RL_ADMIN_TOKENS_FILE", "/nowhere", "RL_ADMIN_TOKENS and RL_ADMIN_TOKENS_FILE: expected one"),
        ];
        for (name, value, message) in table {
            let error = settings(&[(name, value), ("RL_ADMIN_TOKENS", TOKENS)]).unwrap_err();
            assert!(error.starts_with(message), "{error}");
        }
    }
}
