//! Extracts the definition of each rule from a rule file, for display.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::{Map, Value};

use super::yaml::from_yaml;

/// The fields of a rule in the order in which a definition has them. `shadow` is left out, because
/// it is a state that is shown beside the definition.
const FIELDS: [&str; 9] =
    ["match", "exempt", "per", "limits", "tiers", "cost", "over", "missing", "disclosed"];

#[derive(Deserialize)]
struct RuleTexts {
    #[serde(default)]
    rules: BTreeMap<String, Map<String, Value>>,
}

/// Returns the definition of each rule of a valid file by its name, as YAML with one field on each
/// line.
///
/// Variables are not replaced, because a definition is shown to people who may not read the
/// environment of the service.
pub(super) fn definitions(text: &str, is_toml: bool) -> BTreeMap<String, String> {
    let texts: Option<RuleTexts> =
        if is_toml { toml::from_str(text).ok() } else { from_yaml(text).ok() };
    let rules = texts.map(|texts| texts.rules).unwrap_or_default();
    rules.into_iter().map(|(name, fields)| (name, definition(&fields))).collect()
}

fn definition(fields: &Map<String, Value>) -> String {
    let mut text = String::new();
    for (field, value) in FIELDS.iter().filter_map(|field| Some((field, fields.get(*field)?))) {
        text.extend([*field, ": "]);
        write_value(&mut text, value);
        text.push('\n');
    }
    text
}

/// Writes a value in the flow style of YAML.
fn write_value(text: &mut String, value: &Value) {
    match value {
        Value::String(string) if is_plain(string) => text.push_str(string),
        Value::Array(values) => {
            text.push('[');
            for (index, value) in values.iter().enumerate() {
                text.push_str(if index > 0 { ", " } else { "" });
                write_value(text, value);
            }
            text.push(']');
        }
        Value::Object(fields) => {
            text.push('{');
            for (index, (field, value)) in fields.iter().enumerate() {
                text.push_str(if index > 0 { ", " } else { " " });
                write_value(text, &Value::String(field.clone()));
                text.push_str(": ");
                write_value(text, value);
            }
            text.push_str(" }");
        }
        // Numbers, booleans, null and quoted strings have the same form in YAML and JSON.
        value => text.push_str(&value.to_string()),
    }
}

/// Returns whether YAML reads `text` without quotes as the same string.
fn is_plain(text: &str) -> bool {
    let is_inner = |char: char| char.is_ascii_alphanumeric() || "_-./".contains(char);
    let is_word = ["true", "false", "null", "yes", "no", "on", "off", "y", "n"]
        .iter()
        .any(|word| text.eq_ignore_ascii_case(word));
    let begins = text.starts_with(|char: char| char.is_ascii_alphanumeric() || char == '/');
    let is_number = text.parse::<f64>().is_ok() || text.starts_with("0x") || text.starts_with("0o");
    begins && text.chars().all(is_inner) && !is_word && !is_number
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn definitions_are_equal_in_yaml_json_and_toml() {
        let yaml = r#"
store: "redis://${HOST}"
rules:
  login:
    # Comments are left out.
    limits: [5/minute, 100/day:clock]
    match: { method: [POST, PUT], path: "/login/{name}" }
    per: address
    shadow: true
  keys: { per: "trusted-header:x-key", limits: "${LIMIT}", cost: 2, missing: allow }
"#;
        let json = r#"{ "rules": {
            "login": { "limits": ["5/minute", "100/day:clock"], "per": "address",
                "match": { "method": ["POST", "PUT"], "path": "/login/{name}" } },
            "keys": { "per": "trusted-header:x-key", "limits": "${LIMIT}", "cost": 2,
                "missing": "allow" } } }"#;
        let toml = r#"
[rules.login]
match = { method = ["POST", "PUT"], path = "/login/{name}" }
limits = ["5/minute", "100/day:clock"]
per = "address"
[rules.keys]
per = "trusted-header:x-key"
cost = 2
limits = "${LIMIT}"
missing = "allow"
"#;
        let login = "match: { method: [POST, PUT], path: \"/login/{name}\" }\nper: address\n\
                     limits: [5/minute, \"100/day:clock\"]\n";
        let keys = "per: \"trusted-header:x-key\"\nlimits: \"${LIMIT}\"\ncost: 2\nmissing: allow\n";
        for (text, is_toml) in [(yaml, false), (json, false), (toml, true)] {
            let found = definitions(text, is_toml);
            assert_eq!((&*found["login"], &*found["keys"]), (login, keys), "{text}");
        }
        assert_eq!(
            definitions(&format!("rules:\n  login:\n    {}", login.replace('\n', "\n    ")), false)
                ["login"],
            login
        );
    }

    #[test]
    fn strings_that_yaml_would_read_as_other_values_are_quoted() {
        let table = [
            ("5/minute", "5/minute"),
            ("", "\"\""),
            ("10", "\"10\""),
            ("1e3", "\"1e3\""),
            ("0x1f", "\"0x1f\""),
            ("0o17", "\"0o17\""),
            ("Yes", "\"Yes\""),
            ("-", "\"-\""),
            ("a: b", "\"a: b\""),
            ("*", "\"*\""),
            ("a\"b", "\"a\\\"b\""),
        ];
        for (value, expected) in table {
            let mut text = String::new();
            write_value(&mut text, &Value::String(value.to_owned()));
            assert_eq!(text, expected);
            assert_eq!(from_yaml::<Value>(&text).unwrap(), Value::String(value.to_owned()));
        }
    }
}
