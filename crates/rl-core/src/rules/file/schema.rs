//! The structure of a file, from which the published JSON Schema is made.

use std::borrow::Cow;
use std::fmt;
use std::path::{Path, PathBuf};

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::Deserialize;
use serde::de::{Deserializer, Error, IgnoredAny, MapAccess, Unexpected, Visitor};

use super::collections::{Named, OneOrMany};
use super::cost::CostText;
use super::keys::{CredentialText, KeyText};
use super::limits::LimitTexts;
use super::scalars::{
    Expanded, Flag, FromText, HashSecret, Name, Proxy, RuleName, Secret, Span, Text, Units,
};
use super::variables::{SecretFile, clipped};
use crate::key::ClientAddress;
use crate::rules::over_limit::{MissingKey, OverLimit};
use crate::rules::request_match::{CompiledMatch, Match};

/// A rule file.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct FileText {
    /// The URL of the store, which the service connects to when it starts.
    #[serde(default)]
    pub(super) store: Option<Text<Secret>>,
    /// The secret with which API keys are hashed, of at least 16 bytes: `${VARIABLE}` or
    /// `file:PATH`. Without it, each process has a random secret.
    #[serde(default)]
    pub(super) secret: Option<Text<HashSecret>>,
    /// The keys that the service knows, for `per: key`.
    #[serde(default)]
    pub(super) keys: Option<KeysText>,
    /// The proxies whose headers are trusted, as addresses and networks.
    #[serde(default)]
    pub(super) proxies: OneOrMany<Proxy>,
    /// The requests that no rule counts.
    #[serde(default)]
    pub(super) exempt: Vec<MatchText>,
    /// The settings of the server that reads the file.
    #[serde(default)]
    pub(super) server: Option<SectionText>,
    /// The limits of the descriptors that gateways send, by domain.
    #[serde(default)]
    pub(super) domains: Option<SectionText>,
    /// The rules by name. A request is charged under all that match it, or under none.
    #[serde(default)]
    pub(super) rules: Named<RuleName, RuleText>,
    /// The mark of a complete file: `end: true` as the last line, in TOML `[end]`. Once a version
    /// has it, a version without it is refused.
    #[serde(default)]
    pub(super) end: Option<EndMark>,
}

impl FileText {
    /// Returns the name of the first section that only a service can read.
    pub(super) const fn section(&self) -> Option<&'static str> {
        match (&self.server, &self.domains) {
            (Some(_), _) => Some("server"),
            (_, Some(_)) => Some("domains"),
            (None, None) => None,
        }
    }

    /// Returns the path of the file of keys, and that path as errors show it. A relative path is
    /// beside the rule file.
    pub(super) fn path_of_keys(&self, rules: &Path) -> Option<(PathBuf, PathBuf)> {
        let Text(file) = &self.keys.as_ref()?.file;
        let path = rules.parent().unwrap_or(Path::new("")).join(&file.value);
        let shown = if file.has_variables() { PathBuf::from(file.shown()) } else { path.clone() };
        Some((path, shown))
    }

    /// Returns the files that have the secrets.
    pub(super) fn secret_files(&self) -> impl Iterator<Item = &SecretFile> {
        let store = self.store.iter().map(|Text(store)| store);
        let secret = self.secret.iter().map(|Text(secret)| &secret.text);
        store.chain(secret).filter_map(|secret| secret.file.as_ref())
    }
}

/// The keys that the service knows: those that `per: key` counts, each with its name.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "keys")]
pub(super) struct KeysText {
    /// The places of a request in which clients send keys: `header:NAME`, `bearer`, `query:NAME`,
    /// `cookie:NAME`. The first key that is present is looked up.
    pub(super) from: OneOrMany<CredentialText>,
    /// The file of keys: a list of `{ sha256, name, tier }`. Its path is relative to this file.
    pub(super) file: Text<Expanded>,
}

/// A rule: the subject that is counted, and its limits.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "rule")]
pub(super) struct RuleText {
    /// The requests to which the rule applies. Defaults to all.
    #[serde(default, rename = "match")]
    pub(super) matches: Option<MatchText>,
    /// The requests that this rule does not count.
    #[serde(default)]
    pub(super) exempt: Vec<MatchText>,
    /// The subject that is counted: the first extractor that finds a key. Defaults to one counter
    /// for all requests.
    #[serde(default)]
    pub(super) per: OneOrMany<KeyText>,
    /// The limits of each subject.
    pub(super) limits: LimitTexts,
    /// The limits of clients in a tier, which replace those of the rule.
    #[serde(default)]
    pub(super) tiers: Named<Name, LimitTexts>,
    /// The units that each request costs. Defaults to 1.
    #[serde(default)]
    pub(super) cost: Option<CostText>,
    /// The treatment of requests over the limits. Defaults to `reject`.
    #[serde(default)]
    pub(super) over: Option<OverText>,
    /// The treatment of requests without a key. Defaults to `reject`.
    #[serde(default)]
    pub(super) missing: Option<Text<MissingKey>>,
    /// Whether the rule counts and reports, but denies nothing.
    #[serde(default)]
    pub(super) shadow: Option<Flag>,
    /// Whether headers and messages describe the rule. Defaults to true for a rule with `per`. With
    /// `name` they contain its name instead of a hash.
    #[serde(default)]
    pub(super) disclosed: Option<DisclosureText>,
}

/// The requests that satisfy all conditions. A condition with several values is satisfied if one of
/// them applies.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, try_from = "RawMatch")]
#[schemars(with = "RawMatch")]
pub(super) struct MatchText(pub(super) Match);

/// The requests that satisfy all conditions. A condition with several values is satisfied if one of
/// them applies.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "match")]
struct RawMatch {
    /// Methods in upper case. `GET` includes `HEAD`.
    #[serde(default)]
    method: OneOrMany<Expanded>,
    /// Path templates, such as `/users/{id}` or `/files/{*rest}`.
    #[serde(default)]
    path: OneOrMany<Expanded>,
    /// Hosts without port; `*.example.org` is all hosts below a domain.
    #[serde(default)]
    host: OneOrMany<Expanded>,
    /// Headers, each with the value that one of its lines must have. `*` accepts any value.
    #[serde(default)]
    header: Named<Name, Text<Expanded>>,
    /// Addresses and networks of clients.
    #[serde(default)]
    address: OneOrMany<Expanded>,
}

impl TryFrom<RawMatch> for MatchText {
    type Error = String;

    fn try_from(raw: RawMatch) -> Result<Self, String> {
        let mut matches = Match::new();
        // The prefixes of a site's translators are compared when the rules are built.
        let client = ClientAddress::default();
        for (text, add) in [
            (&raw.method, (|to, text| to.method(text)) as fn(Match, &str) -> Match),
            (&raw.path, |to, text| to.path(text)),
            (&raw.host, |to, text| to.host(text)),
            (&raw.address, |to, text| to.address(text)),
        ] {
            for text in &text.0 {
                // Each value is checked alone, so that the error shows it as it stands in the file.
                CompiledMatch::new(&add(Match::new(), &text.value), &client)
                    .map_err(|error| error.with_value(text.shown()).to_string())?;
                matches = add(matches, &text.value);
            }
        }
        for (Name(name), Text(text)) in &raw.header.0 {
            let header = Match::new().header(name);
            CompiledMatch::new(&header, &client).map_err(|error| error.to_string())?;
            matches = match &*text.value {
                "*" => matches.header(name),
                value => matches.header_value(name, value),
            };
        }
        if matches == Match::new() {
            return Err(
                "a match without conditions: expected method, path, host, header or address".into(),
            );
        }
        Ok(Self(matches))
    }
}

/// A section that the service reads itself.
#[derive(Deserialize)]
pub(super) struct SectionText(IgnoredAny);

impl JsonSchema for SectionText {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "section".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "object" })
    }
}

/// The mark at the end of a file.
#[derive(Clone, Copy, Debug)]
pub(super) struct EndMark;

impl<'de> Deserialize<'de> for EndMark {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct End;

        impl<'de> Visitor<'de> for End {
            type Value = EndMark;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("true")
            }

            fn visit_bool<E: Error>(self, is_end: bool) -> Result<EndMark, E> {
                let wrong = || E::invalid_value(Unexpected::Bool(is_end), &self);
                is_end.then_some(EndMark).ok_or_else(wrong)
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<EndMark, A::Error> {
                match map.next_key::<IgnoredAny>()? {
                    None => Ok(EndMark),
                    Some(_) => Err(A::Error::custom("values after the end: expected none")),
                }
            }
        }

        deserializer.deserialize_any(End)
    }
}

impl JsonSchema for EndMark {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "end".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "anyOf": [{ "const": true }, { "type": "object", "maxProperties": 0 }] })
    }
}

/// The parts of a rule that headers and messages describe: `true`, `false`, or `name`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DisclosureText {
    Nothing,
    Limits,
    LimitsAndName,
}

impl<'de> Deserialize<'de> for DisclosureText {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Disclosure;

        impl Visitor<'_> for Disclosure {
            type Value = DisclosureText;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("true, false or name")
            }

            fn visit_bool<E: Error>(self, is_disclosed: bool) -> Result<DisclosureText, E> {
                Ok(if is_disclosed { DisclosureText::Limits } else { DisclosureText::Nothing })
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<DisclosureText, E> {
                match text {
                    "name" => Ok(DisclosureText::LimitsAndName),
                    _ => Err(E::custom(format!(
                        "disclosed {:?}: expected true, false or name",
                        clipped(text)
                    ))),
                }
            }
        }

        deserializer.deserialize_any(Disclosure)
    }
}

impl JsonSchema for DisclosureText {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "disclosed".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "enum": [true, false, "name"] })
    }
}

impl FromText for MissingKey {
    const EXPECTED: &'static str = "reject, allow or share";

    fn schema() -> Schema {
        json_schema!({ "enum": ["reject", "allow", "share"] })
    }

    fn from_text(text: &str) -> Result<Self, String> {
        match text {
            "reject" => Ok(Self::Reject),
            "allow" => Ok(Self::Allow),
            "share" => Ok(Self::Share),
            _ => Err(format!("missing {text:?}: expected {}", Self::EXPECTED)),
        }
    }
}

/// The treatment of requests over the limits: `reject`, `degrade`, or `{ wait: 2s, queue: 100 }`.
#[derive(Clone, Copy, Debug)]
pub(super) struct OverText(pub(super) OverLimit);

struct OverVisitor;

impl<'de> Visitor<'de> for OverVisitor {
    type Value = OverText;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("reject, degrade, or { wait: 2s, queue: 100 }")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<OverText, E> {
        match text {
            "reject" => Ok(OverText(OverLimit::Reject)),
            "degrade" => Ok(OverText(OverLimit::Degrade)),
            _ => Err(E::custom(format!(
                "over {text:?}: expected reject, degrade, or {{ wait: 2s, queue: 100 }}"
            ))),
        }
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<OverText, A::Error> {
        let (mut wait, mut queue) = (None, None);
        while let Some(key) = map.next_key::<String>()? {
            match &*key {
                "wait" => wait = Some(map.next_value::<Text<Span>>()?.0.0),
                "queue" => queue = Some(map.next_value::<Units>()?.0),
                key => {
                    let error = A::Error::unknown_field(key, &["wait", "queue"]);
                    let _ = map.next_value::<IgnoredAny>();
                    return Err(error);
                }
            }
        }
        let at_most = wait.ok_or_else(|| A::Error::missing_field("wait"))?;
        let queue = queue.ok_or_else(|| A::Error::missing_field("queue"))?;
        let queue = usize::try_from(queue).unwrap_or(usize::MAX);
        Ok(OverText(OverLimit::Wait { at_most, queue }))
    }
}

impl<'de> Deserialize<'de> for OverText {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(OverVisitor)
    }
}

impl JsonSchema for OverText {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "over".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "anyOf": [
                { "enum": ["reject", "degrade"] },
                {
                    "type": "object",
                    "properties": {
                        "wait": <Span as FromText>::schema(),
                        "queue": { "type": "integer", "minimum": 0 },
                    },
                    "required": ["wait", "queue"],
                    "additionalProperties": false,
                },
            ],
        })
    }
}

/// Returns the JSON Schema of rule files, in YAML and TOML, with which editors complete and
/// check them.
///
/// # Examples
///
/// ```
/// let schema = rl_core::rules::json_schema();
/// assert!(schema.contains(r#""rules""#));
/// ```
#[must_use]
pub fn json_schema() -> String {
    let mut schema = schemars::schema_for!(FileText);
    schema.insert("title".into(), "Rules of a rate limiter".into());
    let mut text = serde_json::to_string_pretty(schema.as_value()).unwrap_or_default();
    text.push('\n');
    text
}
