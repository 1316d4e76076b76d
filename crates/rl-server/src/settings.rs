//! The settings of the server: the section `server` of a rule file, and the environment.

use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use indexmap::IndexMap;
use rl_admin::settings::section::{Section, SectionTexts, expanded, secret};
use rl_admin::settings::yaml::read_as;
use rl_admin::settings::{AdminSettings, RecordsSettings};
use rl_core::OnFailure;
use rl_core::Period;
use rl_core::RedisStore;
use rl_core::client_ip::TrustedProxies;
use rl_core::headers::{HeaderFamily, Headers};
use rl_core::store::ConnectError;
use rl_serve::TlsFiles;
use serde::Deserialize;
use serde::de::IgnoredAny;

use crate::http::BearerToken;
use crate::one_or_many;

/// The settings of a [`Server`](crate::Server).
///
/// ```yaml
/// server:
///   listen: 0.0.0.0:8080             # HTTP; 127.0.0.1:8080 by default
///   grpc: 0.0.0.0:8081               # gRPC; 127.0.0.1:8081 by default
///   tls: { cert: tls.crt, key: tls.key, client_ca: clients.crt }
///   token: file:/run/secrets/token   # for /v1/…; or ${VARIABLE}
///   headers: [open-bank]
///   max_connections: 4096            # of each listener
///   max_connection_age: 1h
///   deadline: 15ms                   # of the store
///   on_store_failure: allow          # or reject
///   namespace: gateway
///   shutdown_delay: 5s               # between `not ready` and the end of the listeners
///   records:                         # the database of rules with `limits: records`
///     database: file:/run/secrets/database-url
///     default_per_hour: 1000         # of consumers without records
///     usage_days: 400                # for which the calls of consumers are kept
///   admin:                           # the management API and the console
///     listen: 127.0.0.1:8090
///     tokens: file:tokens.json
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Settings {
    /// The address for HTTP.
    pub listen: String,
    /// The address for gRPC.
    pub grpc: String,
    /// The certificates of both listeners.
    pub tls: Option<TlsFiles>,
    /// The token of callers of `/v1/…`.
    pub token: Option<BearerToken>,
    /// The headers of responses to clients.
    pub headers: Headers,
    /// The maximum number of open connections of each listener. More wait in the backlog. Peers share
    /// them, as [`rl_serve::PeerShares`] describes.
    pub max_connections: usize,
    /// The age at which connections are closed without losing requests.
    pub max_connection_age: Duration,
    /// The time after which the failure policy applies in place of the store. Envoy waits 20 ms by
    /// default.
    pub deadline: Duration,
    /// The treatment of requests that the store does not decide.
    pub on_store_failure: OnFailure,
    /// The namespace of the counters.
    pub namespace: Option<String>,
    /// The time between the report that the server is not ready and the end of its listeners. A
    /// load balancer stops sending requests in it.
    pub shutdown_delay: Duration,
    /// The URL of the store, as [`RedisStore::connect`] reads it; `None` or `memory` for counters in
    /// memory.
    pub store: Option<String>,
    /// The gateways that may describe requests of their clients.
    pub proxies: TrustedProxies,
    /// The database of the rules that take their limits from records.
    pub records: Option<RecordsSettings>,
    /// The management API and the console, on an address of their own.
    pub admin: Option<AdminSettings>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            listen: "127.0.0.1:8080".to_owned(),
            grpc: "127.0.0.1:8081".to_owned(),
            tls: None,
            token: None,
            headers: Headers::default(),
            max_connections: 4_096,
            max_connection_age: Duration::from_secs(3_600),
            deadline: Duration::from_millis(15),
            on_store_failure: OnFailure::Allow,
            namespace: None,
            shutdown_delay: Duration::ZERO,
            store: None,
            proxies: TrustedProxies::default(),
            records: None,
            admin: None,
        }
    }
}

impl Settings {
    /// Checks the settings that are otherwise used first at the start.
    ///
    /// # Errors
    ///
    /// Returns an error if the URL of the store has another form than is expected.
    pub(crate) fn check(&self) -> Result<(), String> {
        self.redis_url().map_or(Ok(()), RedisStore::check_url).map_err(store_error)
    }

    /// Returns the URL of the store, unless the counters are in memory.
    pub(crate) fn redis_url(&self) -> Option<&str> {
        self.store.as_deref().filter(|store| *store != "memory")
    }

    /// Replaces settings by those in the environment: `RL_LISTEN`, `RL_LISTEN_GRPC` and
    /// `RL_REDIS_URL`. An empty variable counts as unset.
    #[must_use]
    pub fn with_environment(mut self, variable: impl Fn(&str) -> Option<String>) -> Self {
        let variable = |name: &str| variable(name).filter(|value| !value.is_empty());
        if let Some(listen) = variable("RL_LISTEN") {
            self.listen = listen;
        }
        if let Some(grpc) = variable("RL_LISTEN_GRPC") {
            self.grpc = grpc;
        }
        if let Some(url) = variable("RL_REDIS_URL") {
            self.store = Some(url);
        }
        self
    }
}

/// Returns the text of an error of the store.
pub(crate) fn store_error(error: ConnectError) -> String {
    let or_memory = if matches!(error, ConnectError::Url { .. }) { "; or memory" } else { "" };
    format!("store: {error}{or_memory}")
}

/// The parts of a rule file that are settings of the server.
#[derive(Clone, Default, Deserialize, PartialEq, Eq)]
pub(crate) struct SettingsText {
    #[serde(default)]
    server: Option<ServerText>,
    /// It is read by the library, and compared here. It may have a password.
    #[serde(default)]
    store: Option<String>,
    #[serde(default, with = "one_or_many")]
    proxies: Vec<String>,
}

/// The settings of rules that this server cannot carry out: its callers hold the requests.
#[derive(Deserialize)]
struct RulesText {
    #[serde(default)]
    rules: IndexMap<String, RuleText>,
}

#[derive(Deserialize)]
struct RuleText {
    #[serde(default)]
    over: Option<Setting>,
    #[serde(default)]
    cost: Option<Setting>,
}

/// A setting that is a text or a number, or has parts.
#[derive(Deserialize)]
#[serde(untagged)]
enum Setting {
    Text(String),
    Number(#[expect(dead_code, reason = "only the type matters")] u64),
    Parts(IgnoredAny),
}

/// Checks that the server can carry out the settings of each rule of a file.
///
/// # Errors
///
/// Returns the first setting that needs the request itself.
pub(crate) fn check_rule_settings(path: &Path, text: &str) -> Result<(), String> {
    let RulesText { rules } = read_as(path, text)?;
    check_settings(rules)
}

/// Checks that the server can carry out the settings of a rule of the database.
///
/// # Errors
///
/// Returns the first setting that needs the request itself.
pub(crate) fn check_stored_rule(name: &str, definition: &str) -> Result<(), String> {
    let rule = read_as(Path::new("definition.yaml"), definition)?;
    check_settings([(name.to_owned(), rule)])
}

fn check_settings(rules: impl IntoIterator<Item = (String, RuleText)>) -> Result<(), String> {
    for (name, rule) in rules {
        let is_rejecting = |over: &Setting| matches!(over, Setting::Text(word) if word == "reject");
        if rule.over.as_ref().is_some_and(|over| !is_rejecting(over)) {
            return Err(format!(
                "rule {name:?}: over: expected reject, because the gateway holds the request"
            ));
        }
        if let Some(Setting::Parts(_)) = rule.cost {
            return Err(format!(
                "rule {name:?}: cost: expected a number, because the server does not see responses; \
                 the caller of /v1/acquire settles the cost"
            ));
        }
    }
    Ok(())
}

/// The section `server`.
#[derive(Clone, Default, Deserialize, PartialEq, Eq)]
#[serde(deny_unknown_fields, default)]
struct ServerText {
    listen: Option<String>,
    grpc: Option<String>,
    tls: Option<TlsText>,
    token: Option<String>,
    #[serde(deserialize_with = "one_or_many::optional")]
    headers: Option<Vec<String>>,
    max_connections: Option<usize>,
    max_connection_age: Option<String>,
    deadline: Option<String>,
    on_store_failure: Option<String>,
    namespace: Option<String>,
    shutdown_delay: Option<String>,
    records: Option<SectionTexts>,
    admin: Option<SectionTexts>,
}

#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
#[serde(deny_unknown_fields)]
struct TlsText {
    cert: PathBuf,
    key: PathBuf,
    client_ca: Option<PathBuf>,
}

impl SettingsText {
    /// Reads the settings in the text of a rule file.
    ///
    /// # Errors
    ///
    /// Returns the reason why they are not valid. It contains no secret.
    pub(crate) fn read(path: &Path, text: &str) -> Result<Self, String> {
        read_as(path, text)
    }

    /// Returns whether there is a section with the database of records.
    pub(crate) fn has_records(&self) -> bool {
        self.server.as_ref().is_some_and(|server| server.records.is_some())
    }

    /// Checks the values. Relative paths begin in the folder of the rule file.
    ///
    /// # Errors
    ///
    /// Returns the first value that is not valid, and what is expected. It contains no secret.
    pub(crate) fn settings(&self, file: &Path) -> Result<Settings, String> {
        let folder = file.parent().unwrap_or(Path::new(""));
        let mut settings = Settings::default();
        let proxies: Result<Vec<_>, _> = self.proxies.iter().map(|text| expanded(text)).collect();
        let proxies = proxies.map_err(in_setting("proxies"))?;
        // A variable may have several, with commas between them.
        let proxies = proxies.iter().flat_map(|text| text.split(',')).map(str::trim);
        settings.proxies =
            TrustedProxies::new(proxies).map_err(|error| format!("proxies: {error}"))?;
        let Some(server) = &self.server else { return Ok(settings) };
        let set = |value: &mut String, text: &Option<String>, name| {
            let Some(text) = text else { return Ok(()) };
            *value = expanded(text).map_err(in_setting(name))?;
            let port = value.rsplit_once(':').map(|(_, port)| port.parse::<u16>());
            // The text does not show the value of a variable.
            let has_port = matches!(port, Some(Ok(_)));
            has_port
                .then_some(())
                .ok_or_else(|| format!("server: {name} {text:?}: expected HOST:PORT"))
        };
        set(&mut settings.listen, &server.listen, "listen")?;
        set(&mut settings.grpc, &server.grpc, "grpc")?;
        settings.tls = server.tls.as_ref().map(|tls| TlsFiles {
            cert: folder.join(&tls.cert),
            key: folder.join(&tls.key),
            client_ca: tls.client_ca.as_ref().map(|path| folder.join(path)),
        });
        if let Some(token) = &server.token {
            let token = secret(token, folder).map_err(in_setting("token"))?;
            let token = BearerToken::new(&token).map_err(|error| format!("server: {error}"))?;
            settings.token = Some(token);
        }
        if let Some(families) = &server.headers {
            settings.headers = headers(families).map_err(in_setting("headers"))?;
        }
        match server.max_connections {
            Some(0) => return Err("server: max_connections: expected at least 1".to_owned()),
            Some(max) => settings.max_connections = max,
            None => {}
        }
        let time = |value: &mut Duration, text: &Option<String>, name| match text {
            Some(text) => duration(text).map(|time| *value = time).map_err(in_setting(name)),
            None => Ok(()),
        };
        time(&mut settings.max_connection_age, &server.max_connection_age, "max_connection_age")?;
        time(&mut settings.deadline, &server.deadline, "deadline")?;
        time(&mut settings.shutdown_delay, &server.shutdown_delay, "shutdown_delay")?;
        settings.on_store_failure = match server.on_store_failure.as_deref() {
            None | Some("allow") => OnFailure::Allow,
            Some("reject") => OnFailure::Reject,
            Some(other) => {
                return Err(format!(
                    "server: on_store_failure {other:?}: expected allow or reject"
                ));
            }
        };
        settings.namespace.clone_from(&server.namespace);
        if let Some(texts) = &server.records {
            let section = Section::new("records", texts, folder)?;
            settings.records = Some(section.read(|read| RecordsSettings::read(read))?);
        }
        if let Some(texts) = &server.admin {
            let section = Section::new("admin", texts, folder)?;
            settings.admin = Some(section.read(|read| AdminSettings::read(read))?);
        }
        Ok(settings)
    }
}

impl fmt::Debug for ServerText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServerText")
            .field("listen", &self.listen)
            .field("grpc", &self.grpc)
            .finish_non_exhaustive()
    }
}

fn in_setting(name: &'static str) -> impl Fn(String) -> String {
    move |reason| match name {
        "proxies" => format!("proxies: {reason}"),
        _ => format!("server: {name}: {reason}"),
    }
}

fn duration(text: &str) -> Result<Duration, String> {
    if text == "0s" {
        return Ok(Duration::ZERO);
    }
    let period: Result<Period, _> = text.parse();
    let period =
        period.map_err(|_| format!("{text:?}: expected a time, such as 15ms, 5s or 1h"))?;
    Ok(Duration::from_millis(period.as_millis()))
}

/// The names of header families in files.
const FAMILIES: [(&str, HeaderFamily); 10] = [
    ("open-bank", HeaderFamily::OpenBank),
    ("github", HeaderFamily::GitHub),
    ("ietf", HeaderFamily::IetfDraft11),
    ("ietf-07", HeaderFamily::IetfDraft07),
    ("ietf-06", HeaderFamily::IetfDraft06),
    ("ietf-03", HeaderFamily::IetfDraft03),
    ("envoy", HeaderFamily::Envoy),
    ("legacy", HeaderFamily::Legacy),
    ("twitter", HeaderFamily::Twitter),
    ("zuul", HeaderFamily::Zuul),
];

fn headers(names: &[String]) -> Result<Headers, String> {
    let mut headers: Option<Headers> = None;
    for name in names {
        let found = FAMILIES.iter().find(|(known, _)| *known == name);
        let (_, family) = *found.ok_or_else(|| {
            let known: Vec<_> = FAMILIES.iter().map(|(known, _)| *known).collect();
            format!("{name:?}: expected {}", known.join(", "))
        })?;
        headers = Some(match headers {
            None => Headers::new(family),
            Some(headers) => {
                // Each family has `Retry-After` and the warning.
                let shared: Vec<_> = Headers::none().names().collect();
                let taken: Vec<_> = headers.names().filter(|name| !shared.contains(name)).collect();
                if Headers::new(family).names().any(|name| taken.contains(&name)) {
                    return Err(format!("{name:?}: expected no family with the same fields twice"));
                }
                headers.and(family)
            }
        });
    }
    Ok(headers.unwrap_or_else(Headers::none))
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::time::Duration;

    use rl_core::OnFailure;

    use super::{Settings, SettingsText};

    fn read(text: &str) -> Result<Settings, String> {
        let path = Path::new("/etc/rl/limits.yaml");
        SettingsText::read(path, text)?.settings(path)
    }

    #[test]
    fn a_file_without_settings_has_the_defaults_and_other_sections_are_ignored() {
        let text =
            "rules: { all: { limits: 1/second } }\nproxies: \"${RL_NO_SUCH_VARIABLE:-10.0.0.0/8}\"";
        let settings = read(text).unwrap();
        assert_eq!((&*settings.listen, &*settings.grpc), ("127.0.0.1:8080", "127.0.0.1:8081"));
        assert_eq!(settings.deadline, Duration::from_millis(15));
        assert!(settings.proxies.contains("10.1.1.1".parse().unwrap()));
        assert!(!settings.proxies.contains("11.1.1.1".parse().unwrap()));
    }

    #[test]
    fn every_setting_is_read_and_relative_paths_begin_beside_the_file() {
        let folder = tempfile::tempdir().unwrap();
        let token = folder.path().join("token");
        std::fs::write(&token, "a-token-of-twenty-characters\n").unwrap();
        let tokens = folder.path().join("tokens.json");
        let list = r#"[{"name": "alice", "token": "a-long-and-random-token", "roles": []}]"#;
        std::fs::write(&tokens, list).unwrap();
        let text = format!(
            "server:\n  listen: 0.0.0.0:1\n  grpc: 0.0.0.0:2\n  token: file:{}\n  \
             tls: {{ cert: tls.crt, key: /k, client_ca: ca.crt }}\n  headers: [ietf, open-bank]\n  \
             max_connections: 7\n  max_connection_age: 2h\n  deadline: 9ms\n  \
             on_store_failure: reject\n  namespace: edge\n  shutdown_delay: 5s\n  \
             records: {{ database: \"sqlite::memory:\", default_per_hour: 7 }}\n  \
             admin: {{ listen: 127.0.0.1:1, tokens: file:{}, failed_attempts: 3, \
             require_if_match: true, trusted_proxies: [10.0.0.1, 10.0.0.2], \
             oidc_issuer: https://login.example.com, oidc_client_id: console, \
             oidc_client_secret: a-long-and-random-token, \
             oidc_roles: {{ admins: {{ roles: [CanGetRateLimits] }} }} }}\n",
            token.display(),
            tokens.display()
        );
        let settings = read(&text).unwrap();
        let shown = format!("{settings:?}");
        assert!(!shown.contains("a-long-and-random-token") && !shown.contains("sqlite"), "{shown}");
        assert!(shown.contains("https://login.example.com"), "{shown}");
        assert!(settings.records.is_some());
        let tls = settings.tls.unwrap();
        assert_eq!(tls.cert, Path::new("/etc/rl/tls.crt"));
        assert_eq!(tls.key, Path::new("/k"));
        assert_eq!(tls.client_ca.unwrap(), Path::new("/etc/rl/ca.crt"));
        assert!(settings.token.is_some());
        assert_eq!(settings.max_connections, 7);
        assert_eq!(settings.max_connection_age, Duration::from_secs(7_200));
        assert_eq!(settings.deadline, Duration::from_millis(9));
        assert_eq!(settings.on_store_failure, OnFailure::Reject);
        assert_eq!(settings.namespace.as_deref(), Some("edge"));
        assert_eq!(settings.shutdown_delay, Duration::from_secs(5));
        assert_eq!(settings.admin.unwrap().listen(), "127.0.0.1:1");
        assert!(settings.headers.names().any(|name| name == "ratelimit-policy"));
    }

    #[test]
    fn errors_name_the_setting_and_show_no_secret() {
        for (text, expected) in [
            ("server: { liste: x }", "unknown field"),
            ("server: { listen: nope }", "server: listen \"nope\": expected HOST:PORT"),
            ("server: { grpc: \"${PATH}\" }", "server: grpc \"${PATH}\": expected HOST:PORT"),
            ("server: { headers: [x] }", "server: headers: \"x\": expected open-bank, "),
            ("server: { headers: [ietf, ietf-07] }", "server: headers: \"ietf-07\": expected no"),
            ("server: { max_connections: 0 }", "server: max_connections: expected at least 1"),
            ("server: { deadline: soon }", "server: deadline: \"soon\": expected a time"),
            ("server: { on_store_failure: x }", "expected allow or reject"),
            ("server: { token: short-secret }", "server: token: expected at least 20"),
            ("server: { token: \"${RL_NO_SUCH_VARIABLE}\" }", "server: token: variable"),
            ("server: { token: file:/none }", "server: token: /none: No such file"),
            ("proxies: [10.0.0.0/33]", "proxies: "),
            ("server: { records: {} }", "server: records: database: expected postgres://"),
            ("server: { records: { database: \"oracle://secret\" } }", "database: unknown kind of"),
            (
                "server: { records: { databse: x } }",
                "server: records: databse: unknown setting, exp",
            ),
            (
                "server: { records: { database: \"sqlite::memory:\", default_per_day: -2 } }",
                "server: records: default_per_day: \"-2\": expected -1 (no limit)",
            ),
            ("server: { admin: { listen: x } }", "server: admin: tokens: no actor could use"),
            (
                "server: { admin: { tokens: '[{\"name\":\"a\",\"token\":\"twenty-characters-xyz\",\"roles\":[]}]', \
                 oidc_issuer: https://a.example, oidc_client_id: a, oidc_client_secret: b, \
                 oidc_roles: { a: { roles: [Admin] } } } }",
                "server: admin: oidc_roles: \"a\": role \"Admin\": expected one of",
            ),
            ("server: { admin: { tokens: file:/none } }", "server: admin: tokens: /none: No such"),
            ("server: { admin: { tokens: \"[]\" } }", "admin: tokens: expected at least one token"),
            (
                "server: { admin: { tokens: a-secret } }",
                "server: admin: tokens: line 1 column 1: expected a list",
            ),
            (
                "server: { admin: { console: true, \
                 tokens: '[{\"name\":\"a\",\"token\":\"twenty-characters-xyz\",\"roles\":[]}]' } }",
                "server: admin: console: exp",
            ),
        ] {
            let error = read(text).unwrap_err();
            assert!(error.contains(expected) && !error.contains("secret"), "{text}: {error}");
        }
    }

    #[test]
    fn the_environment_overrides_the_file_unless_a_variable_is_empty() {
        let variable = |name: &str| match name {
            "RL_LISTEN" => Some("127.0.0.1:0".to_owned()),
            "RL_LISTEN_GRPC" => Some(String::new()),
            _ => None,
        };
        let settings = read("server: { listen: x:1, grpc: y:2 }").unwrap();
        let settings = settings.with_environment(variable);
        assert_eq!((&*settings.listen, &*settings.grpc), ("127.0.0.1:0", "y:2"));
    }
}
