//! The settings of the program that the server shares with the services.

use std::path::Path;

use rl_admin::settings::section::{Section, SectionTexts, secret};
use rl_admin::settings::yaml::{read_as, read_text};
use rl_admin::settings::{AdminSettings, InvalidSetting, RecordsSettings};
use rl_core::client_ip::ClientIp;
use rl_core::store::Layout;
use serde::Deserialize;

/// The settings that the server reads from a file and from environment variables.
pub(crate) struct Settings {
    pub(crate) records: RecordsSettings,
    pub(crate) admin: AdminSettings,
    pub(crate) redis: Option<String>,
    pub(crate) layout: Layout,
    pub(crate) namespace: String,
    /// The rule under which the services count consumers by the records, if they have rules.
    pub(crate) records_rule: Option<String>,
    /// The rule by which the services find and count addresses.
    pub(crate) client_ip: ClientIp,
    pub(crate) log_secret: Option<String>,
}

/// The settings file, if there is one, and the environment variables, which override it.
pub(crate) struct Sources<V> {
    file: Option<SettingsFile>,
    variable: V,
}

/// The text of a file, which has the structure of the decision server's file.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct FileText {
    #[serde(default)]
    store: Option<String>,
    #[serde(default)]
    server: ServerText,
}

#[derive(Default, Deserialize)]
struct ServerText {
    #[serde(default)]
    records: SectionTexts,
    #[serde(default)]
    admin: SectionTexts,
    #[serde(flatten)]
    own: SectionTexts,
}

/// The values of a file.
struct SettingsFile {
    path: String,
    store: Option<String>,
    sections: [Section; 3],
}

impl Settings {
    /// Reads the settings.
    ///
    /// # Errors
    ///
    /// Returns an error that names the variable, or the place in the file, and the expected value.
    /// The tokens are required, so that the server is never open.
    pub(crate) fn read<V: Fn(&str) -> Option<String>>(
        sources: &Sources<V>,
    ) -> Result<Self, String> {
        Self::of(|name| sources.value(name))
            .map_err(|error| format!("{}: {}", sources.place(error.variable()), error.reason()))
    }

    fn of(read: impl Fn(&'static str) -> Option<String> + Copy) -> Result<Self, InvalidSetting> {
        let records = RecordsSettings::read(read)?;
        let layout = match read("RL_REDIS_LAYOUT").as_deref() {
            None | Some("packed") => Layout::Packed,
            Some("readable") => Layout::Readable,
            Some(_) => {
                return Err(InvalidSetting::new("RL_REDIS_LAYOUT", "expected packed or readable"));
            }
        };
        Ok(Self {
            records,
            admin: AdminSettings::read(read)?,
            redis: read("RL_REDIS_URL"),
            layout,
            namespace: read("RL_NAMESPACE").unwrap_or_else(|| "default".to_owned()),
            records_rule: read("RL_RECORDS_RULE"),
            client_ip: client_ip(read)?,
            log_secret: read("RL_LOG_SECRET"),
        })
    }
}

impl<V: Fn(&str) -> Option<String>> Sources<V> {
    /// Reads the file, if there is one.
    ///
    /// # Errors
    ///
    /// Returns an error that names the place in the file.
    pub(crate) fn new(file: Option<&Path>, variable: V) -> Result<Self, String> {
        Ok(Self { file: file.map(SettingsFile::read).transpose()?, variable })
    }

    /// Returns the name of a setting for an error: its place in the file, unless its variable is
    /// set.
    pub(crate) fn place(&self, variable: &str) -> String {
        let mut names = variable.split([' ', ',']);
        let file = self.file.as_ref().filter(|_| names.all(|name| self.variable(name).is_none()));
        file.and_then(|file| file.place(variable)).unwrap_or_else(|| variable.to_owned())
    }

    fn value(&self, name: &str) -> Option<String> {
        // A variable that names a file overrides the same value in the settings file, too.
        let is_overridden = self.variable(&format!("{name}_FILE")).is_some();
        let in_file = || self.file.as_ref().filter(|_| !is_overridden)?.value(name);
        self.variable(name).or_else(in_file)
    }

    /// Returns the value of an environment variable, unless it is empty.
    fn variable(&self, name: &str) -> Option<String> {
        (self.variable)(name).filter(|value| !value.is_empty())
    }
}

impl SettingsFile {
    fn read(path: &Path) -> Result<Self, String> {
        let shown = path.display();
        let text = read_text(path)?;
        let text: FileText = read_as(path, &text).map_err(|error| format!("{shown}: {error}"))?;
        let in_file = |error| format!("{shown}: {error}");
        let folder = path.parent().unwrap_or(Path::new(""));
        let FileText { store, server: ServerText { own, records, admin } } = text;
        let store = store.map(|store| secret(&store, folder)).transpose();
        let store = store.map_err(|error| format!("{shown}: store: {error}"))?;
        let section = |name, texts| Section::new(name, texts, folder).map_err(in_file);
        let sections =
            [section("records", &records)?, section("admin", &admin)?, section("", &own)?];
        Ok(Self { path: shown.to_string(), store, sections })
    }

    fn value(&self, variable: &str) -> Option<String> {
        match variable {
            "RL_REDIS_URL" => self.store.clone().filter(|store| !store.is_empty()),
            _ => self.sections.iter().find_map(|section| section.value(variable)),
        }
    }

    fn place(&self, variable: &str) -> Option<String> {
        let place = match variable {
            "RL_REDIS_URL" => Some("store".to_owned()),
            _ => self.sections.iter().find_map(|section| section.place(variable)),
        };
        place.map(|place| format!("{}: {place}", self.path))
    }
}

/// Reads the length of the networks by which the services count IPv6 addresses.
fn client_ip(read: impl Fn(&'static str) -> Option<String>) -> Result<ClientIp, InvalidSetting> {
    let Some(text) = read("RL_IPV6_PREFIX") else { return Ok(ClientIp::peer()) };
    let rule = text.parse().ok().and_then(|bits| ClientIp::peer().ipv6_prefix(bits).ok());
    let wrong = || format!("{text:?}: expected 32 to 128 bits");
    rule.ok_or_else(|| InvalidSetting::new("RL_IPV6_PREFIX", wrong()))
}

#[cfg(test)]
mod tests {
    use rl_core::RedisStore;

    use super::*;

    const TOKENS: &str =
        r#"[{"name": "alice", "token": "a-long-and-random-token", "roles": ["CanSetCallLimits"]}]"#;

    fn settings(variables: &[(&str, &str)]) -> Result<Settings, String> {
        let find = |name: &str| variables.iter().find(|(known, _)| *known == name);
        let read = |name: &str| find(name).map(|(_, value)| (*value).to_owned());
        Settings::read(&Sources::new(None, read)?)
    }

    /// Returns the settings of a file with this text, and these variables.
    fn with_file(text: &str, variables: &[(&str, &str)]) -> Result<Settings, String> {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("admin.yaml");
        std::fs::write(&file, text).unwrap();
        std::fs::write(folder.path().join("tokens.json"), TOKENS).unwrap();
        let find = |name: &str| variables.iter().find(|(known, _)| *known == name);
        let read = |name: &str| find(name).map(|(_, value)| (*value).to_owned());
        let settings = Sources::new(Some(&file), read).and_then(|sources| Settings::read(&sources));
        let folder = format!("{}/", folder.path().display());
        settings.map_err(|error| error.replace(&folder, ""))
    }

    #[test]
    fn an_empty_variable_counts_as_unset() {
        let required = [("DATABASE_URL", "sqlite::memory:"), ("RL_ADMIN_TOKENS", TOKENS)];
        let least = settings(&[required[0], required[1], ("RL_ADMIN_LISTEN", "")]).unwrap();
        assert_eq!((least.admin.listen(), &*least.namespace), ("127.0.0.1:8090", "default"));
        let error = settings(&[required[0], ("RL_ADMIN_TOKENS", "")]).err().unwrap();
        assert!(error.starts_with("RL_ADMIN_TOKENS: no actor could use this API"), "{error}");
    }

    #[test]
    fn errors_name_the_variable_and_the_expected_value() {
        for (name, value, message) in [
            ("RL_REDIS_LAYOUT", "compact", "RL_REDIS_LAYOUT: expected packed or readable"),
            ("RL_IPV6_PREFIX", "129", "RL_IPV6_PREFIX: \"129\": expected 32 to 128 bits"),
            ("RL_IPV6_PREFIX", "/56", "RL_IPV6_PREFIX: \"/56\": expected 32 to 128 bits"),
        ] {
            let all =
                [(name, value), ("DATABASE_URL", "sqlite::memory:"), ("RL_ADMIN_TOKENS", TOKENS)];
            let error = settings(&all).err().unwrap();
            assert!(error.starts_with(message), "{error}");
        }
    }

    const FILE: &str = r#"
store: "rediss-sentinel://10.0.0.1,10.0.0.2?ca=/etc/rl/ca.pem#main"
server:
  namespace: edge
  redis_layout: readable
  records_rule: consumers
  ipv6_prefix: 56
  log_secret: a secret of 32 random characters
  records: { database: "sqlite::memory:", default_per_hour: 7, zero_means: unlimited }
  admin:
    listen: 127.0.0.1:1
    tokens: file:tokens.json
    prefix: /obp/v6.0.0
    trusted_proxies: [10.0.0.1, 10.0.0.2]
    require_if_match: true
    realms: [tenant, partner]
    oidc_issuer: https://login.example.com
    oidc_client_id: console
    oidc_client_secret: swordfish
    oidc_roles: { admins: { roles: [CanGetRateLimits] } }
    oidc_name: Example
"#;

    #[test]
    fn a_file_has_every_setting_and_variables_override_it() {
        let settings = with_file(FILE, &[]).unwrap();
        assert_eq!((&*settings.namespace, settings.layout), ("edge", Layout::Readable));
        RedisStore::check_url(&settings.redis.unwrap()).unwrap();
        assert_eq!(settings.records_rule.as_deref(), Some("consumers"));
        assert_eq!(
            (settings.admin.listen(), settings.admin.prefix()),
            ("127.0.0.1:1", "/obp/v6.0.0")
        );
        let shown = format!("{:?}", settings.admin);
        assert!(shown.contains("login.example.com") && !shown.contains("swordfish"), "{shown}");

        let variables = [
            ("RL_NAMESPACE", "other"),
            ("RL_ADMIN_LISTEN", ""),
            ("RL_ADMIN_PREFIX", "/v2"),
            ("RL_REDIS_URL", "redis://127.0.0.1/"),
            ("RL_ADMIN_TOKENS_FILE", "/nowhere"),
        ];
        let settings = with_file(FILE, &variables[..4]).unwrap();
        assert_eq!((&*settings.namespace, settings.admin.prefix()), ("other", "/v2"));
        assert_eq!(settings.admin.listen(), "127.0.0.1:1", "an empty variable counts as unset");
        assert_eq!(settings.redis.as_deref(), Some("redis://127.0.0.1/"));
        let error = with_file(FILE, &variables).err().unwrap();
        assert!(error.starts_with("RL_ADMIN_TOKENS_FILE: /nowhere: "), "{error}");
    }

    #[test]
    fn errors_name_the_place_in_the_file_or_the_variable_that_overrides_it() {
        let with = |from: &str, to: &str| FILE.replace(from, to);
        #[rustfmt::skip]
        let table = [
            (with("store:", "stores:"), "admin.yaml: line 2, column 1: unknown field"),
            (with("  namespace: edge", "  namespaces: edge"), "admin.yaml: server: namespaces: unknown setting, expected namespace, "),
            (with("database:", "databse:"), "admin.yaml: server: records: databse: unknown setting, "),
            (with("readable", "compact"), "admin.yaml: server: redis_layout: expected packed or readable"),
            (with("sqlite::memory:", "oracle://hunter2"), "admin.yaml: server: records: database: unknown kind"),
            (with("{ database: \"sqlite::memory:\",", "{"), "admin.yaml: server: records: database: expected postgres"),
            (with("/obp/v6.0.0", "obp"), "admin.yaml: server: admin: prefix: expected a path"),
            (with("file:tokens.json", "file:none.json"), "admin.yaml: server: admin: tokens: none.json: No such file"),
            (with("    tokens: file:tokens.json\n", ""), "admin.yaml: server: admin: tokens: no actor could"),
            (with("https://login", "ftp://login"), "admin.yaml: server: admin: oidc_issuer: expected the issuer"),
            (with("[CanGetRateLimits]", "[Admin]"), "admin.yaml: server: admin: oidc_roles: \"admins\": role \"Admin\""),
            (with("56", "129"), "admin.yaml: server: ipv6_prefix: \"129\": expected 32 to 128 bits"),
            (with("swordfish", "\"${RL_NO_SUCH_VARIABLE}\""), "admin.yaml: server: admin: oidc_client_secret: variable ${"),
        ];
        for (text, expected) in table {
            let error = with_file(&text, &[]).err().unwrap();
            assert!(error.starts_with(expected), "{error}");
            assert!(!error.contains("hunter2") && !error.contains("swordfish"), "{error}");
        }
        let error = with_file(FILE, &[("RL_ADMIN_PREFIX", "obp")]).err().unwrap();
        assert!(error.starts_with("RL_ADMIN_PREFIX: expected a path"), "{error}");
    }
}
