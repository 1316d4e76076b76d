//! The settings of the program that the server shares with the services.

use rl_admin::settings::{AdminSettings, InvalidSetting, RecordsSettings};
use rl_core::client_ip::ClientIp;
use rl_core::store::Layout;

/// The settings that the server reads from environment variables.
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
        let read = |name: &'static str| read(name).filter(|value| !value.is_empty());
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

/// Reads the length of the networks by which the services count IPv6 addresses.
fn client_ip(read: impl Fn(&'static str) -> Option<String>) -> Result<ClientIp, InvalidSetting> {
    let Some(text) = read("RL_IPV6_PREFIX") else { return Ok(ClientIp::peer()) };
    let rule = text.parse().ok().and_then(|bits| ClientIp::peer().ipv6_prefix(bits).ok());
    let wrong = || format!("{text:?}: expected 32 to 128 bits");
    rule.ok_or_else(|| InvalidSetting::new("RL_IPV6_PREFIX", wrong()))
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
}
