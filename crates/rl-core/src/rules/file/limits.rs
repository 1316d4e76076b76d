//! Limits in a rule file.

use std::borrow::Cow;
use std::fmt;
use std::marker::PhantomData;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::{Deserialize, Deserializer, Error, MapAccess, SeqAccess, Visitor};

use super::collections::{Named, NamedVisitor, OneOrMany, OneOrManyVisitor};
use super::scalars::{FromText, Name, Text};
use super::variables::{clipped, expanded};
use crate::model::{Limit, ParseLimitError};

/// A limit as a text.
#[derive(Clone, Debug)]
pub(super) struct LimitText {
    pub(super) limit: Limit,
    has_variables: bool,
}

impl FromText for LimitText {
    const EXPECTED: &'static str = "a limit, such as 10/second, 5000/day:clock or 20:concurrency";
    const HAS_VARIABLES: bool = true;

    fn from_text(text: &str) -> Result<Self, String> {
        let limit = text.parse().map_err(|error: ParseLimitError| match hint(text) {
            Some(hint) => format!("limit {:?}: {hint}", clipped(text)),
            None => error.to_string(),
        })?;
        Ok(Self { limit, has_variables: false })
    }

    fn read(text: &str) -> Result<Self, String> {
        if !text.contains('$') {
            return Self::from_text(text);
        }
        let limit = expanded(text)?.parse().map_err(|_| {
            let text = clipped(text);
            format!("limit {text:?} with its variables replaced: expected {}", Self::EXPECTED)
        })?;
        Ok(Self { limit, has_variables: true })
    }
}

/// Returns what to write in place of a text that people write for a limit.
pub(super) fn hint(text: &str) -> Option<String> {
    let lower = text.to_lowercase();
    let no_limit =
        ["unlimited", "no limit", "no-limit", "none", "off", "infinite", "infinity", "disabled"];
    if no_limit.contains(&lower.trim()) {
        let instead = "to allow every request, leave the rule out; a tier needs a limit, such as 1000000/second";
        return Some(instead.to_owned());
    }
    let filler =
        ["per", "a", "an", "each", "every", "requests", "request", "calls", "call", "times"];
    let is_word = |word: &&str| !word.is_empty() && !filler.contains(word);
    let words: Vec<&str> =
        lower.split(|c: char| c.is_whitespace() || c == '/').filter(is_word).collect();
    let [max, period @ ..] = &*words else { return None };
    let limit = format!("{max}/{}", period.concat());
    limit.parse::<Limit>().ok().map(|_| format!("write {limit}"))
}

/// The limits of a rule or a tier: one limit, a list of limits, limits by name, or a source.
#[derive(Clone, Debug)]
pub(super) enum LimitTexts {
    Limits(Vec<(Option<String>, LimitText)>),
    /// The source that the service has registered under this name.
    Source(String),
}

struct LimitTextsVisitor;

impl<'de> Visitor<'de> for LimitTextsVisitor {
    type Value = LimitTexts;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a limit, such as 10/second, a list of limits, or limits by name")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<LimitTexts, E> {
        match LimitText::read(text) {
            Ok(limit) => Ok(LimitTexts::Limits(vec![(None, limit)])),
            Err(_) if is_source(text) => Ok(LimitTexts::Source(text.to_owned())),
            Err(error) => Err(E::custom(error)),
        }
    }

    fn visit_seq<A: SeqAccess<'de>>(self, limits: A) -> Result<LimitTexts, A::Error> {
        let OneOrMany(limits) = OneOrManyVisitor(PhantomData).visit_seq(limits)?;
        Ok(LimitTexts::Limits(limits.into_iter().map(|limit| (None, limit)).collect()))
    }

    fn visit_map<A: MapAccess<'de>>(self, limits: A) -> Result<LimitTexts, A::Error> {
        let limits: Named<Name, Text<LimitText>> = NamedVisitor(PhantomData).visit_map(limits)?;
        let limits = limits.0.into_iter().map(|(Name(name), Text(limit))| (Some(name), limit));
        Ok(LimitTexts::Limits(limits.collect()))
    }
}

impl LimitTexts {
    /// Returns whether errors must not show the limits, because variables are replaced in them.
    pub(super) fn has_variables(&self) -> bool {
        match self {
            Self::Limits(limits) => limits.iter().any(|(_, limit)| limit.has_variables),
            Self::Source(_) => false,
        }
    }
}

/// Returns whether a text may be the name of a source. No limit begins with a letter.
fn is_source(text: &str) -> bool {
    let fits = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b"-_".contains(&b);
    text.starts_with(|first: char| first.is_ascii_lowercase()) && text.bytes().all(fits)
}

impl<'de> Deserialize<'de> for LimitTexts {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(LimitTextsVisitor)
    }
}

impl JsonSchema for LimitTexts {
    fn schema_name() -> Cow<'static, str> {
        "limits".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        let limit = LimitText::schema();
        let source = "the name of a source that the service registers, such as records";
        json_schema!({
            "description": "One limit, a list of limits, limits by name, or the name of a source.",
            "anyOf": [
                limit,
                { "type": "array", "items": limit, "minItems": 1 },
                { "type": "object", "additionalProperties": limit, "minProperties": 1 },
                { "type": "string", "pattern": "^[a-z][a-z0-9_-]*$", "description": source },
            ],
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_that_people_write_for_limits_have_a_hint() {
        for (text, expected) in [
            ("10 per second", "limit \"10 per second\": write 10/second"),
            ("10 / second", "limit \"10 / second\": write 10/second"),
            ("10 requests per 5 minutes", "limit \"10 requests per 5 minutes\": write 10/5minutes"),
            (
                "Unlimited",
                "limit \"Unlimited\": to allow every request, leave the rule out; a tier needs a limit",
            ),
            ("10/secnd", "limit \"10/secnd\", column 4: expected"),
            ("many", "limit \"many\", column 1: expected"),
        ] {
            let error = LimitText::from_text(text).unwrap_err();
            assert!(error.starts_with(expected), "{error}");
        }
    }
}
