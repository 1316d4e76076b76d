//! The settings of this crate in a file, by name: that of their variable in lower case, without
//! `RL_` and `ADMIN_`.

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;

use indexmap::IndexMap;
use serde::Deserialize;
use serde_json::Value;

use super::InvalidSetting;
use super::yaml::read_text;

/// The texts of a section, by name.
pub type SectionTexts = BTreeMap<String, SettingText>;

/// The text of a setting, as a file contains it.
#[derive(Clone, Deserialize, PartialEq, Eq)]
#[serde(untagged)]
pub enum SettingText {
    /// `true` or `false`.
    Flag(bool),
    /// A number.
    Number(i64),
    /// A text, `${VARIABLE}` or `file:PATH`.
    Text(String),
    /// A list of texts, which commas join.
    List(Vec<String>),
    /// A map, which becomes JSON.
    Map(IndexMap<String, Value>),
}

/// Omits the content, which may be a secret.
impl fmt::Debug for SettingText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SettingText")
    }
}

/// The names of the settings in each section. The first one has those of the program rl-admin
/// itself, beside the others.
const SECTIONS: [(&str, &[&str]); 3] = [
    ("", &["namespace", "redis_layout", "records_rule", "ipv6_prefix", "log_secret"]),
    (
        "records",
        &[
            "database",
            "default_per_second",
            "default_per_minute",
            "default_per_hour",
            "default_per_day",
            "default_per_week",
            "default_per_month",
            "anonymous_per_hour",
            "zero_means",
            "usage_days",
        ],
    ),
    (
        "admin",
        &[
            "listen",
            "tokens",
            "prefix",
            "console",
            "origin",
            "trusted_proxies",
            "failed_attempts",
            "exempt_loopback",
            "require_if_match",
            "realms",
            "webhook_urls",
            "webhook_secret",
            "oidc_issuer",
            "oidc_client_id",
            "oidc_client_secret",
            "oidc_claim",
            "oidc_roles",
            "oidc_name",
        ],
    ),
];

/// The values in a section of a file, by name.
#[derive(Clone, Default)]
pub struct Section {
    path: String,
    names: &'static [&'static str],
    values: BTreeMap<String, String>,
}

impl Section {
    /// Reads the values of the section `records`, `admin`, or, with an empty name, of the program
    /// rl-admin itself. Replaces variables and files; relative paths begin in `folder`.
    ///
    /// # Errors
    ///
    /// Returns the reason, with the name of the setting, for which a value cannot be read.
    pub fn new(name: &str, texts: &SectionTexts, folder: &Path) -> Result<Self, String> {
        let section = SECTIONS.iter().find(|(known, _)| *known == name);
        let names = section.map_or(&[][..], |(_, names)| names);
        let path = if name.is_empty() { "server".to_owned() } else { format!("server: {name}") };
        let mut values = BTreeMap::new();
        for (name, text) in texts {
            let invalid = |reason| format!("{path}: {name}: {reason}");
            if !names.contains(&&**name) {
                return Err(invalid(format!("unknown setting, expected {}", names.join(", "))));
            }
            let texts = match text {
                SettingText::Flag(flag) => vec![flag.to_string()],
                SettingText::Number(number) => vec![number.to_string()],
                SettingText::Text(text) => vec![text.clone()],
                SettingText::List(texts) => texts.clone(),
                SettingText::Map(map) => vec![serde_json::to_string(map).unwrap_or_default()],
            };
            let texts: Result<Vec<_>, _> = texts.iter().map(|text| secret(text, folder)).collect();
            values.insert(name.clone(), texts.map_err(invalid)?.join(","));
        }
        Ok(Self { path, names, values })
    }

    /// Returns the value that the section has in place of a variable, unless it is empty.
    #[must_use]
    pub fn value(&self, variable: &str) -> Option<String> {
        self.values.get(&name_in_file(variable)).filter(|value| !value.is_empty()).cloned()
    }

    /// Returns the place of the setting of a variable in the file, if it belongs to this section.
    #[must_use]
    pub fn place(&self, variable: &str) -> Option<String> {
        let name = name_in_file(variable);
        // An error may be about two settings that belong together.
        let first = name.split([' ', ',']).next().unwrap_or_default();
        self.names.contains(&first).then(|| format!("{}: {name}", self.path))
    }

    /// Reads the settings with a function that reads variables.
    ///
    /// # Errors
    ///
    /// Returns the error with the place of the setting in the file.
    pub fn read<T>(
        &self,
        read: impl FnOnce(&dyn Fn(&'static str) -> Option<String>) -> Result<T, InvalidSetting>,
    ) -> Result<T, String> {
        read(&|variable: &'static str| self.value(variable)).map_err(|error| {
            let place = self.place(error.variable());
            format!("{}: {}", place.as_deref().unwrap_or(&self.path), error.reason())
        })
    }
}

/// Shows the names only.
impl fmt::Debug for Section {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.values.keys()).finish()
    }
}

/// Returns the name that the setting of a variable has in a file.
fn name_in_file(variable: &str) -> String {
    match variable {
        "DATABASE_URL" => "database".to_owned(),
        _ => variable.replace("RL_", "").replace("ADMIN_", "").to_lowercase(),
    }
}

/// Returns the value of an environment variable if the whole text is `${NAME}`, or
/// `${NAME:-DEFAULT}`. Otherwise returns the text.
///
/// # Errors
///
/// Returns an error if the variable is not set.
pub fn expanded(text: &str) -> Result<String, String> {
    let Some(inside) = text.strip_prefix("${").and_then(|rest| rest.strip_suffix('}')) else {
        return Ok(text.to_owned());
    };
    let (name, default) = match inside.split_once(":-") {
        Some((name, default)) => (name, Some(default.to_owned())),
        None => (inside, None),
    };
    let value = std::env::var(name).ok().filter(|value| !value.is_empty());
    value
        .or(default)
        .ok_or_else(|| format!("variable ${{{name}}} is not set: expected it in the environment"))
}

/// Returns a secret: the content of `file:PATH`, the value of `${NAME}`, or the text.
///
/// # Errors
///
/// Returns an error if the file cannot be read, or the variable is not set.
pub fn secret(text: &str, folder: &Path) -> Result<String, String> {
    let Some(path) = text.strip_prefix("file:") else { return expanded(text) };
    let content = read_text(&folder.join(path))?;
    Ok(content.trim_end_matches(['\r', '\n']).to_owned())
}
