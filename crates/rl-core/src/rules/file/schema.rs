//! The structure of a file, from which the published JSON Schema is made.

use std::borrow::Cow;
use std::fmt;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::Deserialize;
use serde::de::{Deserializer, Error, IgnoredAny, MapAccess, Visitor};

use super::collections::{LimitTexts, Named, OneOrMany};
use super::cost::CostText;
use super::keys::KeyText;
use super::scalars::{Flag, FromText, Proxy, RuleName, Secret, Span, Text, Units};
use crate::key::KeySecret;
use crate::model::Limit;
use crate::policy::{InvalidPolicy, Policy, PolicyBuilder};
use crate::rules::over_limit::{MissingKey, OverLimit};
use crate::rules::request_match::{CompiledMatch, Match};

/// A file of rules.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct FileText {
    /// The URL of the store, which the service connects to when it starts.
    #[serde(default)]
    pub(super) store: Option<Text<Secret>>,
    /// The secret with which API keys are hashed, of at least 16 bytes: `${VARIABLE}` or
    /// `file:PATH`. Without it, each process has a random secret.
    #[serde(default)]
    pub(super) secret: Option<Text<KeySecret>>,
    /// The proxies whose headers are trusted, as addresses and networks.
    #[serde(default)]
    pub(super) proxies: OneOrMany<Proxy>,
    /// The requests that no rule counts.
    #[serde(default)]
    pub(super) exempt: Vec<MatchText>,
    /// The rules by name. A request is charged under all that match it, or under none.
    pub(super) rules: Named<RuleName, RuleText>,
}

/// A rule: the subject that is counted, and its limits.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, try_from = "RawRule")]
#[schemars(with = "RawRule")]
pub(super) struct RuleText {
    pub(super) raw: RawRule,
}

/// A rule: the subject that is counted, and its limits.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "rule")]
pub(super) struct RawRule {
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
    pub(super) tiers: Named<String, LimitTexts>,
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
    /// Whether headers and messages describe the rule. Defaults to true for a rule with `per`.
    #[serde(default)]
    pub(super) disclosed: Option<Flag>,
}

impl TryFrom<RawRule> for RuleText {
    type Error = InvalidPolicy;

    /// Checks the limits while the rule is read, so that the error states the line and column of
    /// the rule.
    fn try_from(raw: RawRule) -> Result<Self, InvalidPolicy> {
        raw.limits.check()?;
        raw.tiers.0.iter().try_for_each(|(_, limits)| limits.check())?;
        Ok(Self { raw })
    }
}

impl LimitTexts {
    /// Checks that the limits form a policy.
    ///
    /// # Errors
    ///
    /// Returns an error if they do not.
    fn check(&self) -> Result<(), InvalidPolicy> {
        match self {
            Self::Limits(limits) => policy(limits).map(drop),
            Self::Source(_) => Ok(()),
        }
    }
}

/// Returns a policy with these limits. Some of them may have names.
///
/// # Errors
///
/// Returns an error if the limits do not form a policy.
pub(super) fn policy(limits: &[(Option<String>, Limit)]) -> Result<Policy, InvalidPolicy> {
    let add = |policy: PolicyBuilder, (name, limit): &(Option<String>, _)| match name {
        Some(name) => policy.named(name, *limit),
        None => policy.limit(*limit),
    };
    limits.iter().fold(Policy::builder(), add).build()
}

/// The requests that satisfy all conditions. A condition with several values is satisfied if one of
/// them applies.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, try_from = "RawMatch")]
#[schemars(with = "RawMatch")]
pub(super) struct MatchText(pub(super) Match);

/// The requests that satisfy all conditions. A condition with several values is satisfied if one of
/// them applies.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "match")]
struct RawMatch {
    /// Methods in upper case. `GET` includes `HEAD`.
    #[serde(default)]
    method: OneOrMany<String>,
    /// Path templates, such as `/users/{id}` or `/files/{*rest}`.
    #[serde(default)]
    path: OneOrMany<String>,
    /// Hosts without port; `*.example.org` is all hosts below a domain.
    #[serde(default)]
    host: OneOrMany<String>,
    /// Headers, each with the value that one of its lines must have. `*` accepts any value.
    #[serde(default)]
    header: Named<String, Text<String>>,
    /// Addresses and networks of clients.
    #[serde(default)]
    address: OneOrMany<String>,
}

impl TryFrom<RawMatch> for MatchText {
    type Error = String;

    fn try_from(raw: RawMatch) -> Result<Self, String> {
        let matches = raw.method.0.iter().fold(Match::new(), Match::method);
        let matches = raw.path.0.iter().fold(matches, Match::path);
        let matches = raw.host.0.iter().fold(matches, Match::host);
        let matches = raw.address.0.iter().fold(matches, Match::address);
        let header = |matches: Match, (name, Text(value)): &(String, Text<String>)| match &**value {
            "*" => matches.header(name),
            value => matches.header_value(name, value),
        };
        let matches = raw.header.0.iter().fold(matches, header);
        if matches == Match::new() {
            return Err(
                "a match without conditions: expected method, path, host, header or address".into(),
            );
        }
        CompiledMatch::new(&matches).map_err(|error| error.to_string())?;
        Ok(Self(matches))
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

/// Returns the JSON Schema of files of rules, in YAML and TOML, with which editors complete and
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
