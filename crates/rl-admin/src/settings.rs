mod console;
mod invalid;
mod webhooks;

use console::ConsoleSettings;
use invalid::InvalidSetting;
use rl_admin::{BearerTokens, FailedAttempts};
use rl_core::Realm;
use rl_core::client_ip::{ClientIp, InvalidProxies, TrustedProxies};
use rl_core::store::Layout;
use rl_records::{CallLimit, CallLimits, CallPeriod, ZeroMeans};
pub(crate) use webhooks::WebhookSettings;

/// The settings that the server reads from environment variables.
pub(crate) struct Settings {
    pub(crate) database: String,
    pub(crate) redis: Option<String>,
    pub(crate) layout: Layout,
    pub(crate) namespace: String,
    pub(crate) listen: String,
    pub(crate) prefix: String,
    pub(crate) console: ConsoleSettings,
    pub(crate) webhooks: Option<WebhookSettings>,
    pub(crate) tokens: BearerTokens,
    pub(crate) attempts: FailedAttempts,
    pub(crate) require_if_match: bool,
    pub(crate) defaults: CallLimits,
    pub(crate) zero_means: ZeroMeans,
    /// The rule under which the services count consumers by the records, if they have rules.
    pub(crate) records_rule: Option<String>,
    /// The limit per hour of an anonymous address.
    pub(crate) anonymous: CallLimit,
    /// The rule by which the services find and count addresses.
    pub(crate) client_ip: ClientIp,
    /// The realms of the services, in addition to the predefined ones.
    pub(crate) realms: Vec<Realm>,
    pub(crate) log_secret: Option<String>,
}

impl Settings {
    /// Reads the settings.
    ///
    /// # Errors
    ///
    /// Returns an error that names the variable and the expected value. The tokens are required, so
    /// that the server is never open.
    pub(crate) fn from_environment(
        read: impl Fn(&str) -> Option<String>,
    ) -> Result<Self, InvalidSetting> {
        let read = |name| read(name).filter(|value| !value.is_empty());
        let wrong = |name, expected: &str| InvalidSetting(format!("{name}: expected {expected}"));
        let database = read("DATABASE_URL").ok_or_else(|| {
            wrong("DATABASE_URL", "postgres://user:password@host/database or sqlite://file")
        })?;
        let layout = match read("RL_REDIS_LAYOUT").as_deref() {
            None | Some("packed") => Layout::Packed,
            Some("readable") => Layout::Readable,
            Some(_) => return Err(wrong("RL_REDIS_LAYOUT", "packed or readable")),
        };
        let zero_means = match read("RL_ZERO_MEANS").as_deref() {
            None | Some("blocked") => ZeroMeans::Blocked,
            Some("unlimited") => ZeroMeans::Unlimited,
            Some(_) => return Err(wrong("RL_ZERO_MEANS", "blocked or unlimited")),
        };
        let is_true = |name| match read(name).as_deref() {
            None | Some("false") => Ok(false),
            Some("true") => Ok(true),
            Some(_) => Err(wrong(name, "true or false")),
        };
        let require_if_match = is_true("RL_ADMIN_REQUIRE_IF_MATCH")?;
        let proxies = read("RL_ADMIN_TRUSTED_PROXIES").unwrap_or_default();
        let proxies: TrustedProxies = proxies.parse().map_err(|error: InvalidProxies| {
            InvalidSetting(format!("RL_ADMIN_TRUSTED_PROXIES: {error}"))
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
        let console = ConsoleSettings::read(read, &prefix)?;
        Ok(Self {
            database,
            redis: read("RL_REDIS_URL"),
            layout,
            namespace: read("RL_NAMESPACE").unwrap_or_else(|| "default".to_owned()),
            listen: read("RL_ADMIN_LISTEN").unwrap_or_else(|| "127.0.0.1:8090".to_owned()),
            prefix,
            console,
            webhooks: WebhookSettings::read(read)?,
            tokens: tokens(read)?,
            attempts,
            require_if_match,
            defaults: defaults(read)?,
            zero_means,
            records_rule: read("RL_RECORDS_RULE"),
            anonymous: limit(read, "RL_ANONYMOUS_PER_HOUR")?.unwrap_or(CallLimit::AtMost(1_000)),
            client_ip: client_ip(read)?,
            realms: realms(read)?,
            log_secret: read("RL_LOG_SECRET"),
        })
    }
}

fn tokens(read: impl Fn(&'static str) -> Option<String>) -> Result<BearerTokens, InvalidSetting> {
    let (name, json) = match (read("RL_ADMIN_TOKENS"), read("RL_ADMIN_TOKENS_FILE")) {
        (Some(json), None) => ("RL_ADMIN_TOKENS", json),
        (None, Some(path)) => {
            let name = "RL_ADMIN_TOKENS_FILE";
            let json = std::fs::read_to_string(&path);
            (name, json.map_err(|error| InvalidSetting(format!("{name} {path}: {error}")))?)
        }
        (Some(_), Some(_)) => {
            let both = "RL_ADMIN_TOKENS and RL_ADMIN_TOKENS_FILE: expected one of the two";
            return Err(InvalidSetting(both.to_owned()));
        }
        (None, None) => {
            let none = "no actor could use this API: expected RL_ADMIN_TOKENS or RL_ADMIN_TOKENS_FILE, \
                        a list such as [{\"name\": \"alice\", \"token\": \"…\", \
                        \"roles\": [\"CanReadCallLimits\"]}]";
            return Err(InvalidSetting(none.to_owned()));
        }
    };
    let tokens = BearerTokens::from_json(&json);
    let tokens = tokens.map_err(|error| InvalidSetting(format!("{name}: {error}")))?;
    if tokens.is_empty() {
        return Err(InvalidSetting(format!("{name}: expected at least one token")));
    }
    Ok(tokens)
}

/// Reads the length of the networks by which the services count IPv6 addresses.
fn client_ip(read: impl Fn(&'static str) -> Option<String>) -> Result<ClientIp, InvalidSetting> {
    let Some(text) = read("RL_IPV6_PREFIX") else { return Ok(ClientIp::peer()) };
    let rule = text.parse().ok().and_then(|bits| ClientIp::peer().ipv6_prefix(bits).ok());
    rule.ok_or_else(|| InvalidSetting(format!("RL_IPV6_PREFIX {text:?}: expected 32 to 128 bits")))
}

/// Reads the names of realms, separated by commas.
fn realms(read: impl Fn(&'static str) -> Option<String>) -> Result<Vec<Realm>, InvalidSetting> {
    let names = read("RL_REALMS").unwrap_or_default();
    let names = names.split(',').map(str::trim).filter(|_| !names.is_empty());
    let realms = names.map(Realm::custom).collect::<Result<_, _>>();
    realms.map_err(|error| InvalidSetting(format!("RL_REALMS: {error}")))
}

/// Reads the limits of consumers without records. The services must have the same setting.
fn defaults(read: impl Fn(&'static str) -> Option<String>) -> Result<CallLimits, InvalidSetting> {
    let mut limits = CallLimits::UNLIMITED;
    for (period, name) in CallPeriod::ALL.into_iter().zip([
        "RL_DEFAULT_PER_SECOND",
        "RL_DEFAULT_PER_MINUTE",
        "RL_DEFAULT_PER_HOUR",
        "RL_DEFAULT_PER_DAY",
        "RL_DEFAULT_PER_WEEK",
        "RL_DEFAULT_PER_MONTH",
    ]) {
        if let Some(limit) = limit(&read, name)? {
            limits = limits.with(period, limit);
        }
    }
    Ok(limits)
}

fn limit(
    read: impl Fn(&'static str) -> Option<String>,
    name: &'static str,
) -> Result<Option<CallLimit>, InvalidSetting> {
    let Some(text) = read(name) else { return Ok(None) };
    let number = text.parse::<i64>().ok();
    let limit = number.and_then(|number| CallLimit::from_number(name, number).ok());
    let expected = "-1 (no limit), or 0 to 9007199254740991 calls";
    let wrong = || InvalidSetting(format!("{name} {text:?}: expected {expected}"));
    limit.map(Some).ok_or_else(wrong)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TOKENS: &str =
        r#"[{"name": "alice", "token": "a-long-and-random-token", "roles": ["CanSetCallLimits"]}]"#;

    fn settings(variables: &[(&str, &str)]) -> Result<Settings, String> {
        let find = |name: &str| variables.iter().find(|(known, _)| *known == name);
        let read = |name: &str| find(name).map(|(_, value)| (*value).to_owned());
        Settings::from_environment(read).map_err(|error| error.to_string())
    }

    #[test]
    fn only_the_database_and_the_tokens_are_required() {
        let database = ("DATABASE_URL", "sqlite::memory:");
        let least = settings(&[database, ("RL_ADMIN_TOKENS", TOKENS)]).unwrap();
        assert_eq!((&*least.listen, &*least.prefix), ("127.0.0.1:8090", ""));
        assert_eq!(least.defaults, CallLimits::UNLIMITED);
        assert_eq!(least.anonymous, CallLimit::AtMost(1_000));
        assert!(!least.tokens.is_empty() && !least.require_if_match);

        let error = settings(&[("RL_ADMIN_TOKENS", TOKENS)]).err().unwrap();
        assert!(error.starts_with("DATABASE_URL: expected postgres://"), "{error}");
        for tokens in [&[][..], &[("RL_ADMIN_TOKENS", "")], &[("RL_ADMIN_TOKENS", "[]")]] {
            let error = settings(&[&[database], tokens].concat()).err().unwrap();
            assert!(error.contains("RL_ADMIN_TOKENS") && error.contains("expected"), "{error}");
        }
    }

    #[test]
    fn realms_are_separated_by_commas() {
        let base = [("DATABASE_URL", "sqlite::memory:"), ("RL_ADMIN_TOKENS", TOKENS)];
        assert_eq!(settings(&base).unwrap().realms, []);
        let two = [base[0], base[1], ("RL_REALMS", "tenant, partner")];
        let expected = ["tenant", "partner"].map(|name| Realm::custom(name).unwrap());
        assert_eq!(settings(&two).unwrap().realms, expected);
    }

    #[test]
    fn errors_name_the_variable_and_the_expected_value() {
        #[rustfmt::skip]
        let table = [
            ("RL_REDIS_LAYOUT", "compact", "RL_REDIS_LAYOUT: expected packed or readable"),
            ("RL_ZERO_MEANS", "nothing", "RL_ZERO_MEANS: expected blocked or unlimited"),
            ("RL_ADMIN_REQUIRE_IF_MATCH", "1", "RL_ADMIN_REQUIRE_IF_MATCH: expected true or false"),
            ("RL_ADMIN_EXEMPT_LOOPBACK", "yes", "RL_ADMIN_EXEMPT_LOOPBACK: expected true or false"),
            ("RL_ADMIN_FAILED_ATTEMPTS", "0", "RL_ADMIN_FAILED_ATTEMPTS: expected a number from 1"),
            ("RL_ADMIN_TRUSTED_PROXIES", "10.0.0.0/33", "RL_ADMIN_TRUSTED_PROXIES: trusted proxy \"10.0"),
            ("RL_ADMIN_PREFIX", "obp/", "RL_ADMIN_PREFIX: expected a path such as /obp/v6.0.0"),
            ("RL_DEFAULT_PER_HOUR", "-2", "RL_DEFAULT_PER_HOUR \"-2\": expected -1 (no limit)"),
            ("RL_ANONYMOUS_PER_HOUR", "many", "RL_ANONYMOUS_PER_HOUR \"many\": expected -1 (no limit)"),
            ("RL_IPV6_PREFIX", "129", "RL_IPV6_PREFIX \"129\": expected 32 to 128 bits"),
            ("RL_IPV6_PREFIX", "/56", "RL_IPV6_PREFIX \"/56\": expected 32 to 128 bits"),
            ("RL_REALMS", "tenant,Partner", "RL_REALMS: realm \"Partner\": expected 1 to 32 characters"),
            ("RL_REALMS", "tenant,", "RL_REALMS: realm \"\": expected 1 to 32 characters"),
            ("RL_REALMS", "consumer", "RL_REALMS: realm \"consumer\": expected 1 to 32 characters"),
            ("RL_ADMIN_TOKENS", "alice", "RL_ADMIN_TOKENS: line 1 column 1: expected a list"),
            ("RL_ADMIN_TOKENS_FILE", "/nowhere", "RL_ADMIN_TOKENS and RL_ADMIN_TOKENS_FILE: expected one"),
        ];
        for (name, value, message) in table {
            let all =
                [(name, value), ("DATABASE_URL", "sqlite::memory:"), ("RL_ADMIN_TOKENS", TOKENS)];
            let error = settings(&all).err().unwrap();
            assert!(error.starts_with(message), "{error}");
        }
    }
}
